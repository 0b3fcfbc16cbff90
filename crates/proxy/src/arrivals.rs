//! How many changes of Services and EndpointSlices came, and when their causes were seen: for the metrics alone.

use client::{Caches, Change, Changes, slices::service_of};
use clock::Timestamp;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use nft::Family;
use tokio::sync::broadcast::error::TryRecvError;

/// The annotation with which an endpoints controller says when it saw what it reacts to.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

pub struct Arrivals {
    services: Changes<Service>,
    slices: Changes<EndpointSlice>,
}

/// The changes since the last look.
#[derive(Debug, Default)]
pub struct Arrived {
    pub services: u64,
    pub slices: u64,
    pub causes: Vec<(Family, Timestamp)>,
}

impl Arrivals {
    pub fn follow(caches: &Caches) -> Self {
        Arrivals { services: caches.of::<Service>().subscribe(), slices: caches.of::<EndpointSlice>().subscribe() }
    }

    pub fn take(&mut self) -> Arrived {
        let mut arrived = Arrived::default();
        drain(&mut self.services, &mut arrived.services, |_| {});
        let (slices, causes) = (&mut arrived.slices, &mut arrived.causes);
        drain(&mut self.slices, slices, |change| causes.extend(cause(change)));
        arrived
    }
}

/// Counts what is there; what was lost counts too.
fn drain<K>(from: &mut Changes<K>, count: &mut u64, mut each: impl FnMut(&Change<K>)) {
    loop {
        match from.try_recv() {
            Ok(change) => {
                *count += 1;
                each(&change);
            }
            Err(TryRecvError::Lagged(lost)) => *count += lost,
            Err(TryRecvError::Empty | TryRecvError::Closed) => return,
        }
    }
}

/// When the cause of a change of a Service's endpoints was seen, if this change is the first that says so.
fn cause(change: &Change<EndpointSlice>) -> Option<(Family, Timestamp)> {
    let of = |slice: &EndpointSlice| slice.metadata.annotations.as_ref()?.get(TRIGGER_TIME).cloned();
    let slice = change.new.as_deref()?;
    service_of(slice)?;
    let now = of(slice)?;
    if change.old.as_deref().and_then(of).as_ref() == Some(&now) {
        return None;
    }
    let family = Family::ALL.into_iter().find(|family| family.name() == slice.address_type)?;
    Some((family, now.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_cause_counts_once() {
        let slice = |time: &str, kind: &str| {
            let slice = json::json!({
                "metadata": {"name": "s", "namespace": "d", "labels": {"kubernetes.io/service-name": "web"},
                    "annotations": {TRIGGER_TIME: time}},
                "addressType": kind, "endpoints": [],
            });
            Some(Arc::new(json::from_value::<EndpointSlice>(slice).unwrap()))
        };
        let check = |old, new, expected: Option<Family>| {
            let change = Change { key: client::Key::new("d", "s"), old, new };
            assert_eq!(cause(&change).map(|(family, _)| family), expected);
        };
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01.5Z");
        check(None, slice(first, "IPv4"), Some(Family::V4));
        check(slice(first, "IPv6"), slice(second, "IPv6"), Some(Family::V6));
        check(slice(first, "IPv4"), slice(first, "IPv4"), None);
        check(slice(first, "IPv4"), None, None);
        check(None, slice("yesterday", "IPv4"), None);
        check(None, slice(first, "FQDN"), None);
    }
}
