//! The engine: watch events in, decisions out. It knows no API and no task, so a benchmark can drive it alone. The
//! reaction to an event is here, a cycle is in `cycle` and `preemption`, and the search for Pods that an event helps is
//! in `wake`.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::Arc,
};

use api::{
    features::Features,
    rules::{pod::is_terminal, selector::Selector},
};
use client::Key;
use clock::{Duration, Instant};
use k8s_openapi::api::{
    core::v1::{self, Namespace},
    policy::v1::PodDisruptionBudget,
};

use crate::{
    args::{Args, Spreading},
    asked::Asked,
    attachable::{Attachable, Attachment, Limits},
    batch,
    budget::Budgets,
    cache::{Cache, Placed},
    change::Change,
    claims::{self, Capacity, Claim, Named, Volume},
    class::{Class, ClassId, DEFAULT_SCHEDULER, OwnerKind},
    devices::Gates,
    extender::{Extender, Question},
    failure::{Failure, Preemption},
    gangs::{Gangs, Progress},
    memo::Memos,
    node_id::NodeId,
    nominated::{Nominated, Nominations},
    plugin::{Brought, Plugin},
    plugins::PLUGINS,
    profile::{Part, Profile},
    queue::{Queue, Waiting},
    topology::Labels,
};

/// The settings of the engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// At least one. Pods that name no profile's scheduler are left alone.
    pub profiles: Vec<Profile>,
    /// The first and the longest wait after a failure.
    pub backoff: (Duration, Duration),
    /// All plugins; their places in this list are their numbers.
    pub plugins: &'static [Plugin],
    pub extenders: Vec<Extender>,
    pub features: Features,
}

impl Default for Settings {
    fn default() -> Self {
        Settings::with(PLUGINS)
    }
}

impl Settings {
    /// One profile, with all of these plugins.
    pub fn with(plugins: &'static [Plugin]) -> Self {
        let backoff = (Duration::from_secs(1), Duration::from_secs(10));
        Settings {
            profiles: vec![Profile::of(DEFAULT_SCHEDULER, plugins)],
            backoff,
            plugins,
            extenders: Vec::new(),
            features: Features::default(),
        }
    }

    /// Without the plugins whose features are off.
    #[must_use]
    pub(crate) fn switched(mut self) -> Self {
        let features = self.features;
        let is_on = |plugin: &Plugin| plugin.feature.is_none_or(|feature| features.enabled(feature));
        self.profiles.iter_mut().for_each(|profile| profile.plugins.retain(|enabled| is_on(enabled.plugin)));
        self
    }

    /// The profile for Pods of a class.
    pub(crate) fn profile(&self, class: &Class) -> &Profile {
        let mut named = self.profiles.iter().filter(|profile| profile.scheduler_name == class.scheduler);
        // Pods that were placed by another scheduler are looked at, but not scheduled.
        named.next().unwrap_or(&self.profiles[0])
    }
}

/// The outcome of one cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The Pod is assumed to be on the node: bind it, and tell [`Engine::bind_failed`] if that fails.
    Bind { pod: Waiting, node: Arc<str>, prepare: Vec<Preparation> },
    /// The Pod fits nowhere and is parked; victims of a preemption must be deleted.
    Unschedulable { pod: Waiting, failure: Arc<Failure>, preemption: Preemption },
    /// The Pod is assumed to be on a node, and waits there for others of its gang.
    Waits { pod: Waiting },
    /// The extenders must be asked this, and [`Engine::consulted`] told what they say, before anything else is.
    Consult(Question),
    /// An extender failed, or what the Pod asks for is not as it should be; the Pod is tried again later.
    Failed { pod: Waiting, why: String },
}

/// The work that has to be done before a Pod can be bound.
#[derive(Clone)]
pub struct Preparation {
    pub plugin: &'static Plugin,
    pub class: Arc<Class>,
    pub args: Arc<Args>,
    pub brought: Brought,
}

