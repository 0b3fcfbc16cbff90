//! Objects that an expression makes: a type's name, and the fields that are set.

use std::sync::Arc;

use super::Value;

#[derive(Debug, Clone)]
pub struct Made<'a> {
    pub name: Arc<str>,
    /// Each name once, in the order in which they came.
    pub fields: Vec<(Arc<str>, Value<'a>)>,
}

impl<'a> Made<'a> {
    pub fn get(&self, field: &str) -> Option<&Value<'a>> {
        self.fields.iter().find(|(name, _)| &**name == field).map(|(_, value)| value)
    }

    pub(crate) fn put(&mut self, field: Arc<str>, value: Value<'a>) {
        match self.fields.iter_mut().find(|(name, _)| *name == field) {
            Some((_, known)) => *known = value,
            None => self.fields.push((field, value)),
        }
    }
}
