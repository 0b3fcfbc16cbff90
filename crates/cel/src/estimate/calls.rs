//! Calls: the operators that evaluate a part of their operands, and functions by the rules of the forms that may apply.

use super::Estimator;
use crate::check::Resolved;
use crate::cost_rule::{Guess, Operand, Operands, Place, Range, Step};
use crate::syntax::ast::Expr;
use crate::typing::Type;

impl<'e> Estimator<'e> {
    pub(super) fn call(&mut self, expr: &Expr, name: &str, target: Option<&'e Expr>, arguments: &'e [Expr]) -> Range {
        match (name, arguments) {
            ("_&&_" | "_||_", [first, rest @ ..]) => self.logic(first, rest),
            ("_?_:_", [condition, yes, no]) => self.conditional(expr, condition, yes, no),
            ("_[_]", [operand, index]) => self.index(expr, operand, index),
            ("_[?_]", [operand, index]) => self.cost(operand).plus(self.cost(index)).plus(Range::ONE),
            ("dyn", [argument]) => {
                let cost = self.cost(argument).plus(Range::ONE);
                let (size, entries) = (self.size(argument), self.entries(argument));
                let known = &mut self.known[expr.id];
                (known.size, known.entries) = (size, entries);
                cost
            }
            _ => self.function(expr, name, target, arguments),
        }
    }

    /// The first side may decide.
    fn logic(&mut self, first: &'e Expr, rest: &'e [Expr]) -> Range {
        let first = self.cost(first);
        let most = rest.iter().fold(first, |sum, term| sum.plus(self.cost(term))).most;
        Range { least: first.least, most }
    }

    fn conditional(&mut self, expr: &Expr, condition: &'e Expr, yes: &'e Expr, no: &'e Expr) -> Range {
        let cost = self.cost(condition).plus(self.cost(yes).joined(self.cost(no)));
        let size = self.size_or_unknown(yes).joined(self.size_or_unknown(no));
        let entries = self.entries(yes).zip(self.entries(no)).map(|(yes, no)| yes.joined(no));
        let known = &mut self.known[expr.id];
        (known.size, known.entries) = (Some(size), entries);
        cost
    }

    fn index(&mut self, expr: &Expr, operand: &'e Expr, index: &'e Expr) -> Range {
        let cost = self.cost(operand).plus(self.cost(index)).plus(Range::ONE);
        let place = match self.kind(operand) {
            Type::Optional(_) => Place::Nowhere,
            _ => self.place(operand).child(Step::Items, self.declared),
        };
        let size = self.entries(operand).map(|entries| entries.value);
        let known = &mut self.known[expr.id];
        (known.size, known.place) = (size, place);
        cost
    }

    fn function(&mut self, expr: &Expr, name: &str, target: Option<&'e Expr>, arguments: &'e [Expr]) -> Range {
        let facts = self.facts;
        let Some(Resolved { forms, member }) = facts.call(expr) else {
            return arguments.iter().fold(Range::ONE, |sum, argument| sum.plus(self.cost(argument)));
        };
        // The part in front may belong to the name, and costs nothing then.
        let given: Vec<&'e Expr> = target.filter(|_| *member).into_iter().chain(arguments).collect();
        let parts = given.iter().fold(Range::default(), |sum, operand| sum.plus(self.cost(operand)));
        let all = given.iter().map(|operand| Operand {
            kind: self.kind(operand),
            size: self.size(operand),
            place: self.place(operand),
            expr: operand,
        });
        let operands = Operands { all: all.collect(), declared: self.declared };
        let guesses = forms.iter().map(|form| (self.functions.overloads[*form].estimate)(&operands));
        let joined = guesses.reduce(|a, b| Guess {
            cost: a.cost.joined(b.cost),
            size: a.size.zip(b.size).map(|(a, b)| a.joined(b)).or(a.size).or(b.size),
        });
        let guess = joined.unwrap_or(Guess::costs(Range::ONE));
        self.known[expr.id].size = guess.size;
        if let ("_+_", Some(_), [left, right]) = (name, guess.size, &given[..]) {
            let entries = self.entries(left).zip(self.entries(right));
            self.known[expr.id].entries = entries.map(|(left, right)| left.joined(right));
        }
        parts.plus(guess.cost)
    }
}
