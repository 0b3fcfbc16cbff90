//! Device taint eviction: deletes Pods with devices that have NoExecute taints which their claims do not tolerate, or no longer.
//! Reads: Pod, ResourceClaim, ResourceSlice, DeviceTaintRule. Writes: Pod (delete), Pod/status (DisruptionTarget).
//! Upstream counterpart: pkg/controller/devicetainteviction. The part that tells the status of DeviceTaintRules is `taint_rules`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::rules::{
    device_taint::{NO_EXECUTE, tolerates},
    pod,
};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use json::json;
use k8s_openapi::api::{
    core::v1::Pod,
    resource::{
        v1::{DeviceRequestAllocationResult, DeviceTaint, ResourceClaim, ResourceSlice},
        v1alpha3::DeviceTaintRule,
    },
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::node::on_node::node_of;

pub const NAME: &str = "device-taint-eviction-controller";
/// Why a Pod that is evicted is disrupted.
const CONDEMNED: &str = "DeletionByDeviceTaintManager";

/// How many Pods went because of each rule since the start, by the rules' names and UIDs.
#[derive(Default)]
pub struct Evicted {
    counts: Mutex<HashMap<String, (Option<String>, u64)>>,
    /// The names of rules whose counts have changed, for whoever tells of them.
    changed: Mutex<BTreeSet<String>>,
    told: Notify,
}

impl Evicted {
    fn count(&self, (name, uid): &RuleId) {
        let mut counts = self.counts.lock();
        let count = counts.entry(name.clone()).or_default();
        if count.0 != *uid {
            *count = (uid.clone(), 0);
        }
        count.1 += 1;
        self.changed.lock().insert(name.clone());
        self.told.notify_one();
    }

    /// The names of rules whose counts have changed since the last call; waits until there are some.
    pub(super) async fn next(&self) -> BTreeSet<String> {
        self.told.notified().await;
        std::mem::take(&mut *self.changed.lock())
    }

    pub(super) fn of(&self, rule: &DeviceTaintRule) -> u64 {
        let (name, uid) = rule_id(rule);
        self.counts.lock().get(&name).filter(|(held, _)| *held == uid).map_or(0, |(_, count)| *count)
    }

    pub(super) fn forget(&self, name: &str) {
        self.counts.lock().remove(name);
    }
}

type RuleId = (String, Option<String>);

fn rule_id(rule: &DeviceTaintRule) -> RuleId {
    (rule.metadata.name.clone().unwrap_or_default(), rule.metadata.uid.clone())
}

/// A Pod that is to go some time.
#[derive(Default)]
struct Marked {
    /// The rules because of which it is.
    rules: Vec<RuleId>,
    /// Its status says that it is being evicted.
    condemned: bool,
}

pub struct DeviceTaintEviction {
    /// Counts for each rule what was done because of it; `None` when drivers alone taint devices.
    rules: Option<Arc<Evicted>>,
    marked: Mutex<BTreeMap<Key, Marked>>,
}

impl DeviceTaintEviction {
    pub fn new(rules: Option<Arc<Evicted>>) -> Self {
        DeviceTaintEviction { rules, marked: Mutex::default() }
    }

    /// A Pod that was condemned is on its way, or gone.
    fn went(&self, marked: &Marked) {
        if let Some(counts) = self.rules.as_ref().filter(|_| marked.condemned) {
            marked.rules.iter().for_each(|rule| counts.count(rule));
        }
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
pub(super) fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    allocation.into_iter().flat_map(|a| a.devices.iter()).flat_map(|devices| devices.results.iter().flatten())
}

/// The Pods that use a claim.
pub(super) fn users(claim: &ResourceClaim) -> impl Iterator<Item = Key> {
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let pods = users.filter(|user| user.resource == "pods" && user.api_group.as_deref().unwrap_or("").is_empty());
    pods.map(move |user| Key::new(&*namespace, &*user.name))
}

pub(super) fn selects(rule: &DeviceTaintRule, device: &DeviceRequestAllocationResult) -> bool {
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

/// The slices of the newest generation of each pool.
pub(super) fn newest(slices: &[Arc<ResourceSlice>]) -> Vec<&ResourceSlice> {
    let pool = |slice: &ResourceSlice| (slice.spec.driver.clone(), slice.spec.pool.name.clone());
    let mut generations: HashMap<_, i64> = HashMap::new();
    for slice in slices {
        let newest = generations.entry(pool(slice)).or_insert(i64::MIN);
        *newest = slice.spec.pool.generation.max(*newest);
    }
    let current = |slice: &&ResourceSlice| generations.get(&pool(slice)) == Some(&slice.spec.pool.generation);
    slices.iter().map(|slice| &**slice).filter(current).collect()
}

/// When whoever has a device with these taints must go: at the earliest end of what is tolerated.
pub(super) fn evicted_at(device: &DeviceRequestAllocationResult, taints: &[DeviceTaint]) -> Option<Timestamp> {
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
            let (extended, leaving) = (pod::extended_claim(pod).map(str::to_owned), pod::is_deleted(pod));
            let condition = pod::condition(pod, "DisruptionTarget").and_then(|c| c.reason.clone());
            Some((node_of(pod).to_owned(), claims, extended, leaving, condition))
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
        if self.rules.is_some() {
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
        let extended = pod::extended_claim(pod).map(|name| pod::DeviceClaim {
            claim: String::new(),
            name: Some(name.to_owned()),
            is_own: true,
        });
        let named = pod::device_claims(pod).chain(extended);
        let claims = named.filter(|_| !node_of(pod).is_empty()).filter_map(|named| {
            let claim = caches.of::<ResourceClaim>().get(&Key::new(&*key.namespace, named.name.as_deref()?))?;
            (pod::is_reserved_for(&claim, pod) && named.is(&claim, pod)).then_some(claim)
        });
        let claims: Vec<Arc<ResourceClaim>> = claims.collect();
        let devices: Vec<&DeviceRequestAllocationResult> = claims.iter().flat_map(|claim| results(claim)).collect();
        let (mut when, mut because) = (None, Vec::new());
        if !devices.is_empty() {
            let slices = caches.of::<ResourceSlice>().list();
            let rules = if self.rules.is_some() { caches.of::<DeviceTaintRule>().list() } else { Vec::new() };
            for device in devices {
                let by_driver = evicted_at(device, &taints_in(&slices, device));
                let by_rules = rules.iter().filter(|rule| selects(rule, device)).filter_map(|rule| {
                    let end = evicted_at(device, &[taint_of(rule)?])?;
                    because.push(rule_id(rule));
                    Some(end)
                });
                when = by_rules.chain(by_driver).chain(when).min();
            }
        }
        because.sort();
        because.dedup();
        let mut marked = self.marked.lock();
        let condemned = pod::condition(pod, "DisruptionTarget")
            .is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some(CONDEMNED));
        let reprieved = match when {
            _ if pod.metadata.deletion_timestamp.is_some() => {
                if let Some(mut held) = marked.remove(&key) {
                    held.condemned |= condemned;
                    self.went(&held);
                }
                false
            }
            Some(_) => {
                marked.insert(key, Marked { rules: because, condemned });
                false
            }
            None => marked.remove(&key).is_some(),
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
                let condition = pod::disruption_target(pod, CONDEMNED, message, now);
                let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
                plan.step(Write::strategic_patch(pod, "status", patch).tolerate(&["NotFound"]));
                plan.step(Write::delete(pod));
            }
        }
        plan
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        if let Some(held) = self.marked.lock().remove(key) {
            self.went(&held);
        }
        Plan::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::Value;

    fn device(tolerations: Value) -> DeviceRequestAllocationResult {
        let device = json!({"request": "r", "driver": "drv", "pool": "p", "device": "d", "tolerations": tolerations});
        json::from_value(device).unwrap()
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
            Arc::new(json::from_value::<ResourceSlice>(slice).unwrap())
        };
        let count = |slices: &[Arc<ResourceSlice>]| taints_in(slices, &device(json!([]))).len();
        assert_eq!(count(&[slice(1, "NoExecute", "d")]), 1);
        assert_eq!(count(&[slice(1, "NoSchedule", "d")]), 0);
        assert_eq!(count(&[slice(1, "NoExecute", "other")]), 0);
        assert_eq!(count(&[slice(1, "NoExecute", "d"), slice(2, "NoExecute", "other")]), 0);
        let rule = |selector: Value, effect: &str| {
            let spec = json!({"deviceSelector": selector, "taint": {"key": "k", "effect": effect}});
            let rule: DeviceTaintRule = json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            selects(&rule, &device(json!([]))) && taint_of(&rule).is_some()
        };
        assert!(rule(json!({}), "NoExecute") && rule(json!({"driver": "drv", "device": "d"}), "NoExecute"));
        assert!(!rule(json!(null), "NoExecute"), "a rule without a selector selects nothing");
        assert!(!rule(json!({"pool": "other"}), "NoExecute") && !rule(json!({}), "NoSchedule"));
        assert!(!rule(json!({}), "None"));
    }

    #[test]
    fn a_pod_is_evicted_when_its_time_has_come() {
        let pod: Pod = json::from_value(json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": [], "nodeName": "n"},
        }))
        .unwrap();
        let plan = |when: Option<i64>, reprieved: bool| {
            let observed = Observed { when: when.map(at), reprieved };
            let plan = DeviceTaintEviction::new(None).plan(&pod, &observed, at(100));
            (plan.to_string(), plan.requeue_after, plan.steps.len())
        };
        assert_eq!(plan(None, false), (String::new(), None, 0));
        assert_eq!(plan(Some(130), false), (String::new(), Some(Duration::from_secs(30)), 0));
        assert_eq!(plan(Some(100), false), ("patch pods/status p, delete pods p".to_owned(), None, 3));
        assert_eq!(plan(None, true), (String::new(), None, 1), "it is told that it may stay");
    }
}
