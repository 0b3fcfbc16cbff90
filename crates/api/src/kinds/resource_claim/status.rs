//! The validation of a ResourceClaim's status and of its changes: the devices that a claim has are exchanged for others
//! only by way of none, and only a claim that has devices has users.

use json::{Value, json};
use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, AllocationResult, DeviceAllocationConfiguration, DeviceRequestAllocationResult,
    NetworkDeviceData, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus,
};

use super::parts::{self, PARAMETERS_MAX, list, set};
use super::request::{LIST_MAX, Names, configuration};
use crate::kinds::pod::placement;
use crate::object::Object;
use crate::validation::conditions;
use crate::validation::field::{Errors, FieldError, Path};

const USERS_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
const CONDITIONS_MAX: usize = 8;
const INTERFACE_NAME_MAX: usize = 256;
const HARDWARE_ADDRESS_MAX: usize = 128;
const ADDRESSES_MAX: usize = 16;

pub(super) fn validate(new: &Value, old: &Value) -> Errors {
    let (Ok(new), Ok(old)) = (ResourceClaim::from_value(new), ResourceClaim::from_value(old)) else {
        return Errors::new();
    };
    let (none, path) = (ResourceClaimStatus::default(), Path::new("status"));
    let (status, before) = (new.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
    let mut errors = users(&new, status, before, &path.child("reservedFor"));
    errors.extend(set(status.devices.as_ref(), usize::MAX, &path.child("devices"), id_of_status, |device, path| {
        device_status(device, status.allocation.as_ref(), path)
    }));
    let place = path.child("allocation");
    match (&status.allocation, &before.allocation) {
        (Some(now), Some(held)) if now != held => errors.push(FieldError::invalid(&place, now, "field is immutable")),
        (Some(now), None) => errors.extend(allocation(now, &Names::of(new.spec.devices.as_ref()), &place)),
        _ => {}
    }
    errors
}

fn users(claim: &ResourceClaim, status: &ResourceClaimStatus, before: &ResourceClaimStatus, path: &Path) -> Errors {
    let user = |user: &ResourceClaimConsumerReference, path: &Path| {
        let fields = [("resource", &user.resource), ("name", &user.name), ("uid", &user.uid)];
        let empty = fields.into_iter().filter(|(_, value)| value.is_empty());
        empty.map(|(field, _)| FieldError::required(&path.child(field), "")).collect()
    };
    let users = status.reserved_for.as_ref();
    let mut errors = set(users, USERS_MAX, path, |user| Value::from(user.uid.as_str()), user);
    if users.is_none_or(Vec::is_empty) {
        return errors;
    }
    if status.allocation.is_none() {
        errors.push(FieldError::forbidden(path, "may not be specified when `allocated` is not set"));
    } else if claim.metadata.deletion_timestamp.is_some() {
        let held = before.reserved_for.as_deref().unwrap_or_default();
        if users.into_iter().flatten().any(|user| !held.contains(user)) {
            let detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(FieldError::forbidden(path, detail));
        }
    }
    errors
}

fn allocation(allocation: &AllocationResult, names: &Names, path: &Path) -> Errors {
    let place = path.child("devices");
    let devices = allocation.devices.as_ref();
    let result = |result: &DeviceRequestAllocationResult, path: &Path| {
        let mut errors = names.check(&result.request, &path.child("request"));
        errors.extend(parts::driver(&result.driver, &path.child("driver")));
        errors.extend(parts::pool(&result.pool, &path.child("pool")));
        errors.extend(parts::label(&result.device, &path.child("device")));
        let (waits, fails) = (result.binding_conditions.as_ref(), result.binding_failure_conditions.as_ref());
        errors.extend(parts::binding(waits, fails, path));
        errors
    };
    let results = devices.and_then(|devices| devices.results.as_ref());
    let mut errors = list(results, RESULTS_MAX, &place.child("results"), result);
    let config = |config: &DeviceAllocationConfiguration, path: &Path| {
        let place = path.child("source");
        let mut errors = match config.source.as_str() {
            "" => vec![FieldError::required(&place, "")],
            "FromClass" | "FromClaim" => Errors::new(),
            other => vec![FieldError::not_supported(&place, other, &["FromClaim", "FromClass"])],
        };
        errors.extend(names.check_all(config.requests.as_ref(), path));
        errors.extend(configuration(config.opaque.as_ref(), path));
        errors
    };
    // Those of classes, and those of the claim.
    let configs = devices.and_then(|devices| devices.config.as_ref());
    errors.extend(list(configs, 2 * LIST_MAX, &place.child("config"), config));
    if let Some(nodes) = &allocation.node_selector {
        errors.extend(placement::node_selector(nodes, &path.child("nodeSelector")));
    }
    errors
}

fn id(driver: &str, pool: &str, device: &str) -> Value {
    json!({"Driver": driver, "Pool": pool, "Device": device})
}

/// A device that is shared comes once for each share.
fn share(mut id: Value, share: Option<&String>) -> Value {
    if let Some(share) = share {
        id["ShareID"] = json!(share);
    }
    id
}

fn id_of_status(device: &AllocatedDeviceStatus) -> Value {
    share(id(&device.driver, &device.pool, &device.device), device.share_id.as_ref())
}

fn device_status(device: &AllocatedDeviceStatus, allocation: Option<&AllocationResult>, path: &Path) -> Errors {
    let mut errors = parts::driver(&device.driver, &path.child("driver"));
    errors.extend(parts::pool(&device.pool, &path.child("pool")));
    errors.extend(parts::label(&device.device, &path.child("device")));
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
    let own = id_of_status(device);
    let of_result = |result: &DeviceRequestAllocationResult| {
        share(id(&result.driver, &result.pool, &result.device), result.share_id.as_ref())
    };
    if !results.into_iter().flatten().any(|result| of_result(result) == own) {
        errors.push(FieldError::invalid(path, own, "must be an allocated device in the claim"));
    }
    let place = path.child("conditions");
    let list = device.conditions.as_deref().unwrap_or_default();
    if list.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(&place, list.len(), CONDITIONS_MAX));
    }
    errors.extend(conditions::validate(list, &place));
    if let Some(data) = device.data.as_ref().filter(|data| !data.0.is_null()) {
        errors.extend(parts::json_object(&(&data.0).into(), PARAMETERS_MAX, &path.child("data")));
    }
    if let Some(data) = &device.network_data {
        errors.extend(network(data, &path.child("networkData")));
    }
    errors
}

fn network(data: &NetworkDeviceData, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, value, max) in [
        ("interfaceName", &data.interface_name, INTERFACE_NAME_MAX),
        ("hardwareAddress", &data.hardware_address, HARDWARE_ADDRESS_MAX),
    ] {
        if value.as_ref().is_some_and(|value| value.len() > max) {
            errors.push(FieldError::too_long(&path.child(field), max));
        }
    }
    let key = |address: &String| Value::from(address.as_str());
    errors.extend(set(data.ips.as_ref(), ADDRESSES_MAX, &path.child("ips"), key, |address, path| {
        interface_address(address, path)
    }));
    errors
}

/// An address of an interface: the address itself, with the length of its network.
fn interface_address(text: &str, path: &Path) -> Errors {
    let wrong = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let address: std::net::IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.parse::<u8>().ok().filter(|length| *length <= most)?;
        Some(format!("{address}/{length}"))
    });
    match parsed {
        None => vec![FieldError::invalid(path, text, wrong)],
        Some(canonical) if canonical != text => {
            vec![FieldError::invalid(path, text, &format!("must be in canonical form ({canonical:?})"))]
        }
        Some(_) => Errors::new(),
    }
}
