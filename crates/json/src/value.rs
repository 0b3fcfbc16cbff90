//! A JSON value, and what is asked of it and made of it.

use std::{borrow::Cow, fmt, mem, ops};

use crate::{Key, Map, Number};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Value>),
    Object(Map),
}

static NULL: Value = Value::Null;

impl Value {
    pub fn get(&self, at: impl Place) -> Option<&Value> {
        at.of(self)
    }

    pub fn get_mut(&mut self, at: impl Place) -> Option<&mut Value> {
        at.of_mut(self)
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Value::Number(_))
    }

    pub fn is_string(&self) -> bool {
        matches!(self, Value::String(_))
    }

    pub fn is_array(&self) -> bool {
        matches!(self, Value::Array(_))
    }

    pub fn is_object(&self) -> bool {
        matches!(self, Value::Object(_))
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        self.as_number()?.as_i64()
    }

    pub fn as_u64(&self) -> Option<u64> {
        self.as_number()?.as_u64()
    }

    pub fn as_f64(&self) -> Option<f64> {
        self.as_number()?.as_f64()
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&Vec<Value>> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Value>> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_object(&self) -> Option<&Map> {
        match self {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }

    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        match self {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }

    /// The value at a path as RFC 6901 writes it.
    pub fn pointer(&self, path: &str) -> Option<&Value> {
        steps(path)?.try_fold(self, |value, step| match value {
            Value::Object(map) => map.get(&step),
            Value::Array(items) => items.get(index(&step)?),
            _ => None,
        })
    }

    pub fn pointer_mut(&mut self, path: &str) -> Option<&mut Value> {
        steps(path)?.try_fold(self, |value, step| match value {
            Value::Object(map) => map.get_mut(&step),
            Value::Array(items) => items.get_mut(index(&step)?),
            _ => None,
        })
    }

    /// The value; null is left in its place.
    pub fn take(&mut self) -> Value {
        mem::take(self)
    }
}

/// The parts of a path, or none where it is none.
fn steps(path: &str) -> Option<impl Iterator<Item = Cow<'_, str>>> {
    if !path.is_empty() && !path.starts_with('/') {
        return None;
    }
    Some(path.split('/').skip(1).map(|step| match step.contains('~') {
        true => Cow::Owned(step.replace("~1", "/").replace("~0", "~")),
        false => Cow::Borrowed(step),
    }))
}

fn index(step: &str) -> Option<usize> {
    if step.starts_with('+') || (step.starts_with('0') && step.len() > 1) {
        return None;
    }
    step.parse().ok()
}

/// The name or the position by which a part of a value is asked for.
pub trait Place: sealed::Sealed {
    fn of(self, value: &Value) -> Option<&Value>;
    fn of_mut(self, value: &mut Value) -> Option<&mut Value>;
    /// The part, made where it is missing in an object or in null.
    fn made_in(self, value: &mut Value) -> &mut Value;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for &str {}
    impl Sealed for &&str {}
    impl Sealed for String {}
    impl Sealed for &String {}
    impl Sealed for &crate::Key {}
    impl Sealed for usize {}
}

impl Place for &str {
    #[inline]
    fn of(self, value: &Value) -> Option<&Value> {
        value.as_object()?.get(self)
    }

    fn of_mut(self, value: &mut Value) -> Option<&mut Value> {
        value.as_object_mut()?.get_mut(self)
    }

    fn made_in(self, value: &mut Value) -> &mut Value {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        let Value::Object(map) = value else { panic!("no field {self:?} in what is no object") };
        map.made(self, || Key::of(self), || Value::Null)
    }
}

macro_rules! names {
    ($($ty:ty),*) => {$(
        impl Place for $ty {
            #[inline]
            fn of(self, value: &Value) -> Option<&Value> {
                <&str as Place>::of(self, value)
            }

            fn of_mut(self, value: &mut Value) -> Option<&mut Value> {
                <&str as Place>::of_mut(self, value)
            }

            fn made_in(self, value: &mut Value) -> &mut Value {
                <&str as Place>::made_in(self, value)
            }
        }
    )*};
}

names!(&&str, &String, &Key);

impl Place for String {
    fn of(self, value: &Value) -> Option<&Value> {
        (&self).of(value)
    }

    fn of_mut(self, value: &mut Value) -> Option<&mut Value> {
        (&self).of_mut(value)
    }

    fn made_in(self, value: &mut Value) -> &mut Value {
        (&self).made_in(value)
    }
}

impl Place for usize {
    fn of(self, value: &Value) -> Option<&Value> {
        value.as_array()?.get(self)
    }

    fn of_mut(self, value: &mut Value) -> Option<&mut Value> {
        value.as_array_mut()?.get_mut(self)
    }

    fn made_in(self, value: &mut Value) -> &mut Value {
        let Value::Array(items) = value else { panic!("no item {self} in what is no list") };
        &mut items[self]
    }
}

/// A missing part reads as null.
impl<P: Place> ops::Index<P> for Value {
    type Output = Value;

    #[inline]
    fn index(&self, at: P) -> &Value {
        at.of(self).unwrap_or(&NULL)
    }
}

impl<P: Place> ops::IndexMut<P> for Value {
    fn index_mut(&mut self, at: P) -> &mut Value {
        at.made_in(self)
    }
}

