//! The validation of a PersistentVolume and of its changes.
//! Upstream counterpart: `ValidatePersistentVolumeSpec` and its neighbours in pkg/apis/core/validation.

use json::Value;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, VolumeNodeAffinity};

use crate::kinds::persistent_volume_claim::{access_modes, not_negative, positive, volume_mode};
use crate::kinds::pod::placement;
use crate::kinds::volume_source::{self, Owner};
use crate::rules::node_label;
use crate::rules::quantity;
use crate::rules::volume::{CLASS, annotation};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta::invalid_at;
use crate::validation::relative_path::no_backsteps;

const INLINE: &str = "may not be specified in the context of inline volumes";
const RECLAIM: &str = "persistentVolumeReclaimPolicy";

/// Labels of nodes that have new names.
const RENAMED_LABELS: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// The sorts of volumes in upstream's order: the name in messages, and the field.
const SORTS: &[(&str, &str)] = &[
    ("hostPath", "hostPath"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("nfs", "nfs"),
    ("rbd", "rbd"),
    ("quobyte", "quobyte"),
    ("cephFS", "cephfs"),
    ("iscsi", "iscsi"),
    ("cinder", "cinder"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("scaleIO", "scaleIO"),
    ("local", "local"),
    ("storageos", "storageos"),
    ("csi", "csi"),
];

pub(super) fn volume(volume: &PersistentVolume) -> Errors {
    let none = PersistentVolumeSpec::default();
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    spec(volume.spec.as_ref().unwrap_or(&none), name, false, &Path::new("spec"))
}

/// The spec of a volume, of its own or (`inline`) in an attachment.
pub(crate) fn spec(spec: &PersistentVolumeSpec, name: &str, inline: bool, path: &Path) -> Errors {
    let mut errors = if inline { only_inline(spec, path) } else { Errors::new() };
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    errors.extend(access_modes(modes, path));
    if !inline {
        errors.extend(capacity(spec, path));
    }
    errors.extend(reclaim_policy(spec, inline, path));
    errors.extend(spec.node_affinity.iter().flat_map(|affinity| node_affinity(affinity, inline, path)));
    errors.extend(sources(spec, name, inline, path));
    let policy = spec.persistent_volume_reclaim_policy.as_deref();
    if spec.host_path.as_ref().is_some_and(|host| is_root(&host.path)) && policy == Some("Recycle") {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(FieldError::forbidden(&path.child(RECLAIM), detail));
    }
    let class = spec.storage_class_name.as_deref().unwrap_or_default();
    if inline && !class.is_empty() {
        errors.push(FieldError::forbidden(&path.child("storageClassName"), INLINE));
    } else if !class.is_empty() {
        errors.extend(invalid_at(path, "storageClassName", class, names::dns1123_subdomain(class)));
    }
    if !inline {
        errors.extend(volume_mode(spec.volume_mode.as_deref(), path));
        errors.extend(attributes_class(spec, path));
    } else if spec.volume_mode.as_deref().is_some_and(|mode| mode != "Filesystem") {
        let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        errors.push(FieldError::forbidden(&path.child("volumeMode"), detail));
    }
    errors
}

fn only_inline(spec: &PersistentVolumeSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if spec.claim_ref.is_some() {
        errors.push(FieldError::forbidden(&path.child("claimRef"), INLINE));
    }
    if spec.capacity.as_ref().is_some_and(|capacity| !capacity.is_empty()) {
        errors.push(FieldError::forbidden(&path.child("capacity"), INLINE));
    }
    if spec.csi.is_none() {
        let detail = "has to be specified in the context of inline volumes";
        errors.push(FieldError::required(&path.child("csi"), detail));
    }
    errors
}

fn capacity(spec: &PersistentVolumeSpec, path: &Path) -> Errors {
    let path = path.child("capacity");
    let mut errors = Errors::new();
    let none = Default::default();
    let capacity = spec.capacity.as_ref().unwrap_or(&none);
    if capacity.is_empty() {
        errors.push(FieldError::required(&path, ""));
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        let shown = spec.capacity.as_ref().filter(|capacity| !capacity.is_empty());
        errors.push(FieldError::not_supported(&path, shown, &["storage"]));
    }
    for (resource, amount) in capacity {
        let place = path.key(resource);
        errors.extend(not_negative(quantity::parse(amount), &place));
        errors.extend(positive(amount, &place));
    }
    errors
}

fn reclaim_policy(spec: &PersistentVolumeSpec, inline: bool, path: &Path) -> Option<FieldError> {
    let policy = spec.persistent_volume_reclaim_policy.as_deref().filter(|policy| !policy.is_empty())?;
    let path = path.child(RECLAIM);
    if inline {
        let detail = "may only be Retain in the context of inline volumes";
        return (policy != "Retain").then(|| FieldError::forbidden(&path, detail));
    }
    let known = &["Delete", "Recycle", "Retain"];
    (!known.contains(&policy)).then(|| FieldError::not_supported(&path, policy, known))
}

fn node_affinity(affinity: &VolumeNodeAffinity, inline: bool, path: &Path) -> Errors {
    let path = path.child("nodeAffinity");
    if inline {
        return vec![FieldError::forbidden(&path, INLINE)];
    }
    let path = path.child("required");
    match &affinity.required {
        Some(required) => placement::node_selector(required, &path),
        None => vec![FieldError::required(&path, "must specify required node constraints")],
    }
}

/// Exactly one sort of source. The fields of a Flexvolume are checked wherever it stands.
fn sources(spec: &PersistentVolumeSpec, name: &str, inline: bool, path: &Path) -> Errors {
    let whole = json::to_value(spec).unwrap_or_default();
    let mut errors = Errors::new();
    let mut first = true;
    for (shown, field) in SORTS {
        let Some(source) = whole.get(*field) else { continue };
        if first || *field == "flexVolume" {
            errors.extend(source_of(field, source, spec, name, inline, path));
        } else {
            errors.push(FieldError::forbidden(&path.child(shown), "may not specify more than 1 volume type"));
        }
        first = false;
    }
    if first {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
    errors
}

fn source_of(
    field: &str,
    source: &Value,
    spec: &PersistentVolumeSpec,
    name: &str,
    inline: bool,
    path: &Path,
) -> Errors {
    let place = path.child(field);
    match (&spec.host_path, &spec.local) {
        (Some(host), _) if field == "hostPath" => volume_source::host_path(host, &place),
        (_, Some(local)) if field == "local" => {
            let place = place.child("path");
            let mut errors: Errors = match local.path.as_str() {
                "" => vec![FieldError::required(&place, "")],
                text => no_backsteps(text, &place).into_iter().collect(),
            };
            if inline || spec.node_affinity.is_none() {
                let detail = "Local volume requires node affinity";
                errors.push(FieldError::required(&path.child("nodeAffinity"), detail));
            }
            errors
        }
        _ => volume_source::check(field, source, Owner::Volume(name), path),
    }
}

/// Whether a path leads to the root of the node, by whatever way.
fn is_root(path: &str) -> bool {
    let depth = path.split('/').fold(0_usize, |depth, part| match part {
        "" | "." => depth,
        ".." => depth.saturating_sub(1),
        _ => depth + 1,
    });
    path.starts_with('/') && depth == 0
}

fn attributes_class(spec: &PersistentVolumeSpec, path: &Path) -> Errors {
    let field = "volumeAttributesClassName";
    let mut errors = match spec.volume_attributes_class_name.as_deref() {
        None => return Errors::new(),
        Some("") => vec![FieldError::required(&path.child(field), "an empty string is disallowed")],
        Some(class) => invalid_at(path, field, class, names::dns1123_subdomain(class)),
    };
    if spec.csi.is_none() {
        let detail = "has to be specified when using volumeAttributesClassName";
        errors.push(FieldError::required(&path.child("csi"), detail));
    }
    errors
}

/// Where the data are never changes; what a driver needs to let the volume grow may be added.
pub(super) fn update(new: &PersistentVolume, old: &PersistentVolume) -> Errors {
    // A mistake of before, by older rules, may stay.
    let known = volume(old);
    let mut errors: Errors = volume(new).into_iter().filter(|error| !known.contains(error)).collect();
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return errors };
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
    errors.extend(affinity_update(new.node_affinity.as_ref(), old.node_affinity.as_ref()));
    if old.volume_attributes_class_name.is_some() && new.volume_attributes_class_name.is_none() {
        let path = Path::new("spec").child("volumeAttributesClassName");
        errors.push(FieldError::forbidden(&path, "update from non-nil value to nil is forbidden"));
    }
    errors
}

/// The nodes from which a volume is reached are said once; only labels that have new names may be called by them.
fn affinity_update(new: Option<&VolumeNodeAffinity>, old: Option<&VolumeNodeAffinity>) -> Option<FieldError> {
    let mut renamed = old?.clone();
    let keys = |affinity: &VolumeNodeAffinity| -> Vec<Vec<String>> {
        let terms = affinity.required.iter().flat_map(|required| &required.node_selector_terms);
        terms.map(|term| term.match_expressions.iter().flatten().map(|one| one.key.clone()).collect()).collect()
    };
    let after = new.map(keys).unwrap_or_default();
    let terms = renamed.required.iter_mut().flat_map(|required| &mut required.node_selector_terms);
    for (term, keys) in terms.zip(&after) {
        for (one, key) in term.match_expressions.iter_mut().flatten().zip(keys) {
            if RENAMED_LABELS.iter().any(|(old, new)| one.key == *old && key == new) {
                one.key.clone_from(key);
            }
        }
    }
    if new == Some(&renamed) {
        return None;
    }
    let shown = new.map_or("null".to_owned(), |new| internal_form::compact("VolumeNodeAffinity", new));
    let detail = "field is immutable, except for updating from beta label to GA";
    Some(FieldError::invalid_shown(&Path::new("nodeAffinity"), &shown, detail))
}

/// Warnings about a volume that is valid but uses what is no more, or will not be.
pub(super) fn warnings(volume: &PersistentVolume) -> Vec<String> {
    let mut list = Vec::new();
    for (name, since, field) in
        [(CLASS, "v1.8", "storageClassName"), ("volume.beta.kubernetes.io/mount-options", "v1.31", "mountOptions")]
    {
        if annotation(&volume.metadata, name).is_some() {
            let place = Path::new("metadata").child("annotations").key(name);
            list.push(format!("{place}: deprecated since {since}; use \"{field}\" attribute instead"));
        }
    }
    let Some(spec) = &volume.spec else { return list };
    let path = Path::new("spec");
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    for (i, term) in required.iter().flat_map(|required| &required.node_selector_terms).enumerate() {
        let place = path.child("nodeAffinity").child("required").child("nodeSelectorTerms").index(i);
        list.extend(node_label::of_term(term, false, &place));
    }
    if spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle") {
        let place = path.child(RECLAIM);
        list.push(format!(
            "{place}: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
        ));
    }
    for (gone, field, since, until) in [
        (spec.cephfs.is_some(), "cephfs", "v1.28", "v1.31"),
        (spec.photon_persistent_disk.is_some(), "photonPersistentDisk", "v1.11", "v1.16"),
        (spec.rbd.is_some(), "rbd", "v1.28", "v1.31"),
        (spec.scale_io.is_some(), "scaleIO", "v1.16", "v1.22"),
        (spec.storageos.is_some(), "storageOS", "v1.22", "v1.25"),
        (spec.glusterfs.is_some(), "glusterfs", "v1.25", "v1.26"),
    ] {
        if gone {
            list.push(format!("{}: deprecated in {since}, non-functional in {until}+", path.child(field)));
        }
    }
    list
}

#[cfg(test)]
mod tests;
