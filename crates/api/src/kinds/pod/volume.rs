//! Volumes of a Pod: defaults and validation of each sort.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Volume};

use crate::field::{Errors, FieldError, Path};
use crate::kinds::pod::defaults::pull_policy;
use crate::names;
use crate::object_meta::invalid_at;

/// Permissions of files that the kubelet writes: 0644.
const MODE: i32 = 0o644;

pub(crate) fn default(volume: &mut Volume) {
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
    } else if let Some(path) = &mut volume.host_path {
        path.type_.get_or_insert_default();
    } else if let Some(iscsi) = &mut volume.iscsi {
        iscsi.iscsi_interface.get_or_insert_with(|| "default".to_owned());
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

/// The sorts of source that are set: every field of a volume but its name is one.
fn sorts(volume: &Volume) -> Vec<&'static str> {
    let all = [
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("csi", volume.csi.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("emptyDir", volume.empty_dir.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("image", volume.image.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("projected", volume.projected.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("secret", volume.secret.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
    ];
    all.into_iter().filter_map(|(field, given)| given.then_some(field)).collect()
}

/// Checks all volumes; returns their names for the mounts.
pub(crate) fn validate<'a>(volumes: Option<&'a Vec<Volume>>, path: &Path, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (i, volume) in volumes.into_iter().flatten().enumerate() {
        let path = path.index(i);
        if volume.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            errors.extend(invalid_at(&path, "name", &volume.name, names::dns1123_label(&volume.name)));
        }
        if !seen.insert(volume.name.as_str()) {
            errors.push(FieldError::duplicate(&path.child("name"), &volume.name));
        }
        errors.extend(validate_source(volume, &path));
    }
    seen
}

fn validate_source(volume: &Volume, path: &Path) -> Errors {
    let mut errors = Errors::new();
    match sorts(volume).as_slice() {
        [] => errors.push(FieldError::required(path, "must specify a volume type")),
        [_] => {}
        [_, more @ ..] => {
            for sort in more {
                errors.push(FieldError::forbidden(&path.child(sort), "may not specify more than 1 volume type"));
            }
        }
    }
    let mut need = |sort: &str, field: &str, value: Option<&String>| {
        if value.is_none_or(String::is_empty) {
            errors.push(FieldError::required(&path.child(sort).child(field), ""));
        }
    };
    if let Some(secret) = &volume.secret {
        need("secret", "secretName", secret.secret_name.as_ref());
    }
    if let Some(map) = &volume.config_map {
        need("configMap", "name", Some(&map.name));
    }
    if let Some(host) = &volume.host_path {
        need("hostPath", "path", Some(&host.path));
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        need("persistentVolumeClaim", "claimName", Some(&claim.claim_name));
    }
    if let Some(nfs) = &volume.nfs {
        need("nfs", "server", Some(&nfs.server));
        need("nfs", "path", Some(&nfs.path));
    }
    if let Some(host) = &volume.host_path {
        let known =
            ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
        let kind = host.type_.as_deref().unwrap_or_default();
        if !known.contains(&kind) {
            errors.push(FieldError::not_supported(&path.child("hostPath").child("type"), kind, &known));
        }
        if host.path.split('/').any(|part| part == "..") {
            let detail = "must not contain '..'";
            errors.push(FieldError::invalid(&path.child("hostPath").child("path"), &host.path, detail));
        }
    }
    if let Some(secret) = &volume.secret {
        errors.extend(items(secret.items.as_deref(), secret.default_mode, &path.child("secret")));
    }
    if let Some(map) = &volume.config_map {
        errors.extend(items(map.items.as_deref(), map.default_mode, &path.child("configMap")));
    }
    if let Some(projected) = &volume.projected {
        let path = path.child("projected");
        errors.extend(mode(projected.default_mode, &path.child("defaultMode")));
        for (i, source) in projected.sources.iter().flatten().enumerate() {
            let path = path.child("sources").index(i);
            if let Some(token) = &source.service_account_token {
                let place = path.child("serviceAccountToken");
                if token.expiration_seconds.is_some_and(|s| s < 600) {
                    let detail = "may not specify a duration less than 10 minutes";
                    let field = place.child("expirationSeconds");
                    errors.push(FieldError::invalid(&field, token.expiration_seconds, detail));
                }
                errors.extend(relative_path(&token.path, &place.child("path")));
            }
            if let Some(map) = &source.config_map {
                errors.extend(items(map.items.as_deref(), None, &path.child("configMap")));
            }
            if let Some(secret) = &source.secret {
                errors.extend(items(secret.items.as_deref(), None, &path.child("secret")));
            }
        }
    }
    errors
}

fn items(items: Option<&[KeyToPath]>, default_mode: Option<i32>, path: &Path) -> Errors {
    let mut errors = mode(default_mode, &path.child("defaultMode"));
    for (i, item) in items.unwrap_or_default().iter().enumerate() {
        let path = path.child("items").index(i);
        if item.key.is_empty() {
            errors.push(FieldError::required(&path.child("key"), ""));
        }
        errors.extend(relative_path(&item.path, &path.child("path")));
        errors.extend(mode(item.mode, &path.child("mode")));
    }
    errors
}

fn mode(mode: Option<i32>, path: &Path) -> Errors {
    match mode.filter(|m| !(0..=0o777).contains(m)) {
        Some(mode) => {
            let detail = "must be a number between 0 and 0777 (octal), both inclusive";
            vec![FieldError::invalid(path, mode, detail)]
        }
        None => Errors::new(),
    }
}

/// A path inside a volume that cannot leave it.
pub(crate) fn relative_path(text: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if text.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    if text.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, text, "must not contain '..'"));
    } else if text.starts_with("..") {
        errors.push(FieldError::invalid(path, text, "must not start with '..'"));
    }
    errors
}
