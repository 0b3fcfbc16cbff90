//! `continue`: where the next page of a list begins, and the revision that all of its pages are of.
//! Upstream counterpart: apiserver/pkg/storage/continue.go.

use api::{
    Value,
    codec::{
        decode::{self, Format},
        problem::Problem,
    },
    status::StatusError,
};
use base64::{DecodeError, Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use json::json;

const VERSION: &str = "meta.k8s.io/v1";

/// In place of a revision: whatever is the newest.
pub const NEWEST: i64 = -1;

pub struct Token {
    pub revision: i64,
    pub start: String,
}

pub fn encode(revision: i64, start: &str) -> String {
    URL_SAFE_NO_PAD.encode(json!({"v": VERSION, "rv": revision, "start": start}).to_string())
}

pub fn decode(text: &str) -> Result<Token, StatusError> {
    let broken =
        |why: &str| StatusError::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| {
        let at = match error {
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
            _ => text.len(),
        };
        broken(&format!("illegal base64 data at input byte {at}"))
    })?;
    let (value, _) = decode::raw(&bytes, Format::Json).map_err(|problem| match problem {
        Problem::Syntax(why) | Problem::Type(why) | Problem::TooLarge(why) => broken(&why),
    })?;
    let (version, revision, start) = fields(&value).map_err(|why| broken(&why))?;
    match start {
        _ if version != VERSION => Err(broken(&format!("server does not recognize this encoded version {version}"))),
        _ if revision == 0 => Err(broken(&format!("incorrect encoded start resourceVersion (version {VERSION})"))),
        "" => Err(broken(&format!("encoded start key empty (version {VERSION})"))),
        start if !is_clean(start) => Err(broken(start)),
        start => Ok(Token { revision, start: start.to_owned() }),
    }
}

/// Version, revision and key. A field that is missing or null is empty; of another type it is refused as by Go's decoder.
fn fields(value: &Value) -> Result<(&str, i64, &str), String> {
    const NULL: &Value = &Value::Null;
    if !value.is_object() && !value.is_null() {
        return Err(format!("json: cannot unmarshal {} into Go value of type storage.continueToken", named(value)));
    }
    let unfit = |value: &Value, field: &str, wanted: &str| {
        Err(format!(
            "json: cannot unmarshal {} into Go struct field continueToken.{field} of type {wanted}",
            named(value)
        ))
    };
    let text = |field: &str| match value.get(field).unwrap_or(NULL) {
        Value::Null => Ok(""),
        Value::String(text) => Ok(text.as_str()),
        other => unfit(other, field, "string").map(|()| ""),
    };
    let version = text("v")?;
    let revision = match value.get("rv").unwrap_or(NULL) {
        Value::Null => 0,
        other => match other.as_i64() {
            Some(revision) => revision,
            None => unfit(other, "rv", "int64").map(|()| 0)?,
        },
    };
    Ok((version, revision, text("start")?))
}

/// A value in the words of Go's decoder.
pub(crate) fn named(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) => format!("number {number}"),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    }
}

/// Whether a key of a token names its place and no other: no part of it is empty, and none leads back.
fn is_clean(start: &str) -> bool {
    start.strip_prefix('/').unwrap_or(start).split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back() {
        let token = decode(&encode(12, "default/a\0")).unwrap();
        assert_eq!((token.revision, token.start.as_str()), (12, "default/a\0"));
        assert_eq!(decode(&encode(NEWEST, "a")).unwrap().revision, NEWEST);
    }

    #[track_caller]
    fn refused(token: &str, why: &str) {
        let error = decode(token).err().expect("refused");
        let expected = format!("invalid continue token: continue key is not valid: {why}");
        assert_eq!((error.code, error.message), (400, expected), "{token}");
    }

    #[test]
    fn what_is_no_token_is_told_in_upstreams_words() {
        refused("%%", "illegal base64 data at input byte 0");
        refused("YWJj=", "illegal base64 data at input byte 4");
        for (text, why) in [
            ("", "unexpected end of JSON input"),
            ("token", "invalid character 'o' in literal true (expecting 'r')"),
            ("{", "unexpected end of JSON input"),
            ("[]", "json: cannot unmarshal array into Go value of type storage.continueToken"),
            ("{}", "server does not recognize this encoded version "),
            ("null", "server does not recognize this encoded version "),
            (
                r#"{"v":"meta.k8s.io/v2","rv":1,"start":"x"}"#,
                "server does not recognize this encoded version meta.k8s.io/v2",
            ),
            (r#"{"v":7}"#, "json: cannot unmarshal number 7 into Go struct field continueToken.v of type string"),
            (
                r#"{"v":"meta.k8s.io/v1","rv":"5"}"#,
                "json: cannot unmarshal string into Go struct field continueToken.rv of type int64",
            ),
            (
                r#"{"v":"meta.k8s.io/v1","rv":1.5}"#,
                "json: cannot unmarshal number 1.5 into Go struct field continueToken.rv of type int64",
            ),
            (
                r#"{"v":"meta.k8s.io/v1","start":"x"}"#,
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (r#"{"v":"meta.k8s.io/v1","rv":1}"#, "encoded start key empty (version meta.k8s.io/v1)"),
        ] {
            refused(&URL_SAFE_NO_PAD.encode(text), why);
        }
        for beyond in ["../secrets/a", "a/../../b", "./a", "a//b", "/", "a/"] {
            refused(&encode(12, beyond), beyond);
        }
    }
}
