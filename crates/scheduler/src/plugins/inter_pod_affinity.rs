//! InterPodAffinity: Pods near, or not near, to other Pods, as the Pod or those others ask.

use crate::{
    args::Args,
    cache::Cache,
    change::Change,
    class::Class,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, MAX_SCORE, Plugin},
    rejection::Rejection,
    tally::{Counts, Tally},
    topology::KeyId,
};

pub const PLUGIN: Plugin = Plugin {
    name: "InterPodAffinity",
    weight: 2,
    // Exactly the classes that have one of its tallies.
    concerns: |c| c.tallies.iter().any(|t| !matches!(t.counts, Counts::Spread(_))),
    tallies,
    filter: Filter::Live(filter),
    score: Some(score),
    retry_on: &[
        Change::NodeAdded,
        Change::NodeLabels,
        Change::PodAdded,
        Change::PodDeleted,
        Change::PodLabels,
        Change::NamespaceLabels,
    ],
    node_local: false,
    ..Plugin::NONE
};

fn tallies(class: &Class, cache: &Cache, args: &Args) -> Vec<(KeyId, Counts)> {
    let wanted = class.affinity.iter().map(|term| (term.key, Counts::Affinity));
    let unwanted = class.anti_affinity.iter().enumerate().map(|(i, term)| (term.key, Counts::AntiAffinity(i)));
    let refused = cache.refusing_keys().map(|key| (key, Counts::RefusedBy));
    // A profile can have it that the preferences of others count only beside preferences of its own.
    let scored = !args.ignore_preferred_of_existing || !class.preferred.is_empty();
    let preferred = class.preferred.iter().map(|(_, term)| term.key).chain(cache.preferring_keys());
    let preferred = preferred.filter(|_| scored).map(|key| (key, Counts::Preference(args.hard_affinity_weight)));
    wanted.chain(unwanted).chain(refused).chain(preferred).collect()
}

fn filter(context: &Context, id: NodeId, _: &Node) -> Result<(), Rejection> {
    if !near_wanted(context, id) {
        return Err(Rejection::unresolvable("node(s) didn't match pod affinity rules"));
    }
    let sum = |tally: &Tally| context.cache.topologies.domain(tally.key, id).map_or(0, |d| tally.sum(d));
    let any = |counts: fn(&Counts) -> bool| context.tallies.iter().any(|t| counts(&t.counts) && sum(t) > 0);
    if any(|c| matches!(c, Counts::AntiAffinity(_))) {
        return Err(Rejection::resolvable("node(s) didn't match pod anti-affinity rules"));
    }
    if any(|c| *c == Counts::RefusedBy) {
        return Err(Rejection::resolvable("node(s) didn't satisfy existing pods anti-affinity rules"));
    }
    Ok(())
}

fn near_wanted(context: &Context, id: NodeId) -> bool {
    let wanted = || context.tallies.iter().filter(|t| t.counts == Counts::Affinity);
    let mut met = true;
    for tally in wanted() {
        match context.cache.topologies.domain(tally.key, id) {
            None => return false,
            Some(domain) => met &= tally.sum(domain) > 0,
        }
    }
    // The first Pod of a group that wants to be together has nobody to be near to.
    met || (wanted().all(Tally::is_empty) && matches_itself(context))
}

fn matches_itself(context: &Context) -> bool {
    let labels = context.cache.namespaces.get(&context.class.namespace);
    context.class.affinity.iter().all(|term| term.matches(context.class, labels))
}

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    for tally in context.tallies.iter().filter(|t| matches!(t.counts, Counts::Preference(_))) {
        for (score, id) in scores.iter_mut().zip(nodes) {
            *score += context.cache.topologies.domain(tally.key, *id).map_or(0, |d| tally.sum(d));
        }
    }
    let (least, most) = (scores.iter().copied().min().unwrap_or(0), scores.iter().copied().max().unwrap_or(0));
    for score in scores {
        *score = if most > least { MAX_SCORE * (*score - least) / (most - least) } else { 0 };
    }
}