impl PartialEq for Preparation {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.plugin, other.plugin) && Arc::ptr_eq(&self.class, &other.class)
    }
}

impl Eq for Preparation {}

impl fmt::Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plugin.fmt(f)
    }
}

/// The scheduler's state. The module says how it is driven.
#[derive(Default)]
pub struct Engine {
    pub(crate) settings: Settings,
    pub cache: Cache,
    pub(crate) memos: Memos,
    pub queue: Queue,
    /// Assumed Pods whose binding the API has not shown yet.
    pub(crate) binding: HashMap<Key, Waiting>,
    /// Pods, by name and UID, for which plugins write something before they are bound.
    pub(crate) preparing: HashSet<(Key, String)>,
    pub(crate) nominations: Nominations,
    pub(crate) gangs: Gangs,
    /// The decisions to tell of Pods that waited for their gangs and made room for more important ones.
    pub(crate) sent_back: VecDeque<Decision>,
    /// Victims of preemptions that the API does not show as leaving yet.
    pub(crate) evicting: HashSet<Key>,
    pub(crate) budgets: Budgets,
    /// Where the next search over the nodes starts.
    pub(crate) start: usize,
    pub(crate) feasible: Vec<NodeId>,
    /// The question that the extenders are asked now.
    pub(crate) asked: Option<Asked>,
    /// The part of batches in the last cycle, unless they are off.
    pub(crate) batching: Option<batch::Cycle>,
    /// Tells the time to measure steps by, where somebody wants to know how long they take.
    pub(crate) stopwatch: Option<fn() -> Instant>,
}

impl Engine {
    pub fn new(settings: Settings) -> Self {
        let settings = settings.switched();
        let mut engine = Engine { settings, ..Engine::default() };
        for profile in &engine.settings.profiles {
            engine.cache.set_default_spread(&profile.scheduler_name, &profile.args.spreading);
        }
        engine.cache.devices.gates = Gates::of(&engine.settings.features);
        let (first, longest) = engine.settings.backoff;
        engine.queue.set_backoff(first, longest);
        engine
    }

    /// The scheduler's name that a Pod asked for.
    pub(crate) fn scheduler_of(&self, decision: &Decision) -> &str {
        let (Decision::Bind { pod, .. }
        | Decision::Unschedulable { pod, .. }
        | Decision::Waits { pod }
        | Decision::Consult(Question { pod, .. })
        | Decision::Failed { pod, .. }) = decision;
        &self.profile(pod.class).scheduler_name
    }

    pub(crate) fn profile(&self, class: ClassId) -> &Profile {
        self.settings.profile(self.cache.class(class))
    }

    // Events.

    /// The selector of a Service; `None` when it has none or is gone.
    pub fn set_service(&mut self, key: &Key, selector: Option<Labels>, now: Instant) {
        if self.cache.selectors.set_service(&key.namespace, &key.name, selector) {
            self.selectors_changed(&key.namespace, now);
        }
    }

    /// The selector of a controller that owns Pods; `None` when it is gone.
    pub fn set_owner(&mut self, kind: OwnerKind, key: &Key, selector: Option<Selector>, now: Instant) {
        if self.cache.selectors.set_owner(&key.namespace, (kind, key.name.clone()), selector) {
            self.selectors_changed(&key.namespace, now);
        }
    }

    /// A PersistentVolumeClaim as it is now; `None` when it is gone. Only the Pods that use it are tried again.
    pub fn set_claim(&mut self, key: &Key, claim: Option<Claim>, now: Instant) {
        if claims::set(&mut self.cache.claims.claims, key.clone(), claim) {
            let uses = |class: &Class| class.namespace == key.namespace && names(&class.claims, &key.name);
            self.claims_changed(Change::Claims, uses, now);
        }
    }

    /// A PersistentVolume as it is now; `None` when it is gone.
    pub fn set_volume(&mut self, key: &Key, volume: Option<Volume>, now: Instant) {
        if self.cache.claims.set_volume(&key.name, volume) {
            self.claims_changed(Change::Volumes, |class| !class.claims.is_empty(), now);
        }
    }

