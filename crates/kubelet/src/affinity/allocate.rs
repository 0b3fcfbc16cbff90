//! Gives the containers of new Pods processors and memory for themselves, from NUMA nodes that suit all of their resources, and keeps
//! who has what. Upstream counterpart: pkg/kubelet/cm, its CPU, memory and topology managers.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use api::features::Feature;
use k8s_cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};

use super::{
    checkpoint::Checkpoints,
    counts::{Bound, Counts},
    cpus::{CpuPolicy, CpuState},
    cpuset::CpuSet,
    hints::{Hint, Hints, MOST_NODES, NodeMask},
    memory::{
        MemoryPolicy, Reusable,
        tables::{Block, MemoryState},
    },
    merge::Merger,
    options::{self, NodeOptions},
    requests, sysfs,
    topology::Topology,
};
use crate::{
    config::Config,
    configuration::affinity::{Managers, Policy, TopologyPolicy},
    eviction::pressure::Signal,
    node::{machine::Machine, reserved},
    pod::admit::Refusal,
    volumes::folder::blocking,
};

/// Where nothing was chosen for a container.
const NOWHERE: Hint = Hint { nodes: None, preferred: false };

/// The owners of processors and memory.
#[derive(Default)]
struct Held {
    cpus: CpuState,
    memory: MemoryState,
    /// The NUMA nodes that were chosen, by the Pods' uids and the containers' names.
    hints: BTreeMap<String, BTreeMap<String, Hint>>,
    /// The processors that containers were told last, by their ids.
    told: BTreeMap<String, CpuSet>,
    /// Counts the changes that have to be written down.
    changes: u64,
}

/// The files, and how many changes are in them.
struct Writer {
    checkpoints: Checkpoints,
    written: u64,
}

/// The processors and memory that containers of one Pod hand on to others while the Pod gets what it asks for.
#[derive(Default)]
pub struct Pass {
    cpus: CpuSet,
    memory: Reusable,
    has_begun: bool,
}

impl Pass {
    /// A Pod that has begun was given all that it gets. Where it may have been resized since, that need not be what it asks for.
    pub fn new(has_begun: bool) -> Self {
        Pass { has_begun, ..Pass::default() }
    }
}

