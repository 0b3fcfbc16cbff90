//! What is wrong with a configuration, in upstream's words.

use api::validation::field::{FieldError, Path, quote};

use crate::{
    cipher::Sort,
    file::{self, Entry, GivenKey, GivenProvider},
    table::Resource,
};

pub fn errors(entries: &[Entry]) -> Vec<FieldError> {
    let root = Path::new("resources");
    if entries.is_empty() {
        return vec![FieldError::required(&root, "at least one resources is required")];
    }
    let mut errors = Vec::new();
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
            errors.extend(provider(given, &file::place(at, i)));
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

fn provider(given: &[GivenProvider], path: &Path) -> Vec<FieldError> {
    match given {
        [] => vec![FieldError::invalid_unshown(
            path,
            "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
        )],
        [GivenProvider::Identity] => Vec::new(),
        [GivenProvider::Kms] => {
            vec![FieldError::forbidden(&path.child("kms"), "this server does not ask KMS plugins yet")]
        }
        [GivenProvider::Keys(sort, keys)] => self::keys(*sort, keys, &path.child(sort.field()).child("keys")),
        _ => vec![FieldError::invalid_unshown(
            path,
            "more than one provider specified in a single element, should split into different list elements",
        )],
    }
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
