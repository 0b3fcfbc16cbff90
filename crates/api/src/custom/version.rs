//! One version of a custom kind: its schema, read from the stored definition when it is first needed.

use std::sync::{Arc, OnceLock};

use json::Value;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::rules::Rules;
use super::structural::Structural;
use crate::schema::{self, Type};

/// A definition as it is stored. Whoever holds it shares the store's bytes.
pub type Stored = Arc<dyn AsRef<[u8]> + Send + Sync>;

pub struct Version {
    stored: Stored,
    name: String,
    compiled: OnceLock<Compiled>,
}

/// The schema and the rules that objects of the version are checked by.
pub struct Compiled {
    pub schema: Structural,
    pub rules: Option<Rules>,
}

#[derive(Deserialize)]
struct Definition<'b> {
    #[serde(borrow)]
    spec: Spec<'b>,
}

#[derive(Deserialize)]
struct Spec<'b> {
    #[serde(borrow)]
    versions: Vec<Part<'b>>,
}

#[derive(Deserialize)]
struct Part<'b> {
    name: String,
    #[serde(borrow)]
    schema: Option<Validation<'b>>,
}

#[derive(Deserialize)]
struct Validation<'b> {
    #[serde(borrow, rename = "openAPIV3Schema")]
    schema: Option<&'b RawValue>,
}

impl Version {
    pub fn new(stored: Stored, name: &str) -> Self {
        Version { stored, name: name.to_owned(), compiled: OnceLock::new() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The schema as it is written; the empty one where there is none.
    pub fn read<T: DeserializeOwned + Default>(&self) -> T {
        let definition: Option<Definition<'_>> = serde_json::from_slice((*self.stored).as_ref()).ok();
        let versions = definition.map(|d| d.spec.versions).unwrap_or_default();
        let version = versions.into_iter().find(|version| version.name == self.name);
        let text = version.and_then(|version| version.schema?.schema);
        text.and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
    }

    /// The type of its objects, which are of this kind.
    pub fn ty(&self, kind: &str) -> Type {
        schema::custom(kind, &self.read::<Value>())
    }

    pub fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| {
            let schema = Structural::of(&self.read::<JSONSchemaProps>());
            let rules = Rules::of(&schema, true);
            Compiled { schema, rules }
        })
    }
}
