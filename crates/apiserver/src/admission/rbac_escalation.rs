//! Privilege escalation: roles and bindings are refused that would give away rights that the writer lacks, unless the writer
//! may `escalate` or `bind`. (Upstream does this in the storage of these kinds.)

use api::status::StatusError;
use api::{Value, meta};

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid},
};
use crate::auth;
use crate::auth::rbac::policy::{RoleRef, rules};
use crate::auth::rbac::{GROUP, PolicyRule, cover};

pub const PLUGIN: Plugin = Plugin {
    name: "RBACEscalation",
    concerns,
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.definition.group == GROUP
        && attributes.subresource.is_empty()
        && matches!(attributes.operation, Operation::Create | Operation::Update)
        && !attributes.user.is_master()
}

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(object) = &attributes.object else { return Ok(()) };
    let wanted = match attributes.definition.plural.as_str() {
        plural @ ("roles" | "clusterroles") => role(context, attributes, plural, object).await,
        _ => binding(context, attributes, object).await,
    };
    let Some(wanted) = wanted? else { return Ok(()) };
    let held = context.rbac.rules_of(attributes.user, attributes.namespace);
    let missing = cover::uncovered(&held, &wanted);
    if missing.is_empty() { Ok(()) } else { Err(forbid(attributes, cover::refusal(attributes.user, &missing))) }
}

/// The rules that a write grants; `None` where nothing has to be checked.
type Granted = Result<Option<Vec<PolicyRule>>, StatusError>;

async fn role(context: &Context, attributes: &Attributes<'_>, plural: &str, object: &Value) -> Granted {
    let unchanged = attributes
        .old
        .is_some_and(|old| rules(old) == rules(object) && old.get("aggregationRule") == object.get("aggregationRule"));
    let a = auth::Attributes {
        namespace: attributes.namespace,
        name: meta::name(object),
        version: "v1",
        ..auth::Attributes::resource(attributes.user, "escalate", GROUP, plural)
    };
    if unchanged || context.authorizer.authorize(&a).await.allowed() {
        return Ok(None);
    }
    // An aggregated role can come to hold anything.
    if object.get("aggregationRule").is_some_and(|r| !r.is_null()) {
        let everything = [PolicyRule::resources(&["*"], &["*"], &["*"]), PolicyRule::paths(&["*"], &["*"])];
        return Ok(Some(everything.to_vec()));
    }
    Ok(Some(rules(object)))
}

async fn binding(context: &Context, attributes: &Attributes<'_>, object: &Value) -> Granted {
    let same = |field: &str| attributes.old.is_some_and(|old| old.get(field) == object.get(field));
    if same("roleRef") && same("subjects") {
        return Ok(None);
    }
    let Some(reference) = RoleRef::of(object) else { return Ok(None) };
    let a = auth::Attributes {
        namespace: attributes.namespace,
        name: &reference.name,
        version: "v1",
        ..auth::Attributes::resource(
            attributes.user,
            "bind",
            GROUP,
            if reference.cluster { "clusterroles" } else { "roles" },
        )
    };
    if context.authorizer.authorize(&a).await.allowed() {
        return Ok(None);
    }
    let plural = if reference.cluster { "clusterroles" } else { "roles" };
    let found = context.rbac.rules_of_role(&reference, attributes.namespace);
    found.map(Some).ok_or_else(|| StatusError::not_found(GROUP, plural, &reference.name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use json::json;

    use super::*;
    use crate::auth::User;
    use crate::auth::rbac::Rbac;
    use crate::tests::admission::{Write, context_of};

    async fn context() -> Context {
        let rbac = Arc::new(Rbac::default());
        let role = |rules: Value| json!({"rules": rules});
        let pods = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        let binds =
            json!([{"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["big"]}]);
        rbac.changed("clusterroles", "", "small", Some(&role(pods)));
        rbac.changed("clusterroles", "", "binds", Some(&role(binds)));
        rbac.changed(
            "clusterroles",
            "",
            "big",
            Some(&role(json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]))),
        );
        let bind = |user: &str, role: &str| {
            json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "User", "name": user}]})
        };
        rbac.changed("clusterrolebindings", "", "a", Some(&bind("jane", "small")));
        rbac.changed("clusterrolebindings", "", "b", Some(&bind("bob", "binds")));
        context_of(rbac).await
    }

    async fn try_it(user: &str, plural: &'static str, object: Value) -> Result<Value, String> {
        let write = Write { kind: (GROUP, plural, ""), user: User::new(user, ["dev"]), ..Write::create("", object) };
        write.through(&context().await, &PLUGIN).await
    }

    #[tokio::test]
    async fn nobody_grants_more_than_he_holds() {
        let role = |verb: &str| {
            json!({"metadata": {"name": "r", "namespace": "ns"},
                "rules": [{"verbs": [verb], "apiGroups": [""], "resources": ["pods"]}]})
        };
        assert!(try_it("jane", "roles", role("get")).await.is_ok());
        let error = try_it("jane", "roles", role("delete")).await.unwrap_err();
        let expected = "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"jane\" (groups=[\"dev\"]) is \
                        attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], \
                        Resources:[\"pods\"], Verbs:[\"delete\"]}";
        assert_eq!(error, expected);
        let binding = |role: &str| {
            json!({"metadata": {"name": "b", "namespace": "ns"},
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}})
        };
        assert!(try_it("jane", "rolebindings", binding("small")).await.is_ok());
        assert!(try_it("jane", "rolebindings", binding("big")).await.is_err());
        assert!(try_it("bob", "rolebindings", binding("big")).await.is_ok());
        assert!(try_it("bob", "rolebindings", binding("none")).await.unwrap_err().contains("\"none\" not found"));
    }
}
