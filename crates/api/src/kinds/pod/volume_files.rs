//! Files that a kubelet writes into volumes: their paths, their modes, and where their content comes from.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath};

use crate::kinds::pod::environment::{field_selector, resource_selector};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::relative_path::relative_path;

pub(super) fn default_file(file: &mut DownwardAPIVolumeFile) {
    if let Some(field) = &mut file.field_ref {
        field.api_version.get_or_insert_with(|| "v1".to_owned());
    }
}

pub(super) fn downward_file(file: &DownwardAPIVolumeFile, path: &Path) -> Errors {
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

pub(super) fn items(items: Option<&[KeyToPath]>, path: &Path) -> Errors {
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

pub(super) fn mode(mode: Option<i32>, path: &Path, field: &str) -> Option<FieldError> {
    let mode = mode.filter(|m| !(0..=0o777).contains(m))?;
    let detail = "must be a number between 0 and 0777 (octal), both inclusive";
    Some(FieldError::invalid(&path.child(field), mode, detail))
}

/// A path inside a volume whose files the kubelet writes: it keeps names that begin with two dots for itself.
pub(super) fn non_reserved_path(text: &str, path: &Path) -> Errors {
    let mut errors = relative_path(text, path);
    if text.starts_with("..") && !text.starts_with("../") {
        errors.push(FieldError::invalid(path, text, "must not start with '..'"));
    }
    errors
}
