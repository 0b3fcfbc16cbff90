//! Volumes of a Pod: defaults and validation of each sort of source.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, Volume, VolumeProjection};

use crate::kinds::persistent_volume_claim;
use crate::kinds::pod::environment::{field_selector, resource_selector};
use crate::kinds::volume_source::{self, Owner, default_sources};
use crate::rules::image::pull_policy;
use crate::validation::field::{Errors, FieldError, Path, one_of};
use crate::validation::names;
use crate::validation::object_meta::invalid_at;
use crate::validation::relative_path::relative_path;

/// Permissions of files that the kubelet writes: 0644.
const MODE: i32 = 0o644;

pub(crate) fn default(volume: &mut Volume) {
    default_sources!(&mut *volume);
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(MODE);
    } else if let Some(map) = &mut volume.config_map {
        map.default_mode.get_or_insert(MODE);
    } else if let Some(files) = &mut volume.downward_api {
        files.default_mode.get_or_insert(MODE);
        files.items.iter_mut().flatten().for_each(default_file);
    } else if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
            source.downward_api.iter_mut().flat_map(|d| d.items.iter_mut().flatten()).for_each(default_file);
        }
    } else if let Some(template) = volume.ephemeral.as_mut().and_then(|e| e.volume_claim_template.as_mut()) {
        template.spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    } else if let Some(image) = &mut volume.image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or_default());
        image.pull_policy.get_or_insert_with(|| policy.to_owned());
    } else if sorts(volume).is_empty() {
        volume.empty_dir = Some(k8s_openapi::api::core::v1::EmptyDirVolumeSource::default());
    }
}

fn default_file(file: &mut DownwardAPIVolumeFile) {
    if let Some(field) = &mut file.field_ref {
        field.api_version.get_or_insert_with(|| "v1".to_owned());
    }
}

/// The sorts of source that are set, in the order in which they are checked: every field of a volume but its name is one.
fn sorts(volume: &Volume) -> Vec<&'static str> {
    let all = [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("projected", volume.projected.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ];
    all.into_iter().filter_map(|(field, given)| given.then_some(field)).collect()
}

/// Checks all volumes; returns those that are valid, which mounts may name. `pod` is the name of the Pod, where there is one.
pub(crate) fn validate<'a>(
    volumes: &'a [Volume],
    pod: &str,
    path: &Path,
    errors: &mut Errors,
) -> BTreeMap<&'a str, &'a Volume> {
    let mut valid = BTreeMap::new();
    // The claims that ephemeral volumes of this Pod get.
    let own = volumes.iter().filter(|v| v.ephemeral.is_some() && !pod.is_empty());
    let own: BTreeSet<String> = own.map(|v| format!("{pod}-{}", v.name)).collect();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let mut wrong = validate_source(volume, pod, &path);
        if volume.name.is_empty() {
            wrong.push(FieldError::required(&path.child("name"), ""));
        } else {
            wrong.extend(invalid_at(&path, "name", &volume.name, names::dns1123_label(&volume.name)));
        }
        if valid.contains_key(volume.name.as_str()) {
            wrong.push(FieldError::duplicate(&path.child("name"), &volume.name));
        }
        if wrong.is_empty() {
            valid.insert(volume.name.as_str(), volume);
        }
        errors.append(&mut wrong);
        let claim = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.as_str()).unwrap_or_default();
        if !claim.is_empty() && own.contains(claim) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            errors.push(FieldError::invalid(&path.child("persistentVolumeClaim").child("claimName"), claim, detail));
        }
    }
    valid
}

fn validate_source(volume: &Volume, pod: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    match sorts(volume).as_slice() {
        [] => errors.push(FieldError::required(path, "must specify a volume type")),
        [first, more @ ..] => {
            errors.extend(of_sort(first, volume, pod, path));
            let detail = "may not specify more than 1 volume type";
            errors.extend(more.iter().map(|sort| FieldError::forbidden(&path.child(sort), detail)));
        }
    }
    errors
}

