//! PodCertificateRequest: a node asks a signer for a certificate of one of its Pods.
//! Upstream counterpart: pkg/apis/certificates/validation, pkg/registry/certificates/podcertificaterequest.

mod possession;
mod status;

use std::collections::BTreeMap;

use json::Value;
use k8s_openapi::api::certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec};

use crate::features::Feature;
use crate::kind::{Kind, StatusMetadata, Target, col, label, name};
use crate::kinds::certificate_signing_request::signer_name;
use crate::meta::field_text;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::{self, invalid_at};
use possession::Wrong;

pub const POD_CERTIFICATE_REQUEST: Kind<PodCertificateRequest> = Kind {
    gate: Some(Feature::PodCertificateRequest),
    status: true,
    status_metadata: StatusMetadata::Stays,
    unconditional_update: false,
    default: Some(|request| {
        request.spec.max_expiration_seconds.get_or_insert(USUAL_SECONDS);
    }),
    validate_create: Some(|request| validate(&request.spec)),
    validate_update: Some(|new, old, target| match target == Target::Object && new.spec != old.spec {
        true => vec![FieldError::invalid_unshown(&Path::new("spec"), "field is immutable")],
        false => Errors::new(),
    }),
    validate_status: Some(status::validate),
    columns: &[
        name(),
        col("PodName", "The Pod that the certificate is for.", |r, _| Value::from(r.spec.pod_name.as_str())),
        col("ServiceAccountName", "The account that the Pod runs as.", |r, _| {
            Value::from(r.spec.service_account_name.as_str())
        }),
        col("NodeName", "The node that the Pod runs on.", |r, _| Value::from(r.spec.node_name.as_str())),
        col("SignerName", "Who shall sign it.", |r, _| Value::from(r.spec.signer_name.as_str())),
        col("State", "What has become of it.", |r, _| Value::from(state(r))),
        col("UnverifiedUserAnnotations", "What the Pod's author tells the signer.", |r, _| {
            Value::from(shown(r.spec.unverified_user_annotations.as_ref()))
        }),
    ],
    field_labels: &[
        label("spec.signerName", |o| field_text(o, &["spec", "signerName"])),
        label("spec.podName", |o| field_text(o, &["spec", "podName"])),
        label("spec.nodeName", |o| field_text(o, &["spec", "nodeName"])),
    ],
    ..Kind::BASE
};

/// The conditions that end a request, each in its own way.
pub(crate) const ENDS: [&str; 3] = ["Issued", "Denied", "Failed"];

/// The life of a certificate of which nothing was said, and what may be said.
pub(crate) const USUAL_SECONDS: i32 = 24 * 3600;
pub(crate) const LEAST_SECONDS: i32 = 3600;
const MOST_SECONDS: i32 = 91 * 24 * 3600;
/// The most that signers of Kubernetes itself give.
const MOST_SECONDS_OF_KUBERNETES: i32 = 24 * 3600;

const KEY_MAX: usize = 10 * 1024;
const PROOF_MAX: usize = 10 * 1024;
const UID_MAX: usize = 128;

fn state(request: &PodCertificateRequest) -> &str {
    let conditions = request.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ends = conditions.filter(|condition| ENDS.contains(&condition.type_.as_str()));
    ends.next_back().map_or("Pending", |condition| &condition.type_)
}

/// Annotations in one cell, as upstream prints a map.
fn shown(annotations: Option<&BTreeMap<String, String>>) -> String {
    let pairs: Vec<String> = annotations.into_iter().flatten().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("map[{}]", pairs.join(" "))
}

