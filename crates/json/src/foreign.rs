//! From `serde_json`'s own tree and to it, for the libraries that know that one.

use serde_json::Value as Theirs;

use crate::{Key, Value};

impl From<&Theirs> for Value {
    fn from(value: &Theirs) -> Value {
        match value {
            Theirs::Null => Value::Null,
            Theirs::Bool(value) => Value::Bool(*value),
            Theirs::Number(number) => Value::Number(number.clone()),
            Theirs::String(text) => Value::String(text.clone()),
            Theirs::Array(items) => items.iter().map(Value::from).collect(),
            Theirs::Object(map) => map.iter().map(|(key, value)| (Key::of(key), Value::from(value))).collect(),
        }
    }
}

impl From<Theirs> for Value {
    fn from(value: Theirs) -> Value {
        Value::from(&value)
    }
}

impl From<&Value> for Theirs {
    fn from(value: &Value) -> Theirs {
        match value {
            Value::Null => Theirs::Null,
            Value::Bool(value) => Theirs::Bool(*value),
            Value::Number(number) => Theirs::Number(number.clone()),
            Value::String(text) => Theirs::String(text.clone()),
            Value::Array(items) => items.iter().map(Theirs::from).collect(),
            Value::Object(map) => map.iter().map(|(key, value)| (key.to_string(), Theirs::from(value))).collect(),
        }
    }
}

impl From<Value> for Theirs {
    fn from(value: Value) -> Theirs {
        Theirs::from(&value)
    }
}
