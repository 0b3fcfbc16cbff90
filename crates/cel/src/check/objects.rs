//! Objects that an expression makes: of which types, and with which fields.

use std::sync::Arc;

use super::{Checked, Checker, Declarations};
use crate::node::{FieldNode, Node};
use crate::syntax::ast::Expr;
use crate::typing::Type;

/// A type that expressions make objects of.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub name: String,
    /// Its objects have any fields, and so have those of every type whose name goes on behind it with a dot.
    pub open: bool,
}

impl Made {
    fn covers(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&*self.name);
        rest.is_some_and(|rest| rest.is_empty() || (self.open && rest.starts_with('.')))
    }
}

impl Declarations {
    fn made_as(&self, name: &str) -> Option<&Made> {
        self.made.iter().find(|made| made.covers(name))
    }

    /// The type of an object's field, if objects of this type may have one of this name.
    pub(super) fn field_of(&self, name: &str, field: &str) -> Option<Type> {
        if self.made_as(name).is_some_and(|made| made.open) {
            return Some(Type::Dyn);
        }
        self.objects.get(name).and_then(|fields| fields.get(field)).cloned()
    }
}

impl Checker<'_> {
    pub(super) fn object(&mut self, at: usize, name: &str, fields: &[(String, Expr, bool)]) -> Checked {
        if self.declarations.made_as(name).is_none() {
            return self.undeclared(at, name);
        }
        let mut made = Vec::with_capacity(fields.len());
        for (field, value, optional) in fields {
            let (node, found) = self.element(value, *optional);
            let Some(kind) = self.declarations.field_of(name, field) else {
                self.complain(value.at, format!("undefined field '{field}'"));
                continue;
            };
            if !self.inference.assignable(&kind, &found) {
                let found = self.inference.finished(&found);
                let message = format!("expected type of field '{field}' is '{kind}' but provided type is '{found}'");
                self.complain(value.at, message);
            }
            made.push(FieldNode { name: field.as_str().into(), kind, value: node, optional: *optional });
        }
        let name: Arc<str> = name.into();
        (Node::Object(name.clone(), made), Type::Object(name))
    }
}