fn validate(spec: &PodCertificateRequestSpec) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    if spec.signer_name.is_empty() {
        errors.push(FieldError::required(&path.child("signerName"), ""));
    }
    errors.extend(signer_name(&spec.signer_name, &path.child("signerName")));
    errors
        .extend(user_annotations(spec.unverified_user_annotations.as_ref(), &path.child("unverifiedUserAnnotations")));
    for (field, name) in
        [("podName", &spec.pod_name), ("serviceAccountName", &spec.service_account_name), ("nodeName", &spec.node_name)]
    {
        errors.extend(invalid_at(&path, field, name, names::dns1123_subdomain(name)));
    }
    for (field, uid) in
        [("podUID", &spec.pod_uid), ("serviceAccountUID", &spec.service_account_uid), ("nodeUID", &spec.node_uid)]
    {
        if uid.is_empty() {
            errors.push(FieldError::invalid(&path.child(field), uid, "must not be empty"));
        }
        if uid.len() > UID_MAX {
            errors.push(FieldError::too_long(&path.child(field), UID_MAX));
        }
    }
    // The checks that follow are work, and done for a request that is small and right so far.
    errors.extend(life(spec, &path.child("maxExpirationSeconds")).or_else(|| proof(spec, &path)));
    errors
}

/// The longest life that a signer may be asked for.
pub(crate) fn most_seconds(signer: &str) -> i32 {
    let domain = signer.split('/').next().unwrap_or_default();
    let of_kubernetes = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    if of_kubernetes { MOST_SECONDS_OF_KUBERNETES } else { MOST_SECONDS }
}

/// The error of the life that was asked for.
fn life(spec: &PodCertificateRequestSpec, path: &Path) -> Option<FieldError> {
    let Some(seconds) = spec.max_expiration_seconds else { return Some(FieldError::required(path, "must be set")) };
    let most = most_seconds(&spec.signer_name);
    let wrong = || FieldError::invalid(path, seconds, &format!("must be in the range [{LEAST_SECONDS}, {most}]"));
    (!(LEAST_SECONDS..=most).contains(&seconds)).then(wrong)
}

