//! Batches: one search over the nodes serves several Pods of a class that come one after another. Where Pods came or went
//! since, only those nodes are looked at again, so that the next Pod costs what changed and not another search.
//! Upstream counterpart: pkg/scheduler/framework/runtime (batch.go, OpportunisticBatching).

use std::time::Duration;

use crate::{cache::Cache, node_id::NodeId};

/// A node that takes Pods of the class.
#[derive(Debug, Clone, Copy)]
pub struct Ranked {
    pub id: NodeId,
    /// The part of its score that follows from Node objects alone.
    pub by_facts: i64,
    pub total: i64,
}

/// The nodes that a search found, as they are now.
#[derive(Debug)]
pub struct Batch {
    nodes: Vec<Ranked>,
    /// The search looked at every node.
    whole: bool,
    /// How many more Pods it serves.
    left: usize,
    generation: u64,
    structure: u64,
    position: u64,
}

/// Why a batch serves no more Pods, or a search begins none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// It has no node left.
    Empty,
    /// Too much has changed since its search.
    Expired,
    /// A node that took no Pod of the class may take some again.
    NotFull,
    /// The Pods of other nodes matter for those of the class, or extenders and nominated Pods have a word.
    NotBatchable,
}

impl Flush {
    pub fn as_str(self) -> &'static str {
        match self {
            Flush::Empty => "empty_list",
            Flush::Expired => "expired",
            Flush::NotFull => "node_not_full",
            Flush::NotBatchable => "pod_not_batchable",
        }
    }
}

/// The part of batches in one cycle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cycle {
    /// The Pod's node came from a batch.
    pub served: bool,
    pub flushed: Option<Flush>,
    /// How long it took to ask the last batch, and to keep a new one.
    pub asking: Duration,
    pub keeping: Option<Duration>,
}

/// The number of nodes for which a search over a part of a large cluster serves one Pod, since the other parts want
/// their share.
const NODES_FOR_A_POD: usize = 4;
/// With more changes than this, a new search costs no more.
const CHANGES: usize = 64;

impl Batch {
    pub fn new(nodes: Vec<Ranked>, whole: bool, cache: &Cache) -> Self {
        let left = if whole { usize::MAX } else { nodes.len() / NODES_FOR_A_POD };
        let (generation, structure) = (cache.generation, cache.structure);
        Batch { nodes, whole, left, generation, structure, position: cache.position() }
    }

    /// Follows the cache. `look` says the score that a node has now without the part that follows from Node objects, and
    /// `None` if it does not take Pods of the class any more. Answers with the best nodes, or says why a new search
    /// is due.
    pub fn follow(&mut self, cache: &Cache, mut look: impl FnMut(NodeId) -> Option<i64>) -> Result<Vec<NodeId>, Flush> {
        let touched = cache.touched_since(self.position).filter(|touched| touched.len() <= CHANGES);
        let touched = touched.ok_or(Flush::Expired)?;
        // Every other change than a Pod on a node moves the generation further than that.
        let only_pods = cache.generation - self.generation == touched.len() as u64;
        if self.structure != cache.structure || !only_pods {
            return Err(Flush::Expired);
        }
        if self.left == 0 {
            return Err(Flush::Empty);
        }
        for id in touched {
            match self.nodes.iter().position(|ranked| ranked.id == *id) {
                Some(at) => match look(*id) {
                    Some(score) => self.nodes[at].total = self.nodes[at].by_facts.saturating_add(score),
                    None => _ = self.nodes.swap_remove(at),
                },
                // It may take Pods again.
                None if self.whole => return Err(Flush::NotFull),
                None => {}
            }
        }
        (self.generation, self.position) = (cache.generation, cache.position());
        self.left -= 1;
        let best = best(&self.nodes);
        if best.is_empty() { Err(Flush::Empty) } else { Ok(best) }
    }
}

/// The nodes with the greatest score.
pub fn best(nodes: &[Ranked]) -> Vec<NodeId> {
    let most = nodes.iter().map(|ranked| ranked.total).max();
    nodes.iter().filter(|ranked| Some(ranked.total) == most).map(|ranked| ranked.id).collect()
}
