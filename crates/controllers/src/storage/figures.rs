//! The numbers of volumes and claims, found out when the page of metrics is asked for, under upstream's names (`pv_collector_…`).
//! Upstream counterpart: pkg/controller/volume/persistentvolume/metrics.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use api::rules::volume::{class_of_claim, class_of_volume, plugin_of};
use client::{Cache, Caches};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use meter::{Metric, labels, told};
use parking_lot::Mutex;

static TOTAL: Metric =
    Metric::gauge("pv_collector_total_pv_count", "[ALPHA] Gauge measuring total number of persistent volumes");
static BOUND: Metric =
    Metric::gauge("pv_collector_bound_pv_count", "[ALPHA] Gauge measuring number of persistent volume currently bound");
static UNBOUND: Metric = Metric::gauge(
    "pv_collector_unbound_pv_count",
    "[ALPHA] Gauge measuring number of persistent volume currently unbound",
);
static BOUND_CLAIMS: Metric = Metric::gauge(
    "pv_collector_bound_pvc_count",
    "[ALPHA] Gauge measuring number of persistent volume claim currently bound",
);
static UNBOUND_CLAIMS: Metric = Metric::gauge(
    "pv_collector_unbound_pvc_count",
    "[ALPHA] Gauge measuring number of persistent volume claim currently unbound",
);

struct Followed {
    volumes: Weak<Cache<PersistentVolume>>,
    claims: Weak<Cache<PersistentVolumeClaim>>,
}

/// The caches of the binder that runs in this process.
static FOLLOWED: Mutex<Followed> = Mutex::new(Followed { volumes: Weak::new(), claims: Weak::new() });

/// From now on the page tells of the volumes and claims in these caches, for as long as they are.
pub(super) fn follow(caches: &Caches) {
    *FOLLOWED.lock() = Followed { volumes: Arc::downgrade(&caches.of()), claims: Arc::downgrade(&caches.of()) };
}

/// The lines of the page: none where no binder runs.
pub fn render() -> String {
    let (volumes, claims) = {
        let followed = FOLLOWED.lock();
        (followed.volumes.upgrade(), followed.claims.upgrade())
    };
    match (volumes, claims) {
        (Some(volumes), Some(claims)) => page(&volumes.list(), &claims.list()),
        _ => String::new(),
    }
}

fn page(volumes: &[Arc<PersistentVolume>], claims: &[Arc<PersistentVolumeClaim>]) -> String {
    let is_bound = |phase: Option<&str>| phase == Some("Bound");
    let of_volume = |v: &PersistentVolume| is_bound(v.status.as_ref().and_then(|status| status.phase.as_deref()));
    let of_claim = |c: &PersistentVolumeClaim| is_bound(c.status.as_ref().and_then(|status| status.phase.as_deref()));
    let volumes_that = |bound| volumes.iter().filter(move |volume| of_volume(volume) == bound);
    let claims_that = |bound| claims.iter().filter(move |claim| of_claim(claim) == bound);
    let class = |volume: &PersistentVolume| labels(&[("storage_class", class_of_volume(volume))]);
    [
        told(&TOTAL, counted(volumes.iter().map(|volume| sort(volume)))),
        told(&BOUND, counted(volumes_that(true).map(|volume| class(volume)))),
        told(&UNBOUND, counted(volumes_that(false).map(|volume| class(volume)))),
        told(&BOUND_CLAIMS, counted(claims_that(true).map(|claim| place(claim)))),
        told(&UNBOUND_CLAIMS, counted(claims_that(false).map(|claim| place(claim)))),
    ]
    .concat()
}

pub(super) fn counted(series: impl Iterator<Item = String>) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for labels in series {
        *counts.entry(labels).or_default() += 1.0;
    }
    counts
}

fn sort(volume: &PersistentVolume) -> String {
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem");
    labels(&[("plugin_name", &plugin_of(volume)), ("volume_mode", mode)])
}

fn place(claim: &PersistentVolumeClaim) -> String {
    let attributes = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    labels(&[
        ("namespace", claim.metadata.namespace.as_deref().unwrap_or("")),
        ("storage_class", class_of_claim(claim)),
        ("volume_attributes_class", attributes.unwrap_or("")),
    ])
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn all<T: serde::de::DeserializeOwned>(list: Vec<Value>) -> Vec<Arc<T>> {
        list.into_iter().map(|object| Arc::new(json::from_value(object).unwrap())).collect()
    }

    #[test]
    fn volumes_and_claims_are_counted_by_what_they_are() {
        let volume = |class: &str, source: &str, value: Value, phase: &str| json!({"metadata": {"name": "v"}, "spec": {"storageClassName": class, source: value}, "status": {"phase": phase}});
        let csi = || json!({"driver": "d", "volumeHandle": "h"});
        let volumes = vec![
            volume("gold", "csi", csi(), "Bound"),
            volume("gold", "csi", csi(), "Bound"),
            volume("gold", "csi", csi(), "Released"),
            volume("", "hostPath", json!({"path": "/x"}), "Available"),
        ];
        let claim = |namespace: &str, phase: &str| {
            json!({"metadata": {"name": "c", "namespace": namespace},
                "spec": {"storageClassName": "gold", "volumeAttributesClassName": "fast"}, "status": {"phase": phase}})
        };
        let page = page(&all(volumes), &all(vec![claim("a", "Bound"), claim("a", "Pending"), claim("b", "Lost")]));
        let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let of = |name: &str, namespace: &str| {
            format!(
                "pv_collector_{name}{{namespace=\"{namespace}\",storage_class=\"gold\",volume_attributes_class=\"fast\"}} 1"
            )
        };
        let expected = [
            "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/csi:d\",volume_mode=\"Filesystem\"} 3".to_owned(),
            "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Filesystem\"} 1"
                .to_owned(),
            "pv_collector_bound_pv_count{storage_class=\"gold\"} 2".to_owned(),
            "pv_collector_unbound_pv_count{storage_class=\"\"} 1".to_owned(),
            "pv_collector_unbound_pv_count{storage_class=\"gold\"} 1".to_owned(),
            of("bound_pvc_count", "a"),
            of("unbound_pvc_count", "a"),
            of("unbound_pvc_count", "b"),
        ];
        assert_eq!(lines, expected);
    }
}
