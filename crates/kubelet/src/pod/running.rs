//! A Pod as the engine has it.

use std::{collections::BTreeSet, net::IpAddr};

use api::features::Feature;
use clock::Timestamp;
use k8s_cri::v1::{ContainerFilter, ContainerState, PodSandboxFilter, PodSandboxState, PodSandboxStatus};
use k8s_openapi::api::core::v1::LinuxContainerUser;
use runtime::container::{ContainerStatus, signal_name};

use crate::{
    config::Config,
    pod::{
        desired::{CONTAINER_HASH, CONTAINER_NAME, POD_UID, RESTART_COUNT},
        spec::{quota::Cfs, resources::Limits},
    },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Created,
    Running,
    Exited,
}

/// One run of a container, as the engine has it.
#[derive(Debug, Clone)]
pub struct ContainerRun {
    pub id: String,
    pub name: String,
    pub sandbox: String,
    pub state: State,
    pub restarts: i32,
    pub hash: String,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub image: String,
    pub image_ref: String,
    pub log_path: String,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub created_at: i64,
    /// The limits of its resources, as far as the engine tells.
    pub limits: Option<Limits>,
    /// The user and the groups of its first process, as far as the engine tells.
    pub user: Option<LinuxContainerUser>,
    /// The name of the signal that ends it, as far as the engine tells.
    pub stop_signal: Option<String>,
    /// Where it sees mounts that are read-only with all that is mounted below them.
    pub read_only_below: BTreeSet<String>,
}

impl ContainerRun {
    /// Whether the engine says that it never began.
    pub fn is_given_up(&self) -> bool {
        self.state == State::Exited && self.reason == "StartError"
    }
}

#[derive(Debug, Clone)]
pub struct Sandbox {
    pub id: String,
    pub ready: bool,
    pub attempt: u32,
    pub ips: Vec<String>,
    pub created_at: i64,
}

/// Sandboxes and containers of one Pod, the newest first.
#[derive(Debug, Clone, Default)]
pub struct RunningPod {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<ContainerRun>,
}

impl RunningPod {
    /// The sandbox in which containers may run.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    pub fn latest(&self, name: &str) -> Option<&ContainerRun> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The newest container of that name in the sandbox that is ready.
    pub fn current(&self, name: &str) -> Option<&ContainerRun> {
        let sandbox = self.sandbox()?;
        self.containers.iter().find(|c| c.name == name && c.sandbox == sandbox.id)
    }

    pub fn alive(&self) -> impl Iterator<Item = &ContainerRun> {
        self.containers.iter().filter(|c| c.state == State::Running)
    }
}

fn time(nanos: i64) -> Option<Timestamp> {
    (nanos > 0).then(|| Timestamp::from_second(nanos / 1_000_000_000).ok()).flatten()
}

fn ran(status: ContainerStatus, sandbox: String, cfs: Cfs) -> ContainerRun {
    let label = |name: &str| status.labels.get(name).cloned().unwrap_or_default();
    let note = |name: &str| status.annotations.get(name).cloned().unwrap_or_default();
    ContainerRun {
        name: label(CONTAINER_NAME),
        sandbox,
        state: match status.state() {
            ContainerState::ContainerRunning => State::Running,
            ContainerState::ContainerCreated => State::Created,
            _ => State::Exited,
        },
        restarts: note(RESTART_COUNT).parse().unwrap_or(0),
        hash: note(CONTAINER_HASH),
        exit_code: status.exit_code,
        image: status.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        created_at: status.created_at,
        user: status.user.and_then(|user| user.linux).map(|user| LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: Some(user.supplemental_groups).filter(|groups| !groups.is_empty()),
        }),
        stop_signal: signal_name(status.stop_signal),
        read_only_below: status
            .mounts
            .into_iter()
            .filter(|m| m.recursive_read_only)
            .map(|m| m.container_path)
            .collect(),
        limits: status.resources.and_then(|r| r.linux).and_then(|linux| Limits::told(&linux, cfs)),
        id: status.id,
        reason: status.reason,
        message: status.message,
        image_ref: status.image_ref,
        log_path: status.log_path,
    }
}

fn sandbox(status: PodSandboxStatus, node: IpAddr) -> Sandbox {
    let ready = status.state() == PodSandboxState::SandboxReady;
    let network = status.network.unwrap_or_default();
    let more = network.additional_ips.into_iter().map(|ip| ip.ip);
    Sandbox {
        ready,
        ips: in_order(std::iter::once(network.ip).chain(more), node),
        attempt: status.metadata.map_or(0, |m| m.attempt),
        created_at: status.created_at,
        id: status.id,
    }
}

/// One address of each family, first that of the node's own: some networks give several, in an order of theirs.
/// Upstream counterpart: `sortPodIPs` in pkg/kubelet.
fn in_order(ips: impl Iterator<Item = String>, node: IpAddr) -> Vec<String> {
    let known = ips.filter_map(|ip| Some((api::rules::ip::parse(&ip)?.is_ipv4(), ip)));
    let (own, other): (Vec<_>, Vec<_>) = known.partition(|(is_v4, _)| *is_v4 == node.is_ipv4());
    [own, other].into_iter().filter_map(|family| Some(family.into_iter().next()?.1)).collect()
}

/// The question about a Pod that the engine has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Which sandboxes and containers there are: it knows nothing of any Pod.
    List,
    Sandbox,
    Container,
}

/// The parts of a Pod that there are cannot be known.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unseen {
    pub asked: Asked,
    pub error: runtime::Error,
}

impl From<runtime::Error> for Unseen {
    fn from(error: runtime::Error) -> Self {
        Unseen { asked: Asked::List, error }
    }
}

/// Asks the engine about one Pod.
pub async fn observe(config: &Config, uid: &str) -> Result<RunningPod, Unseen> {
    let engine = &*config.runtime;
    let labels = std::collections::HashMap::from([(POD_UID.to_owned(), uid.to_owned())]);
    let mut found = RunningPod::default();
    let tells_signals = config.features.enabled(Feature::ContainerStopSignals);
    let filter = PodSandboxFilter { label_selector: labels.clone(), ..Default::default() };
    for listed in engine.sandboxes(Some(filter)).await? {
        match engine.sandbox_status(&listed.id).await {
            Ok(status) => found.sandboxes.push(sandbox(status, config.node_ip)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(Unseen { asked: Asked::Sandbox, error }),
        }
    }
    for listed in engine.containers(Some(ContainerFilter { label_selector: labels, ..Default::default() })).await? {
        match engine.container_status(&listed.id).await {
            Ok(status) => {
                let one = ran(status, listed.pod_sandbox_id, config.settings.cfs);
                let stop_signal = one.stop_signal.filter(|_| tells_signals);
                found.containers.push(ContainerRun { stop_signal, ..one });
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(Unseen { asked: Asked::Container, error }),
        }
    }
    found.sandboxes.sort_by_key(|s| std::cmp::Reverse(s.created_at));
    found.containers.sort_by_key(|c| std::cmp::Reverse(c.created_at));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_is_of_the_nodes_family() {
        let check = |node: &str, ips: &[&str], expected: &[&str]| {
            let ips = ips.iter().map(|ip| (*ip).to_owned());
            assert_eq!(in_order(ips, node.parse().unwrap()), expected);
        };
        check("192.0.2.1", &["10.0.0.1", "fd00::1"], &["10.0.0.1", "fd00::1"]);
        check("2001:db8::1", &["10.0.0.1", "fd00::1"], &["fd00::1", "10.0.0.1"]);
        check("192.0.2.1", &["", "fd00::1", "fd00::2"], &["fd00::1"]);
    }
}
