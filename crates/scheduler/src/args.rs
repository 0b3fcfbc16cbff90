//! The settings of the plugins, as a profile gives them. Their defaults are upstream's.
//! Upstream counterpart: pkg/scheduler/apis/config (types_pluginargs).

use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};

/// A resource with its weight in a score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighted {
    pub name: String,
    pub weight: i64,
}

/// How the shares of a node that are in use become a score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Points of a broken line: utilization in percent, and score from 0 to 10.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// The constraints of Pods that have none.
#[derive(Debug, Clone, PartialEq)]
pub enum Spreading {
    /// Loosely over nodes, more loosely over zones; a node without a zone counts all the same.
    System,
    List(Vec<TopologySpreadConstraint>),
}

impl Spreading {
    pub fn constraints(&self) -> Vec<TopologySpreadConstraint> {
        let loose = |max_skew: i32, key: &str| TopologySpreadConstraint {
            max_skew,
            topology_key: key.to_owned(),
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            ..TopologySpreadConstraint::default()
        };
        match self {
            Spreading::System => vec![loose(3, "kubernetes.io/hostname"), loose(5, "topology.kubernetes.io/zone")],
            Spreading::List(constraints) => constraints.clone(),
        }
    }
}

/// All settings of one profile's plugins.
#[derive(Debug, Clone, PartialEq)]
pub struct Args {
    pub strategy: Strategy,
    pub scored: Vec<Weighted>,
    /// Extended resources that the node need not have, by name and by the part before the slash.
    pub ignored_resources: Vec<String>,
    pub ignored_groups: Vec<String>,
    pub balanced: Vec<String>,
    pub spreading: Spreading,
    /// Affinity to nodes that every Pod of the profile has besides its own.
    pub added_affinity: Option<NodeAffinity>,
    /// How much required affinity of existing Pods attracts those that it matches.
    pub hard_affinity_weight: i64,
    pub ignore_preferred_of_existing: bool,
    /// The number of candidates at which the dry runs of preemption end.
    pub candidates_percentage: usize,
    pub candidates_absolute: usize,
    /// How long volumes may take to be bound.
    pub bind_timeout: Duration,
    /// How long the conditions of devices may take to be met.
    pub binding_timeout: Duration,
}

impl Default for Args {
    fn default() -> Self {
        let weighted = |name: &str| Weighted { name: name.to_owned(), weight: 1 };
        Args {
            strategy: Strategy::LeastAllocated,
            scored: vec![weighted("cpu"), weighted("memory")],
            ignored_resources: Vec::new(),
            ignored_groups: Vec::new(),
            balanced: vec!["cpu".to_owned(), "memory".to_owned()],
            spreading: Spreading::System,
            added_affinity: None,
            hard_affinity_weight: 1,
            ignore_preferred_of_existing: false,
            candidates_percentage: 10,
            candidates_absolute: 100,
            bind_timeout: Duration::from_secs(600),
            binding_timeout: Duration::from_secs(600),
        }
    }
}

impl Args {
    /// How many candidates end the dry runs, of this many nodes that could be candidates.
    pub fn candidates(&self, nodes: usize) -> usize {
        (nodes * self.candidates_percentage / 100).max(self.candidates_absolute).min(nodes)
    }
}
