//! From JSON text to a value: what every stored object passes through before it is changed. The texts that are read, and
//! their meaning, are as `serde_json` has them.

use crate::{
    Error, Key, Map, Value,
    text::{Sort, Text},
};

/// The value in a text.
pub fn parse(text: &str) -> Result<Value, Error> {
    parse_without(text, &[])
}

/// The value in a text, but for what stands at this path of names.
pub fn parse_without(text: &str, path: &'static [&'static str]) -> Result<Value, Error> {
    let mut text = Text::new(text);
    let value = Trees::default().value(&mut text, path)?;
    text.end()?;
    Ok(value)
}

/// Reads values. Fields and items wait in one place until all of their object or list are there: then each object and each
/// list takes as much memory as it needs, once.
#[derive(Default)]
pub(crate) struct Trees {
    fields: Vec<(Key, Value)>,
    items: Vec<Value>,
}

impl Trees {
    fn value(&mut self, text: &mut Text<'_>, without: &'static [&'static str]) -> Result<Value, Error> {
        match text.sort()? {
            Sort::Null => text.word("null").map(|()| Value::Null),
            Sort::Bool(value) => text.word(if value { "true" } else { "false" }).map(|()| Value::Bool(value)),
            Sort::Number => match text.small() {
                Some(number) => Ok(Value::Number(number.into())),
                None => text.number().map(Value::Number),
            },
            Sort::String => text.string().map(|text| Value::String(text.into_owned())),
            Sort::Array => self.list(text).map(Value::Array),
            Sort::Object => self.object(text, without).map(Value::Object),
        }
    }

    fn list(&mut self, text: &mut Text<'_>) -> Result<Vec<Value>, Error> {
        text.enter()?;
        let (start, mut first) = (self.items.len(), true);
        while text.next(b']', std::mem::take(&mut first))? {
            let item = self.value(text, &[])?;
            self.items.push(item);
        }
        Ok(self.items.drain(start..).collect())
    }

    fn object(&mut self, text: &mut Text<'_>, without: &'static [&'static str]) -> Result<Map, Error> {
        text.enter()?;
        let (start, mut first) = (self.fields.len(), true);
        while text.next(b'}', std::mem::take(&mut first))? {
            let name = text.name()?;
            let below: &[&str] = match without {
                [only] if *only == name => {
                    text.skip()?;
                    continue;
                }
                [first, below @ ..] if *first == name => below,
                _ => &[],
            };
            let value = self.value(text, below)?;
            self.fields.push((Key::of(&name), value));
        }
        Ok(Map::of(self.fields.drain(start..).collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The value that `serde_json` makes of a text.
    fn expected(text: &str) -> Option<Value> {
        serde_json::from_str(text).ok()
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 8, |inner| {
            let name = prop_oneof![Just("metadata".to_owned()), "[a-c]{1,2}", any::<String>()];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
                proptest::collection::vec((name, inner), 0..8)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_are_read_as_they_were_written(value in value()) {
            for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("plain data")] {
                prop_assert_eq!(parse(&text).ok(), expected(&text));
            }
        }

        /// A character less, or another one: both read it the same, or neither does.
        #[test]
        fn broken_text_is_refused_as_serde_json_refuses_it(value in value(), at in any::<prop::sample::Index>(), with in any::<char>()) {
            let whole: Vec<char> = value.to_string().chars().collect();
            let at = at.index(whole.len());
            let without: String = whole[..at].iter().chain(&whole[at + 1..]).collect();
            let changed: String = whole[..at].iter().chain([&with]).chain(&whole[at + 1..]).collect();
            let cut: String = whole[..at].iter().collect();
            for text in [without, changed, cut] {
                prop_assert_eq!(parse(&text).ok(), expected(&text), "{}", text);
            }
        }
    }

    #[test]
    fn corners_are_those_of_serde_json() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        let texts = [
            "",
            " ",
            "-0",
            "-0.0",
            "1e400",
            "1E2",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775808",
            "-9223372036854775809",
            "9223372036854775807",
            "nul",
            "nullx",
            "truefalse",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{a:1}",
            "{\"a\":1,\"a\":2}",
            "{\"b\":1,\"a\":2,\"b\":3}",
            "\"\\ud800\"",
            "\"\\ud83d\\ude00\"",
            "\"\\x\"",
            "\"\n\"",
            "\"a",
            " [ 1 , { \"a\" : [ ] } ] ",
            "1 2",
            "\u{feff}1",
            &deep(127),
            &deep(128),
            &deep(129),
            "[1}",
            "{\"a\":1]",
        ];
        for text in texts {
            assert_eq!(parse(text).ok(), expected(text), "{text}");
        }
    }

    #[test]
    fn what_is_left_out_is_not_read() {
        let text = r#"{"a":{"b":{"c":1},"d":[2]},"b":3}"#;
        for (path, left) in [
            (&["a", "b"] as &'static [&'static str], r#"{"a":{"d":[2]},"b":3}"#),
            (&["b"], r#"{"a":{"b":{"c":1},"d":[2]}}"#),
            (&["a", "d", "x"], text),
        ] {
            assert_eq!(parse_without(text, path).expect("JSON").to_string(), left);
        }
    }
}
