//! A map in a configuration file: its fields, each checked for its type, and the place of each for errors.

use json::{Map, Value};

use super::field::quote;
use crate::custom::formats::go_duration;

/// A map in a configuration file and the place where it stands. All errors begin with the place of the field.
pub struct Section<'a> {
    place: String,
    /// `None` where an optional map is absent.
    map: Option<&'a Map>,
}

impl<'a> Section<'a> {
    pub fn of(place: &str, value: &'a Value) -> Result<Self, String> {
        match value.as_object() {
            Some(map) => Ok(Section { place: place.to_owned(), map: Some(map) }),
            None if place.is_empty() => Err("it must hold a map".to_owned()),
            None => Err(format!("{place}: it must be a map")),
        }
    }

    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.and_then(|map| map.get(field)).filter(|value| !value.is_null())
    }

    pub fn place(&self, field: &str) -> String {
        if self.place.is_empty() { field.to_owned() } else { format!("{}.{field}", self.place) }
    }

    pub fn wrong(&self, field: &str, why: &str) -> String {
        format!("{}: {why}", self.place(field))
    }

    /// Refuses a document of another sort.
    pub fn is(&self, kind: &str, versions: &[&str]) -> Result<(), String> {
        let (given, version) = (self.text("kind")?.unwrap_or(""), self.text("apiVersion")?.unwrap_or(""));
        if given != kind {
            return Err(self.wrong("kind", &format!("it must be {kind}, not {}", quote(given))));
        }
        if !versions.contains(&version) {
            let why = format!("it must be {}, not {}", versions.join(" or "), quote(version));
            return Err(self.wrong("apiVersion", &why));
        }
        Ok(())
    }

    pub fn has_only(&self, known: &[&str]) -> Result<(), String> {
        match self.map.into_iter().flat_map(Map::keys).find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(self.wrong(key, &format!("there is no such field; there are {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    /// The fields that are given.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.into_iter().flat_map(Map::keys).map(|key| key.as_str())
    }

    /// The section as it stands.
    pub fn to_value(&self) -> Value {
        self.map.cloned().map_or(Value::Null, Value::Object)
    }

    pub fn text(&self, field: &str) -> Result<Option<&'a str>, String> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(field, "it must be text")),
        }
    }

    pub fn flag(&self, field: &str) -> Result<Option<bool>, String> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong(field, "it must be true or false")),
        }
    }

    /// A duration as Go writes it (`1m30s`), in nanoseconds. It may be negative.
    pub fn duration(&self, field: &str) -> Result<Option<i64>, String> {
        let nanos =
            |text| go_duration(text).ok_or_else(|| self.wrong(field, "it must be a duration such as 3s or 1m30s"));
        self.text(field)?.map(nanos).transpose()
    }

    /// The map in a field; an empty one when it is absent.
    pub fn section(&self, field: &str) -> Result<Section<'a>, String> {
        match self.get(field) {
            None => Ok(Section { place: self.place(field), map: None }),
            Some(value) => Section::of(&self.place(field), value),
        }
    }

    fn list(&self, field: &str) -> Result<&'a [Value], String> {
        match self.get(field) {
            None => Ok(&[]),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => Err(self.wrong(field, "it must be a list")),
        }
    }

    pub fn sections(&self, field: &str) -> Result<Vec<Section<'a>>, String> {
        let list = self.list(field)?.iter().enumerate();
        list.map(|(at, value)| Section::of(&self.place(&format!("{field}[{at}]")), value)).collect()
    }

    /// A list of texts as they stand.
    pub fn plain_texts(&self, field: &str) -> Result<Vec<String>, String> {
        let text = |(at, value): (usize, &Value)| match value {
            Value::String(text) => Ok(text.to_string()),
            _ => Err(self.wrong(&format!("{field}[{at}]"), "it must be text")),
        };
        self.list(field)?.iter().enumerate().map(text).collect()
    }

    /// A list of texts without repetitions, each as `check` wants it; `check` says what is wrong with one.
    pub fn texts(&self, field: &str, check: impl Fn(&str) -> Vec<String>) -> Result<Vec<String>, String> {
        let mut texts: Vec<String> = Vec::new();
        for (at, value) in self.list(field)?.iter().enumerate() {
            let wrong = |why: String| self.wrong(&format!("{field}[{at}]"), &why);
            let text = value.as_str().ok_or_else(|| wrong("it must be text".to_owned()))?;
            let errors = check(text);
            if !errors.is_empty() {
                return Err(wrong(format!("Invalid value: {}: {}", quote(text), errors.join(", "))));
            }
            if texts.iter().any(|known| known == text) {
                return Err(wrong(format!("Duplicate value: {}", quote(text))));
            }
            texts.push(text.to_owned());
        }
        Ok(texts)
    }
}
