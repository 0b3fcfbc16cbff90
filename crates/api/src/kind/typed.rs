//! Objects in their types, for the rules and the caches that need one. `metadata.managedFields` is left out: it is the
//! largest part of most metadata, belongs to the server alone, and nothing that works with types asks for it.

use std::{borrow::Cow, fmt};

use json::Value;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess,
    Visitor, value::BorrowedStrDeserializer,
};
use serde_json::Error;

/// The object as a `T`.
pub fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, Error> {
    T::deserialize(Part { inner: object, place: Place::Object })
}

/// The object in this JSON as a `T`.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let object = T::deserialize(Part { inner: &mut json, place: Place::Object })?;
    json.end()?;
    Ok(object)
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Object,
    Metadata,
}

/// The object or its metadata, wherever it is read from; all below is left to `inner`.
struct Part<D> {
    inner: D,
    place: Place,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Part<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Through { visitor, place: self.place })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Through { visitor, place: self.place })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Hands on what is visited; of a map not all.
struct Through<V> {
    visitor: V,
    place: Place,
}

/// `serde_json` gives these to visitors, besides maps.
macro_rules! hands_on {
    ($($visit:ident: $ty:ty),* $(,)?) => {$(
        fn $visit<E: serde::de::Error>(self, value: $ty) -> Result<V::Value, E> {
            self.visitor.$visit(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Through<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(formatter)
    }

    hands_on! {
        visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str, visit_borrowed_str: &'de str,
        visit_string: String,
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Part { inner, place: self.place })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Fields { map, place: self.place, at_metadata: false })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(variant)
    }
}

struct Fields<A> {
    map: A,
    place: Place,
    /// The value that comes next is the object's metadata.
    at_metadata: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(Key(key)) = self.map.next_key_seed(Key(Cow::Borrowed("")))? {
            if self.place == Place::Metadata && key == "managedFields" {
                self.map.next_value::<IgnoredAny>()?;
                continue;
            }
            self.at_metadata = self.place == Place::Object && key == "metadata";
            return match key {
                Cow::Borrowed(key) => seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some),
                Cow::Owned(key) => seed.deserialize(key.into_deserializer()).map(Some),
            };
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        match self.at_metadata {
            true => self.map.next_value_seed(Metadata(seed)),
            false => self.map.next_value_seed(seed),
        }
    }
}

/// A value that is the object's metadata.
struct Metadata<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Metadata<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Part { inner, place: Place::Metadata })
    }
}

/// A field's name, as it stands in what is read unless it is escaped there.
struct Key<'de>(Cow<'de, str>);

impl<'de> DeserializeSeed<'de> for Key<'de> {
    type Value = Key<'de>;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<Key<'de>, D::Error> {
        key.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key<'de> {
    type Value = Key<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Borrowed(key)))
    }

    fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Owned(key.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use json::json;
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn all_but_the_managed_fields_is_there() {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"managedFields": "kept"}, "managedFields": [{"manager": "m"}]},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}], "nodeName": null},
        });
        let whole: Pod = json::from_value(object.clone()).expect("a Pod");
        let mut expected = whole.clone();
        expected.metadata.managed_fields = None;
        assert!(whole.metadata.managed_fields.is_some());
        assert_eq!(decode::<Pod>(&object).expect("a Pod"), expected);
        assert_eq!(read::<Pod>(object.to_string().as_bytes()).expect("a Pod"), expected);
        let escaped = object.to_string().replace("\"managedFields\":[", r#""managed\u0046ields":["#);
        assert_eq!(read::<Pod>(escaped.as_bytes()).expect("a Pod"), expected);
        assert!(read::<Pod>(format!("{object} {object}").as_bytes()).is_err(), "something follows");
        let mut bare = object.clone();
        bare["metadata"].as_object_mut().expect("metadata").remove("managedFields");
        assert_eq!(read::<Value>(object.to_string().as_bytes()).expect("a value"), bare);

        object["metadata"]["managedFields"] = 7.into();
        assert!(decode::<Pod>(&object).is_ok(), "not even looked at");
        for metadata in [json!(null), json!(7), json!([])] {
            let object = json!({"metadata": metadata});
            let expected = json::from_value::<Pod>(object.clone()).map_err(|e| e.to_string());
            assert_eq!(decode::<Pod>(&object).map_err(|e| e.to_string()), expected);
        }
        object["metadata"]["name"] = 7.into();
        let wrong = json::from_value::<Pod>(json!({"metadata": {"name": 7}})).expect_err("a number");
        assert_eq!(decode::<Pod>(&object).expect_err("a number").to_string(), wrong.to_string());
    }
}
