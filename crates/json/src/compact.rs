//! Values as compact text, appended to bytes: what every stored object passes through. The text is that of Go's
//! `encoding/json`, which upstream's answers and stored objects are made with.

use std::io::Write as _;

use crate::{Key, Map, Number, Value, escapes::plain};

impl Value {
    /// Appends the value as Go would write it.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Value::Null => out.extend_from_slice(b"null"),
            Value::Bool(true) => out.extend_from_slice(b"true"),
            Value::Bool(false) => out.extend_from_slice(b"false"),
            Value::Number(number) => append_number(out, number),
            Value::String(text) => append_string(out, text),
            Value::Array(items) => {
                out.push(b'[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    item.append_to(out);
                }
                out.push(b']');
            }
            // Most of the fields in a set of them have nothing below them.
            Value::Object(map) if map.is_empty() => out.extend_from_slice(b"{}"),
            Value::Object(map) => append_map(out, map),
        }
    }
}

fn append_map(out: &mut Vec<u8>, map: &Map) {
    out.push(b'{');
    for (at, (name, value)) in map.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        append_name(out, name);
        value.append_to(out);
    }
    out.push(b'}');
}

/// Appends the name of a field, with its colon. Nearly all are known to need no escape.
#[inline]
pub fn append_name(out: &mut Vec<u8>, name: &Key) {
    if !name.is_known() {
        append_string(out, name);
        return out.push(b':');
    }
    out.reserve(name.len() + 3);
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// A number without a fraction has none in the text either, and very large and very small ones have an exponent with its sign.
fn append_number(out: &mut Vec<u8>, number: &Number) {
    // Writing into memory what is no type of its own cannot fail, here and below.
    let Some(value) = number.as_f64().filter(|_| number.is_f64()) else {
        return drop(serde_json::to_writer(out, number));
    };
    if value == 0.0 || (1e-6..1e21).contains(&value.abs()) {
        return drop(write!(out, "{value}"));
    }
    let text = format!("{value:e}");
    drop(match text.split_once('e') {
        Some((digits, exponent)) if !exponent.starts_with('-') => write!(out, "{digits}e+{exponent}"),
        _ => out.write_all(text.as_bytes()),
    });
}

/// Appends text in quotes. What HTML gives a meaning to is escaped, and so are the two line ends that JavaScript knows.
pub fn append_string(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len() + 2);
    out.push(b'"');
    loop {
        let (before, special) = rest.split_at(plain(rest));
        out.extend_from_slice(before);
        let taken = match special {
            [] => break,
            [0xe2, 0x80, last @ (0xa8 | 0xa9), ..] => {
                out.extend_from_slice(if *last == 0xa8 { b"\\u2028" } else { b"\\u2029" });
                3
            }
            [byte, ..] => {
                append_special(out, *byte);
                1
            }
        };
        rest = &special[taken..];
    }
    out.push(b'"');
}

fn append_special(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        // The first byte of other letters.
        0xe2 => return out.push(byte),
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => return drop(write!(out, "\\u{byte:04x}")),
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_gos() {
        let check = |given: &str, expected: &str| {
            let value: Value = serde_json::from_str(given).expect("JSON");
            let mut out = Vec::new();
            value.append_to(&mut out);
            assert_eq!(String::from_utf8(out.clone()).expect("UTF-8"), expected);
            let read: Value = serde_json::from_slice(&out).expect("JSON");
            let mut again = Vec::new();
            read.append_to(&mut again);
            assert_eq!(out, again, "{expected}");
        };
        let text = r#"{"a":[1,-2,3.5,18446744073709551615,null,true,false,"",{}],"b\"\\\n\u0001é":"q\"\b\f\r\t","c":{"d":[]}}"#;
        check(text, text);
        check(
            r#"["<a href=\"x\">&","é\u007f—\u2028\u2029😀"]"#,
            "[\"\\u003ca href=\\\"x\\\"\\u003e\\u0026\",\"é\u{7f}—\\u2028\\u2029😀\"]",
        );
        check(r#"{"a<b":1}"#, r#"{"a\u003cb":1}"#);
        check(
            "[1.0,-0.0,1e2,123456789.5,1e20,1e21,-1.5e300,0.000001,0.00000015,1e-9]",
            "[1,-0,100,123456789.5,100000000000000000000,1e+21,-1.5e+300,0.000001,1.5e-7,1e-9]",
        );
    }
}
