//! CertificateSigningRequest: the wish for a certificate.
//!
//! An approver writes through `approval`, a signer through `status`: neither of the two can write the other's part.

use std::collections::BTreeSet;

use json::Value;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use serde::Deserialize;

use crate::kind::cell;
use crate::kind::{Kind, Subresource, Target, Way, age, col, label, name};
use crate::meta::field_text;
use crate::rules::certificate_request::{CertificateRequest, check_certificates};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{self, NameRule};
use crate::write::resets::Resets;

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
    resets: &[
        (Target::Object, Resets::These(&[&["spec"], &["status"]])),
        (Target::Status, Resets::These(&[&["spec"], &["status", "conditions"]])),
        (Target::Other("approval"), Resets::These(&[&["spec"], &["status", "certificate"]])),
    ],
    name: NameRule::PathSegment,
    validate: Some(validate),
    validate_create: Some(validate_create),
    validate_update: Some(validate_update),
    validate_status: Some(validate_status),
    prepare_update: Some(prepare_update),
    columns: &[
        name(),
        age(),
        col("SignerName", "Who shall sign it.", |r, _| Value::from(r.spec.signer_name.as_str())),
        col("Requestor", "Who asked for it.", |r, _| cell::text(r.spec.username.as_ref())),
        col("RequestedDuration", "How long it shall be valid.", |r, _| {
            let seconds = r.spec.expiration_seconds;
            cell::shown_or(seconds.map(|s| cell::human_duration(i64::from(s))), "<none>")
        }),
        col("Condition", "What has become of it.", |r, _| Value::from(condition(r))),
    ],
    field_labels: &[label("spec.signerName", |o| field_text(o, &["spec", "signerName"]))],
    ..Kind::BASE
};

/// The signer of the first version of the API, which let everything through.
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";

/// The conditions that decide, and those of them that `approval` alone writes.
const FINAL: &[&str] = &["Approved", "Denied", "Failed"];
const DECISIONS: &[&str] = &["Approved", "Denied"];

const USAGES: &[&str] = &[
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
    "any",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "ocsp signing",
    "microsoft sgc",
    "netscape sgc",
];

/// The spec never changes; `approval` writes conditions only, and `status` leaves decisions as they are.
fn prepare_update(new: &mut Value, old: &Value, target: Target) {
    let Some(map) = new.as_object_mut() else { return };
    if let Some(spec) = old.get("spec") {
        map.insert("spec", spec.clone());
    }
    if target == Target::Status {
        keep_decisions(map.get_mut("status"), old.get("status"));
    }
    let mut status = old.get("status").cloned().unwrap_or_else(|| Value::Object(json::Map::new()));
    if target == Target::Other("approval") {
        let conditions = map.get("status").and_then(|s| s.get("conditions")).cloned();
        if let (Some(status), Some(conditions)) = (status.as_object_mut(), conditions) {
            status.insert("conditions", conditions);
        }
        map.insert("status", status);
    }
}

/// Puts the decisions of the old status in the place of the new ones; where their number differs, validation refuses.
fn keep_decisions(new: Option<&mut Value>, old: Option<&Value>) {
    let new = new.and_then(|s| s.get_mut("conditions")).and_then(Value::as_array_mut);
    let old = old.and_then(|s| s.get("conditions")).and_then(Value::as_array);
    let (Some(new), Some(old)) = (new, old) else { return };
    for kind in DECISIONS {
        let kept: Vec<&Value> = old.iter().filter(|c| c["type"] == **kind).collect();
        let places: Vec<&mut Value> = new.iter_mut().filter(|c| c["type"] == **kind).collect();
        if kept.len() == places.len() {
            places.into_iter().zip(kept).for_each(|(place, condition)| *place = condition.clone());
        }
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

fn certificate(request: &CertificateSigningRequest) -> &[u8] {
    request.status.as_ref().and_then(|s| s.certificate.as_ref()).map_or(&[], |c| c.0.as_slice())
}

fn validate(request: &CertificateSigningRequest) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    if let Err(why) = CertificateRequest::parse(&request.spec.request.0) {
        errors.push(FieldError::invalid(&path.child("request"), &request.spec.request, &why.to_string()));
    }
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
    errors.extend(validate_conditions(request));
    errors
}

/// A new request may not have these; an old one keeps them.
fn validate_create(request: &CertificateSigningRequest) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, usage) in request.spec.usages.iter().flatten().enumerate() {
        if !USAGES.contains(&usage.as_str()) {
            errors.push(FieldError::not_supported(&path.child("usages").index(i), usage, USAGES));
        }
        if !seen.insert(usage) {
            errors.push(FieldError::duplicate(&path.child("usages").index(i), usage));
        }
    }
    errors.extend(signer_name(&request.spec.signer_name, &path.child("signerName")));
    errors
}

