//! The checker of budgets: evictions leave as many Pods serving as a budget asks for. Where nodes may stay away, Pods that
//! were lost a moment ago count as if they still served: whoever allows an eviction may not know yet.

use std::collections::BTreeMap;

use api::rules::selector::Selector;
use clock::Timestamp;
use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{
    check::news::is_news,
    objects::{serves, set},
};

#[derive(Default)]
pub struct Budgets {
    budgets: BTreeMap<String, PodDisruptionBudget>,
    /// The Pods that stopped serving a moment ago without being evicted, by UID.
    lost: BTreeMap<String, (Timestamp, Pod)>,
    /// How many Pods were evicted, whether or not they served just then.
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

    /// A Pod serves no longer, and nobody evicted it. Nodes are away, or answers are lost.
    pub fn lost(&mut self, pod: &Pod, now: Timestamp) {
        self.lost.retain(|_, (at, _)| is_news(*at, now));
        self.lost.insert(pod.metadata.uid.clone().unwrap_or_default(), (now, pod.clone()));
    }

    /// A Pod that served is evicted; `pods` are those that are left.
    pub fn goes(&mut self, pod: &Pod, pods: &BTreeMap<String, Pod>, now: Timestamp) -> Option<String> {
        self.lost.retain(|_, (at, _)| is_news(*at, now));
        let serving: Vec<&Pod> = pods.values().filter(|other| serves(other)).collect();
        let has = |lost: &Pod| serving.iter().any(|other| other.metadata.uid == lost.metadata.uid);
        let believed = self.lost.values().map(|(_, lost)| lost).filter(|lost| !has(lost));
        let left: Vec<&Pod> = serving.iter().copied().chain(believed).collect();
        self.budgets.values().find_map(|budget| {
            let spec = budget.spec.as_ref()?;
            let Some(IntOrString::Int(least)) = spec.min_available else { return None };
            let selector = Selector::of_object(spec.selector.as_ref()).ok()?;
            let is_guarded = |other: &Pod| {
                other.metadata.namespace == budget.metadata.namespace && selector.matches(&other.metadata.labels)
            };
            let left = left.iter().filter(|other| is_guarded(other)).count() as i32;
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
        let pod = |name: &str, app: &str, evicted: bool| -> Pod {
            let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"});
            let ready = json!({"type": "Ready", "status": "True"});
            let conditions = if evicted { json!([target]) } else { json!([ready]) };
            json::from_value(json!({"metadata": {"namespace": "d", "uid": name, "labels": {"app": app},
                "deletionTimestamp": evicted.then_some("2026-01-01T00:00:00Z")},
                "status": {"phase": "Running", "conditions": conditions}}))
            .unwrap()
        };
        let mut budgets = Budgets::default();
        let budget = json!({"metadata": {"name": "b", "namespace": "d"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "a"}}}});
        budgets.budget("b".into(), json::from_value(budget).unwrap());
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut check = |left: usize, goes: Pod, now: i64, expected: Option<&str>| {
            let left = (0..left).map(|n| (n.to_string(), pod(&n.to_string(), "a", false))).collect();
            assert_eq!(budgets.goes(&goes, &left, at(now)).as_deref(), expected);
            budgets.lost(&pod("1", "a", false), at(1000));
        };
        let too_few = Some("1 Pods serve, the budget b asks for 2");
        check(2, pod("p", "a", true), 0, None);
        check(1, pod("p", "b", true), 0, None);
        check(1, pod("p", "a", true), 2000, too_few);
        check(1, pod("p", "a", true), 1010, None);
        check(2, pod("p", "a", true), 1010, None);
        assert!(is_evicted(&pod("p", "a", true)) && !is_evicted(&pod("p", "a", false)));
    }

    #[test]
    fn a_lost_pod_that_serves_again_counts_once() {
        let mut budgets = Budgets::default();
        let budget = json!({"metadata": {"name": "b", "namespace": "d"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "a"}}}});
        budgets.budget("b".into(), json::from_value(budget).unwrap());
        let pod: Pod = json::from_value(json!({"metadata": {"namespace": "d", "uid": "u", "labels": {"app": "a"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}))
        .unwrap();
        let now = Timestamp::UNIX_EPOCH;
        budgets.lost(&pod, now);
        let left = BTreeMap::from([("u".to_owned(), pod.clone())]);
        assert!(budgets.goes(&pod, &left, now).is_some());
    }
}
