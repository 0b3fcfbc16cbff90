//! The texts for people of the built-in types: a table that `build.rs` gathers, and `tables/texts.tsv` for the types that are
//! of this project. And `tables/enums.tsv`, the values that upstream publishes for a field: for people in its text, for programs
//! beside it.

use std::{collections::HashMap, sync::LazyLock};

use sha2::{Digest, Sha256};

/// See `build.rs` for its form.
const GATHERED: &str = include_str!(concat!(env!("OUT_DIR"), "/texts.tsv"));
const OWN: &str = include_str!("../../tables/texts.tsv");

/// See `enums.py` for its form.
const ENUMS: &str = include_str!("../../tables/enums.tsv");

/// The values that a field may have.
type Values = Vec<&'static str>;

static ENUM_FIELDS: LazyLock<EnumFields> = LazyLock::new(EnumFields::read);

struct EnumFields {
    /// Of each type the fields that have values, with the text that tells of them.
    of_type: HashMap<&'static str, Vec<(&'static str, String, Values)>>,
    hash: Vec<u8>,
}

impl EnumFields {
    fn read() -> Self {
        let mut of_type: HashMap<_, Vec<_>> = HashMap::new();
        for entry in ENUMS.split("\n=") {
            let lines = entry.lines().skip(1);
            let values: Vec<_> = lines.clone().filter_map(|line| line.strip_prefix('\t')?.split_once('\t')).collect();
            let line = |(value, meaning): &(&str, &str)| format!("\n - `\"{value}\"` {meaning}").trim_end().to_owned();
            let told = format!("Possible enum values:{}", values.iter().map(line).collect::<String>());
            let names: Values = values.iter().map(|(value, _)| *value).collect();
            for (name, field) in lines.filter_map(|line| line.split_once('\t')).filter(|(name, _)| !name.is_empty()) {
                // The text of a list tells of the list.
                let (field, told) = field.strip_suffix("\t[").map_or((field, told.as_str()), |field| (field, ""));
                of_type.entry(name).or_default().push((field, told.to_owned(), names.clone()));
            }
        }
        EnumFields { of_type, hash: Sha256::digest(ENUMS).to_vec() }
    }
}

/// Changes whenever other values are published.
pub(super) fn enums_hash() -> &'static [u8] {
    &ENUM_FIELDS.hash
}

/// Where the texts of each type are, by the name that the type has in documents.
pub(super) struct Texts {
    tables: HashMap<&'static str, &'static str>,
    /// Whether values are published.
    enums: bool,
}

/// The texts of one type.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub description: Option<String>,
    properties: HashMap<&'static str, Property>,
}

/// The texts of a property.
#[derive(Debug, Default)]
pub(super) struct Property {
    pub description: Option<String>,
    /// The type that it is of, if that is one with a name.
    pub refers_to: Option<String>,
    /// The values that it, or its elements, may have; none where upstream publishes none.
    pub values: Values,
}

impl Text {
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties.get(name)
    }
}

impl Texts {
    pub fn new(enums: bool) -> Self {
        let entries = [GATHERED, OWN].into_iter().flat_map(|table| table.split("\n="));
        let entry = |entry: &'static str| entry.trim_start_matches('=').split_once('\t');
        Texts { tables: entries.filter_map(entry).collect(), enums }
    }

    /// `name` as in documents: `io.k8s.api.core.v1.Pod`.
    pub fn of(&self, name: &str) -> Option<Text> {
        let name = name.strip_prefix("io.k8s.")?;
        let mut lines = self.tables.get(name)?.lines();
        let description = unescaped(lines.next()?);
        let mut properties: HashMap<_, _> = lines.filter_map(property).collect();
        for (field, told, values) in ENUM_FIELDS.of_type.get(name).into_iter().flatten().filter(|_| self.enums) {
            let property = properties.entry(*field).or_default();
            property.values.clone_from(values);
            if !told.is_empty() {
                let own = property.description.take().map_or_else(String::new, |text| format!("{text}\n\n"));
                property.description = Some(own + told);
            }
        }
        Some(Text { description, properties })
    }
}

fn property(line: &'static str) -> Option<(&'static str, Property)> {
    let mut words = line.splitn(3, '\t');
    let (name, refers_to, description) = (words.next()?, words.next()?, words.next()?);
    let refers_to = (!refers_to.is_empty()).then(|| format!("io.k8s.{refers_to}"));
    Some((name, Property { description: unescaped(description), refers_to, values: Values::new() }))
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
