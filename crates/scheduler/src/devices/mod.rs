//! Devices: what drivers offer in ResourceSlices, what ResourceClaims ask for, and who has what.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources (dra_manager), and
//! staging/src/k8s.io/dynamic-resource-allocation.
//!
//! This is dynamic resource allocation as Kubernetes 1.35 has it by default: structured parameters, access for
//! administrators, lists of alternatives, the status of devices; and, where their features are on, taints of devices,
//! partitions with shared counters, shares of a device's capacity, conditions that a binding waits for, and extended
//! resources by class.

mod allocator;
pub(crate) mod binding;
mod capacity;
mod claim;
mod constraint;
mod counters;
mod extended;
mod gates;
mod problem;
mod result;
mod search;
mod selector;
mod slices;
mod turn;
mod verdicts;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use client::Key;
use clock::Timestamp;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClaim};

use capacity::Shares;
pub use claim::{Allocation, Claim, Class, Held};
use extended::Totals;
use gates::Taint;
pub use gates::{Gates, TaintRule};
pub use problem::Problem;
pub use selector::Expressions;
pub use slices::{Device, DeviceId, PoolId, Slice, Slices};
pub use turn::{Turn, Unnamed};
use verdicts::{Changes, SpecId, Specs, UnnamedSpecs, Verdict, Verdicts};

use parking_lot::Mutex;

use crate::{asks::Resources, claims, node::Node, node_id::NodeId, queue::Waiting};

/// The most devices that a claim can have.
pub const DEVICES_OF_A_CLAIM: usize = 32;

/// How many steps the searches for one Pod may take on all nodes together. Whoever writes claims decides what they cost, and
/// all Pods wait for it.
const STEPS_OF_A_POD: usize = 2_000_000;

/// The importance of a claim's change for Pods that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    None,
    /// It matters to those that use the claim.
    Changed,
    /// Devices are free that were not.
    Freed,
}

/// Devices for the extended resources of a Pod.
#[derive(Debug, Clone)]
pub struct Extended {
    pub(crate) resources: Resources,
    pub result: Arc<AllocationResult>,
}

/// The allocations that the claims of a Pod are about to get.
#[derive(Debug, Clone, Default)]
pub struct Given {
    pub claims: Vec<(Key, Arc<AllocationResult>)>,
    pub extended: Option<Extended>,
    /// The binding may have to wait for the devices.
    pub(crate) waits: bool,
}

/// Instead of a name in the claim for the extended resources of a Pod, until it has one. No object can have it.
const UNNAMED: &str = "<extended-resources>";

/// An allocation that was decided, and that the API does not show yet.
#[derive(Debug)]
struct Pending {
    pod: Key,
    pod_uid: String,
    /// The UID of the claim.
    uid: String,
    /// The resources that the claim is to be made for; none for claims of users.
    resources: Resources,
    result: Arc<AllocationResult>,
    held: Held,
}

impl Pending {
    fn is_of(&self, pod: &Key, uid: &str) -> bool {
        self.pod == *pod && self.pod_uid == uid
    }
}

/// All that is known of devices.
#[derive(Default)]
pub struct Devices {
    claims: HashMap<Key, Claim>,
    /// The claims that were made for extended resources, by the namespace and UID of their Pods. Any writer of a claim may say
    /// whose it is, so none counts in another namespace than its own.
    made: HashMap<(String, String), Key>,
    classes: HashMap<String, Class>,
    /// The classes that stand for extended resources.
    by_resource: Resources,
    pub slices: Slices,
    pub gates: Gates,
    /// Taints of devices by the names of the rules that set them.
    pub taint_rules: HashMap<String, TaintRule>,
    /// How often each device is allocated: in the status of a claim, or pending.
    in_use: HashMap<DeviceId, u32>,
    /// How many have a share of each device that is shared, and how much that is together.
    shares: HashMap<DeviceId, (u32, Shares)>,
    /// By claim.
    pending: HashMap<Key, Pending>,
    freed: bool,
    /// The time by which claims are judged that keep Pods waiting.
    pub now: Option<Timestamp>,
    expressions: Expressions,
    /// The steps for the Pod whose turn it is.
    steps: AtomicUsize,
    /// How often anything here has changed.
    version: u64,
    specs: Specs,
    spec_ids: HashMap<Key, SpecId>,
    unnamed_specs: Mutex<UnnamedSpecs>,
    changes: Changes,
    verdicts: Mutex<Verdicts>,
    totals: Mutex<Totals>,
    turn: Mutex<Option<Arc<Turn>>>,
}

