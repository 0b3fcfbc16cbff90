//! The part of a kind's declaration that its type has no share in: names, scope and selectors.

use std::sync::Arc;

use super::column::ColumnHeader;
use super::declaration::{FieldLabel, Scale, Scope, Subresource};
use super::definition::{Definition, FieldValue, SelectableField};
use super::strategy::Strategy;
use crate::schema;

/// The part of a declaration that needs no type, so that the code that follows is compiled once and not for each type.
pub(super) struct Names {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub short: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub verbs: &'static [&'static str],
    pub scope: Scope,
    pub scale: Option<Scale<&'static str>>,
    pub subresources: &'static [Subresource],
    pub storage: Option<(&'static str, &'static str)>,
    pub storage_prefix: Option<&'static str>,
    pub field_labels: &'static [FieldLabel],
    pub unknown_label: Option<&'static str>,
}

impl Names {
    /// A definition with these names and no switch set. `singular` is the kind in lower case, which holds for all built-in
    /// kinds.
    pub(super) fn definition(self, columns: Vec<ColumnHeader>, strategy: Arc<dyn Strategy>) -> Definition {
        let (group, version) = self.storage.unwrap_or((self.group, self.version));
        let unknown = self.unknown_label.unwrap_or(if self.field_labels.is_empty() {
            "\"LABEL\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        } else {
            "field label not supported: LABEL"
        });
        let ty = schema::of_kind(self.group, self.version, self.kind);
        let labels = self.field_labels.iter();
        Definition {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            kind: self.kind.to_owned(),
            list_kind: format!("{}List", self.kind),
            plural: self.plural.to_owned(),
            singular: self.kind.to_ascii_lowercase(),
            short_names: owned(self.short),
            categories: owned(self.categories),
            verbs: owned(self.verbs),
            scale: self.scale.map(|Scale { wanted, current, selector }| Scale {
                wanted: wanted.to_owned(),
                current: current.to_owned(),
                selector: selector.map(str::to_owned),
            }),
            subresources: self.subresources.to_vec(),
            schema: ty.name().unwrap_or_default(),
            storage: (group.to_owned(), version.to_owned()),
            storage_prefix: self.storage_prefix.unwrap_or(self.plural).to_owned(),
            columns,
            selectable: labels
                .map(|l| SelectableField { label: l.label.to_owned(), value: FieldValue::Computed(l.value) })
                .collect(),
            unknown_label: unknown.to_owned(),
            ..Definition::bare(self.scope, ty, strategy)
        }
    }
}

fn owned(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}
