//! The usage of an object in its namespace's quotas. Admission charges by these rules and the controller counts by
//! them.
//!
//! A quota's resource belongs to one kind (`limits.cpu` to Pods, `services.nodeports` to Services); `count/PLURAL.GROUP`
//! counts the objects of any kind.
//! Upstream counterpart: pkg/quota/v1.

mod claims;
pub mod extended;
mod pods;
mod services;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use json::Value;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde::de::DeserializeOwned;

pub use self::pods::is_terminating;
use crate::rules::pod::Resources;
use crate::rules::quantity::{Format, Quantity, parse};
use crate::rules::selector::{Operator, Requirement};

/// An object that quotas count.
pub trait Usage {
    /// All that it uses, by the names that quotas have for it.
    fn used(&self, now: Timestamp) -> Resources;
    /// Whether it is in the scope.
    fn is_in(&self, _scope: &ScopedResourceSelectorRequirement) -> bool {
        false
    }
    /// The values that an object must state because a quota limits these resources, as the end of a sentence: `must
    /// specify …`.
    fn unstated(&self, _limited: &BTreeSet<&str>) -> Option<String> {
        None
    }
}

/// How the objects of one resource are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counter {
    Pods,
    Services,
    VolumeClaims,
    DeviceClaims,
    /// By their number alone; some kinds have an older name for it too.
    Objects {
        count: String,
        alias: Option<&'static str>,
    },
}

/// Resources that no quota counts: events, and what is never stored.
const IGNORED: &[(&str, &str)] = &[
    ("", "bindings"),
    ("", "componentstatuses"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
];

/// Kinds of the core group that may be counted by their plural alone.
const ALIASES: &[&str] = &["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];

impl Counter {
    pub fn of(group: &str, plural: &str) -> Option<Counter> {
        if IGNORED.contains(&(group, plural)) {
            return None;
        }
        Some(match (group, plural) {
            ("", "pods") => Counter::Pods,
            ("", "services") => Counter::Services,
            ("", "persistentvolumeclaims") => Counter::VolumeClaims,
            ("resource.k8s.io", "resourceclaims") => Counter::DeviceClaims,
            _ => Counter::Objects {
                count: count(group, plural),
                alias: ALIASES.iter().copied().find(|alias| group.is_empty() && *alias == plural),
            },
        })
    }

    /// The counter of a quota's resource, and for [`Counter::Objects`] the resource's group and plural. `None` for a name
    /// that belongs to no kind.
    pub fn of_name(name: &str) -> Option<(Counter, String, String)> {
        let whole = |counter, group: &str, plural: &str| Some((counter, group.to_owned(), plural.to_owned()));
        if Counter::Pods.counts(name) {
            return whole(Counter::Pods, "", "pods");
        }
        if Counter::Services.counts(name) {
            return whole(Counter::Services, "", "services");
        }
        if Counter::VolumeClaims.counts(name) {
            return whole(Counter::VolumeClaims, "", "persistentvolumeclaims");
        }
        if Counter::DeviceClaims.counts(name) {
            return whole(Counter::DeviceClaims, "resource.k8s.io", "resourceclaims");
        }
        let resource = name.strip_prefix("count/").or_else(|| ALIASES.iter().copied().find(|alias| *alias == name))?;
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        whole(Counter::of(group, plural)?, group, plural)
    }

    /// Whether a quota's resource of this name is about these objects.
    pub fn counts(&self, name: &str) -> bool {
        match self {
            Counter::Pods => pods::counts(name),
            Counter::Services => services::counts(name),
            Counter::VolumeClaims => claims::counts_volume_claims(name),
            Counter::DeviceClaims => claims::counts_device_claims(name),
            Counter::Objects { count, alias } => name == count || *alias == Some(name),
        }
    }

    /// The object as quotas see it.
    pub fn read(&self, object: &Value) -> Result<Box<dyn Usage + Send>, serde_json::Error> {
        fn typed<T: DeserializeOwned + Usage + Send + 'static>(
            object: &Value,
        ) -> Result<Box<dyn Usage + Send>, serde_json::Error> {
            Ok(Box::new(T::deserialize(object)?))
        }
        match self {
            Counter::Pods => typed::<Pod>(object),
            Counter::Services => typed::<Service>(object),
            Counter::VolumeClaims => typed::<PersistentVolumeClaim>(object),
            Counter::DeviceClaims => typed::<ResourceClaim>(object),
            Counter::Objects { .. } => Ok(Box::new(self.clone())),
        }
    }
}

/// Any object that is counted by its number.
impl Usage for Counter {
    fn used(&self, _: Timestamp) -> Resources {
        match self {
            Counter::Objects { count, alias } => {
                let names = [Some(count.as_str()), *alias];
                names.into_iter().flatten().map(|name| (name.to_owned(), number(1))).collect()
            }
            _ => Resources::new(),
        }
    }
}

/// The name by which a quota limits the number of a kind's objects.
pub fn count(group: &str, plural: &str) -> String {
    if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") }
}

fn number(value: i64) -> Quantity {
    Quantity::new(value, Format::DecimalSi)
}

/// All conditions on the objects that a quota is for.
pub fn scopes(spec: &ResourceQuotaSpec) -> Vec<ScopedResourceSelectorRequirement> {
    let plain = spec.scopes.iter().flatten().map(|scope| ScopedResourceSelectorRequirement {
        scope_name: scope.clone(),
        operator: "Exists".to_owned(),
        values: None,
    });
    let selected = spec.scope_selector.iter().flat_map(|s| s.match_expressions.iter().flatten().cloned());
    plain.chain(selected).collect()
}

/// Whether the object is in all of the scopes.
pub fn is_in_all(object: &dyn Usage, scopes: &[ScopedResourceSelectorRequirement]) -> bool {
    scopes.iter().all(|scope| object.is_in(scope))
}

/// Whether a scope's operator and values take one of the names; none at all is the absence of a name.
fn takes(scope: &ScopedResourceSelectorRequirement, names: &[&str]) -> bool {
    let operator = match scope.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => return !names.is_empty(),
        "DoesNotExist" => Operator::DoesNotExist,
        _ => return false,
    };
    let values: Vec<&str> = scope.values.iter().flatten().map(String::as_str).collect();
    let requirement = Requirement::new_set(&scope.scope_name, operator, &values);
    let label = |name: &str| BTreeMap::from([(scope.scope_name.clone(), name.to_owned())]);
    if names.is_empty() {
        return requirement.matches(&BTreeMap::new());
    }
    names.iter().any(|name| requirement.matches(&label(name)))
}

