//! ResourceQuota: counts what the objects of a namespace use of each quota.
//! Reads: ResourceQuota, Pod, Service, PersistentVolumeClaim, ResourceClaim, DeviceClass (with DRAExtendedResource), and the number of objects of every other kind that a
//! quota names. Writes: ResourceQuota/status.
//! Upstream counterpart: pkg/controller/resourcequota.
//!
//! Admission charges a quota before the object is stored, and only this controller takes something back. It must not take back
//! a charge whose object is on its way: then two objects would get the same rest. An object follows its charge within
//! [`SETTLING`] or never will (nothing but the commit is between them). So what was charged within that time stays charged on
//! top of what is counted, and before something is taken back the server is asked for the objects, since a cache may lag behind.
//! The write is refused when the quota was charged meanwhile.

mod count;
mod extended;
mod history;
mod replenish;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{
    features::{Feature, Features},
    rules::{
        pod::Resources,
        quota::{Counter, amounts},
    },
};
use client::{Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches};
use k8s_openapi::{
    api::core::v1::{ResourceQuota, ResourceQuotaStatus},
    apimachinery::pkg::api::resource::Quantity as Text,
};

use extended::Facts;
use history::{Histories, Recent};

/// How long after a charge its object may still be on its way.
const SETTLING: Duration = Duration::from_secs(2);
/// How long a quota rests between two counts that nothing but its own changes asks for.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct ResourceQuotas {
    histories: Histories,
    /// Claims count for the extended resources for which their classes stand.
    extended: bool,
}

impl ResourceQuotas {
    pub fn new(features: &Features) -> Self {
        ResourceQuotas { extended: features.enabled(Feature::DRAExtendedResource), ..ResourceQuotas::default() }
    }
}

pub struct Observed {
    /// The part of the usage that may still be without its object.
    recent: Recent,
    /// The usage of the resources that were counted. `None` when it is too early to count again.
    used: Option<Resources>,
}

/// A resource that the quota limits: its name, how it is counted, and the group and plural of its kind.
type Limit<'a> = (&'a str, Counter, String, String);

/// The resources that the quota limits and that can be counted.
fn limited(quota: &ResourceQuota) -> Vec<Limit<'_>> {
    let names = quota.spec.iter().flat_map(|s| s.hard.iter().flatten()).map(|(name, _)| name.as_str());
    let known = |name| Counter::of_name(name).map(|(counter, group, plural)| (name, counter, group, plural));
    names.filter_map(known).collect()
}

/// Whether the status says all that is known without counting.
fn is_complete(quota: &ResourceQuota) -> bool {
    let Some(status) = &quota.status else { return false };
    let hard = quota.spec.as_ref().and_then(|s| s.hard.as_ref());
    let none = BTreeMap::new();
    let used = status.used.as_ref().unwrap_or(&none);
    amounts(hard) == amounts(status.hard.as_ref())
        && limited(quota).iter().all(|(name, ..)| used.contains_key(*name))
        && used.keys().all(|name| hard.is_some_and(|hard| hard.contains_key(name)))
}

impl Controller for ResourceQuotas {
    const NAME: &'static str = "resourcequota-controller";
    const RESYNC: Option<Duration> = Some(Duration::from_secs(300));
    type Object = ResourceQuota;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<ResourceQuota>) {
        replenish::watches(watches);
        if self.extended {
            replenish::extended(watches);
        }
    }

    fn observe(&self, quota: &ResourceQuota, listers: &Listers) -> Observed {
        let recent = self.histories.note(&Key::of(quota), &present(quota), is_complete(quota));
        let limited = limited(quota);
        let used = recent.rest.is_none().then(|| {
            let now = clock::now();
            let mut used = count::cached(quota, &limited, listers.caches, now);
            if let Some(names) = self.extended_names(quota, &limited) {
                Facts::cached(count::namespace(quota), listers.caches).add(&names, &mut used, now);
            }
            used
        });
        Observed { recent, used }
    }

    async fn ask(&self, quota: &ResourceQuota, observed: &mut Observed, client: &Client) -> Result<(), client::Error> {
        let Some(used) = &mut observed.used else { return Ok(()) };
        let limited = limited(quota);
        let present = present(quota);
        for counter in [Counter::Pods, Counter::Services, Counter::VolumeClaims, Counter::DeviceClaims] {
            let falls = |name: &str| {
                let (counted, present) = (used.get(name).copied(), present.get(name).copied());
                counted.zip(present).is_some_and(|(counted, present)| observed.recent.with(name, counted) < present)
            };
            if limited.iter().any(|(name, of, ..)| *of == counter && falls(name)) {
                let names = self.extended_names(quota, &limited).filter(|_| counter == Counter::Pods);
                used.extend(match names {
                    Some(names) => count::live_extended(quota, &limited, &names, client).await?,
                    None => count::live(quota, &counter, &limited, client).await?,
                });
            }
        }
        for (name, counter, group, plural) in &limited {
            if matches!(counter, Counter::Objects { .. })
                && let Some(number) = count::objects(quota, group, plural, client).await?
            {
                used.insert((*name).to_owned(), number);
            }
        }
        self.histories.plans(&Key::of(quota), &amounts(status(quota, used, &observed.recent).used.as_ref()));
        Ok(())
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.histories.forget(key);
        Plan::default()
    }

    fn plan(&self, quota: &ResourceQuota, observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if let Some(rest) = observed.recent.rest {
            plan.again_after(rest);
        }
        if let Some(counted) = &observed.used {
            let status = status(quota, counted, &observed.recent);
            let used = amounts(status.used.as_ref());
            // A charge whose object is not there is looked at again when it has settled.
            if counted.iter().any(|(name, amount)| used.get(name).is_some_and(|used| used > amount)) {
                plan.again_after(SETTLING);
            }
            plan.set_status(quota, &ResourceQuota { status: Some(status), ..quota.clone() });
        }
        plan
    }
}

