//! Values as compact text, appended to bytes: what every stored object passes through.

use crate::{Map, Value};

impl Value {
    /// Appends the value as `serde_json` would write it.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Value::Null => out.extend_from_slice(b"null"),
            Value::Bool(true) => out.extend_from_slice(b"true"),
            Value::Bool(false) => out.extend_from_slice(b"false"),
            // Writing into memory what is no type of its own cannot fail, here and below.
            Value::Number(number) => drop(serde_json::to_writer(out, number)),
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
        append_string(out, name);
        out.push(b':');
        value.append_to(out);
    }
    out.push(b'}');
}

/// Appends text in quotes.
pub fn append_string(out: &mut Vec<u8>, text: &str) {
    if ordinary(text.as_bytes()) < text.len() {
        drop(serde_json::to_writer(out, text));
        return;
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// A byte in each of eight.
const fn eight(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// How many bytes at the front stand in a string as they are: up to a quote, a backslash or a control character.
#[inline]
pub(crate) fn ordinary(bytes: &[u8]) -> usize {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (at, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        // The highest bit of each byte that is less than another. A borrow falsifies bytes behind the first hit only, and
        // the first hit of all is what counts.
        let less = |word: u64, than: u8| word.wrapping_sub(eight(than)) & !word & eight(0x80);
        let hits = less(word ^ eight(b'"'), 1) | less(word ^ eight(b'\\'), 1) | less(word, 0x20);
        if hits != 0 {
            return at * 8 + hits.trailing_zeros() as usize / 8;
        }
    }
    let behind = rest.iter().take_while(|byte| **byte >= 0x20 && !matches!(**byte, b'"' | b'\\')).count();
    chunks.len() * 8 + behind
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
    fn text_is_serde_jsons() {
        let text = r#"{"a":[1,-2,3.5,1e300,18446744073709551615,null,true,false,"",{}],"b\"\\\n\u0001é":"q\"\u007f\u2028😀\t","c":{"d":[]}}"#;
        let value: Value = serde_json::from_str(text).expect("JSON");
        let mut out = Vec::new();
        value.append_to(&mut out);
        assert_eq!(String::from_utf8(out).expect("UTF-8"), serde_json::to_string(&value).expect("a value"));
    }
}