/// The error of the key, or of the proof that the Pod's node has it.
fn proof(spec: &PodCertificateRequestSpec, path: &Path) -> Option<FieldError> {
    let (place, place_of_proof) = (path.child("pkixPublicKey"), path.child("proofOfPossession"));
    let (key, proof) = (&spec.pkix_public_key, &spec.proof_of_possession);
    if key.0.len() > KEY_MAX {
        return Some(FieldError::too_long(&place, KEY_MAX));
    }
    if proof.0.len() > PROOF_MAX {
        return Some(FieldError::too_long(&place_of_proof, PROOF_MAX));
    }
    Some(match possession::check(&key.0, spec.pod_uid.as_bytes(), &proof.0).err()? {
        Wrong::Unreadable => FieldError::invalid(&place, key, "must be a valid PKIX-serialized public key"),
        Wrong::Unknown => {
            FieldError::invalid(&place, key, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")
        }
        Wrong::Curve => FieldError::invalid(&place, key, "elliptic public keys must use curve P256 or P384"),
        Wrong::Size(bits) => {
            let detail = "RSA keys must have modulus size 3072 or 4096";
            FieldError::invalid(&place, format!("{bits}-bit modulus"), detail)
        }
        Wrong::Proof => FieldError::invalid_unshown(&place_of_proof, "could not verify proof-of-possession signature"),
    })
}

/// Annotations whose keys all belong to somebody's domain.
pub(crate) fn user_annotations(annotations: Option<&BTreeMap<String, String>>, path: &Path) -> Errors {
    let mut errors = object_meta::annotations(annotations, path);
    let keys = annotations.into_iter().flat_map(BTreeMap::keys).filter(|key| !key.contains('/'));
    let detail = "must be a domain-prefixed key (such as \"acme.io/foo\")";
    errors.extend(keys.map(|key| FieldError::invalid(path, key, detail)));
    errors
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use json::json;

    use super::*;

    /// A request that is right: its Pod's UID is `pod-uid`.
    fn request() -> Value {
        let made = include_str!("possession.txt");
        let line = made.lines().find(|line| line.starts_with("rsa4096-max")).expect("a proof");
        let words: Vec<&str> = line.split(' ').collect();
        json!({
            "signerName": "foo.com/abc", "podName": "pod-1", "podUID": "pod-uid", "serviceAccountName": "sa-1",
            "serviceAccountUID": "sa-uid-1", "nodeName": "node-1", "nodeUID": "node-uid-1",
            "maxExpirationSeconds": 86400, "pkixPublicKey": words[1], "proofOfPossession": words[2],
        })
    }

    #[test]
    fn a_request_is_whole_and_proves_its_key() {
        let check = |change: Value, expected: &[&str]| {
            let mut spec = request();
            for (field, value) in change.as_object().unwrap() {
                spec[field] = value.clone();
            }
            let said: Vec<String> =
                validate(&json::from_value(spec).unwrap()).iter().map(ToString::to_string).collect();
            assert_eq!(said.len(), expected.len(), "{change}: {said:?}");
            assert!(said.iter().zip(expected).all(|(s, e)| s.contains(e)), "{change}: {said:?}");
        };
        check(json!({}), &[]);
        check(json!({"signerName": "", "podUID": "pod-uid"}), &["spec.signerName: Required"]);
        check(json!({"signerName": "no-domain"}), &["spec.signerName: Invalid"]);
        check(json!({"podName": "Pod_1"}), &["spec.podName: Invalid"]);
        check(json!({"serviceAccountName": ""}), &["spec.serviceAccountName: Invalid"]);
        check(json!({"nodeName": "-"}), &["spec.nodeName: Invalid"]);
        check(
            json!({"nodeUID": "", "serviceAccountUID": "x".repeat(129)}),
            &["serviceAccountUID: Too long", "nodeUID: Invalid value: \"\": must not be empty"],
        );
        check(json!({"maxExpirationSeconds": null}), &["spec.maxExpirationSeconds: Required value: must be set"]);
        check(json!({"maxExpirationSeconds": 3599}), &["must be in the range [3600, 7862400]"]);
        check(json!({"maxExpirationSeconds": 7862400}), &[]);
        check(
            json!({"maxExpirationSeconds": 7862401}),
            &["Invalid value: 7862401: must be in the range [3600, 7862400]"],
        );
        check(
            json!({"signerName": "kubernetes.io/abc", "maxExpirationSeconds": 86401}),
            &["must be in the range [3600, 86400]"],
        );
        check(json!({"signerName": "foo.kubernetes.io/abc", "maxExpirationSeconds": 86401}), &["[3600, 86400]"]);
        check(json!({"signerName": "notkubernetes.io/abc", "maxExpirationSeconds": 86401}), &[]);
        let long = STANDARD.encode(vec![0; KEY_MAX + 1]);
        check(json!({"pkixPublicKey": &long}), &["spec.pkixPublicKey: Too long"]);
        check(json!({"proofOfPossession": &long}), &["spec.proofOfPossession: Too long"]);
        check(
            json!({"pkixPublicKey": "YQ=="}),
            &["spec.pkixPublicKey: Invalid value: \"YQ==\": must be a valid PKIX-serialized public key"],
        );
        check(
            json!({"podUID": "another"}),
            &["spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature"],
        );
        check(json!({"unverifiedUserAnnotations": {"foo.com/a": "b"}}), &[]);
        check(json!({"unverifiedUserAnnotations": {"a": "b"}}), &["domain-prefixed key"]);
        check(json!({"unverifiedUserAnnotations": {"foo.com/a b": "c"}}), &["spec.unverifiedUserAnnotations: Invalid"]);
    }

    #[test]
    fn a_table_says_what_became_of_it() {
        let of = |conditions: Value| -> String {
            let object = json!({"spec": request(), "status": {"conditions": conditions}});
            state(&json::from_value(object).unwrap()).to_owned()
        };
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"});
        assert_eq!(of(json!([])), "Pending");
        assert_eq!(of(json!([condition("Issued")])), "Issued");
        assert_eq!(of(json!([condition("Denied"), condition("Other")])), "Denied");
        let annotations = BTreeMap::from([("b/a".to_owned(), "c".to_owned()), ("a/a".to_owned(), "d".to_owned())]);
        assert_eq!((shown(Some(&annotations)), shown(None)), ("map[a/a:d b/a:c]".to_owned(), "map[]".to_owned()));
    }
}
