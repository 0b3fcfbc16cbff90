//! The tree of an expression, with macros expanded.

use crate::value::Value;

#[derive(Debug, Clone)]
pub(crate) struct Expr {
    /// Code points of the source before the place that messages name.
    pub at: usize,
    /// Levels below this one, so that no later walk is deeper than the parser allowed.
    pub depth: usize,
    /// Its number in the whole tree, once `Expr::number` has given them out.
    pub id: usize,
    pub kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Literal(Value<'static>),
    Ident(String),
    Select {
        operand: Box<Expr>,
        field: String,
        access: Access,
    },
    /// Operators are calls too: `_+_`, `_?_:_`, `_[_]`, `_[?_]`. `_&&_` and `_||_` have two or more arguments.
    Call {
        function: String,
        target: Option<Box<Expr>>,
        arguments: Vec<Expr>,
    },
    /// Elements, and whether each is optional.
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    /// An object of a named type: fields with their values, and whether each is optional.
    Object {
        name: String,
        fields: Vec<(String, Expr, bool)>,
    },
    Fold(Box<Fold>),
}

/// How a field is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// `a.b`
    Plain,
    /// `a.?b`
    Optional,
    /// `has(a.b)`
    Presence,
}

/// A comprehension, as all macros become one.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    pub range: Expr,
    pub variable: String,
    pub second: Option<String>,
    pub accumulator: String,
    pub start: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

/// No name of an expression can be this.
pub(crate) const ACCUMULATOR: &str = "@result";
pub(crate) const UNUSED: &str = "#unused";

impl Expr {
    pub(crate) fn leaf(at: usize, kind: Kind) -> Expr {
        Expr { at, depth: 1, id: 0, kind }
    }

    pub(crate) fn literal(at: usize, value: Value<'static>) -> Expr {
        Expr::leaf(at, Kind::Literal(value))
    }

    pub(crate) fn ident(at: usize, name: &str) -> Expr {
        Expr::leaf(at, Kind::Ident(name.to_owned()))
    }

    pub(crate) fn call(at: usize, function: &str, arguments: Vec<Expr>) -> Expr {
        let depth = arguments.iter().map(|a| a.depth).max().unwrap_or(0) + 1;
        Expr { at, depth, id: 0, kind: Kind::Call { function: function.to_owned(), target: None, arguments } }
    }

    pub(crate) fn member(at: usize, function: &str, target: Expr, arguments: Vec<Expr>) -> Expr {
        let depth = arguments.iter().map(|a| a.depth).max().unwrap_or(0).max(target.depth) + 1;
        let target = Some(Box::new(target));
        Expr { at, depth, id: 0, kind: Kind::Call { function: function.to_owned(), target, arguments } }
    }

    pub(crate) fn select(at: usize, operand: Expr, field: &str, access: Access) -> Expr {
        let depth = operand.depth + 1;
        Expr { at, depth, id: 0, kind: Kind::Select { operand: Box::new(operand), field: field.to_owned(), access } }
    }

    pub(crate) fn list(at: usize, items: Vec<(Expr, bool)>) -> Expr {
        let depth = items.iter().map(|(item, _)| item.depth).max().unwrap_or(0) + 1;
        Expr { at, depth, id: 0, kind: Kind::List(items) }
    }

    pub(crate) fn map(at: usize, entries: Vec<(Expr, Expr, bool)>) -> Expr {
        let depth = entries.iter().map(|(key, value, _)| key.depth.max(value.depth)).max().unwrap_or(0) + 1;
        Expr { at, depth, id: 0, kind: Kind::Map(entries) }
    }

    pub(crate) fn object(at: usize, name: String, fields: Vec<(String, Expr, bool)>) -> Expr {
        let depth = fields.iter().map(|(_, value, _)| value.depth).max().unwrap_or(0) + 1;
        Expr { at, depth, id: 0, kind: Kind::Object { name, fields } }
    }

    pub(crate) fn fold(at: usize, fold: Fold) -> Expr {
        let parts = [&fold.range, &fold.start, &fold.condition, &fold.step, &fold.result];
        let depth = parts.iter().map(|p| p.depth).max().unwrap_or(0) + 1;
        Expr { at, depth, id: 0, kind: Kind::Fold(Box::new(fold)) }
    }

    pub(crate) fn as_ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            _ => None,
        }
    }

    /// The dotted name that an expression may be: `optional.of` of `optional.of(1)`.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { operand, field, access: Access::Plain } => {
                Some(format!("{}.{field}", operand.qualified_name()?))
            }
            _ => None,
        }
    }

    /// Numbers the expressions of the tree, from the given number on; says the next one that is free.
    pub(crate) fn number(&mut self, from: usize) -> usize {
        self.id = from;
        let from = from + 1;
        match &mut self.kind {
            Kind::Literal(_) | Kind::Ident(_) => from,
            Kind::Object { fields, .. } => fields.iter_mut().fold(from, |next, (_, value, _)| value.number(next)),
            Kind::Select { operand, .. } => operand.number(from),
            Kind::Call { target, arguments, .. } => {
                target.as_deref_mut().into_iter().chain(arguments).fold(from, |next, part| part.number(next))
            }
            Kind::List(items) => items.iter_mut().fold(from, |next, (item, _)| item.number(next)),
            Kind::Map(entries) => entries.iter_mut().fold(from, |next, (key, value, _)| value.number(key.number(next))),
            Kind::Fold(fold) => {
                let Fold { range, start, condition, step, result, .. } = &mut **fold;
                [range, start, condition, step, result].into_iter().fold(from, |next, part| part.number(next))
            }
        }
    }

    /// The expressions right below this one.
    fn parts(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => Vec::new(),
            Kind::Object { fields, .. } => fields.iter().map(|(_, value, _)| value).collect(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call { target, arguments, .. } => target.as_deref().into_iter().chain(arguments).collect(),
            Kind::List(items) => items.iter().map(|(item, _)| item).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value, _)| [key, value]).collect(),
            Kind::Fold(fold) => vec![&fold.range, &fold.start, &fold.condition, &fold.step, &fold.result],
        }
    }

    /// The number of expressions in the tree.
    pub(crate) fn count(&self) -> usize {
        1 + self.parts().into_iter().map(Expr::count).sum::<usize>()
    }

    /// Whether a field of a variable is selected anywhere in the tree: as `a.b`, `a.?b` or in `has(a.b)`.
    pub(crate) fn selects(&self, variable: &str, field: &str) -> bool {
        let here = |operand: &Expr, selected: &str| operand.as_ident() == Some(variable) && selected == field;
        matches!(&self.kind, Kind::Select { operand, field, .. } if here(operand, field))
            || self.parts().into_iter().any(|part| part.selects(variable, field))
    }
}