/// As JSON; `{:#}` writes one field a line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if f.alternate() { serde_json::to_string_pretty(self) } else { serde_json::to_string(self) };
        f.write_str(&text.map_err(|_| fmt::Error)?)
    }
}

impl std::str::FromStr for Value {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Value, serde_json::Error> {
        serde_json::from_str(text)
    }
}

macro_rules! from_number {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Value {
            fn from(number: $ty) -> Value {
                Value::Number(number.into())
            }
        }

        impl PartialEq<$ty> for Value {
            fn eq(&self, other: &$ty) -> bool {
                self.as_number().is_some_and(|number| *number == Number::from(*other))
            }
        }

        impl PartialEq<Value> for $ty {
            fn eq(&self, other: &Value) -> bool {
                other == self
            }
        }

        impl PartialEq<$ty> for &Value {
            fn eq(&self, other: &$ty) -> bool {
                **self == *other
            }
        }
    )*};
}

from_number!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

/// No JSON number stands for what is infinite or no number: those become null.
impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Number::from_f64(number).map_or(Value::Null, Value::Number)
    }
}

impl PartialEq<f64> for Value {
    fn eq(&self, other: &f64) -> bool {
        self.as_f64() == Some(*other)
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Value {
        Value::Number(number)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<()> for Value {
    fn from((): ()) -> Value {
        Value::Null
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.to_owned())
    }
}

impl From<Cow<'_, str>> for Value {
    fn from(text: Cow<'_, str>) -> Value {
        Value::String(text.into_owned())
    }
}

impl From<&Key> for Value {
    fn from(key: &Key) -> Value {
        Value::from(key.as_str())
    }
}

impl From<Key> for Value {
    fn from(key: Key) -> Value {
        Value::from(key.as_str())
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Value {
        Value::Object(map)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Value {
        items.into_iter().collect()
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(items: [T; N]) -> Value {
        items.into_iter().collect()
    }
}

impl<T: Clone + Into<Value>> From<&[T]> for Value {
    fn from(items: &[T]) -> Value {
        items.iter().cloned().collect()
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Value {
        Value::Array(items.into_iter().map(Into::into).collect())
    }
}

impl<K: Into<Key>, V: Into<Value>> FromIterator<(K, V)> for Value {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(fields: I) -> Value {
        Value::Object(fields.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

macro_rules! equals {
    ($($ty:ty: $as:ident($($deref:tt)?)),* $(,)?) => {$(
        impl PartialEq<$ty> for Value {
            fn eq(&self, other: &$ty) -> bool {
                self.$as().is_some_and(|value| value == $($deref)? other)
            }
        }

        impl PartialEq<Value> for $ty {
            fn eq(&self, other: &Value) -> bool {
                other == self
            }
        }
    )*};
}

equals! {
    str: as_str(), &str: as_str(*), String: as_str(), bool: as_bool(*),
}

impl PartialEq<bool> for &Value {
    fn eq(&self, other: &bool) -> bool {
        **self == *other
    }
}

#[cfg(test)]
mod tests {
    use crate::{Value, json};

    #[test]
    fn what_is_missing_is_null_and_can_be_made() {
        let mut value = json!({"a": [1, {"b": "x"}]});
        assert_eq!(value["a"][1]["b"], "x");
        assert!(value["a"][7]["b"]["c"].is_null());
        value["c"]["d"] = json!(true);
        assert_eq!(value.to_string(), r#"{"a":[1,{"b":"x"}],"c":{"d":true}}"#);
    }

    #[test]
    fn paths_of_rfc_6901() {
        let mut value = json!({"a/b": {"m~n": [10, 20]}, "": 5});
        assert_eq!(value.pointer("/a~1b/m~0n/1"), Some(&json!(20)));
        assert_eq!(value.pointer("/"), Some(&json!(5)));
        assert_eq!(value.pointer(""), Some(&value));
        for wrong in ["a", "/a~1b/m~0n/01", "/a~1b/m~0n/+1", "/a~1b/m~0n/2", "/x"] {
            assert_eq!(value.pointer(wrong), None, "{wrong}");
        }
        *value.pointer_mut("/a~1b/m~0n/0").expect("it is there") = Value::Null;
        assert_eq!(value["a/b"]["m~n"], json!([null, 20]));
    }

    /// serde_json reads fractions with many digits to a neighbour of the nearest number unless it is built to be exact: an object
    /// would change a little each time that it is read and written.
    #[test]
    fn fractions_stay_as_they_are() {
        // Knuth's generator: all sorts of bits.
        let next =
            |bits: &u64| Some(bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        let numbers = std::iter::successors(Some(1), next).map(f64::from_bits).filter(|number| number.is_finite());
        for number in
            numbers.take(5000).chain([10_928_588.983_213_553, 3.402_823_466_385_288_6e38, 99.99, f64::MIN_POSITIVE])
        {
            let text = json!(number).to_string();
            assert_eq!(crate::parse(&text).expect("a number"), number, "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).expect("a number"), number, "{text}");
        }
    }

    #[test]
    fn numbers_and_texts_compare_with_their_own() {
        assert_eq!(json!(3), 3);
        assert_eq!(json!(3), 3u64);
        assert_ne!(json!("3"), 3);
        assert_eq!(json!(2.5), 2.5);
        assert_eq!("x", json!("x"));
        assert_eq!(json!(f64::NAN), Value::Null);
    }
}
