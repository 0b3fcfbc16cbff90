//! Claims: on volumes, whose number and size count for all and for their storage class, and on devices, by device class.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ScopedResourceSelectorRequirement};
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::{Resources, Usage, number, takes};
use crate::rules::quantity::{Quantity, parse};

const OF_STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const OF_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";
/// The number of devices that a request for all devices may get.
const DEVICES_MAX: i64 = 32;

pub(super) fn counts_volume_claims(name: &str) -> bool {
    let of_class = || [CLAIMS, STORAGE].iter().any(|what| name.ends_with(&format!("{OF_STORAGE_CLASS}{what}")));
    matches!(name, "count/persistentvolumeclaims" | CLAIMS | STORAGE) || of_class()
}

pub(super) fn counts_device_claims(name: &str) -> bool {
    name == "count/resourceclaims.resource.k8s.io" || name.ends_with(OF_DEVICE_CLASS)
}

fn class(claim: &PersistentVolumeClaim) -> &str {
    let annotations = claim.metadata.annotations.as_ref();
    let old = annotations.and_then(|a| a.get("volume.beta.kubernetes.io/storage-class"));
    let class = old.or_else(|| claim.spec.as_ref().and_then(|s| s.storage_class_name.as_ref()));
    class.map_or("", String::as_str)
}

/// In whole bytes: what is asked for, or what was set aside already if that is more.
fn size(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let whole = |amount: Quantity| amount.rounded_to_whole();
    let asked = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let allocated = claim.status.as_ref().and_then(|s| s.allocated_resources.as_ref()?.get("storage"));
    let asked = parse(asked);
    Some(whole(allocated.map(parse).filter(|allocated| *allocated > asked).unwrap_or(asked)))
}

impl Usage for PersistentVolumeClaim {
    fn used(&self, _: Timestamp) -> Resources {
        let class = class(self);
        let mut used: Resources = [CLAIMS, "count/persistentvolumeclaims"].map(|n| (n.to_owned(), number(1))).into();
        if !class.is_empty() {
            used.insert(format!("{class}{OF_STORAGE_CLASS}{CLAIMS}"), number(1));
        }
        if let Some(size) = size(self) {
            used.insert(STORAGE.to_owned(), size);
            if !class.is_empty() {
                used.insert(format!("{class}{OF_STORAGE_CLASS}{STORAGE}"), size);
            }
        }
        used
    }

    /// By the attribute classes that it wants, has, or is on the way to.
    fn is_in(&self, scope: &ScopedResourceSelectorRequirement) -> bool {
        if scope.scope_name != "VolumeAttributesClass" {
            return false;
        }
        let status = self.status.as_ref();
        let names = [
            self.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()),
            status.and_then(|s| s.current_volume_attributes_class_name.as_deref()),
            status.and_then(|s| s.modify_volume_status.as_ref()?.target_volume_attributes_class_name.as_deref()),
        ];
        let names: Vec<&str> = names.into_iter().flatten().filter(|name| !name.is_empty()).collect();
        takes(scope, &names)
    }
}

/// The most devices that a request may get; a mode that is not known counts nothing.
fn devices(mode: Option<&str>, count: Option<i64>) -> i64 {
    match mode {
        Some("ExactCount") | None => count.unwrap_or(1),
        Some("All") => DEVICES_MAX,
        Some(_) => 0,
    }
}

/// The most devices of each class that a claim may get.
pub(super) fn by_class(claim: &ResourceClaim) -> BTreeMap<&str, Quantity> {
    let mut all: BTreeMap<&str, Quantity> = BTreeMap::new();
    for request in claim.spec.devices.iter().flat_map(|d| d.requests.iter().flatten()) {
        // Of alternatives one is taken: the worst for each class counts.
        let mut most: BTreeMap<&str, i64> = BTreeMap::new();
        for sub in request.first_available.iter().flatten() {
            let number = devices(sub.allocation_mode.as_deref(), sub.count);
            let entry = most.entry(&sub.device_class_name).or_default();
            *entry = number.max(*entry);
        }
        if let Some(exactly) = request.exactly.as_ref().filter(|_| most.is_empty()) {
            let number = devices(exactly.allocation_mode.as_deref(), exactly.count);
            most.insert(&exactly.device_class_name, number);
        }
        for (class, devices) in most {
            *all.entry(class).or_default() += number(devices);
        }
    }
    all
}

impl Usage for ResourceClaim {
    fn used(&self, _: Timestamp) -> Resources {
        let mut used = Resources::from([("count/resourceclaims.resource.k8s.io".to_owned(), number(1))]);
        let devices = by_class(self).into_iter();
        used.extend(devices.map(|(class, devices)| (format!("{class}{OF_DEVICE_CLASS}"), devices)));
        used
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Counter, tests::used};
    use json::{Value, json};

