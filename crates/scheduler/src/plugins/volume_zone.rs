//! VolumeZone: a volume that is labelled with its zone or region is used there only. A node without such labels is taken to
//! be in the cluster's only zone.

use client::Key;

use crate::{
    change::Change,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin},
    rejection::Rejection,
    topology::Labels,
};

pub const PLUGIN: Plugin = Plugin {
    name: "VolumeZone",
    concerns: |c| !c.class.claims.is_empty(),
    filter: Filter::Live(filter),
    retry_on: &[Change::NodeAdded, Change::NodeLabels, Change::Claims, Change::Volumes, Change::StorageClasses],
    node_local: false,
    ..Plugin::NONE
};

/// The labels that say where something is, each with the name that it has today.
pub const PLACES: &[(&str, &str)] = &[
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

fn filter(context: &Context, _: NodeId, node: &Node) -> Result<(), Rejection> {
    let (known, class, labels) = (&context.cache.claims, context.class, &node.facts.labels);
    if !PLACES.iter().any(|(label, _)| labels.contains_key(*label)) {
        return Ok(());
    }
    // Claims that were made for the Pod alone are bound where the Pod is.
    for name in class.claims.iter().filter(|named| named.made_for.is_none()).filter_map(|named| named.name.as_deref()) {
        let claim = known.claims.get(&Key::new(class.namespace.as_str(), name));
        let volume = claim.and_then(|claim| known.volumes.get(&claim.volume));
        if volume.is_some_and(|volume| !is_in(volume.labels(), labels)) {
            return Err(Rejection::unresolvable("node(s) had no available volume zone"));
        }
    }
    Ok(())
}

/// Whether a node with these labels is in one of the volume's zones (their names are joined by `__`) and in its region.
fn is_in(volume: &Labels, node: &Labels) -> bool {
    PLACES.iter().all(|(label, today)| {
        let Some(values) = volume.get(*label) else { return true };
        let here = node.get(*label).or_else(|| node.get(*today));
        here.is_some_and(|here| values.split("__").any(|value| value == here))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_in_its_zones() {
        let labels =
            |list: &[(&str, &str)]| -> Labels { list.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect() };
        let (zone, old) = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone");
        for (volume, node, expected) in [
            (labels(&[]), labels(&[(zone, "a")]), true),
            (labels(&[(zone, "a")]), labels(&[(zone, "a")]), true),
            (labels(&[(zone, "a")]), labels(&[(zone, "b")]), false),
            (labels(&[(zone, "a__b")]), labels(&[(zone, "b")]), true),
            (labels(&[(old, "a")]), labels(&[(zone, "a")]), true),
            (labels(&[(zone, "a"), ("topology.kubernetes.io/region", "r")]), labels(&[(zone, "a")]), false),
        ] {
            assert_eq!(is_in(&volume, &node), expected, "{volume:?} {node:?}");
        }
    }
}
