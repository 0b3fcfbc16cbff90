//! The most that an expression can cost, by its text and by how large the values are that it may be given. It is asked
//! before a definition is accepted. The walk is over the tree as it was read, with macros expanded and before constants
//! are folded, since that is what upstream estimates.
//! Upstream counterpart: cel-go's checker/cost.go.

mod calls;

use crate::budget::{LIST_COST, MAP_COST, OBJECT_COST};
use crate::check::Facts;
use crate::cost_rule::{Place, Step};
use crate::function::Functions;
use crate::syntax::ast::{ACCUMULATOR, Access, Expr, Fold, Kind};
use crate::typing::Type;
use crate::value::Value;

pub use crate::cost_rule::{
    Declared, Estimate, Guess, Operand, Operands, Range, Sizes, first, first_twice, matching_second, walk,
};

/// The bounds of an expression's cost, for the sizes that are declared.
pub(crate) fn estimate(expr: &Expr, facts: &Facts, functions: &Functions, declared: Declared<'_>) -> Range {
    let known = vec![Known::default(); facts.len()];
    Estimator { facts, functions, declared, known, locals: Vec::new() }.cost(expr)
}

/// The sizes and places of the keys and values in a list or map that the expression made.
#[derive(Debug, Clone, Copy)]
struct Entries {
    list: bool,
    key: Range,
    value: Range,
}

impl Entries {
    fn joined(self, other: Entries) -> Entries {
        Entries { list: self.list, key: self.key.joined(other.key), value: self.value.joined(other.value) }
    }
}

/// The size, entries and place that the walk has found out for an expression.
#[derive(Debug, Clone, Copy)]
struct Known<'s> {
    size: Option<Range>,
    entries: Option<Entries>,
    place: Place<'s>,
}

impl Default for Known<'_> {
    fn default() -> Self {
        Known { size: None, entries: None, place: Place::Nowhere }
    }
}

struct Local<'e> {
    name: &'e str,
    known: Known<'e>,
}

struct Estimator<'e> {
    facts: &'e Facts,
    functions: &'e Functions,
    declared: Declared<'e>,
    /// By the numbers of the expressions.
    known: Vec<Known<'e>>,
    /// The variables of the folds around, innermost last.
    locals: Vec<Local<'e>>,
}

impl<'e> Estimator<'e> {
    fn cost(&mut self, expr: &'e Expr) -> Range {
        match &expr.kind {
            Kind::Literal(_) => Range::default(),
            Kind::Ident(name) => {
                self.known[expr.id].place =
                    self.local(name).map_or_else(|| self.declared.variable(name), |local| local.place);
                Range::ONE
            }
            Kind::Select { operand, field, access } => self.select(expr, operand, field, *access),
            Kind::Call { function, target, arguments } => self.call(expr, function, target.as_deref(), arguments),
            Kind::List(items) => self.list(expr, items),
            Kind::Map(entries) => self.map(expr, entries),
            Kind::Object { fields, .. } => {
                let (cost, _) = self.parts(fields.iter().map(|(_, value, _)| value));
                cost.plus(Range::exactly(OBJECT_COST))
            }
            Kind::Fold(fold) if is_bind(fold) => self.bind(expr, fold),
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn local(&self, name: &str) -> Option<Known<'e>> {
        self.locals.iter().rev().find(|local| local.name == name).map(|local| local.known)
    }

    fn kind(&self, expr: &Expr) -> &'e Type {
        self.facts.kind(expr).unwrap_or(&Type::Dyn)
    }

