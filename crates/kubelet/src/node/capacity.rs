//! The node's properties, as its Node object says them: labels, capacity, and what of that is for Pods.

use std::collections::BTreeMap;

use api::rules::resource_name;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};

use crate::{
    config::Config,
    eviction::pressure::Signal,
    node::{
        huge_pages,
        machine::{self, Machine},
        reserved,
    },
};

pub fn arch() -> &'static str {
    api::rules::platform::architecture(std::env::consts::ARCH)
}

/// The labels by which Pods are kept to machines that can run them.
pub fn platform() -> [(&'static str, &'static str); 2] {
    [("kubernetes.io/os", "linux"), ("kubernetes.io/arch", arch())]
}

/// The labels that this node gives itself.
pub fn labels(config: &Config) -> BTreeMap<String, String> {
    let own = [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch()),
    ];
    let own = own.into_iter().chain(platform()).map(|(k, v)| (k.to_owned(), v.to_owned()));
    own.chain(config.node_labels.clone()).collect()
}

/// The labels of the Node object, or what they will be.
pub fn labels_of(node: Option<&Node>, config: &Config) -> BTreeMap<String, String> {
    node.and_then(|node| node.metadata.labels.clone()).unwrap_or_else(|| labels(config))
}

/// The part of the node that Pods get: all but what is reserved for others and what must stay free. Extended resources that somebody has written into the
/// Node object's capacity belong to it.
pub fn allocatable(config: &Config, machine: &Machine, node: Option<&Node>) -> BTreeMap<String, Quantity> {
    let mut list = capacity(config, machine);
    let written = node.and_then(|node| node.status.as_ref()?.capacity.as_ref()).into_iter().flatten();
    let extended = written.filter(|(name, _)| resource_name::is_extended(name) && !list.contains_key(*name));
    let extended: Vec<_> = extended.map(|(name, amount)| (name.clone(), amount.clone())).collect();
    list.extend(extended);
    let disk = number(machine::disk(&config.root_dir).unwrap_or_default().size);
    let reserved = |name: &str| reserved::amount(&config.settings.reserved, name);
    let (cpu, memory, storage) = (reserved("cpu"), reserved("memory").value(), reserved("ephemeral-storage").value());
    let kept = |signal, of| config.evictions.kept(signal, of);
    if !cpu.is_zero() {
        let left = (machine.cpus * 1000 - cpu.milli_value()).max(0);
        list.insert("cpu".to_owned(), Quantity(api::rules::quantity::Quantity::from_milli(left).to_string()));
    }
    // Memory in huge pages is none of the other memory.
    let taken = memory + machine.huge_pages.iter().map(|pages| pages.bytes).sum::<i64>();
    if let Some(kept) = kept(Signal::MemoryAvailable, machine.memory).or((taken > 0).then_some(0)) {
        let left = (machine.memory - kept - taken).max(0) / 1024;
        list.insert("memory".to_owned(), Quantity(format!("{left}Ki")));
    }
    if let Some(kept) = kept(Signal::NodefsAvailable, disk).or((storage > 0).then_some(0)) {
        list.insert("ephemeral-storage".to_owned(), Quantity((disk - kept - storage).max(0).to_string()));
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

/// How many Pods the node takes.
fn pods(config: &Config, machine: &Machine) -> u32 {
    match config.settings.pods_per_core {
        0 => config.max_pods,
        each => config.max_pods.min(each.saturating_mul(u32::try_from(machine.cpus).unwrap_or(u32::MAX))),
    }
}

/// All that the node has by itself.
pub fn capacity(config: &Config, machine: &Machine) -> BTreeMap<String, Quantity> {
    let disk = machine::disk(&config.root_dir).unwrap_or_default().size;
    let own = [
        ("cpu", machine.cpus.to_string()),
        ("memory", format!("{}Ki", machine.memory / 1024)),
        ("ephemeral-storage", format!("{}Ki", disk / 1024)),
        ("pods", pods(config, machine).to_string()),
    ];
    let pages = machine.huge_pages.iter().map(|pages| {
        let amount = api::rules::quantity::Quantity::new(pages.bytes, api::rules::quantity::Format::BinarySi);
        (huge_pages::resource(pages.page), Quantity(amount.to_string()))
    });
    own.into_iter().map(|(name, amount)| (name.to_owned(), Quantity(amount))).chain(pages).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[tokio::test]
    async fn huge_pages_are_a_resource_and_none_of_the_memory() {
        use crate::node::huge_pages::HugePages;
        let folder = tempfile::tempdir().unwrap();
        let kubelet = crate::pod::fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, _| None);
        let pages = |mib: i64, count: i64| HugePages { page: mib << 20, bytes: (count * mib) << 20 };
        let machine = |huge_pages| Machine { memory: 4 << 30, huge_pages, ..Machine::read() };
        let amounts = |huge_pages: Vec<HugePages>| {
            let (machine, config) = (machine(huge_pages), &kubelet.config);
            let of = |list: BTreeMap<String, Quantity>| {
                let of = |name: &str| list.get(name).map_or("none", |amount| amount.0.as_str()).to_owned();
                ["memory", "hugepages-2Mi", "hugepages-1Gi"].map(of).join(" ")
            };
            (of(capacity(config, &machine)), of(allocatable(config, &machine, None)))
        };
        let both = |capacity: &str, allocatable: &str| (capacity.to_owned(), allocatable.to_owned());
        assert_eq!(amounts(vec![]), both("4194304Ki none none", "4194304Ki none none"));
        let some = amounts(vec![pages(2, 512), pages(1024, 0)]);
        assert_eq!(some, both("4194304Ki 1Gi 0", "3145728Ki 1Gi 0"));
        assert_eq!(amounts(vec![pages(1024, 9)]), both("4194304Ki none 9Gi", "0Ki none 9Gi"));
    }

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