/// The amounts of a quota's `hard` or `used`.
pub fn amounts(texts: Option<&BTreeMap<String, Text>>) -> Resources {
    texts.into_iter().flatten().map(|(name, text)| (name.clone(), parse(text))).collect()
}

/// The sum of all that these objects use of the resources that a quota limits, each at least zero.
pub fn total<'a>(
    objects: impl IntoIterator<Item = &'a dyn Usage>,
    scopes: &[ScopedResourceSelectorRequirement],
    limited: &BTreeSet<&str>,
    now: Timestamp,
) -> Resources {
    let mut sum: Resources = limited.iter().map(|name| ((*name).to_owned(), number(0))).collect();
    for object in objects.into_iter().filter(|object| is_in_all(*object, scopes)) {
        for (name, amount) in object.used(now) {
            if let Some(sum) = sum.get_mut(&name) {
                *sum += amount;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    /// The words of an object's use, `name=amount` in order.
    pub(super) fn used(plural: &str, object: Value) -> String {
        let group = if plural == "resourceclaims" { "resource.k8s.io" } else { "" };
        let counter = Counter::of(group, plural).unwrap();
        let usage = counter.read(&object).unwrap().used(Timestamp::from_second(1000).unwrap());
        assert!(usage.keys().all(|name| counter.counts(name)), "{usage:?}");
        usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_resource_of_a_quota_belongs_to_a_kind() {
        let check = |name: &str, expected: Option<&str>| {
            let found = Counter::of_name(name).map(|(_, group, plural)| format!("{plural}.{group}"));
            assert_eq!(found.as_deref(), expected, "{name}");
        };
        for name in ["pods", "cpu", "limits.memory", "requests.example.com/gpu", "hugepages-2Mi", "count/pods"] {
            check(name, Some("pods."));
        }
        check("requests.storage", Some("persistentvolumeclaims."));
        check("gold.storageclass.storage.k8s.io/requests.storage", Some("persistentvolumeclaims."));
        check("services.nodeports", Some("services."));
        check("gpu.deviceclass.resource.k8s.io/devices", Some("resourceclaims.resource.k8s.io"));
        check("count/deployments.apps", Some("deployments.apps"));
        check("count/widgets.example.com", Some("widgets.example.com"));
        check("secrets", Some("secrets."));
        check("count/secrets", Some("secrets."));
        check("count/events", None);
        check("example.com/gpu", None);
        check("ephemeral-storage", Some("pods."));
        for name in [
            "storage",
            "gold.storageclass.storage.k8s.io/storage",
            "gold.storage.k8s.io/requests.storage",
            "resourceclaims",
            "gpu.deviceclass.resource.k8s.io/storage",
            "endpoints",
        ] {
            check(name, None);
        }
    }

    #[test]
    fn other_kinds_are_counted() {
        assert_eq!(used("secrets", json!({})), "count/secrets=1 secrets=1");
        assert_eq!(used("endpoints", json!({})), "count/endpoints=1");
        let none = total([] as [&dyn Usage; 0], &[], &["pods", "cpu"].into(), Timestamp::UNIX_EPOCH);
        assert_eq!(none, [("cpu".to_owned(), number(0)), ("pods".to_owned(), number(0))].into());
    }
}
