//! From a value to a type: a value is a deserializer of what it holds.

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected, VariantAccess,
        Visitor, value::BorrowedStrDeserializer,
    },
    forward_to_deserialize_any,
};

use crate::{Error, Map, Value, map};

pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(&value)
}

impl Value {
    fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => Unexpected::Unsigned(number),
                (None, Some(number)) => Unexpected::Signed(number),
                (None, None) => Unexpected::Float(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        }
    }
}

impl<'de> Deserializer<'de> for &'de Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => list(items, visitor),
            Value::Object(map) => map.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let (name, value) = match self {
            Value::String(name) => (name.as_str(), None),
            Value::Object(map) if map.len() == 1 => map.iter().map(|(k, v)| (k.as_str(), Some(v))).next().expect("one"),
            Value::Object(_) => return Err(Error::invalid_value(Unexpected::Map, &"map with a single key")),
            other => return Err(Error::invalid_type(other.unexpected(), &"string or map")),
        };
        visitor.visit_enum(Variant { name, value })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> Deserializer<'de> for &'de Map {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut fields = Fields { left: self.iter(), value: &Value::Null };
        let value = visitor.visit_map(&mut fields)?;
        match fields.left.len() {
            0 => Ok(value),
            _ => Err(Error::invalid_length(self.len(), &"fewer elements in map")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

fn list<'de, V: Visitor<'de>>(items: &'de [Value], visitor: V) -> Result<V::Value, Error> {
    let mut left = Items(items.iter());
    let value = visitor.visit_seq(&mut left)?;
    match left.0.len() {
        0 => Ok(value),
        _ => Err(Error::invalid_length(items.len(), &"fewer elements in array")),
    }
}

struct Items<'de>(std::slice::Iter<'de, Value>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.next().map(|item| seed.deserialize(item)).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Fields<'de> {
    left: map::Iter<'de, Value>,
    value: &'de Value,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.left.next() else { return Ok(None) };
        self.value = value;
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.value)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

/// A variant of an enum, alone or with what it holds.
struct Variant<'de> {
    name: &'de str,
    value: Option<&'de Value>,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Error;
    type Variant = Variant<'de>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Variant<'de>), Error> {
        let variant = seed.deserialize(BorrowedStrDeserializer::<Error>::new(self.name))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.value {
            None | Some(Value::Null) => Ok(()),
            Some(value) => Err(Error::invalid_type(value.unexpected(), &"unit variant")),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        match self.value {
            Some(value) => seed.deserialize(value),
            None => Err(Error::invalid_type(Unexpected::UnitVariant, &"newtype variant")),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Some(Value::Array(items)) => list(items, visitor),
            Some(other) => Err(Error::invalid_type(other.unexpected(), &"tuple variant")),
            None => Err(Error::invalid_type(Unexpected::UnitVariant, &"tuple variant")),
        }
    }

    fn struct_variant<V: Visitor<'de>>(self, _fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Some(Value::Object(map)) => map.deserialize_any(visitor),
            Some(other) => Err(Error::invalid_type(other.unexpected(), &"struct variant")),
            None => Err(Error::invalid_type(Unexpected::UnitVariant, &"struct variant")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use crate::{Value, from_value, json, to_value};

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum Shape {
        None,
        Round(u8),
        Square { side: f64 },
        Pair(i64, String),
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Whole {
        shapes: Vec<Shape>,
        maybe: Option<i32>,
        named: BTreeMap<String, bool>,
        rest: Value,
    }

    fn whole() -> Whole {
        Whole {
            shapes: vec![Shape::None, Shape::Round(3), Shape::Square { side: 1.5 }, Shape::Pair(-1, "x".to_owned())],
            maybe: None,
            named: [("b".to_owned(), true), ("a".to_owned(), false)].into(),
            rest: json!({"free": [null, {"deep": 1}]}),
        }
    }

    /// The other library says what text it is, and what it means.
    #[test]
    fn types_become_values_and_types_again_as_with_serde_json() {
        let value = to_value(whole()).expect("plain data");
        let theirs = serde_json::to_value(whole()).expect("plain data");
        assert_eq!(value.to_string(), theirs.to_string());
        assert_eq!(from_value::<Whole>(value).expect("it came from one"), whole());
    }

    #[test]
    fn what_does_not_fit_is_told_as_with_serde_json() {
        #[derive(Debug, Deserialize)]
        #[allow(dead_code)]
        struct Small {
            n: u8,
            #[serde(default)]
            list: (u8, u8),
            #[serde(default)]
            shape: Option<Shape>,
        }
        for text in [
            r#"{"n":"x"}"#,
            r#"{"n":300}"#,
            r#"{}"#,
            r#"{"n":1,"list":[1,2,3]}"#,
            r#"{"n":1,"list":[1]}"#,
            r#"{"n":1,"shape":"other"}"#,
            r#"{"n":1,"shape":{"round":1,"none":2}}"#,
            r#"{"n":1,"shape":7}"#,
            r#"{"n":1,"shape":"round"}"#,
            r#"{"n":1.5}"#,
            r#"[]"#,
            r#"true"#,
        ] {
            let ours = from_value::<Small>(text.parse().expect("JSON")).expect_err(text).to_string();
            let theirs = serde_json::from_value::<Small>(text.parse().expect("JSON")).expect_err(text).to_string();
            assert_eq!(ours, theirs, "{text}");
        }
    }
}
