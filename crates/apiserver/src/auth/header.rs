//! The request headers that name a user, or the user that a caller acts as: `Authorization`, `Impersonate-*` and the front
//! proxy's. Their values are UTF-8, as upstream takes them. One that can't be read, or that is there twice where one
//! counts, is an error and never absent: who leaves it out acts with other rights than the client meant.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("the header {0} is not UTF-8")]
    NoText(String),
    #[error("the header {0} is there more than once")]
    Twice(String),
}

fn text(name: &str, value: &HeaderValue) -> Result<String, Unreadable> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned).map_err(|_| Unreadable::NoText(name.to_owned()))
}

/// All values of a header, in order.
pub fn all(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Unreadable> {
    headers.get_all(name).iter().map(|value| text(name, value)).collect()
}

/// The value of a header that may be there once; `None` when it is absent.
pub fn one(headers: &HeaderMap, name: &str) -> Result<Option<String>, Unreadable> {
    let mut values = all(headers, name)?;
    let value = values.pop();
    if values.is_empty() { Ok(value) } else { Err(Unreadable::Twice(name.to_owned())) }
}

/// The values of all headers whose name begins with a prefix (in lower case), by the unescaped rest of the name.
pub fn extra(headers: &HeaderMap, prefix: &str) -> Result<BTreeMap<String, Vec<String>>, Unreadable> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in headers.keys() {
        let Some(rest) = name.as_str().strip_prefix(prefix) else { continue };
        let key = unescape(rest).ok_or_else(|| Unreadable::NoText(name.to_string()))?;
        extra.entry(key).or_default().extend(all(headers, name.as_str())?);
    }
    Ok(extra)
}

/// Undoes percent escapes. A text with a broken one stays as it is as a whole, as upstream has it; `None` when the bytes
/// are no UTF-8.
fn unescape(text: &str) -> Option<String> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16).map(|d| d.to_le_bytes()[0]);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let (Some(high), Some(low)) = (digit(tail.first()), digit(tail.get(1))) else { return Some(text.to_owned()) };
        out.push(high * 16 + low);
        rest = &tail[2..];
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_or_refused() {
        let mut headers = HeaderMap::new();
        headers.append("a", HeaderValue::from_bytes("jösé".as_bytes()).unwrap());
        headers.append("b", HeaderValue::from_static("1"));
        headers.append("b", HeaderValue::from_static("2"));
        headers.append("c", HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(one(&headers, "a"), Ok(Some("jösé".to_owned())));
        assert_eq!(one(&headers, "b"), Err(Unreadable::Twice("b".to_owned())));
        assert_eq!(all(&headers, "b").unwrap(), ["1", "2"]);
        assert_eq!(one(&headers, "c"), Err(Unreadable::NoText("c".to_owned())));
        assert_eq!(one(&headers, "d"), Ok(None));
    }

    #[test]
    fn escapes_are_undone_as_a_whole_or_not_at_all() {
        for (text, expected) in [
            ("acme.com%2fx", Some("acme.com/x")),
            ("j%c3%b6", Some("jö")),
            ("%41%zz", Some("%41%zz")),
            ("%+5", Some("%+5")),
            ("%4", Some("%4")),
            ("%ff", None),
        ] {
            assert_eq!(unescape(text).as_deref(), expected, "{text}");
        }
    }
}
