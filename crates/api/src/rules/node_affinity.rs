//! Which nodes a node selector, a Pod's `nodeSelector` and its required node affinity admit.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

use crate::rules::selector::Labels;

/// One condition; an operator or value that cannot be understood matches nothing.
pub fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|v| values.iter().any(|w| w == v));
    let number = |text: Option<&str>| text.and_then(|t| t.parse::<i64>().ok());
    let bound = || if let [one] = values { number(Some(one)) } else { None };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => matches!((number(value), bound()), (Some(a), Some(b)) if a > b),
        "Lt" => matches!((number(value), bound()), (Some(a), Some(b)) if a < b),
        _ => false,
    }
}

/// All conditions of a term; a term without any matches no node.
pub fn term_matches(term: &NodeSelectorTerm, labels: &impl Labels, node: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|r| requirement_matches(r, labels.get(&r.key)))
        && fields.iter().all(|r| requirement_matches(r, (r.key == "metadata.name").then_some(node)))
}

/// One term is enough.
pub fn matches(selector: &NodeSelector, labels: &impl Labels, node: &str) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, labels, node))
}

/// `nodeSelector` and required node affinity together.
pub fn admits(spec: &PodSpec, labels: &impl Labels, node: &str) -> bool {
    let simple = spec.node_selector.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    simple && required.is_none_or(|selector| matches(selector, labels, node))
}

/// The weights of the preferred terms that match, added up.
pub fn preference(spec: &PodSpec, labels: &impl Labels, node: &str) -> i64 {
    let preferred = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref());
    let terms = preferred.unwrap_or_default().iter().filter(|p| term_matches(&p.preference, labels, node));
    terms.map(|p| i64::from(p.weight)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;
    use std::collections::BTreeMap;

    #[test]
    fn terms_admit_nodes() {
        let labels: BTreeMap<String, String> =
            [("zone".to_owned(), "a".to_owned()), ("cpu".to_owned(), "8".to_owned())].into();
        for (term, expected) in [
            (json!({}), false),
            (json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}), true),
            (json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}), false),
            (json!({"matchExpressions": [{"key": "gpu", "operator": "NotIn", "values": ["a"]}]}), true),
            (json!({"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}), true),
            (json!({"matchExpressions": [{"key": "cpu", "operator": "Gt", "values": ["4"]}]}), true),
            (json!({"matchExpressions": [{"key": "cpu", "operator": "Lt", "values": ["8"]}]}), false),
            (json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), true),
            (json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), false),
        ] {
            let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
            let spec: PodSpec = json::from_value(json!({"containers": [], "affinity": affinity})).unwrap();
            assert_eq!(admits(&spec, &labels, "n1"), expected, "{term}");
        }
        let spec: PodSpec = json::from_value(json!({"containers": [], "nodeSelector": {"zone": "b"}})).unwrap();
        assert!(!admits(&spec, &labels, "n1"));
    }
}
