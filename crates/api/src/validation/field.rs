//! Where in an object something is wrong, and what: paths such as `spec.containers[0].name`, and the field errors that
//! validation returns, in upstream's words (apimachinery's `field` package).

use std::fmt::{self, Display};

use crate::codec::bounds::{self, SHOWN_MAX, STEP_MAX};
use crate::codec::numbers;
use crate::validation::internal_form;

/// A path into an object. Build it from the root: `Path::new("spec").child("containers").index(0).child("name")`.
///
/// Validation builds a path for every field that it looks at, nearly always in vain: a short one needs no memory of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct Path(Text);

/// The length of paths up to which they are short ones.
const SHORT: usize = 62;

#[derive(Clone, PartialEq, Eq)]
enum Text {
    /// The bytes behind the length are zero.
    Short(u8, [u8; SHORT]),
    Long(String),
}

impl Path {
    pub fn new(name: &str) -> Self {
        Path::default().with(None, name, None)
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        self.with((!self.is_empty()).then_some(b'.'), name, None)
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(Some(b'['), itoa::Buffer::new().format(index), Some(b']'))
    }

    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(Some(b'['), &bounds::cut(key, STEP_MAX), Some(b']'))
    }

    /// The path with a step behind it, between its signs.
    fn with(&self, before: Option<u8>, step: &str, after: Option<u8>) -> Self {
        let further = usize::from(before.is_some()) + step.len() + usize::from(after.is_some());
        match &self.0 {
            Text::Short(len, bytes) if usize::from(*len) + further <= SHORT => {
                let (mut at, mut bytes) = (usize::from(*len), *bytes);
                if let Some(sign) = before {
                    bytes[at] = sign;
                    at += 1;
                }
                bytes[at..at + step.len()].copy_from_slice(step.as_bytes());
                if let Some(sign) = after {
                    bytes[at + step.len()] = sign;
                }
                Path(Text::Short(len + further as u8, bytes))
            }
            _ => {
                let text = self.text();
                let mut path = String::with_capacity(text.len() + further);
                path.push_str(text);
                path.extend(before.map(char::from));
                path.push_str(step);
                path.extend(after.map(char::from));
                Path(Text::Long(path))
            }
        }
    }

    fn text(&self) -> &str {
        match &self.0 {
            Text::Short(len, bytes) => std::str::from_utf8(&bytes[..usize::from(*len)]).expect("it is made of text"),
            Text::Long(text) => text,
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self.0, Text::Short(0, _))
    }
}

impl Default for Path {
    fn default() -> Self {
        Path(Text::Short(0, [0; SHORT]))
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Path").field(&self.text()).finish()
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The sorts of field error, with the reason that `details.causes` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl Cause {
    /// `reason` in `details.causes`.
    pub fn reason(self) -> &'static str {
        match self {
            Cause::NotFound => "FieldValueNotFound",
            Cause::Required => "FieldValueRequired",
            Cause::Duplicate => "FieldValueDuplicate",
            Cause::Invalid => "FieldValueInvalid",
            Cause::NotSupported => "FieldValueNotSupported",
            Cause::Forbidden => "FieldValueForbidden",
            Cause::TooLong => "FieldValueTooLong",
            Cause::TooMany => "FieldValueTooMany",
            Cause::Internal => "InternalError",
            Cause::TypeInvalid => "FieldValueTypeInvalid",
        }
    }
}

/// One thing that is wrong with one field. `detail` is the message without the path, for example
/// `Invalid value: "A": must be lower case`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    pub path: Path,
    pub cause: Cause,
    pub detail: String,
}

impl Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.detail)
    }
}

/// A value as upstream's messages show it: strings as Go quotes them, numbers as it prints them, everything else as JSON. Of a large value the
/// beginning is shown: many errors may be about the same one.
pub fn show(value: impl serde::Serialize) -> String {
    if bounds::json_bytes(&value, SHOWN_MAX).is_none() {
        return bounds::json_start(&value, SHOWN_MAX);
    }
    match json::to_value(value) {
        Ok(json::Value::String(text)) => quote(&text),
        Ok(json::Value::Number(number)) => numbers::digits(&number),
        Ok(other) => internal_form::json_text(&other),
        Err(_) => String::new(),
    }
}

/// A string as Go's `%q` writes it.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_shown(c) => out.push(c),
            c if u32::from(c) > 0xffff => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Whether a character can be seen, as Go has it: letters, marks, numbers, punctuation, symbols and the one space of ASCII. Marks are
