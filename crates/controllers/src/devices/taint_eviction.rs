//! Device taint eviction: deletes Pods with devices that have NoExecute taints which their claims do not tolerate, or no longer.
//! Reads: Pod, ResourceClaim, ResourceSlice, DeviceTaintRule. Writes: Pod (delete), Pod/status (DisruptionTarget).
//! Upstream counterpart: pkg/controller/devicetainteviction. What it tells in the status of DeviceTaintRules is not written here.

use std::{collections::HashSet, sync::Arc, time::Duration};

use api::rules::{
    device_taint::{NO_EXECUTE, tolerates},
    pod,
};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write, controller_of};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::{
        v1::{DeviceRequestAllocationResult, DeviceTaint, ResourceClaim, ResourceSlice},
        v1alpha3::DeviceTaintRule,
    },
};
use parking_lot::Mutex;
use serde_json::json;

use super::is_reserved_for;
use crate::node::on_node::node_of;

pub const NAME: &str = "device-taint-eviction-controller";

pub struct DeviceTaintEviction {
    /// Whether rules taint devices too, and not their drivers alone.
    rules: bool,
    /// Pods that are to go some time.
    marked: Mutex<HashSet<Key>>,
}

impl DeviceTaintEviction {
    pub fn new(rules: bool) -> Self {
        DeviceTaintEviction { rules, marked: Mutex::default() }
    }
}

#[derive(Debug, Default, PartialEq)]
pub struct Observed {
    /// When the Pod has to go.
    when: Option<Timestamp>,
    /// It was to go some time, and may stay now.
    reprieved: bool,
}

/// The devices of a claim.
fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    allocation.into_iter().flat_map(|a| a.devices.iter()).flat_map(|devices| devices.results.iter().flatten())
}

/// The Pods that use a claim.
fn users(claim: &ResourceClaim) -> impl Iterator<Item = Key> {
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let pods = users.filter(|user| user.resource == "pods" && user.api_group.as_deref().unwrap_or("").is_empty());
    pods.map(move |user| Key::new(&*namespace, &*user.name))
}

fn selects(rule: &DeviceTaintRule, device: &DeviceRequestAllocationResult) -> bool {
    let Some(selector) = &rule.spec.device_selector else { return false };
    let pairs =
        [(&selector.driver, &device.driver), (&selector.pool, &device.pool), (&selector.device, &device.device)];
    pairs.into_iter().all(|(named, own)| named.as_ref().is_none_or(|named| named == own))
}

/// The NoExecute taint of a rule.
fn taint_of(rule: &DeviceTaintRule) -> Option<DeviceTaint> {
    let taint = &rule.spec.taint;
    (taint.effect == NO_EXECUTE).then(|| DeviceTaint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
        time_added: taint.time_added.clone(),
    })
}

/// The NoExecute taints that slices put on a device. Only those of its pool's newest generation count.
fn taints_in(slices: &[Arc<ResourceSlice>], device: &DeviceRequestAllocationResult) -> Vec<DeviceTaint> {
    let of_pool = || slices.iter().filter(|s| s.spec.driver == device.driver && s.spec.pool.name == device.pool);
    let newest = of_pool().map(|slice| slice.spec.pool.generation).max();
    let current = of_pool().filter(|slice| Some(slice.spec.pool.generation) == newest);
    let devices = current.flat_map(|slice| slice.spec.devices.iter().flatten());
    let taints = devices.filter(|d| d.name == device.device).flat_map(|d| d.taints.iter().flatten());
    taints.filter(|taint| taint.effect == NO_EXECUTE).cloned().collect()
}

/// When whoever has a device with these taints must go: at the earliest end of what is tolerated.
fn evicted_at(device: &DeviceRequestAllocationResult, taints: &[DeviceTaint]) -> Option<Timestamp> {
    let one = |taint: &DeviceTaint| {
        let value = taint.value.as_deref().unwrap_or_default();
        let tolerating = device.tolerations.iter().flatten().filter(|toleration| {
            toleration.effect.as_deref() == Some(NO_EXECUTE) && tolerates(toleration, &taint.key, value, NO_EXECUTE)
        });
        let seconds: Vec<Option<i64>> = tolerating.map(|toleration| toleration.toleration_seconds).collect();
        if seconds.contains(&None) {
            return None;
        }
        let shortest = seconds.into_iter().flatten().min().unwrap_or(0).max(0);
        let since = taint.time_added.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        Some(since.checked_add(clock::Duration::from_secs(shortest as u64)).unwrap_or(Timestamp::MAX))
    };
    taints.iter().filter_map(one).min()
}

