//! Tells in the status of a DeviceTaintRule how far its eviction is, or what it would do if it had the effect NoExecute.
//! Reads: DeviceTaintRule, ResourceClaim, ResourceSlice, Pod. Writes: DeviceTaintRule/status.
//! Upstream counterpart: pkg/controller/devicetainteviction (maybeUpdateRuleStatus).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::rules::{device_taint, pod};
use client::{Caches, Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use json::json;
use k8s_openapi::{
    api::{
        core::v1::Pod,
        resource::{
            v1::{DeviceRequestAllocationResult, DeviceTaint, ResourceClaim, ResourceSlice},
            v1alpha3::DeviceTaintRule,
        },
    },
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};

use super::taint_eviction::{Evicted, NAME, evicted_at, newest, results, selects, users};
use crate::node::on_node::node_of;

const IN_PROGRESS: &str = "EvictionInProgress";
/// The shortest time between two updates about the same rule.
const PERIOD: Duration = Duration::from_secs(10);

pub struct DeviceTaintRules {
    evicted: Arc<Evicted>,
}

impl DeviceTaintRules {
    pub fn new(evicted: Arc<Evicted>) -> Self {
        DeviceTaintRules { evicted }
    }
}

/// The Pods and claims that a rule is about.
#[derive(Debug, Default, PartialEq)]
pub struct Observed {
    /// Pods that have to go, or would have to, and their namespaces.
    pods: usize,
    namespaces: usize,
    /// Pods that were evicted for it.
    evicted: u64,
    /// Devices that drivers publish and that claims have. Counted only for a rule without effect.
    published: usize,
    allocated: usize,
}

/// The taint of a rule as if it evicted Pods.
fn evicting(rule: &DeviceTaintRule) -> DeviceTaint {
    let taint = &rule.spec.taint;
    DeviceTaint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: device_taint::NO_EXECUTE.to_owned(),
        time_added: taint.time_added.clone(),
    }
}

/// The rules that select a device of a claim.
fn selecting(claim: &ResourceClaim, caches: &Caches) -> Vec<Key> {
    let rules = caches.of::<DeviceTaintRule>().list();
    let selecting = rules.iter().filter(|rule| results(claim).any(|device| selects(rule, device)));
    selecting.map(|rule| Key::of(&**rule)).collect()
}

/// How far a Pod is, as far as it matters here.
fn state(pod: &Pod) -> (bool, bool, bool) {
    (node_of(pod).is_empty(), pod.metadata.deletion_timestamp.is_some(), pod::is_terminal(pod))
}

fn counted(count: usize, one: &str, more: &str) -> String {
    if count == 1 { one.to_owned() } else { format!("{count} {more}") }
}

/// Status, reason and message, in upstream's words.
fn condition(effect: &str, observed: &Observed) -> (bool, &'static str, String) {
    let pending = observed.pods > 0;
    let (reason, mut message) = match effect {
        device_taint::NO_EXECUTE if pending => {
            let pods = counted(observed.pods, "1 pod needs to be evicted in ", "pods need to be evicted in ");
            ("PodsPendingEviction", pods + &counted(observed.namespaces, "1 namespace.", "different namespaces."))
        }
        device_taint::NO_EXECUTE if observed.evicted > 0 => ("Completed", String::new()),
        device_taint::NO_EXECUTE => ("NotStarted", String::new()),
        device_taint::NONE => {
            let parts = [
                counted(observed.published, "1 published device selected. ", "published devices selected. "),
                counted(observed.allocated, "1 allocated device selected. ", "allocated devices selected. "),
                counted(observed.pods, "1 pod would be evicted in ", "pods would be evicted in "),
                counted(observed.namespaces, "1 namespace ", "different namespaces "),
                "if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to \
                 trigger an update."
                    .to_owned(),
            ];
            ("NoEffect", parts.concat())
        }
        _ => ("OtherEffect", "Eviction only happens for the NoExecute effect.".to_owned()),
    };
    if observed.evicted > 0 {
        let evicted = usize::try_from(observed.evicted).unwrap_or(usize::MAX);
        message.push_str(if message.is_empty() { "" } else { " " });
        message += &counted(evicted, "1 pod ", "pods ");
        message.push_str("evicted since starting the controller.");
    }
    (effect == device_taint::NO_EXECUTE && pending, reason, message)
}

