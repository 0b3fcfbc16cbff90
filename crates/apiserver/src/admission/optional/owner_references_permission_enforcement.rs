//! OwnerReferencesPermissionEnforcement: whoever changes the owners of an object could delete it, for the garbage collector
//! will when they are gone; and who keeps an owner from being deleted may write its finalizers, which do the same.
//! Upstream counterpart: plugin/pkg/admission/gc.

use api::{Value, meta, status::StatusError};

use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is, items, text},
};
use crate::auth;

pub const PLUGIN: Plugin = Plugin {
    name: "OwnerReferencesPermissionEnforcement",
    concerns: |attributes| {
        matches!(attributes.operation, Operation::Create | Operation::Update)
            && !is(attributes, "", "pods", "status")
            && owners(attributes.object.as_ref()) != owners(attributes.old)
    },
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

fn owners(object: Option<&Value>) -> Vec<&Value> {
    object.into_iter().flat_map(|object| items(object, "/metadata/ownerReferences")).collect()
}

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let definition = attributes.definition;
    // The creator of an object decides about its end.
    if attributes.operation == Operation::Update {
        let delete = auth::Attributes {
            namespace: attributes.namespace,
            name: attributes.name,
            version: &definition.version,
            subresource: attributes.subresource,
            ..auth::Attributes::resource(attributes.user, "delete", &definition.group, &definition.plural)
        };
        if let Some(reason) = refusal(context, &delete).await {
            let why = format!("cannot set an ownerRef on a resource you can't delete: {reason}");
            return Err(forbid(attributes, why));
        }
    }
    for owner in newly_blocking(attributes) {
        may_block(context, attributes, owner).await?;
    }
    Ok(())
}

/// Why the user may not do something: the reason, and what failed.
async fn refusal(context: &Context, asked: &auth::Attributes<'_>) -> Option<String> {
    let verdict = context.authorizer.authorize(asked).await;
    (!verdict.allowed()).then(|| format!("{}, {}", verdict.reason(), verdict.error().unwrap_or("<nil>")))
}

/// The owners that cannot be deleted before this object, and could until now.
fn newly_blocking<'a>(attributes: &'a Attributes<'_>) -> Vec<&'a Value> {
    let blocks = |owner: &Value| owner["blockOwnerDeletion"] == Value::Bool(true);
    let had = owners(attributes.old);
    let is_new = |owner: &Value| !had.iter().any(|old| blocks(old) && old["uid"] == owner["uid"]);
    owners(attributes.object.as_ref()).into_iter().filter(|owner| blocks(owner) && is_new(owner)).collect()
}

async fn may_block(context: &Context, attributes: &Attributes<'_>, owner: &Value) -> Result<(), StatusError> {
    let (api_version, kind) = (text(owner, "/apiVersion"), text(owner, "/kind"));
    let (group, version) = meta::group_and_version(api_version);
    let Some(found) = context.objects.by_kind(group, version, kind) else {
        let why = format!(
            "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} \
             Kind {kind}: no matches for kind {kind:?} in version {api_version:?}"
        );
        return Err(forbid(attributes, why));
    };
    let update = auth::Attributes {
        namespace: if found.namespaced() { attributes.namespace } else { "" },
        name: text(owner, "/name"),
        version,
        subresource: "finalizers",
        ..auth::Attributes::resource(attributes.user, "update", group, &found.plural)
    };
    let Some(reason) = refusal(context, &update).await else { return Ok(()) };
    let why = format!(
        "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {reason}"
    );
    Err(forbid(attributes, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{User, rbac::Rbac};
    use crate::tests::admission::{Write, context_of};
    use json::json;
    use std::sync::Arc;

    #[tokio::test]
    async fn owners_are_set_by_those_who_could_delete() {
        let rbac = Arc::new(Rbac::default());
        let role = |name: &str, group: &str, resource: &str, verb: &str| {
            let rules = json!([{"verbs": [verb], "apiGroups": [group], "resources": [resource]}]);
            rbac.changed("clusterroles", "", name, Some(&json!({"rules": rules})));
            let subject = json!({"kind": "User", "name": name});
            let binding = json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": [subject]});
            rbac.changed("clusterrolebindings", "", name, Some(&binding));
        };
        role("deleter", "", "configmaps", "delete");
        role("blocker", "", "configmaps/finalizers", "update");
        let context = context_of(rbac.clone()).await;
        let owned = |owners: Value| json!({"metadata": {"name": "c", "namespace": "n", "ownerReferences": owners}});
        let owner = |block: bool| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1", "blockOwnerDeletion": block});
        let check = async |user: &str, old: Option<Value>, new: Value, expected: &str| {
            let operation = if old.is_some() { Operation::Update } else { Operation::Create };
            let old = old.map(owned);
            let write =
                Write { operation, old, user: User::new(user, ["dev"]), ..Write::create("configmaps", owned(new)) };
            let refused = write.through(&context, &PLUGIN).await.err().unwrap_or_default();
            assert!(refused.starts_with(expected) && refused.is_empty() == expected.is_empty(), "{user}: {refused}");
        };
        let of = |why: &str| format!("configmaps \"c\" is forbidden: cannot set {why}");
        let delete = of("an ownerRef on a resource you can't delete: ");
        let block = of("blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: ");
        check("jane", None, json!([]), "").await;
        check("jane", None, json!([owner(false)]), "").await;
        check("jane", None, json!([owner(true)]), &block).await;
        check("blocker", None, json!([owner(true)]), "").await;
        check("jane", Some(json!([])), json!([owner(false)]), &delete).await;
        check("jane", Some(json!([owner(false)])), json!([]), &delete).await;
        check("jane", Some(json!([owner(true)])), json!([owner(true)]), "").await;
        check("deleter", Some(json!([])), json!([owner(false)]), "").await;
        check("deleter", Some(json!([owner(false)])), json!([owner(true)]), &block).await;
        check("deleter", Some(json!([owner(true), owner(false)])), json!([owner(true)]), "").await;
        let unknown =
            json!([{"apiVersion": "x.io/v1", "kind": "X", "name": "o", "uid": "1", "blockOwnerDeletion": true}]);
        let expected = of(
            "blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion x.io/v1 Kind X: no matches for \
             kind \"X\" in version \"x.io/v1\"",
        );
        check("blocker", None, unknown, &expected).await;
    }
}
