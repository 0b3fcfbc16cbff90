//! From CBOR to a value. The documents of clients are bounded as upstream bounds them: 64 levels, 1024 items of a list or
//! fields of an object; and as JSON is, in the number of values. A reader that knows the type of the value learns of fields
//! that the type does not have.

use std::collections::HashSet;

use ::base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jiff::{SignedDuration, Timestamp};
use json::{Key, Map, Number, Value};

use super::{major, tag};
use crate::{
    codec::{
        bounds::{OBJECT_WEIGHT, WEIGHT_MAX},
        problem::Problem,
    },
    schema::Type,
};

const LEVELS_MAX: usize = 64;
const ITEMS_MAX: u64 = 1024;
/// Stands for the length of what ends with a mark.
const OPEN: u8 = 31;
const BREAK: u8 = 0xff;

/// The value of one document.
pub fn read(bytes: &[u8]) -> Result<Value, Problem> {
    read_as(&Type::Any, bytes).map(|(value, _)| value)
}

/// The value of one document that is of this type, without the fields that the type does not know. The position in its object
/// of the first of them is told, as upstream tells it.
pub fn read_as(ty: &Type, bytes: &[u8]) -> Result<(Value, Option<usize>), Problem> {
    let mut reader = Reader { rest: bytes, weight: 0, unknown: None };
    let value = reader.item(ty, 0, None)?;
    if reader.rest.is_empty() {
        return Ok((value, reader.unknown));
    }
    Err(syntax(format!(
        "{} bytes of extraneous data starting at index {}",
        reader.rest.len(),
        bytes.len() - reader.rest.len()
    )))
}

fn syntax(why: impl std::fmt::Display) -> Problem {
    Problem::Syntax(format!("cbor: {why}"))
}

fn end() -> Problem {
    Problem::Syntax("unexpected EOF".to_owned())
}

struct Reader<'b> {
    rest: &'b [u8],
    weight: usize,
    /// The position in its object of the first field that no type knows.
    unknown: Option<usize>,
}

impl<'b> Reader<'b> {
    fn take(&mut self, length: u64) -> Result<&'b [u8], Problem> {
        let length = usize::try_from(length).map_err(|_| end())?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(end)?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Problem> {
        self.take(1).map(|taken| taken[0])
    }

    /// Whether the mark stands here that ends what has no length; it is passed.
    fn ends(&mut self) -> Result<bool, Problem> {
        let ends = *self.rest.first().ok_or_else(end)? == BREAK;
        if ends {
            self.rest = &self.rest[1..];
        }
        Ok(ends)
    }

