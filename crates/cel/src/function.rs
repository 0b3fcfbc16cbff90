//! Functions as libraries declare them: a signature, what it does, and what a call costs.

use std::collections::HashMap;

use regex::Regex;

use crate::budget::{Budget, LARGEST};
use crate::cost_rule::{Estimate, rules};
use crate::error::EvaluationError;
use crate::go_pattern::compile_pattern;
use crate::typing::Type;
use crate::value::Value;

/// The means of a running call: its budget, and its pattern if that is constant.
pub struct Call<'r> {
    pub budget: &'r mut Budget,
    /// The pattern of the call, when it is constant.
    pub(crate) pattern: Option<&'r Regex>,
}

impl Call<'_> {
    pub(crate) fn with_pattern<T>(&mut self, text: &str, use_it: impl Fn(&Regex) -> T) -> Result<T, EvaluationError> {
        if let Some(constant) = self.pattern {
            return Ok(use_it(constant));
        }
        // Compiling costs work beyond what upstream counts.
        self.budget.work(20_000 + 100 * text.len() as u64)?;
        compile_pattern(text).map(|p| use_it(&p)).map_err(EvaluationError::new)
    }

    /// Asks before something of this size is made.
    pub fn making(&mut self, size: usize) -> Result<(), EvaluationError> {
        if size > LARGEST {
            return Err(EvaluationError::CostLimitExceeded);
        }
        self.budget.work(size as u64 / 8)
    }
}

pub type Implementation = for<'a> fn(&mut Call<'_>, &[Value<'a>]) -> Result<Value<'a>, EvaluationError>;

/// The cost of a call by its arguments and, if it succeeded, its result.
pub type Cost = for<'a> fn(&[Value<'a>], Option<&Value<'a>>) -> u64;

/// One form of a function. The signature reads `receiver::name(argument, …): result` or `name(…): result`; single
/// letters stand for any type, the same one throughout.
#[derive(Clone, Copy)]
pub struct Function {
    pub signature: &'static str,
    pub run: Implementation,
    pub cost: Cost,
    pub estimate: Estimate,
}

/// A function whose calls cost one unit.
pub const fn function(signature: &'static str, run: Implementation) -> Function {
    Function { signature, run, cost: one, estimate: rules::one }
}

impl Function {
    #[must_use]
    pub const fn costs(self, cost: Cost) -> Function {
        Function { cost, ..self }
    }

    /// The rule by which a call's cost and the size of its result are estimated.
    #[must_use]
    pub const fn estimated(self, estimate: Estimate) -> Function {
        Function { estimate, ..self }
    }
}

fn one(_: &[Value<'_>], _: Option<&Value<'_>>) -> u64 {
    1
}

/// A set of functions that belong together.
#[derive(Clone, Copy)]
pub struct Library {
    pub functions: &'static [Function],
    /// Names of types that expressions may write: `type(x) == quantity`.
    pub types: &'static [(&'static str, Type)],
}

/// A function's form with its signature read.
#[derive(Clone)]
pub(crate) struct Overload {
    pub member: bool,
    /// The receiver first.
    pub parameters: Vec<Type>,
    pub result: Type,
    pub run: Implementation,
    pub cost: Cost,
    pub estimate: Estimate,
}

/// All forms of all functions, by name.
#[derive(Default, Clone)]
pub(crate) struct Functions {
    pub by_name: HashMap<&'static str, Vec<usize>>,
    pub overloads: Vec<Overload>,
}

impl Functions {
    pub(crate) fn add(&mut self, function: &Function) {
        let (name, overload) = read(function);
        self.by_name.entry(name).or_default().push(self.overloads.len());
        self.overloads.push(overload);
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }
}

fn read(function: &Function) -> (&'static str, Overload) {
    let signature = function.signature;
    let (receiver, rest) = match signature.split_once("::") {
        Some((receiver, rest)) => (Some(receiver), rest),
        None => (None, signature),
    };
    let (call, result) = rest.rsplit_once("): ").expect("a signature ends with its result");
    let (name, arguments) = call.split_once('(').expect("a signature has arguments");
    let mut parameters: Vec<Type> = receiver.into_iter().map(Type::parse).collect();
    parameters.extend(split(arguments).into_iter().map(Type::parse));
    let Function { run, cost, estimate, .. } = *function;
    (name, Overload { member: receiver.is_some(), parameters, result: Type::parse(result), run, cost, estimate })
}

/// Splits at the commas that are not inside of a type.
fn split(arguments: &'static str) -> Vec<&'static str> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in arguments.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&arguments[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !arguments.is_empty() {
        found.push(&arguments[start..]);
    }
    found
}
