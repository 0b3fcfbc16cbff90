//! The options of the policies: their names, the gates that some of them stand behind, and their values. The words are upstream's.
//! Upstream counterpart: policy_options.go of pkg/kubelet/cm/cpumanager and pkg/kubelet/cm/topologymanager.

use std::collections::BTreeMap;

use api::features::{Feature, Features};

use super::{hints::MOST_NODES, topology::Level, topology::Topology};
use crate::configuration::affinity::TopologyPolicy;

/// Options as they are written.
pub type Given = BTreeMap<String, String>;

const FULL_CORES: &str = "full-pcpus-only";
const ACROSS_NODES: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT: &str = "strict-cpu-reservation";
const BY_CACHE: &str = "prefer-align-cpus-by-uncorecache";
const CLOSEST: &str = "prefer-closest-numa-nodes";
const MOST: &str = "max-allowable-numa-nodes";

/// The number of NUMA nodes up to which nothing has to be said, and below which nothing can be.
const USUAL_NODES: usize = 8;

/// How the static policy gives processors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Whole cores only.
    pub full_cores: bool,
    /// In equal parts from several NUMA nodes where one does not have enough.
    pub across_nodes: bool,
    /// A socket is as good as a NUMA node.
    pub by_socket: bool,
    /// From different cores rather than from one.
    pub across_cores: bool,
    /// Reserved processors are for nobody, not even for those that share.
    pub strict: bool,
    /// From few caches of the third level.
    pub by_cache: bool,
}

/// How NUMA nodes are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeOptions {
    pub closest: bool,
    pub most: usize,
}

impl Default for NodeOptions {
    fn default() -> Self {
        NodeOptions { closest: false, most: USUAL_NODES }
    }
}

fn yes(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!("bad value for option {name:?}: strconv.ParseBool: parsing {value:?}: invalid syntax")),
    }
}

/// The options of the static policy for processors.
pub fn cpu(given: &Given, features: &Features) -> Result<CpuOptions, String> {
    let mut options = CpuOptions::default();
    for (name, value) in given {
        let (to, gate) = match name.as_str() {
            FULL_CORES => (&mut options.full_cores, None),
            STRICT => (&mut options.strict, Some(Feature::CPUManagerPolicyBetaOptions)),
            ACROSS_NODES => (&mut options.across_nodes, Some(Feature::CPUManagerPolicyBetaOptions)),
            BY_CACHE => (&mut options.by_cache, Some(Feature::CPUManagerPolicyBetaOptions)),
            BY_SOCKET => (&mut options.by_socket, Some(Feature::CPUManagerPolicyAlphaOptions)),
            ACROSS_CORES => (&mut options.across_cores, Some(Feature::CPUManagerPolicyAlphaOptions)),
            _ => return Err(format!("unknown CPU Manager Policy option: {name:?}")),
        };
        if let Some(gate) = gate.filter(|gate| !features.enabled(*gate)) {
            let level = if gate == Feature::CPUManagerPolicyAlphaOptions { "Alpha" } else { "Beta" };
            return Err(format!("CPU Manager Policy {level}-level Options not enabled, but option {name:?} provided"));
        }
        *to = yes(name, value)?;
    }
    let CpuOptions { full_cores, across_nodes, across_cores, by_cache, .. } = options;
    let apart = [
        (full_cores && across_cores, FULL_CORES, ACROSS_CORES),
        (across_nodes && across_cores, ACROSS_NODES, ACROSS_CORES),
        (by_cache && across_cores, BY_CACHE, ACROSS_CORES),
        (by_cache && across_nodes, BY_CACHE, ACROSS_NODES),
    ];
    match apart.into_iter().find(|(both, ..)| *both) {
        Some((_, one, other)) => {
            Err(format!("static policy options {one} and {other} can not be used at the same time"))
        }
        None => Ok(options),
    }
}

impl CpuOptions {
    /// Whether the machine, and how its NUMA nodes are chosen, allow for them.
    pub fn fit(&self, topology: &Topology, policy: TopologyPolicy) -> Result<(), String> {
        if !self.by_socket {
            return Ok(());
        }
        if policy == TopologyPolicy::SingleNumaNode {
            let policy = policy.name();
            return Err(format!(
                "Topolgy manager {policy} policy is incompatible with CPUManager {BY_SOCKET} policy option"
            ));
        }
        if topology.count(Level::Socket) > topology.count(Level::Node) {
            let words =
                "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA";
            return Err(words.to_owned());
        }
        Ok(())
    }
}

