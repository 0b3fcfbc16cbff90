//! Base64 as Go reads it: the ends of lines in it mean nothing.

use std::borrow::Cow;

use ::base64::{DecodeError, Engine, engine::general_purpose::STANDARD};

/// The text without the ends of lines, as Go would write it.
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(['\r', '\n']) { text.replace(['\r', '\n'], "").into() } else { text.into() }
}

pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub fn decode(text: &str) -> Result<Vec<u8>, DecodeError> {
    STANDARD.decode(&*plain(text))
}
