//! Gangs: Pods of one group of a Workload, of which a least number is bound together or none is.
//! Upstream counterpart: pkg/scheduler/backend/workloadmanager.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use client::Key;
use clock::Instant;
use k8s_openapi::api::{core::v1::Pod, scheduling::v1alpha1};

use crate::queue::Waiting;

/// How long the first Pods of a gang wait for the others.
const PATIENCE: Duration = Duration::from_secs(300);

/// A Workload: the groups of its Pods, with how many of each must be had at once, if that matters.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload(BTreeMap<String, Option<usize>>);

impl Workload {
    pub fn of(workload: &v1alpha1::Workload) -> Self {
        let least = |group: &v1alpha1::PodGroup| {
            group.policy.gang.as_ref().map(|gang| usize::try_from(gang.min_count).unwrap_or(0))
        };
        Workload(workload.spec.pod_groups.iter().map(|group| (group.name.clone(), least(group))).collect())
    }
}

/// The name that Pods of one gang have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangKey {
    workload: Key,
    group: String,
    replica: String,
}

impl GangKey {
    pub fn of(pod: &Pod) -> Option<Self> {
        let reference = pod.spec.as_ref()?.workload_ref.as_ref()?;
        Some(GangKey {
            workload: Key::new(pod.metadata.namespace.as_deref().unwrap_or(""), &*reference.name),
            group: reference.pod_group.clone(),
            replica: reference.pod_group_replica_key.clone().unwrap_or_default(),
        })
    }
}

/// How far a Pod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Whether it may be tried, as far as its own gates say.
    Waits { gates_open: bool },
    /// A node was decided.
    Assumed,
    /// The API shows its node.
    Assigned,
}

#[derive(Debug, Default)]
struct Gang {
    pods: BTreeMap<Key, Progress>,
    /// Until when the Pods that have a node wait for the others.
    until: Option<Instant>,
}

/// A Pod that has its node and waits for others.
#[derive(Debug)]
pub(crate) struct Held {
    pub pod: Waiting,
    until: Instant,
    pub waited: Duration,
}

/// Whether a Pod with a node may be bound.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    Granted,
    Wait,
    /// The Workload is not as the Pod says.
    Broken(String),
}

/// All gangs.
#[derive(Debug, Default)]
pub(crate) struct Gangs {
    pub workloads: HashMap<Key, Workload>,
    gangs: BTreeMap<GangKey, Gang>,
    of: HashMap<Key, GangKey>,
    held: BTreeMap<Key, Held>,
    /// Pods that waited, in the order in which they may be bound now.
    pub granted: VecDeque<Waiting>,
}

impl Gangs {
    /// A Pod as it is now. One that was decided about stays so until it has its node, or has lost it.
    pub fn see(&mut self, pod: &Key, gang: Option<GangKey>, progress: Progress) {
        if self.of.get(pod) != gang.as_ref() {
            self.forget(pod);
        }
        let Some(gang) = gang else { return };
        self.of.insert(pod.clone(), gang.clone());
        let pods = &mut self.gangs.entry(gang).or_default().pods;
        let waits = matches!(progress, Progress::Waits { .. });
        if !(waits && pods.get(pod) == Some(&Progress::Assumed)) {
            pods.insert(pod.clone(), progress);
        }
    }

    /// The Pod is gone. Answers with the gang that it was of.
    pub fn forget(&mut self, pod: &Key) -> Option<GangKey> {
        self.held.remove(pod);
        self.granted.retain(|granted| granted.key != *pod);
        let key = self.of.remove(pod)?;
        if let Some(gang) = self.gangs.get_mut(&key) {
            gang.pods.remove(pod);
            if gang.pods.is_empty() {
                self.gangs.remove(&key);
            }
        }
        Some(key)
    }

    pub fn gang_of(&self, pod: &Key) -> Option<&GangKey> {
        self.of.get(pod)
    }

    /// Some of the Pods whose Workload this is.
    pub fn of_workload(&self, workload: &Key) -> Vec<GangKey> {
        self.gangs.keys().filter(|gang| gang.workload == *workload).cloned().collect()
    }

    /// How many Pods a gang needs; `Ok(None)` when its Pods need each other not.
    fn least(&self, gang: &GangKey) -> Result<Option<usize>, String> {
        let GangKey { workload, group, .. } = gang;
        let name = &workload.name;
        let missing = || format!("failed to get workload {workload}: workload.scheduling.k8s.io {name:?} not found");
        let Workload(groups) = self.workloads.get(workload).ok_or_else(missing)?;
        groups.get(group).copied().ok_or_else(|| format!("pod group {group:?} doesn't exist for a workload {name:?}"))
    }

