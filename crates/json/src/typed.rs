//! From a value, or from text, to a type.

use serde::{
    Deserializer,
    de::{DeserializeOwned, Visitor},
    forward_to_deserialize_any,
};

use crate::{Error, Map, Value, pieces::Fields, source::Reader, text::Text};

pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(Reader::of(&value))
}

pub fn from_text<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    from_text_without(text, &[])
}

/// Reads what the text holds, but for what stands at this path of names.
pub fn from_text_without<T: DeserializeOwned>(text: &str, path: &'static [&'static str]) -> Result<T, Error> {
    let mut text = Text::new(text);
    let read = T::deserialize(Reader::of_text(&mut text).without(path)).map_err(|error| text.placed(error))?;
    text.end()?;
    Ok(read)
}

/// Types that are told nothing of readers read from values too.
macro_rules! like_a_reader {
    ($($method:ident($($name:ident: $ty:ty),*)),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $ty,)* visitor: V) -> Result<V::Value, Error> {
            Reader::of(self).$method($($name,)* visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for &'de Value {
    type Error = Error;

    like_a_reader! {
        deserialize_any(), deserialize_bool(), deserialize_i8(), deserialize_i16(), deserialize_i32(), deserialize_i64(),
        deserialize_i128(), deserialize_u8(), deserialize_u16(), deserialize_u32(), deserialize_u64(), deserialize_u128(),
        deserialize_f32(), deserialize_f64(), deserialize_char(), deserialize_str(), deserialize_string(),
        deserialize_bytes(), deserialize_byte_buf(), deserialize_option(), deserialize_unit(), deserialize_seq(),
        deserialize_map(), deserialize_identifier(), deserialize_ignored_any(),
        deserialize_unit_struct(name: &'static str),
        deserialize_newtype_struct(name: &'static str),
        deserialize_tuple(len: usize),
        deserialize_tuple_struct(name: &'static str, len: usize),
        deserialize_struct(name: &'static str, fields: &'static [&'static str]),
        deserialize_enum(name: &'static str, variants: &'static [&'static str]),
    }
}

impl<'de> Deserializer<'de> for &'de Map {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        Fields::of(self).give(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use crate::{Reader, Value, from_text, from_text_without, from_value, json, text::Text, to_value};

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

    /// Fields that no type asks for are passed over, wherever they are read from.
    #[test]
    fn a_path_is_left_out_of_values_and_of_text() {
        let text = r#"{"a":{"b":[1,{"c":"\u0041"}],"kept":1},"b":2,"list":[{"a":{"b":3}}]}"#;
        let whole: Value = text.parse().expect("JSON");
        let left = json!({"a": {"kept": 1}, "b": 2, "list": [{"a": {"b": 3}}]});
        let path = &["a", "b"];
        assert_eq!(from_text_without::<Value>(text, path).expect("JSON"), left);
        assert_eq!(Value::deserialize(Reader::of(&whole).without(path)).expect("a value"), left);
        assert_eq!(from_text::<Value>(text).expect("JSON"), whole);
        let broken = text.replace("{\"c\"", "{7");
        assert!(from_text_without::<Value>(&broken, path).is_err());
    }

    proptest! {
        /// Text that is JSON, almost JSON or none at all is read, or refused, as by the library.
        #[test]
        fn text_is_read_as_by_serde_json(
            pick in 0..SAMPLES.len(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(PIECES)), 0..4),
        ) {
            let mut text = SAMPLES[pick].to_owned();
            for (at, piece) in changes {
                let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
                let at = *at.get(&places);
                let end = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
                text.replace_range(at..end, piece);
            }
            let theirs = serde_json::from_str::<Value>(&text);
            let ours = from_text::<Value>(&text);
            prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{} {:?} {:?}", text, ours, theirs);
            let mut passed = Text::new(&text);
            let passed = passed.skip().and_then(|()| passed.end());
            // Escapes are looked at when they are read.
            prop_assert!(passed.is_ok() == ours.is_ok() || passed.is_ok() && text.contains('\\'), "{} {:?}", text, passed);
            if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                prop_assert_eq!(ours, theirs);
            }
            prop_assert_eq!(
                from_text::<Shape>(&text).ok(),
                serde_json::from_str::<Shape>(&text).ok()
            );
        }
    }

    const SAMPLES: &[&str] = &[
        r#"{"a":[1,-2,3.5e-1,0,-0,123456789012345678,1234567890123456789,18446744073709551615,1e400],"b":{"c":null}}"#,
        r#" [ true , false , null , "x\u00e4\n\"ö" , {} , [ ] , "\ud83d\ude00" ] "#,
        r#"{"round":3}"#,
        r#"{"square":{"side":2}}"#,
        r#"{"pair":[-1,"x"]}"#,
        r#""none""#,
        "[[[[[[1]]]]]]",
    ];
    const PIECES: &[&str] = &[
        "", "\"", "\\", "{", "}", "[", "]", ",", ":", "0", "-", ".", "e", "null", " ", "\n", "\u{1}", "ö", "[1,",
        "{\"k\":", "\\u", "1e9", "00", "\"none\"",
    ];

    #[test]
    fn depth_is_bounded_and_errors_tell_their_place() {
        let deep = |n| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(from_text::<Value>(&deep(127)).is_ok());
        assert!(from_text::<Value>(&deep(128)).is_err());
        let pass = |text: String| Text::new(&text).skip().is_ok();
        assert!(pass(deep(127)) && !pass(deep(128)) && !pass(format!("{{\"a\":{}}}", deep(127))));
        assert!(pass(format!("[{}]", ["{\"a\":[[]]}"; 200].join(","))), "as wide as it likes");
        let error = from_text::<BTreeMap<String, bool>>("{\"side\":\n true x}").expect_err("broken");
        assert_eq!((error.line(), error.column()), (2, 6), "{error}");
        let error = from_text::<BTreeMap<String, bool>>("{\"side\":\n 1}").expect_err("no bool");
        assert_eq!(error.to_string(), "invalid type: integer `1`, expected a boolean at line 2 column 2");
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
            r#"{"n":1,"list":[1]}"#,
            r#"{"n":1,"shape":"other"}"#,
            r#"{"n":1,"shape":{"round":1,"none":2}}"#,
            r#"{"n":1,"shape":7}"#,
            r#"{"n":1,"shape":"round"}"#,
            r#"{"n":1.5}"#,
            r#"true"#,
        ] {
            let ours = from_value::<Small>(text.parse().expect("JSON")).expect_err(text).to_string();
            let theirs = serde_json::from_value::<Small>(text.parse().expect("JSON")).expect_err(text).to_string();
            assert_eq!(ours, theirs, "{text}");
        }
    }
}
