//! A node as the scheduler sees it: what it offers, what its Pods take, and the rules that both decide with a class.

use std::{collections::HashMap, sync::Arc};

use api::rules::{host_port::HostPort, node_affinity, pod::Resources, quantity, taint};
use k8s_openapi::api::core::v1::{self, Taint};

use crate::{
    change::Change,
    class::{Class, ClassId},
    resources::{Amounts, ResourceNames},
    topology::Labels,
};

/// The facts of the Node object that matter to scheduling. Heartbeats change none of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Amounts,
    pub max_pods: i64,
    /// Sizes of the images on the node, in bytes, by every name they have.
    pub images: HashMap<String, i64>,
    /// The features that the node declares.
    pub features: Vec<String>,
}

impl NodeFacts {
    pub fn of(node: &v1::Node, names: &mut ResourceNames) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let allocatable = status.and_then(|s| s.allocatable.as_ref());
        let allocatable: Resources =
            allocatable.into_iter().flatten().map(|(name, q)| (name.clone(), quantity::parse(q))).collect();
        let images = status.and_then(|s| s.images.as_ref()).into_iter().flatten().flat_map(|image| {
            let size = image.size_bytes.unwrap_or(0);
            image.names.iter().flatten().map(move |name| (name.clone(), size))
        });
        NodeFacts {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.and_then(|s| s.taints.clone()).unwrap_or_default(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            max_pods: allocatable.get("pods").map_or(0, |q| q.value()),
            allocatable: names.amounts(&allocatable),
            images: images.collect(),
            features: status.and_then(|s| s.declared_features.clone()).unwrap_or_default(),
        }
    }

    /// The zone by which nodes are interleaved when they are tried.
    pub fn zone(&self) -> (&str, &str) {
        let label = |key| self.labels.get(key).map_or("", String::as_str);
        (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
    }

    /// The changes that turned `old` into this, as bits.
    pub fn changes(&self, old: &NodeFacts) -> u16 {
        let mut bits = 0;
        let mut note = |differs: bool, change: Change| bits |= if differs { change as u16 } else { 0 };
        note(self.labels != old.labels, Change::NodeLabels);
        note(self.taints != old.taints, Change::NodeTaints);
        note(self.unschedulable != old.unschedulable, Change::NodeSchedulable);
        note(self.allocatable != old.allocatable || self.max_pods != old.max_pods, Change::NodeAllocatable);
        note(self.features != old.features, Change::NodeFeatures);
        bits
    }
}

/// Equal Pods on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    pub class: ClassId,
    /// They are being deleted. They still take resources, but spreading does not count them.
    pub terminating: bool,
    pub pods: u32,
}

/// One node.
#[derive(Debug, Clone)]
pub struct Node {
    pub name: Arc<str>,
    /// False when Pods name this node but there is no Node object (yet, or any more).
    pub known: bool,
    /// Grows with every change of `facts`.
    pub version: u32,
    pub facts: Arc<NodeFacts>,
    pub requested: Amounts,
    /// cpu and memory for scoring, see `Class::scored`.
    pub scored: (i64, i64),
    pub pods: i64,
    /// How many volumes the Pods have, see `Class::volumes`; one that several share counts for each.
    pub volumes: i64,
    pub groups: Vec<Group>,
    /// Ports in use with the number of Pods that use them.
    pub ports: Vec<(HostPort, u32)>,
}

impl Node {
    pub fn new(name: Arc<str>) -> Self {
        Node {
            name,
            known: false,
            version: 0,
            facts: Arc::default(),
            requested: Amounts::default(),
            scored: (0, 0),
            pods: 0,
            volumes: 0,
            groups: Vec::new(),
            ports: Vec::new(),
        }
    }

    /// Whether the class' node selector and required node affinity take the node.
    pub fn is_selected_by(&self, class: &Class) -> bool {
        let labels = &self.facts.labels;
        class.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            && class.required_nodes.as_ref().is_none_or(|s| node_affinity::matches(s, labels, &self.name))
    }

    /// Whether the class tolerates all `NoSchedule` and `NoExecute` taints of the node.
    pub fn is_tolerated_by(&self, class: &Class) -> bool {
        let hard = [taint::NO_SCHEDULE, taint::NO_EXECUTE];
        taint::first_untolerated(&self.facts.taints, &class.tolerations, &hard).is_none()
    }

    /// Adds a Pod (`sign` 1) or takes one away (`sign` -1).
    pub fn count(&mut self, id: ClassId, class: &Class, terminating: bool, sign: i64) {
        self.requested.add(&class.requests, sign);
        self.scored.0 += sign * class.scored.0;
        self.scored.1 += sign * class.scored.1;
        self.pods += sign;
        self.volumes += sign * class.volumes() as i64;
        let found = self.groups.iter().position(|g| g.class == id && g.terminating == terminating);
        match found {
            Some(i) => {
                self.groups[i].pods = self.groups[i].pods.saturating_add_signed(sign as i32);
                if self.groups[i].pods == 0 {
                    self.groups.swap_remove(i);
                }
            }
            None if sign > 0 => self.groups.push(Group { class: id, terminating, pods: 1 }),
            None => {}
        }
        for port in &class.ports {
            match self.ports.iter().position(|(p, _)| p == port) {
                Some(i) => {
                    self.ports[i].1 = self.ports[i].1.saturating_add_signed(sign as i32);
                    if self.ports[i].1 == 0 {
                        self.ports.swap_remove(i);
                    }
                }
                None if sign > 0 => self.ports.push((port.clone(), 1)),
                None => {}
            }
        }
    }
}