    /// A StorageClass as it is now; `None` when it is gone.
    pub fn set_storage_class(&mut self, key: &Key, class: Option<claims::Class>, now: Instant) {
        if claims::set(&mut self.cache.claims.classes, key.name.clone(), class) {
            self.claims_changed(Change::StorageClasses, |class| !class.claims.is_empty(), now);
        }
    }

    /// The room for volumes that a storage system tells of; `None` when it tells no more.
    pub fn set_capacity(&mut self, key: &Key, capacity: Option<Capacity>, now: Instant) {
        if claims::set(&mut self.cache.claims.capacities, key.clone(), capacity) {
            self.claims_changed(Change::StorageCapacity, |class| !class.claims.is_empty(), now);
        }
    }

    /// Whether a CSI driver tells how much room it has; `None` when there is no such driver.
    pub fn set_driver(&mut self, key: &Key, tells_capacity: Option<bool>, now: Instant) {
        if claims::set(&mut self.cache.claims.drivers, key.name.clone(), tells_capacity) {
            self.claims_changed(Change::StorageCapacity, |class| !class.claims.is_empty(), now);
        }
    }

    /// The CSI volume behind a PersistentVolume; `None` when there is none, or no such PersistentVolume.
    pub fn set_attachable(&mut self, key: &Key, volume: Option<Attachable>, now: Instant) {
        if claims::set(&mut self.cache.attachables.volumes, key.name.clone(), volume) {
            self.claims_changed(Change::Volumes, |class| !class.claims.is_empty(), now);
        }
    }

    /// Sets the provisioner of a StorageClass; `None` when the class is gone.
    pub fn set_provisioner(&mut self, key: &Key, provisioner: Option<String>, now: Instant) {
        if claims::set(&mut self.cache.attachables.provisioners, key.name.clone(), provisioner) {
            self.claims_changed(Change::StorageClasses, |class| !class.claims.is_empty(), now);
        }
    }

    /// How many volumes a node can hold; `None` when it has no CSINode.
    pub fn set_volume_limits(&mut self, key: &Key, limits: Option<Limits>, now: Instant) {
        if claims::set(&mut self.cache.attachables.limits, key.name.clone(), limits) {
            self.limits_changed(&key.name, now);
        }
    }

    /// A VolumeAttachment as it is now; `None` when it is gone, or counts nowhere.
    pub fn set_attachment(&mut self, key: &Key, attachment: Option<Attachment>, now: Instant) {
        if let Some(node) = self.cache.attachables.set_attachment(&key.name, attachment) {
            self.limits_changed(&node, now);
        }
    }

    /// Only Pods that this one node can take now are tried again.
    fn limits_changed(&mut self, node: &str, now: Instant) {
        self.cache.generation += 1;
        if let Some(id) = self.cache.node_id(node) {
            self.retry(Change::VolumeLimits as u16, Some(id), now);
        }
    }

    pub(crate) fn claims_changed(&mut self, change: Change, concerns: impl Fn(&Class) -> bool, now: Instant) {
        self.cache.generation += 1;
        for parked in self.queue.parked() {
            if concerns(self.cache.class(parked.class)) {
                self.retry_one(change as u16, None, parked, now);
            }
        }
    }

    /// Default constraints may be others now. The system's turn no Pod away, but those that a profile lists may.
    fn selectors_changed(&mut self, namespace: &str, now: Instant) {
        self.cache.generation += 1;
        for parked in self.queue.parked() {
            let class = self.cache.class(parked.class);
            let spreading = &self.settings.profile(class).args.spreading;
            if class.namespace == namespace && class.defaults.is_some() && *spreading != Spreading::System {
                self.queue.retry(parked.class, "ServiceUpdate", now);
            }
        }
    }

