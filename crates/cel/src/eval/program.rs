//! Compiled expressions and their input. Some variables are expressions of their own: these are evaluated when they are
//! first asked for, with a budget each, and at most once.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Debug};
use std::sync::Arc;

use super::{Outcome, Run};
use crate::budget::{Budget, PER_CALL_LIMIT};
use crate::error::EvaluationError;
use crate::function::Functions;
use crate::node::Node;
use crate::typing::Type;
use crate::value::Value;

/// The values of an evaluation's variables. One that is declared and not set is an error for what uses it.
#[derive(Debug, Default, Clone)]
pub struct Variables<'a> {
    values: Vec<(&'a str, Value<'a>)>,
}

impl<'a> Variables<'a> {
    pub fn new() -> Self {
        Variables::default()
    }

    #[must_use]
    pub fn with(mut self, name: &'a str, value: Value<'a>) -> Self {
        self.values.push((name, value));
        self
    }
}

/// A compiled expression. It can be evaluated any number of times, from any thread.
#[derive(Clone)]
pub struct Program {
    pub(crate) node: Node,
    pub(crate) result: Type,
    pub(crate) functions: Arc<Functions>,
    /// The variables by their numbers.
    pub(crate) names: Arc<Vec<(String, Type)>>,
}

impl Program {
    pub fn result_type(&self) -> &Type {
        &self.result
    }

    /// Evaluates within the budget, which keeps what the evaluation cost.
    pub fn evaluate<'a>(&self, variables: &Variables<'a>, budget: &mut Budget) -> Outcome<'a> {
        self.run(variables, None, budget, 0)
    }

    /// Evaluates an expression that may use composed variables. Their cost is asked of the composition.
    pub fn evaluate_with<'a>(&self, composition: &Composition<'_, 'a>, budget: &mut Budget) -> Outcome<'a> {
        self.run(&composition.variables, Some(composition), budget, 0)
    }

    fn run<'a>(
        &self,
        variables: &Variables<'a>,
        composition: Option<&Composition<'_, 'a>>,
        budget: &mut Budget,
        depth: usize,
    ) -> Outcome<'a> {
        let value = |name: &str| variables.values.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        let values: Vec<Option<Value<'a>>> = self.names.iter().map(|(name, _)| value(name)).collect();
        let (overloads, names) = (&self.functions.overloads[..], &self.names[..]);
        let slots = Vec::new();
        Run { overloads, variables: &values, names, slots, budget, composition, depth }.eval(&self.node)
    }
}

impl Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("result", &self.result).finish_non_exhaustive()
    }
}

/// A composed variable: its name, and its program or why there is none.
pub type Composed = (String, Result<Program, String>);

/// The composed variables of a few evaluations over the same input.
pub struct Composition<'p, 'a> {
    programs: &'p [Composed],
    variables: Variables<'a>,
    values: RefCell<Vec<Option<Outcome<'a>>>>,
    spent: Cell<u64>,
}

impl<'p, 'a> Composition<'p, 'a> {
    pub fn new(programs: &'p [Composed], variables: Variables<'a>) -> Self {
        let values = RefCell::new(vec![None; programs.len()]);
        Composition { programs, variables, values, spent: Cell::new(0) }
    }

    /// The cost of evaluating the variables since this was last asked.
    pub fn take_cost(&self) -> u64 {
        self.spent.take()
    }

    pub(super) fn value(&self, number: usize, depth: usize) -> Outcome<'a> {
        if let Some(known) = self.values.borrow().get(number).cloned().flatten() {
            return known;
        }
        let Some((name, program)) = self.programs.get(number) else {
            return Err(EvaluationError::no_such_key(number));
        };
        let outcome = match program {
            Err(why) => Err(EvaluationError::new(format!("composited variable {name:?} fails to compile: {why}"))),
            Ok(program) => {
                let mut budget = Budget::new(PER_CALL_LIMIT);
                let outcome = program.run(&self.variables, Some(self), &mut budget, depth);
                self.spent.set(self.spent.get().saturating_add(budget.used()));
                let failed = |why| format!("composited variable {name:?} fails to evaluate: {why}");
                outcome.map_err(|why| EvaluationError::new(failed(why)))
            }
        };
        self.values.borrow_mut()[number] = Some(outcome.clone());
        outcome
    }
}
