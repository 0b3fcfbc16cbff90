//! The type of a scheduler plugin. The ordered list of plugins is [`PLUGINS`](crate::plugins::PLUGINS).
//!
//! A plugin is a value: its upstream name and weight, a pure filter, a pure score, what it reserves on the chosen node and
//! does before the binding, and the changes that could make a Pod fit that it turned away. The core names no plugin:
//! whatever it has to know of one is a field here.

use std::{any::Any, collections::BTreeSet, fmt, sync::Arc};

use api::features::Feature;
use client::{Caches, events::ActRecorder};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;

use crate::{
    args::Args,
    cache::Cache,
    change::Change,
    claims_made::ClaimsMade,
    class::Class,
    failure::{Failure, Release},
    node::Node,
    node_id::NodeId,
    queue::Waiting,
    rejection::{Rejection, Text},
    tally::{Counts, Tally},
    topology::KeyId,
};

/// The best score that a plugin gives a node, before its weight.
pub const MAX_SCORE: i64 = 100;

/// All that filters and scores look at, besides the node.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub cache: &'a Cache,
    pub class: &'a Class,
    /// The settings of the plugins for the class.
    pub args: &'a Args,
    /// The class' counts of Pods by topology domain, current.
    pub tallies: &'a [Tally],
}

/// How a plugin turns nodes away.
#[derive(Clone, Copy)]
pub enum Filter {
    None,
    /// The verdict follows from the class and the node's own object alone, so it is kept until either changes. No
    /// removal of Pods helps against it. A refusal is the place of its reason in the list.
    Fixed {
        refuses: fn(&Context, &Node) -> Option<u8>,
        reasons: &'static [&'static str],
    },
    /// The verdict depends on what runs in the cluster.
    Live(fn(&Context, NodeId, &Node) -> Result<(), Rejection>),
}

/// The facts that a plugin's score of a node follows from, besides the class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoresBy {
    /// Node objects.
    Facts,
    /// The node and the Pods on it, whatever other nodes have.
    Node,
    Everything,
}

/// Says why no node can take Pods of a class, when that is clear before any is looked at.
pub type Admit = fn(&Context) -> Result<(), Text>;

/// Scores nodes in their order, into `scores` of the same length.
pub type Score = fn(context: &Context, nodes: &[NodeId], scores: &mut [i64]);

/// Sets aside in the cache what a Pod uses on its node beyond its requests, such as a volume or a device. When it cannot,
/// the node counts as one that does not take the Pod.
pub type Reserve = fn(cache: &mut Cache, pod: &Waiting, node: NodeId) -> Result<(), Rejection>;

/// Gives back what [`Reserve`] set aside, because the Pod does not come to the node after all. It is called for every Pod
/// that is given up, so it must do nothing for a Pod that has nothing reserved.
pub type Unreserve = fn(cache: &mut Cache, pod: &Waiting, node: NodeId);

/// Says what could be given up for a Pod that fits nowhere, such as devices that nobody uses.
pub type Releases = fn(&Context, &Waiting, &Failure) -> Release;

/// Acts before the binding of a Pod, for instance binds its volumes and waits for them. An error says in the user's words
/// why the Pod cannot be bound.
pub type PreBind = fn(Preparing) -> BoxFuture<'static, Result<(), String>>;

/// The facts about a Pod that a plugin takes from the cache for [`PreBind`], which sees the cache no more.
pub type Brought = Arc<dyn Any + Send + Sync>;

/// A Pod that is about to be bound to the node of this name.
#[derive(Clone)]
pub struct Preparing {
    pub caches: Caches,
    pub recorder: ActRecorder,
    pub made: ClaimsMade,
    pub pod: Waiting,
    pub class: Arc<Class>,
    pub node: Arc<str>,
    pub args: Arc<Args>,
    pub brought: Brought,
}

/// One plugin.
pub struct Plugin {
    pub name: &'static str,
    pub weight: i64,
    /// Without it no profile has the plugin.
    pub feature: Option<Feature>,
    /// Whether the plugin has anything to say about a class; when not, it is left out of the Pod's cycle.
    pub concerns: fn(&Context) -> bool,
    /// The only nodes that can take Pods of the class, when the class names them. Other nodes are not looked at.
    pub only_nodes: fn(&Class) -> Option<&BTreeSet<String>>,
    /// Says whether the Pod may be tried at all.
    pub gate: Option<fn(&v1::Pod) -> bool>,
    pub admit: Option<Admit>,
    /// It lets Pods of a gang wait for each other.
    pub gangs: bool,
    /// It makes room for Pods that fit nowhere.
    pub preempts: bool,
    pub release: Option<Releases>,
    /// The tallies that the plugin's filter and score need for a class.
    pub tallies: fn(&Class, &Cache, &Args) -> Vec<(KeyId, Counts)>,
    pub filter: Filter,
    /// Scores all nodes that passed the filters, from 0 to [`MAX_SCORE`], in their order. `scores` comes zeroed.
    pub score: Option<Score>,
    pub scores_by: ScoresBy,
    pub reserve: Option<Reserve>,
    pub unreserve: Option<Unreserve>,
    /// A reservation stays while the writes before the binding are under way, even if the Pod is gone meanwhile: they may
    /// still give it to the Pod, and nothing else keeps it from another one.
    pub holds: bool,
    /// Called when the Pod is on its node in the cache.
    pub bring: fn(&Cache, &Waiting) -> Brought,
    pub pre_bind: Option<PreBind>,
    pub retry_on: &'static [Change],
    /// Whether a change on one node decides only about that node. If so, the Pods that the plugin turned away are
    /// retried only when they would fit that node now.
    pub node_local: bool,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Plugin {
    pub const NONE: Plugin = Plugin {
        name: "",
        weight: 0,
        feature: None,
        concerns: |_| true,
        only_nodes: |_| None,
        gate: None,
        admit: None,
        gangs: false,
        preempts: false,
        release: None,
        tallies: |_, _, _| Vec::new(),
        filter: Filter::None,
        score: None,
        scores_by: ScoresBy::Everything,
        reserve: None,
        unreserve: None,
        holds: false,
        bring: |_, _| Arc::new(()),
        pre_bind: None,
        retry_on: &[],
        node_local: true,
    };

    /// `retry_on` as a bit set.
    pub fn retry_bits(&self) -> u16 {
        self.retry_on.iter().fold(0, |bits, change| bits | *change as u16)
    }
}

/// Brings raw scores into 0..=[`MAX_SCORE`] in proportion to the greatest; `reverse` makes the greatest the worst.
pub fn normalise(scores: &mut [i64], reverse: bool) {
    let most = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        let scaled = if most == 0 { 0 } else { MAX_SCORE * *score / most };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}