pub struct Affinity {
    cpus: Option<CpuPolicy>,
    memory: Option<MemoryPolicy>,
    merger: Merger,
    nodes: Vec<u32>,
    by_pod: bool,
    full_cores: bool,
    /// A container with processors of its own has no quota on top.
    frees_quota: bool,
    /// Pods with processors, or memory, of their own may be resized. They keep those that they have.
    resizes_cpus: bool,
    resizes_memory: bool,
    held: Mutex<Held>,
    turn: tokio::sync::Mutex<()>,
    writer: Arc<tokio::sync::Mutex<Writer>>,
    changed: Notify,
    counts: Counts,
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn cpu_policy(config: &Config, topology: &Arc<Topology>) -> Result<Option<CpuPolicy>, String> {
    let (managers, kept) = (&config.settings.managers, &config.settings.reserved);
    if managers.cpus == Policy::None {
        let given = &managers.cpu_options;
        let list: Vec<String> = given.iter().map(|(name, value)| format!("{name}:{value}")).collect();
        let why =
            || format!("new none policy error: None policy: received unsupported options=map[{}]", list.join(" "));
        return if given.is_empty() { Ok(None) } else { Err(why()) };
    }
    let milli = reserved::amount(kept, "cpu").milli_value();
    if milli <= 0 {
        let words =
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero";
        return Err(words.to_owned());
    }
    let count = usize::try_from(milli).unwrap_or(usize::MAX).div_ceil(1000);
    let named = CpuSet::read(kept.cpus.as_deref().unwrap_or_default())?;
    let policy = options::cpu(&managers.cpu_options, &config.features).and_then(|options| {
        options.fit(topology, managers.topology)?;
        CpuPolicy::new(topology.clone(), options, count, &named)
    });
    policy.map(Some).map_err(|why| format!("new static policy error: {why}"))
}

fn memory_policy(config: &Config, machine: &Machine, topology: &Arc<Topology>) -> Result<Option<MemoryPolicy>, String> {
    let managers = &config.settings.managers;
    if managers.memory == Policy::None {
        return Ok(None);
    }
    options::bounded(topology.nodes.len(), MOST_NODES)?;
    let evicted = config.evictions.kept(Signal::MemoryAvailable, machine.memory).unwrap_or(0);
    let kept = reserved::amount(&config.settings.reserved, "memory").value().saturating_add(evicted);
    let in_all = [("memory".to_owned(), u64::try_from(kept).unwrap_or(0))].into();
    MemoryPolicy::new(topology.clone(), &managers.reserved_memory, &in_all).map(Some)
}

fn merger(managers: &Managers, options: NodeOptions, topology: &Topology) -> Merger {
    let distances = || topology.nodes.iter().map(|(number, node)| (*number, node.distances.clone())).collect();
    Merger {
        policy: managers.topology,
        nodes: topology.nodes.keys().copied().collect(),
        distances: options.closest.then(distances),
    }
}

impl Affinity {
    /// Takes up the gifts of an earlier kubelet, on the machine that the kernel tells of below `sys`. Fails when the machine cannot do what is
    /// configured, and when what was given does not fit it any more.
    pub fn new(config: &Config, machine: &Machine, sys: &Path) -> Result<Affinity, String> {
        let managers = &config.settings.managers;
        let is_asked = managers.topology != TopologyPolicy::None;
        // A machine is only looked at by those who divide it.
        let is_divided = is_asked || managers.cpus == Policy::Static || managers.memory == Policy::Static;
        let memory = u64::try_from(machine.memory).unwrap_or(0);
        let topology = Arc::new(if is_divided { sysfs::read(sys, memory)? } else { Topology::default() });
        let mut node_options = NodeOptions::default();
        if is_asked {
            node_options = options::nodes(&managers.topology_options, &config.features)?;
            options::bounded(topology.nodes.len(), node_options.most)?;
        }
        let cpus = cpu_policy(config, &topology)?;
        let memory = memory_policy(config, machine, &topology)?;
        let checkpoints = Checkpoints::new(&config.root_dir, managers.cpu_policy(), managers.memory_policy());
        let mut held = Held { changes: 1, ..Held::default() };
        let start = |held: &mut CpuState| cpus.as_ref().map_or(Ok(()), |policy| policy.start(held));
        held.cpus = checkpoints.cpus().map_err(|why| format!("start cpu manager error: {why}"))?;
        start(&mut held.cpus).map_err(|why| format!("start cpu manager error: {why}"))?;
        held.memory = checkpoints.memory().map_err(|why| format!("start memory manager error: {why}"))?;
        if let Some(policy) = &memory {
            policy.start(&mut held.memory).map_err(|why| format!("start memory manager error: {why}"))?;
        }
        let options = options::cpu(&managers.cpu_options, &config.features).unwrap_or_default();
        let affinity = Affinity {
            merger: merger(managers, node_options, &topology),
            nodes: topology.nodes.keys().copied().collect(),
            cpus,
            memory,
            by_pod: managers.by_pod,
            full_cores: options.full_cores,
            frees_quota: config.features.enabled(Feature::DisableCPUQuotaWithExclusiveCPUs),
            resizes_cpus: config.features.enabled(Feature::InPlacePodVerticalScalingExclusiveCPUs),
            resizes_memory: config.features.enabled(Feature::InPlacePodVerticalScalingExclusiveMemory),
            held: Mutex::new(held),
            turn: tokio::sync::Mutex::default(),
            writer: Arc::new(tokio::sync::Mutex::new(Writer { checkpoints, written: 0 })),
            changed: Notify::new(),
            counts: Counts::new(),
        };
        affinity.count(&affinity.held.lock());
        Ok(affinity)
    }

