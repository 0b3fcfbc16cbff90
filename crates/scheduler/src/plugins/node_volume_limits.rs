//! NodeVolumeLimits: a node holds no more volumes of a CSI driver than the driver says in the node's CSINode.

use std::collections::{BTreeMap, BTreeSet};

use client::Key;

use crate::{
    attachable::{Attachable, Limits},
    change::Change,
    class::Class,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin},
    rejection::Rejection,
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeVolumeLimits",
    concerns: |c| c.class.volumes() > 0,
    filter: Filter::Live(filter),
    retry_on: &[Change::NodeAdded, Change::PodDeleted, Change::Claims, Change::VolumeLimits],
    ..Plugin::NONE
};

fn filter(context: &Context, _: NodeId, node: &Node) -> Result<(), Rejection> {
    let known = &context.cache.attachables;
    let Some(limits) = known.limits.get(&*node.name).filter(|limits| !limits.is_empty()) else { return Ok(()) };
    // Most nodes have room even if all their volumes were different ones and of one driver.
    let most = node.volumes + known.attached(&node.name) as i64 + context.class.volumes() as i64;
    if most <= limits.least() || fits(context, node, limits) {
        return Ok(());
    }
    Err(Rejection::resolvable("node(s) exceed max volume count"))
}

fn fits(context: &Context, node: &Node, limits: &Limits) -> bool {
    let mut wanted = BTreeSet::new();
    collect(context, context.class, limits, &mut wanted);
    if wanted.is_empty() {
        return true;
    }
    let mut used = BTreeSet::new();
    for group in &node.groups {
        collect(context, context.cache.class(group.class), limits, &mut used);
    }
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    let attached: BTreeSet<&Attachable> = context.cache.attachables.attached_to(&node.name).collect();
    for volume in used.iter().chain(attached.into_iter().filter(|volume| !used.contains(volume))) {
        *counts.entry(&volume.driver).or_default() += 1;
    }
    let mut more: BTreeMap<&str, i64> = BTreeMap::new();
    for volume in wanted.iter().filter(|volume| !used.contains(volume)) {
        *more.entry(&volume.driver).or_default() += 1;
    }
    more.into_iter().all(|(driver, more)| {
        let held = counts.get(driver).copied().unwrap_or(0);
        limits.of_driver(driver).is_none_or(|limit| held + more <= limit)
    })
}

/// The volumes of a class that a driver on a node takes care of. Those of claims that are not there count nowhere.
fn collect(context: &Context, class: &Class, limits: &Limits, into: &mut BTreeSet<Attachable>) {
    let cache = context.cache;
    for name in class.claims.iter().filter_map(|named| named.name.as_deref()) {
        let claim = cache.claims.claims.get(&Key::new(class.namespace.as_str(), name));
        let volume = claim.and_then(|c| cache.attachables.of_claim(&class.namespace, name, &c.volume, &c.class));
        into.extend(volume.filter(|volume| limits.concerns(volume)));
    }
    into.extend(class.inline.iter().filter(|volume| limits.concerns(volume)).cloned());
}
