//! VolumeRestrictions: a claim that one Pod alone may use is used by one Pod alone, wherever the others are.

use client::Key;

use crate::{
    change::Change,
    plugin::{Context, Filter, Plugin},
    rejection::Rejection,
};

pub const PLUGIN: Plugin = Plugin {
    name: "VolumeRestrictions",
    concerns: |c| !c.class.claims.is_empty(),
    filter: Filter::Live(|context, _, _| filter(context)),
    retry_on: &[Change::NodeAdded, Change::PodDeleted, Change::Claims],
    node_local: false,
    ..Plugin::NONE
};

fn filter(context: &Context) -> Result<(), Rejection> {
    let class = context.class;
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
