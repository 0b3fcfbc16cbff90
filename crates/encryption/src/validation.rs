//! The mistakes in a configuration, in upstream's words.

use std::collections::BTreeSet;

use api::validation::field::{FieldError, Path, quote};

use crate::{
    cipher::Sort,
    file::{self, Entry, GivenKey, GivenPlugin, GivenProvider},
    table::Resource,
};

pub fn errors(entries: &[Entry]) -> Vec<FieldError> {
    let root = Path::new("resources");
    if entries.is_empty() {
        return vec![FieldError::required(&root, "at least one resources is required")];
    }
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    for (at, entry) in entries.iter().enumerate() {
        let (resources, providers) = (root.index(at).child("resources"), root.index(at).child("providers"));
        let required = |path: &Path| FieldError::required(path, &format!("at least one {path} is required"));
        if entry.resources.is_empty() {
            errors.push(required(&resources));
        }
        errors.extend(overlaps(&entry.resources, &resources));
        let named = entry.resources.iter().enumerate();
        errors.extend(
            named.filter_map(|(i, name)| Some(FieldError::invalid(&resources.index(i), name, wrong_name(name)?))),
        );
        if entry.providers.is_empty() {
            errors.push(required(&providers));
        }
        for (i, given) in entry.providers.iter().enumerate() {
            errors.extend(provider(given, &file::place(at, i), &mut names));
        }
    }
    errors
}

fn overlaps(names: &[String], path: &Path) -> Vec<FieldError> {
    let all: Vec<Resource> = names.iter().map(|name| Resource::parse(name)).collect();
    let pairs = || all.iter().enumerate().flat_map(|(i, one)| all[i + 1..].iter().map(move |other| (one, other)));
    let everything = |r: &Resource| r.group == "*" && r.plural == "*";
    let overlap = |(one, other): (&Resource, &Resource)| {
        let any = one.plural == "*" || other.plural == "*";
        one != other && (everything(one) || everything(other) || one.group == other.group && any)
    };
    let mut errors = Vec::new();
    if pairs().any(|(one, other)| one == other) {
        errors.push(FieldError::invalid(path, names, "the same resource cannot be specified multiple times"));
    }
    if pairs().any(overlap) {
        let why = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they \
                   will be masked";
        errors.push(FieldError::invalid(path, names, why));
    }
    errors
}

fn wrong_name(name: &str) -> Option<&'static str> {
    let Resource { group, plural } = Resource::parse(name);
    if name.to_lowercase() != name {
        return Some("resource name should not contain capital letters");
    }
    match (name, group.as_str()) {
        ("*", _) => Some("use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"),
        ("apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations", _) => {
            Some("resources which do not have REST API/s cannot be encrypted")
        }
        (_, "events.k8s.io") => Some(
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config \
             file",
        ),
        (_, "extensions") => Some("'extensions' group has been removed and cannot be used for encryption"),
        (_, "*") if plural != "*" => Some("encrypting the same resource across groups is not supported"),
        _ => None,
    }
}

fn provider<'a>(given: &'a [GivenProvider], path: &Path, names: &mut BTreeSet<&'a str>) -> Vec<FieldError> {
    match given {
        [] => vec![FieldError::invalid_unshown(
            path,
            "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
        )],
        [GivenProvider::Identity] => Vec::new(),
        [GivenProvider::Kms(given)] => plugin(given, &path.child("kms"), names),
        [GivenProvider::Keys(sort, keys)] => self::keys(*sort, keys, &path.child(sort.field()).child("keys")),
        _ => vec![FieldError::invalid_unshown(
            path,
            "more than one provider specified in a single element, should split into different list elements",
        )],
    }
}

/// Names of plugins stand in the store, so that no two may have one.
fn plugin<'a>(given: &'a GivenPlugin, path: &Path, names: &mut BTreeSet<&'a str>) -> Vec<FieldError> {
    let GivenPlugin { version, name, cache_size, endpoint, timeout } = given;
    let name_path = path.child("name");
    let mut errors = Vec::new();
    if name.is_empty() {
        errors.push(FieldError::required(&name_path, "name is a mandatory field for a provider"));
    }
    if version != "v1" && name.contains(':') {
        let why = format!("invalid KMS provider name {name}, must not contain ':'");
        errors.push(FieldError::invalid(&name_path, name, &why));
    }
    if !names.insert(name) {
        let why = format!("duplicate KMS provider name {name}, names must be unique");
        errors.push(FieldError::invalid(&name_path, name, &why));
    }
    if timeout.1 <= 0 {
        errors.push(FieldError::invalid(&path.child("timeout"), &timeout.0, "timeout should be a positive value"));
    }
    errors.extend(wrong_endpoint(endpoint, &path.child("endpoint")));
    if let Some(size) = cache_size.as_ref().filter(|_| version != "v1") {
        errors.push(FieldError::invalid(&path.child("cachesize"), size, "cachesize is not supported in v2"));
    }
    match version.as_str() {
        "v2" => {}
        // Upstream has it behind a feature gate that is off.
        "v1" => errors.push(FieldError::forbidden(
            &path.child("apiVersion"),
            "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead: this server asks \
             plugins in v2 only",
        )),
        _ => {
            let why = "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported";
            errors.push(FieldError::invalid(&path.child("apiVersion"), version, why));
        }
    }
    errors
}

fn wrong_endpoint(endpoint: &str, path: &Path) -> Option<FieldError> {
    let why = match endpoint.split_once("://") {
        _ if endpoint.is_empty() => "endpoint is a mandatory field for a kms".to_owned(),
        Some(("unix", socket)) if socket.starts_with('/') || socket.starts_with('@') => return None,
        Some(("unix", _)) => "the path of the socket must be absolute".to_owned(),
        scheme => {
            let scheme = scheme.map_or("", |(scheme, _)| scheme);
            format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported")
        }
    };
    Some(FieldError::invalid(path, endpoint, &why))
}

fn keys(sort: Sort, keys: &[GivenKey], path: &Path) -> Vec<FieldError> {
    if keys.is_empty() {
        return vec![FieldError::required(path, "at least one keys is required")];
    }
    let mut errors = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let (name, secret) = (path.index(at).child("name"), path.index(at).child("secret"));
        if key.name.is_empty() {
            errors.push(FieldError::required(&name, "name is a mandatory field for a key"));
        }
        if key.secret.is_empty() {
            errors.push(FieldError::required(&secret, "secret is a mandatory field for a key"));
            continue;
        }
        let redacted = |why: &str| FieldError::invalid_unshown(&secret, &format!("{}: {why}", quote("REDACTED")));
        match key.bytes() {
            None => errors.push(redacted("secrets must be base64 encoded")),
            Some(bytes) if !sort.key_lengths().contains(&bytes.len()) => {
                let lengths: Vec<String> = sort.key_lengths().iter().map(usize::to_string).collect();
                errors.push(redacted(&format!(
                    "secret is not of the expected length, got {}, expected one of [{}]",
                    bytes.len(),
                    lengths.join(" ")
                )));
            }
            Some(_) => {}
        }
    }
    errors
}
