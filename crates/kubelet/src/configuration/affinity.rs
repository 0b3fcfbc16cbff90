//! How processors, memory and NUMA nodes are given to containers, as a configuration says it. Options are judged by who has the gates.

use std::{collections::BTreeMap, time::Duration};

use api::rules::{pod::Resources, quantity::Quantity};
use json::Value;

/// Whether containers get processors, or memory, for themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    None,
    Static,
}

/// How the NUMA nodes of a container's resources are chosen together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl TopologyPolicy {
    const ALL: [TopologyPolicy; 4] = [Self::None, Self::BestEffort, Self::Restricted, Self::SingleNumaNode];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BestEffort => "best-effort",
            Self::Restricted => "restricted",
            Self::SingleNumaNode => "single-numa-node",
        }
    }
}

/// Memory of one NUMA node that no Pod gets for itself.
#[derive(Debug, Clone, PartialEq)]
pub struct ReservedMemory {
    pub node: u32,
    pub limits: Resources,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Managers {
    pub cpus: Policy,
    pub cpu_options: BTreeMap<String, String>,
    /// How often it is looked whether containers share what they are to share.
    pub period: Duration,
    pub memory: Policy,
    pub reserved_memory: Vec<ReservedMemory>,
    pub topology: TopologyPolicy,
    /// The nodes are those of the whole Pod.
    pub by_pod: bool,
    pub topology_options: BTreeMap<String, String>,
}

impl Default for Managers {
    fn default() -> Self {
        Managers {
            cpus: Policy::None,
            cpu_options: BTreeMap::new(),
            period: Duration::from_secs(10),
            memory: Policy::None,
            reserved_memory: Vec::new(),
            topology: TopologyPolicy::None,
            by_pod: false,
            topology_options: BTreeMap::new(),
        }
    }
}

impl Managers {
    pub fn cpu_policy(&self) -> &'static str {
        if self.cpus == Policy::Static { "static" } else { "none" }
    }

    pub fn memory_policy(&self) -> &'static str {
        if self.memory == Policy::Static { "Static" } else { "None" }
    }

    pub fn scope(&self) -> &'static str {
        if self.by_pod { "pod" } else { "container" }
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "it must be a text".to_owned())
}

/// The policy that a value names, of `none` and that other one.
pub fn policy(value: &Value, none: &str, other: &str) -> Result<Policy, String> {
    match text(value)? {
        "" => Ok(Policy::None),
        name if name == none => Ok(Policy::None),
        name if name == other => Ok(Policy::Static),
        name => Err(format!("unknown policy: {name:?}")),
    }
}

pub fn topology(value: &Value) -> Result<TopologyPolicy, String> {
    let name = text(value)?;
    let found = TopologyPolicy::ALL.into_iter().find(|policy| policy.name() == name);
    found.ok_or_else(|| {
        let names: Vec<String> = TopologyPolicy::ALL.iter().map(|policy| format!("{:?}", policy.name())).collect();
        format!("{name:?} must be one of: [{}]", names.join(" "))
    })
}

/// Whether the scope is the whole Pod.
pub fn scope(value: &Value) -> Result<bool, String> {
    match text(value)? {
        "container" => Ok(false),
        "pod" => Ok(true),
        other => Err(format!("{other:?} must be one of: \"container\", or \"pod\"")),
    }
}

pub fn options(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let map = value.as_object().ok_or("it must be a map of texts")?;
    map.iter().map(|(name, value)| Ok((name.to_string(), text(value)?.to_owned()))).collect()
}

/// The reservations of NUMA nodes; `amount` reads one amount.
pub fn reserved_memory(
    value: &Value,
    amount: impl Fn(&Value) -> Result<Quantity, String>,
) -> Result<Vec<ReservedMemory>, String> {
    let mut all: Vec<ReservedMemory> = Vec::new();
    for entry in value.as_array().ok_or("it must be a list")? {
        let map = entry.as_object().ok_or("it must be a list of objects")?;
        if let Some((name, _)) = map.iter().find(|(name, _)| !matches!(&***name, "numaNode" | "limits")) {
            return Err(format!("unknown field \"{name}\""));
        }
        let number = map.get("numaNode").map_or(Some(0), Value::as_i64).and_then(|number| u32::try_from(number).ok());
        let node = number.ok_or("numaNode: it must be the number of a node")?;
        let mut limits = Resources::new();
        for (name, value) in map.get("limits").and_then(Value::as_object).into_iter().flat_map(json::Map::iter) {
            let (name, of) = (name.to_string(), format!("NUMA node {node}"));
            if name != "memory" && !name.starts_with("hugepages-") {
                let only = "only [memory hugepages-<HugePageSize>] is accepted";
                return Err(format!("the limit type {name:?} for {of} is not supported, {only}"));
            }
            let amount = amount(value)?;
            if amount.is_zero() {
                return Err(format!("reserved memory may not be zero for {of} and resource {name:?}"));
            }
            if all.iter().any(|part| part.node == node && part.limits.contains_key(&name)) {
                return Err(format!("the reserved memory has a duplicate value for {of} and resource {name:?}"));
            }
            limits.insert(name, amount);
        }
        all.push(ReservedMemory { node, limits });
    }
    Ok(all)
}
