//! ServiceCIDRs: a range that Services have addresses of outlives its deletion, and says whether it gives addresses.
//! Reads: ServiceCIDR, IPAddress. Writes: ServiceCIDR (finalizer, status).
//! Upstream counterpart: pkg/controller/servicecidrs.

use std::{net::IpAddr, sync::Arc, time::Duration};

use api::rules::service_range;
use client::{Api, Caches, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches};
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{IPAddress, ServiceCIDR, ServiceCIDRStatus},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};

use crate::storage::protect;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// Between the deletion and the end of a range: every server must have heard that it gives no addresses any more.
const GRACE: Duration = Duration::from_secs(10);

pub struct ServiceRanges;

fn ranges(cidr: &ServiceCIDR) -> Vec<IpNet> {
    let texts = cidr.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    service_range::ranges(texts.map(String::as_str))
}

fn is_leaving(cidr: &ServiceCIDR) -> bool {
    cidr.metadata.deletion_timestamp.is_some()
}

/// The address of an IPAddress that a Service was given.
fn given(address: &IPAddress) -> Option<IpAddr> {
    let labels = address.metadata.labels.as_ref()?;
    let ours = labels.get(service_range::MANAGED_BY).is_some_and(|by| by == service_range::ALLOCATOR);
    address.metadata.name.as_deref().filter(|_| ours)?.parse().ok()
}

fn holds(cidr: &ServiceCIDR, address: &IpAddr) -> bool {
    ranges(cidr).iter().any(|range| service_range::holds(range, address))
}

/// Whether one of the ranges lies in one of the other's, or the other way round.
fn overlap(a: &ServiceCIDR, b: &ServiceCIDR) -> bool {
    let (a, b) = (ranges(a), ranges(b));
    a.iter().any(|a| b.iter().any(|b| a.contains(b) || b.contains(a)))
}

/// Whether an address would be in no range without this one. Upstream counts other ranges that are being deleted too, and so
/// leaves addresses behind when two are deleted together.
fn is_needed(cidr: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: impl IntoIterator<Item = IpAddr>) -> bool {
    let others: Vec<&Arc<ServiceCIDR>> =
        all.iter().filter(|other| other.metadata.name != cidr.metadata.name && !is_leaving(other)).collect();
    let mut orphans = addresses.into_iter().filter(|address| holds(cidr, address));
    orphans.any(|address| !others.iter().any(|other| holds(other, &address)))
}

fn keys_of(caches: &Caches, concerns: impl Fn(&ServiceCIDR) -> bool) -> Vec<Key> {
    caches.of::<ServiceCIDR>().list().iter().filter(|cidr| concerns(cidr)).map(|cidr| Key::of(&**cidr)).collect()
}

fn ready(status: &str, reason: &str, message: &str, now: Timestamp) -> Condition {
    Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    }
}

/// Writes the condition where it is not there with these words.
fn set_ready(plan: &mut Plan, cidr: &ServiceCIDR, wanted: Condition) {
    let mut changed = cidr.clone();
    let conditions = changed.status.get_or_insert_with(ServiceCIDRStatus::default).conditions.get_or_insert_default();
    match conditions.iter_mut().find(|condition| condition.type_ == wanted.type_) {
        Some(present)
            if (&present.status, &present.reason, &present.message)
                == (&wanted.status, &wanted.reason, &wanted.message) => {}
        Some(present) => *present = wanted,
        None => conditions.push(wanted),
    }
    plan.set_status(cidr, &changed);
}

impl Controller for ServiceRanges {
    const NAME: &'static str = "service-cidr-controller";
    type Object = ServiceCIDR;
    /// Whether addresses need a range that is being deleted.
    type Observed = bool;

    fn watches(&self, watches: &mut Watches<ServiceCIDR>) {
        watches.mapped::<ServiceCIDR>(|cidr, caches| keys_of(caches, |other| overlap(cidr, other)));
        watches.changed::<IPAddress>(|change, caches| {
            // Only an address that comes or goes changes what is needed, and only for a range that is to go.
            let (Some(address), true) = (
                change.new.as_ref().or(change.old.as_ref()).and_then(|address| given(address)),
                change.new.is_none() || change.old.is_none(),
            ) else {
                return Vec::new();
            };
            keys_of(caches, |cidr| is_leaving(cidr) && holds(cidr, &address))
        });
    }

    fn observe(&self, cidr: &ServiceCIDR, listers: &Listers) -> bool {
        let addresses = || listers.caches.of::<IPAddress>().list();
        is_leaving(cidr)
            && is_needed(
                cidr,
                &listers.caches.of::<ServiceCIDR>().list(),
                addresses().iter().filter_map(|address| given(address)),
            )
    }

    /// An address that the cache does not have yet would be left behind.
    async fn ask(&self, cidr: &ServiceCIDR, needed: &mut bool, client: &Client) -> Result<(), client::Error> {
        if is_leaving(cidr) && !*needed {
            let all: Api<ServiceCIDR> = Api::all(client.clone());
            let all: Vec<Arc<ServiceCIDR>> = all.list(&[]).await?.into_iter().map(Arc::new).collect();
            let addresses: Api<IPAddress> = Api::all(client.clone());
            *needed = is_needed(cidr, &all, addresses.list(&[]).await?.iter().filter_map(given));
        }
        Ok(())
    }