    /// Whether Pods have to be asked what they need for themselves.
    pub fn concerns(&self) -> bool {
        self.cpus.is_some() || self.memory.is_some() || self.merger.policy != TopologyPolicy::None
    }

    /// Whether some processors are shared and others are not.
    pub fn shares(&self) -> bool {
        self.cpus.is_some()
    }

    /// The NUMA nodes of the machine.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The NUMA nodes are chosen for the whole Pod.
    pub fn is_by_pod(&self) -> bool {
        self.by_pod
    }

    /// Where nodes are chosen, one Pod at a time gets what it asks for: what one was told is free is not given to another meanwhile.
    pub async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        if self.merger.policy == TopologyPolicy::None { None } else { Some(self.turn.lock().await) }
    }

    /// A Pod of which nothing was made yet may have been given something before it was resized. It is given anew what it asks for now.
    pub async fn forget_old_size(&self, uid: &str) {
        if self.resizes_cpus || self.resizes_memory {
            self.release(uid).await;
        }
    }

    /// The outcome for a whole Pod, for those who count.
    pub fn admitted(&self, succeeded: bool, took: Duration) {
        self.counts.admitted(succeeded, took);
    }

    /// Chooses the NUMA nodes that a container, or the whole Pod, gets all that it asks for from. `devices` is what is known of its
    /// devices.
    pub fn align(&self, pass: &Pass, pod: &Pod, container: Option<&Container>, devices: Hints) -> Result<(), Refusal> {
        if self.merger.policy == TopologyPolicy::None {
            return Ok(());
        }
        let mut held = self.held.lock();
        let (keeps_cpus, keeps_memory) = self.keeps(pass);
        let cpus = self.cpus.as_ref().and_then(|policy| match container {
            _ if keeps_cpus => policy.hints_held(&held.cpus, pod, container),
            Some(container) => policy.hints(&held.cpus, &pass.cpus, (pod, container)),
            None => policy.hints_of_pod(&held.cpus, pod),
        });
        let cpus = cpus.map(|list| Hints::from([("cpu".to_owned(), Some(list))])).unwrap_or_default();
        let memory = self.memory.as_ref().map(|policy| match container {
            _ if keeps_memory => MemoryPolicy::hints_held(&held.memory, pod, container),
            Some(container) => policy.hints(&held.memory, &pass.memory, (pod, container)),
            None => policy.hints_of_pod(&held.memory, pod),
        });
        let (best, admitted) = self.merger.merge(&[devices, cpus, memory.unwrap_or_default()]);
        if self.merger.policy == TopologyPolicy::SingleNumaNode {
            let scope = if container.is_some() { "container" } else { "pod" };
            self.counts.aligned(scope, Bound::Node, admitted);
        }
        if !admitted {
            let words = "Resources cannot be allocated with Topology locality";
            return Err(Refusal::new("TopologyAffinityError", words));
        }
        let of_pod = held.hints.entry(uid(pod).to_owned()).or_default();
        let names = requests::containers(pod).map(|one| &one.name);
        let names = names.filter(|name| container.is_none_or(|one| one.name == **name));
        of_pod.extend(names.map(|name| (name.clone(), best)));
        Ok(())
    }

    /// Whether a Pod keeps the processors, and the memory, that it has, whatever it asks for.
    fn keeps(&self, pass: &Pass) -> (bool, bool) {
        (pass.has_begun && self.resizes_cpus, pass.has_begun && self.resizes_memory)
    }

    fn hint(held: &Held, uid: &str, container: &str) -> Hint {
        held.hints.get(uid).and_then(|all| all.get(container)).copied().unwrap_or(NOWHERE)
    }

    /// The NUMA nodes that were chosen for a container; any when `None`.
    pub fn mask(&self, uid: &str, container: &str) -> Option<NodeMask> {
        Self::hint(&self.held.lock(), uid, container).nodes
    }