pub(crate) fn signer_name(name: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if name.is_empty() {
        return errors;
    }
    if name == LEGACY_SIGNER {
        errors.push(FieldError::invalid(path, name, "the legacy signerName is not allowed via this API version"));
        return errors;
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid(path, name, detail));
        return errors;
    };
    if domain.len() > 253 {
        errors.push(FieldError::too_long(path, 253));
    }
    let mut check = |part: &str, rule: fn(&str) -> Vec<String>| {
        if let Some((label, wrong)) = part.split('.').map(|label| (label, rule(label))).find(|(_, w)| !w.is_empty()) {
            let wrong = wrong.iter().map(|why| format!("validating label {label:?}: {why}"));
            errors.extend(wrong.map(|detail| FieldError::invalid(path, part, &detail)));
        }
    };
    check(domain, names::dns1123_label);
    check(rest, names::dns1123_subdomain);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(path, domain, detail));
    }
    errors
}

fn validate_conditions(request: &CertificateSigningRequest) -> Errors {
    let path = Path::new("status").child("conditions");
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions(request).iter().enumerate() {
        let path = path.index(i);
        if condition.type_.is_empty() {
            errors.push(FieldError::required(&path.child("type"), ""));
        }
        let allowed: &[&str] =
            if FINAL.contains(&condition.type_.as_str()) { &["True"] } else { &["False", "True", "Unknown"] };
        if condition.status.is_empty() {
            errors.push(FieldError::required(&path.child("status"), ""));
        } else if !allowed.contains(&condition.status.as_str()) {
            errors.push(FieldError::not_supported(&path.child("status"), &condition.status, allowed));
        }
        if !seen.insert(condition.type_.as_str()) {
            errors.push(FieldError::duplicate(&path.child("type"), &condition.type_));
        }
    }
    if DECISIONS.iter().all(|kind| seen.contains(kind)) {
        errors.push(FieldError::invalid(&path, "Denied", "Approved and Denied conditions are mutually exclusive"));
    }
    errors
}

fn validate_status(new: &Value, old: &Value) -> Errors {
    let typed = |object: &Value| CertificateSigningRequest::deserialize(object);
    match (typed(new), typed(old)) {
        (Ok(new), Ok(old)) => {
            let mut errors = validate_conditions(&new);
            errors.extend(validate_update(&new, &old, Target::Status));
            errors
        }
        (Err(error), _) | (_, Err(error)) => {
            vec![FieldError::invalid(&Path::new("status"), "<status>", &error.to_string())]
        }
    }
}

