//! The fields of the file of `--encryption-provider-config`. Whether it is right is said elsewhere.

use api::{
    Value,
    validation::{field::Path, section::Section},
};
use base64::{Engine, prelude::BASE64_STANDARD};

use crate::cipher::Sort;

/// An entry of `resources`, as it stands in the file.
pub struct Entry {
    pub resources: Vec<String>,
    pub providers: Vec<Vec<GivenProvider>>,
}

/// A provider that an element of `providers` names; a right element names one.
pub enum GivenProvider {
    Identity,
    Keys(Sort, Vec<GivenKey>),
    Kms(GivenPlugin),
}

pub struct GivenKey {
    pub name: String,
    /// In base64.
    pub secret: String,
}

/// A KMS plugin; absent fields have upstream's defaults.
pub struct GivenPlugin {
    pub version: String,
    pub name: String,
    /// The size of a cache that only plugins of version 1 have.
    pub cache_size: Option<Value>,
    pub endpoint: String,
    /// As it stands there, and in nanoseconds.
    pub timeout: (String, i64),
}

impl GivenKey {
    /// The bytes of the key.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        BASE64_STANDARD.decode(&self.secret).ok()
    }
}

/// The entries of a file, which is one of this sort and has no other fields.
pub fn entries(section: &Section<'_>) -> Result<Vec<Entry>, String> {
    section.is("EncryptionConfiguration", &["apiserver.config.k8s.io/v1"])?;
    section.has_only(&["apiVersion", "kind", "resources"])?;
    let entry = |entry: Section<'_>| {
        entry.has_only(&["resources", "providers"])?;
        let providers = entry.sections("providers")?.iter().map(provider).collect::<Result<_, _>>()?;
        Ok(Entry { resources: entry.plain_texts("resources")?, providers })
    };
    section.sections("resources")?.into_iter().map(entry).collect()
}

fn provider(section: &Section<'_>) -> Result<Vec<GivenProvider>, String> {
    section.has_only(&["aesgcm", "aescbc", "secretbox", "identity", "kms"])?;
    let mut given = Vec::new();
    for sort in Sort::ALL.into_iter().filter(|sort| section.get(sort.field()).is_some()) {
        let inside = section.section(sort.field())?;
        inside.has_only(&["keys"])?;
        given.push(GivenProvider::Keys(sort, inside.sections("keys")?.iter().map(key).collect::<Result<_, _>>()?));
    }
    if section.get("identity").is_some() {
        section.section("identity")?.has_only(&[])?;
        given.push(GivenProvider::Identity);
    }
    if section.get("kms").is_some() {
        given.push(GivenProvider::Kms(plugin(&section.section("kms")?)?));
    }
    Ok(given)
}

fn plugin(section: &Section<'_>) -> Result<GivenPlugin, String> {
    section.has_only(&["apiVersion", "name", "cachesize", "endpoint", "timeout"])?;
    let text = |field| section.text(field).map(|text| text.unwrap_or_default().to_owned());
    let cache_size = match section.get("cachesize") {
        None | Some(Value::Null) => None,
        Some(size) if size.as_i64().is_some() => Some(size.clone()),
        Some(_) => return Err(section.wrong("cachesize", "it must be a whole number")),
    };
    Ok(GivenPlugin {
        version: section.text("apiVersion")?.filter(|version| !version.is_empty()).unwrap_or("v1").to_owned(),
        name: text("name")?,
        cache_size,
        endpoint: text("endpoint")?,
        timeout: match section.duration("timeout")? {
            None => ("3s".to_owned(), 3_000_000_000),
            Some(nanos) => (text("timeout")?, nanos),
        },
    })
}

fn key(section: &Section<'_>) -> Result<GivenKey, String> {
    section.has_only(&["name", "secret"])?;
    let text = |field| section.text(field).map(|text| text.unwrap_or_default().to_owned());
    Ok(GivenKey { name: text("name")?, secret: text("secret")? })
}

/// The place of an element of `providers`.
pub fn place(entry: usize, provider: usize) -> Path {
    Path::new("resources").index(entry).child("providers").index(provider)
}