    /// Gives a container the processors and the memory that it asks for. What it has it keeps, so this can be called again.
    pub fn allocate(&self, pass: &mut Pass, pod: &Pod, container: &Container) -> Result<(), Refusal> {
        let mut held = self.held.lock();
        let held = &mut *held;
        let hint = Self::hint(held, uid(pod), &container.name);
        let (keeps_cpus, keeps_memory) = self.keeps(pass);
        if let Some(policy) = self.cpus.as_ref().filter(|_| !keeps_cpus && requests::cpus(pod, container) > 0) {
            let given = policy.allocate(&mut held.cpus, &mut pass.cpus, (pod, container), hint.nodes);
            self.counts.cpus(given.is_ok());
            if self.full_cores {
                self.counts.aligned("container", Bound::Core, given.is_ok());
            }
            if let Some(cpus) = given? {
                held.changes += 1;
                if policy.has_one_cache(&cpus) {
                    self.counts.aligned("container", Bound::Cache, true);
                }
                self.count(held);
                self.changed.notify_one();
            }
        }
        let asks = !keeps_memory && requests::memory(pod, container).is_some();
        if let Some(policy) = self.memory.as_ref().filter(|_| asks) {
            let given = policy.allocate(&mut held.memory, &mut pass.memory, (pod, container), hint);
            self.counts.memory(given.is_ok());
            held.changes += u64::from(given.map_err(|why| Refusal::unexpected(&why))?);
        }
        Ok(())
    }

    fn count(&self, held: &Held) {
        if let Some(policy) = &self.cpus {
            let (left, given) = (policy.available(&held.cpus).len(), held.cpus.exclusive().len());
            self.counts.pool(left, given, &policy.on_each_node(&held.cpus));
        }
    }

    /// The Pod has nothing any more.
    pub async fn release(&self, uid: &str) {
        let freed = {
            let mut held = self.held.lock();
            held.hints.remove(uid);
            let freed = held.cpus.release(uid) | MemoryPolicy::release(&mut held.memory, uid);
            held.changes += u64::from(freed);
            self.count(&held);
            freed
        };
        if freed {
            self.changed.notify_one();
            if let Err(error) = self.save().await {
                // After a restart what was freed may count as given, until it is seen that its Pod is not there.
                tracing::warn!(error, "the record of processors and memory is older than they are");
            }
        }
    }

    /// Frees what all Pods but these have.
    pub async fn retain(&self, is_here: impl Fn(&str) -> bool) {
        let gone: Vec<String> = {
            let held = self.held.lock();
            let all = held.cpus.assigned.keys().chain(held.memory.assigned.keys()).chain(held.hints.keys());
            all.filter(|uid| !is_here(uid)).cloned().collect()
        };
        for uid in gone {
            self.release(&uid).await;
        }
    }

    /// Everything that was changed before the call is on the disk after it.
    pub async fn save(&self) -> Result<(), String> {
        let mut writer = self.writer.clone().lock_owned().await;
        let (cpus, memory, changes) = {
            let held = self.held.lock();
            if held.changes == writer.written {
                return Ok(());
            }
            (held.cpus.clone(), held.memory.clone(), held.changes)
        };
        // Whoever waits for it may give up; the next one writes after it all the same.
        blocking(move || {
            let written = writer.checkpoints.write(&cpus, &memory);
            written.map_err(|error| format!("could not save checkpoint: {error}"))?;
            writer.written = changes;
            Ok(())
        })
        .await
    }

    /// Puts the processors and the NUMA nodes of a container among its resources.
    pub fn put(&self, uid: &str, container: &str, resources: &mut LinuxContainerResources) {
        resources.cpuset_cpus = self.cpus_of(uid, container).to_string();
        let nodes = self.memory_of(uid, container).iter().flat_map(|block| block.numa_affinity.clone()).collect();
        let nodes: Vec<String> = NodeMask::nodes(nodes).map(|node| node.to_string()).collect();
        resources.cpuset_mems = nodes.join(",");
        if self.frees_quota(uid, container) {
            resources.cpu_quota = -1;
        }
    }