impl Devices {
    pub fn claim(&self, key: &Key) -> Option<&Claim> {
        self.claims.get(key)
    }

    /// The claim that was made for the extended resources of a Pod.
    pub fn claim_made_for(&self, pod: &Waiting) -> Option<&Key> {
        self.made.get(&(pod.key.namespace.clone(), pod.uid.clone()))
    }

    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.get(name)
    }

    pub fn class_names(&self) -> impl Iterator<Item = &String> {
        self.classes.keys()
    }

    /// A class as it is now; `None` when it is gone. Says whether that is news.
    pub fn set_class(&mut self, name: &str, class: Option<Class>) -> bool {
        let news = claims::set(&mut self.classes, name.to_owned(), class);
        if news {
            self.changed();
            self.by_resource = extended::by_resource(self.classes.iter());
        }
        news
    }

    pub fn claim_keys(&self) -> impl Iterator<Item = &Key> {
        self.claims.keys()
    }

    /// A claim as it is now; `None` when it is gone. `binds` says of a Pod, by its name and UID, whether the writes before its
    /// binding are under way: the claim then waits for what was decided for it.
    pub fn set_claim(&mut self, key: &Key, claim: Option<Claim>, binds: impl Fn(&Key, &str) -> bool) -> News {
        let allocation = claim.as_ref().and_then(|claim| claim.allocation.clone());
        let waits = |pending: &Pending| {
            let there = claim.as_ref().filter(|claim| claim.uid == pending.uid && !claim.leaving);
            allocation.is_none() && there.is_some() && binds(&pending.pod, &pending.pod_uid)
        };
        let settled =
            if self.pending.get(key).is_some_and(|pending| !waits(pending)) { self.pending.remove(key) } else { None };
        settled.iter().for_each(|pending| self.release(&pending.held));
        let given_up = settled.is_some() && allocation.is_none();
        if self.claims.get(key) == claim.as_ref() {
            return if given_up { News::Freed } else { News::None };
        }
        if let Some(allocation) = &allocation {
            self.hold(&allocation.held);
        }
        if let Some((true, owner)) = claim.as_ref().map(|claim| (claim.is_extended, claim.owner.as_ref())) {
            self.see_made(key, owner, allocation.as_ref().map(|allocation| &allocation.held));
        }
        self.version += 1;
        let id = claim.as_ref().map(|claim| self.specs.enter(&claim.spec));
        match id {
            Some(id) => _ = self.spec_ids.insert(key.clone(), id),
            None => _ = self.spec_ids.remove(key),
        }
        let old = match claim {
            Some(claim) => self.claims.insert(key.clone(), claim),
            None => self.claims.remove(key),
        };
        old.iter().for_each(|old| self.specs.leave(&old.spec));
        let gone = || old.as_ref().filter(|_| !self.claims.contains_key(key)).and_then(|old| old.owner.as_ref());
        if let Some(place) = gone().map(|owner| (key.namespace.clone(), owner.clone()))
            && self.made.get(&place) == Some(key)
        {
            self.made.remove(&place);
        }
        let old = old.and_then(|old| old.allocation);
        old.iter().for_each(|old| self.release(&old.held));
        if given_up || (old.is_some() && allocation.is_none()) { News::Freed } else { News::Changed }
    }

    /// A claim that was made for the extended resources of its owner; once it has devices, it has those that were kept for it.
    fn see_made(&mut self, key: &Key, owner: Option<&String>, held: Option<&Held>) {
        let Some(owner) = owner else { return };
        self.made.insert((key.namespace.clone(), owner.clone()), key.clone());
        let own = |p: &Pending| !p.resources.is_empty() && p.pod_uid == *owner && p.pod.namespace == key.namespace;
        let mut waiting = self.pending.iter().filter(|(_, pending)| own(pending) && held == Some(&pending.held));
        if let Some(kept) = waiting.next().map(|(kept, _)| kept.clone())
            && let Some(pending) = self.pending.remove(&kept)
        {
            self.release(&pending.held);
        }
    }

    /// Notes that the offers of drivers, or statements about all of them, have changed.
    pub fn changed(&mut self) {
        self.version += 1;
        self.changes.everywhere();
    }

    /// Devices change hands.
    fn moves(&mut self, held: &Held) {
        self.version += 1;
        for device in held.devices.iter().chain(held.shares.iter().map(|(device, _)| device)) {
            self.changes.in_pool(self.slices.homes(&verdicts::pool_of(device)).map(BTreeSet::into_iter));
        }
    }

    fn hold(&mut self, held: &Held) {
        self.moves(held);
        for device in &held.devices {
            *self.in_use.entry(device.clone()).or_default() += 1;
        }
        for (device, share) in &held.shares {
            let (count, sum) = self.shares.entry(device.clone()).or_default();
            *count += 1;
            capacity::add(sum, share);
        }
    }

    fn release(&mut self, held: &Held) {
        self.moves(held);
        for (device, share) in &held.shares {
            if let Some((count, sum)) = self.shares.get_mut(device) {
                *count -= 1;
                capacity::remove(sum, share);
                if *count == 0 {
                    self.shares.remove(device);
                }
            }
        }
        for device in &held.devices {
            if let Some(count) = self.in_use.get_mut(device) {
                *count -= 1;
                if *count == 0 {
                    self.in_use.remove(device);
                }
            }
        }
    }

    pub(crate) fn is_free(&self, device: &DeviceId) -> bool {
        !self.in_use.contains_key(device)
    }

    /// The shares that claims have of a device.
    fn shares_of(&self, device: &DeviceId) -> Option<&Shares> {
        self.shares.get(device).map(|(_, sum)| sum)
    }

    fn is_used(&self, device: &DeviceId) -> bool {
        !self.is_free(device) || self.shares.contains_key(device)
    }

    /// The taints that a device has, from its driver and from rules.
    fn taints_of<'a>(&'a self, device: &'a Device) -> impl Iterator<Item = &'a Taint> {
        let own = device.taints.iter().filter(|_| self.gates.taints);
        let rules = self.taint_rules.values().filter(|rule| {
            self.gates.taint_rules && rule.selects([&device.id.driver, &device.id.pool, &device.id.device])
        });
        own.chain(rules.map(|rule| &rule.taint))
    }

    /// The turn of another Pod begins: what it costs to choose devices is counted anew.
    pub fn next_pod(&self) {
        self.steps.store(0, Ordering::Relaxed);
    }

    /// Counts steps for the Pod whose turn it is. Says whether it has some left.
    fn spend(&self, steps: usize) -> bool {
        let spent = self.steps.load(Ordering::Relaxed).saturating_add(steps);
        self.steps.store(spent, Ordering::Relaxed);
        spent <= STEPS_OF_A_POD
    }

    /// Whether the claims get their devices on a node, and the one for extended resources, if there is any.
    pub fn fit(&self, turn: &Turn, unnamed: Option<&Unnamed>, id: NodeId, node: &Node) -> Result<bool, Problem> {
        let moment = self.changes.moment(node);
        let specs = unnamed.map_or(&turn.specs, |unnamed| &unnamed.specs);
        let held = self.verdicts.lock().get(specs, id, moment);
        let verdict = match held {
            Some(verdict) => verdict,
            None => {
                let unnamed = unnamed.map(|unnamed| (turn.namespace(), &unnamed.claim));
                let verdict = match self.allocate(&turn.without, unnamed, node) {
                    Ok(Some(_)) => Verdict::Fits,
                    Ok(None) => Verdict::Not,
                    // The next Pod may have the time for it.
                    Err(Problem::Here(why)) if Problem::Here(why) != search::TOO_LONG => Verdict::Unfit(why),
                    Err(problem) => return Err(problem),
                };
                self.verdicts.lock().set(specs, id, moment, verdict);
                verdict
            }
        };
        match verdict {
            Verdict::Fits => Ok(true),
            Verdict::Not => Ok(false),
            Verdict::Unfit(why) => Err(Problem::Here(why)),
        }
    }

    /// The devices for these claims on a node, in their order, and then for an unnamed one, if there is any; `None` when the
    /// node has not enough that suit them.
    pub fn allocate(
        &self,
        claims: &[Key],
        unnamed: Option<(&str, &DeviceClaim)>,
        node: &Node,
    ) -> Result<Option<Vec<AllocationResult>>, Problem> {
        if !self.spend(0) {
            return Err(search::TOO_LONG);
        }
        let known = claims.iter().filter_map(|key| self.claims.get_key_value(key));
        let mut wanted: Vec<(&Key, &DeviceClaim)> = known.map(|(key, claim)| (key, &claim.spec)).collect();
        let name = unnamed.map(|(namespace, _)| Key::new(namespace, UNNAMED));
        wanted.extend(name.iter().zip(unnamed.map(|(_, claim)| claim)));
        let (found, steps) = allocator::allocate(self, &self.expressions, &wanted, node);
        self.spend(steps);
        found
    }

    /// Keeps devices for claims of a Pod until the API shows that they have them.
    pub fn promise(&mut self, pod: &Waiting, given: impl IntoIterator<Item = (Key, AllocationResult)>) {
        for (claim, result) in given {
            let uid = self.claims.get(&claim).map_or_else(String::new, |claim| claim.uid.clone());
            self.keep(claim, pod, uid, (result, Resources::new()));
        }
    }

    /// Keeps devices for the extended resources of a Pod, for which there is no claim yet.
    pub(crate) fn promise_extended(&mut self, pod: &Waiting, resources: Resources, result: AllocationResult) {
        let unnamed = Key::new(&*pod.key.namespace, format!("{UNNAMED}{}", pod.key.name));
        self.keep(unnamed, pod, String::new(), (result, resources));
    }

    fn keep(&mut self, claim: Key, pod: &Waiting, uid: String, (result, resources): (AllocationResult, Resources)) {
        let held = Allocation::of(&result).held;
        self.hold(&held);
        let (pod, pod_uid) = (pod.key.clone(), pod.uid.clone());
        let pending = Pending { pod, pod_uid, uid, resources, result: Arc::new(result), held };
        if let Some(before) = self.pending.insert(claim, pending) {
            self.release(&before.held);
        }
    }

    pub fn is_promised(&self, claim: &Key) -> bool {
        self.pending.contains_key(claim)
    }

    /// The allocations that were decided for a Pod.
    pub fn promised_for(&self, pod: &Waiting) -> Given {
        let mut given = Given { waits: self.gates.conditions, ..Given::default() };
        for (claim, pending) in self.pending.iter().filter(|(_, pending)| pending.is_of(&pod.key, &pod.uid)) {
            let (resources, result) = (pending.resources.clone(), pending.result.clone());
            match resources.is_empty() {
                true => given.claims.push((claim.clone(), result)),
                false => given.extended = Some(Extended { resources, result }),
            }
        }
        given.claims.sort_by(|(a, _), (b, _)| a.cmp(b));
        given
    }

    /// The Pod does not get its devices after all.
    pub fn take_back(&mut self, pod: &Key, uid: &str) {
        let own = self.pending.iter().filter(|(_, pending)| pending.is_of(pod, uid)).map(|(claim, _)| claim.clone());
        for claim in own.collect::<Vec<_>>() {
            if let Some(pending) = self.pending.remove(&claim) {
                self.release(&pending.held);
                self.freed = true;
            }
        }
    }

    /// Whether devices were taken back since the last call.
    pub fn was_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }
}