    fn place(&self, expr: &Expr) -> Place<'e> {
        self.known[expr.id].place
    }

    /// The size of a value, if the expression or a declaration tells it.
    fn size(&mut self, expr: &Expr) -> Option<Range> {
        let known = &mut self.known[expr.id];
        known.size = known.size.or_else(|| written(expr)).or_else(|| known.place.size());
        known.size.or_else(|| is_scalar(self.kind(expr)).then_some(Range::ONE)).or_else(|| match &expr.kind {
            Kind::Ident(name) => self.local(name)?.size,
            _ => None,
        })
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(Range::UNKNOWN)
    }

    fn entries(&self, expr: &Expr) -> Option<Entries> {
        self.known[expr.id].entries.or_else(|| match &expr.kind {
            Kind::Ident(name) => self.local(name)?.entries,
            _ => None,
        })
    }

    fn select(&mut self, expr: &Expr, operand: &'e Expr, field: &str, access: Access) -> Range {
        if self.facts.kind(operand).is_none() {
            // The checker took the whole for one name.
            return Range::ONE;
        }
        let cost = self.cost(operand);
        match access {
            Access::Presence => return cost,
            Access::Optional => return cost.plus(Range::ONE),
            Access::Plain => {}
        }
        self.known[expr.id].place = self.place(operand).child(Step::Field(field), self.declared);
        let counts = matches!(self.kind(operand), Type::Map(_) | Type::Object(_));
        if counts { cost.plus(Range::ONE) } else { cost }
    }

    /// The cost of parts, and the range of their sizes.
    fn parts(&mut self, parts: impl Iterator<Item = &'e Expr>) -> (Range, Range) {
        let (mut cost, mut size) = (Range::default(), None);
        for part in parts {
            cost = cost.plus(self.cost(part));
            let of_part = self.size_or_unknown(part);
            size = Some(size.map_or(of_part, |size: Range| size.joined(of_part)));
        }
        (cost, size.unwrap_or_default())
    }

    fn list(&mut self, expr: &Expr, items: &'e [(Expr, bool)]) -> Range {
        let (cost, value) = self.parts(items.iter().map(|(item, _)| item));
        self.known[expr.id].entries = Some(Entries { list: true, key: Range::ONE, value });
        cost.plus(Range::exactly(LIST_COST))
    }

    fn map(&mut self, expr: &Expr, entries: &'e [(Expr, Expr, bool)]) -> Range {
        let (keys, key) = self.parts(entries.iter().map(|(key, _, _)| key));
        let (values, value) = self.parts(entries.iter().map(|(_, value, _)| value));
        self.known[expr.id].entries = Some(Entries { list: false, key, value });
        keys.plus(values).plus(Range::exactly(MAP_COST))
    }

    /// A name for a value, which is evaluated once.
    fn bind(&mut self, expr: &Expr, fold: &'e Fold) -> Range {
        let cost = self.cost(&fold.range).plus(self.cost(&fold.start));
        self.name(&fold.accumulator, &fold.start);
        let cost = cost.plus(self.cost(&fold.result));
        self.locals.pop();
        let (size, entries) = (self.size(&fold.result), self.entries(&fold.result));
        let known = &mut self.known[expr.id];
        (known.size, known.entries) = (size, entries);
        cost
    }

    fn name(&mut self, name: &'e str, value: &Expr) {
        let known = Known { size: self.size(value), entries: self.entries(value), place: self.place(value) };
        self.locals.push(Local { name, known });
    }

    fn fold(&mut self, expr: &Expr, fold: &'e Fold) -> Range {
        let mut cost = self.cost(&fold.range).plus(self.cost(&fold.start));
        self.name(&fold.accumulator, &fold.start);
        let accumulators = self.locals.len();
        self.name_elements(fold);
        let each = self.cost(&fold.condition).plus(self.cost(&fold.step));
        self.locals.truncate(accumulators);
        cost = cost.plus(self.cost(&fold.result));
        self.locals.pop();
        let rounds = self.size_or_unknown(&fold.range);
        let (size, entries) = match &fold.start.kind {
            Kind::Literal(_) => (self.size(&fold.start), None),
            Kind::List(_) | Kind::Map(_) => (Some(rounds), self.entries(&fold.step)),
            _ => (None, None),
        };
        let known = &mut self.known[expr.id];
        (known.size, known.entries) = (size, entries);
        cost.plus(rounds.times(each))
    }

    /// A fold's variables: the items of a list, or the keys of a map; with two, the values of both come second.
    fn name_elements(&mut self, fold: &'e Fold) {
        let (entries, place) = (self.entries(&fold.range), self.place(&fold.range));
        let list = entries.map_or_else(|| matches!(self.kind(&fold.range), Type::List(_)), |entries| entries.list);
        let key = (if list { Step::Indices } else { Step::Keys }, entries.map(|entries| entries.key));
        let value = (Step::Items, entries.map(|entries| entries.value));
        let steps = match &fold.second {
            Some(second) => vec![(&fold.variable, key), (second, value)],
            None => vec![(&fold.variable, if list { value } else { key })],
        };
        for (name, (step, size)) in steps {
            let known = Known { size, entries: None, place: place.child(step, self.declared) };
            self.locals.push(Local { name, known });
        }
    }
}

/// The size that the text of an expression tells.
fn written(expr: &Expr) -> Option<Range> {
    let size = match &expr.kind {
        Kind::Literal(Value::String(text)) => text.chars().count(),
        Kind::Literal(Value::Bytes(bytes)) => bytes.len(),
        Kind::Literal(_) => 1,
        Kind::List(items) => items.len(),
        Kind::Map(entries) => entries.len(),
        _ => return None,
    };
    Some(Range::exactly(size as u64))
}

/// Whether all values of a type are equally large.
fn is_scalar(kind: &Type) -> bool {
    match kind {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}

/// A fold over nothing whose accumulator has a name of the expression's own.
fn is_bind(fold: &Fold) -> bool {
    matches!(&fold.range.kind, Kind::List(items) if items.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Value::Bool(false)))
        && fold.accumulator != ACCUMULATOR
}
