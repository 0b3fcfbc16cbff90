//! PersistentVolumeClaim: the wish for a piece of storage.

mod data_source;
mod validate;

use json::{Value, json};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};

use crate::features::Feature;
use crate::kind::cell;
use crate::kind::{Gated, Kind, Target, age, col, name, wide};

pub(crate) use validate::{access_modes, not_negative, positive, spec as validate_spec, spec_warnings, volume_mode};

pub const PERSISTENT_VOLUME_CLAIM: Kind<PersistentVolumeClaim> = Kind {
    short: &["pvc"],
    status: true,
    default: Some(default),
    validate_create: Some(validate::claim),
    validate_update: Some(|new, old, _| validate::update(new, old)),
    validate_status: Some(|new, _| validate::status(new)),
    gated: &[Gated { feature: Feature::CrossNamespaceVolumeDataSource, fields: &["spec.dataSourceRef?namespace"] }],
    prepare_create: Some(|object| {
        object["status"] = json!({"phase": "Pending"});
        data_source::prepare(object, None);
    }),
    prepare_update: Some(|new, old, target| {
        if target == Target::Object {
            data_source::prepare(new, Some(old));
        }
    }),
    warnings: Some(|claim, _| validate::warnings(claim)),
    columns: &[
        name(),
        col("Status", "Pending, Bound, Lost or Terminating.", |c, _| {
            let phase = c.status.as_ref().and_then(|s| s.phase.as_ref());
            if c.metadata.deletion_timestamp.is_some() { Value::from("Terminating") } else { cell::text(phase) }
        }),
        col("Volume", "The volume that it is bound to.", |c, _| {
            cell::text(claim(c).and_then(|s| s.volume_name.as_ref()))
        }),
        col("Capacity", "How much the volume stores.", |c, _| {
            let capacity = c.status.as_ref().filter(|_| bound(c)).and_then(|s| s.capacity.as_ref());
            cell::shown_or(capacity.and_then(|m| m.get("storage")).map(|q| &q.0), "")
        }),
        col("Access Modes", "The ways in which the volume can be mounted.", |c, _| {
            Value::from(short_modes(c.status.as_ref().filter(|_| bound(c)).and_then(|s| s.access_modes.as_deref())))
        }),
        col("StorageClass", "StorageClass of the pvc", |c, _| {
            cell::text(claim(c).and_then(|s| s.storage_class_name.as_ref()))
        }),
        col("VolumeAttributesClass", "VolumeAttributesClass of the pvc", |c, _| {
            cell::text_or(claim(c).and_then(|s| s.volume_attributes_class_name.as_ref()), "<unset>")
        }),
        age(),
        wide("VolumeMode", "A filesystem or a raw block device.", |c, _| {
            cell::text_or(claim(c).and_then(|s| s.volume_mode.as_ref()), "<unset>")
        }),
    ],
    ..Kind::BASE
};

fn claim(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimSpec> {
    claim.spec.as_ref()
}

fn bound(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).is_some_and(|v| !v.is_empty())
}

/// Access modes in the order and the abbreviations of tables.
pub(crate) fn short_modes(list: Option<&[String]>) -> String {
    let has = |mode: &str| list.unwrap_or_default().iter().any(|m| m == mode);
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    known.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

pub(crate) fn default(claim: &mut PersistentVolumeClaim) {
    claim.spec.get_or_insert_default().volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    claim.status.get_or_insert_default().phase.get_or_insert_with(|| "Pending".to_owned());
}
