//! PersistentVolume and PersistentVolumeClaim: a piece of storage, and the wish for one.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec,
};
use serde_json::{Value, json};

use crate::kind::cell;
use crate::kind::{Kind, age, col, name, wide};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;

pub const PERSISTENT_VOLUME: Kind<PersistentVolume> = Kind {
    short: &["pv"],
    status: true,
    default: Some(default_volume),
    validate_update: Some(|new, old, _| validate_volume_update(new, old)),
    prepare_create: Some(|object| object["status"] = json!({"phase": "Pending"})),
    columns: &[
        name(),
        col("Capacity", "How much it stores.", |v, _| {
            let capacity = volume(v).and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage"));
            cell::shown_or(capacity.map(|q| &q.0), "")
        }),
        col("Access Modes", "All ways in which it can be mounted.", |v, _| {
            Value::from(modes(volume(v).and_then(|s| s.access_modes.as_deref())))
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

pub const PERSISTENT_VOLUME_CLAIM: Kind<PersistentVolumeClaim> = Kind {
    short: &["pvc"],
    status: true,
    default: Some(default_claim),
    validate: Some(validate_claim),
    validate_update: Some(|new, old, _| validate_claim_update(new, old)),
    prepare_create: Some(|object| object["status"] = json!({"phase": "Pending"})),
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
            Value::from(modes(c.status.as_ref().filter(|_| bound(c)).and_then(|s| s.access_modes.as_deref())))
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

fn volume(volume: &PersistentVolume) -> Option<&PersistentVolumeSpec> {
    volume.spec.as_ref()
}

fn claim(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimSpec> {
    claim.spec.as_ref()
}

fn bound(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).is_some_and(|v| !v.is_empty())
}

/// Access modes in the order and the abbreviations of tables.
fn modes(list: Option<&[String]>) -> String {
    let has = |mode: &str| list.unwrap_or_default().iter().any(|m| m == mode);
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    known.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn default_volume(volume: &mut PersistentVolume) {
    let spec = volume.spec.get_or_insert_default();
    spec.persistent_volume_reclaim_policy.get_or_insert_with(|| "Retain".to_owned());
    spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    if let Some(path) = &mut spec.host_path {
        path.type_.get_or_insert_default();
    }
    if let Some(iscsi) = &mut spec.iscsi {
        iscsi.iscsi_interface.get_or_insert_with(|| "default".to_owned());
    }
    volume.status.get_or_insert_default().phase.get_or_insert_with(|| "Pending".to_owned());
}

pub(crate) fn default_claim(claim: &mut PersistentVolumeClaim) {
    claim.spec.get_or_insert_default().volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    claim.status.get_or_insert_default().phase.get_or_insert_with(|| "Pending".to_owned());
}

fn validate_claim(object: &PersistentVolumeClaim) -> Errors {
    let none = PersistentVolumeClaimSpec::default();
    validate_claim_spec(claim(object).unwrap_or(&none), &Path::new("spec"))
}

/// The spec of a claim, of its own or in a template.
pub(crate) fn validate_claim_spec(spec: &PersistentVolumeClaimSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        let detail = "at least 1 access mode is required";
        errors.push(FieldError::required(&path.child("accessModes"), detail));
    }
    let known = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    for mode in modes.iter().filter(|m| !known.contains(&m.as_str())) {
        errors.push(FieldError::not_supported(&path.child("accessModes"), mode, known));
    }
    let place = path.child("resources").child("storage");
    match storage(spec).map(|text| (text, text.0.parse::<crate::rules::quantity::Quantity>())) {
        None => errors.push(FieldError::required(&place, "")),
        Some((text, Ok(amount))) if amount.is_zero() || amount.is_negative() => {
            errors.push(FieldError::invalid(&place, &text.0, "must be greater than zero"));
        }
        Some(_) => {}
    }
    errors
}

fn storage(spec: &PersistentVolumeClaimSpec) -> Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> {
    spec.resources.as_ref()?.requests.as_ref()?.get("storage")
}

/// Where the data are never changes; what a driver needs to let the volume grow may be added.
fn validate_volume_update(new: &PersistentVolume, old: &PersistentVolume) -> Errors {
    let (Some(new), Some(old)) = (volume(new), volume(old)) else { return Errors::new() };
    let mut errors = Errors::new();
    let mut grown = new.clone();
    if let (Some(new), Some(old)) = (&mut grown.csi, &old.csi)
        && old.controller_expand_secret_ref.is_none()
    {
        new.controller_expand_secret_ref = None;
    }
    let source = |spec: &PersistentVolumeSpec| internal_form::compact("PersistentVolumeSource", spec);
    if source(&grown) != source(old) {
        let diff = internal_form::diff("PersistentVolumeSource", old, &grown);
        let detail = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errors.push(FieldError::forbidden(&Path::new("spec").child("persistentvolumesource"), &detail));
    }
    if new.volume_mode != old.volume_mode {
        errors.push(FieldError::invalid(&Path::new("volumeMode"), &new.volume_mode, "field is immutable"));
    }
    if old.volume_attributes_class_name.is_some() && new.volume_attributes_class_name.is_none() {
        let path = Path::new("spec").child("volumeAttributesClassName");
        errors.push(FieldError::forbidden(&path, "update from non-nil value to nil is forbidden"));
    }
    errors
}

/// A bound claim can ask for more room; everything else is fixed but the volume, which is chosen once.
fn validate_claim_update(new: &PersistentVolumeClaim, old: &PersistentVolumeClaim) -> Errors {
    let (Some(after), Some(before)) = (claim(new), claim(old)) else { return Errors::new() };
    let mut errors = Errors::new();
    let mut munged = after.clone();
    if before.volume_name.as_deref().unwrap_or_default().is_empty() {
        munged.volume_name.clone_from(&before.volume_name);
    }
    if before.storage_class_name.is_none() {
        munged.storage_class_name = None;
    }
    if new.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound") {
        let requests = munged.resources.as_mut().and_then(|r| r.requests.as_mut());
        if let (Some(requests), Some(size)) = (requests, storage(before)) {
            requests.insert("storage".to_owned(), size.clone());
        }
        munged.volume_attributes_class_name.clone_from(&before.volume_attributes_class_name);
    }
    if munged != *before {
        let diff = internal_form::diff("PersistentVolumeClaimSpec", before, &munged);
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{diff}"
        );
        errors.push(FieldError::forbidden(&Path::new("spec"), &detail));
    }
    let size = |spec| storage(spec).map(crate::rules::quantity::parse).unwrap_or_default();
    let there = old.status.as_ref().and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage"));
    let there = there.map(crate::rules::quantity::parse).unwrap_or_default();
    if size(after) < size(before) && size(after) <= there {
        let path = Path::new("spec").child("resources").child("requests").child("storage");
        errors.push(FieldError::forbidden(&path, "field can not be less than status.capacity"));
    }
    if after.volume_mode != before.volume_mode {
        errors.push(FieldError::invalid(&Path::new("volumeMode"), &after.volume_mode, "field is immutable"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_stays_where_it_is() {
        let check = |old: Value, new: Value, expected: &[&str]| {
            let read = |spec: &Value| serde_json::from_value(json!({"spec": spec})).unwrap();
            let errors = validate_volume_update(&read(&new), &read(&old));
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(texts.len(), expected.len(), "{texts:?}");
            assert!(texts.iter().zip(expected).all(|(text, start)| text.starts_with(start)), "{texts:?}");
        };
        let host = |path: &str| json!({"hostPath": {"path": path}, "volumeMode": "Filesystem"});
        let fixed =
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n@@ ";
        check(host("/a"), host("/a"), &[]);
        check(host("/a"), host("/b"), &[fixed]);
        check(host("/a"), json!({"local": {"path": "/a"}, "volumeMode": "Filesystem"}), &[fixed]);
        let mut bigger = host("/a");
        bigger["capacity"] = json!({"storage": "2Gi"});
        check(host("/a"), bigger, &[]);
        let mut block = host("/a");
        block["volumeMode"] = json!("Block");
        check(host("/a"), block, &["volumeMode: Invalid value: \"Block\": field is immutable"]);
        let csi =
            |secret: Value| json!({"csi": {"driver": "x", "volumeHandle": "h", "controllerExpandSecretRef": secret}});
        let secret = |name: &str| json!({"name": name, "namespace": "d"});
        check(csi(json!(null)), csi(secret("s")), &[]);
        check(csi(secret("s")), csi(secret("t")), &[fixed]);
        let class = |class: Value| json!({"volumeAttributesClassName": class});
        check(class(json!("a")), class(json!("b")), &[]);
        let kept = "spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden";
        check(class(json!("a")), class(json!(null)), &[kept]);
    }

    #[test]
    fn claims_hardly_change() {
        let claim = |class: &str, size: &str, phase: &str| -> PersistentVolumeClaim {
            let spec =
                json!({"storageClassName": class, "volumeName": "v", "resources": {"requests": {"storage": size}}});
            serde_json::from_value(json!({"spec": spec, "status": {"phase": phase, "capacity": {"storage": "2Gi"}}}))
                .unwrap()
        };
        let check = |new: PersistentVolumeClaim, expected: &str| {
            let errors = validate_claim_update(&new, &claim("a", "2Gi", "Bound"));
            let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            assert!(if expected.is_empty() { text.is_empty() } else { text.contains(expected) }, "{text}");
        };
        check(claim("a", "3Gi", "Bound"), "");
        check(
            claim("a", "1Gi", "Bound"),
            "spec.resources.requests.storage: Forbidden: field can not be less than status",
        );
        check(claim("a", "3Gi", "Pending"), "for bound claims\n@@ ");
        check(claim("b", "2Gi", "Bound"), "- \"StorageClassName\": \"a\",\n+ \"StorageClassName\": \"b\",");
    }
}
