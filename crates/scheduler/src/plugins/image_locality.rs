//! ImageLocality: prefer nodes that already have the Pod's images, the more so the larger and the wider spread they are.

use crate::{
    node_id::NodeId,
    plugin::{Context, MAX_SCORE, Plugin, ScoresBy},
};

pub const PLUGIN: Plugin = Plugin {
    name: "ImageLocality",
    weight: 1,
    concerns: |c| c.class.images.iter().any(|image| c.cache.images.contains_key(image)),
    score: Some(score),
    scores_by: ScoresBy::Facts,
    ..Plugin::NONE
};

/// Less than this is worth nothing.
const LEAST_BYTES: i64 = 23 * 1024 * 1024;
/// More than this per image is worth no more.
const MOST_BYTES_PER_IMAGE: i64 = 1000 * 1024 * 1024;

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    let known = context.cache.nodes().filter(|(_, node)| node.known).count().max(1) as f64;
    let most = MOST_BYTES_PER_IMAGE * context.class.images.len() as i64;
    for (score, id) in scores.iter_mut().zip(nodes) {
        let held = &context.cache.node(*id).facts.images;
        let worth = |image: &String| {
            let spread = f64::from(context.cache.images.get(image).copied().unwrap_or(0)) / known;
            held.get(image).map_or(0, |bytes| (*bytes as f64 * spread) as i64)
        };
        let bytes: i64 = context.class.images.iter().map(worth).sum();
        *score = MAX_SCORE * (bytes.clamp(LEAST_BYTES, most) - LEAST_BYTES) / (most - LEAST_BYTES);
    }
}
