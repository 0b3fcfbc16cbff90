//! Disruption budgets: which Pods preemption should rather leave alone.

use std::collections::{BTreeMap, BTreeSet};

use api::rules::selector::Selector;
use client::Key;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::class::Class;

/// The limits of one PodDisruptionBudget.
#[derive(Debug, Clone, PartialEq)]
struct Budget {
    selector: Selector,
    allowed: i32,
    /// Pods whose disruption was allowed already and that are not gone yet.
    disrupted: BTreeSet<String>,
}

/// All budgets of the cluster.
#[derive(Debug, Default)]
pub struct Budgets(BTreeMap<Key, Budget>);

impl Budgets {
    pub fn set(&mut self, object: &PodDisruptionBudget) {
        let selector = object.spec.as_ref().and_then(|s| s.selector.as_ref());
        // One that selects everything, or cannot be understood, guards nothing.
        let selector = Selector::of_object(selector).ok().filter(|s| !s.is_everything());
        let status = object.status.as_ref();
        let budget = Budget {
            selector: selector.unwrap_or(Selector::NOTHING),
            allowed: status.map_or(0, |s| s.disruptions_allowed),
            disrupted: status
                .and_then(|s| s.disrupted_pods.as_ref())
                .into_iter()
                .flatten()
                .map(|p| p.0.clone())
                .collect(),
        };
        self.0.insert(Key::of(object), budget);
    }

    pub fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }

    /// For each of these Pods whether its loss would break a budget, if all before it are lost too.
    pub fn violations<'a>(&self, pods: impl Iterator<Item = (&'a Key, &'a Class)>) -> Vec<bool> {
        let mut left: Vec<(&Key, &Budget, i32)> = self.0.iter().map(|(key, b)| (key, b, b.allowed)).collect();
        let mut violates = |(key, class): (&Key, &Class)| {
            let guarding = left.iter_mut().filter(|(of, budget, _)| {
                // Upstream does not hold budgets up against Pods without labels.
                of.namespace == key.namespace
                    && !class.labels.is_empty()
                    && budget.selector.matches(&class.labels)
                    && !budget.disrupted.contains(&key.name)
            });
            // Each budget is charged, whether or not another one is broken already.
            guarding.fold(false, |broken, (_, _, left)| {
                *left -= 1;
                broken | (*left < 0)
            })
        };
        pods.map(&mut violates).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    #[test]
    fn a_budget_is_used_up_pod_by_pod() {
        let mut budgets = Budgets::default();
        let mut set = |name: &str, selector: Value, status: Value| {
            let object =
                json!({"metadata": {"name": name, "namespace": "d"}, "spec": {"selector": selector}, "status": status});
            budgets.set(&json::from_value(object).unwrap());
        };
        let status = |allowed: i32| {
            json!({"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, "disruptionsAllowed": allowed,
                "disruptedPods": {"leaving": "2026-01-01T00:00:00Z"}})
        };
        set("web", json!({"matchLabels": {"app": "web"}}), status(1));
        set("gold", json!({"matchLabels": {"tier": "gold"}}), status(0));
        set("all", json!({}), status(0));
        let class = |labels: Value| Class { labels: json::from_value(labels).unwrap(), ..Class::default() };
        let (web, gold) = (class(json!({"app": "web"})), class(json!({"app": "web", "tier": "gold"})));
        let none = class(json!({}));
        let check = |pods: &[(&str, &str, &Class)], expected: &[bool]| {
            let keys: Vec<Key> = pods.iter().map(|(namespace, name, _)| Key::new(*namespace, *name)).collect();
            assert_eq!(budgets.violations(keys.iter().zip(pods.iter().map(|p| p.2))), expected);
        };
        check(&[("d", "a", &web), ("d", "b", &web), ("d", "c", &none)], &[false, true, false]);
        check(&[("d", "leaving", &web), ("d", "b", &web)], &[false, false]);
        check(&[("d", "a", &gold), ("d", "b", &web)], &[true, true]);
        check(&[("other", "a", &web), ("other", "b", &web)], &[false, false]);
    }
}