fn of_sort(sort: &str, volume: &Volume, pod: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let parent = path;
    let path = &path.child(sort);
    match sort {
        "emptyDir" => {
            let limit = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref());
            if limit.is_some_and(|l| crate::rules::quantity::parse(l).is_negative()) {
                let detail = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(&path.child("sizeLimit"), detail));
            }
        }
        "hostPath" => {
            errors.extend(volume.host_path.iter().flat_map(|host| volume_source::host_path(host, path)));
        }
        "gitRepo" => {
            if volume.git_repo.as_ref().is_some_and(|git| git.repository.is_empty()) {
                errors.push(FieldError::required(&path.child("repository"), ""));
            }
            let folder = volume.git_repo.as_ref().and_then(|g| g.directory.as_deref()).unwrap_or_default();
            errors.extend(relative_path(folder, &path.child("directory")));
        }
        "persistentVolumeClaim" => {
            if volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.claim_name.is_empty()) {
                errors.push(FieldError::required(&path.child("claimName"), ""));
            }
        }
        "secret" => {
            if let Some(secret) = &volume.secret {
                if secret.secret_name.as_deref().unwrap_or_default().is_empty() {
                    errors.push(FieldError::required(&path.child("secretName"), ""));
                }
                errors.extend(mode(secret.default_mode, path, "defaultMode"));
                errors.extend(items(secret.items.as_deref(), path));
            }
        }
        "configMap" => {
            if let Some(map) = &volume.config_map {
                if map.name.is_empty() {
                    errors.push(FieldError::required(&path.child("name"), ""));
                }
                errors.extend(mode(map.default_mode, path, "defaultMode"));
                errors.extend(items(map.items.as_deref(), path));
            }
        }
        "downwardAPI" => {
            if let Some(files) = &volume.downward_api {
                errors.extend(mode(files.default_mode, path, "defaultMode"));
                errors.extend(files.items.iter().flatten().flat_map(|file| downward_file(file, path)));
            }
        }
        "projected" => errors.extend(volume.projected.iter().flat_map(|p| projected(p, path))),
        "ephemeral" => match volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref()) {
            None => errors.push(FieldError::required(&path.child("volumeClaimTemplate"), "")),
            Some(template) => {
                let place = path.child("volumeClaimTemplate").child("spec");
                errors.extend(persistent_volume_claim::validate_spec(&template.spec, &place));
                let claim = format!("{pod}-{}", volume.name);
                let wrong = if pod.is_empty() { Vec::new() } else { names::dns1123_subdomain(&claim) };
                let wrong = wrong.iter().map(|w| format!("PVC name {claim:?}: {w}"));
                errors.extend(wrong.map(|w| FieldError::invalid(&path.child("name"), &volume.name, &w)));
            }
        },
        "image" => {
            if let Some(image) = &volume.image {
                if image.reference.as_deref().unwrap_or_default().is_empty() && !pod.is_empty() {
                    errors.push(FieldError::required(&path.child("reference"), ""));
                }
                let policy = image.pull_policy.as_deref().unwrap_or_default();
                errors.extend(one_of(policy, &["Always", "IfNotPresent", "Never"], path, "pullPolicy"));
            }
        }
        // Everything else is out in the network, or in a cloud.
        other => {
            let whole = json::to_value(volume).unwrap_or_default();
            let source = whole.get(other).unwrap_or(&json::Value::Null);
            errors.extend(volume_source::check(other, source, Owner::Pod(&volume.name), parent));
        }
    }
    errors
}

fn downward_file(file: &DownwardAPIVolumeFile, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if file.path.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    errors.extend(non_reserved_path(&file.path, &path.child("path")));
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            let fields =
                ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
            errors.extend(field_selector(field, &fields, &path.child("fieldRef")));
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(path, "resource", detail));
            }
        }
        (None, Some(resource)) => errors.extend(resource_selector(resource, true, &path.child("resourceFieldRef"))),
        (None, None) => {
            errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required"));
        }
    }
    errors.extend(mode(file.mode, path, "mode"));
    errors
}

