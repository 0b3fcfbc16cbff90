//! VolumeRestrictions: a claim that one Pod alone may use is used by one Pod alone, wherever the others are; and a disk that
//! a Pod names itself is on its node only together with Pods that can share it.

use client::Key;

use crate::{
    change::Change,
    node::Node,
    plugin::{Context, Filter, Plugin},
    rejection::Rejection,
};

pub const PLUGIN: Plugin = Plugin {
    name: "VolumeRestrictions",
    concerns: |c| !c.class.claims.is_empty() || !c.class.disks.is_empty(),
    filter: Filter::Live(|context, _, node| filter(context, node)),
    retry_on: &[Change::NodeAdded, Change::PodDeleted, Change::Claims],
    node_local: false,
    ..Plugin::NONE
};

fn filter(context: &Context, node: &Node) -> Result<(), Rejection> {
    let class = context.class;
    let taken = || node.groups.iter().flat_map(|group| &context.cache.class(group.class).disks);
    if class.disks.iter().any(|disk| taken().any(|other| disk.conflicts(other))) {
        return Err(Rejection::resolvable("node(s) had no available disk"));
    }
    for name in class.claims.iter().filter_map(|named| named.name.as_deref()) {
        let key = Key::new(class.namespace.as_str(), name);
        let alone = context.cache.claims.claims.get(&key).is_some_and(|claim| claim.is_for_one_pod());
        if alone && context.cache.uses(&key) > 0 {
            let why = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
            return Err(Rejection::resolvable(why));
        }
    }
    Ok(())
}
