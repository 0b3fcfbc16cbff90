//! AdmissionReview: the question that a webhook is asked, and what of its answer counts. An answer is the word of a stranger:
//! it is read here once, and only what was read is used.
//!
//! Upstream counterpart: apiserver/pkg/admission/plugin/webhook/request, whose errors are those of the answers here.

use std::collections::BTreeMap;

use api::Value;
use api::k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusDetails;
use api::status::StatusError;
use base64::Engine as _;
use json::json;
use serde::Deserialize;

use super::super::policy::input::Input;

/// The forms of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V1beta1,
}

impl Version {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "v1" => Some(Version::V1),
            "v1beta1" => Some(Version::V1beta1),
            _ => None,
        }
    }

    fn api_version(self) -> &'static str {
        match self {
            Version::V1 => "admission.k8s.io/v1",
            Version::V1beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

/// The question about a write.
pub(super) fn question(version: Version, uid: &str, input: &Input) -> Value {
    let mut request = input.request.clone();
    request["uid"] = json!(uid);
    request["object"] = input.object.clone();
    request["oldObject"] = input.old.clone();
    json!({"kind": "AdmissionReview", "apiVersion": version.api_version(), "request": request})
}

/// The answer of a webhook to a write.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    pub allowed: bool,
    /// The reasons of a refusal.
    pub status: Option<Status>,
    /// A patch that is not empty, and its type.
    pub patch: Option<(String, Vec<u8>)>,
    pub warnings: Vec<String>,
    pub annotations: BTreeMap<String, String>,
}

/// As much of a `metav1.Status` as a refusal repeats.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Status {
    code: Option<i64>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<StatusDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Response {
    uid: Option<String>,
    allowed: Option<bool>,
    status: Option<Status>,
    patch: Option<String>,
    patch_type: Option<String>,
    audit_annotations: Option<BTreeMap<String, String>>,
    warnings: Option<Vec<String>>,
}

/// Reads an answer. The error says what is wrong with it.
pub(super) fn read(version: Version, uid: &str, mutating: bool, review: &Value) -> Result<Answer, String> {
    if review["response"].is_null() {
        return Err("webhook response was absent".to_owned());
    }
    let response: Response = json::from_value(review["response"].clone()).map_err(|error| error.to_string())?;
    let patch = response.patch.unwrap_or_default();
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).map_err(|error| error.to_string())?;
    let patch_type = match version {
        Version::V1 => {
            is_for(uid, response.uid.as_deref().unwrap_or_default(), review)?;
            check_patch(mutating, !patch.is_empty(), response.patch_type.as_deref())?;
            response.patch_type.unwrap_or_default()
        }
        // Answers in the old form are believed without.
        Version::V1beta1 => "JSONPatch".to_owned(),
    };
    Ok(Answer {
        allowed: response.allowed == Some(true),
        status: response.status,
        patch: (mutating && !patch.is_empty()).then_some((patch_type, patch)),
        warnings: response.warnings.unwrap_or_default(),
        annotations: response.audit_annotations.unwrap_or_default(),
    })
}

/// Whether an answer is one to the question.
fn is_for(uid: &str, answered: &str, review: &Value) -> Result<(), String> {
    if answered != uid {
        return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
    }
    let text = |field: &str| review[field].as_str().unwrap_or_default();
    let shown = |api_version: &str, kind: &str| {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        format!("{group}/{version}, Kind={kind}")
    };
    let (wanted, got) = (shown(Version::V1.api_version(), "AdmissionReview"), shown(text("apiVersion"), text("kind")));
    if wanted == got { Ok(()) } else { Err(format!("expected webhook response of {wanted}, got {got}")) }
}

/// A patch comes with its type, and only from those who may change something.
fn check_patch(mutating: bool, patched: bool, patch_type: Option<&str>) -> Result<(), String> {
    let wrong = match (mutating, patched, patch_type) {
        (true, true, None) => "webhook returned response.patch but not response.patchType",
        (true, false, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, true, Some("")) => "webhook returned invalid response.patchType of \"\"",
        (false, true, _) => "validating webhook may not return response.patch",
        (false, false, Some(_)) => "validating webhook may not return response.patchType",
        _ => return Ok(()),
    };
    Err(wrong.to_owned())
}

/// The refusal of a webhook as the client is told of it.
pub(super) fn denial(webhook: &str, status: Option<Status>) -> StatusError {
    let Status { code, message, reason, details } = status.unwrap_or_default();
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (message, reason) = (some(message), some(reason));
    let why = match message.as_ref().or(reason.as_ref()) {
        Some(why) => format!(": {why}"),
        None => " without explanation".to_owned(),
    };
    // A refusal is no success, whatever its status says.
    let code = code.and_then(|code| u16::try_from(code).ok()).filter(|code| (400..1000).contains(code));
    let message = format!("admission webhook {webhook:?} denied the request{why}");
    StatusError {
        reason: reason.unwrap_or_default().into(),
        details: details.map(Box::new),
        ..StatusError::new(code.unwrap_or(400), "", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(response: Value) -> Value {
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
    }

    #[test]
    fn answers_are_read_once() {
        let check = |mutating: bool, response: Value, expected: Result<Answer, &str>| {
            let read = read(Version::V1, "u", mutating, &answer(response.clone()));
            assert_eq!(read, expected.map_err(str::to_owned), "{response}");
        };
        let allowed = || Answer { allowed: true, ..Answer::default() };
        check(true, json!({"uid": "u", "allowed": true}), Ok(allowed()));
        check(true, json!({"uid": "u"}), Ok(Answer::default()));
        check(true, json!({"uid": "u", "allowed": null, "warnings": null, "patch": null}), Ok(Answer::default()));
        let patch = Some(("JSONPatch".to_owned(), b"[]".to_vec()));
        let patched = json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "W10="});
        check(true, patched.clone(), Ok(Answer { patch, ..allowed() }));
        check(false, patched, Err("validating webhook may not return response.patch"));
        let typed = json!({"uid": "u", "patchType": "JSONPatch"});
        check(true, typed.clone(), Err("webhook returned response.patchType but not response.patch"));
        check(false, typed, Err("validating webhook may not return response.patchType"));
        let untyped = json!({"uid": "u", "patch": "W10="});
        check(true, untyped, Err("webhook returned response.patch but not response.patchType"));
        let empty = json!({"uid": "u", "patch": "W10=", "patchType": ""});
        check(true, empty, Err("webhook returned invalid response.patchType of \"\""));
        check(true, json!({"uid": "v"}), Err("expected response.uid=\"u\", got \"v\""));
        check(true, json!({}), Err("expected response.uid=\"u\", got \"\""));
        check(true, Value::Null, Err("webhook response was absent"));
        assert!(read(Version::V1, "u", true, &answer(json!({"uid": "u", "warnings": [1]}))).is_err());
        assert!(read(Version::V1, "u", true, &answer(json!("yes"))).is_err());
        assert!(read(Version::V1, "u", true, &answer(json!({"uid": "u", "patch": "?"}))).is_err());
    }

    #[test]
    fn answers_in_the_old_form_need_neither_uid_nor_type() {
        let review = json!({"response": {"allowed": true, "patch": "W10="}});
        let patch = Some(("JSONPatch".to_owned(), b"[]".to_vec()));
        let expected = Answer { allowed: true, patch, ..Answer::default() };
        assert_eq!(read(Version::V1beta1, "u", true, &review), Ok(expected));
        assert_eq!(read(Version::V1beta1, "u", false, &review).map(|answer| answer.patch), Ok(None));
    }
}