impl ResourceQuotas {
    /// The resources of a quota of which claims may use something beside Pods, if there are any.
    fn extended_names<'a>(&self, quota: &ResourceQuota, limited: &[Limit<'a>]) -> Option<BTreeSet<&'a str>> {
        let names = if self.extended { extended::names(quota, limited) } else { BTreeSet::new() };
        (!names.is_empty()).then_some(names)
    }
}

fn present(quota: &ResourceQuota) -> Resources {
    amounts(quota.status.as_ref().and_then(|s| s.used.as_ref()))
}

/// The status with the counted usage and the usage that may be on its way; a resource that was not counted stays.
fn status(quota: &ResourceQuota, counted: &Resources, recent: &Recent) -> ResourceQuotaStatus {
    let hard = quota.spec.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
    let texts = quota.status.as_ref().and_then(|s| s.used.as_ref());
    let present = amounts(texts);
    let used = hard.keys().filter_map(|name| {
        let present = present.get(name).copied();
        let wanted = match (counted.get(name).copied(), present) {
            (Some(counted), Some(present)) if counted < present => Some(recent.with(name, counted).min(present)),
            (counted, _) => counted,
        };
        let text = match wanted {
            // An amount that did not change keeps its words.
            Some(wanted) if present != Some(wanted) => Text(wanted.to_string()),
            _ => texts?.get(name)?.clone(),
        };
        Some((name.clone(), text))
    });
    ResourceQuotaStatus { used: Some(used.collect()), hard: Some(hard) }
}

#[cfg(test)]
mod tests {
    use super::{history::tests::resources, *};
    use json::{Value, json};

    fn quota(hard: Value, status: Value) -> ResourceQuota {
        json::from_value(json!({"metadata": {"name": "q", "namespace": "d"}, "spec": {"hard": hard}, "status": status}))
            .unwrap()
    }

    #[test]
    fn the_status_is_what_was_counted() {
        // The spec's and the status' amounts, the counted ones, those charged just now; then what is written.
        let check = |hard: Value, status: Value, counted: &str, recent: &str, expected: Option<Value>| {
            let quota = quota(hard, status);
            let recent = Recent { rises: resources(recent), ..Recent::default() };
            let observed = Observed { recent, used: Some(resources(counted)) };
            let plan = ResourceQuotas::default().plan(&quota, &observed, Timestamp::UNIX_EPOCH);
            let written = plan.status.as_ref().map(|write| write.body()["status"].clone());
            assert_eq!(written, expected, "{quota:?}");
            plan.requeue_after.is_some()
        };
        let pods = || json!({"pods": "5"});
        let status = |used: &str| json!({"hard": {"pods": "5"}, "used": {"pods": used}});
        assert!(!check(pods(), Value::Null, "pods=2", "", Some(status("2"))));
        assert!(!check(pods(), status("2"), "pods=2", "pods=1", None));
        assert!(!check(pods(), status("4"), "pods=2", "", Some(status("2"))));
        assert!(check(pods(), status("4"), "pods=2", "pods=1", Some(status("3"))));
        assert!(check(pods(), status("4"), "pods=2", "pods=9", None));
        assert!(!check(pods(), status("3"), "pods=4", "pods=1", Some(status("4"))));
        // The spec changed: the new limit counts at once, and a resource that is no longer limited goes.
        let old = json!({"hard": {"pods": "5", "secrets": "1"}, "used": {"pods": "3", "secrets": "1"}});
        let new = json!({"hard": {"pods": "9"}, "used": {"pods": "3"}});
        assert!(check(json!({"pods": "9"}), old, "pods=2", "pods=1", Some(new)));
        // A resource that nobody counts has no use.
        let unknown = json!({"hard": {"example.com/x": "1"}, "used": {}});
        assert!(!check(json!({"example.com/x": "1"}), Value::Null, "", "", Some(unknown)));
        // An amount in other words is no change.
        let words = json!({"hard": {"memory": "2Gi"}, "used": {"memory": "1024Mi"}});
        assert!(!check(json!({"memory": "2Gi"}), words, "memory=1Gi", "", None));
    }

    #[test]
    fn a_quota_is_complete_when_all_that_can_be_counted_is() {
        let check = |hard: Value, status: Value, expected: bool| {
            assert_eq!(is_complete(&quota(hard.clone(), status.clone())), expected, "{hard} {status}");
        };
        check(json!({"pods": "1"}), Value::Null, false);
        check(json!({"pods": "1"}), json!({"hard": {"pods": "1"}, "used": {"pods": "0"}}), true);
        check(json!({"pods": "1"}), json!({"hard": {"pods": "2"}, "used": {"pods": "0"}}), false);
        check(json!({"pods": "1"}), json!({"hard": {"pods": "1"}}), false);
        check(json!({"example.com/x": "1"}), json!({"hard": {"example.com/x": "1"}}), true);
        check(json!({}), json!({"hard": {}, "used": {"pods": "0"}}), false);
    }
}
