//! The dealings with each node: the volumes that it is asked to remove, and for the scheduler the room
//! that it has for new ones.

use std::{collections::BTreeSet, sync::Arc};

use api::rules::{
    hash,
    local_volume::{self, HOST_NAME, MOST_REMOVALS, Offer, PROVISIONER, TO_REMOVE, node_of},
    quantity,
    volume::annotation,
};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write, owner_reference};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume},
    storage::v1::{CSIStorageCapacity, StorageClass},
};

use super::{BY_NODE, by_node, is_to_remove, room};

/// Where the capacities are.
const NAMESPACE: &str = "kube-system";

pub struct Nodes;

pub struct Observed {
    volumes: Vec<Arc<PersistentVolume>>,
    /// The names of the classes of local volumes, in order.
    classes: Vec<String>,
    /// The capacities that were written for the node.
    capacities: Vec<Arc<CSIStorageCapacity>>,
}

impl Controller for Nodes {
    const NAME: &'static str = super::NAME;
    type Object = Node;
    type Observed = Observed;

    /// Heartbeats are none of its business.
    fn concerns(change: &Change<Node>) -> bool {
        let seen = |node: &Option<Arc<Node>>| {
            let node = node.as_ref()?;
            let order = annotation(&node.metadata, TO_REMOVE).map(str::to_owned);
            Some((Offer::of(node), order, host(node).map(str::to_owned)))
        };
        seen(&change.old) != seen(&change.new)
    }

    fn watches(&self, watches: &mut Watches<Node>) {
        watches.caches().of::<PersistentVolume>().add_index(BY_NODE, by_node);
        watches.mapped::<PersistentVolume>(|volume, _| {
            node_of(volume).map(|node| Key::new("", node)).into_iter().collect()
        });
        watches.indexed::<CSIStorageCapacity>().mapped::<CSIStorageCapacity>(|capacity, _| {
            let owners = capacity.metadata.owner_references.iter().flatten();
            let nodes = owners.filter(|owner| owner.kind == "Node" && owner.controller == Some(true));
            nodes.map(|owner| Key::new("", owner.name.as_str())).collect()
        });
        watches.changed::<StorageClass>(|change, caches| {
            let is_ours = |class: &Arc<StorageClass>| class.provisioner == PROVISIONER;
            // A class never changes its provisioner.
            let came_or_went = change.old.is_some() != change.new.is_some();
            if !came_or_went || ![&change.old, &change.new].into_iter().flatten().any(is_ours) {
                return Vec::new();
            }
            caches.of::<Node>().list().iter().map(|node| Key::of(&**node)).collect()
        });
    }

    fn observe(&self, node: &Node, listers: &Listers) -> Observed {
        let name = node.metadata.name.as_deref().unwrap_or("");
        let classes = listers.caches.of::<StorageClass>().list();
        let ours = classes.iter().filter(|class| class.provisioner == PROVISIONER);
        let owned = listers.owned::<Node, CSIStorageCapacity>(node);
        let here = |capacity: &Arc<CSIStorageCapacity>| capacity.metadata.namespace.as_deref() == Some(NAMESPACE);
        Observed {
            volumes: listers.caches.of::<PersistentVolume>().by_index(BY_NODE, name),
            classes: ours.filter_map(|class| class.metadata.name.clone()).collect(),
            capacities: owned.into_iter().filter(here).collect(),
        }
    }

    fn plan(&self, node: &Node, observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if node.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        let gone: BTreeSet<&str> = observed
            .volumes
            .iter()
            .filter(|volume| is_to_remove(volume))
            .filter_map(|volume| volume.metadata.name.as_deref())
            .collect();
        let order = local_volume::text(gone.into_iter().take(MOST_REMOVALS));
        if order.as_deref() != annotation(&node.metadata, TO_REMOVE) {
            let patch = json::json!({"metadata": {"annotations": {TO_REMOVE: order}}});
            plan.step(Write::merge_patch(node, "", patch).tolerate(&["NotFound"]));
        }
        let wanted = capacities(node, observed);
        for held in &observed.capacities {
            if !wanted.iter().any(|one| one.metadata.name == held.metadata.name) {
                plan.step(Write::delete(&**held));
            }
        }
        for mut one in wanted {
            let held = observed.capacities.iter().find(|held| held.metadata.name == one.metadata.name);
            match held {
                None => _ = plan.step(Write::create(&one)),
                Some(held) if held.node_topology != one.node_topology => _ = plan.step(Write::delete(&**held)),
                Some(held) if amount(held) != amount(&one) => {
                    one.metadata = held.metadata.clone();
                    plan.step(Write::update(&one));
                }
                Some(_) => {}
            }
        }
        plan
    }
}

