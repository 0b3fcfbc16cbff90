//! Warnings of SELinux: two Pods that share a volume and want it mounted with different labels cannot both have it on one node. They are
//! told, wherever they run, and the conflicts stand on the page of metrics.
//! Reads: Pod, PersistentVolumeClaim, PersistentVolume, CSIDriver. Writes: nothing but events.
//! Upstream counterpart: pkg/controller/volume/selinuxwarning.
//!
//! It is for clusters whose nodes have SELinux, before the feature SELinuxMount is switched on there, and off unless it is named.

mod conflict;
pub(super) mod figures;
mod world;

use std::collections::{BTreeSet, HashMap};

use api::{
    features::{Feature, Features},
    rules::pod::is_terminal,
};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::CSIDriver,
};
use parking_lot::Mutex;

use self::{
    conflict::{Property, conflicts, message},
    world::World,
};
use super::claim_protection::BY_CLAIM;

/// The conflicts that one Pod is told of. It may be told of no more than that at once anyway.
const TOLD: usize = 25;

pub struct SelinuxWarnings {
    /// Pods may say that they want their files relabelled.
    asks_policy: bool,
    /// The messages that each Pod was told, as far as they still hold: each is told once.
    told: Mutex<HashMap<Key, BTreeSet<String>>>,
}

impl SelinuxWarnings {
    pub fn new(features: &Features) -> Self {
        SelinuxWarnings { asks_policy: features.enabled(Feature::SELinuxChangePolicy), told: Mutex::default() }
    }

    /// The events about a Pod that nobody has told it yet.
    fn news(&self, pod: &Pod, world: &World) -> Vec<Note> {
        let key = Key::of(pod);
        let (mut notes, mut now) = (Vec::new(), BTreeSet::new());
        let before = self.told.lock().get(&key).cloned().unwrap_or_default();
        let mut tell = |note: Note| {
            if now.len() < TOLD && now.insert(note.message.clone()) && !before.contains(&note.message) {
                notes.push(note);
            }
        };
        for (name, (volume, wish)) in world.wishes(pod, self.asks_policy) {
            let Ok(wish) = wish else {
                let text = format!("Volume {volume:?} is mounted twice with different SELinux labels inside this pod");
                tell(Note::warning("MultipleSELinuxLabels", text));
                continue;
            };
            for other in world.users(&name).iter().filter(|other| Key::of(&***other) != key) {
                let Some((_, Ok(theirs))) = world.wishes(other, self.asks_policy).remove(&name) else { continue };
                for property in conflicts(&wish, &theirs) {
                    let text = message(property, (&key, &wish), (&Key::of(&**other), &theirs));
                    tell(Note::normal(property.reason(), text));
                }
            }
        }
        let mut told = self.told.lock();
        if now.is_empty() {
            told.remove(&key)
        } else {
            told.insert(key, now)
        };
        notes
    }
}

/// Whether a Pod begins or ceases to use its volumes. What it wants of them never changes.
fn matters(change: &Change<Pod>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.metadata.uid != new.metadata.uid || is_terminal(old) != is_terminal(new),
        _ => true,
    }
}

impl Controller for SelinuxWarnings {
    const NAME: &'static str = "selinux-warning-controller";
    type Object = Pod;
    type Observed = Vec<Note>;

    fn concerns(change: &Change<Pod>) -> bool {
        matters(change)
    }

    fn watches(&self, watches: &mut Watches<Pod>) {
        let world = World::of(watches.caches());
        world.index();
        figures::follow(&world, self.asks_policy);
        watches.changed::<Pod>(|change, caches| {
            let states = change.old.iter().chain(&change.new).filter(|_| matters(change));
            let world = World::of(caches);
            states.flat_map(|pod| world.concerned(pod)).collect()
        });
        watches.changed::<PersistentVolumeClaim>(|change, caches| {
            let volume = |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
            let (old, new) = (change.old.as_ref().map(|c| volume(c)), change.new.as_ref().map(|c| volume(c)));
            let pods = caches.of::<Pod>().by_index(BY_CLAIM, &change.key.to_string());
            pods.iter().filter(|_| old != new).map(|pod| Key::of(&**pod)).collect()
        });
        watches.changed::<PersistentVolume>(|change, caches| {
            let owner = |volume: &PersistentVolume| volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
            let (old, new) = (change.old.as_ref().and_then(|v| owner(v)), change.new.as_ref().and_then(|v| owner(v)));
            let is_same = old.as_ref().map(|owner| &owner.uid) == new.as_ref().map(|owner| &owner.uid);
            let claim =
                new.filter(|_| !is_same).map(|c| Key::new(c.namespace.unwrap_or_default(), c.name.unwrap_or_default()));
            let pods = claim.map(|claim| caches.of::<Pod>().by_index(BY_CLAIM, &claim.to_string()));
            pods.into_iter().flatten().map(|pod| Key::of(&*pod)).collect()
        });
        watches.changed::<CSIDriver>(|change, caches| {
            let takes = |driver: &CSIDriver| driver.spec.se_linux_mount == Some(true);
            let (old, new) =
                (change.old.as_ref().is_some_and(|d| takes(d)), change.new.as_ref().is_some_and(|d| takes(d)));
            let pods = if old == new { Vec::new() } else { World::of(caches).of_driver(&change.key.name) };
            pods.iter().map(|pod| Key::of(&**pod)).collect()
        });
    }

    fn observe(&self, pod: &Pod, listers: &Listers) -> Vec<Note> {
        self.news(pod, &World::of(listers.caches))
    }

    fn plan(&self, _: &Pod, news: &Vec<Note>, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        news.iter().for_each(|note| _ = plan.tell(note.clone()));
        plan
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.told.lock().remove(key);
        Plan::default()
    }
}