    pub fn set_node(&mut self, node: &v1::Node, now: Instant) {
        let (id, changes) = self.cache.set_node(node);
        if changes != 0 {
            self.retry(changes, Some(id), now);
        }
    }

    pub fn remove_node(&mut self, name: &str, now: Instant) {
        // Pods for which room was made there choose anew, and nothing refers to the node's number any more.
        if let Some(id) = self.cache.node_id(name) {
            let nominated: Vec<Key> = self.nominations.on(id).map(|(key, _)| key.clone()).collect();
            for key in nominated {
                self.withdraw(&key);
                self.queue.wake(&key, "NodeDelete", now);
            }
        }
        self.cache.remove_node(name);
        // A smaller cluster can meet a spread constraint that a greater one does not.
        self.retry(Change::NodeLabels as u16, None, now);
    }

    pub fn set_namespace(&mut self, namespace: &Namespace, now: Instant) {
        let name = namespace.metadata.name.as_deref().unwrap_or("");
        if self.cache.set_namespace(name, Some(namespace.metadata.labels.clone().unwrap_or_default())) {
            self.retry(Change::NamespaceLabels as u16, None, now);
        }
    }

    pub fn remove_namespace(&mut self, name: &str, now: Instant) {
        if self.cache.set_namespace(name, None) {
            self.retry(Change::NamespaceLabels as u16, None, now);
        }
    }

    /// Budgets decide between victims only, so no Pod is tried again for them.
    pub fn set_budget(&mut self, budget: &PodDisruptionBudget) {
        self.budgets.set(budget);
    }

    pub fn remove_budget(&mut self, key: &Key) {
        self.budgets.remove(key);
    }

    pub fn set_pod(&mut self, pod: &v1::Pod, now: Instant) {
        let key = Key::of(pod);
        if is_terminal(pod) {
            return self.remove_pod(&key, now);
        }
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
        match node {
            Some(node) => self.set_placed(key, pod, node, now),
            None => self.set_waiting(key, pod, now),
        }
    }

