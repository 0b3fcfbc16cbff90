//! LeaseCandidate: one process that could hold a Lease, where the API server chooses the holder.
//! Upstream counterpart: pkg/apis/coordination/validation, pkg/registry/coordination/leasecandidate.

use json::Value;
use k8s_openapi::api::coordination::{v1alpha2, v1beta1};

use crate::kind::cell;
use crate::kind::{Kind, age, col, name};
use crate::rules::semantic_version::SemanticVersion;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{self, NameRule};
use crate::validation::object_meta::invalid_at;

/// The strategy that Kubernetes itself defines: the candidate of the oldest emulated version leads.
pub const OLDEST_EMULATION_VERSION: &str = "OldestEmulationVersion";

/// The common fields of both versions of the kind, which are all.
struct Said<'c> {
    name: &'c str,
    lease: &'c str,
    binary: &'c str,
    emulation: &'c str,
    strategy: &'c str,
}

macro_rules! kind {
    ($name:ident, $version:ident, $($more:tt)*) => {
        pub const $name: Kind<$version::LeaseCandidate> = Kind {
            name: NameRule::Own,
            create_on_update: true,
            unconditional_update: false,
            validate: Some(|candidate| {
                let spec = candidate.spec.as_ref();
                validate(&Said {
                    name: candidate.metadata.name.as_deref().unwrap_or_default(),
                    lease: spec.map_or("", |s| &s.lease_name),
                    binary: spec.map_or("", |s| &s.binary_version),
                    emulation: spec.and_then(|s| s.emulation_version.as_deref()).unwrap_or_default(),
                    strategy: spec.map_or("", |s| &s.strategy),
                })
            }),
            validate_update: Some(|new, old, _| {
                let lease = |c: &$version::LeaseCandidate| c.spec.as_ref().map(|s| s.lease_name.clone()).unwrap_or_default();
                validate_update(&lease(new), &lease(old))
            }),
            columns: &[
                name(),
                col("LeaseName", "The Lease that it could hold.", |c, _| {
                    cell::text(c.spec.as_ref().map(|s| &s.lease_name))
                }),
                col("BinaryVersion", "The version that runs.", |c, _| {
                    cell::text(c.spec.as_ref().map(|s| &s.binary_version))
                }),
                col("EmulationVersion", "The version that it behaves as.", |c, _| {
                    cell::text(c.spec.as_ref().and_then(|s| s.emulation_version.as_ref()))
                }),
                age(),
            ],
            $($more)*
            ..Kind::BASE
        };
    };
}

kind!(LEASE_CANDIDATE, v1beta1,);
kind!(
    LEASE_CANDIDATE_V1ALPHA2,
    v1alpha2,
    storage: Some(("coordination.k8s.io", "v1beta1")),
    to_storage: Some(|object| set_version(object, "coordination.k8s.io/v1beta1")),
    from_storage: Some(|object| set_version(object, "coordination.k8s.io/v1alpha2")),
);

fn set_version(object: &mut Value, version: &str) {
    object["apiVersion"] = Value::from(version);
}

fn validate(said: &Said<'_>) -> Errors {
    let mut errors = invalid_at(&Path::new("metadata"), "name", said.name, names::config_key(said.name));
    let path = Path::new("spec");
    if said.lease.is_empty() {
        errors.push(FieldError::required(&path.child("leaseName"), ""));
    }
    let parse = |field: &str, text: &str, errors: &mut Errors| {
        let version = SemanticVersion::parse(text);
        if version.is_none() && !text.is_empty() {
            errors.push(FieldError::invalid(&path.child(field), text, "must be a valid semantic version"));
        }
        version
    };
    let emulation = parse("emulationVersion", said.emulation, &mut errors);
    let place = path.child("binaryVersion");
    if said.binary.is_empty() {
        errors.push(FieldError::required(&place, ""));
    }
    let binary = parse("binaryVersion", said.binary, &mut errors);
    if let (false, Some(emulation)) = (said.binary.is_empty(), &emulation)
        && binary.unwrap_or_default() < *emulation
    {
        errors.push(FieldError::invalid(&place, said.binary, "must be greater than or equal to `emulationVersion`"));
    }
    let place = path.child("strategy");
    if said.strategy.is_empty() {
        errors.push(FieldError::required(&place, ""));
        return errors;
    }
    if said.strategy == OLDEST_EMULATION_VERSION && emulation.unwrap_or_default() == SemanticVersion::default() {
        let detail = "must be specified when `strategy` is 'OldestEmulationVersion'";
        errors.push(FieldError::required(&path.child("emulationVersion"), detail));
    }
    errors.extend(strategy(said.strategy, &place));
    errors
}

/// A strategy of Kubernetes, or one with a domain, which somebody else follows.
pub(crate) fn strategy(strategy: &str, path: &Path) -> Errors {
    if strategy.contains('/') {
        return invalid_at(path, "strategy", strategy, names::qualified_name(strategy));
    }
    let known = [OLDEST_EMULATION_VERSION];
    let wrong =
        (!known.contains(&strategy)).then(|| FieldError::not_supported(&path.child("strategy"), strategy, &known));
    wrong.into_iter().collect()
}

fn validate_update(new: &str, old: &str) -> Errors {
    let path = Path::new("spec").child("leaseName");
    if new == old { Errors::new() } else { vec![FieldError::invalid(&path, new, "field is immutable")] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_says_what_it_is() {
        let check = |text: &str, expected: &[&str]| {
            let parts: Vec<&str> = text.split(' ').map(|part| part.trim_matches('-')).collect();
            let [name, lease, binary, emulation, strategy] = parts[..] else { panic!("{text}") };
            let said: Vec<String> =
                validate(&Said { name, lease, binary, emulation, strategy }).iter().map(ToString::to_string).collect();
            assert_eq!(said.len(), expected.len(), "{text}: {said:?}");
            assert!(said.iter().zip(expected).all(|(s, e)| s.contains(e)), "{text}: {said:?}");
        };
        check("a kube-scheduler 1.35.0 1.35.0 OldestEmulationVersion", &[]);
        check("a_B.c l 1.35.0 1.34.0 OldestEmulationVersion", &[]);
        check("a l 1.35.0 - example.com/mine", &[]);
        check("a/b l 1.35.0 1.35.0 OldestEmulationVersion", &["metadata.name: Invalid"]);
        check("a - - - -", &["spec.leaseName: Required", "spec.binaryVersion: Required", "spec.strategy: Required"]);
        check(
            "a l 1.34.0 1.35.0 OldestEmulationVersion",
            &["spec.binaryVersion: Invalid value: \"1.34.0\": must be greater"],
        );
        check(
            "a l 1.35.0 - OldestEmulationVersion",
            &["spec.emulationVersion: Required value: must be specified when"],
        );
        check("a l 1.35 1.35.0 OldestEmulationVersion", &["semantic version", "must be greater than or equal"]);
        check("a l 1.35.0 x OldestEmulationVersion", &["semantic version", "must be specified when"]);
        check("a l 1.35.0 1.35.0 Youngest", &["spec.strategy.strategy: Unsupported value: \"Youngest\""]);
        check("a l 1.35.0 1.35.0 a/b/c", &["spec.strategy.strategy: Invalid"]);
        assert_eq!(validate_update("a", "a"), []);
        assert_eq!(
            validate_update("b", "a")[0].to_string(),
            "spec.leaseName: Invalid value: \"b\": field is immutable"
        );
    }
}
