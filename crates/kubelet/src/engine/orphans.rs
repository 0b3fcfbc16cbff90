//! Clears up what lies on the node of Pods that it no longer has: sandboxes, folders with their mounts, logs and cgroups. That
//! is done once every source has spoken after a start, and for each Pod when it has ended.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
    sync::Arc,
    time::Duration,
};

use files::Dir;
use k8s_cri::v1::{PodSandbox, PodSandboxFilter};
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::{
    counted::Figures,
    engine::log_folders::{self, names},
    kubelet::Kubelet,
    pod::desired::{DesiredPod, POD_NAME, POD_NAMESPACE, POD_UID},
    sources::Source,
    volumes,
};

/// The first and the longest pause before another try.
const RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// The pause before an engine that does not answer is asked again.
const ENGINE_RETRY: Duration = Duration::from_secs(1);
/// The grace, in seconds, of a Pod that nobody wants, whatever its own was. Upstream counterpart: SyncTerminatingRuntimePod in
/// pkg/kubelet.
const GRACE_SECONDS: i64 = 1;

/// Takes away what an older kubelet let others do with the folders of the Pods that are here.
pub fn narrow(config: &crate::config::Config) {
    for at in [config.root_dir.join("pods"), config.log_dir.clone()] {
        let Ok(folder) = Dir::open(&at) else { continue };
        for name in names(&at) {
            // An entry that is no folder is passed over: a Pod may have put a link there.
            let Ok(below) = folder.folder(Path::new(&name)) else { continue };
            if let Err(error) = below.narrow(files::modes::NODE_FOLDER) {
                tracing::warn!(folder = %at.join(&name).display(), %error, "a folder stays open to others");
            }
        }
    }
}

/// The Pods (by uid) of which this kubelet keeps something in a place of its own.
fn own_traces(kubelet: &Kubelet) -> impl Iterator<Item = String> + use<> {
    let folders = names(&kubelet.config.root_dir.join("pods"));
    let logs: Vec<_> = kubelet.logs.pods().filter_map(|name| log_folders::uid_of(&name).map(str::to_owned)).collect();
    folders.chain(logs).chain(kubelet.claims.pods())
}

/// The Pods that have something outside the engine. A cgroup may be that of another kubelet's Pod.
fn traces(kubelet: &Kubelet) -> impl Iterator<Item = String> + use<> {
    own_traces(kubelet).chain(kubelet.host.cgroups.pods())
}

/// The Pods that have left something outside the engine and have no worker.
pub fn left_behind(kubelet: &Kubelet) -> BTreeSet<String> {
    traces(kubelet).filter(|uid| !kubelet.pods.has(uid)).collect()
}

/// The Pod of a sandbox, as something that is to end; none if it has a worker.
fn ending(kubelet: &Kubelet, sandbox: PodSandbox) -> Option<DesiredPod> {
    let label = |name: &str| sandbox.labels.get(name).cloned();
    let uid = label(POD_UID).filter(|uid| !kubelet.pods.has(uid))?;
    let spec = PodSpec { termination_grace_period_seconds: Some(GRACE_SECONDS), ..Default::default() };
    let mut pod = Pod { spec: Some(spec), ..Default::default() };
    (pod.metadata.name, pod.metadata.namespace) = (Some(label(POD_NAME)?), Some(label(POD_NAMESPACE)?));
    pod.metadata.uid = Some(uid);
    let mut desired = DesiredPod::new(Arc::new(pod), true);
    (desired.removed, desired.runtime_only) = (true, true);
    Some(desired)
}

/// The Pods that have a sandbox and no worker, as something that is to end.
pub async fn still_running(kubelet: &Kubelet) -> Vec<DesiredPod> {
    let sandboxes = kubelet.config.runtime.sandboxes(None).await.unwrap_or_default();
    sandboxes.into_iter().filter_map(|sandbox| ending(kubelet, sandbox)).collect()
}

/// The Pods that an earlier kubelet has begun from older manifests of these static Pods (by full name), as something that is to
/// end. An engine that does not answer is waited for: without it nothing could begin, either.
pub async fn predecessors(kubelet: &Kubelet, statics: &BTreeMap<String, Arc<Pod>>) -> Vec<DesiredPod> {
    if statics.is_empty() {
        return Vec::new();
    }
    let sandboxes = loop {
        match kubelet.config.runtime.sandboxes(None).await {
            Ok(sandboxes) => break sandboxes,
            Err(error) => tracing::warn!(%error, "static Pods wait for the engine"),
        }
        clock::sleep(ENGINE_RETRY).await;
    };
    let of_manifests = sandboxes.into_iter().filter(|sandbox| {
        let source = sandbox.annotations.get(api::rules::pod::SOURCE_ANNOTATION);
        source.is_some_and(|source| [Source::Files.word(), Source::Web.word()].contains(&source.as_str()))
    });
    let precedes = |pod: &DesiredPod| {
        let now = statics.get(&pod.full_name()).and_then(|now| now.metadata.uid.as_deref());
        now.is_some_and(|uid| uid != pod.uid())
    };
    of_manifests.filter_map(|sandbox| ending(kubelet, sandbox)).filter(precedes).collect()
}

