//! Keys that stand twice in one mapping of a YAML document, as Go's library tells of them.

use std::collections::HashSet;
use std::fmt;

use json::json;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Options, Spanned};

/// The complaint begins with this, and goes on with a line for each key.
pub(super) const INTRODUCTION: &str = "yaml: unmarshal errors:";

/// Keys that are told of at most.
const MOST: usize = 100;

/// The complaint about a document, which can be read when the last of two equal keys wins.
pub(super) fn keys(bytes: &[u8], last_wins: Options) -> Option<String> {
    let found: Found = serde_saphyr::from_slice_with_options(bytes, last_wins).ok()?;
    let lines: Vec<String> =
        found.0.iter().map(|(line, key)| format!("\n  line {line}: key {} already set in map", json!(key))).collect();
    (!lines.is_empty()).then(|| format!("{INTRODUCTION}{}", lines.concat()))
}

/// The lines of second keys, with the keys, in their order.
#[derive(Default)]
struct Found(Vec<(u64, String)>);

impl Found {
    fn extend(&mut self, further: Found) {
        let room = MOST.saturating_sub(self.0.len());
        self.0.extend(further.0.into_iter().take(room));
    }
}

impl<'de> Deserialize<'de> for Found {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Found, A::Error> {
        let (mut found, mut seen) = (Found::default(), HashSet::new());
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            if seen.contains(&key.value) {
                found.extend(Found(vec![(key.referenced.line(), key.value)]));
            } else {
                seen.insert(key.value);
            }
            found.extend(access.next_value()?);
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Found, A::Error> {
        let mut found = Found::default();
        while let Some(further) = access.next_element()? {
            found.extend(further);
        }
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Found::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Found, E> {
        Ok(Found::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Found, E> {
        Ok(Found::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Found::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Found, E> {
        Ok(Found::default())
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Found::default())
    }

    fn visit_none<E>(self) -> Result<Found, E> {
        Ok(Found::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_saphyr::DuplicateKeyPolicy;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let last_wins = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
        let found = super::keys(text.as_bytes(), last_wins);
        assert_eq!(found.as_deref(), expected, "{text}");
    }

    #[test]
    fn second_keys_are_told_with_their_lines() {
        check("a: 1\nb: [x, {c: null}]\n", None);
        check("a: 1\na: 2\n", Some("yaml: unmarshal errors:\n  line 2: key \"a\" already set in map"));
        check("{\"a\": 1, \"a\": 2}", Some("yaml: unmarshal errors:\n  line 1: key \"a\" already set in map"));
        let both = "\n  line 5: key \"d\" already set in map\n  line 6: key \"a\" already set in map";
        check("a:\n- b: 1.5\n- d: true\n  c: ~\n  d: x\na: 2\n", Some(&format!("yaml: unmarshal errors:{both}")));
    }
}