impl Controller for DeviceTaintEviction {
    const NAME: &'static str = NAME;
    type Object = Pod;
    type Observed = Observed;

    fn concerns(change: &Change<Pod>) -> bool {
        let decisive = |pod: &Option<Arc<Pod>>| {
            let pod = pod.as_ref()?;
            let claims = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.clone());
            Some((node_of(pod).to_owned(), claims))
        };
        decisive(&change.old) != decisive(&change.new)
    }

    fn watches(&self, watches: &mut Watches<Pod>) {
        watches.reads::<ResourceSlice>();
        watches.changed::<ResourceClaim>(|change, _| {
            change.old.iter().chain(&change.new).flat_map(|claim| users(claim)).collect()
        });
        watches.changed::<ResourceSlice>(|change, caches| {
            let tainted = |slice: &Option<Arc<ResourceSlice>>| {
                let spec = slice.as_ref().map(|slice| &slice.spec)?;
                let taints = spec.devices.iter().flatten().map(|d| (d.name.clone(), d.taints.clone()));
                let taints: Vec<_> = taints.filter(|(_, taints)| taints.is_some()).collect();
                (!taints.is_empty()).then_some((spec.pool.generation, taints))
            };
            if tainted(&change.old) == tainted(&change.new) {
                return Vec::new();
            }
            let pools = change.old.iter().chain(&change.new).map(|s| (s.spec.driver.clone(), s.spec.pool.name.clone()));
            let pools: Vec<(String, String)> = pools.collect();
            let concerned = |claim: &Arc<ResourceClaim>| {
                results(claim).any(|d| pools.iter().any(|(driver, pool)| d.driver == *driver && d.pool == *pool))
            };
            let claims = caches.of::<ResourceClaim>().list();
            claims.iter().filter(|claim| concerned(claim)).flat_map(|claim| users(claim)).collect()
        });
        if self.rules {
            watches.changed::<DeviceTaintRule>(|change, caches| {
                let rules = || change.old.iter().chain(&change.new);
                let concerned = |claim: &Arc<ResourceClaim>| results(claim).any(|d| rules().any(|r| selects(r, d)));
                let claims = caches.of::<ResourceClaim>().list();
                claims.iter().filter(|claim| concerned(claim)).flat_map(|claim| users(claim)).collect()
            });
        }
    }

    fn observe(&self, pod: &Pod, listers: &Listers) -> Observed {
        let (caches, key) = (&listers.caches, Key::of(pod));
        let claims = pod::device_claims(pod).filter(|_| !node_of(pod).is_empty()).filter_map(|named| {
            let claim = caches.of::<ResourceClaim>().get(&Key::new(&*key.namespace, named.name?))?;
            let own = controller_of(&*claim).is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref());
            (is_reserved_for(&claim, pod) && (own || !named.is_own)).then_some(claim)
        });
        let claims: Vec<Arc<ResourceClaim>> = claims.collect();
        let devices: Vec<&DeviceRequestAllocationResult> = claims.iter().flat_map(|claim| results(claim)).collect();
        let mut when = None;
        if !devices.is_empty() {
            let slices = caches.of::<ResourceSlice>().list();
            let rules = if self.rules { caches.of::<DeviceTaintRule>().list() } else { Vec::new() };
            let evicted = devices.into_iter().filter_map(|device| {
                let mut taints = taints_in(&slices, device);
                taints.extend(rules.iter().filter(|rule| selects(rule, device)).filter_map(|rule| taint_of(rule)));
                evicted_at(device, &taints)
            });
            when = evicted.min();
        }
        let mut marked = self.marked.lock();
        let reprieved = match when {
            Some(_) => {
                marked.insert(key);
                false
            }
            None => marked.remove(&key),
        };
        Observed { when, reprieved }
    }

    fn plan(&self, pod: &Pod, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if pod.metadata.deletion_timestamp.is_some() || pod::is_terminal(pod) {
            return plan;
        }
        const REASON: &str = "DeviceTaintManagerEviction";
        match observed.when {
            None if observed.reprieved => _ = plan.tell(Note::normal(REASON, "Cancelling deletion")),
            None => {}
            Some(when) if when > now => {
                let seconds = (when.as_second() - now.as_second()).max(1);
                plan.again_after(Duration::from_secs(seconds as u64));
            }
            Some(_) => {
                plan.tell(Note::normal(REASON, "Marking for deletion"));
                let message = "Device Taint manager: deleting due to NoExecute taint";
                let condition = pod::disruption_target(pod, "DeletionByDeviceTaintManager", message, now);
                let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
                plan.step(Write::strategic_patch(pod, "status", patch).tolerate(&["NotFound"]));
                plan.step(Write::delete(pod));
            }
        }
        plan
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.marked.lock().remove(key);
        Plan::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn device(tolerations: Value) -> DeviceRequestAllocationResult {
        let device = json!({"request": "r", "driver": "drv", "pool": "p", "device": "d", "tolerations": tolerations});
        serde_json::from_value(device).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_pod_goes_at_the_earliest_end_of_what_is_tolerated() {
        let taint = |key: &str, second: i64| DeviceTaint {
            key: key.to_owned(),
            effect: NO_EXECUTE.to_owned(),
            time_added: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(second))),
            ..DeviceTaint::default()
        };
        let check = |tolerations: Value, taints: &[DeviceTaint], expected: Option<i64>| {
            assert_eq!(evicted_at(&device(tolerations.clone()), taints), expected.map(at), "{tolerations}");
        };
        let all = |seconds: Value| json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        check(json!([]), &[], None);
        check(json!([]), &[taint("k", 10)], Some(10));
        check(json!([all(json!(null))]), &[taint("k", 10)], None);
        check(json!([all(json!(60))]), &[taint("k", 10)], Some(70));
        check(json!([all(json!(60)), all(json!(5))]), &[taint("k", 10)], Some(15));
        check(json!([all(json!(60)), all(json!(null))]), &[taint("k", 10)], None);
        check(json!([all(json!(-1))]), &[taint("k", 10)], Some(10));
        check(json!([all(json!(60))]), &[taint("k", 10), taint("l", 5)], Some(65));
        // One without an effect keeps a device from nobody, but does not keep a Pod on it.
        check(json!([{"operator": "Exists"}]), &[taint("k", 10)], Some(10));
        let other = json!([{"key": "other", "operator": "Exists", "effect": "NoExecute"}]);
        check(other, &[taint("k", 10), taint("other", 1)], Some(10));
    }

    #[test]
    fn taints_of_the_newest_generation_and_of_rules_count() {
        let slice = |generation: i64, effect: &str, name: &str| {
            let pool = json!({"name": "p", "generation": generation, "resourceSliceCount": 1});
            let devices = json!([{"name": name, "taints": [{"key": effect, "effect": effect}]}]);
            let slice = json!({"metadata": {}, "spec": {"driver": "drv", "pool": pool, "devices": devices}});
            Arc::new(serde_json::from_value::<ResourceSlice>(slice).unwrap())
        };
        let count = |slices: &[Arc<ResourceSlice>]| taints_in(slices, &device(json!([]))).len();
        assert_eq!(count(&[slice(1, "NoExecute", "d")]), 1);
        assert_eq!(count(&[slice(1, "NoSchedule", "d")]), 0);
        assert_eq!(count(&[slice(1, "NoExecute", "other")]), 0);
        assert_eq!(count(&[slice(1, "NoExecute", "d"), slice(2, "NoExecute", "other")]), 0);
        let rule = |selector: Value, effect: &str| {
            let spec = json!({"deviceSelector": selector, "taint": {"key": "k", "effect": effect}});
            let rule: DeviceTaintRule = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            selects(&rule, &device(json!([]))) && taint_of(&rule).is_some()
        };
        assert!(rule(json!({}), "NoExecute") && rule(json!({"driver": "drv", "device": "d"}), "NoExecute"));
        assert!(!rule(json!(null), "NoExecute"), "a rule without a selector selects nothing");
        assert!(!rule(json!({"pool": "other"}), "NoExecute") && !rule(json!({}), "NoSchedule"));
        assert!(!rule(json!({}), "None"));
    }

    #[test]
    fn a_pod_is_evicted_when_its_time_has_come() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": [], "nodeName": "n"},
        }))
        .unwrap();
        let plan = |when: Option<i64>, reprieved: bool| {
            let observed = Observed { when: when.map(at), reprieved };
            let plan = DeviceTaintEviction::new(true).plan(&pod, &observed, at(100));
            (plan.to_string(), plan.requeue_after, plan.steps.len())
        };
        assert_eq!(plan(None, false), (String::new(), None, 0));
        assert_eq!(plan(Some(130), false), (String::new(), Some(Duration::from_secs(30)), 0));
        assert_eq!(plan(Some(100), false), ("patch pods/status p, delete pods p".to_owned(), None, 3));
        assert_eq!(plan(None, true), (String::new(), None, 1), "it is told that it may stay");
    }
}