impl Controller for DeviceTaintRules {
    const NAME: &'static str = NAME;
    type Object = DeviceTaintRule;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<DeviceTaintRule>) {
        watches.reads::<ResourceSlice>();
        let evicted = self.evicted.clone();
        watches.fed_by(|queue| async move {
            loop {
                evicted.next().await.into_iter().for_each(|name| queue.add(Key::new("", name)));
            }
        });
        watches.changed::<ResourceClaim>(|change, caches| {
            change.old.iter().chain(&change.new).flat_map(|claim| selecting(claim, caches)).collect()
        });
        watches.changed::<Pod>(|change: &Change<Pod>, caches| {
            if change.old.as_deref().map(state) == change.new.as_deref().map(state) {
                return Vec::new();
            }
            let claims = change.old.iter().chain(&change.new).flat_map(|pod| super::keys(pod));
            let claims = claims.filter_map(|key| caches.of::<ResourceClaim>().get(&key));
            claims.flat_map(|claim| selecting(&claim, caches)).collect()
        });
    }

    fn observe(&self, rule: &DeviceTaintRule, listers: &Listers) -> Observed {
        let evicted = self.evicted.of(rule);
        let (effect, taint) = (rule.spec.taint.effect.as_str(), [evicting(rule)]);
        if !matches!(effect, device_taint::NO_EXECUTE | device_taint::NONE) {
            return Observed { evicted, ..Observed::default() };
        }
        let (claims, held) = (listers.caches.of::<ResourceClaim>().list(), listers.caches.of::<Pod>());
        let (mut pods, mut allocated) = (BTreeSet::new(), 0);
        for claim in &claims {
            let selected: Vec<&DeviceRequestAllocationResult> = results(claim).filter(|d| selects(rule, d)).collect();
            allocated += selected.len();
            if selected.into_iter().any(|device| evicted_at(device, &taint).is_some()) {
                let users =
                    users(claim).filter(|key| held.get(key).is_some_and(|pod| state(&pod) == Default::default()));
                pods.extend(users);
            }
        }
        let namespaces: BTreeSet<&str> = pods.iter().map(|key| key.namespace.as_str()).collect();
        let mut published = 0;
        if effect == device_taint::NONE {
            let slices = listers.caches.of::<ResourceSlice>().list();
            let selector = rule.spec.device_selector.as_ref();
            let fits = |named: Option<&String>, own: &str| named.is_none_or(|named| named == own);
            let pool = |slice: &&ResourceSlice| {
                selector.is_some_and(|s| {
                    fits(s.driver.as_ref(), &slice.spec.driver) && fits(s.pool.as_ref(), &slice.spec.pool.name)
                })
            };
            let named = |name: &str| selector.is_some_and(|s| fits(s.device.as_ref(), name));
            let devices = newest(&slices).into_iter().filter(pool).flat_map(|s| s.spec.devices.iter().flatten());
            published = devices.filter(|device| named(&device.name)).count();
        }
        Observed { pods: pods.len(), namespaces: namespaces.len(), evicted, published, allocated }
    }

    fn plan(&self, rule: &DeviceTaintRule, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let held = rule.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let held = held.into_iter().find(|condition| condition.type_ == IN_PROGRESS);
        let generation = rule.metadata.generation;
        let (status, reason, message) = condition(&rule.spec.taint.effect, observed);
        let status = if status { "True" } else { "False" };
        if let Some(held) = held.filter(|held| held.observed_generation == generation) {
            let told = (held.status.as_str(), held.reason.as_str(), held.message.as_str());
            // A rule without effect tells once which Pods it would evict.
            if rule.spec.taint.effect == device_taint::NONE || told == (status, reason, message.as_str()) {
                return plan;
            }
            let next = held.last_transition_time.0.checked_add(PERIOD).unwrap_or(Timestamp::MAX);
            if next > now {
                plan.again_after(Duration::try_from(next.duration_since(now)).unwrap_or(PERIOD));
                return plan;
            }
        }
        let condition = Condition {
            type_: IN_PROGRESS.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: generation,
            last_transition_time: Time(now),
        };
        let patch = json!({"metadata": {"uid": rule.metadata.uid}, "status": {"conditions": [condition]}});
        plan.step(Write::strategic_patch(rule, "status", patch).tolerate(&["NotFound", "Conflict"]));
        plan
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.evicted.forget(&key.name);
        Plan::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::Value;

    #[test]
    fn the_condition_tells_how_far_the_eviction_is() {
        let check = |effect: &str, numbers: [usize; 5], expected: (bool, &str, &str)| {
            let [pods, namespaces, evicted, published, allocated] = numbers;
            let observed = Observed { pods, namespaces, evicted: evicted as u64, published, allocated };
            let (status, reason, message) = condition(effect, &observed);
            assert_eq!((status, reason, message.as_str()), expected, "{effect} {observed:?}");
        };
        check("NoExecute", [0, 0, 0, 0, 0], (false, "NotStarted", ""));
        let one = "1 pod needs to be evicted in 1 namespace.";
        check("NoExecute", [1, 1, 0, 0, 1], (true, "PodsPendingEviction", one));
        let more = "3 pods need to be evicted in 2 different namespaces. 1 pod evicted since starting the controller.";
        check("NoExecute", [3, 2, 1, 0, 3], (true, "PodsPendingEviction", more));
        check("NoExecute", [0, 0, 4, 0, 0], (false, "Completed", "4 pods evicted since starting the controller."));
        let none = "0 published devices selected. 1 allocated device selected. 2 pods would be evicted in 1 namespace if the \
                    effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to \
                    trigger an update.";
        check("None", [2, 1, 0, 0, 1], (false, "NoEffect", none));
        let none = "1 published device selected. 0 allocated devices selected. 1 pod would be evicted in 2 different \
                    namespaces if the effect was NoExecute. This information will not be updated again. Recreate the \
                    DeviceTaintRule to trigger an update. 2 pods evicted since starting the controller.";
        check("None", [1, 2, 2, 1, 0], (false, "NoEffect", none));
        let other = "Eviction only happens for the NoExecute effect.";
        check("NoSchedule", [0, 0, 0, 0, 0], (false, "OtherEffect", other));
    }

    #[test]
    fn a_rule_is_told_of_at_once_and_then_seldom() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let plan = |effect: &str, held: Option<(&str, i64, i64)>, pods: usize, second: i64| {
            let condition = |(reason, generation, since): (&str, i64, i64)| {
                json!({"type": IN_PROGRESS, "status": "False", "reason": reason, "message": "",
                    "observedGeneration": generation, "lastTransitionTime": at(since).to_string()})
            };
            let conditions: Vec<Value> = held.map(condition).into_iter().collect();
            let rule: DeviceTaintRule = json::from_value(json!({
                "metadata": {"name": "r", "uid": "u", "generation": 2},
                "spec": {"deviceSelector": {}, "taint": {"key": "k", "effect": effect}},
                "status": {"conditions": conditions},
            }))
            .unwrap();
            let observed = Observed { pods, namespaces: pods.min(1), ..Observed::default() };
            let plan = DeviceTaintRules::new(Arc::default()).plan(&rule, &observed, at(second));
            (plan.to_string(), plan.requeue_after.map(|after| after.as_secs()))
        };
        let (written, silent) = (("patch devicetaintrules/status r".to_owned(), None), (String::new(), None));
        assert_eq!(plan("NoExecute", None, 0, 100), written);
        assert_eq!(plan("NoExecute", Some(("NotStarted", 2, 95)), 0, 100), silent);
        assert_eq!(plan("NoExecute", Some(("NotStarted", 2, 95)), 1, 100), (String::new(), Some(5)));
        assert_eq!(plan("NoExecute", Some(("NotStarted", 2, 90)), 1, 100), written);
        assert_eq!(plan("NoExecute", Some(("NotStarted", 1, 99)), 1, 100), written, "another rule by now");
        assert_eq!(plan("None", Some(("NoEffect", 2, 10)), 1, 100), silent, "told once");
        assert_eq!(plan("None", Some(("NoEffect", 1, 99)), 1, 100), written);
    }
}
