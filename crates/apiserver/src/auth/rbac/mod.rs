//! RBAC: roles and bindings, kept as lookups from a subject to the roles it is bound to.
//!
//! The policy follows the objects: whoever sees a change of a Role, ClusterRole or binding calls [`Rbac::changed`].
//! A decision costs a hash lookup per group of the user and the rules of the roles found.

pub mod cover;
pub mod policy;
pub mod rule;

use json::Value;
use parking_lot::RwLock;

pub use policy::{Policy, RoleRef};
pub use rule::PolicyRule;

use super::{Answer, Attributes, Authorizer, Rules, User, Verdict, known};

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The authorizer.
#[derive(Default)]
pub struct Rbac {
    policy: RwLock<Policy>,
}

impl Rbac {
    /// Takes in that an object of this group became `object`, or is gone. Other resources are ignored.
    pub fn changed(&self, plural: &str, namespace: &str, name: &str, object: Option<&Value>) {
        self.policy.write().changed(plural, namespace, name, object);
    }

    /// Every rule that applies to a user in a namespace; with an empty namespace those of the whole cluster.
    pub fn rules_of(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        let mut rules = Vec::new();
        self.policy.read().visit(user, namespace, |grant| {
            rules.extend(grant.rules.iter().cloned());
            true
        });
        rules
    }

    /// The rules of a role that a binding in `namespace` names.
    pub fn rules_of_role(&self, role: &RoleRef, namespace: &str) -> Option<Vec<PolicyRule>> {
        self.policy.read().rules(role, namespace).map(<[PolicyRule]>::to_vec)
    }
}

impl Rbac {
    /// The verdict of the bindings about a request.
    pub fn decide(&self, a: &Attributes<'_>) -> Verdict {
        let mut reason = None;
        let missing = self.policy.read().visit(a.user, a.namespace, |grant| {
            if grant.rules.iter().any(|rule| rule.matches(a)) {
                reason = Some(grant.to_string());
            }
            reason.is_none()
        });
        match (reason, missing.as_slice()) {
            (Some(reason), _) => Verdict::Allow(reason),
            (None, []) => Verdict::NoOpinion(String::new()),
            (None, [one]) => Verdict::NoOpinion(format!("RBAC: {one}")),
            (None, many) => Verdict::NoOpinion(format!("RBAC: [{}]", many.join(", "))),
        }
    }
}

impl Authorizer for Rbac {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> Answer<'a> {
        known(self.decide(a))
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let (path, resource) =
            self.rules_of(user, namespace).into_iter().partition(|rule| !rule.non_resource_urls.is_empty());
        Rules { resource, path, unlisted: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn policy() -> Rbac {
        let rbac = Rbac::default();
        let role = |rules: Value| json!({"rules": rules});
        let read = json!([{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}]);
        rbac.changed("clusterroles", "", "reader", Some(&role(read)));
        let write = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["c"], "verbs": ["*"]}]);
        rbac.changed("roles", "a", "writer", Some(&role(write)));
        let paths = json!([{"nonResourceURLs": ["/healthz", "/metrics/*"], "verbs": ["get"]}]);
        rbac.changed("clusterroles", "", "paths", Some(&role(paths)));
        let binding = |kind: &str, role: &str, subject: Value| json!({"roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}, "subjects": [subject]});
        let sub = |kind: &str, name: &str| json!({"kind": kind, "name": name, "apiGroup": GROUP});
        let b = binding("ClusterRole", "reader", sub("Group", "readers"));
        rbac.changed("clusterrolebindings", "", "readers", Some(&b));
        let account = json!({"kind": "ServiceAccount", "name": "bot", "namespace": "b"});
        rbac.changed("rolebindings", "a", "bots", Some(&binding("Role", "writer", account)));
        rbac.changed("rolebindings", "a", "jane", Some(&binding("ClusterRole", "reader", sub("User", "jane"))));
        rbac.changed("clusterrolebindings", "", "paths", Some(&binding("ClusterRole", "paths", sub("User", "jane"))));
        rbac
    }

    fn may(rbac: &Rbac, user: &User, request: &str) -> bool {
        // verb [namespace/]resource[/subresource] [name]   or   verb /path
        let parts: Vec<&str> = request.split(' ').collect();
        if parts[1].starts_with('/') {
            return rbac.decide(&Attributes::path(user, parts[0], parts[1])).allowed();
        }
        let (namespace, resource) = parts[1].split_once(':').unwrap_or(("", parts[1]));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let name = parts.get(2).copied().unwrap_or("");
        let a = Attributes::resource(user, parts[0], "", resource);
        rbac.decide(&Attributes { namespace, subresource, name, ..a }).allowed()
    }

    #[test]
    fn bindings_grant_and_nothing_else_does() {
        let rbac = policy();
        let reader = User::new("bob", ["readers"]);
        let jane = User::new("jane", ["x"]);
        let bot = User::service_account("b", "bot", "");
        for (user, request, expected) in [
            (&reader, "get pods", true),
            (&reader, "list z:pods", true),
            (&reader, "get z:pods/log p", true),
            (&reader, "create z:pods", false),
            (&reader, "get z:pods/exec p", false),
            (&jane, "get a:pods p", true),
            (&jane, "get b:pods p", false),
            (&jane, "get pods p", false),
            (&jane, "get /healthz", true),
            (&jane, "get /metrics/x", true),
            (&jane, "get /metrics", false),
            (&jane, "post /healthz", false),
            (&bot, "delete a:configmaps c", true),
            (&bot, "delete a:configmaps d", false),
            (&bot, "list a:configmaps", false),
        ] {
            assert_eq!(may(&rbac, user, request), expected, "{} {request}", user.name);
        }
    }

    #[test]
    fn a_change_counts_at_once() {
        let rbac = policy();
        let jane = User::new("jane", ["x"]);
        assert!(may(&rbac, &jane, "get a:pods"));
        rbac.changed("rolebindings", "a", "jane", None);
        assert!(!may(&rbac, &jane, "get a:pods"));
        let reader = User::new("bob", ["readers"]);
        rbac.changed("clusterroles", "", "reader", None);
        let verdict = rbac.decide(&Attributes::resource(&reader, "get", "", "pods"));
        let expected = r#"RBAC: clusterrole.rbac.authorization.k8s.io "reader" not found"#;
        assert_eq!(verdict, Verdict::NoOpinion(expected.to_owned()));
    }

    #[test]
    fn the_reason_names_the_binding() {
        let rbac = policy();
        let bot = User::service_account("b", "bot", "");
        let a = Attributes { namespace: "a", name: "c", ..Attributes::resource(&bot, "get", "", "configmaps") };
        let expected = r#"RBAC: allowed by RoleBinding "bots/a" of Role "writer" to ServiceAccount "bot/b""#;
        assert_eq!(rbac.decide(&a), Verdict::Allow(expected.to_owned()));
    }
}
