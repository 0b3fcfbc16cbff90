//! The scope of a watch, and its place in the index of watchers.

use std::sync::Arc;

use api::kind::Definition;

use crate::{http::view::View, storage::filter::Filter};

/// The objects that one watcher hears of, and the form in which it gets them.
#[derive(Clone)]
pub struct WatchScope {
    pub definition: Arc<Definition>,
    pub view: View,
    /// Empty for all.
    pub namespace: String,
    pub name: String,
    pub filter: Filter,
    /// The selectors' text: equal text, equal filter.
    pub selectors: String,
    pub bookmarks: bool,
}

/// Where a group stands in its hub's index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Everywhere,
    Namespace(String),
    Object(String, String),
    Field(String, String),
}

impl WatchScope {
    pub(super) fn place(&self) -> Place {
        if !self.name.is_empty() {
            return Place::Object(self.namespace.clone(), self.name.clone());
        }
        // The index is kept by the fields of the version that is stored.
        if let Some((field, value)) = self.filter.exact_field().filter(|_| !self.definition.is_converted()) {
            return Place::Field(field.to_owned(), value.to_owned());
        }
        if self.namespace.is_empty() { Place::Everywhere } else { Place::Namespace(self.namespace.clone()) }
    }

    pub(super) fn same_group(&self, other: &WatchScope) -> bool {
        Arc::ptr_eq(&self.definition, &other.definition)
            && self.view == other.view
            && self.namespace == other.namespace
            && self.name == other.name
            && self.selectors == other.selectors
    }

    /// Whether an event of this namespace and name can concern the group at all.
    pub(super) fn covers(&self, namespace: &str, name: &str) -> bool {
        (self.namespace.is_empty() || self.namespace == namespace) && (self.name.is_empty() || self.name == name)
    }
}
