//! What lies on the node of Pods that it no longer has: sandboxes, folders with their mounts, logs and cgroups. Looked through
//! once every source has spoken after a start, and by itself for each Pod that has ended.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::{
    kubelet::Node,
    pod::wanted::{POD_NAME, POD_NAMESPACE, POD_UID, Wanted},
    volumes,
};

/// The first and the longest pause before another try.
const RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned())
}

/// The Pod whose logs are in a folder of that name: `namespace_name_uid`.
fn uid_of_logs(folder: &str) -> Option<&str> {
    let mut parts = folder.splitn(3, '_');
    parts.nth(2).filter(|uid| !uid.is_empty())
}

/// Takes away what an older kubelet let others do with the folders of the Pods that are here.
pub fn narrow(config: &crate::config::Config) {
    for folder in [config.root_dir.join("pods"), config.log_dir.clone()] {
        for name in names(&folder) {
            if let Err(error) = files::modes::narrow(&folder.join(&name), files::modes::NODE_FOLDER) {
                tracing::warn!(folder = %folder.join(&name).display(), %error, "a folder stays open to others");
            }
        }
    }
}

fn logs_of(node: &Node, uid: &str) -> Vec<PathBuf> {
    let folder = &node.config.log_dir;
    names(folder).filter(|name| uid_of_logs(name) == Some(uid)).map(|name| folder.join(name)).collect()
}

/// The Pods that have left something outside the engine and are not known.
pub fn left_behind(node: &Node, known: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let folders = names(&node.config.root_dir.join("pods"));
    let logs = names(&node.config.log_dir).filter_map(|name| uid_of_logs(&name).map(str::to_owned));
    folders.chain(logs).chain(node.cgroups.pods()).filter(|uid| !known(uid)).collect()
}

/// The Pods that have a sandbox and are not known, as something that is to end.
pub async fn still_running(node: &Node, known: impl Fn(&str) -> bool) -> Vec<Wanted> {
    let sandboxes = node.config.runtime.sandboxes(None).await.unwrap_or_default();
    let pod = |sandbox: k8s_cri::v1::PodSandbox| {
        let label = |name: &str| sandbox.labels.get(name).cloned();
        let uid = label(POD_UID).filter(|uid| !known(uid))?;
        let mut pod = Pod { spec: Some(PodSpec::default()), ..Default::default() };
        (pod.metadata.name, pod.metadata.namespace) = (Some(label(POD_NAME)?), Some(label(POD_NAMESPACE)?));
        pod.metadata.uid = Some(uid);
        let mut wanted = Wanted::new(Arc::new(pod), true);
        wanted.removed = true;
        Some(wanted)
    };
    sandboxes.into_iter().filter_map(pod).collect()
}

/// Removes all of a Pod that is outside the engine; whether nothing is left.
async fn remove(node: &Node, uid: &str) -> bool {
    let folder = volumes::PodFolder::new(&node.config.root_dir, uid);
    if let Err(error) = volumes::unmount(&folder).await {
        tracing::warn!(folder = %folder.path().display(), %error, "an orphaned folder stays");
    }
    for qos in [api::rules::pod::GUARANTEED, api::rules::pod::BURSTABLE, api::rules::pod::BEST_EFFORT] {
        node.cgroups.remove(&node.cgroups.path(qos, uid));
    }
    for logs in logs_of(node, uid) {
        if let Err(error) = files::remove(&logs) {
            tracing::warn!(folder = %logs.display(), %error, "orphaned logs stay");
        }
    }
    left_behind(node, |other| other != uid).is_empty()
}

/// Clears up after a Pod until nothing of it is left, or it is back.
pub async fn clear(node: Arc<Node>, uid: String) {
    let mut wait = RETRY.0;
    while !node.pods.lock().contains_key(&uid) && !remove(&node, &uid).await {
        clock::sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_folders_name_their_pod() {
        for (folder, expected) in [
            ("default_web-1_0b5e-77", Some("0b5e-77")),
            ("kube-system_dns_u_v", Some("u_v")),
            ("default_web", None),
            ("lost+found", None),
        ] {
            assert_eq!(uid_of_logs(folder), expected, "{folder}");
        }
    }
}
