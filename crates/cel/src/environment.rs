//! What a kind of expression may name, and the way from a text to something that runs.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::budget::Budget;
use crate::check::{Declarations, check};
use crate::error::{CompileError, EvaluationError};
use crate::eval::Run;
use crate::function::Library;
use crate::library;
use crate::node::Node;
use crate::syntax::parse;
use crate::typing::Type;
use crate::value::Value;

/// Variables, types and functions of expressions.
#[derive(Clone)]
pub struct Environment {
    declarations: Arc<Declarations>,
}

/// Declares an environment step by step.
pub struct Builder {
    declarations: Declarations,
}

impl Environment {
    /// The language itself, with optionals and the extensions that every version of Kubernetes offers which this one
    /// is compatible with. Kubernetes's own types come as libraries.
    pub fn builder() -> Builder {
        let mut builder = Builder { declarations: Declarations::default() };
        for library in library::STANDARD {
            builder = builder.library(library);
        }
        builder
    }

    /// Compiles an expression whose result must be of this type. `dyn` takes any.
    pub fn compile(&self, text: &str, expected: &Type) -> Result<Program, CompileError> {
        let program = self.compile_any(text)?;
        let found = &program.result;
        if found == expected || found.is_dyn() || expected.is_dyn() {
            return Ok(program);
        }
        Err(CompileError::whole(format!("must evaluate to {expected}")))
    }

    /// Compiles an expression; its result's type is the program's.
    pub fn compile_any(&self, text: &str) -> Result<Program, CompileError> {
        let expr = parse(text)?;
        let (node, result) = check(text, &expr, &self.declarations)?;
        Ok(Program { node, result, declarations: self.declarations.clone() })
    }
}

impl Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("variables", &self.declarations.variables).finish_non_exhaustive()
    }
}

impl Builder {
    #[must_use]
    pub fn library(mut self, library: &Library) -> Self {
        for function in library.functions {
            self.declarations.functions.add(function);
        }
        self.declarations.types.extend(library.types.iter().cloned());
        self
    }

    #[must_use]
    pub fn variable(mut self, name: &str, kind: Type) -> Self {
        self.declarations.variables.push((name.to_owned(), kind));
        self
    }

    /// An object type with its fields; `Type::object(name)` refers to it.
    #[must_use]
    pub fn object(mut self, name: &str, fields: impl IntoIterator<Item = (String, Type)>) -> Self {
        let fields: BTreeMap<String, Type> = fields.into_iter().collect();
        self.declarations.objects.insert(name.to_owned(), fields);
        self
    }

    pub fn build(self) -> Environment {
        Environment { declarations: Arc::new(self.declarations) }
    }
}

/// The values of an evaluation's variables. One that is declared and not set is an error for what uses it.
#[derive(Debug, Default)]
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
    node: Node,
    result: Type,
    declarations: Arc<Declarations>,
}

impl Program {
    pub fn result_type(&self) -> &Type {
        &self.result
    }

    /// Evaluates within the budget, which keeps what the evaluation cost.
    pub fn evaluate<'a>(&self, variables: &Variables<'a>, budget: &mut Budget) -> Result<Value<'a>, EvaluationError> {
        let names = &self.declarations.variables;
        let value = |name: &str| variables.values.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        let values: Vec<Option<Value<'a>>> = names.iter().map(|(name, _)| value(name)).collect();
        let overloads = &self.declarations.functions.overloads;
        Run { overloads, variables: &values, names, slots: Vec::new(), budget }.eval(&self.node)
    }
}

impl Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("result", &self.result).finish_non_exhaustive()
    }
}
