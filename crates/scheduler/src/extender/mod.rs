//! Extenders: programs of the user's that are asked over HTTP which nodes do, how well they do, and whose Pods should go.
//! Upstream counterpart: pkg/scheduler/extender.go, staging/src/k8s.io/kube-scheduler/extender/v1.

mod asking;
mod remote;
mod wire;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use client::Key;

pub use asking::Extenders;

use crate::{cache::Cache, change::Change, class::Class, plugin::Plugin, queue::Waiting};

/// The plugin under whose name extenders take part in the queue: any change could alter their mind. It stands in the list
/// of plugins so that the Pods that an extender turned away are woken like others.
pub const PLUGIN: Plugin = Plugin {
    name: NAME,
    concerns: |_| false,
    retry_on: &[
        Change::NodeAdded,
        Change::NodeAllocatable,
        Change::NodeLabels,
        Change::NodeTaints,
        Change::NodeSchedulable,
        Change::PodAdded,
        Change::PodDeleted,
        Change::PodLabels,
        Change::NamespaceLabels,
        Change::Claims,
        Change::Volumes,
        Change::StorageClasses,
        Change::Devices,
        Change::VolumeLimits,
    ],
    node_local: false,
    ..Plugin::NONE
};

/// The name of all extenders together, where plugins are named.
pub const NAME: &str = "Extender";

/// One extender as the configuration has it. A verb that is empty is one that it does not serve.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extender {
    /// Where it serves, without a slash at the end.
    pub url: String,
    pub filter: String,
    pub preempt: String,
    pub prioritize: String,
    pub bind: String,
    pub weight: i64,
    pub tls: Tls,
    pub timeout: Duration,
    /// It knows the nodes by itself, and is told names only.
    pub knows_nodes: bool,
    /// It is asked about Pods only that request one of these; about all Pods when there are none.
    pub managed: Vec<String>,
    /// Scheduling goes on without it when it fails.
    pub ignorable: bool,
}

/// How an extender is reached. Data are PEM, in Base64.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tls {
    pub insecure: bool,
    pub server_name: Option<String>,
    pub authority: Pem,
    pub certificate: Pem,
    pub key: Pem,
}

/// Something in PEM: a file, or what would be in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pem {
    pub file: Option<String>,
    pub data: Option<String>,
}

impl Pem {
    pub fn is_given(&self) -> bool {
        self.file.is_some() || self.data.is_some()
    }
}

impl Extender {
    /// Whether it has a word in Pods of a class.
    pub fn is_interested(&self, class: &Class, cache: &Cache) -> bool {
        let wanted = |name: &String| cache.resources.find(name).is_some_and(|resource| class.requests.of(resource) > 0);
        self.managed.is_empty() || self.managed.iter().any(wanted)
    }
}

/// The question to extenders about a Pod. They are named by their places in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub pod: Waiting,
    pub extenders: Vec<usize>,
    pub about: About,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// Which of these nodes do, and how well.
    Nodes(Vec<Arc<str>>),
    /// On which of these nodes these Pods can go.
    Victims(Candidates),
}

/// The Pods that would have to go from each node.
pub type Candidates = BTreeMap<Arc<str>, Candidate>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidate {
    pub pods: Vec<Key>,
    /// How many of them a disruption budget guards.
    pub guarded: usize,
}

/// The answer of the extenders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Nodes {
        refused: Refused,
        /// By node, to be added to what the plugins give it.
        scores: HashMap<String, i64>,
    },
    Victims(Candidates),
    /// One that is not ignorable failed.
    Failed(String),
}

/// Nodes that were turned away, why, and whether the loss of other Pods would not help.
pub type Refused = BTreeMap<String, (String, bool)>;
