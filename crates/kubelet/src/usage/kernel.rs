//! The use that the kernel tells of: cgroups of Pods and containers, the links of their networks, and the machine.

use std::collections::BTreeMap;

use crate::{
    kubelet::Kubelet,
    node::{
        cgroup::Memory,
        counters::{self, Carried},
        machine,
        stalls::Stalls,
    },
    usage::{Link, Network, Sample, tells_of_stalls},
};

/// The link that is told of first, as upstream has it.
const MAIN: &str = "eth0";

pub fn of_cgroup(kubelet: &Kubelet, path: &str) -> Sample {
    let (usage, time) = (kubelet.host.cgroups.usage(path), clock::now());
    Sample {
        time,
        cpu_nanos: usage.cpu_nanos,
        cpu_rate: usage.cpu_nanos.and_then(|nanos| kubelet.rates.rate(path, time, nanos)),
        memory: usage.memory,
        swap: kubelet.host.cgroups.swap(path),
        stalls: stalls(kubelet, path),
    }
}

fn stalls(kubelet: &Kubelet, path: &str) -> Stalls {
    if tells_of_stalls(kubelet) { Stalls::of(&kubelet.host.cgroups, path) } else { Stalls::default() }
}

/// The whole machine.
pub fn of_machine(kubelet: &Kubelet) -> Sample {
    let whole = of_cgroup(kubelet, "/");
    let [used, working_set] = [machine::used(), machine::working_set()].map(|bytes| u64::try_from(bytes).ok());
    let all = u64::try_from(kubelet.host.machine.memory).unwrap_or(0);
    let available = working_set.map(|set| all.saturating_sub(set));
    let memory = Memory { available, used, working_set, ..whole.memory };
    Sample { memory, swap: Some(machine::swap()), ..whole }
}

pub fn network_of_machine() -> Network {
    network(counters::network_of_machine())
}

/// The network of the sandbox with this cgroup; `None` where it has no links.
pub fn network_of(kubelet: &Kubelet, path: &str) -> Option<Network> {
    Some(counters::network(&kubelet.host.cgroups, path)).filter(|links| !links.is_empty()).map(network)
}

fn network(links: BTreeMap<String, Carried>) -> Network {
    let link = |(name, carried): (String, Carried)| Link {
        name,
        received: [carried.received[0], carried.received[2]].map(Some),
        sent: [carried.sent[0], carried.sent[2]].map(Some),
    };
    let links: Vec<Link> = links.into_iter().map(link).collect();
    Network { time: clock::now(), main: links.iter().find(|link| link.name == MAIN).cloned(), links }
}

/// The cgroup of a process (`self` is the kubelet's own), where it has one.
pub fn cgroup_of(process: &str, unified: bool) -> Option<String> {
    cgroup_in(&std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?, unified)
}

/// The cgroup that a process is in. Where processors and memory are counted in different ones it has none of its own.
fn cgroup_in(table: &str, unified: bool) -> Option<String> {
    let of = |controller: &str| {
        let path = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
        };
        table.lines().find_map(path).filter(|path| path != "/")
    };
    if unified { of("") } else { of("memory").filter(|memory| of("cpuacct").as_ref() == Some(memory)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_link_is_told_of_twice() {
        let carried = Carried { received: [1, 2, 3, 4], sent: [5, 6, 7, 8] };
        let network = network([("eth0".to_owned(), carried), ("a".to_owned(), Carried::default())].into());
        let main = network.main.unwrap();
        assert_eq!((main.received, main.sent), ([Some(1), Some(3)], [Some(5), Some(7)]));
        assert_eq!(network.links.iter().map(|link| &*link.name).collect::<Vec<_>>(), ["a", "eth0"]);
    }

    #[test]
    fn the_cgroup_of_a_process() {
        let check = |table: &str, unified, expected: Option<&str>| {
            assert_eq!(cgroup_in(table, unified).as_deref(), expected, "{table}");
        };
        check("0::/system.slice/skiff.service\n", true, Some("/system.slice/skiff.service"));
        check("0::/\n", true, None);
        check("5:cpu,cpuacct:/a\n4:memory:/a\n0::/c\n", false, Some("/a"));
        check("5:cpu,cpuacct:/a\n4:memory:/b\n0::/c\n", false, None);
        check("garbage\n", false, None);
    }
}
