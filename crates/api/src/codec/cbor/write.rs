//! From a value to CBOR, in the form that RFC 8949 calls deterministic: equal values are equal bytes.

use json::{Number, Value};

use super::{major, tag};
use crate::{codec::base64, schema::Type};

/// A document: an item that says it is CBOR.
pub fn document(ty: &Type, value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    head(&mut out, major::TAG, tag::SELF_DESCRIBED);
    append(&mut out, ty, value);
    out
}

/// The beginning of a document that is an object with this number of fields.
pub fn map_head(fields: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    head(&mut out, major::TAG, tag::SELF_DESCRIBED);
    head(&mut out, major::MAP, fields as u64);
    out
}

/// The beginning of a document that is a list, up to its items, which follow one behind the other.
pub fn list_head(
    kind: &str,
    api_version: &str,
    metadata: &Value,
    more: &[(&str, &Value)],
    last: &str,
    items: usize,
) -> Vec<u8> {
    let mut out = map_head(4 + more.len());
    for (name, value) in [("kind", kind), ("apiVersion", api_version)] {
        text(&mut out, name);
        text(&mut out, value);
    }
    for (name, value) in [("metadata", metadata)].iter().chain(more) {
        text(&mut out, name);
        append(&mut out, &Type::Any, value);
    }
    text(&mut out, last);
    head(&mut out, major::ARRAY, items as u64);
    out
}

/// Appends a string.
pub fn text(out: &mut Vec<u8>, text: &str) {
    head(out, major::BYTES, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a value of a type. The type says which strings stand for bytes, and which numbers are no integers.
pub fn append(out: &mut Vec<u8>, ty: &Type, value: &Value) {
    let ty = ty.resolve();
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(value) => out.push(if *value { 0xf5 } else { 0xf4 }),
        Value::Number(value) => number(out, ty, value),
        Value::String(value) => match ty {
            Type::Bytes => bytes(out, value),
            _ => text(out, value),
        },
        Value::Array(items) => {
            let of = if let Type::List(list) = ty { &list.items } else { &Type::Any };
            head(out, major::ARRAY, items.len() as u64);
            items.iter().for_each(|item| append(out, of, item));
        }
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(name, _)| name.len());
            head(out, major::MAP, fields.len() as u64);
            for (name, value) in fields {
                text(out, name);
                let of = match ty {
                    Type::Object(object) => object.field(name).map(|field| &field.ty),
                    Type::Map(map) => Some(&map.values),
                    _ => None,
                };
                append(out, of.unwrap_or(&Type::Any), value);
            }
        }
    }
}

/// An item's first bytes: its sort, and its length or value in the fewest bytes.
fn head(out: &mut Vec<u8>, major: u8, value: u64) {
    let bytes = value.to_be_bytes();
    let (info, used) = match value {
        0..=23 => (value as u8, 0),
        24..=0xff => (24, 1),
        0x100..=0xffff => (25, 2),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 8),
    };
    out.push(major << 5 | info);
    out.extend_from_slice(&bytes[8 - used..]);
}

/// Base64 text as the bytes it stands for, with the tag that says so; any other text as it is.
fn bytes(out: &mut Vec<u8>, value: &str) {
    match base64::decode(value) {
        Ok(bytes) => {
            head(out, major::TAG, tag::BASE64);
            head(out, major::BYTES, bytes.len() as u64);
            out.extend_from_slice(&bytes);
        }
        Err(_) => text(out, value),
    }
}

fn number(out: &mut Vec<u8>, ty: &Type, value: &Number) {
    match (value.as_u64(), value.as_i64()) {
        (Some(value), _) if !matches!(ty, Type::Number) => head(out, major::UNSIGNED, value),
        (None, Some(value)) if !matches!(ty, Type::Number) => head(out, major::NEGATIVE, !value as u64),
        _ => float(out, value.as_f64().unwrap_or_default()),
    }
}

/// A float in the shortest form that keeps its value.
fn float(out: &mut Vec<u8>, value: f64) {
    let single = value as f32;
    if f64::from(single) != value {
        out.push(0xfb);
        out.extend_from_slice(&value.to_be_bytes());
    } else if let Some(half) = half(single) {
        out.push(0xf9);
        out.extend_from_slice(&half.to_be_bytes());
    } else {
        out.push(0xfa);
        out.extend_from_slice(&single.to_be_bytes());
    }
}

/// The bits of a number as one of 16 bits, if it is one.
fn half(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    let (sign, exponent, mantissa) = ((bits >> 16) as u16 & 0x8000, (bits >> 23 & 0xff) as i32 - 127, bits & 0x7f_ffff);
    match exponent {
        _ if value == 0.0 => Some(sign),
        -14..=15 if mantissa.trailing_zeros() >= 13 => {
            Some(sign | ((exponent + 15) as u16) << 10 | (mantissa >> 13) as u16)
        }
        // Below the smallest exponent the leading one is written too.
        -24..=-15 => {
            let (whole, shift) = (mantissa | 0x80_0000, (-1 - exponent) as u32);
            (whole.trailing_zeros() >= shift).then_some(sign | (whole >> shift) as u16)
        }
        _ => None,
    }
}
