//! The search over the nodes: which fit, and which of those is best.

use crate::{
    batch::Ranked,
    failure::Failure,
    memo::Fixed,
    node::{Group, Node},
    node_id::NodeId,
    nominated::Nominations,
    plugin::{Context, Filter, Plugin, ScoresBy},
    profile::Enabled,
    queue::Waiting,
    rejection::{Rejection, Text},
    tally::Tally,
};

/// Why a node turns a Pod away, with the plugin's place in the list.
pub(crate) type Refusal = (usize, Rejection);

/// One search over the nodes.
pub(crate) struct Search<'a> {
    pub context: &'a Context<'a>,
    /// All plugins, by their places in the list.
    pub all: &'a [Plugin],
    /// The plugins that filter nodes for the class.
    pub plugins: &'a [Enabled],
    /// How many fitting nodes are enough.
    pub wanted: usize,
    pub pod: &'a Waiting,
    pub nominations: &'a Nominations,
    /// Reasons are wanted even if a node fits, since an extender may refuse it.
    pub all_reasons: bool,
    /// A node was refused only because of nominated Pods.
    pub kept_off: bool,
    /// A copy of the tallies for the nodes with nominated Pods, made for the first such node.
    beside: Option<Vec<Tally>>,
}

impl<'a> Search<'a> {
    pub fn new(
        context: &'a Context<'a>,
        all: &'a [Plugin],
        plugins: &'a [Enabled],
        pod: &'a Waiting,
        nominations: &'a Nominations,
    ) -> Self {
        Search { context, all, plugins, wanted: 1, pod, nominations, all_reasons: false, kept_off: false, beside: None }
    }

    /// Collects fitting nodes, beginning at `start` of the order. Answers how many it looked at, and why those that do not
    /// fit do not.
    pub fn run(&mut self, start: usize, fixed: &mut Fixed, feasible: &mut Vec<NodeId>) -> (usize, Failure) {
        let mut failure = Failure::default();
        let cache = self.context.cache;
        let order = cache.order();
        let mut plugins = self.plugins.iter();
        if let Some((index, plugin, names)) =
            plugins.find_map(|p| Some((p.index, p.plugin, (p.plugin.only_nodes)(self.context.class)?)))
        {
            let named: Vec<NodeId> =
                names.iter().filter_map(|n| cache.node_id(n)).filter(|id| cache.node(*id).known).collect();
            failure.add_unnamed(index, plugin.name, order.len() - named.len());
            named.into_iter().for_each(|id| self.look(id, fixed, feasible, &mut failure));
            return (0, failure);
        }
        let start = if order.is_empty() { 0 } else { start % order.len() };
        let mut looked_at = 0;
        for id in order[start..].iter().chain(&order[..start]) {
            looked_at += 1;
            self.look(*id, fixed, feasible, &mut failure);
            if feasible.len() >= self.wanted || failure.broken.is_some() {
                break;
            }
        }
        (looked_at, failure)
    }

    /// Whether this node takes the Pod.
    pub fn takes(&mut self, id: NodeId, fixed: &mut Fixed) -> bool {
        let mut feasible = Vec::new();
        self.look(id, fixed, &mut feasible, &mut Failure::default());
        !feasible.is_empty()
    }

    fn look(&mut self, id: NodeId, fixed: &mut Fixed, feasible: &mut Vec<NodeId>, failure: &mut Failure) {
        let node = self.context.cache.node(id);
        let verdict = match fixed[id.index()] {
            Some((version, verdict)) if version == node.version => verdict,
            _ => {
                let verdict = self.plugins.iter().find_map(|p| match p.plugin.filter {
                    Filter::Fixed { refuses, .. } => Some((p.index as u8, refuses(self.context, node)?)),
                    _ => None,
                });
                fixed[id.index()] = Some((node.version, verdict));
                verdict
            }
        };
        let telling = self.all_reasons || feasible.is_empty();
        if let Some((index, reason)) = verdict {
            if telling {
                let index = usize::from(index);
                let Filter::Fixed { reasons, .. } = self.all[index].filter else { return };
                failure.add(index, id, Rejection::unresolvable(reasons[usize::from(reason)]));
            }
            return;
        }
        match self.live(id) {
            Ok(()) => feasible.push(id),
            Err((index, rejection)) if rejection.broken => {
                let (name, why) = (self.all[index].name, rejection.reason.as_str());
                failure.broken = Some(Text::Shared(format!("running \"{name}\" filter plugin: {why}").into()));
            }
            // Reasons are read only when no node fits.
            Err((index, rejection)) if telling => failure.add(index, id, rejection),
            Err(_) => {}
        }
    }

