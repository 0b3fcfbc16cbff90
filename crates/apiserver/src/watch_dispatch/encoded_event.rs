//! One event, and the line that it is to each group that it concerns: encoded once per view.

use std::sync::Arc;

use api::{Value, kind::Definition};
use bytes::Bytes;
use store::Event;

use super::scope::WatchScope;
use crate::{
    http::view::{self, View},
    storage::object,
};

/// One event with what was found out about it so far.
pub(super) struct EncodedEvent<'e> {
    pub definition: &'e Definition,
    event: &'e Event,
    new: std::cell::OnceCell<Value>,
    old: std::cell::OnceCell<Value>,
    encoded: Vec<(usize, View, &'static str, Bytes)>,
}

impl<'e> EncodedEvent<'e> {
    pub fn new(definition: &'e Definition, event: &'e Event) -> Self {
        EncodedEvent { definition, event, new: Default::default(), old: Default::default(), encoded: Vec::new() }
    }

    pub fn value(&self, old: bool) -> Option<&Value> {
        let (cell, entry) = if old { (&self.old, &self.event.previous) } else { (&self.new, &self.event.entry) };
        let entry = entry.as_ref()?;
        Some(cell.get_or_init(|| {
            let mut value = serde_json::from_slice(&entry.value).unwrap_or_default();
            if !self.definition.is_converted() {
                object::convert(self.definition, &mut value, entry);
            }
            value
        }))
    }

    fn matches(&self, scope: &WatchScope, old: bool) -> bool {
        let entry = if old { &self.event.previous } else { &self.event.entry };
        let Some(entry) = entry else { return false };
        if scope.filter.is_everything() {
            return true;
        }
        if object::reads_through(&scope.definition, entry) {
            return scope.filter.matches_entry(&scope.definition, entry);
        }
        if !scope.filter.may_match(&entry.value) {
            return false;
        }
        self.value(old).is_some_and(|v| scope.filter.matches(self.definition, v))
    }

    /// The line for this group, if the event concerns it.
    pub fn line(&mut self, scope: &WatchScope) -> Option<Bytes> {
        let (kind, entry) = match (self.matches(scope, true), self.matches(scope, false)) {
            (false, true) => ("ADDED", self.event.entry.as_ref()?),
            (true, true) => ("MODIFIED", self.event.entry.as_ref()?),
            (true, false) => ("DELETED", self.event.previous.as_ref()?),
            (false, false) => return None,
        };
        let of = Arc::as_ptr(&scope.definition) as usize;
        let known = self.encoded.iter().find(|(d, v, k, _)| *d == of && *v == scope.view && *k == kind);
        if let Some((.., line)) = known {
            return Some(line.clone());
        }
        let line = view::event(&scope.definition, scope.view, kind, entry, self.event.revision);
        let line = Bytes::from(line);
        self.encoded.push((of, scope.view, kind, line.clone()));
        Some(line)
    }
}
