//! The node's properties, as its Node object says them: labels, capacity, and what of that is for Pods.

use std::collections::BTreeMap;

use api::rules::resource_name;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};

use crate::{
    config::Config,
    eviction::pressure::Signal,
    node::machine::{self, Machine},
};

pub fn arch() -> &'static str {
    api::rules::platform::architecture(std::env::consts::ARCH)
}

/// The labels that this node gives itself.
pub fn labels(config: &Config) -> BTreeMap<String, String> {
    let own = [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch()),
    ];
    let own = own.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
    own.chain(config.node_labels.clone()).collect()
}

/// The labels of the Node object, or what they will be.
pub fn labels_of(node: Option<&Node>, config: &Config) -> BTreeMap<String, String> {
    node.and_then(|node| node.metadata.labels.clone()).unwrap_or_else(|| labels(config))
}

/// The part of the node that Pods get: all but what must stay free. Extended resources that somebody has written into the
/// Node object's capacity belong to it.
pub fn allocatable(config: &Config, machine: &Machine, node: Option<&Node>) -> BTreeMap<String, Quantity> {
    let mut list = capacity(config, machine);
    let written = node.and_then(|node| node.status.as_ref()?.capacity.as_ref()).into_iter().flatten();
    let extended = written.filter(|(name, _)| resource_name::is_extended(name) && !list.contains_key(*name));
    let extended: Vec<_> = extended.map(|(name, amount)| (name.clone(), amount.clone())).collect();
    list.extend(extended);
    let disk = number(machine::disk(&config.root_dir).unwrap_or_default().size);
    if let Some(kept) = config.evictions.kept(Signal::MemoryAvailable, machine.memory) {
        let left = (machine.memory - kept).max(0) / 1024;
        list.insert("memory".to_owned(), Quantity(format!("{left}Ki")));
    }
    if let Some(kept) = config.evictions.kept(Signal::NodefsAvailable, disk) {
        list.insert("ephemeral-storage".to_owned(), Quantity((disk - kept).max(0).to_string()));
    }
    list
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Counts the devices of plugins, too: all of them as what the node has, those that are healthy as what Pods get.
pub fn add_devices(
    devices: &BTreeMap<String, (usize, usize)>,
    capacity: &mut BTreeMap<String, Quantity>,
    allocatable: &mut BTreeMap<String, Quantity>,
) {
    for (name, (all, healthy)) in devices {
        capacity.insert(name.clone(), Quantity(all.to_string()));
        allocatable.insert(name.clone(), Quantity(healthy.to_string()));
    }
}

/// All that the node has by itself.
pub fn capacity(config: &Config, machine: &Machine) -> BTreeMap<String, Quantity> {
    let disk = machine::disk(&config.root_dir).unwrap_or_default().size;
    [
        ("cpu", machine.cpus.to_string()),
        ("memory", format!("{}Ki", machine.memory / 1024)),
        ("ephemeral-storage", format!("{}Ki", disk / 1024)),
        ("pods", config.max_pods.to_string()),
        ("hugepages-1Gi", "0".to_owned()),
        ("hugepages-2Mi", "0".to_owned()),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), Quantity(v)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[tokio::test]
    async fn what_somebody_wrote_into_the_capacity_is_for_pods() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = crate::pod::fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, _| None);
        let written = json!({"example.com/dongle": "4", "kubernetes.io/own": "1", "cpu": "9999", "strange": "1"});
        let node: Node = json::from_value(json!({"status": {"capacity": written}})).unwrap();
        let own = allocatable(&kubelet.config, &kubelet.host.machine, None);
        let mut expected = own.clone();
        expected.insert("example.com/dongle".to_owned(), Quantity("4".to_owned()));
        assert_eq!(allocatable(&kubelet.config, &kubelet.host.machine, Some(&node)), expected);
        assert_eq!(allocatable(&kubelet.config, &kubelet.host.machine, Some(&Node::default())), own);
    }
}
