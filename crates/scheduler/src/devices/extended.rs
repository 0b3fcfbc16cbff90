//! Extended resources that are devices: which DeviceClass stands for which, and on which nodes.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources (extendeddynamicresources).

use std::cmp::Reverse;

use api::rules::resource_name;

use super::{Devices, claim::Class};
use crate::{
    asks::{Asks, Resources},
    node::Node,
    resources::{ResourceId, ResourceNames},
};

/// The class that stands for each extended resource: of several the newest, and of those the first by name.
pub(super) fn by_resource<'a>(classes: impl Iterator<Item = (&'a String, &'a Class)>) -> Resources {
    let mut named: Vec<_> =
        classes.filter_map(|(name, class)| Some((class.spec.extended_resource_name.as_ref()?, name, class))).collect();
    named.sort_by_key(|(_, name, class)| (class.created, Reverse(*name)));
    // Later ones take the place of those before them.
    named.into_iter().map(|(resource, name, _)| (resource.clone(), name.clone())).collect()
}

impl Devices {
    /// The DeviceClass that stands for an extended resource.
    pub fn class_for(&self, resource: &str) -> Option<&str> {
        if !self.gates.extended {
            return None;
        }
        match resource.strip_prefix(resource_name::OF_DEVICE_CLASS) {
            Some(class) => self.classes.get_key_value(class).map(|(name, _)| name.as_str()),
            None => self.by_resource.get(resource).map(String::as_str),
        }
    }

    /// Whether some of this is devices wherever no device plugin has it.
    pub fn stand_for(&self, all: &[Asks]) -> bool {
        all.iter().any(|asks| asks.candidates().any(|name| self.class_for(name).is_some()))
    }

    /// Whether a node has a resource as devices, and not from a device plugin.
    pub fn provide(&self, names: &ResourceNames, node: &Node, id: ResourceId) -> bool {
        self.gates.extended && node.facts.allocatable.other(id) == 0 && self.class_for(names.name(id)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use json::json;

    #[test]
    fn the_newest_class_stands_for_a_resource() {
        let class = |created: &str, resource: Option<&str>| {
            let meta = json!({"creationTimestamp": created});
            let class = json!({"metadata": meta, "spec": {"extendedResourceName": resource}});
            Class::of(&json::from_value(class).unwrap())
        };
        let (old, new) = ("2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z");
        let classes = BTreeMap::from([
            ("a".to_owned(), class(old, Some("x.io/g"))),
            ("b".to_owned(), class(new, Some("x.io/g"))),
            ("c".to_owned(), class(new, Some("x.io/g"))),
            ("d".to_owned(), class(new, None)),
        ]);
        assert_eq!(by_resource(classes.iter()), Resources::from([("x.io/g".to_owned(), "b".to_owned())]));
    }
}
