//! Sets the node's resources aside: for new Pods, and for those that want other amounts than they have. A resize that does
//! not fit waits, and is tried again whenever anything changes on the node.
//! Upstream counterpart: pkg/kubelet/allocation.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::rules::pod::{self, GUARANTEED};
use client::{Cache, EventKind};
use clock::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::{
    kubelet::Kubelet,
    pod::{
        admit,
        allocation::Allocation,
        desired::{DesiredPod, Pending},
        resize_event,
        status::conditions::RESIZE_PENDING,
    },
    sources::admission,
};

/// A resize that waits is tried again after this time even when nothing is seen to change.
pub const RETRY: Duration = Duration::from_secs(180);

pub struct Allocations {
    kubelet: Arc<Kubelet>,
    /// By the Pods' uids.
    held: BTreeMap<String, Allocation>,
    /// The resources that they asked for last.
    asked: BTreeMap<String, Allocation>,
    /// The Pods that want other than they have.
    asking: BTreeSet<String>,
    /// Why they do not have it.
    pending: BTreeMap<String, Pending>,
}

impl Allocations {
    pub fn new(kubelet: Arc<Kubelet>) -> Self {
        let (held, asked) = (BTreeMap::new(), BTreeMap::new());
        Allocations { kubelet, held, asked, asking: BTreeSet::new(), pending: BTreeMap::new() }
    }

    /// Whether a resize waits.
    pub fn waits(&self) -> bool {
        !self.asking.is_empty()
    }

    /// A Pod that this kubelet sees for the first time, with what an earlier one has set aside for it.
    pub fn recall(&mut self, wanted: DesiredPod) -> DesiredPod {
        let held = Allocation::read(&self.kubelet.pod_folder(wanted.uid())).filter(|_| !wanted.is_static);
        self.held.extend(held.map(|held| (wanted.uid().to_owned(), held)));
        self.place(wanted)
    }

    /// Sets aside what a Pod that is let in asks for. Pods from files never ask for anything else.
    pub fn admit(&mut self, desired: &DesiredPod) {
        let allocation = Allocation::of(desired.spec(), desired.resized);
        let is_done = self.held.contains_key(desired.uid()) || pod::is_terminal(&desired.pod);
        if is_done || desired.is_static || desired.is_ending() || allocation.is_nothing() {
            return;
        }
        self.hold(desired, allocation);
    }

    /// Keeps an allocation, also for the next kubelet; whether that succeeded.
    fn hold(&mut self, desired: &DesiredPod, allocation: Allocation) -> bool {
        let written = allocation.write(&self.kubelet.pod_folder(desired.uid()));
        if let Err(error) = &written {
            tracing::warn!(pod = desired.full_name(), %error, "what is allocated to the Pod could not be written");
        }
        self.asked.entry(desired.uid().to_owned()).or_insert_with(|| allocation.clone());
        self.held.insert(desired.uid().to_owned(), allocation);
        written.is_ok()
    }

    /// The Pod as its worker is to see it: with what it has instead of what it wants.
    pub fn place(&mut self, wanted: DesiredPod) -> DesiredPod {
        let Some(held) = self.held.get(wanted.uid()) else { return wanted };
        let asked = Allocation::of(wanted.spec(), None);
        if let Some(before) = self.asked.get(wanted.uid()) {
            asked.changes(before).into_iter().for_each(|change| self.kubelet.figures.resize_requested(change));
        }
        self.asked.insert(wanted.uid().to_owned(), asked);
        if held.differs(wanted.spec()) && !wanted.is_ending() {
            self.asking.insert(wanted.uid().to_owned());
        } else {
            self.asking.remove(wanted.uid());
            self.pending.remove(wanted.uid());
        }
        let mut desired = wanted;
        desired.pending = self.pending.get(desired.uid()).cloned();
        (desired.pod, desired.resized) = (held.applied_to(&desired.pod), held.resized);
        desired
    }

    pub fn forget(&mut self, uid: &str) {
        self.held.remove(uid);
        self.asked.remove(uid);
        self.asking.remove(uid);
        self.pending.remove(uid);
    }

    /// Gives those that want other resources what they want, as far as it fits.
    pub fn resize(&mut self, cache: &Cache<Pod>) {
        if self.asking.is_empty() {
            return;
        }
        let asks = |pod: &Arc<Pod>| pod.metadata.uid.as_ref().is_some_and(|uid| self.asking.contains(uid));
        let mut asking: Vec<Arc<Pod>> = cache.list().into_iter().filter(asks).collect();
        asking.sort_by_key(|pod| self.turn(pod));
        for pod in asking {
            self.resize_one(DesiredPod::new(pod, false));
        }
    }

    /// Those that ask for no more come first; then the Pods of the highest priority, the Guaranteed ones, and those that have
    /// waited longest.
    fn turn(&self, pod: &Pod) -> impl Ord + use<> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let grows = |spec: &PodSpec| {
            let (wanted, held) = (pod::requests(spec), self.held.get(uid)?.applied_to(&Arc::new(pod.clone())));
            let held = pod::requests(held.spec.as_ref()?);
            Some(["cpu", "memory"].into_iter().any(|name| wanted.get(name) > held.get(name)))
        };
        let since = pod::condition(pod, RESIZE_PENDING).and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
        (
            pod.spec.as_ref().and_then(grows),
            Reverse(pod::priority(pod)),
            pod::qos(pod) != GUARANTEED,
            since.unwrap_or(Timestamp::MAX),
        )
    }

    fn resize_one(&mut self, wanted: DesiredPod) {
        let uid = wanted.uid().to_owned();
        let Some(worker) = self.kubelet.pods.get(&uid).filter(|worker| !(worker.is_refused || worker.is_over())) else {
            return;
        };
        let generation = wanted.pod.metadata.generation;
        match admission::resize(&self.kubelet, &wanted) {
            Ok(room) => {
                let before = self.held.get(&uid).cloned();
                if !self.hold(&wanted, Allocation::of(wanted.spec(), generation)) {
                    // An allocation that the next kubelet would not know of is not given.
                    self.held.extend(before.map(|before| (uid, before)));
                    return;
                }
                room.make(&self.kubelet);
                let message = resize_event::message("started", &wanted.pod, generation, None);
                self.kubelet.events.pod(&wanted, EventKind::Normal, "ResizeStarted", &message);
            }
            Err(pending) if self.pending.get(&uid) == Some(&pending) => return,
            Err(pending) => {
                let (reason, message) = (pending.reason, pending.message.as_str());
                let is_infeasible = reason == admit::INFEASIBLE;
                if is_infeasible {
                    self.kubelet.figures.resize_infeasible(pending.detail);
                }
                let event = if is_infeasible { "ResizeInfeasible" } else { "ResizeDeferred" };
                let text = resize_event::message(reason, &wanted.pod, generation, Some(message));
                self.kubelet.events.pod(&wanted, EventKind::Warning, event, &text);
                self.pending.insert(uid, pending);
            }
        }
        let desired = self.place(wanted);
        worker.update(desired);
    }
}