    /// The filters whose verdict is not kept: without the Pods that are nominated for the node, and with them.
    pub fn live(&mut self, id: NodeId) -> Result<(), Refusal> {
        self.ask(self.context, id, self.context.cache.node(id))?;
        self.beside_nominated(id)
    }

    fn ask(&self, context: &Context, id: NodeId, node: &Node) -> Result<(), Refusal> {
        for enabled in self.plugins {
            if let Filter::Live(filter) = enabled.plugin.filter {
                filter(context, id, node).map_err(|rejection| (enabled.index, rejection))?;
            }
        }
        Ok(())
    }

    /// The live filters once more, as if the Pods that are nominated for the node were there: on the node, and in the
    /// counts by topology domain. Nodes without nominations cost one look into a list.
    fn beside_nominated(&mut self, id: NodeId) -> Result<(), Refusal> {
        let mut here = self.nominations.before(id, self.pod).peekable();
        if here.peek().is_none() {
            return Ok(());
        }
        let (cache, class) = (self.context.cache, self.context.class);
        let mut node = cache.node(id).clone();
        let groups: Vec<Group> = here.map(|n| Group { class: n.class, terminating: false, pods: 1 }).collect();
        let mut tallies = self.beside.take().unwrap_or_else(|| self.context.tallies.to_vec());
        for group in &groups {
            node.count(group.class, cache.class(group.class), false, 1);
            tallies.iter_mut().for_each(|tally| tally.count(class, id, group, 1, cache));
        }
        tallies.iter_mut().for_each(Tally::refresh);
        let verdict = self.ask(&Context { tallies: &tallies, ..*self.context }, id, &node);
        for group in &groups {
            tallies.iter_mut().for_each(|tally| tally.count(class, id, group, -1, cache));
        }
        self.beside = Some(tallies);
        self.kept_off |= verdict.is_err();
        verdict
    }
}

/// The nodes with their scores. `more` are scores beside those of the plugins.
pub(crate) fn rank(context: &Context, plugins: &[Enabled], nodes: &[NodeId], more: Option<&[i64]>) -> Vec<Ranked> {
    let given = |at: usize| more.map_or(0, |more| more[at]);
    let ranked = nodes.iter().enumerate().map(|(at, id)| Ranked { id: *id, by_facts: given(at), total: given(at) });
    let mut ranked: Vec<Ranked> = ranked.collect();
    // A choice of one needs no comparison.
    if nodes.len() == 1 {
        return ranked;
    }
    let mut scores = vec![0; nodes.len()];
    for enabled in plugins {
        let Some(score) = enabled.plugin.score else { continue };
        scores.fill(0);
        score(context, nodes, &mut scores);
        for (ranked, score) in ranked.iter_mut().zip(&scores) {
            let weighted = enabled.weight * score;
            ranked.total = ranked.total.saturating_add(weighted);
            if enabled.plugin.scores_by == ScoresBy::Facts {
                ranked.by_facts = ranked.by_facts.saturating_add(weighted);
            }
        }
    }
    ranked
}

/// The part of a node's score that follows from the Pods on it.
pub(crate) fn rank_again(context: &Context, plugins: &[Enabled], node: NodeId) -> i64 {
    let again = plugins.iter().filter(|enabled| enabled.plugin.scores_by == ScoresBy::Node);
    let weighted = again.filter_map(|enabled| {
        let mut scores = [0];
        enabled.plugin.score?(context, &[node], &mut scores);
        Some(enabled.weight * scores[0])
    });
    weighted.sum()
}

/// One of the best nodes, at random.
pub(crate) fn pick(best: &[NodeId]) -> NodeId {
    match best {
        [only] => *only,
        _ => best[clock::random_range(0..best.len() as u64) as usize],
    }
}
