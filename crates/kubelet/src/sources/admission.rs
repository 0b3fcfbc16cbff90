//! Whether a new Pod is let in: what the node knows of itself and of its other Pods, for the pure rules to judge.

use std::{collections::BTreeMap, sync::Arc};

use api::rules::pod::Resources;
use client::Api;
use client::Key;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    kubelet::Kubelet,
    node::{capacity, declared},
    pod::{
        admit::{self, NodeFacts, Refusal},
        desired::{DesiredPod, Pending},
        spec::hardening,
        status::conditions::RESIZE_IN_PROGRESS,
        workers::Handle,
    },
};

/// Why a new Pod is not let in. One that has begun here, or is over, is not asked again.
pub async fn refusal(kubelet: &Kubelet, desired: &DesiredPod) -> Option<Refusal> {
    let begun = desired.pod.status.as_ref().is_some_and(|s| s.start_time.is_some());
    if begun || desired.is_ending() || api::rules::pod::is_terminal(&desired.pod) {
        return None;
    }
    let first = admit(kubelet, desired, None).err()?;
    if !first.depends_on_node() {
        return Some(first);
    }
    // The label or taint may have changed a moment ago.
    let api: Api<Node> = Api::all(kubelet.config.client.clone());
    let fresh = api.find(&kubelet.config.node_name).await.ok().flatten();
    admit(kubelet, desired, fresh.as_ref()).err()
}

/// The Pods that have their part of the node: each with all that it may still have while it is resized.
fn others(kubelet: &Kubelet, uid: &str) -> Vec<Arc<Pod>> {
    let takes = |pod: &Handle| {
        let other = pod.desired();
        let is_gone = other.removed || api::rules::pod::is_terminal(&other.pod) || other.uid() == uid;
        (!is_gone).then(|| at_most(&other, pod))
    };
    kubelet.pods.all().iter().filter(|pod| !(pod.is_refused || pod.is_over())).filter_map(takes).collect()
}

fn at_most(desired: &DesiredPod, pod: &Handle) -> Arc<Pod> {
    let status = pod.status();
    let is_resized = status.conditions.iter().flatten().any(|c| c.type_ == RESIZE_IN_PROGRESS);
    if !is_resized {
        return desired.pod.clone();
    }
    let mut pod = Pod { status: Some(status), ..Pod::clone(&desired.pod) };
    if let Some(spec) = api::rules::pod::resizing(&pod) {
        pod.spec = Some(spec);
    }
    Arc::new(pod)
}

fn amounts(list: BTreeMap<String, Quantity>) -> Resources {
    list.into_iter().map(|(name, amount)| (name, api::rules::quantity::parse(&amount))).collect()
}

/// Whether a Pod that is here may have the resources that it wants.
pub fn resize(kubelet: &Kubelet, wanted: &DesiredPod) -> Result<(), Pending> {
    let (config, machine) = (&kubelet.config, &kubelet.host.machine);
    let others = others(kubelet, wanted.uid());
    let others: Vec<&Pod> = others.iter().map(|other| &**other).collect();
    let capacity = amounts(capacity::capacity(config, machine));
    let allocatable = amounts(capacity::allocatable(config, machine));
    let refused = admit::resize(wanted.spec(), &capacity, &allocatable, &others);
    refused.map_err(|(reason, message)| Pending { reason, message, generation: wanted.pod.metadata.generation })
}

/// Whether a new Pod is let in beside those that are here. Without a Node object at hand (`fresh`, or the one that is
/// followed) only what this node knows of itself counts.
fn admit(kubelet: &Kubelet, desired: &DesiredPod, fresh: Option<&Node>) -> Result<(), Refusal> {
    let (config, host) = (&kubelet.config, &kubelet.host);
    kubelet.pressures.borrow().admit(&desired.pod, desired.is_static)?;
    config.sysctls.admit(desired.spec())?;
    hardening::admit_modules(desired, host.modules, config.selinux_labels)?;
    let held = kubelet.node.get(&Key::new("", &config.node_name));
    let object = fresh.or(held.as_deref());
    let labels = capacity::labels_of(object, config);
    let taints = object.and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default();
    let allocatable = amounts(capacity::allocatable(config, &host.machine));
    let others = others(kubelet, desired.uid());
    let others: Vec<&Pod> = others.iter().map(|other| &**other).collect();
    let node = NodeFacts {
        name: &config.node_name,
        labels: &labels,
        taints: &taints,
        allocatable: &allocatable,
        others: &others,
    };
    admit::admit(&desired.pod, desired.is_static, &node)?;
    declared::admit(&config.features, desired.spec())
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
        assert_eq!(reason(r#"{"containers": [], "securityContext": {"supplementalGroupsPolicy": "Merge"}}"#), "");
        let strict = r#"{"containers": [], "securityContext": {"supplementalGroupsPolicy": "Strict"}}"#;
        assert_eq!(reason(strict), "SupplementalGroupsPolicyNotSupported");
        let armor =
            r#"{"containers": [{"name": "c", "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}]}"#;
        assert_eq!(reason(armor), if kubelet.host.modules.apparmor { "" } else { "AppArmor" });
    }
}
