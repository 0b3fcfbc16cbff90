//! Values as compact text, appended to bytes: what every stored object passes through. The text is that of Go's
//! `encoding/json`, which upstream's answers and stored objects are made with.

use std::io::Write as _;

use crate::{Key, Map, Number, Value};

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

/// Whether a string stands in text as it is.
pub fn is_plain(text: &str) -> bool {
    plain(text.as_bytes()) == text.len()
}

/// A byte in each of eight.
const fn eight(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The highest bit of each byte that is less than another. A borrow falsifies bytes behind the first hit only, and the first hit
/// of all is what counts.
#[inline]
fn less(word: u64, than: u8) -> u64 {
    word.wrapping_sub(eight(than)) & !word & eight(0x80)
}

/// How many bytes at the front are none of those that `hits` finds in eight of them. Most names and texts are short, so the
/// bytes that fill no eight are looked at together too: those before them once more, or as two fours that share some.
#[inline]
fn until(bytes: &[u8], hits: impl Fn(u64) -> u64) -> usize {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let first = |hits: u64| hits.trailing_zeros() as usize / 8;
    for (at, chunk) in chunks.iter().enumerate() {
        let hits = hits(u64::from_le_bytes(*chunk));
        if hits != 0 {
            return at * 8 + first(hits);
        }
    }
    if rest.is_empty() {
        return bytes.len();
    }
    if let Some(last) = bytes.last_chunk::<8>() {
        let hits = hits(u64::from_le_bytes(*last));
        return if hits == 0 { bytes.len() } else { bytes.len() - 8 + first(hits) };
    }
    if let (Some(head), Some(tail)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        let both = u64::from(u32::from_le_bytes(*head)) | u64::from(u32::from_le_bytes(*tail)) << 32;
        let hits = hits(both);
        return match first(hits) {
            _ if hits == 0 => rest.len(),
            at @ 0..4 => at,
            at => rest.len() + at - 8,
        };
    }
    // Room that is left over holds bytes that are never found.
    let mut word = eight(b'x');
    for (at, byte) in rest.iter().enumerate() {
        word ^= u64::from(b'x' ^ byte) << (8 * at);
    }
    let hits = hits(word);
    if hits == 0 { rest.len() } else { first(hits) }
}

/// How many bytes at the front are read from a string as they are: up to a quote, a backslash or a control character.
#[inline]
pub(crate) fn ordinary(bytes: &[u8]) -> usize {
    let hits = |word: u64| less(word ^ eight(b'"'), 1) | less(word ^ eight(b'\\'), 1) | less(word, 0x20);
    until(bytes, hits)
}

/// How many bytes at the front are written into a string as they are: fewer than are read so.
#[inline]
fn plain(bytes: &[u8]) -> usize {
    // Two pairs that differ in one bit: a quote and `&`, `<` and `>`.
    let pair = |word: u64, one: u8, other: u8| less((word & eight(!(one ^ other))) ^ eight(one & other), 1);
    let hits = |word: u64| {
        pair(word, b'"', b'&')
            | pair(word, b'<', b'>')
            | less(word ^ eight(b'\\'), 1)
            | less(word ^ eight(0xe2), 1)
            | less(word, 0x20)
    };
    until(bytes, hits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_found_wherever_it_stands() {
        for byte in 0..=255u8 {
            for len in 0..20 {
                for at in 0..len {
                    let mut bytes = vec![b'x'; len];
                    bytes[at] = byte;
                    let special = byte < 0x20 || matches!(byte, b'"' | b'\\');
                    assert_eq!(ordinary(&bytes), if special { at } else { len }, "{byte} at {at} of {len}");
                    // Two hits, and neighbours that borrow from each other.
                    bytes[len - 1] = byte.wrapping_add(1);
                    let expected = bytes.iter().position(|b| *b < 0x20 || matches!(b, b'"' | b'\\')).unwrap_or(len);
                    assert_eq!(ordinary(&bytes), expected, "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_written_escaped_is_found_wherever_it_stands() {
        let special = |byte: u8| byte < 0x20 || b"\"\\&<>\xe2".contains(&byte);
        for byte in 0..=255u8 {
            for len in 0..20 {
                for at in 0..len {
                    let mut bytes = vec![b'x'; len];
                    bytes[at] = byte;
                    assert_eq!(plain(&bytes), if special(byte) { at } else { len }, "{byte} at {at} of {len}");
                    bytes[len - 1] = byte.wrapping_add(1);
                    let expected = bytes.iter().position(|b| special(*b)).unwrap_or(len);
                    assert_eq!(plain(&bytes), expected, "{bytes:?}");
                }
            }
        }
    }

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
