//! The memory of a Pod's worker: what it knows of its Pod and neither the API server nor the engine tells.

use std::collections::BTreeMap;

use api::rules::quantity::Quantity;
use clock::Timestamp;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

use crate::{
    pod::{
        admit::Refusal,
        backoff::{Backoff, Pull},
        running::{ContainerRun, State},
        spec::{
            quota::Cfs,
            resources::{Limits, PodLimits},
        },
    },
    volumes::MountedVolumes,
};

/// A reason and a message, as statuses show them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
}

impl Cause {
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Cause { reason: reason.into(), message: message.into() }
    }
}

/// Where a Pod is in its life on this node. It never goes back.
#[derive(Debug, Clone, PartialEq)]
pub enum Life {
    /// Its folders, volumes and cgroup are still to be made. Mounting has failed this often in a row.
    Preparing { failed_mounts: u32 },
    /// They are there, the volumes as they were mounted: its sandbox and its containers may run.
    Prepared(MountedVolumes),
    /// No container starts again, although the API server asks for none of that.
    Ending(End),
    /// Nothing runs any more, and what was made for it is gone.
    Settled(End),
}

/// Why a Pod has come to its end here.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// Its containers have done their work, or it was deleted.
    Finished,
    /// The API server had it as over before this kubelet saw it.
    WasOver,
    /// It was not let in: nothing of it ever ran here.
    Refused(Cause),
    /// The node was short of something. It gets a grace of `most` seconds at most.
    Evicted { cause: Cause, most: i64 },
    /// It was active for longer than it may.
    Late(Cause),
}

impl End {
    /// Why the node made it fail.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            End::Finished | End::WasOver => None,
            End::Refused(cause) | End::Evicted { cause, .. } | End::Late(cause) => Some(cause),
        }
    }
}

impl Life {
    pub fn end(&self) -> Option<&End> {
        match self {
            Life::Preparing { .. } | Life::Prepared(_) => None,
            Life::Ending(end) | Life::Settled(end) => Some(end),
        }
    }

    /// Why the node made the Pod fail.
    pub fn failure(&self) -> Option<&Cause> {
        self.end()?.cause()
    }

    /// The Pod's volumes, once they are mounted.
    pub fn volumes(&self) -> Option<&MountedVolumes> {
        if let Life::Prepared(volumes) = self { Some(volumes) } else { None }
    }

    pub fn is_prepared(&self) -> bool {
        self.volumes().is_some()
    }

    pub fn is_settled(&self) -> bool {
        matches!(self, Life::Settled(_))
    }

    pub fn is_evicted(&self) -> bool {
        self.most_grace().is_some()
    }

    /// The longest grace, in seconds, that the node leaves the Pod which it evicts.
    pub fn most_grace(&self) -> Option<i64> {
        if let Some(End::Evicted { most, .. }) = self.end() { Some(*most) } else { None }
    }

    pub fn is_refused(&self) -> bool {
        matches!(self.end(), Some(End::Refused(_)))
    }

    pub fn was_over(&self) -> bool {
        matches!(self.end(), Some(End::WasOver))
    }

    /// The node does not let the Pod in.
    pub fn refuse(&mut self, refusal: Refusal) {
        let message = format!("Pod was rejected: {}", refusal.message);
        *self = Life::Ending(End::Refused(Cause::new(refusal.reason, message)));
    }

    /// The node ends the Pod, unless it has come to its end already; whether it does.
    pub fn end_by(&mut self, end: End) -> bool {
        let lives = self.end().is_none();
        if lives {
            *self = Life::Ending(end);
        }
        lives
    }

    /// Nothing of the Pod runs, and nothing that was made for it is left.
    pub fn settle(&mut self) {
        *self = Life::Settled(self.end().cloned().unwrap_or(End::Finished));
    }
}

/// Why a container is to be ended and started anew.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KillReason {
    /// The message of the event.
    pub message: String,
    /// The probe's own grace, which counts instead of the Pod's.
    pub grace_seconds: Option<i64>,
    /// Something new that it is to start with, where it is ended for that.
    pub renewal: Option<Renewal>,
}

/// The new thing that a container is ended for, to start with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    Resources,
    Definition,
}

/// The knowledge about a container, whichever of its runs is the latest.
#[derive(Debug, Clone, Default)]
pub struct ContainerRecord {
    /// How long it pauses after its end.
    pub backoff: Option<Backoff>,
    /// The image and the resources with which it pauses.
    backoff_of: Option<(Option<String>, Option<ResourceRequirements>)>,
    /// Why it does not run.
    pub waiting: Option<Cause>,
    /// Its start is not tried before.
    pub retry_at: Option<Timestamp>,
    /// How often it had been restarted when its last run that the engine no longer has began, if there was one.
    pub restarts: Option<i32>,
    /// Its runs were removed for the Pod to begin anew, and it has not started since.
    pub is_anew: bool,
    /// The new thing that its last run was ended for: it starts with that at once, whatever its policy says of an end.
    pub renewal: Option<Renewal>,
}

