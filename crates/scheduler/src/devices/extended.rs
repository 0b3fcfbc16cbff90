//! Extended resources that are devices: which DeviceClass stands for which, on which nodes, and how many devices a node has of
//! a class. That holds until a device there changes hands, and can be found out again at any time.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources (extendeddynamicresources), and noderesources
//! (resource_allocation).

use std::cmp::Reverse;

use api::rules::resource_name;

use super::{
    Devices,
    claim::Class,
    selector::Selectors,
    slices::{Device, Pool},
    verdicts::Found,
};
use crate::{
    asks::{Asks, Resources},
    node::Node,
    node_id::NodeId,
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

/// The devices of a class that a node has, and those of them that somebody has.
pub(super) type Total = (i64, i64);

/// The totals of nodes by class.
pub(super) type Totals = Found<String, Total>;

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

    /// The number of devices that a node has for a resource, and how many of them are in use. `None` if it has none, or if
    /// that could not be found out.
    pub fn total(&self, names: &ResourceNames, id: NodeId, node: &Node, resource: ResourceId) -> Option<(i64, i64)> {
        if !self.provide(names, node, resource) {
            return None;
        }
        let class = self.class_for(names.name(resource))?;
        let moment = self.changes.moment(node);
        let held = self.totals.lock().get(class, id, moment);
        let total = match held {
            Some(total) => total,
            None => {
                let total = self.count(class, node)?;
                self.totals.lock().set(class, id, moment, total);
                total
            }
        };
        (total.0 > 0).then_some(total)
    }

    /// Counts anew, as long as the Pod has steps left for it.
    fn count(&self, class: &str, node: &Node) -> Option<Total> {
        let (mut total, mut steps) = ((0, 0), 0);
        for pool in self.slices.pools(node, self.gates) {
            let Pool::Ready(ready) = pool else { continue };
            for slice in &ready.here {
                for device in slice.devices.iter().filter(|device| device.reaches(slice, node)) {
                    let (is_of_class, cost) = self.is_of(class, device)?;
                    steps += cost + 1;
                    if is_of_class {
                        total.0 += 1;
                        total.1 += i64::from(self.is_used(&device.id));
                    }
                }
            }
        }
        self.spend(steps).then_some(total)
    }

    /// Whether all selectors of a class select a device, and the cost of that. A selector that fails leaves it open.
    fn is_of(&self, class: &str, device: &Device) -> Option<(bool, usize)> {
        let mut cost = 0;
        for selector in self.class(class)?.spec.selectors.iter().flatten() {
            let Some(cel) = &selector.cel else { continue };
            let (selected, steps) = self.expressions.matches(&cel.expression, device).ok()?;
            cost += steps;
            if !selected {
                return Some((false, cost));
            }
        }
        Some((true, cost))
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