/// The options by which NUMA nodes are chosen.
pub fn nodes(given: &Given, features: &Features) -> Result<NodeOptions, String> {
    let mut options = NodeOptions::default();
    for (name, value) in given {
        if !matches!(name.as_str(), CLOSEST | MOST) {
            return Err(format!("unknown Topology Manager Policy option: {name:?}"));
        }
        if !features.enabled(Feature::TopologyManagerPolicyBetaOptions) {
            return Err(format!(
                "Topology Manager Policy Beta-level Options not enabled, but option {name:?} provided"
            ));
        }
        if name == CLOSEST {
            options.closest = yes(name, value)?;
            continue;
        }
        options.most = value.parse().map_err(|_| {
            let why = format!("strconv.Atoi: parsing {value:?}: invalid syntax");
            format!("unable to convert policy option to integer {name:?}: {why}")
        })?;
        if options.most < USUAL_NODES {
            return Err(format!("the minimum value of {name:?} should not be less than {USUAL_NODES}"));
        }
    }
    Ok(options)
}

/// Whether all sets of that number of nodes can be looked at.
pub fn bounded(nodes: usize, most: usize) -> Result<(), String> {
    let most = most.min(MOST_NODES);
    if nodes > most { Err(format!("unsupported on machines with more than {most} NUMA Nodes")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::topology::machines::*;

    fn given(text: &str) -> Given {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn options_stand_behind_their_gates_and_some_apart() {
        let all = Features::default().with(Feature::CPUManagerPolicyAlphaOptions, true);
        let none = Features::default().with(Feature::CPUManagerPolicyBetaOptions, false);
        let usual = Features::default();
        let why = |text: &str, features: &Features| cpu(&given(text), features).err().unwrap_or_default();
        let set = cpu(&given("full-pcpus-only=true strict-cpu-reservation=1 align-by-socket=T"), &all).unwrap();
        assert_eq!(set, CpuOptions { full_cores: true, strict: true, by_socket: true, ..CpuOptions::default() });
        assert_eq!(cpu(&given("full-pcpus-only=false"), &none), Ok(CpuOptions::default()));
        assert_eq!(why("x=true", &all), "unknown CPU Manager Policy option: \"x\"");
        for option in ["align-by-socket", "distribute-cpus-across-cores"] {
            let expected =
                format!("CPU Manager Policy Alpha-level Options not enabled, but option {option:?} provided");
            assert_eq!(why(&format!("{option}=true"), &usual), expected);
        }
        for option in ["distribute-cpus-across-numa", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"] {
            let expected = format!("CPU Manager Policy Beta-level Options not enabled, but option {option:?} provided");
            assert_eq!(why(&format!("{option}=true"), &none), expected);
            assert_eq!(why(&format!("{option}=true"), &usual), "");
        }
        let bad = "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"yes\": invalid syntax";
        assert_eq!(why("full-pcpus-only=yes", &usual), bad);
        for (one, other) in [
            ("full-pcpus-only", "distribute-cpus-across-cores"),
            ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
            ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
            ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
        ] {
            let expected = format!("static policy options {one} and {other} can not be used at the same time");
            assert_eq!(why(&format!("{one}=true {other}=true"), &all), expected);
        }
    }

    #[test]
    fn a_socket_stands_for_its_nodes_where_it_has_some() {
        let options = CpuOptions { by_socket: true, ..CpuOptions::default() };
        assert_eq!(options.fit(&multi_node_ht(), TopologyPolicy::Restricted), Ok(()));
        let why = options.fit(&multi_node_ht(), TopologyPolicy::SingleNumaNode).unwrap_err();
        assert!(why.ends_with("single-numa-node policy is incompatible with CPUManager align-by-socket policy option"));
        assert!(options.fit(&multi_socket_ht(), TopologyPolicy::None).is_err());
        assert_eq!(CpuOptions::default().fit(&multi_socket_ht(), TopologyPolicy::SingleNumaNode), Ok(()));
    }

    #[test]
    fn nodes_are_bounded() {
        let usual = Features::default();
        let none = Features::default().with(Feature::TopologyManagerPolicyBetaOptions, false);
        let why = |text: &str| nodes(&given(text), &usual).err().unwrap_or_default();
        let set = nodes(&given("prefer-closest-numa-nodes=true max-allowable-numa-nodes=12"), &usual);
        assert_eq!(set, Ok(NodeOptions { closest: true, most: 12 }));
        assert_eq!(why("x=true"), "unknown Topology Manager Policy option: \"x\"");
        let low = "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8";
        assert_eq!(why("max-allowable-numa-nodes=7"), low);
        assert!(why("max-allowable-numa-nodes=x").starts_with("unable to convert policy option to integer"));
        let off = nodes(&given("prefer-closest-numa-nodes=true"), &none).unwrap_err();
        assert!(off.starts_with("Topology Manager Policy Beta-level Options not enabled"), "{off}");
        assert_eq!((bounded(8, 8), bounded(16, 99)), (Ok(()), Ok(())));
        assert_eq!(bounded(9, 8).unwrap_err(), "unsupported on machines with more than 8 NUMA Nodes");
        assert!(bounded(17, 99).is_err());
    }
}