/// Removes the sandboxes of a Pod with what is in them; whether there were any.
async fn remove_sandboxes(kubelet: &Kubelet, uid: &str) -> runtime::Result<bool> {
    let engine = &kubelet.config.runtime;
    let label_selector = HashMap::from([(POD_UID.to_owned(), uid.to_owned())]);
    let sandboxes = engine.sandboxes(Some(PodSandboxFilter { label_selector, ..Default::default() })).await?;
    for sandbox in &sandboxes {
        engine.stop_sandbox(&sandbox.id).await?;
        engine.remove_sandbox(&sandbox.id).await?;
    }
    Ok(!sandboxes.is_empty())
}

/// The state of the volumes of a Pod that is cleared up after, as far as the figures tell of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Its worker was this kubelet's: the figures are about those that an earlier one left.
    ByWorker,
    ByEarlier,
    Failed,
    Cleaned,
}

impl Left {
    fn count(&mut self, figures: &Figures, cleaned: bool) {
        let (after, shifts) = match (*self, cleaned) {
            (Left::ByEarlier, true) => (Left::Cleaned, (1.0, 0.0)),
            (Left::ByEarlier, false) => (Left::Failed, (0.0, 1.0)),
            (Left::Failed, true) => (Left::Cleaned, (1.0, -1.0)),
            (same, _) => (same, (0.0, 0.0)),
        };
        *self = after;
        if shifts != (0.0, 0.0) {
            figures.orphans(shifts.0, shifts.1);
        }
    }
}

/// Removes all that is left of a Pod; whether nothing is left. Of a Pod that is not known to be this kubelet's own nothing is ended.
async fn remove(kubelet: &Kubelet, uid: &str, left: &mut Left, is_own: &mut bool) -> bool {
    let classes = [api::rules::pod::GUARANTEED, api::rules::pod::BURSTABLE, api::rules::pod::BEST_EFFORT];
    let cgroups = &kubelet.host.cgroups;
    let removed = remove_sandboxes(kubelet, uid).await;
    *is_own |= matches!(removed, Ok(true));
    if let Err(error) = &removed {
        tracing::warn!(uid, %error, "an orphaned sandbox stays");
    }
    if removed.is_ok() {
        kubelet.devices.release(uid).await;
        kubelet.affinity.release(uid).await;
        if let Err(error) = kubelet.claims.unprepare(uid).await {
            tracing::warn!(uid, error, "devices stay prepared for a Pod that has gone");
        }
    }
    if removed.is_ok() && *is_own {
        classes.iter().for_each(|qos| cgroups.end_pod(qos, uid));
    }
    let folder = kubelet.pod_folder(uid);
    let unmounted =
        volumes::unmount(&folder, &kubelet.host.mounter, (&kubelet.csi, &kubelet.remote), &kubelet.figures).await;
    left.count(&kubelet.figures, unmounted.is_ok());
    if let Err(error) = unmounted {
        tracing::warn!(folder = %folder.path().display(), %error, "an orphaned folder stays");
    } else if removed.is_ok() {
        kubelet.users.release(uid);
    }
    if removed.is_ok() {
        classes.iter().for_each(|qos| cgroups.remove(&cgroups.path(qos, uid)));
    }
    if let Err(error) = kubelet.logs.remove(uid) {
        tracing::warn!(uid, %error, "orphaned logs stay");
    }
    removed.is_ok() && !traces(kubelet).any(|other| other == uid)
}

/// Clears up after a Pod until nothing of it is left, or it is back.
pub async fn clear(kubelet: Arc<Kubelet>, uid: String, mut left: Left) {
    let mut is_own = left == Left::ByWorker || own_traces(&kubelet).any(|other| other == uid);
    let mut wait = RETRY.0;
    while !kubelet.pods.has(&uid) && !remove(&kubelet, &uid, &mut left, &mut is_own).await {
        clock::sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_that_were_left_are_counted_once() {
        let figures = Figures::default();
        let shown = |cleaned: usize, failed: usize| {
            let text = figures.render();
            for (name, count) in [("volumes", cleaned), ("volumes_errors", failed)] {
                let row = format!("kubelet_orphan_pod_cleaned_{name} {count}");
                assert!(text.lines().any(|line| line == row), "{row}\n{text}");
            }
        };
        let (mut one, mut other, mut own) = (Left::ByEarlier, Left::ByEarlier, Left::ByWorker);
        other.count(&figures, false);
        shown(0, 1);
        own.count(&figures, true);
        one.count(&figures, true);
        one.count(&figures, true);
        other.count(&figures, false);
        shown(1, 1);
        other.count(&figures, true);
        shown(2, 0);
    }
}