/// asked about behind a letter, where they belong.
fn is_shown(c: char) -> bool {
    c.is_ascii() || ['a', c].iter().collect::<String>().escape_debug().nth(1) == Some(c)
}

impl FieldError {
    fn new(path: &Path, cause: Cause, detail: String) -> Self {
        FieldError { path: path.clone(), cause, detail }
    }

    pub fn required(path: &Path, detail: &str) -> Self {
        let text = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self::new(path, Cause::Required, text)
    }

    pub fn invalid(path: &Path, value: impl serde::Serialize, detail: &str) -> Self {
        Self::invalid_shown(path, &show(value), detail)
    }

    /// An invalid value that is given as text, for objects that are shown in their internal form.
    pub(crate) fn invalid_shown(path: &Path, shown: &str, detail: &str) -> Self {
        Self::new(path, Cause::Invalid, format!("Invalid value: {}: {detail}", bounds::cut(shown, SHOWN_MAX)))
    }

    /// An invalid value that the message does not show.
    pub fn invalid_unshown(path: &Path, detail: &str) -> Self {
        Self::new(path, Cause::Invalid, format!("Invalid value: {detail}"))
    }

    /// The supported values are shown in the order given.
    pub fn not_supported(path: &Path, value: impl serde::Serialize, supported: &[&str]) -> Self {
        Self::not_supported_shown(path, &show(value), supported)
    }

    /// The error with its value given as text.
    pub(crate) fn not_supported_shown(path: &Path, shown: &str, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|word| quote(word)).collect();
        let shown = bounds::cut(shown, SHOWN_MAX);
        let detail = format!("Unsupported value: {shown}: supported values: {}", list.join(", "));
        Self::new(path, Cause::NotSupported, detail)
    }

    pub fn duplicate(path: &Path, value: impl serde::Serialize) -> Self {
        Self::duplicate_shown(path, &show(value))
    }

    /// The error with its value given as text.
    pub(crate) fn duplicate_shown(path: &Path, shown: &str) -> Self {
        Self::new(path, Cause::Duplicate, format!("Duplicate value: {}", bounds::cut(shown, SHOWN_MAX)))
    }

    pub fn not_found(path: &Path, value: impl serde::Serialize) -> Self {
        Self::new(path, Cause::NotFound, format!("Not found: {}", show(value)))
    }

    pub fn forbidden(path: &Path, detail: &str) -> Self {
        Self::new(path, Cause::Forbidden, format!("Forbidden: {detail}"))
    }

    pub fn too_long(path: &Path, max_bytes: usize) -> Self {
        Self::new(path, Cause::TooLong, format!("Too long: may not be more than {max_bytes} bytes"))
    }

    pub fn too_many(path: &Path, count: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::new(path, Cause::TooMany, format!("Too many: {count}: must have at most {max} {items}"))
    }

    pub fn type_invalid(path: &Path, value: impl serde::Serialize, detail: &str) -> Self {
        Self::new(path, Cause::TypeInvalid, format!("Invalid value: {}: {detail}", show(value)))
    }
}

/// All that is wrong with an object.
pub type Errors = Vec<FieldError>;

/// A word that must be given and known.
pub(crate) fn one_of(value: &str, known: &[&str], path: &Path, field: &str) -> Option<FieldError> {
    match value {
        "" => Some(FieldError::required(&path.child(field), "")),
        word if known.contains(&word) => None,
        other => Some(FieldError::not_supported(&path.child(field), other, known)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_go_shows_them() {
        assert_eq!(show("a \"b\"\n\u{1}<"), "\"a \\\"b\\\"\\n\\x01<\"");
        let seen = "é \u{301}ß漢😀";
        assert_eq!(quote(seen), format!("\"{seen}\""));
        let unseen = "\u{85}\u{a0}\u{ad}\u{200b}\u{202e}\u{2028}\u{3000}\u{e000}\u{feff}\u{e0001}\u{10ffff}\u{7f}";
        let escaped = r#""\u0085\u00a0\u00ad\u200b\u202e\u2028\u3000\ue000\ufeff\U000e0001\U0010ffff\x7f""#;
        assert_eq!(quote(unseen), escaped);
        assert_eq!(show(["a<b"]), "[\"a\\u003cb\"]");
        assert_eq!((show(None::<i64>), show(true), show(5)), ("null".to_owned(), "true".to_owned(), "5".to_owned()));
        assert_eq!((show(1e10), show([1e10, 1e-7])), ("1e+10".to_owned(), "[10000000000,1e-7]".to_owned()));
    }
}
