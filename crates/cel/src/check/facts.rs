//! The types and calls that the checker found for each part of an expression, for whoever walks over the expression
//! again.

use crate::syntax::ast::Expr;
use crate::typing::Type;

/// The forms of a function that a call may mean.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub forms: Vec<usize>,
    /// Whether what stands in front is an operand, and no part of the function's name.
    pub member: bool,
}

/// By the numbers of the expressions. A part that the checker never looked at is missing.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    kinds: Vec<Option<Type>>,
    calls: Vec<Option<Resolved>>,
}

impl Facts {
    pub(super) fn new(count: usize) -> Self {
        Facts { kinds: vec![None; count], calls: vec![None; count] }
    }

    pub(super) fn note(&mut self, expr: &Expr, kind: &Type, resolved: Option<Resolved>) {
        self.kinds[expr.id] = Some(kind.clone());
        self.calls[expr.id] = resolved;
    }

    pub(super) fn finish(&mut self, finished: impl Fn(&Type) -> Type) {
        self.kinds.iter_mut().flatten().for_each(|kind| *kind = finished(kind));
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, expr: &Expr) -> Option<&Type> {
        self.kinds[expr.id].as_ref()
    }

    pub(crate) fn call(&self, expr: &Expr) -> Option<&Resolved> {
        self.calls[expr.id].as_ref()
    }
}