    fn plan(&self, cidr: &ServiceCIDR, needed: &bool, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(deleted) = &cidr.metadata.deletion_timestamp else {
            plan = protect(cidr, FINALIZER, true);
            // The finalizer is a write of its own; the condition follows on it.
            if plan.is_empty() {
                set_ready(&mut plan, cidr, ready("True", "", "Kubernetes Service CIDR is ready", now));
            }
            return plan;
        };
        if *needed {
            let why = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
            set_ready(&mut plan, cidr, ready("False", "Terminating", why, now));
            return plan;
        }
        let left = GRACE.saturating_sub(now.duration_since(deleted.0).unsigned_abs());
        if now < deleted.0 || !left.is_zero() {
            plan.again_after(left.max(Duration::from_secs(1)));
            return plan;
        }
        protect(cidr, FINALIZER, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    const DELETED: &str = "2026-01-01T00:00:00Z";

    /// `name ranges flags`: `protected`, `deleting`, `ready`, `blocked`.
    fn cidr(words: &str) -> ServiceCIDR {
        let parts: Vec<&str> = words.split(' ').collect();
        let flag = |name: &str| parts.contains(&name);
        let deleted = flag("deleting").then_some(DELETED);
        let finalizers = if flag("protected") { json!([FINALIZER]) } else { json!([]) };
        let mut conditions = Vec::new();
        if flag("ready") {
            conditions.push(ready("True", "", "Kubernetes Service CIDR is ready", DELETED.parse().unwrap()));
        }
        json::from_value(json!({
            "metadata": {"name": parts[0], "finalizers": finalizers, "deletionTimestamp": deleted},
            "spec": {"cidrs": parts[1].split(',').collect::<Vec<_>>()},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn a_range_is_protected_ready_and_leaves_when_nothing_needs_it() {
        let check = |words: &str, needed: bool, second: i8, expected: &str| {
            let now: Timestamp = format!("2026-01-01T00:00:{second:02}Z").parse().unwrap();
            let plan = ServiceRanges.plan(&cidr(words), &needed, now);
            let written: Vec<String> = (plan.writes())
                .map(|write| {
                    let condition = &write.body()["status"]["conditions"][0];
                    let finalizers = write.body()["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
                    match write.subresource {
                        "status" => format!("Ready={} {}", condition["status"], condition["reason"]),
                        _ => format!("finalizers={finalizers}"),
                    }
                })
                .collect();
            let again = plan.requeue_after.map(|after| format!(" again={}", after.as_secs())).unwrap_or_default();
            assert_eq!(format!("{}{again}", written.join(",")), expected, "{words} {needed} {second}");
        };
        check("a 10.0.0.0/24", false, 0, "finalizers=1");
        check("a 10.0.0.0/24 protected", false, 0, r#"Ready="True" """#);
        check("a 10.0.0.0/24 protected ready", false, 0, "");
        check("a 10.0.0.0/24 protected ready deleting", true, 30, r#"Ready="False" "Terminating""#);
        check("a 10.0.0.0/24 protected ready deleting", false, 3, " again=7");
        check("a 10.0.0.0/24 protected ready deleting", false, 10, "finalizers=0");
        check("a 10.0.0.0/24 deleting", false, 30, "");
    }

    #[test]
    fn a_range_is_needed_for_addresses_that_no_other_range_holds() {
        let check = |others: &[&str], addresses: &[&str], expected: bool| {
            let own = cidr("own 10.0.0.0/24,fd00::/120 deleting");
            let mut all: Vec<Arc<ServiceCIDR>> = others.iter().map(|words| Arc::new(cidr(words))).collect();
            all.push(Arc::new(own.clone()));
            let addresses = addresses.iter().map(|address| address.parse().unwrap());
            assert_eq!(is_needed(&own, &all, addresses), expected, "{others:?}");
        };
        check(&[], &[], false);
        check(&[], &["10.0.0.1"], true);
        check(&[], &["fd00::5"], true);
        check(&[], &["10.0.1.1"], false);
        check(&["b 10.0.0.0/16"], &["10.0.0.1"], false);
        check(&["b 10.0.0.0/16 deleting"], &["10.0.0.1"], true);
        check(&["b 10.0.0.0/28"], &["10.0.0.1"], false);
        check(&["b 10.0.0.0/28"], &["10.0.0.1", "10.0.0.99"], true);
        // The end of the smaller range is an address of the larger one only.
        check(&["b 10.0.0.0/28"], &["10.0.0.15"], true);
        check(&["b 10.0.0.0/16"], &["10.0.0.1", "fd00::5"], true);
    }

    #[test]
    fn an_address_of_somebody_elses_counts_for_nothing() {
        let address = |labels: json::Value| -> IPAddress {
            json::from_value(json!({"metadata": {"name": "10.0.0.1", "labels": labels},
                "spec": {"parentRef": {"resource": "services", "name": "s"}}}))
            .unwrap()
        };
        assert!(given(&address(json!({service_range::MANAGED_BY: "ipallocator.k8s.io"}))).is_some());
        assert!(given(&address(json!({service_range::MANAGED_BY: "other"}))).is_none());
        assert!(given(&address(json!({}))).is_none());
    }
}