fn projected(volume: &ProjectedVolumeSource, path: &Path) -> Errors {
    let mut errors: Errors = mode(volume.default_mode, path, "defaultMode").into_iter().collect();
    let mut taken = BTreeSet::new();
    for (i, source) in volume.sources.iter().flatten().enumerate() {
        let place = path.child("sources").index(i);
        errors.extend(projection(source, &place, path));
        for (file, shown) in files(source) {
            if !file.is_empty() && !taken.insert(file) {
                errors.push(FieldError::invalid(path, shown, "conflicting duplicate paths"));
            }
        }
        let given = [
            source.secret.is_some(),
            source.config_map.is_some(),
            source.downward_api.is_some(),
            source.service_account_token.is_some(),
            source.cluster_trust_bundle.is_some(),
            source.pod_certificate.is_some(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            errors.push(FieldError::forbidden(&place, "may not specify more than 1 volume type per source"));
        }
    }
    errors
}

/// The files that a source makes and must not make twice, each with what a message names it by.
fn files(source: &VolumeProjection) -> Vec<(&str, &str)> {
    let mut list = Vec::new();
    if let Some(secret) = &source.secret {
        list.extend(secret.items.iter().flatten().map(|item| (item.path.as_str(), secret.name.as_str())));
    }
    if let Some(map) = &source.config_map {
        list.extend(map.items.iter().flatten().map(|item| (item.path.as_str(), map.name.as_str())));
    }
    if let Some(files) = &source.downward_api {
        list.extend(files.items.iter().flatten().map(|file| (file.path.as_str(), file.path.as_str())));
    }
    list.extend(source.cluster_trust_bundle.iter().map(|bundle| (bundle.path.as_str(), bundle.path.as_str())));
    list
}

fn projection(source: &VolumeProjection, path: &Path, volume: &Path) -> Errors {
    let mut errors = Errors::new();
    let named = [
        ("secret", source.secret.as_ref().map(|s| (&s.name, &s.items))),
        ("configMap", source.config_map.as_ref().map(|m| (&m.name, &m.items))),
    ];
    for (field, given) in named {
        let Some((name, list)) = given else { continue };
        let path = path.child(field);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        errors.extend(items(list.as_deref(), &path));
    }
    if let Some(files) = &source.downward_api {
        let path = path.child("downwardAPI");
        errors.extend(files.items.iter().flatten().flat_map(|file| downward_file(file, &path)));
    }
    if let Some(token) = &source.service_account_token {
        let place = path.child("serviceAccountToken").child("expirationSeconds");
        let seconds = token.expiration_seconds.unwrap_or(0);
        if seconds < 600 {
            let detail = "may not specify a duration less than 10 minutes";
            errors.push(FieldError::invalid(&place, seconds, detail));
        }
        if seconds > 1 << 32 {
            let detail = "may not specify a duration larger than 2^32 seconds";
            errors.push(FieldError::invalid(&place, seconds, detail));
        }
        if token.path.is_empty() {
            errors.push(FieldError::required(&volume.child("path"), ""));
        } else {
            errors.extend(non_reserved_path(&token.path, &volume.child("path")));
        }
    }
    if let Some(bundle) = &source.cluster_trust_bundle {
        let path = path.child("clusterTrustBundle");
        if bundle.name.is_none() && bundle.signer_name.is_none() {
            errors.push(FieldError::required(&path, "either name or signerName must be specified"));
        }
        if bundle.path.is_empty() {
            errors.push(FieldError::required(&path.child("path"), ""));
        }
        errors.extend(non_reserved_path(&bundle.path, &path.child("path")));
    }
    errors
}

fn items(items: Option<&[KeyToPath]>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, item) in items.unwrap_or_default().iter().enumerate() {
        let path = path.child("items").index(i);
        if item.key.is_empty() {
            errors.push(FieldError::required(&path.child("key"), ""));
        }
        if item.path.is_empty() {
            errors.push(FieldError::required(&path.child("path"), ""));
        }
        errors.extend(non_reserved_path(&item.path, &path.child("path")));
        errors.extend(mode(item.mode, &path, "mode"));
    }
    errors
}

fn mode(mode: Option<i32>, path: &Path, field: &str) -> Option<FieldError> {
    let mode = mode.filter(|m| !(0..=0o777).contains(m))?;
    let detail = "must be a number between 0 and 0777 (octal), both inclusive";
    Some(FieldError::invalid(&path.child(field), mode, detail))
}

/// A path inside a volume whose files the kubelet writes: it keeps names that begin with two dots for itself.
fn non_reserved_path(text: &str, path: &Path) -> Errors {
    let mut errors = relative_path(text, path);
    if text.starts_with("..") && !text.starts_with("../") {
        errors.push(FieldError::invalid(path, text, "must not start with '..'"));
    }
    errors
}
