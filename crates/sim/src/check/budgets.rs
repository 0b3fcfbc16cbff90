//! The checker of budgets: evictions leave as many Pods serving as a budget asks for.

use std::collections::BTreeMap;

use api::rules::selector::Selector;
use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::objects::{serves, set};

#[derive(Default)]
pub struct Budgets {
    budgets: BTreeMap<String, PodDisruptionBudget>,
    /// How many Pods were evicted, whether or not their service was promised just then.
    pub evicted: usize,
}

/// Whether somebody asked for this Pod to be evicted, and it goes.
pub fn is_evicted(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let by_eviction =
        |kind: &str, reason: Option<&str>| (kind, reason) == ("DisruptionTarget", Some("EvictionByEvictionAPI"));
    pod.metadata.deletion_timestamp.is_some()
        && conditions.into_iter().any(|c| c.status == "True" && by_eviction(&c.type_, c.reason.as_deref()))
}

impl Budgets {
    pub fn budget(&mut self, key: String, new: Option<PodDisruptionBudget>) {
        set(&mut self.budgets, key, new);
    }

    /// A Pod whose service was promised is evicted; `pods` are those that are left.
    pub fn goes(&self, pod: &Pod, pods: &BTreeMap<String, Pod>) -> Option<String> {
        self.budgets.values().find_map(|budget| {
            let spec = budget.spec.as_ref()?;
            let Some(IntOrString::Int(least)) = spec.min_available else { return None };
            let selector = Selector::of_object(spec.selector.as_ref()).ok()?;
            let is_guarded = |other: &Pod| {
                other.metadata.namespace == budget.metadata.namespace && selector.matches(&other.metadata.labels)
            };
            let left = pods.values().filter(|other| is_guarded(other) && serves(other)).count() as i32;
            let name = budget.metadata.name.as_deref().unwrap_or_default();
            (is_guarded(pod) && left < least).then(|| format!("{left} Pods serve, the budget {name} asks for {least}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn evictions_leave_enough() {
        let pod = |app: &str, evicted: bool| -> Pod {
            let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"});
            let ready = json!({"type": "Ready", "status": "True"});
            let conditions = if evicted { json!([target]) } else { json!([ready]) };
            json::from_value(json!({"metadata": {"namespace": "d", "labels": {"app": app},
                "deletionTimestamp": evicted.then_some("2026-01-01T00:00:00Z")},
                "status": {"phase": "Running", "conditions": conditions}}))
            .unwrap()
        };
        let mut budgets = Budgets::default();
        let budget = json!({"metadata": {"name": "b", "namespace": "d"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "a"}}}});
        budgets.budget("b".into(), json::from_value(budget).unwrap());
        let check = |left: usize, goes: Pod, expected: Option<&str>| {
            let left = (0..left).map(|n| (n.to_string(), pod("a", false))).collect();
            assert_eq!(budgets.goes(&goes, &left).as_deref(), expected);
        };
        check(2, pod("a", true), None);
        check(1, pod("a", true), Some("1 Pods serve, the budget b asks for 2"));
        check(0, pod("b", true), None);
        assert!(is_evicted(&pod("a", true)) && !is_evicted(&pod("a", false)));
    }
}
