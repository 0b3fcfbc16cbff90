//! CBOR on the wire, where the gate `CBORServingAndStorage` is on: what a client sends becomes JSON before anything reads it, and
//! what the server has written as JSON becomes CBOR by its `apiVersion` and `kind`.

use api::{
    Value,
    codec::{
        cbor,
        decode::{self, Gvk},
    },
    kind::Definition,
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

/// A body in CBOR as JSON. None at all is none in any encoding.
pub fn as_json(body: &[u8], definition: &Definition) -> Result<Vec<u8>, StatusError> {
    let Definition { group, version, kind, .. } = definition;
    if body.is_empty() { Ok(Vec::new()) } else { decode::cbor_as_json(body, Gvk { group, version, kind }) }
}

/// An error about a body of an unknown format names CBOR among those that are known.
pub fn unsupported(mut error: StatusError, verb: &str) -> StatusError {
    if error.code == 415 {
        let media_type = if verb == "patch" { cbor::APPLY_MEDIA_TYPE } else { cbor::MEDIA_TYPE };
        error.message = format!("{}, {media_type}", error.message);
    }
    error
}
