//! Compiled expressions, and runs of some of them over one input within a budget.

use api::rules::cel::admission::compile;
use cel::{Budget, Composed, Composition, Environment, PER_CALL_LIMIT, Program, Type, Value as Cel};

/// An expression and its program, or why it has none.
pub(super) struct Compiled {
    pub(super) text: String,
    program: Result<Program, String>,
}

impl Compiled {
    pub(super) fn new(environment: &Environment, text: &str, results: &[Type]) -> Self {
        Compiled { text: text.to_owned(), program: compile(environment, text, results) }
    }

    /// Why it cannot be evaluated at all.
    pub(super) fn failure(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }
}

pub(super) const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

#[derive(Debug, Clone, Copy)]
pub(super) struct OutOfBudget;

/// Some expressions over one input, which share variables and a budget.
pub(super) struct Run<'p, 'a> {
    composition: Composition<'p, 'a>,
    pub(super) remaining: u64,
}

impl<'p, 'a> Run<'p, 'a> {
    pub(super) fn new(variables: &'p [Composed], values: cel::Variables<'a>, budget: u64) -> Self {
        Run { composition: Composition::new(variables, values), remaining: budget }
    }

    pub(super) fn evaluate(&mut self, compiled: &Compiled) -> Result<Result<Cel<'a>, String>, OutOfBudget> {
        let program = match &compiled.program {
            Ok(program) => program,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        let mut budget = Budget::new(PER_CALL_LIMIT);
        let result = program.evaluate_with(&self.composition, &mut budget);
        let cost = budget.used().saturating_add(self.composition.take_cost());
        self.remaining = self.remaining.checked_sub(cost).ok_or(OutOfBudget)?;
        Ok(result.map_err(|why| format!("expression '{}' resulted in error: {why}", compiled.text)))
    }
}
