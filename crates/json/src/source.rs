//! Where a [`Reader`] stands: at a value of a tree, or at a place of a text.

use std::borrow::Cow;

use serde::de::{Error as _, Expected, Unexpected, Visitor};

use crate::{
    Error, Number, Value,
    text::{Sort, Text},
};

/// Reads one value.
pub struct Reader<'r, 'de> {
    pub(crate) source: Source<'r, 'de>,
    /// Where what is passed over stands below this value; nothing is passed over where it is empty.
    pub(crate) without: &'static [&'static str],
}

pub(crate) enum Source<'r, 'de> {
    Tree(&'de Value),
    Text(&'r mut Text<'de>),
}

impl<'r, 'de> Reader<'r, 'de> {
    pub(crate) fn of_text(text: &'r mut Text<'de>) -> Self {
        Reader { source: Source::Text(text), without: &[] }
    }

    pub fn of(value: &'de Value) -> Self {
        Reader { source: Source::Tree(value), without: &[] }
    }

    /// A reader that passes over what stands at this path of names.
    pub fn without(self, path: &'static [&'static str]) -> Self {
        Reader { without: path, ..self }
    }

    pub(crate) fn sort(&mut self) -> Result<Sort, Error> {
        match &mut self.source {
            Source::Text(text) => text.sort(),
            Source::Tree(value) => Ok(match value {
                Value::Null => Sort::Null,
                Value::Bool(value) => Sort::Bool(*value),
                Value::Number(_) => Sort::Number,
                Value::String(_) => Sort::String,
                Value::Array(_) => Sort::Array,
                Value::Object(_) => Sort::Object,
            }),
        }
    }

    #[inline]
    pub(crate) fn is_null(&mut self) -> Result<bool, Error> {
        match &mut self.source {
            Source::Tree(value) => Ok(value.is_null()),
            Source::Text(text) => Ok(text.sort()? == Sort::Null),
        }
    }

    /// Reads `null`, `true` or `false`.
    pub(crate) fn word(&mut self, word: &str) -> Result<(), Error> {
        match &mut self.source {
            Source::Text(text) => text.word(word),
            Source::Tree(_) => Ok(()),
        }
    }

    pub(crate) fn number(&mut self, expected: &dyn Expected) -> Result<Number, Error> {
        match &mut self.source {
            Source::Tree(Value::Number(number)) => return Ok(number.clone()),
            Source::Text(text) => {
                if text.sort()? == Sort::Number {
                    return match text.small() {
                        Some(number) => Ok(number.into()),
                        None => text.number(),
                    };
                }
            }
            Source::Tree(_) => {}
        }
        Err(self.mismatch(expected))
    }

    pub(crate) fn string(&mut self, expected: &dyn Expected) -> Result<Cow<'de, str>, Error> {
        match &mut self.source {
            Source::Tree(Value::String(text)) => return Ok(Cow::Borrowed(text)),
            Source::Text(text) => {
                if text.sort()? == Sort::String {
                    return text.string();
                }
            }
            Source::Tree(_) => {}
        }
        Err(self.mismatch(expected))
    }

    /// Another sort of value stands here than is expected.
    pub(crate) fn mismatch(&mut self, expected: &dyn Expected) -> Error {
        let sort = match self.sort() {
            Ok(sort) => sort,
            Err(error) => return error,
        };
        let unexpected = match sort {
            Sort::Null => Unexpected::Unit,
            Sort::Bool(value) => Unexpected::Bool(value),
            Sort::Array => Unexpected::Seq,
            Sort::Object => Unexpected::Map,
            Sort::Number => return self.number(expected).map_or_else(|e| e, |n| of_number(&n, expected)),
            Sort::String => {
                let text = self.string(expected);
                return text.map_or_else(|e| e, |text| Error::invalid_type(Unexpected::Str(&text), expected));
            }
        };
        Error::invalid_type(unexpected, expected)
    }
}

fn of_number(number: &Number, expected: &dyn Expected) -> Error {
    let unexpected = match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => Unexpected::Unsigned(number),
        (None, Some(number)) => Unexpected::Signed(number),
        (None, None) => Unexpected::Float(number.as_f64().unwrap_or_default()),
    };
    Error::invalid_type(unexpected, expected)
}

pub(crate) fn visit_text<'de, V: Visitor<'de>>(text: Cow<'de, str>, visitor: V) -> Result<V::Value, Error> {
    match text {
        Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
        Cow::Owned(text) => visitor.visit_string(text),
    }
}