    #[test]
    fn volume_claims_count_for_their_class_too() {
        let claim = |spec: Value, status: Value| json!({"spec": spec, "status": status});
        let size = |size: &str| json!({"requests": {"storage": size}});
        let plain = used("persistentvolumeclaims", claim(json!({"resources": size("10Gi")}), json!({})));
        assert_eq!(plain, "count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=10Gi");
        let gold = json!({"resources": size("1500m"), "storageClassName": "gold"});
        let expected = "count/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
                        gold.storageclass.storage.k8s.io/requests.storage=2 persistentvolumeclaims=1 requests.storage=2";
        assert_eq!(used("persistentvolumeclaims", claim(gold, json!({}))), expected);
        let shrunk = claim(json!({"resources": size("5Gi")}), json!({"allocatedResources": {"storage": "10Gi"}}));
        assert!(used("persistentvolumeclaims", shrunk).ends_with("requests.storage=10Gi"));
        let grown = claim(json!({"resources": size("10G")}), json!({"allocatedResources": {"storage": "5G"}}));
        assert!(used("persistentvolumeclaims", grown).ends_with("requests.storage=10G"));
    }

    #[test]
    fn a_volume_claim_is_in_the_scope_of_each_of_its_attribute_classes() {
        let check = |claim: Value, operator: &str, values: &[&str], expected: bool| {
            let scope =
                json::from_value(json!({"scopeName": "VolumeAttributesClass", "operator": operator, "values": values}));
            let claim = Counter::VolumeClaims.read(&claim).unwrap();
            assert_eq!(claim.is_in(&scope.unwrap()), expected, "{operator} {values:?}");
        };
        let none = json!({"spec": {}});
        let moving = json!({"spec": {"volumeAttributesClassName": "gold"},
            "status": {"currentVolumeAttributesClassName": "silver"}});
        check(none.clone(), "Exists", &[], false);
        check(none.clone(), "DoesNotExist", &[], true);
        check(none, "NotIn", &["gold"], true);
        check(moving.clone(), "Exists", &[], true);
        check(moving.clone(), "In", &["silver"], true);
        check(moving.clone(), "In", &["gold"], true);
        check(moving.clone(), "In", &["bronze"], false);
        check(moving, "DoesNotExist", &[], false);
    }

    /// Upstream: TestResourceClaimEvaluatorUsage.
    #[test]
    fn device_claims_count_by_the_mode_of_their_requests() {
        let check = |requests: Value, expected: &str| {
            let claim = json!({"spec": {"devices": {"requests": requests}}});
            let of_classes = used("resourceclaims", claim).replace(".deviceclass.resource.k8s.io/devices", "");
            let expected = format!("count/resourceclaims.resource.k8s.io=1 {expected}");
            assert_eq!(of_classes, expected.trim_end(), "{requests}");
        };
        let of = |class: &str, mode: &str, count: i64| json!({"name": "s", "deviceClassName": class, "allocationMode": mode, "count": count});
        let exactly = |mode: &str, count: i64| json!({"name": "r", "exactly": of("gpu", mode, count)});
        let first = |of: &[Value]| json!({"name": "r", "firstAvailable": of});
        let one = exactly("ExactCount", 1);
        check(json!([]), "");
        check(json!([one]), "gpu=1");
        check(json!([one, one, one, one, one]), "gpu=5");
        check(json!([exactly("ExactCount", 5)]), "gpu=5");
        check(json!([exactly("All", 0)]), "gpu=32");
        check(json!([exactly("future-mode", 1)]), "gpu=0");
        let mut admin = one.clone();
        admin["exactly"]["adminAccess"] = json!(true);
        check(json!([admin]), "gpu=1");
        let gpu = of("gpu", "ExactCount", 1);
        check(json!([first(std::slice::from_ref(&gpu))]), "gpu=1");
        check(json!([first(&[of("gpu", "ExactCount", 2), gpu.clone()])]), "gpu=2");
        check(json!([first(&[gpu.clone(), of("gpu", "All", 0)])]), "gpu=32");
        check(json!([first(&[gpu.clone(), of("tpu", "All", 0)])]), "gpu=1 tpu=32");
    }

    #[test]
    fn device_claims_count_the_worst_that_they_may_get() {
        let claim = json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
            {"name": "b", "exactly": {"deviceClassName": "nic", "allocationMode": "All"}},
            {"name": "c", "firstAvailable": [
                {"name": "x", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
                {"name": "y", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 4},
                {"name": "z", "deviceClassName": "tpu", "allocationMode": "ExactCount", "count": 1},
            ]},
        ]}}});
        let expected = "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=6 \
                        nic.deviceclass.resource.k8s.io/devices=32 tpu.deviceclass.resource.k8s.io/devices=1";
        assert_eq!(used("resourceclaims", claim), expected);
    }
}
