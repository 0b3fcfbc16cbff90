//! The operands of a call, as a rule sees them.

use super::Range;
use super::sizes::{Declared, Place, Step};
use crate::syntax::ast::{Expr, Kind};
use crate::typing::Type;
use crate::value::Value;

/// One operand.
pub struct Operand<'e> {
    pub(crate) kind: &'e Type,
    pub(crate) expr: &'e Expr,
    pub(crate) size: Option<Range>,
    pub(crate) place: Place<'e>,
}

impl Operand<'_> {
    pub(crate) fn size(&self) -> Range {
        self.size.unwrap_or(Range::UNKNOWN)
    }
}

/// All of them, the receiver first.
pub struct Operands<'e> {
    pub(crate) all: Vec<Operand<'e>>,
    pub(crate) declared: Declared<'e>,
}

impl<'e> Operands<'e> {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, index: usize) -> &Operand<'e> {
        &self.all[index]
    }

    pub(crate) fn kind(&self, index: usize) -> &'e Type {
        self.all[index].kind
    }

    /// The bounds of an operand's size.
    pub fn size(&self, index: usize) -> Range {
        self.all[index].size()
    }

    /// The same, if there are any.
    pub(crate) fn computed(&self, index: usize) -> Option<Range> {
        self.all[index].size
    }

    /// The integer that an operand is written as.
    pub(crate) fn integer(&self, index: usize) -> Option<i64> {
        match &self.all.get(index)?.expr.kind {
            Kind::Literal(Value::Int(number)) => Some(*number),
            _ => None,
        }
    }

    /// The type of a list's items, and how large the declaration lets them be.
    pub(crate) fn item(&self, index: usize) -> Option<(&'e Type, Range)> {
        let operand = &self.all[index];
        let Type::List(item) = operand.kind else { return None };
        let size = match operand.place {
            Place::Nowhere => None,
            place => place.child(Step::Items, self.declared).size(),
        };
        Some((item, size.unwrap_or(Range::UNKNOWN)))
    }
}
