//! Whether a new Pod is let in: what the node knows of itself and of its other Pods, for the pure rules to judge.

use std::{collections::BTreeMap, sync::Arc};

use api::rules::pod::Resources;
use client::Api;
use client::Key;
use k8s_openapi::{
    api::core::v1::{Node, Pod, PodStatus},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    engine::handler,
    kubelet::Kubelet,
    node::{capacity, declared},
    pod::{
        admit::{self, NodeFacts, Refusal, Shortage},
        desired::{DesiredPod, Pending},
        preempt::{self, Candidate},
        spec::hardening,
        workers::Handle,
    },
    shutdown::follow,
};

/// Room that is made for a critical Pod.
#[derive(Default)]
pub struct Room {
    /// The Pods that go for it.
    pub victims: Vec<Handle>,
    /// The resource that was found short first.
    pub resource: String,
}

impl Room {
    /// Tells the Pods to go.
    pub fn make(&self, kubelet: &Kubelet) {
        for victim in &self.victims {
            victim.preempt();
            kubelet.pods.count_preemption(&self.resource);
        }
    }
}

/// The room that has to be made for a new Pod, or why it is not let in. One that has begun here, or is over, is not asked
/// again.
pub async fn judge(kubelet: &Kubelet, desired: &DesiredPod) -> Result<Room, Refusal> {
    if desired.has_begun() || desired.is_ending() || api::rules::pod::is_terminal(&desired.pod) {
        return Ok(Room::default());
    }
    let mut verdict = admit(kubelet, desired, None);
    if verdict.as_ref().is_err_and(Refusal::depends_on_node) {
        // The label or taint may have changed a moment ago.
        let api: Api<Node> = Api::all(kubelet.config.client.clone());
        let fresh = api.find(&kubelet.config.node_name).await.ok().flatten();
        verdict = admit(kubelet, desired, fresh.as_ref());
    }
    let short = verdict?;
    if admit::wants_strict_groups(desired.spec()) && !keeps_groups(kubelet).await {
        return Err(Refusal::no_strict_groups());
    }
    room(kubelet, desired, &short)
}

/// Whether the engine can leave a container without the groups of its image: by its own word, or, while it says nothing, by what the
/// Node object has of it.
async fn keeps_groups(kubelet: &Kubelet) -> bool {
    let told = || {
        let node = kubelet.node.get(&Key::new("", &kubelet.config.node_name))?;
        node.status.as_ref()?.features.as_ref()?.supplemental_groups_policy
    };
    handler::keeps_groups(kubelet).await.unwrap_or_else(|_| told().unwrap_or(false))
}

/// The Pods that go for what is short.
fn room(kubelet: &Kubelet, desired: &DesiredPod, short: &[Shortage]) -> Result<Room, Refusal> {
    let Some(first) = short.first() else { return Ok(Room::default()) };
    let others = others(kubelet, desired.uid()).into_iter().map(|pod| pod.desired());
    let candidates: Vec<Candidate> =
        others.filter(|other| preempt::may_go(desired, other)).map(|other| Candidate::new(&other)).collect();
    let victims = preempt::victims(short, &candidates)?;
    let victims = victims.into_iter().filter_map(|victim| kubelet.pods.get(&victim.uid)).collect();
    Ok(Room { victims, resource: first.resource.clone() })
}

/// The Pods that have their part of the node.
fn others(kubelet: &Kubelet, uid: &str) -> Vec<Handle> {
    let takes = |pod: &Handle| {
        let other = pod.desired();
        !(other.removed || api::rules::pod::is_terminal(&other.pod) || other.uid() == uid)
    };
    let has_left = |pod: &Handle| pod.is_refused || pod.is_over() || pod.is_preempted();
    kubelet.pods.all().into_iter().filter(|pod| !has_left(pod) && takes(pod)).collect()
}

/// A Pod with all that it may still have while it is resized. Its status tells what it has, until the kernel has taken it.
fn at_most(pod: &Handle) -> Arc<Pod> {
    let desired = pod.desired();
    if desired.resized.is_none() {
        return desired.pod;
    }
    // The outcome of its latest wish is in the spec already.
    let status = PodStatus { conditions: None, ..PodStatus::clone(&pod.status()) };
    let mut pod = Pod { status: Some(status), ..Pod::clone(&desired.pod) };
    if let Some(spec) = api::rules::pod::resizing(&pod) {
        pod.spec = Some(spec);
    }
    Arc::new(pod)
}

/// The amounts that Pods may have of the node, without devices: whether there are some left is asked when they are
/// given.
fn allocatable(kubelet: &Kubelet, node: Option<&Node>) -> Resources {
    let mut all = amounts(capacity::allocatable(&kubelet.config, &kubelet.host.machine, node));
    all.retain(|name, _| !kubelet.devices.knows(name));
    all
}

fn amounts(list: BTreeMap<String, Quantity>) -> Resources {
    list.into_iter().map(|(name, amount)| (name, api::rules::quantity::parse(&amount))).collect()
}

