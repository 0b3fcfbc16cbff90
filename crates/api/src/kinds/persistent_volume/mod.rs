//! PersistentVolume: a piece of storage that claims can have.

mod validate;

use json::{Value, json};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};

use crate::kind::cell;
use crate::kind::{Kind, Target, age, col, name, wide};
use crate::kinds::persistent_volume_claim::short_modes;
use crate::kinds::volume_source::default_sources;

pub(crate) use validate::spec as validate_spec;

pub const PERSISTENT_VOLUME: Kind<PersistentVolume> = Kind {
    short: &["pv"],
    status: true,
    default: Some(default),
    validate_create: Some(validate::volume),
    validate_update: Some(|new, old, _| validate::update(new, old)),
    prepare_create: Some(prepare_create),
    prepare_update: Some(prepare_update),
    warnings: Some(|volume, _| validate::warnings(volume)),
    columns: &[
        name(),
        col("Capacity", "How much it stores.", |v, _| {
            let capacity = volume(v).and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage"));
            cell::shown_or(capacity.map(|q| &q.0), "")
        }),
        col("Access Modes", "All ways in which it can be mounted.", |v, _| {
            Value::from(short_modes(volume(v).and_then(|s| s.access_modes.as_deref())))
        }),
        col("Reclaim Policy", "What happens to it when its claim goes.", |v, _| {
            cell::text(volume(v).and_then(|s| s.persistent_volume_reclaim_policy.as_ref()))
        }),
        col("Status", "Available, Bound, Released, Failed or Terminating.", |v, _| {
            let phase = v.status.as_ref().and_then(|s| s.phase.as_ref());
            if v.metadata.deletion_timestamp.is_some() { Value::from("Terminating") } else { cell::text(phase) }
        }),
        col("Claim", "The claim that it is bound to.", |v, _| {
            let claim = volume(v).and_then(|s| s.claim_ref.as_ref());
            let part = |p: &Option<String>| p.clone().unwrap_or_default();
            cell::shown_or(claim.map(|c| format!("{}/{}", part(&c.namespace), part(&c.name))), "")
        }),
        col("StorageClass", "StorageClass of the pv", |v, _| {
            cell::text(volume(v).and_then(|s| s.storage_class_name.as_ref()))
        }),
        col("VolumeAttributesClass", "VolumeAttributesClass of the pv", |v, _| {
            cell::text_or(volume(v).and_then(|s| s.volume_attributes_class_name.as_ref()), "<unset>")
        }),
        col("Reason", "Why it failed.", |v, _| cell::text(v.status.as_ref().and_then(|s| s.reason.as_ref()))),
        age(),
        wide("VolumeMode", "A filesystem or a raw block device.", |v, _| {
            cell::text_or(volume(v).and_then(|s| s.volume_mode.as_ref()), "<unset>")
        }),
    ],
    ..Kind::BASE
};

fn volume(volume: &PersistentVolume) -> Option<&PersistentVolumeSpec> {
    volume.spec.as_ref()
}

fn default(volume: &mut PersistentVolume) {
    let spec = volume.spec.get_or_insert_default();
    spec.persistent_volume_reclaim_policy.get_or_insert_with(|| "Retain".to_owned());
    spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    default_sources!(spec);
    volume.status.get_or_insert_default().phase.get_or_insert_with(|| "Pending".to_owned());
}

/// A new volume waits for the binder from the moment it is made.
fn prepare_create(object: &mut Value) {
    let made = object.get("metadata").and_then(|m| m.get("creationTimestamp")).cloned().unwrap_or_default();
    object["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": made});
}

/// The time of the last change of the phase stays as long as the phase does.
fn prepare_update(new: &mut Value, old: &Value, target: Target) {
    let status = |object: &Value, field: &str| object.get("status").and_then(|status| status.get(field)).cloned();
    let same = status(new, "phase") == status(old, "phase") && status(new, "lastPhaseTransitionTime").is_none();
    if target == Target::Status
        && same
        && let Some(time) = status(old, "lastPhaseTransitionTime")
        && let Some(map) = new.get_mut("status").and_then(Value::as_object_mut)
    {
        map.insert("lastPhaseTransitionTime", time);
    }
}
