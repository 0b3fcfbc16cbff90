//! The Pods of this node, each by the channels of the worker that owns it.
//!
//! The dispatcher alone adds and forgets Pods. Everybody else looks at them, wakes their workers, or asks for an eviction.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::pod::{desired::DesiredPod, preempt, status};

/// How much longer than its grace a Pod may take to leave.
const LEEWAY: Duration = Duration::from_secs(10);

/// Why the node evicts a Pod, and the longest grace, in seconds, that it leaves it.
#[derive(Debug, Clone)]
pub struct Eviction {
    pub reason: &'static str,
    pub message: String,
    pub most: i64,
    /// An event about the Pod says so too.
    pub is_told: bool,
}

/// The reason of a Pod that ends with its machine, and the message of its status.
const TERMINATED: &str = "Terminated";
const MACHINE_ENDS: &str = "Pod was terminated in response to imminent node shutdown.";

/// How others speak to a Pod's worker, and what they may know of the Pod.
#[derive(Clone)]
pub struct Handle {
    desired: watch::Sender<DesiredPod>,
    mirror: watch::Sender<Option<Arc<Pod>>>,
    eviction: watch::Sender<Option<Eviction>>,
    wake: Arc<Notify>,
    doubt: Arc<Notify>,
    status: watch::Receiver<Arc<PodStatus>>,
    settled: watch::Receiver<bool>,
    /// The Pod was not let in: it takes nothing of the node.
    pub is_refused: bool,
}

/// The worker's ends of the channels.
pub struct Inbox {
    pub desired: watch::Receiver<DesiredPod>,
    /// The mirror Pod under which a static Pod is reported.
    pub mirror: watch::Receiver<Option<Arc<Pod>>>,
    /// Why the node evicts the Pod.
    pub eviction: watch::Receiver<Option<Eviction>>,
    /// The engine may have something new.
    pub wake: Arc<Notify>,
    /// The API may show another status than the kubelet's.
    pub doubt: Arc<Notify>,
    /// The status as it is reported, or about to be.
    pub status: watch::Sender<Arc<PodStatus>>,
    /// Nothing that was made for the Pod is left.
    pub settled: watch::Sender<bool>,
}

/// The two sides of a Pod that begins with the status that the API server has of it.
pub fn channels(desired: DesiredPod, is_refused: bool) -> (Handle, Inbox) {
    let (status_tx, status) = watch::channel(Arc::new(desired.pod.status.clone().unwrap_or_default()));
    let (desired, desired_rx) = watch::channel(desired);
    let (mirror, mirror_rx) = watch::channel(None);
    let (eviction, eviction_rx) = watch::channel(None);
    let (settled_tx, settled) = watch::channel(false);
    let (wake, doubt) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let inbox = Inbox {
        desired: desired_rx,
        mirror: mirror_rx,
        eviction: eviction_rx,
        wake: wake.clone(),
        doubt: doubt.clone(),
        status: status_tx,
        settled: settled_tx,
    };
    (Handle { desired, mirror, eviction, wake, doubt, status, settled, is_refused }, inbox)
}

fn has_left(status: &PodStatus) -> bool {
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    status::is_over(status) && !all.any(|c| c.state.as_ref().is_some_and(|state| state.running.is_some()))
}

impl Handle {
    pub fn desired(&self) -> DesiredPod {
        self.desired.borrow().clone()
    }

    pub fn status(&self) -> Arc<PodStatus> {
        self.status.borrow().clone()
    }

    /// Whether this uid is the Pod's own, or its mirror's.
    pub fn has_uid(&self, uid: &str) -> bool {
        let is_mirror =
            || self.mirror.borrow().as_ref().is_some_and(|mirror| mirror.metadata.uid.as_deref() == Some(uid));
        self.desired.borrow().uid() == uid || is_mirror()
    }

    /// All work of the Pod is done, or has failed.
    pub fn is_over(&self) -> bool {
        status::is_over(&self.status.borrow())
    }