/// Why a Guaranteed Pod keeps what it has, in a word and a sentence: processors and memory for itself are given once.
fn fixed(kubelet: &Kubelet, wanted: &DesiredPod) -> Option<(&'static str, String)> {
    let held = kubelet.pods.get(wanted.uid())?.desired();
    let of = |desired: &DesiredPod, name: &str| -> Vec<_> {
        let containers = desired.init_containers().iter().chain(&desired.spec().containers);
        let whole = desired.spec().resources.clone().unwrap_or_default();
        let resources = containers.map(|container| container.resources.clone().unwrap_or_default()).chain([whole]);
        let amount = |list: Option<BTreeMap<String, Quantity>>| list?.get(name).map(api::rules::quantity::parse);
        resources.map(|all| (amount(all.requests), amount(all.limits))).collect()
    };
    let changes = |name: &str| of(&held, name) != of(wanted, name);
    let is_guaranteed = api::rules::pod::qos(&wanted.pod) == api::rules::pod::GUARANTEED;
    is_guaranteed.then(|| kubelet.affinity.refuses_resize(changes)).flatten()
}

/// Whether a Pod that is here may have the resources that it wants.
pub fn resize(kubelet: &Kubelet, wanted: &DesiredPod) -> Result<Room, Pending> {
    let generation = wanted.pod.metadata.generation;
    if let Some((detail, message)) = fixed(kubelet, wanted) {
        return Err(Pending { reason: admit::INFEASIBLE, detail, message, generation });
    }
    let (config, machine) = (&kubelet.config, &kubelet.host.machine);
    let others: Vec<_> = others(kubelet, wanted.uid()).iter().map(at_most).collect();
    let others: Vec<&Pod> = others.iter().map(|other| &**other).collect();
    let capacity = amounts(capacity::capacity(config, machine));
    let node = kubelet.node.get(&Key::new("", &config.node_name));
    let allocatable = allocatable(kubelet, node.as_deref());
    let verdict = admit::resize(&wanted.pod, &capacity, &allocatable, &others);
    let verdict =
        verdict.and_then(|short| room(kubelet, wanted, &short).map_err(|refusal| (admit::DEFERRED, refusal.message)));
    let detail = "insufficient_node_allocatable";
    verdict.map_err(|(reason, message)| Pending { reason, detail, message, generation })
}

/// Whether a new Pod is let in beside those that are here. Without a Node object at hand (`fresh`, or the one that is
/// followed) only what this node knows of itself counts.
fn admit(kubelet: &Kubelet, desired: &DesiredPod, fresh: Option<&Node>) -> Result<Vec<Shortage>, Refusal> {
    let (config, host) = (&kubelet.config, &kubelet.host);
    follow::admit(kubelet)?;
    kubelet.pressures.borrow().admit(&desired.pod, desired.is_static)?;
    config.sysctls.admit(desired.spec())?;
    hardening::admit_modules(desired, host.modules, config.selinux_labels)?;
    let held = kubelet.node.get(&Key::new("", &config.node_name));
    let object = fresh.or(held.as_deref());
    let labels = capacity::labels_of(object, config);
    let taints = object.and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default();
    let allocatable = allocatable(kubelet, object);
    let others: Vec<_> = others(kubelet, desired.uid()).iter().map(at_most).collect();
    let others: Vec<&Pod> = others.iter().map(|other| &**other).collect();
    let node = NodeFacts {
        name: &config.node_name,
        labels: &labels,
        taints: &taints,
        allocatable: &allocatable,
        others: &others,
    };
    let short = admit::admit(&desired.pod, desired.is_static, &node)?;
    declared::admit(&config.features, config.settings.managers.cpus, desired.spec()).map(|()| short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture;
    use runtime::fake::Fake;

    #[tokio::test]
    async fn what_this_node_cannot_do_is_not_let_in() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = fixture::kubelet(folder.path(), Fake::default(), |_, _| None);
        let reason = |spec: &str| {
            let refused = admit(&kubelet, &fixture::pod(spec), None);
            refused.err().map(|refusal| refusal.reason).unwrap_or_default()
        };
        let sysctl = |name: &str| {
            format!(r#"{{"containers": [], "securityContext": {{"sysctls": [{{"name": "{name}", "value": "1"}}]}}}}"#)
        };
        assert_eq!(reason(&sysctl("net.ipv4.tcp_syncookies")), "");
        assert_eq!(reason(&sysctl("net.core.somaxconn")), "SysctlForbidden");
        let armor =
            r#"{"containers": [{"name": "c", "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}]}"#;
        assert_eq!(reason(armor), if kubelet.host.modules.apparmor { "" } else { "AppArmor" });
    }

    #[tokio::test]
    async fn groups_that_a_pod_does_not_want_are_kept_away_by_the_engine_or_it_is_not_let_in() {
        let (folder, engine) = (tempfile::tempdir().unwrap(), Fake::default());
        let kubelet = fixture::kubelet(folder.path(), engine.clone(), |_, _| None);
        let reason = async |policy: &str| {
            let spec =
                format!(r#"{{"containers": [], "securityContext": {{"supplementalGroupsPolicy": "{policy}"}}}}"#);
            let refused = judge(&kubelet, &fixture::pod(&spec)).await.err();
            refused.map(|refusal| format!("{}: {}", refusal.reason, refusal.message)).unwrap_or_default()
        };
        assert_eq!(reason("Merge").await, "");
        let words =
            "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node";
        assert_eq!(reason("Strict").await, words);
        engine.keep_groups();
        assert_eq!(reason("Strict").await, "");
    }
}
