//! Each plugin by itself: what it says about nodes, case by case.

#[allow(dead_code, reason = "the other tables make their engines by it")]
#[path = "../text/mod.rs"]
mod text;

mod filters;
mod pods_together;
mod scores;

use k8s_openapi::api::core::v1::Pod;
use scheduler::{
    Engine,
    args::Args,
    node_id::NodeId,
    plugin::{Context, Plugin},
    tally::Tally,
};

/// The scores that a plugin gives the nodes, in the order in which they came; all zero when it has nothing to say.
fn scores(plugin: &Plugin, args: &Args, engine: &mut Engine, pod: &Pod) -> Vec<i64> {
    let id = engine.cache.enter_class(pod);
    engine.cache.arrange();
    let (class, cache) = (engine.cache.with_defaults(id), &engine.cache);
    let wanted = (plugin.tallies)(&class, cache, args);
    let tallies: Vec<Tally> = wanted.into_iter().map(|(key, counts)| Tally::new(key, counts, &class, cache)).collect();
    let context = Context { cache, class: &class, args, tallies: &tallies };
    let nodes: Vec<NodeId> = cache.nodes().map(|(id, _)| id).collect();
    let mut scores = vec![0; nodes.len()];
    if (plugin.concerns)(&context) {
        plugin.score.expect("the plugin scores")(&context, &nodes, &mut scores);
    }
    scores
}
