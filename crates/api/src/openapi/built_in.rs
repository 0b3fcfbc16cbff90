//! The texts for people of the built-in kinds, from the documentation of their Rust types.

use std::collections::BTreeSet;
use std::sync::Arc;

use json::Map;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};

use crate::kind::{Definition, Kind, Object};
use crate::kinds::{self, Visitor};

/// The schemas of the built-in kinds among these, and of all that they refer to, by name.
pub(super) fn texts(definitions: &[&Arc<Definition>]) -> Map {
    let mut settings = SchemaSettings::draft07();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let schemas = definitions.iter().map(|d| &*d.schema).collect();
    let mut texts = Texts { schemas, generator: settings.into_generator() };
    kinds::resources(&mut texts);
    texts.generator.take_definitions(false).iter().map(|(name, text)| (name, text.into())).collect()
}

struct Texts<'d> {
    schemas: BTreeSet<&'d str>,
    generator: SchemaGenerator,
}

impl Visitor for Texts<'_> {
    fn visit<T: Object + JsonSchema>(&mut self, _: Kind<T>) {
        if self.schemas.contains(&*T::schema_name()) {
            self.generator.subschema_for::<T>();
        }
    }
}
