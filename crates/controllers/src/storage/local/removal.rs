//! The end of local volumes: the object goes after its folder is gone, or at once where the folder is to stay or no node
//! has it any more.

use std::sync::Arc;

use api::rules::local_volume::{self, FINALIZER, REMOVED, node_of};
use client::{Api, Change, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};

use super::{BY_NODE, by_node, is_given_up, is_to_remove};

pub struct Removal;

/// The node that has the volume; `None` when there is no such node.
pub type Observed = Option<Arc<Node>>;

fn is_protected(volume: &PersistentVolume) -> bool {
    volume.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

impl Controller for Removal {
    const NAME: &'static str = super::NAME;
    type Object = PersistentVolume;
    type Observed = Observed;

    fn concerns(change: &Change<PersistentVolume>) -> bool {
        change.new.as_ref().is_some_and(|volume| is_protected(volume) && is_given_up(volume))
    }

    fn watches(&self, watches: &mut Watches<PersistentVolume>) {
        watches.caches().of::<PersistentVolume>().add_index(BY_NODE, by_node);
        watches.changed::<Node>(|change, caches| {
            let removed = |node: &Option<Arc<Node>>| {
                let annotations = node.as_ref()?.metadata.annotations.as_ref()?;
                annotations.get(REMOVED).cloned()
            };
            if change.new.is_some() && removed(&change.old) == removed(&change.new) {
                return Vec::new();
            }
            let volumes = caches.of::<PersistentVolume>().by_index(BY_NODE, &change.key.name);
            volumes.iter().map(|volume| Key::of(&**volume)).collect()
        });
    }

    fn observe(&self, volume: &PersistentVolume, listers: &Listers) -> Observed {
        listers.caches.of::<Node>().get(&Key::new("", node_of(volume)?))
    }

    /// A node that the cache does not have yet may have the folder.
    async fn ask(
        &self,
        volume: &PersistentVolume,
        observed: &mut Observed,
        client: &Client,
    ) -> Result<(), client::Error> {
        if let Some(name) = node_of(volume).filter(|_| observed.is_none() && is_to_remove(volume)) {
            *observed = Api::<Node>::all(client.clone()).find(name).await?.map(Arc::new);
        }
        Ok(())
    }

    fn plan(&self, volume: &PersistentVolume, node: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if node_of(volume).is_none() || !is_protected(volume) || !is_given_up(volume) {
            return plan;
        }
        let name = volume.metadata.name.as_deref().unwrap_or("");
        let is_gone = node.as_ref().is_none_or(|node| local_volume::names(&node.metadata, REMOVED).contains(name));
        let is_deleted = volume.metadata.deletion_timestamp.is_some();
        match is_to_remove(volume) {
            true if !is_gone => {}
            true if !is_deleted => {
                plan.step(Write::delete(volume));
            }
            false if !is_deleted => {}
            _ => {
                let mut free = volume.clone();
                free.metadata.finalizers.iter_mut().for_each(|list| list.retain(|finalizer| finalizer != FINALIZER));
                plan.step(Write::update(&free));
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::{super::example, *};
    use json::json;

    fn node(removed: &str) -> Option<Arc<Node>> {
        let node = json!({"metadata": {"name": "n", "annotations": {REMOVED: removed}}});
        Some(Arc::new(json::from_value(node).unwrap()))
    }

    fn plan(volume: &PersistentVolume, node: Option<Arc<Node>>) -> Plan {
        Removal.plan(volume, &node, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_volume_goes_after_its_folder() {
        let check = |words: &str, node: Option<Arc<Node>>, expected: &str| {
            assert_eq!(plan(&example("pvc-1", "n", words), node).to_string(), expected, "{words}");
        };
        check("Bound Delete", node("pvc-1"), "");
        check("Released Delete", node(""), "");
        check("Released Delete", node("pvc-2"), "");
        check("Released Delete", node("pvc-2,pvc-1"), "delete persistentvolumes pvc-1");
        check("Released Delete deleting", node("pvc-1"), "update persistentvolumes pvc-1");
        check("Released Delete deleting", node(""), "");
        check("Released Delete", None, "delete persistentvolumes pvc-1");
        check("Released Retain", node("pvc-1"), "");
        check("Released Retain deleting", node(""), "update persistentvolumes pvc-1");
        check("Available Retain deleting", node(""), "update persistentvolumes pvc-1");
        check("Bound Delete deleting", node("pvc-1"), "");
    }

    #[test]
    fn other_finalizers_stay_and_foreign_volumes_are_left_alone() {
        let plan_of = |volume: &PersistentVolume| plan(volume, node("pvc-1"));
        let mine = example("pvc-1", "n", "Released Delete deleting");
        let written = plan_of(&mine);
        let written = written.writes().next().unwrap().body()["metadata"]["finalizers"].clone();
        assert_eq!(written, json!(["kubernetes.io/pv-protection"]));
        let mut foreign = mine.clone();
        foreign.metadata.annotations = None;
        assert!(plan_of(&foreign).is_empty());
        let mut free = mine;
        free.metadata.finalizers = None;
        assert!(plan_of(&free).is_empty());
    }
}