fn host(node: &Node) -> Option<&str> {
    node.metadata.labels.as_ref()?.get(HOST_NAME).map(String::as_str)
}

fn amount(capacity: &CSIStorageCapacity) -> i64 {
    capacity.capacity.as_ref().map(quantity::parse).unwrap_or_default().value()
}

/// The room on the node, once for each class.
fn capacities(node: &Node, observed: &Observed) -> Vec<CSIStorageCapacity> {
    let (Some(offer), Some(host)) = (Offer::of(node), host(node)) else { return Vec::new() };
    let name = node.metadata.name.as_deref().unwrap_or("");
    let room = room(&offer, observed.volumes.iter().map(|volume| &**volume));
    let of = |class: &String| {
        let place = hash::fnv_64(class.bytes().chain([0]).chain(name.bytes()).collect::<Vec<u8>>().iter());
        let capacity = json::json!({
            "metadata": {"name": format!("skiff-local-{place:016x}"), "namespace": NAMESPACE,
                "ownerReferences": [owner_reference(node)]},
            "nodeTopology": {"matchLabels": {HOST_NAME: host}},
            "storageClassName": class,
            "capacity": room.to_string(),
        });
        json::from_value(capacity).expect("the fields of a capacity")
    };
    observed.classes.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::example, *};
    use json::json;

    fn node(order: Option<&str>, free: u64) -> Node {
        let (name, text) = Offer { folder: "/v".to_owned(), size: 30 << 30, free: free << 30 }.annotation();
        let mut annotations = json!({name: text});
        if let Some(order) = order {
            annotations[TO_REMOVE] = json!(order);
        }
        let meta = json!({"name": "n", "uid": "u", "labels": {HOST_NAME: "host"}, "annotations": annotations});
        json::from_value(json!({"metadata": meta})).unwrap()
    }

    fn observed(volumes: &[(&str, &str)], classes: &[&str]) -> Observed {
        Observed {
            volumes: volumes.iter().map(|(name, words)| Arc::new(example(name, "n", words))).collect(),
            classes: classes.iter().map(|class| (*class).to_owned()).collect(),
            capacities: Vec::new(),
        }
    }

    fn plan(node: &Node, observed: &Observed) -> Plan {
        Nodes.plan(node, observed, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_node_is_asked_to_remove_what_nobody_has_any_more() {
        let check = |order: Option<&str>, volumes: &[(&str, &str)], expected: Option<json::Value>| {
            let plan = plan(&node(order, 1), &observed(volumes, &[]));
            let written = plan.writes().next().map(|write| write.body()["metadata"]["annotations"][TO_REMOVE].clone());
            assert_eq!(written, expected);
        };
        check(None, &[("pvc-1", "Bound Delete")], None);
        check(None, &[("pvc-1", "Bound Delete"), ("pvc-2", "Released Delete")], Some(json!("pvc-2")));
        check(Some("pvc-2"), &[("pvc-2", "Released Delete")], None);
        check(Some("pvc-2"), &[("pvc-2", "Released Retain")], Some(json!(null)));
        let names: Vec<String> = (100..100 + MOST_REMOVALS + 5).map(|i| format!("pvc-{i}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "Released Delete")).collect();
        check(None, &many, Some(json!(names[..MOST_REMOVALS].join(","))));
    }

    #[test]
    fn the_scheduler_reads_the_room_of_each_class() {
        let node = node(None, 25);
        let mut seen = observed(&[("pvc-1", "Bound Delete")], &["fast", "local"]);
        let first = plan(&node, &seen);
        let made: Vec<CSIStorageCapacity> =
            first.writes().map(|write| json::from_value(write.body().clone()).unwrap()).collect();
        let shown: Vec<_> = made.iter().map(|one| (one.storage_class_name.as_str(), amount(one))).collect();
        assert_eq!(shown, [("fast", 20 << 30), ("local", 20 << 30)]);
        let topology = made[0].node_topology.as_ref().unwrap().match_labels.clone().unwrap();
        assert_eq!(topology.into_iter().collect::<Vec<_>>(), [(HOST_NAME.to_owned(), "host".to_owned())]);

        seen.capacities = made.into_iter().map(Arc::new).collect();
        assert!(plan(&node, &seen).is_empty(), "what is right is not written");
        seen.volumes.push(Arc::new(example("pvc-2", "n", "Bound Delete")));
        assert!(plan(&node, &seen).to_string().starts_with("update csistoragecapacities skiff-local-"));
        seen.classes.clear();
        assert_eq!(plan(&node, &seen).writes().filter(|write| write.verb_name() == "delete").count(), 2);
        let silent: Node = json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert!(plan(&silent, &observed(&[], &["local"])).is_empty());
    }
}
