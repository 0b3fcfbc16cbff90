//! CertificateSigningRequest: the wish for a certificate.

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use serde_json::Value;

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Kind, Subresource, Target, Way, age, col, label, name};
use crate::meta::field_text;
use crate::names::NameRule;
use crate::table;

const APPROVAL: Subresource = Subresource {
    name: "approval",
    object: ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
    verbs: &["get", "patch", "update"],
    way: Way::Own,
};

pub const CERTIFICATE_SIGNING_REQUEST: Kind<CertificateSigningRequest> = Kind {
    short: &["csr"],
    status: true,
    subresources: &[APPROVAL],
    name: NameRule::PathSegment,
    validate: Some(validate),
    prepare_update: Some(prepare_update),
    columns: &[
        name(),
        age(),
        col("SignerName", "Who shall sign it.", |r, _| Value::from(r.spec.signer_name.as_str())),
        col("Requestor", "Who asked for it.", |r, _| table::text(r.spec.username.as_ref())),
        col("RequestedDuration", "How long it shall be valid.", |r, _| {
            let seconds = r.spec.expiration_seconds;
            table::shown_or(seconds.map(|s| table::human_duration(i64::from(s))), "<none>")
        }),
        col("Condition", "What has become of it.", |r, _| Value::from(condition(r))),
    ],
    field_labels: &[label("spec.signerName", |o| field_text(o, &["spec", "signerName"]))],
    ..Kind::BASE
};

/// The spec never changes; `approval` writes conditions only.
fn prepare_update(new: &mut Value, old: &Value, target: Target) {
    let Some(map) = new.as_object_mut() else { return };
    if let Some(spec) = old.get("spec") {
        map.insert("spec".to_owned(), spec.clone());
    }
    let mut status = old.get("status").cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    if target == Target::Other("approval") {
        let conditions = map.get("status").and_then(|s| s.get("conditions")).cloned();
        if let (Some(status), Some(conditions)) = (status.as_object_mut(), conditions) {
            status.insert("conditions".to_owned(), conditions);
        }
        map.insert("status".to_owned(), status);
    }
}

fn conditions(request: &CertificateSigningRequest) -> &[CertificateSigningRequestCondition] {
    request.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

fn condition(request: &CertificateSigningRequest) -> String {
    let has = |kind: &str| conditions(request).iter().any(|c| c.type_ == kind);
    let mut words: Vec<&str> = ["Approved", "Denied"].into_iter().filter(|k| has(k)).collect();
    if words.is_empty() {
        words.push("Pending");
    }
    if has("Denied") {
        words.retain(|w| *w != "Approved");
    }
    if has("Failed") {
        words.push("Failed");
    }
    if request.status.as_ref().and_then(|s| s.certificate.as_ref()).is_some_and(|c| !c.0.is_empty()) {
        words.push("Issued");
    }
    words.join(",")
}

fn validate(request: &CertificateSigningRequest) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    if request.spec.usages.as_ref().is_none_or(Vec::is_empty) {
        errors.push(FieldError::required(&path.child("usages"), "usages must be provided"));
    }
    if request.spec.signer_name.is_empty() {
        errors.push(FieldError::required(&path.child("signerName"), ""));
    }
    if let Some(seconds) = request.spec.expiration_seconds.filter(|s| *s < 600) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid(&path.child("expirationSeconds"), seconds, detail));
    }
    errors
}
