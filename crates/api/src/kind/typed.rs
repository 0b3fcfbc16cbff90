//! Objects in their types, for the rules that need one. `metadata.managedFields` is left out: it is the largest part of
//! most metadata, belongs to the server alone, and no rule of a kind asks for it.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::{Error, Map, Value};

/// The object as a `T`.
pub fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, Error> {
    T::deserialize(Part { value: object, place: Place::Object })
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Object,
    Metadata,
}

/// The object or its metadata; all below is left to `serde_json`.
struct Part<'v> {
    value: &'v Value,
    place: Place,
}

impl<'de> Deserializer<'de> for Part<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Object(map) => visitor.visit_map(Fields { map: map.iter(), next: None, place: self.place }),
            other => other.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Fields<'v> {
    map: <&'v Map<String, Value> as IntoIterator>::IntoIter,
    next: Option<(&'v str, &'v Value)>,
    place: Place,
}

impl<'v> MapAccess<'v> for Fields<'v> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'v>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let place = self.place;
        let left_out = |key: &str| place == Place::Metadata && key == "managedFields";
        let Some((key, value)) = self.map.find(|(key, _)| !left_out(key)) else { return Ok(None) };
        self.next = Some((key, value));
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'v>>(&mut self, seed: V) -> Result<V::Value, Error> {
        match self.next.take() {
            Some(("metadata", value)) if self.place == Place::Object => {
                seed.deserialize(Part { value, place: Place::Metadata })
            }
            Some((_, value)) => seed.deserialize(value),
            None => Err(serde::de::Error::custom("a value was asked for before its key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn all_but_the_managed_fields_is_there() {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"managedFields": "kept"}, "managedFields": [{"manager": "m"}]},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}], "nodeName": null},
        });
        let whole: Pod = serde_json::from_value(object.clone()).expect("a Pod");
        let mut expected = whole.clone();
        expected.metadata.managed_fields = None;
        assert!(whole.metadata.managed_fields.is_some());
        assert_eq!(decode::<Pod>(&object).expect("a Pod"), expected);

        object["metadata"]["managedFields"] = 7.into();
        assert!(decode::<Pod>(&object).is_ok(), "not even looked at");
        object["metadata"]["name"] = 7.into();
        let wrong = serde_json::from_value::<Pod>(json!({"metadata": {"name": 7}})).expect_err("a number");
        assert_eq!(decode::<Pod>(&object).expect_err("a number").to_string(), wrong.to_string());
    }
}
