//! The texts for people of the built-in types: a table that `build.rs` gathers, and `tables/texts.tsv` for the types that are
//! of this project.

use std::collections::HashMap;

/// See `build.rs` for its form.
const GATHERED: &str = include_str!(concat!(env!("OUT_DIR"), "/texts.tsv"));
const OWN: &str = include_str!("../../tables/texts.tsv");

/// Where the texts of each type are, by the name that the type has in documents.
pub(super) struct Texts(HashMap<&'static str, &'static str>);

/// The texts of one type.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub description: Option<String>,
    properties: HashMap<&'static str, Property>,
}

/// The texts of a property.
#[derive(Debug)]
pub(super) struct Property {
    pub description: Option<String>,
    /// The type that it is of, if that is one with a name.
    pub refers_to: Option<String>,
}

impl Text {
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties.get(name)
    }
}

impl Texts {
    pub fn new() -> Self {
        let entries = [GATHERED, OWN].into_iter().flat_map(|table| table.split("\n="));
        let entry = |entry: &'static str| entry.trim_start_matches('=').split_once('\t');
        Texts(entries.filter_map(entry).collect())
    }

    /// `name` as in documents: `io.k8s.api.core.v1.Pod`.
    pub fn of(&self, name: &str) -> Option<Text> {
        let mut lines = self.0.get(name.strip_prefix("io.k8s.")?)?.lines();
        let description = lines.next()?;
        Some(Text { description: unescaped(description), properties: lines.filter_map(property).collect() })
    }
}

fn property(line: &'static str) -> Option<(&'static str, Property)> {
    let mut words = line.splitn(3, '\t');
    let (name, refers_to, description) = (words.next()?, words.next()?, words.next()?);
    let refers_to = (!refers_to.is_empty()).then(|| format!("io.k8s.{refers_to}"));
    Some((name, Property { description: unescaped(description), refers_to }))
}

fn unescaped(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        out.push(match letter {
            '\\' => match letters.next()? {
                'n' => '\n',
                't' => '\t',
                other => other,
            },
            letter => letter,
        });
    }
    (!out.is_empty()).then_some(out)
}
