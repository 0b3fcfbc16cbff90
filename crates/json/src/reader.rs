//! One reader for values and for text, with or without what a caller wants left out.
//!
//! A type's way of reading itself is compiled for each sort of reader that it is read with, and the types of Kubernetes are
//! a thousand: so there is only this one. It asks for what the type announces (`deserialize_struct` reads an object and
//! nothing else), which keeps each copy small.

use serde::{
    Deserializer,
    de::{Error as _, MapAccess, Unexpected, Visitor},
};

use crate::{
    Error, Number,
    pieces::Variant,
    source::{Reader, Source, visit_text},
    text::Sort,
};

/// Methods of a `Deserializer` that read what another one reads.
macro_rules! as_with {
    ($($method:ident => $other:ident),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.$other(visitor)
        }
    )*};
}

impl<'de> Reader<'_, 'de> {
    fn object<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        match self.fields()? {
            Some(fields) => fields.give(visitor),
            None => Err(self.mismatch(&visitor)),
        }
    }
}

fn visit_number<'de, V: Visitor<'de>>(number: &Number, visitor: V) -> Result<V::Value, Error> {
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => visitor.visit_u64(number),
        (None, Some(number)) => visitor.visit_i64(number),
        (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
    }
}

impl<'de> Deserializer<'de> for Reader<'_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        match self.sort()? {
            Sort::Null => self.deserialize_unit(visitor),
            Sort::Bool(_) => self.deserialize_bool(visitor),
            Sort::Number => visit_number(&self.number(&visitor)?, visitor),
            Sort::String => self.deserialize_str(visitor),
            Sort::Array => self.deserialize_seq(visitor),
            Sort::Object => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let Sort::Bool(value) = self.sort()? else { return Err(self.mismatch(&visitor)) };
        self.word(if value { "true" } else { "false" })?;
        visitor.visit_bool(value)
    }

    fn deserialize_i64<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visit_number(&self.number(&visitor)?, visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visit_text(self.string(&visitor)?, visitor)
    }

    as_with! {
        deserialize_i8 => deserialize_i64, deserialize_i16 => deserialize_i64, deserialize_i32 => deserialize_i64,
        deserialize_i128 => deserialize_i64, deserialize_u8 => deserialize_i64, deserialize_u16 => deserialize_i64,
        deserialize_u32 => deserialize_i64, deserialize_u64 => deserialize_i64, deserialize_u128 => deserialize_i64,
        deserialize_f32 => deserialize_i64, deserialize_f64 => deserialize_i64,
        deserialize_char => deserialize_str, deserialize_string => deserialize_str,
        deserialize_identifier => deserialize_str,
        deserialize_bytes => deserialize_any, deserialize_byte_buf => deserialize_any,
    }

    fn deserialize_option<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null()? {
            self.word("null")?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        match self.sort()? {
            Sort::Null => self.word("null")?,
            _ => return Err(self.mismatch(&visitor)),
        }
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        match self.items()? {
            Some(items) => items.give(visitor),
            None => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null()? { self.deserialize_unit(visitor) } else { self.object(visitor) }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.object(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.sort()? == Sort::String {
            let name = self.string(&"a name")?;
            return visitor.visit_enum(Variant { name, value: None });
        }
        let Some(mut fields) = self.fields()? else { return Err(self.mismatch(&"string or map")) };
        let single = || Error::invalid_value(Unexpected::Map, &"map with a single key");
        if fields.size_hint().is_some_and(|fields| fields != 1) {
            return Err(single());
        }
        let name = fields.name()?.ok_or_else(single)?;
        let value = visitor.visit_enum(Variant { name, value: Some(fields.value()) })?;
        match fields.name()? {
            Some(_) => Err(single()),
            None => Ok(value),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if let Source::Text(text) = self.source {
            text.skip()?;
        }
        visitor.visit_unit()
    }
}