fn validate_update(new: &CertificateSigningRequest, old: &CertificateSigningRequest, target: Target) -> Errors {
    let path = Path::new("status").child("conditions");
    let mut errors = Errors::new();
    let of = |request, kind: &str| -> Vec<CertificateSigningRequestCondition> {
        conditions(request).iter().filter(|c| c.type_ == kind).cloned().collect()
    };
    for kind in FINAL {
        let (new, old) = (of(new, kind), of(old, kind));
        let mut forbid = |what: &str| {
            let detail = format!("updates may not {what} a condition of type {kind:?}");
            errors.push(FieldError::forbidden(&path, &detail));
        };
        if new.len() < old.len() {
            forbid("remove");
        } else if target == Target::Other("approval") || !DECISIONS.contains(kind) {
            continue;
        } else if new.len() > old.len() {
            forbid("add");
        } else if new != old {
            forbid("modify");
        }
    }
    if certificate(new) != certificate(old) {
        let path = Path::new("status").child("certificate");
        if target != Target::Status {
            errors.push(FieldError::forbidden(&path, "updates may not set certificate content"));
        } else if !certificate(old).is_empty() {
            errors.push(FieldError::forbidden(&path, "updates may not modify existing certificate content"));
        } else if let Err(why) = check_certificates(certificate(new)) {
            errors.push(FieldError::invalid(&path, "<certificate data>", &why));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn request(signer: &str, usages: &[&str], conditions: Value) -> CertificateSigningRequest {
        let pem = pki::Wish::new(&pki::Subject::client("jane", None)).unwrap().request;
        let mut request: CertificateSigningRequest = json::from_value(json!({
            "metadata": {"name": "r"}, "spec": {"request": "", "signerName": signer, "usages": usages},
            "status": {"conditions": conditions},
        }))
        .unwrap();
        request.spec.request.0 = pem.into_bytes();
        request
    }

    #[test]
    fn a_new_request_is_checked() {
        let check = |signer: &str, usages: &[&str], expected: &[&str]| {
            let request = request(signer, usages, json!([]));
            let said: Vec<String> =
                validate(&request).iter().chain(&validate_create(&request)).map(ToString::to_string).collect();
            assert_eq!(said.len(), expected.len(), "{said:?}");
            assert!(said.iter().zip(expected).all(|(s, e)| s.contains(e)), "{said:?}");
        };
        check("example.com/signer", &["client auth"], &[]);
        check("", &[], &["spec.usages: Required", "spec.signerName: Required"]);
        check("a.b/c", &["x", "any", "any"], &["spec.usages[0]: Unsupported value", "spec.usages[2]: Duplicate"]);
        check(LEGACY_SIGNER, &["any"], &["the legacy signerName is not allowed"]);
        check("a.b", &["any"], &["fully qualified domain and path"]);
        check("a.b/c/d", &["any"], &["fully qualified domain and path"]);
        check("local/c", &["any"], &["at least two segments"]);
        check("A.b/c", &["any"], &["validating label \"A\""]);
        let mut broken = request("a.b/c", &["any"], json!([]));
        broken.spec.request.0 = b"a".to_vec();
        let expected = "spec.request: Invalid value: \"YQ==\": PEM block type must be CERTIFICATE REQUEST";
        assert_eq!(validate(&broken)[0].to_string(), expected);
    }

    #[test]
    fn decisions_are_for_approval_and_certificates_for_status() {
        let approved = json!([{"type": "Approved", "status": "True", "reason": "r"}]);
        let plain = || request("a.b/c", &["any"], json!([]));
        let yes = || request("a.b/c", &["any"], approved.clone());
        let said = |new: &CertificateSigningRequest, old: &CertificateSigningRequest, target: Target| -> String {
            validate_update(new, old, target).first().map(ToString::to_string).unwrap_or_default()
        };
        let approval = Target::Other("approval");
        assert_eq!(said(&yes(), &plain(), approval), "");
        for target in [Target::Status, Target::Object] {
            assert!(said(&yes(), &plain(), target).contains("may not add a condition of type \"Approved\""));
        }
        assert!(said(&plain(), &yes(), approval).contains("may not remove"));
        let mut other = yes();
        other.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].reason = Some("x".into());
        assert!(said(&other, &yes(), Target::Status).contains("may not modify"));
        let mut signed = yes();
        let pem = pki::Authority::create("ca").unwrap().certificate().as_bytes().to_vec();
        signed.status.as_mut().unwrap().certificate = Some(k8s_openapi::ByteString(pem));
        assert_eq!(said(&signed, &yes(), Target::Status), "");
        assert!(said(&signed, &yes(), approval).contains("may not set certificate"));
        assert!(said(&yes(), &signed, Target::Status).contains("may not modify existing certificate"));
        signed.status.as_mut().unwrap().certificate = Some(k8s_openapi::ByteString(b"no PEM".to_vec()));
        assert!(said(&signed, &yes(), Target::Status).contains("at least one CERTIFICATE"));

        for (conditions, why) in [
            (json!([{"type": "Approved", "status": "False"}]), "Unsupported value"),
            (json!([{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]), "exclusive"),
            (json!([{"type": "", "status": "True"}]), "Required"),
            (json!([{"type": "X", "status": "True"}, {"type": "X", "status": "True"}]), "Duplicate"),
        ] {
            let wrong = validate(&request("a.b/c", &["any"], conditions));
            assert!(wrong.len() == 1 && wrong[0].to_string().contains(why), "{wrong:?}");
        }
    }

    #[test]
    fn status_keeps_the_decisions_there_are() {
        let old = json!({"spec": {"a": 1}, "status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r"}]}});
        let mut new =
            json!({"spec": {}, "status": {"conditions": [{"type": "Approved", "status": "True"}, {"type": "Failed"}]}});
        prepare_update(&mut new, &old, Target::Status);
        assert_eq!(new["status"]["conditions"][0], old["status"]["conditions"][0]);
        assert_eq!((&new["spec"], new["status"]["conditions"].as_array().unwrap().len()), (&old["spec"], 2));
    }
}