    fn set_placed(&mut self, key: Key, pod: &v1::Pod, node: &str, now: Instant) {
        let nominated = self.nominations.get(&key).copied();
        let gang = self.see_member(&key, pod, Progress::Assigned);
        self.forget_waiting(&key);
        let binding = self.binding.remove(&key);
        let class = self.cache.enter_class(pod);
        let terminating = pod.metadata.deletion_timestamp.is_some();
        if terminating {
            self.evicting.remove(&key);
        }
        let preempted = self.evicting.contains(&key) || (terminating && is_preempted(pod));
        let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|t| t.0);
        let mut changes = Change::PodAdded as u16;
        if let Some(held) = self.cache.placed(&key).cloned() {
            let there = self.cache.node(held.node).name.as_ref() == node;
            if there && held.class == class && held.terminating == terminating {
                self.leave_class(class);
                self.cache.confirm(&key, started, preempted);
                return gang.iter().for_each(|gang| self.gang_changed(gang, "AssignedPodAdd", now));
            }
            if let Some(assumed) = binding {
                self.unreserve(&assumed, held.node, now);
            }
            self.unplace(&key);
            self.leave_class(held.class);
            changes |= Change::PodLabels as u16 | Change::PodDeleted as u16;
            if !there {
                self.retry(Change::PodDeleted as u16, Some(held.node), now);
            }
        }
        let node = self.cache.enter_node(node);
        let priority = api::rules::pod::priority(pod);
        self.place(key, Placed { node, class, terminating, assumed: false, priority, preempted, started });
        self.retry(changes, Some(node), now);
        if let Some(elsewhere) = nominated.filter(|n| n.node != node) {
            self.retry(Change::PodDeleted as u16, Some(elsewhere.node), now);
        }
        gang.iter().for_each(|gang| self.gang_changed(gang, "AssignedPodAdd", now));
    }

    fn set_waiting(&mut self, key: Key, pod: &v1::Pod, now: Instant) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if let Some(binding) = self.binding.get(&key) {
            if binding.uid == uid {
                return;
            }
            self.remove_pod(&key, now);
        } else if self.cache.placed(&key).is_some() {
            self.remove_pod(&key, now);
        }
        let spec = pod.spec.as_ref();
        let named = spec.and_then(|s| s.scheduler_name.as_deref()).unwrap_or(DEFAULT_SCHEDULER);
        let profile = self.settings.profiles.iter().find(|profile| profile.scheduler_name == named);
        let Some(profile) = profile.filter(|_| pod.metadata.deletion_timestamp.is_none()) else {
            return self.remove_pod(&key, now);
        };
        let gated = profile.with(Part::Gate).filter_map(|p| p.plugin.gate).any(|open| !open(pod));
        let scheduler = profile.scheduler_name.clone();
        let gang = self.see_member(&key, pod, Progress::Waits { gates_open: !gated });
        let profile = self.settings.profiles.iter().find(|profile| profile.scheduler_name == scheduler);
        let gated = gated || profile.is_some_and(|profile| self.is_held_back(&key, profile));
        let class = self.cache.enter_class(pod);
        let waiting = Waiting {
            uid,
            class,
            priority: spec.and_then(|s| s.priority).unwrap_or(0),
            gated,
            never_preempts: spec.and_then(|s| s.preemption_policy.as_deref()) == Some("Never"),
            attempts: 0,
            errors: 0,
            waits_since: None,
            key,
        };
        let as_new = |held: &Waiting| Waiting { attempts: 0, errors: 0, waits_since: None, ..held.clone() };
        if self.queue.get(&waiting.key).is_some_and(|held| as_new(held) == waiting) {
            self.leave_class(class);
            return self.follow_nomination(&waiting, pod, now);
        }
        let nominated = self.nominations.get(&waiting.key).copied();
        let same = self.queue.get(&waiting.key).is_some_and(|held| held.uid == waiting.uid);
        self.forget_waiting(&waiting.key);
        if let Some(held) = nominated {
            if same && !held.shown {
                let nominated = Nominated { class, priority: waiting.priority, ..held };
                self.nominate(waiting.key.clone(), nominated);
            }
            self.retry(Change::PodDeleted as u16, Some(held.node), now);
        }
        self.follow_nomination(&waiting, pod, now);
        waypoint::scheduler::queue(&waiting.key.name);
        self.queue.add(waiting, now);
        gang.iter().for_each(|gang| self.gang_changed(gang, "UnschedulablePodAdd", now));
    }

    fn forget_waiting(&mut self, key: &Key) {
        self.withdraw(key);
        if let Some(waiting) = self.queue.remove(key) {
            self.leave_class(waiting.class);
        }
    }

    /// The Pod is gone, or will use no node any more.
    pub fn remove_pod(&mut self, key: &Key, now: Instant) {
        let nominated = self.nominations.get(key).copied();
        self.forget_waiting(key);
        self.gangs.forget(key);
        self.evicting.remove(key);
        let binding = self.binding.remove(key);
        if let Some(placed) = self.unplace(key) {
            if let Some(assumed) = binding {
                self.unreserve(&assumed, placed.node, now);
            }
            self.leave_class(placed.class);
            self.retry(Change::PodDeleted as u16, Some(placed.node), now);
        }
        if let Some(nominated) = nominated {
            self.retry(Change::PodDeleted as u16, Some(nominated.node), now);
        }
    }

    /// The binding that was decided did not come about: the Pod waits again.
    pub fn bind_failed(&mut self, key: &Key, uid: &str, now: Instant) {
        self.prepared(key, uid);
        if self.binding.get(key).is_none_or(|b| b.uid != uid) {
            return self.devices_taken_back(key, uid, now);
        }
        let (Some(waiting), Some(placed)) = (self.binding.remove(key), self.unplace(key)) else { return };
        self.gangs.lost(key);
        self.unreserve(&waiting, placed.node, now);
        self.queue.retry_later(waiting, now);
        self.retry(Change::PodDeleted as u16, Some(placed.node), now);
    }

    /// The writes before the binding of a Pod are over.
    pub fn prepared(&mut self, key: &Key, uid: &str) {
        self.preparing.remove(&(key.clone(), uid.to_owned()));
    }

    // The cache, with the memos that follow it.

    pub(crate) fn place(&mut self, key: Key, pod: Placed) {
        let counted = self.cache.place(key, pod);
        self.memos.count(counted, &self.cache);
    }

    pub(crate) fn unplace(&mut self, key: &Key) -> Option<Placed> {
        let (placed, counted) = self.cache.unplace(key)?;
        self.memos.count(counted, &self.cache);
        Some(placed)
    }

    fn leave_class(&mut self, class: ClassId) {
        if self.cache.leave_class(class) {
            self.memos.forget(class);
        }
    }

    /// Keys of all Pods that the engine holds, for a comparison with the API.
    pub fn pod_keys(&self) -> Vec<Key> {
        self.cache.pods().map(|(key, _)| key.clone()).chain(self.queue.keys().cloned()).collect()
    }

    /// Keys of all nodes that have a Node object.
    pub fn node_keys(&self) -> Vec<Key> {
        self.cache.nodes().filter(|(_, n)| n.known).map(|(_, n)| Key::new("", &*n.name)).collect()
    }

    pub fn service_keys(&self) -> Vec<Key> {
        self.cache.selectors.services().map(|(namespace, name)| Key::new(namespace, name)).collect()
    }

    pub fn owner_keys(&self, kind: OwnerKind) -> Vec<Key> {
        self.cache.selectors.owners(kind).map(|(namespace, name)| Key::new(namespace, name)).collect()
    }

    pub fn claim_keys(&self) -> Vec<Key> {
        self.cache.claims.claims.keys().cloned().collect()
    }

    pub fn volume_keys(&self) -> Vec<Key> {
        self.cache.claims.volumes.keys().map(|name| Key::new("", name)).collect()
    }

    pub fn storage_class_keys(&self) -> Vec<Key> {
        self.cache.claims.classes.keys().map(|name| Key::new("", name)).collect()
    }

    pub fn capacity_keys(&self) -> Vec<Key> {
        self.cache.claims.capacities.keys().cloned().collect()
    }

    pub fn driver_keys(&self) -> Vec<Key> {
        self.cache.claims.drivers.keys().map(|name| Key::new("", name)).collect()
    }

    pub fn attachable_keys(&self) -> Vec<Key> {
        self.cache.attachables.volumes.keys().map(|name| Key::new("", name)).collect()
    }

    pub fn volume_limit_keys(&self) -> Vec<Key> {
        self.cache.attachables.limits.keys().map(|name| Key::new("", name)).collect()
    }

    pub fn attachment_keys(&self) -> Vec<Key> {
        self.cache.attachables.attachments().map(|name| Key::new("", name)).collect()
    }

    /// The sizes of the memory that the metrics tell.
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 3] {
        [("assumed_pods", self.binding.len()), ("nodes", self.cache.order().len()), ("pods", self.cache.pod_count())]
    }

    pub fn budget_keys(&self) -> Vec<Key> {
        self.budgets.keys().cloned().collect()
    }

    pub fn namespace_keys(&self) -> Vec<Key> {
        self.cache.namespaces.keys().map(|name| Key::new("", name)).collect()
    }
}

/// Whether a claim of this name is among those of a class.
pub(crate) fn names(claims: &[Named], name: &str) -> bool {
    claims.iter().any(|named| named.name.as_deref() == Some(name))
}

/// It is being deleted to make room for a Pod of greater priority.
fn is_preempted(pod: &v1::Pod) -> bool {
    let target = api::rules::pod::condition(pod, "DisruptionTarget").filter(|c| c.status == "True");
    target.is_some_and(|c| c.reason.as_deref() == Some("PreemptionByScheduler"))
}