    /// An item's sort, the bits behind it, and the number that these stand for.
    fn head(&mut self) -> Result<(u8, u8, u64), Problem> {
        let first = self.byte()?;
        let (major, info) = (first >> 5, first & 31);
        let bytes = match info {
            0..=23 => return Ok((major, info, info.into())),
            24..=27 => self.take(1 << (info - 24))?,
            OPEN if first == BREAK => return Err(syntax("unexpected \"break\" code")),
            OPEN if matches!(major, major::BYTES..=major::MAP) => return Ok((major, info, 0)),
            _ => return Err(syntax(format!("invalid additional information {info} for type {major}"))),
        };
        Ok((major, info, bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))))
    }

    /// One item; byte strings in it become text as the tag around it says.
    fn item(&mut self, ty: &Type, level: usize, later: Option<u64>) -> Result<Value, Problem> {
        self.weight += 1;
        if self.weight > WEIGHT_MAX {
            return Err(Problem::TooLarge("the document has too many values".to_owned()));
        }
        let (major, info, value) = self.head()?;
        if level == LEVELS_MAX && matches!(major, major::ARRAY | major::MAP | major::TAG) {
            return Err(syntax(format!("exceeded max nested level {LEVELS_MAX}")));
        }
        let ty = ty.resolve();
        // A field that holds bytes has them as base64 in JSON, whatever they were expected to become.
        let later = if matches!(ty, Type::Bytes) { later.and(Some(tag::BASE64)) } else { later };
        let too_large = || syntax(format!("{value} overflows int64"));
        let integer = || i64::try_from(value).map_err(|_| too_large());
        match major {
            major::UNSIGNED => integer().map(Value::from),
            major::NEGATIVE => integer().map(|value| Value::from(!value)),
            major::BYTES => self.string(major, info, value).map(|bytes| Value::String(shown(bytes, later))),
            major::TEXT => self.text(info, value).map(Value::String),
            major::ARRAY => self.list(ty, (info, value), level + 1, later),
            major::MAP => self.map(ty, (info, value), level + 1, later),
            major::TAG => self.tagged(ty, value, level + 1, later),
            _ => simple(info, value),
        }
    }

    /// The bytes of a string, in one piece or in several.
    fn string(&mut self, major: u8, info: u8, length: u64) -> Result<Vec<u8>, Problem> {
        if info != OPEN {
            return self.take(length).map(<[u8]>::to_vec);
        }
        let mut whole = Vec::new();
        while !self.ends()? {
            let (of, info, length) = self.head()?;
            if of != major || info == OPEN {
                return Err(syntax("wrong element type for indefinite-length string"));
            }
            whole.extend_from_slice(self.take(length)?);
        }
        Ok(whole)
    }

    fn text(&mut self, info: u8, length: u64) -> Result<String, Problem> {
        let bytes = self.string(major::TEXT, info, length)?;
        String::from_utf8(bytes).map_err(|_| syntax("invalid UTF-8 string"))
    }

    fn list(&mut self, ty: &Type, head: (u8, u64), level: usize, later: Option<u64>) -> Result<Value, Problem> {
        let of = if let Type::List(list) = ty { &list.items } else { &Type::Any };
        let mut items = Vec::new();
        self.each(head, ("elements", "array"), |reader| {
            items.push(reader.item(of, level, later)?);
            Ok(())
        })?;
        Ok(Value::Array(items))
    }

    fn map(&mut self, ty: &Type, head: (u8, u64), level: usize, later: Option<u64>) -> Result<Value, Problem> {
        let mut map = Map::new();
        // Fields of the object that its type does not know.
        let mut others = HashSet::new();
        let mut read = 0;
        self.each(head, ("key-value pairs", "map"), |reader| {
            let key = reader.key()?;
            let of = match ty {
                Type::Object(object) if !(object.custom || object.open) => object.field(&key).map(|field| &field.ty),
                Type::Map(map) => Some(&map.values),
                _ => Some(&Type::Any),
            };
            if of.is_none() {
                reader.unknown.get_or_insert(read);
            }
            let value = reader.item(of.unwrap_or(&Type::Any), level, later)?;
            if map.contains_key(&key) || others.contains(&key) {
                return Err(syntax(format!("found duplicate map key {key:?} at map element index {read}")));
            }
            match of {
                Some(_) => drop(map.insert(Key::of(&key), value)),
                None => drop(others.insert(key)),
            }
            read += 1;
            Ok(())
        })?;
        self.weight += if map.is_empty() { 0 } else { OBJECT_WEIGHT };
        Ok(Value::Object(map))
    }

    /// Reads the parts of a list or map, as many as its head says or up to the mark, and no more than one may have.
    fn each(
        &mut self,
        (info, length): (u8, u64),
        (parts, whole): (&str, &str),
        mut read: impl FnMut(&mut Self) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let too_many = || Err(syntax(format!("exceeded max number of {parts} {ITEMS_MAX} for CBOR {whole}")));
        if length > ITEMS_MAX {
            return too_many();
        }
        let mut count = 0;
        while if info == OPEN { !self.ends()? } else { count < length } {
            if count == ITEMS_MAX {
                return too_many();
            }
            read(self)?;
            count += 1;
        }
        Ok(())
    }

    fn key(&mut self) -> Result<String, Problem> {
        match self.head()? {
            (major::BYTES, info, length) => {
                self.string(major::BYTES, info, length).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            }
            (major::TEXT, info, length) => self.text(info, length),
            _ => Err(syntax("cannot unmarshal map key into Go value of type string")),
        }
    }

    fn tagged(&mut self, ty: &Type, tag: u64, level: usize, later: Option<u64>) -> Result<Value, Problem> {
        match tag {
            tag::TIME => time(&self.item(&Type::Any, level, None)?),
            tag::EPOCH => epoch(&self.item(&Type::Any, level, None)?),
            tag::BIGNUM | tag::NEGATIVE_BIGNUM => Err(syntax("bignum is not allowed")),
            tag::BASE64URL | tag::BASE64 | tag::BASE16 => self.item(ty, level, Some(tag)),
            _ => self.item(ty, level, later),
        }
    }
}

/// Bytes as the text that they are expected to become.
fn shown(bytes: Vec<u8>, later: Option<u64>) -> String {
    match later {
        Some(tag::BASE64) => STANDARD.encode(bytes),
        Some(tag::BASE64URL) => URL_SAFE_NO_PAD.encode(bytes),
        Some(_) => base16ct::lower::encode_string(&bytes),
        None => String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
    }
}

fn simple(info: u8, value: u64) -> Result<Value, Problem> {
    match info {
        20 => Ok(Value::Bool(false)),
        21 => Ok(Value::Bool(true)),
        22 => Ok(Value::Null),
        25 => float(half(value as u16)),
        26 => float(f32::from_bits(value as u32).into()),
        27 => float(f64::from_bits(value)),
        _ => Err(syntax(format!("simple value {value} is not recognized"))),
    }
}

fn float(value: f64) -> Result<Value, Problem> {
    let none = || syntax(if value.is_nan() { "NaN is not allowed" } else { "infinity is not allowed" });
    Number::from_f64(value).map(Value::Number).ok_or_else(none)
}

fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

fn no_time() -> Problem {
    syntax("cannot unmarshal tag content into time")
}

/// A time as text stays as it is.
fn time(value: &Value) -> Result<Value, Problem> {
    let is_time = |text: &&str| text.parse::<Timestamp>().is_ok();
    value.as_str().filter(is_time).map(Value::from).ok_or_else(no_time)
}

/// Seconds since 1970.
fn epoch(value: &Value) -> Result<Value, Problem> {
    let since = match (value.as_i64(), value.as_f64()) {
        (Some(seconds), _) => Some(SignedDuration::from_secs(seconds)),
        (None, Some(seconds)) => SignedDuration::try_from_secs_f64(seconds).ok(),
        (None, None) => None,
    };
    let time = since.and_then(|since| Timestamp::from_duration(since).ok());
    time.map(|time| Value::from(time.to_string())).ok_or_else(no_time)
}
