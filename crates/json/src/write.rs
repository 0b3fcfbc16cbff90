//! From a value to whatever serde writes, and from a type to a value.

use serde::{
    Serialize, Serializer,
    ser::{self, Error as _},
};

use crate::{Error, Key, Map, Number, Value};

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Number(number) => number.serialize(serializer),
            Value::String(text) => serializer.serialize_str(text),
            Value::Array(items) => items.serialize(serializer),
            Value::Object(map) => map.serialize(serializer),
        }
    }
}

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

pub fn to_value<T: Serialize>(value: T) -> Result<Value, Error> {
    value.serialize(Tree)
}

/// Makes a value of what is serialized.
struct Tree;

/// The value below the name of its variant.
fn variant(name: &'static str, value: Value) -> Value {
    Value::Object([(Key::from(name), value)].into_iter().collect())
}

macro_rules! numbers {
    ($($method:ident: $ty:ty),* $(,)?) => {$(
        fn $method(self, number: $ty) -> Result<Value, Error> {
            Ok(Value::Number(number.into()))
        }
    )*};
}

impl Serializer for Tree {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Fields;
    type SerializeStruct = Fields;
    type SerializeStructVariant = Fields;

    numbers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
    }

    fn serialize_bool(self, value: bool) -> Result<Value, Error> {
        Ok(Value::Bool(value))
    }

    fn serialize_f32(self, number: f32) -> Result<Value, Error> {
        self.serialize_f64(number.into())
    }

    fn serialize_f64(self, number: f64) -> Result<Value, Error> {
        Ok(Value::from(number))
    }

    fn serialize_char(self, letter: char) -> Result<Value, Error> {
        Ok(Value::String(letter.to_string()))
    }

    fn serialize_str(self, text: &str) -> Result<Value, Error> {
        Ok(Value::String(text.to_owned()))
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<Value, Error> {
        Ok(Value::from(bytes))
    }

    fn serialize_none(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, name: &'static str) -> Result<Value, Error> {
        Ok(Value::from(name))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        Ok(variant(name, value.serialize(self)?))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Items, Error> {
        Ok(Items { items: Vec::with_capacity(len.unwrap_or(0)), variant: None })
    }

    fn serialize_tuple(self, len: usize) -> Result<Items, Error> {
        self.serialize_seq(Some(len))
    }

    fn serialize_tuple_struct(self, _name: &'static str, len: usize) -> Result<Items, Error> {
        self.serialize_seq(Some(len))
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, name: &'static str, len: usize) -> Result<Items, Error> {
        Ok(Items { items: Vec::with_capacity(len), variant: Some(name) })
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Fields, Error> {
        Ok(Fields { fields: Vec::with_capacity(len.unwrap_or(0)), key: None, variant: None })
    }

    fn serialize_struct(self, _name: &'static str, len: usize) -> Result<Fields, Error> {
        self.serialize_map(Some(len))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Fields, Error> {
        Ok(Fields { fields: Vec::with_capacity(len), key: None, variant: Some(name) })
    }
}

struct Items {
    items: Vec<Value>,
    variant: Option<&'static str>,
}

impl Items {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Error> {
        self.items.push(item.serialize(Tree)?);
        Ok(())
    }

    fn done(self) -> Value {
        let list = Value::Array(self.items);
        match self.variant {
            Some(name) => variant(name, list),
            None => list,
        }
    }
}

macro_rules! items {
    ($($trait:ident::$method:ident),* $(,)?) => {$(
        impl ser::$trait for Items {
            type Ok = Value;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Error> {
                self.push(item)
            }

            fn end(self) -> Result<Value, Error> {
                Ok(self.done())
            }
        }
    )*};
}

items! {
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
}

struct Fields {
    fields: Vec<(Key, Value)>,
    /// The name whose value comes next.
    key: Option<Key>,
    variant: Option<&'static str>,
}

impl Fields {
    fn push<T: Serialize + ?Sized>(&mut self, key: Key, value: &T) -> Result<(), Error> {
        self.fields.push((key, value.serialize(Tree)?));
        Ok(())
    }

    fn done(self) -> Value {
        let map = Value::Object(Map::of(self.fields));
        match self.variant {
            Some(name) => variant(name, map),
            None => map,
        }
    }
}

impl ser::SerializeMap for Fields {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = Some(match key.serialize(Tree)? {
            Value::String(name) => Key::from(name),
            Value::Number(number) => Key::from(Number::to_string(&number)),
            Value::Bool(value) => Key::from(if value { "true" } else { "false" }),
            _ => return Err(Error::custom("key must be a string")),
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take().ok_or_else(|| Error::custom("a value came before its key"))?;
        self.push(key, value)
    }

    fn end(self) -> Result<Value, Error> {
        Ok(self.done())
    }
}

macro_rules! fields {
    ($($trait:ident),*) => {$(
        impl ser::$trait for Fields {
            type Ok = Value;
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
                self.push(Key::from(name), value)
            }

            fn end(self) -> Result<Value, Error> {
                Ok(self.done())
            }
        }
    )*};
}

fields!(SerializeStruct, SerializeStructVariant);

#[cfg(test)]
mod tests {
    use crate::{Value, json};

    /// Fields that come in any order are read into the same value, and written by name.
    #[test]
    fn text_is_read_and_written_as_with_serde_json() {
        let many: String = (0..200).rev().map(|n| format!("\"k{n}\":{n},")).collect();
        for text in [
            r#"{"b":1,"a":[{},[],null,true,-3,18446744073709551615,1.5e300,"\u00e4\n"],"b":2}"#.to_owned(),
            format!("{{{many}\"k0\":\"last\"}}"),
            "7".to_owned(),
        ] {
            let ours: Value = serde_json::from_str(&text).expect("JSON");
            let theirs: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(ours.to_string(), theirs.to_string());
            assert_eq!(again(&ours), ours);
        }
    }

    #[test]
    fn the_macro_reads_as_json() {
        let (name, list) = ("x".to_owned(), vec![1, 2]);
        let value = json!({
            "null": null, "list": [null, [], {}, [1], {"a": 1}, 1 + 1, list.len(),],
            "of": list, (name.clone()): {"in": {"side": -1}}, "name": name,
            "some": Some(2), "none": None::<u8>,
        });
        let text = r#"{"list":[null,[],{},[1],{"a":1},2,2],"name":"x","none":null,"null":null,"of":[1,2],"some":2,"x":{"in":{"side":-1}}}"#;
        assert_eq!(value.to_string(), text);
    }

    fn again(value: &Value) -> Value {
        crate::to_value(value).expect("a value is plain data")
    }
}
