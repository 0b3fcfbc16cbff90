//! ClusterRole aggregation: a role with an aggregation rule has the rules of all roles that its selectors take.
//! Reads: ClusterRole. Writes: ClusterRole.
//! Upstream counterpart: pkg/controller/clusterroleaggregation.

use std::sync::Arc;

use api::rules::selector::Selector;
use client::Key;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};

pub struct RoleAggregation;

impl Controller for RoleAggregation {
    const NAME: &'static str = "clusterrole-aggregation-controller";
    type Object = ClusterRole;
    type Observed = Vec<Arc<ClusterRole>>;

    fn watches(&self, watches: &mut Watches<ClusterRole>) {
        // Any role may be taken by any selector, and roles are few and change seldom.
        watches.changed::<ClusterRole>(|_, caches| {
            let roles = caches.of::<ClusterRole>().list();
            roles.iter().filter(|role| role.aggregation_rule.is_some()).map(|role| Key::of(&**role)).collect()
        });
    }

    fn observe(&self, role: &ClusterRole, listers: &Listers) -> Self::Observed {
        if role.aggregation_rule.is_none() { Vec::new() } else { listers.caches.of::<ClusterRole>().list() }
    }

    fn plan(&self, role: &ClusterRole, roles: &Self::Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(rules) = aggregated(role, roles) else { return plan };
        if role.metadata.deletion_timestamp.is_none() && role.rules.as_deref().unwrap_or_default() != rules {
            plan.step(Write::update(&ClusterRole { rules: Some(rules), ..role.clone() }));
        }
        plan
    }
}

/// The rules of the roles that each selector takes, by name, without repetitions; `None` for a role that aggregates
/// nothing, or whose selector cannot be read.
fn aggregated(role: &ClusterRole, roles: &[Arc<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    let selectors = role.aggregation_rule.as_ref()?.cluster_role_selectors.as_deref().unwrap_or_default();
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in selectors {
        let selector = Selector::of_object(Some(selector)).ok()?;
        let others = roles.iter().filter(|other| other.metadata.name != role.metadata.name);
        let taken = others.filter(|other| selector.matches(&other.metadata.labels));
        for rule in taken.flat_map(|other| other.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    Some(rules)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use json::{Value, json};

    /// `name label:label verb verb`: a role with these labels, and one rule for each verb.
    fn role(text: &str) -> Arc<ClusterRole> {
        let mut words = text.split(' ');
        let name = words.next().unwrap();
        let labels: BTreeMap<&str, &str> = words.next().unwrap().split(':').map(|label| (label, "true")).collect();
        let rules: Vec<Value> = words.map(|verb| json!({"verbs": [verb]})).collect();
        let role = json!({"metadata": {"name": name, "labels": labels}, "rules": rules});
        Arc::new(json::from_value(role).unwrap())
    }

    #[test]
    fn rules_are_those_of_all_selected_roles() {
        // The selectors, the other roles, the rules that the role has; then those that it gets, if it is written.
        let check = |selectors: &[&str], others: &[&str], held: &str, expected: Option<&str>| {
            let mut whole = (*role(&format!("whole x {held}"))).clone();
            whole.rules.get_or_insert_default().retain(|rule| rule.verbs != [""]);
            let selectors: Vec<_> = selectors.iter().map(|label| json!({"matchLabels": {*label: "true"}})).collect();
            whole.aggregation_rule = json::from_value(json!({"clusterRoleSelectors": selectors})).unwrap();
            let mut roles: Vec<_> = others.iter().map(|text| role(text)).collect();
            roles.push(Arc::new(whole.clone()));
            let plan = RoleAggregation.plan(&whole, &roles, Timestamp::UNIX_EPOCH);
            let rules = plan.writes().next().map(|write| {
                let rules: Vec<PolicyRule> = json::from_value(write.body()["rules"].clone()).unwrap();
                rules.into_iter().flat_map(|rule| rule.verbs).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(rules.as_deref(), expected, "{selectors:?} {others:?} {held}");
        };
        check(&["a"], &["one a get", "two b list"], "", Some("get"));
        check(&["a"], &["one a get", "two b list"], "get", None);
        check(&["a", "b"], &["one a get list", "two b list watch"], "get", Some("get list watch"));
        check(&["b", "a"], &["one a get", "two b list"], "get list", Some("list get"));
        check(&["a"], &["one b get"], "get", Some(""));
        check(&["a"], &["one b get"], "", None);
        // A role does not take its own rules, even if it selects itself.
        check(&["x"], &["one x get"], "list", Some("get"));
    }

    #[test]
    fn other_roles_are_left_alone() {
        let plan = RoleAggregation.plan(&role("one a get"), &vec![role("two a list")], Timestamp::UNIX_EPOCH);
        assert!(plan.is_empty());
    }
}