    /// The processors that a container may use: its own, or the shared ones. Empty when it may use all.
    pub fn cpus_of(&self, uid: &str, container: &str) -> CpuSet {
        let held = self.held.lock();
        if self.cpus.is_none() {
            return CpuSet::default();
        }
        held.cpus.of(uid, container).unwrap_or(&held.cpus.shared).clone()
    }

    /// Those that it has for itself.
    pub fn exclusive(&self, uid: &str, container: &str) -> CpuSet {
        self.held.lock().cpus.of(uid, container).cloned().unwrap_or_default()
    }

    /// The memory that a container has for itself.
    pub fn memory_of(&self, uid: &str, container: &str) -> Vec<Block> {
        self.held.lock().memory.assigned.get(uid).and_then(|all| all.get(container)).cloned().unwrap_or_default()
    }

    /// Whether a container may use its processors without a quota.
    pub fn frees_quota(&self, uid: &str, container: &str) -> bool {
        self.frees_quota && self.held.lock().cpus.of(uid, container).is_some()
    }

    /// Whether some container of a Pod may.
    pub fn frees_quota_of_pod(&self, uid: &str) -> bool {
        self.frees_quota && self.held.lock().cpus.assigned.contains_key(uid)
    }

    /// The processors that containers may get for themselves.
    pub fn allocatable_cpus(&self) -> CpuSet {
        self.cpus.as_ref().map(CpuPolicy::allocatable).unwrap_or_default()
    }

    /// The memory that they may.
    pub fn allocatable_memory(&self) -> Vec<Block> {
        if self.memory.is_some() { MemoryPolicy::allocatable(&self.held.lock().memory) } else { Vec::new() }
    }

    /// Why a Pod cannot have other amounts than it has: what it was given for itself is not given anew. Where it can, it keeps that.
    pub fn refuses_resize(&self, changes: impl Fn(&str) -> bool) -> Option<(&'static str, String)> {
        let words = |manager: &str, policy: &str| {
            let detail = match manager {
                "CPU" => "guaranteed_pod_cpu_manager_static_policy",
                _ => "guaranteed_pod_memory_manager_static_policy",
            };
            let text =
                format!("Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy \"{policy}\"");
            (detail, text)
        };
        let cpus = self.cpus.is_some() && !self.resizes_cpus && changes("cpu");
        let memory = || self.memory.is_some() && !self.resizes_memory && changes("memory");
        cpus.then(|| words("CPU", "static")).or_else(|| memory().then(|| words("Memory", "Static")))
    }

    /// Waits until processors were given or taken back.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The processors that a container is to be told, if it was told others.
    pub fn untold(&self, id: &str, uid: &str, container: &str) -> Option<CpuSet> {
        let wanted = self.cpus_of(uid, container);
        let is_told = self.held.lock().told.get(id) == Some(&wanted);
        (!wanted.is_empty() && !is_told).then_some(wanted)
    }

    /// A container was told its processors.
    pub fn told(&self, id: &str, cpus: CpuSet) {
        self.held.lock().told.insert(id.to_owned(), cpus);
    }

    /// A container was made with these processors. It is told others if they are others by now.
    pub fn made(&self, id: &str, uid: &str, container: &str, cpus: &str) {
        self.told(id, CpuSet::read(cpus).unwrap_or_default());
        if self.untold(id, uid, container).is_some() {
            self.changed.notify_one();
        }
    }

    /// These containers are all that there are.
    pub fn retain_told(&self, is_there: impl Fn(&str) -> bool) {
        self.held.lock().told.retain(|id, _| is_there(id));
    }

    pub fn render(&self) -> String {
        self.counts.render()
    }
}
