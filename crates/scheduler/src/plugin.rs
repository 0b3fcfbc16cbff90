//! What a scheduler plugin is, and the one ordered list of them.
//!
//! A plugin is a value: its upstream name and weight, a pure filter, a pure score, and the changes that could make a
//! Pod fit that it turned away.

use std::{fmt, sync::Arc};

use crate::{
    class::Class,
    node::{Node, NodeId},
    picture::Picture,
    plugins,
    tally::Tally,
};

/// The best score that a plugin gives a node, before its weight.
pub const MAX_SCORE: i64 = 100;

/// A reason that users read. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Text {
    pub fn as_str(&self) -> &str {
        match self {
            Text::Static(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a node does not take a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Text,
    /// Further reasons of the same plugin.
    pub more: Vec<Text>,
    /// Removing Pods from the node would not help.
    pub unresolvable: bool,
}

impl Rejection {
    pub fn resolvable(reason: &'static str) -> Self {
        Rejection { reason: Text::Static(reason), more: Vec::new(), unresolvable: false }
    }

    pub fn unresolvable(reason: &'static str) -> Self {
        Rejection { reason: Text::Static(reason), more: Vec::new(), unresolvable: true }
    }
}

/// What filters and scores look at, besides the node.
pub struct Context<'a> {
    pub picture: &'a Picture,
    pub class: &'a Class,
    /// The class' counts of Pods by topology domain, current.
    pub tallies: &'a [Tally],
}

/// A change in the cluster that can make a Pod fit that did not before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Change {
    NodeAdded = 1,
    NodeAllocatable = 1 << 1,
    NodeLabels = 1 << 2,
    NodeTaints = 1 << 3,
    NodeSchedulable = 1 << 4,
    PodAdded = 1 << 5,
    PodDeleted = 1 << 6,
    PodLabels = 1 << 7,
    NamespaceLabels = 1 << 8,
}

/// How a plugin turns nodes away.
#[derive(Clone, Copy)]
pub enum Filter {
    None,
    /// The verdict follows from the class and the node's own object alone, so it is kept until either changes. No
    /// removal of Pods helps against it.
    Fixed {
        fits: fn(&Class, &Node) -> bool,
        reason: &'static str,
    },
    /// The verdict depends on what runs in the cluster.
    Live(fn(&Context, NodeId, &Node) -> Result<(), Rejection>),
}

/// Scores nodes in their order, into `scores` of the same length.
pub type Score = fn(context: &Context, nodes: &[NodeId], scores: &mut [i64]);

/// One plugin.
pub struct Plugin {
    pub name: &'static str,
    pub weight: i64,
    /// Whether the plugin has anything to say about a class; when not, it is left out of the Pod's cycle.
    pub concerns: fn(&Context) -> bool,
    pub filter: Filter,
    /// Scores all nodes that passed the filters, from 0 to [`MAX_SCORE`], in their order. `scores` comes zeroed.
    pub score: Option<Score>,
    pub retry_on: &'static [Change],
    /// Whether a change on one node decides only about that node. If so, the Pods that the plugin turned away are
    /// retried only when they would fit that node now.
    pub node_local: bool,
}

impl Plugin {
    pub const NONE: Plugin = Plugin {
        name: "",
        weight: 0,
        concerns: |_| true,
        filter: Filter::None,
        score: None,
        retry_on: &[],
        node_local: true,
    };

    /// `retry_on` as a bit set.
    pub fn retry_bits(&self) -> u16 {
        self.retry_on.iter().fold(0, |bits, change| bits | *change as u16)
    }
}

/// All plugins, in the order in which their filters are asked.
pub const PLUGINS: &[Plugin] = &[
    plugins::node_unschedulable::PLUGIN,
    plugins::taint_toleration::PLUGIN,
    plugins::node_affinity::PLUGIN,
    plugins::node_ports::PLUGIN,
    plugins::node_resources_fit::PLUGIN,
    plugins::pod_topology_spread::PLUGIN,
    plugins::inter_pod_affinity::PLUGIN,
    plugins::node_resources_balanced_allocation::PLUGIN,
    plugins::image_locality::PLUGIN,
];

/// Brings raw scores into 0..=[`MAX_SCORE`] in proportion to the greatest; `reverse` makes the greatest the worst.
pub fn normalise(scores: &mut [i64], reverse: bool) {
    let most = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        let scaled = if most == 0 { 0 } else { MAX_SCORE * *score / most };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}
