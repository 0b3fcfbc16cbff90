//! ConfigMap: settings for Pods, as text or bytes.

use json::Value;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::kind::{Kind, age, col, name};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

/// All values together, in bytes.
const SIZE_MAX: usize = 1024 * 1024;

pub const CONFIG_MAP: Kind<ConfigMap> = Kind {
    short: &["cm"],
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    columns: &[
        name(),
        col("Data", "Number of keys of data and binaryData.", |c, _| {
            let texts = c.data.as_ref().map_or(0, |d| d.len());
            Value::from((texts + c.binary_data.as_ref().map_or(0, |d| d.len())).to_string())
        }),
        age(),
    ],
    ..Kind::BASE
};

fn validate(map: &ConfigMap) -> Errors {
    let mut errors = Errors::new();
    let mut size = 0;
    let data = Path::new("data");
    for (key, value) in map.data.iter().flatten() {
        errors.extend(invalid(&data.key(key), key, names::config_key(key)));
        if map.binary_data.as_ref().is_some_and(|b| b.contains_key(key)) {
            errors.push(FieldError::invalid(&data.key(key), key, "duplicate of key present in binaryData"));
        }
        size += value.len();
    }
    let binary = Path::new("binaryData");
    for (key, value) in map.binary_data.iter().flatten() {
        errors.extend(invalid(&binary.key(key), key, names::config_key(key)));
        size += value.0.len();
    }
    if size > SIZE_MAX {
        // The path of the whole, as Go prints one without a name.
        errors.push(FieldError::too_long(&Path::new("[]"), SIZE_MAX));
    }
    errors
}

fn validate_update(new: &ConfigMap, old: &ConfigMap) -> Errors {
    let mut errors = Errors::new();
    if old.immutable == Some(true) {
        let fixed = "field is immutable when `immutable` is set";
        for (field, same) in [
            ("immutable", new.immutable == old.immutable),
            ("data", new.data == old.data),
            ("binaryData", new.binary_data == old.binary_data),
        ] {
            if !same {
                errors.push(FieldError::forbidden(&Path::new(field), fixed));
            }
        }
    }
    errors
}