    /// Whether a Pod may be tried: all of its gang that are needed are there.
    pub fn is_open(&self, pod: &Key) -> bool {
        let Some(gang) = self.of.get(pod) else { return true };
        let there = || self.gangs.get(gang).map_or(0, |gang| gang.pods.len());
        self.least(gang).is_ok_and(|least| least.is_none_or(|least| there() >= least))
    }

    /// The Pods of a gang that have no node, with whether their own gates are open.
    pub fn waiting(&self, gang: &GangKey) -> Vec<(Key, bool)> {
        let pods = self.gangs.get(gang).into_iter().flat_map(|gang| &gang.pods);
        let waits = |(key, progress): (&Key, &Progress)| match progress {
            Progress::Waits { gates_open } => Some((key.clone(), *gates_open)),
            Progress::Assumed | Progress::Assigned => None,
        };
        pods.filter_map(waits).collect()
    }

    fn set(&mut self, pod: &Key, progress: Progress) {
        let gang = self.of.get(pod).and_then(|gang| self.gangs.get_mut(gang));
        if let Some(held) = gang.and_then(|gang| gang.pods.get_mut(pod)) {
            *held = progress;
        }
    }

    /// A node was decided for a Pod: may it be bound? If it is the last that was needed, so may those that waited for it.
    pub fn decided(&mut self, pod: &Key) -> Permit {
        let Some(gang) = self.of.get(pod).cloned() else { return Permit::Granted };
        match self.least(&gang) {
            Err(why) => Permit::Broken(why),
            Ok(None) => Permit::Granted,
            Ok(Some(least)) => {
                self.set(pod, Progress::Assumed);
                if self.with_nodes(&gang) < least {
                    return Permit::Wait;
                }
                self.grant(&gang);
                Permit::Granted
            }
        }
    }

    fn with_nodes(&self, gang: &GangKey) -> usize {
        let pods = self.gangs.get(gang).into_iter().flat_map(|gang| gang.pods.values());
        pods.filter(|progress| !matches!(progress, Progress::Waits { .. })).count()
    }

    /// All Pods of a gang that waited may go on.
    fn grant(&mut self, gang: &GangKey) {
        let keys: Vec<Key> = self.held.keys().filter(|key| self.of.get(key) == Some(gang)).cloned().collect();
        self.granted.extend(keys.iter().filter_map(|key| self.held.remove(key)).map(|held| held.pod));
        if let Some(gang) = self.gangs.get_mut(gang) {
            gang.until = None;
        }
    }

    /// Pods of a gang came to nodes by another way: those that wait may have enough company now.
    pub fn recount(&mut self, gang: &GangKey) {
        let least = self.least(gang).ok().flatten();
        if least.is_some_and(|least| self.with_nodes(gang) >= least) {
            self.grant(gang);
        }
    }

    /// A Pod with a node waits for the others.
    pub fn hold(&mut self, pod: Waiting, now: Instant) {
        let gang = self.of.get(&pod.key).and_then(|gang| self.gangs.get_mut(gang));
        let until = gang.map_or(now, |gang| {
            // A time that has passed belongs to an attempt that came to nothing.
            let until = gang.until.filter(|until| *until > now).unwrap_or(now + PATIENCE);
            *gang.until.insert(until)
        });
        self.held.insert(pod.key.clone(), Held { pod, until, waited: until.saturating_duration_since(now) });
    }

    /// The Pod has lost its node, or does not get it.
    pub fn lost(&mut self, pod: &Key) {
        self.held.remove(pod);
        self.granted.retain(|granted| granted.key != *pod);
        self.set(pod, Progress::Waits { gates_open: true });
    }

    /// A Pod that has waited too long.
    pub fn overdue(&mut self, now: Instant) -> Option<Held> {
        let key = self.held.iter().find(|(_, held)| held.until <= now)?.0.clone();
        self.take_held(&key)
    }

    /// A Pod that waits for others waits no more, and has lost its node.
    pub fn take_held(&mut self, key: &Key) -> Option<Held> {
        let held = self.held.remove(key)?;
        self.lost(key);
        Some(held)
    }

    /// When [`Gangs::overdue`] has something next.
    pub fn wake_at(&self) -> Option<Instant> {
        self.held.values().map(|held| held.until).min()
    }
}
