//! Pods that take more of the node's disk than they may: of an emptyDir, of a container's own layer and log, or of all together.
//! Upstream counterpart: localStorageEviction of pkg/kubelet/eviction.

use std::collections::BTreeMap;

use api::rules::{pod, quantity::parse};
use k8s_openapi::api::core::v1::{Container, PodSpec};

const RESOURCE: &str = "ephemeral-storage";

/// The bytes that a Pod takes.
#[derive(Debug, Default, PartialEq)]
pub struct Taken {
    /// By the volume's name; those in memory count too, each against its own limit.
    pub volumes: BTreeMap<String, i64>,
    /// By the container's name: its layer and its log.
    pub containers: BTreeMap<String, i64>,
}

fn limit(container: &Container) -> Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> {
    container.resources.as_ref()?.limits.as_ref()?.get(RESOURCE)
}

/// Whether anything of the Pod is limited: of others nothing has to be measured.
pub fn is_limited(spec: &PodSpec) -> bool {
    let has_size =
        |v: &k8s_openapi::api::core::v1::Volume| v.empty_dir.as_ref().is_some_and(|e| e.size_limit.is_some());
    spec.volumes.iter().flatten().any(has_size) || spec.containers.iter().any(|c| limit(c).is_some())
}

/// Volumes whose files lie on the node's own disk.
fn is_local(spec: &PodSpec, name: &str) -> bool {
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == name);
    let empty = volume.and_then(|volume| volume.empty_dir.as_ref());
    empty.is_some_and(|empty| empty.medium.as_deref().unwrap_or_default().is_empty())
}

/// Why the Pod has to go, in upstream's words; `None` while it keeps to its limits.
pub fn excess(spec: &PodSpec, taken: &Taken) -> Option<String> {
    for volume in spec.volumes.iter().flatten() {
        let size = volume.empty_dir.as_ref().and_then(|empty| empty.size_limit.as_ref());
        let used = taken.volumes.get(&volume.name).copied().unwrap_or(0);
        if let Some(size) = size.filter(|size| parse(size).value() > 0 && used > parse(size).value()) {
            return Some(format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, size.0));
        }
    }
    let limits = pod::limits(spec);
    if let Some(most) = limits.get(RESOURCE).filter(|_| spec.containers.iter().any(|c| limit(c).is_some())) {
        let volumes = taken.volumes.iter().filter(|(name, _)| is_local(spec, name)).map(|(_, used)| used);
        let used: i64 = volumes.chain(taken.containers.values()).sum();
        if used > most.value() {
            return Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {most}. "));
        }
    }
    spec.containers.iter().find_map(|container| {
        let (most, used) = (limit(container)?, *taken.containers.get(&container.name)?);
        (used > parse(most).value()).then(|| {
            format!("Container {} exceeded its local ephemeral storage limit \"{}\". ", container.name, most.0)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    fn taken(volumes: &[(&str, i64)], containers: &[(&str, i64)]) -> Taken {
        let map = |list: &[(&str, i64)]| list.iter().map(|(name, used)| ((*name).to_owned(), *used)).collect();
        Taken { volumes: map(volumes), containers: map(containers) }
    }

    #[test]
    fn who_takes_more_than_it_may_goes() {
        let limited = r#"{"name": "c", "resources": {"limits": {"ephemeral-storage": "100"}}}"#;
        let with = |containers: &str| {
            pod(&format!(
                r#"{{"containers": [{containers}], "volumes": [{{"name": "e", "emptyDir": {{"sizeLimit": "50"}}}},
                {{"name": "free", "emptyDir": {{}}}}, {{"name": "m", "emptyDir": {{"medium": "Memory", "sizeLimit": "0"}}}}]}}"#
            ))
        };
        let (one, open) = (with(limited), with(r#"{"name": "c"}"#));
        let two = with(&format!(r#"{limited}, {{"name": "d"}}"#));
        let check = |desired: &crate::pod::desired::DesiredPod, taken: Taken, expected: Option<&str>| {
            assert_eq!(excess(desired.spec(), &taken).as_deref(), expected, "{taken:?}");
        };
        check(&one, taken(&[("e", 50)], &[("c", 50)]), None);
        check(&open, taken(&[("e", 51)], &[]), Some("Usage of EmptyDir volume \"e\" exceeds the limit \"50\". "));
        check(&open, taken(&[("m", 51), ("free", 999)], &[("c", 999)]), None);
        let whole = "Pod ephemeral local storage usage exceeds the total limit of containers 100. ";
        check(&one, taken(&[("free", 60), ("e", 1)], &[("c", 40)]), Some(whole));
        check(&one, taken(&[("m", 60), ("e", 1)], &[("c", 40)]), None);
        let own = "Container c exceeded its local ephemeral storage limit \"100\". ";
        check(&two, taken(&[("free", 60)], &[("c", 20), ("d", 60)]), Some(whole));
        check(&two, taken(&[], &[("c", 100)]), None);
        let ample =
            with(&format!(r#"{limited}, {{"name": "d", "resources": {{"limits": {{"ephemeral-storage": "1Ki"}}}}}}"#));
        check(&ample, taken(&[], &[("c", 101)]), Some(own));
        assert!(is_limited(open.spec()) && !is_limited(pod(r#"{"containers": [{"name": "c"}]}"#).spec()));
    }
}