    /// How far the worker is with it, in upstream's words.
    pub fn lifecycle(&self) -> &'static str {
        let is_sent_away = || self.eviction.borrow().is_some();
        match self.is_settled() || self.has_left() {
            true => "terminated",
            false if self.is_over() || self.desired.borrow().is_ending() || is_sent_away() => "terminating",
            false => "sync",
        }
    }

    /// Takes in the newest object. The worker is told when there is something in it for the worker to do. A Pod that was
    /// removed stays so: one of the same uid begins when this one has gone.
    pub fn update(&self, mut fresh: DesiredPod) -> bool {
        self.compare(&fresh.pod);
        self.desired.send_if_modified(|held| {
            let concerns_worker = fresh.concerns_worker(held);
            fresh.removed |= held.removed;
            *held = fresh;
            concerns_worker
        })
    }

    /// Most of what differs is about to be written, or was when this was; whoever writes looks again.
    fn compare(&self, pod: &Pod) {
        if pod.status.as_ref().is_some_and(|shown| !status::is_shown(shown, &self.status.borrow())) {
            self.doubt.notify_one();
        }
    }

    /// The source no longer has the Pod.
    pub fn remove(&self) {
        self.desired.send_if_modified(|held| !std::mem::replace(&mut held.removed, true));
    }

    pub fn set_mirror(&self, mirror: &Arc<Pod>) {
        self.compare(mirror);
        self.mirror.send_if_modified(|held| {
            let is_other = held.as_ref().map(|h| &h.metadata.uid) != Some(&mirror.metadata.uid);
            *held = Some(mirror.clone());
            is_other
        });
    }

    /// The node wants the Pod to go, with a grace of at most `most` seconds.
    pub fn evict(&self, message: String, most: i64) {
        self.send_away(Eviction { reason: "Evicted", message, most, is_told: true });
    }

    /// The machine is about to end, and leaves the Pod at most that many seconds.
    pub fn shut_down(&self, most: i64) {
        self.send_away(Eviction { reason: TERMINATED, message: MACHINE_ENDS.to_owned(), most, is_told: false });
    }

    fn send_away(&self, eviction: Eviction) {
        self.eviction.send_replace(Some(eviction));
        self.wake();
    }

    /// The Pod has to make room for a critical one, with all the grace that it has.
    pub fn preempt(&self) {
        let message = preempt::MESSAGE.to_owned();
        self.send_away(Eviction { reason: preempt::PREEMPTING, message, most: i64::MAX, is_told: true });
    }

    /// The Pod makes room for a critical one: what it has is no longer its own.
    pub fn is_preempted(&self) -> bool {
        self.eviction.borrow().as_ref().is_some_and(|eviction| eviction.reason == preempt::PREEMPTING)
    }

    /// The Pod is over, and none of its containers runs.
    pub fn has_left(&self) -> bool {
        has_left(&self.status.borrow())
    }

    /// Waits until the Pod is over and none of its containers runs, as long as its grace allows for it.
    pub async fn left(mut self) {
        let grace = self.desired().grace_seconds().unsigned_abs();
        // A worker that has come to its end has left, too.
        let _ =
            clock::timeout(LEEWAY + Duration::from_secs(grace), self.status.wait_for(|status| has_left(status))).await;
    }

    /// Nothing that was made for the Pod is left, its volumes neither.
    pub fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }

    /// Waits until that is so.
    pub async fn settled(mut self) {
        // A worker that has come to its end has settled its Pod.
        let _ = self.settled.wait_for(|settled| *settled).await;
    }

    pub fn wake(&self) {
        self.wake.notify_one();
    }
}

/// The Pods that have a worker, by uid.
#[derive(Default)]
pub struct PodWorkers {
    pods: Mutex<BTreeMap<String, Handle>>,
    /// How many Pods had to go for critical ones, by what those lacked.
    preemptions: Mutex<BTreeMap<String, u64>>,
    /// How many mirrors of static Pods the API server has.
    mirrors: AtomicUsize,
}

impl PodWorkers {
    pub fn insert(&self, uid: &str, handle: Handle) {
        self.pods.lock().insert(uid.to_owned(), handle);
    }

    /// The Pod as it was known last.
    pub fn forget(&self, uid: &str) -> Option<Handle> {
        self.pods.lock().remove(uid)
    }

    pub fn get(&self, uid: &str) -> Option<Handle> {
        self.pods.lock().get(uid).cloned()
    }

    /// The Pod that now has this name. Beside it there may be one that had the name before and is still ending: nobody who asks
    /// by name means that one.
    pub fn named(&self, namespace: &str, name: &str) -> Option<Handle> {
        let is_meant = |handle: &Handle| {
            let desired = handle.desired.borrow();
            !desired.removed && desired.namespace() == namespace && desired.name() == name
        };
        self.pods.lock().values().find(|handle| is_meant(handle)).cloned()
    }

    /// In the order of their uids.
    pub fn all(&self) -> Vec<Handle> {
        self.pods.lock().values().cloned().collect()
    }

    pub fn has(&self, uid: &str) -> bool {
        self.pods.lock().contains_key(uid)
    }

    /// A Pod goes for a critical one that lacked this resource.
    pub fn count_preemption(&self, resource: &str) {
        *self.preemptions.lock().entry(resource.to_owned()).or_default() += 1;
    }

    pub fn preemptions(&self) -> BTreeMap<String, u64> {
        self.preemptions.lock().clone()
    }

    pub fn set_mirrors(&self, count: usize) {
        self.mirrors.store(count, Ordering::Relaxed);
    }

    pub fn mirrors(&self) -> usize {
        self.mirrors.load(Ordering::Relaxed)
    }

    pub fn len(&self) -> usize {
        self.pods.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.lock().is_empty()
    }

    pub fn wake(&self, uid: &str) {
        if let Some(handle) = self.pods.lock().get(uid) {
            handle.wake();
        }
    }

    pub fn wake_all(&self) {
        self.pods.lock().values().for_each(Handle::wake);
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::pod::fixture::pod_of;

    #[test]
    fn a_name_means_the_pod_that_has_it_now() {
        let workers = PodWorkers::default();
        let begin = |uid: &str| {
            let (handle, _) = channels(pod_of(json!({"metadata": {"uid": uid}, "spec": {"containers": []}})), false);
            workers.insert(uid, handle);
        };
        let named = |workers: &PodWorkers| workers.named("d", "p").map(|handle| handle.desired().uid().to_owned());
        begin("b");
        assert_eq!(named(&workers).as_deref(), Some("b"));
        workers.get("b").unwrap().remove();
        assert_eq!(named(&workers), None, "it only ends");
        // Whichever uid comes first.
        for uid in ["a", "c"] {
            begin(uid);
            assert_eq!(named(&workers).as_deref(), Some(uid));
            workers.forget(uid);
        }
        assert!(workers.named("other", "p").is_none() && workers.named("d", "q").is_none());
    }
}
