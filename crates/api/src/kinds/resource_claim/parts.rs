//! The parts that the rules of several kinds of devices have in common: names, lists with bounds, JSON that a driver
//! reads.

use std::collections::BTreeSet;

use json::Value;

use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

/// The longest name of a driver, and of a domain.
const DRIVER_MAX: usize = 63;
const POOL_MAX: usize = 253;
/// The longest name of an attribute or a capacity within its domain.
const ID_MAX: usize = 32;
/// Of either sort.
const BINDING_CONDITIONS_MAX: usize = 4;
/// The longest opaque parameters, in bytes.
pub(super) const PARAMETERS_MAX: usize = 10 * 1024;

/// A list that is not too long, with what is wrong with its items. One that is too long is not looked at.
pub(super) fn list<T>(items: Option<&Vec<T>>, max: usize, path: &Path, check: impl Fn(&T, &Path) -> Errors) -> Errors {
    let items = items.map(Vec::as_slice).unwrap_or_default();
    if items.len() > max {
        return vec![FieldError::too_many(path, items.len(), max)];
    }
    items.iter().enumerate().flat_map(|(i, item)| check(item, &path.index(i))).collect()
}

/// A list whose items have keys of their own.
pub(super) fn set<T>(
    items: Option<&Vec<T>>,
    max: usize,
    path: &Path,
    key: impl Fn(&T) -> Value,
    check: impl Fn(&T, &Path) -> Errors,
) -> Errors {
    let mut errors = list(items, max, path, check);
    if items.is_some_and(|items| items.len() > max) {
        return errors;
    }
    let mut seen = BTreeSet::new();
    for (i, item) in items.into_iter().flatten().enumerate() {
        let key = key(item);
        if !seen.insert(key.to_string()) {
            errors.push(FieldError::duplicate(&path.index(i), key));
        }
    }
    errors
}

/// The conditions that the binding of a Pod waits for, and those that end the wait. Where there are any, there are both, and
/// none is of both sorts.
pub(super) fn binding(waits: Option<&Vec<String>>, fails: Option<&Vec<String>>, path: &Path) -> Errors {
    let (place, failing) = (path.child("bindingConditions"), path.child("bindingFailureConditions"));
    let name = |name: &String, path: &Path| invalid(path, name.as_str(), names::qualified_name(name)).collect();
    let key = |name: &String| Value::from(name.as_str());
    let mut errors = set(waits, BINDING_CONDITIONS_MAX, &place, key, name);
    errors.extend(set(fails, BINDING_CONDITIONS_MAX, &failing, key, name));
    let (waiting, ending) =
        (waits.map(Vec::as_slice).unwrap_or_default(), fails.map(Vec::as_slice).unwrap_or_default());
    for (i, both) in ending.iter().enumerate().filter(|(_, name)| waiting.contains(name)) {
        let detail = "bindingFailureConditions must not overlap with bindingConditions";
        errors.push(FieldError::invalid(&failing.index(i), both.as_str(), detail));
    }
    if waiting.is_empty() && !ending.is_empty() {
        let detail = "bindingConditions are required to use bindingFailureConditions";
        errors.push(FieldError::invalid(&place, Value::from(waits.cloned()), detail));
    }
    if ending.is_empty() && !waiting.is_empty() {
        let detail = "bindingFailureConditions are required to use bindingConditions";
        errors.push(FieldError::invalid(&failing, Value::from(fails.cloned()), detail));
    }
    errors
}

/// The name of a driver, by the rules for CSI drivers.
pub(super) fn driver(name: &str, path: &Path) -> Errors {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut errors = Errors::new();
    if name.len() > DRIVER_MAX {
        errors.push(FieldError::too_long(path, DRIVER_MAX));
    }
    errors.extend(invalid(path, name, names::dns1123_subdomain(&name.to_lowercase())));
    errors
}

pub(super) fn pool(name: &str, path: &Path) -> Errors {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut errors = Errors::new();
    if name.len() > POOL_MAX {
        errors.push(FieldError::too_long(path, POOL_MAX));
    }
    errors.extend(name.split('/').flat_map(|part| invalid(path, part, names::dns1123_subdomain(part))));
    errors
}

pub(super) fn label(name: &str, path: &Path) -> Errors {
    invalid(path, name, names::dns1123_label(name)).collect()
}

pub(super) fn class(name: &str, path: &Path) -> Errors {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    invalid(path, name, names::dns1123_subdomain(name)).collect()
}

/// The name of an attribute or a capacity, with its domain or without.
pub(super) fn qualified(name: &str, path: &Path) -> Errors {
    match name.split('/').collect::<Vec<_>>()[..] {
        [id] => identifier(id, path),
        [domain, id] => {
            let empty = |what: &str| vec![FieldError::invalid(path, "", &format!("the {what} must not be empty"))];
            let mut errors = if domain.is_empty() { empty("domain") } else { driver(domain, path) };
            errors.extend(if id.is_empty() { empty("name") } else { identifier(id, path) });
            errors
        }
        // Upstream lets names with more slashes pass.
        _ => Errors::new(),
    }
}

/// A name that has its domain.
pub(super) fn fully_qualified(name: &str, path: &Path) -> Errors {
    let mut errors = qualified(name, path);
    if !name.contains('/') {
        let detail = "a fully qualified name must be a domain and a name separated by a slash";
        errors.push(FieldError::invalid(path, name, detail));
    }
    errors
}

fn identifier(id: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if id.len() > ID_MAX {
        errors.push(FieldError::too_long(path, ID_MAX));
    }
    errors.extend(invalid(path, id, names::c_identifier(id)));
    errors
}

/// A JSON object for somebody else to read.
pub(super) fn json_object(value: &Value, max: usize, path: &Path) -> Errors {
    match value {
        Value::Null => vec![FieldError::required(path, "")],
        value if value.to_string().len() > max => vec![FieldError::too_long(path, max)],
        Value::Object(_) => Errors::new(),
        _ => vec![FieldError::invalid(path, "<value omitted>", "must be a valid JSON object")],
    }
}
