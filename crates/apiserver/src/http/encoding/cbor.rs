//! CBOR on the wire, where the gate `CBORServingAndStorage` is on: what a client sends becomes JSON before anything reads it, and
//! what the server has written as JSON becomes CBOR by its `apiVersion` and `kind`.

use api::{
    Value,
    codec::{
        cbor,
        decode::{self, Gvk, Validation},
    },
    kind::Definition,
    rules::url::query_pairs,
    schema,
    status::StatusError,
};
use http::HeaderValue;

use crate::http::respond;

/// An object that stands in the text of an answer.
pub fn object(json: &[u8]) -> Vec<u8> {
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    cbor::document(&schema::of_object(&value), &value)
}

/// Appends an item of a list. Items do not say what they are: the list does.
pub fn item(out: &mut Vec<u8>, ty: &schema::Type, json: &[u8]) {
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    cbor::append(out, ty, &value);
}

/// One event of a watch.
pub fn event(event: &str, json: &[u8]) -> Vec<u8> {
    let mut out = cbor::map_head(2);
    cbor::text(&mut out, "type");
    cbor::text(&mut out, event);
    cbor::text(&mut out, "object");
    out.extend_from_slice(&object(json));
    out
}

/// The type of what a body in CBOR becomes; `None` where it is none.
pub fn stands_for(media_type: &str) -> Option<HeaderValue> {
    match media_type.split(';').next().unwrap_or("").trim() {
        cbor::MEDIA_TYPE => Some(respond::JSON),
        // JSON is YAML.
        cbor::APPLY_MEDIA_TYPE => Some(HeaderValue::from_static("application/apply-patch+yaml")),
        _ => None,
    }
}

/// A body in CBOR as JSON, with a warning of a field that nobody knows. None at all is none in any encoding. A patch is of no
/// type, and custom objects are told of unknown fields when they are pruned.
pub fn as_json(
    body: &[u8],
    definition: &Definition,
    verb: &str,
    query: &str,
) -> Result<(Vec<u8>, Option<String>), StatusError> {
    if body.is_empty() {
        return Ok((Vec::new(), None));
    }
    let Definition { group, version, kind, .. } = definition;
    let is_object = matches!(verb, "create" | "update") && !definition.is_custom();
    let ty = if is_object { &definition.ty } else { &schema::Type::Any };
    let asked = query_pairs(query).find(|(name, _)| name == "fieldValidation");
    // A value that is none of them is refused where the options are read.
    let validation = asked.and_then(|(_, value)| Validation::parse(&value).ok()).unwrap_or_default();
    decode::cbor_as_json(ty, Gvk { group, version, kind }, body, validation)
}

/// An error about a body of an unknown format names CBOR among those that are known.
pub fn unsupported(mut error: StatusError, verb: &str) -> StatusError {
    if error.code == 415 {
        let media_type = if verb == "patch" { cbor::APPLY_MEDIA_TYPE } else { cbor::MEDIA_TYPE };
        error.message = format!("{}, {media_type}", error.message);
    }
    error
}
