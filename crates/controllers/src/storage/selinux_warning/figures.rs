//! The conflicts that there are, found out when the page of metrics is asked for, under upstream's name.
//! Upstream counterpart: pkg/controller/volume/selinuxwarning/metrics.go.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use client::{Cache, Key};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::CSIDriver,
};
use meter::{Metric, labels, told};
use parking_lot::Mutex;

use super::{
    Property,
    conflict::{Wish, conflicts},
    world::World,
};

static CONFLICT: Metric = Metric::gauge(
    "selinux_warning_controller_selinux_volume_conflict",
    "[ALPHA] Conflict between two Pods using the same volume",
);

/// Each pair of Pods may be in conflict: of more than these nothing is told.
const ROWS: usize = 10_000;

struct Followed {
    pods: Weak<Cache<Pod>>,
    claims: Weak<Cache<PersistentVolumeClaim>>,
    volumes: Weak<Cache<PersistentVolume>>,
    drivers: Weak<Cache<CSIDriver>>,
    asks_policy: bool,
}

/// The caches of the controller that runs in this process.
static FOLLOWED: Mutex<Followed> = Mutex::new(Followed {
    pods: Weak::new(),
    claims: Weak::new(),
    volumes: Weak::new(),
    drivers: Weak::new(),
    asks_policy: false,
});

/// From now on the page tells of what is in these caches, for as long as they are.
pub fn follow(world: &World, asks_policy: bool) {
    *FOLLOWED.lock() = Followed {
        pods: Arc::downgrade(&world.pods),
        claims: Arc::downgrade(&world.claims),
        volumes: Arc::downgrade(&world.volumes),
        drivers: Arc::downgrade(&world.drivers),
        asks_policy,
    };
}

/// The lines of the page: none where no controller runs.
pub fn render() -> String {
    let (world, asks_policy) = {
        let of = FOLLOWED.lock();
        let caches = of.pods.upgrade().zip(of.claims.upgrade()).zip(of.volumes.upgrade()).zip(of.drivers.upgrade());
        (caches.map(|(((pods, claims), volumes), drivers)| World { pods, claims, volumes, drivers }), of.asks_policy)
    };
    let Some(world) = world else { return String::new() };
    let mut uses: BTreeMap<String, Uses> = BTreeMap::new();
    for pod in world.pods.list() {
        for (name, (_, wish)) in world.wishes(&pod, asks_policy) {
            let Ok(wish) = wish else { continue };
            uses.entry(name).or_default().entry(wish).or_default().push(Key::of(&*pod));
        }
    }
    told(&CONFLICT, rows(uses.into_values()).map(|row| (row, 1.0)))
}

/// The Pods that use one volume, by what they want of it.
type Uses = BTreeMap<Wish, Vec<Key>>;

/// The labels of each conflict, from the side of either Pod.
fn rows(volumes: impl Iterator<Item = Uses>) -> impl Iterator<Item = String> {
    let mut rows = Vec::new();
    for uses in volumes {
        for (wish, pods) in &uses {
            for (theirs, others) in &uses {
                for property in conflicts(wish, theirs) {
                    let pairs = pods.iter().flat_map(|pod| others.iter().map(move |other| (pod, other)));
                    let left = ROWS.saturating_sub(rows.len());
                    rows.extend(pairs.take(left).map(|(pod, other)| row(property, (pod, wish), (other, theirs))));
                }
            }
        }
    }
    rows.sort();
    rows.dedup();
    rows.into_iter()
}

fn row(property: Property, (pod, wish): (&Key, &Wish), (other, theirs): (&Key, &Wish)) -> String {
    labels(&[
        ("pod1_name", &*pod.name),
        ("pod1_namespace", &*pod.namespace),
        ("pod1_value", property.of(wish)),
        ("pod2_name", &*other.name),
        ("pod2_namespace", &*other.namespace),
        ("pod2_value", property.of(theirs)),
        ("property", property.name()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_conflict_has_a_row_from_either_side_and_rows_are_bounded() {
        let wish = |label: &str| Wish { label: label.to_owned(), policy: "MountOption" };
        let key = |name: &str| Key::new("d", name);
        let uses: Uses = [(wish(":::s0:c1"), vec![key("a"), key("b")]), (wish(":::s0:c2"), vec![key("c")])].into();
        let side = |one: &str, one_label: &str, two: &str, two_label: &str| {
            format!(
                "pod1_name=\"{one}\",pod1_namespace=\"d\",pod1_value=\"{one_label}\",pod2_name=\"{two}\",pod2_namespace=\"d\",\
                 pod2_value=\"{two_label}\",property=\"SELinux label\""
            )
        };
        let expected = [
            side("a", ":::s0:c1", "c", ":::s0:c2"),
            side("b", ":::s0:c1", "c", ":::s0:c2"),
            side("c", ":::s0:c2", "a", ":::s0:c1"),
            side("c", ":::s0:c2", "b", ":::s0:c1"),
        ];
        assert_eq!(rows([uses].into_iter()).collect::<Vec<_>>(), expected);
        let many = |label: &str| (wish(label), (0..1000).map(|n| key(&format!("{label}{n}"))).collect());
        let uses: Uses = [many(":::s0:c1"), many(":::s0:c2")].into();
        assert_eq!(rows([uses.clone(), uses].into_iter()).count(), ROWS);
    }
}