impl ContainerRecord {
    /// With another image, or other resources, a container has not failed yet.
    pub fn forgive(&mut self, container: &Container) {
        let is_same = |of: &(Option<String>, Option<ResourceRequirements>)| {
            (&of.0, &of.1) == (&container.image, &container.resources)
        };
        if !self.backoff_of.as_ref().is_some_and(is_same) {
            self.backoff = None;
            self.backoff_of = Some((container.image.clone(), container.resources.clone()));
        }
    }
}

/// The knowledge about one run of a container.
#[derive(Debug, Clone, Default)]
pub struct RunRecord {
    /// Its startup probe has passed.
    pub started: bool,
    /// Its readiness probe passes.
    pub ready: bool,
    /// A probe or a hook has condemned it.
    pub condemned: Option<KillReason>,
    /// The termination message that it left, once that was read.
    pub message: Option<String>,
    /// The resources that the engine took last.
    pub applied: Option<Limits>,
    /// The memory that it requests, which no engine knows.
    pub memory_request: Option<Quantity>,
}

/// The state of the resize of a Pod that is under way.
#[derive(Debug, Clone, Default)]
pub struct Resize {
    /// The resize that has come to its end last, by the Pod's generation.
    pub completed: Option<i64>,
    /// Why it did not succeed at once.
    pub error: Option<String>,
    /// It is not tried again before.
    pub retry_at: Option<Timestamp>,
}

/// A few records by name: mostly a Pod has one container. A tree has room for eleven from the first one on, which is kilobytes.
#[derive(Debug, Clone)]
struct Few<T>(Vec<(String, T)>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Few(Vec::new())
    }
}

impl<T: Default> Few<T> {
    fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, record)| record)
    }

    /// The record of that name, a new one if there is none.
    fn get_mut(&mut self, name: &str) -> &mut T {
        let at = self.0.iter().position(|(of, _)| of == name).unwrap_or_else(|| {
            self.0.reserve_exact(1);
            self.0.push((name.to_owned(), T::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

#[derive(Debug, Clone)]
pub struct Memory {
    pub life: Life,
    /// Neither the Pod's folders nor its sandbox are tried before.
    pub retry_at: Option<Timestamp>,
    /// The limits of the Pod's cgroup, as far as they are known.
    pub cgroup: Option<PodLimits>,
    /// How the node keeps limits of processors.
    pub cfs: Cfs,
    pub resize: Resize,
    /// Images that could not be pulled, by reference.
    pub pulls: BTreeMap<String, Pull>,
    containers: Few<ContainerRecord>,
    runs: Few<RunRecord>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            life: Life::Preparing { failed_mounts: 0 },
            retry_at: None,
            cgroup: None,
            cfs: Cfs::default(),
            resize: Resize::default(),
            pulls: BTreeMap::new(),
            containers: Few::default(),
            runs: Few::default(),
        }
    }
}

static UNKNOWN: ContainerRecord = ContainerRecord {
    backoff: None,
    backoff_of: None,
    waiting: None,
    retry_at: None,
    restarts: None,
    is_anew: false,
    renewal: None,
};
static UNSEEN: RunRecord =
    RunRecord { started: false, ready: false, condemned: None, message: None, applied: None, memory_request: None };

impl Memory {
    /// For a Pod on a node that keeps limits of processors like this.
    pub fn on(cfs: Cfs) -> Memory {
        Memory { cfs, ..Memory::default() }
    }

    pub fn container(&self, name: &str) -> &ContainerRecord {
        self.containers.get(name).unwrap_or(&UNKNOWN)
    }

    pub fn container_mut(&mut self, name: &str) -> &mut ContainerRecord {
        self.containers.get_mut(name)
    }

    /// The record of a run, by its id in the engine.
    pub fn run(&self, id: &str) -> &RunRecord {
        self.runs.get(id).unwrap_or(&UNSEEN)
    }

    pub fn run_mut(&mut self, id: &str) -> &mut RunRecord {
        self.runs.get_mut(id)
    }

    pub fn retain_runs(&mut self, is_known: impl Fn(&str) -> bool) {
        self.runs.0.retain(|(id, _)| is_known(id));
    }

    /// When a container that ended may run again; `None` is at once.
    pub fn restart_due(&self, ran: Option<&ContainerRun>) -> Option<Timestamp> {
        let ran = ran.filter(|r| r.state == State::Exited)?;
        let record = self.container(&ran.name);
        record.backoff.filter(|_| record.renewal.is_none())?.due(ran.finished_at?)
    }

    /// When the image of a container may be tried again; then, or when its status is due to change, the worker looks again.
    pub fn pull_due(&self, image: &str, now: Timestamp) -> Option<Timestamp> {
        let pull = self.pulls.get(image).filter(|p| p.due() > now)?;
        let shown = pull.shown_as_waiting_at();
        Some(if shown > now { shown.min(pull.due()) } else { pull.due() })
    }
}
