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
    let blocking = newly_blocking(attributes);
    if blocking.is_empty() || may_block_all(context, attributes).await {
        return Ok(());
    }
    for owner in blocking {
        may_block(context, attributes, owner).await?;
    }
    Ok(())
}

/// Whether the user may write the finalizers of everything there is: then no kind need be known.
async fn may_block_all(context: &Context, attributes: &Attributes<'_>) -> bool {
    let update = auth::Attributes {
        name: "*",
        version: "*",
        subresource: "finalizers",
        ..auth::Attributes::resource(attributes.user, "update", "*", "*")
    };
    context.authorizer.authorize(&update).await.allowed()
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
        check("blocker", None, unknown.clone(), &expected).await;
        // Somebody who may write the finalizers of everything is not asked which kind it is.
        role("anybody", "*", "*", "*");
        check("anybody", None, unknown, "").await;
    }

    /// Users are named after what they may not do. Upstream: TestGCAdmission, TestBlockOwnerDeletionAdmission.
    #[tokio::test]
    async fn deleting_and_blocking_are_rights_of_their_own() {
        let rbac = Arc::new(Rbac::default());
        let role = |name: &str, rules: Value| {
            rbac.changed("clusterroles", "", name, Some(&json!({"rules": rules})));
            let subject = json!({"kind": "User", "name": name});
            let binding = json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": [subject]});
            rbac.changed("clusterrolebindings", "", name, Some(&binding));
        };
        let may = |verb: &str, resources: &[&str]| json!({"verbs": [verb], "apiGroups": ["", "apps"], "resources": resources});
        role("super", json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]));
        role("no-pod", json!([may("delete", &["services"])]));
        let pods = may("delete", &["pods"]);
        role("no-rc", json!([pods, may("update", &["daemonsets/finalizers", "nodes/finalizers"])]));
        role("no-node", json!([pods, may("update", &["daemonsets/finalizers", "replicationcontrollers/finalizers"])]));
        let context = context_of(rbac.clone()).await;
        // `rc1`, `ds1` and `node1` are owners; one with `!` is blocked, and one with `?` says nothing about that.
        let owner = |word: &str| {
            let name = word.trim_end_matches(['!', '?']);
            let (version, kind) = match name {
                "ds1" => ("apps/v1", "DaemonSet"),
                "node1" => ("v1", "Node"),
                _ => ("v1", "ReplicationController"),
            };
            let mut owner = json!({"apiVersion": version, "kind": kind, "name": name});
            if !word.ends_with('?') {
                owner["blockOwnerDeletion"] = json!(word.ends_with('!'));
            }
            owner
        };
        let object = |owners: &str| {
            let owners: Vec<Value> = owners.split_whitespace().map(owner).collect();
            json!({"metadata": {"name": "p", "namespace": "n", "ownerReferences": owners}})
        };
        let delete = "cannot set an ownerRef on a resource you can't delete";
        let block =
            "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on";
        for (user, (plural, subresource), old, new, expected) in [
            ("super", ("pods", ""), None, "", ""),
            ("super", ("pods", ""), None, "rc1?", ""),
            ("super", ("pods", ""), None, "rc1! rc2! node1!", ""),
            ("super", ("pods", ""), Some("rc1? node1?"), "rc1 node1", ""),
            ("super", ("pods", ""), Some("rc1 node1"), "rc1! node1!", ""),
            ("super", ("pods", ""), Some(""), "rc1! node1!", ""),
            ("no-pod", ("pods", ""), None, "", ""),
            ("no-pod", ("pods", ""), None, "rc1?", ""),
            ("no-pod", ("services", ""), None, "rc1?", ""),
            ("no-pod", ("pods", ""), Some(""), "", ""),
            ("no-pod", ("pods", ""), Some("rc1?"), "rc1?", ""),
            ("no-pod", ("pods", ""), Some(""), "rc1?", delete),
            ("no-pod", ("pods", ""), Some("rc1?"), "rc1? rc2?", delete),
            ("no-pod", ("pods", "status"), Some(""), "rc1?", ""),
            ("no-pod", ("services", ""), Some(""), "rc1?", ""),
            ("no-rc", ("pods", ""), None, "", ""),
            ("no-rc", ("pods", ""), None, "rc1 rc2?", ""),
            ("no-rc", ("pods", ""), None, "rc1! rc2", block),
            ("no-rc", ("pods", ""), None, "ds1!", ""),
            ("no-rc", ("pods", ""), Some("rc1?"), "rc1", ""),
            ("no-rc", ("pods", ""), Some("rc1"), "rc1!", block),
            ("no-rc", ("pods", ""), Some("rc1?"), "rc1!", block),
            ("no-rc", ("pods", ""), Some("rc1!"), "rc1", ""),
            ("no-rc", ("pods", ""), Some("ds1"), "ds1!", ""),
            ("no-rc", ("pods", ""), Some(""), "rc1 rc2?", ""),
            ("no-rc", ("pods", ""), Some(""), "rc1!", block),
            ("no-rc", ("pods", ""), Some(""), "ds1!", ""),
            ("no-node", ("pods", ""), None, "node1", ""),
            ("no-node", ("pods", ""), None, "node1!", block),
            ("no-node", ("pods", ""), Some("node1?"), "node1!", block),
            ("no-node", ("pods", ""), Some("node1!"), "node1", ""),
            ("no-node", ("pods", ""), Some(""), "node1!", block),
        ] {
            let operation = if old.is_some() { Operation::Update } else { Operation::Create };
            let (user, kind) = (User::new(user, ["dev"]), ("", plural, subresource));
            let write = Write { operation, kind, user, old: old.map(object), object: Some(object(new)) };
            let name = write.user.name.clone();
            let refused = write.through(&context, &PLUGIN).await.err().unwrap_or_default();
            let fits = refused.is_empty() == expected.is_empty() && refused.contains(expected);
            assert!(fits, "{name} {plural} {subresource} {old:?} {new}: {refused}");
        }
    }
}
