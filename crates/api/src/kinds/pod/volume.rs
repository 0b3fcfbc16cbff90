//! Volumes of a Pod: defaults and validation of each sort of source.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Volume;

use crate::kinds::persistent_volume_claim;
use crate::kinds::pod::projected;
use crate::kinds::pod::volume_files::{default_file, downward_file, items, mode};
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
        projected.sources.iter_mut().flatten().for_each(projected::default);
    } else if let Some(template) = volume.ephemeral.as_mut().and_then(|e| e.volume_claim_template.as_mut()) {
        template.spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    } else if let Some(image) = &mut volume.image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or_default());
        image.pull_policy.get_or_insert_with(|| policy.to_owned());
    } else if sorts(volume).is_empty() {
        volume.empty_dir = Some(k8s_openapi::api::core::v1::EmptyDirVolumeSource::default());
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
        "projected" => errors.extend(volume.projected.iter().flat_map(|p| projected::validate(p, path))),
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
