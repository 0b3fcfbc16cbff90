//! Gives each container of this node its link in the folder where agents look, and takes it away again.
//! Upstream counterpart: pkg/kubelet/kuberuntime/kuberuntime_container.go, and kuberuntime_gc.go for links that lead nowhere.

use std::{
    ffi::OsStr,
    io::{self, ErrorKind},
    path::Path,
    sync::Arc,
    time::Duration,
};

use k8s_cri::v1::ContainerState;

use crate::{
    engine::{
        log_folders::Shared,
        log_links::{self, Links, name},
        logs,
    },
    kubelet::Kubelet,
    pod::desired::DesiredPod,
};

/// How often links are looked at that lead nowhere: as often as upstream clears up after containers.
const PERIOD: Duration = Duration::from_secs(60);

/// Makes the link to the log of a container that has started, where there are links and it has a log.
pub fn make(kubelet: &Kubelet, desired: &DesiredPod, container: &str, id: &str, log: &Path) -> io::Result<()> {
    let Some(shared) = kubelet.logs.current() else { return Ok(()) };
    match logs::open(&kubelet.logs, log) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => drop(opened?),
    }
    log_links::put(&shared.links, &name(desired.name(), desired.namespace(), container, id), log)
}

/// Removes the link to the log of a container that has been removed.
pub fn remove(kubelet: &Kubelet, desired: &DesiredPod, container: &str, id: &str) -> io::Result<()> {
    let name = name(desired.name(), desired.namespace(), container, id);
    kubelet.logs.shared.iter().try_for_each(|shared| {
        let is_it = |link: &str, target: &Path| link == name && target.starts_with(&shared.folder);
        log_links::remove(&shared.links, is_it)
    })
}

/// Removes links of this node that lead nowhere, now and then. Runs for ever.
pub async fn run(kubelet: Arc<Kubelet>) {
    loop {
        clock::sleep(PERIOD).await;
        for shared in &kubelet.logs.shared {
            if let Err(error) = sweep(&kubelet, shared).await {
                tracing::debug!(folder = %shared.folder.display(), %error, "links to logs cannot be looked at");
            }
        }
    }
}

/// Others' links, and those of containers that run, stay: the latter's log has no name for a moment while it is rotated.
async fn sweep(kubelet: &Kubelet, shared: &Shared) -> io::Result<()> {
    let Some(Links { folder, found }) = log_links::all(&shared.links)? else { return Ok(()) };
    for (name, target) in found {
        let pod = target.strip_prefix(&shared.folder).ok().and_then(|below| below.iter().next()?.to_str());
        let is_ours = pod.is_some_and(|pod| shared.has(pod));
        let leads_nowhere =
            || logs::open(&kubelet.logs, &target).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_ours && leads_nowhere() && has_ended(kubelet, &name).await {
            folder.remove(OsStr::new(&name))?;
        }
    }
    Ok(())
}

/// Whether the engine says that a link's container has ended, or does not know it.
async fn has_ended(kubelet: &Kubelet, name: &str) -> bool {
    let Some(id) = log_links::id_of(name) else { return true };
    match kubelet.config.runtime.container_status(id).await {
        Ok(status) => status.state() == ContainerState::ContainerExited,
        Err(error) => error.is_not_found(),
    }
}
