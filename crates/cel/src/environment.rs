//! The names that a kind of expression may use, and the way from a text to something that runs.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::check::{Declarations, Made, check, check_with_facts};
use crate::error::CompileError;
use crate::estimate::{Declared, Range, estimate};
use crate::eval::Program;
use crate::function::Library;
use crate::library;
use crate::syntax::parse;
use crate::typing::Type;

/// Variables, types and functions of expressions.
#[derive(Clone)]
pub struct Environment {
    declarations: Declarations,
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
        let (functions, names) = (self.declarations.functions.clone(), self.declarations.variables.clone());
        Ok(Program { node, result, functions, names })
    }

    /// Compiles an expression, and says within which bounds its cost stays for the sizes that are declared.
    pub fn compile_estimated(&self, text: &str, declared: Declared<'_>) -> Result<(Program, Range), CompileError> {
        let mut expr = parse(text)?;
        let count = expr.number(0);
        let (node, result, facts) = check_with_facts(text, &expr, count, &self.declarations)?;
        let cost = estimate(&expr, &facts, &self.declarations.functions, declared);
        let (functions, names) = (self.declarations.functions.clone(), self.declarations.variables.clone());
        Ok((Program { node, result, functions, names }, cost))
    }

    /// A builder that begins with all of this environment.
    pub fn extend(&self) -> Builder {
        Builder { declarations: self.declarations.clone() }
    }

    /// Adds a variable that is an expression of its own, behind those that are there. Expressions that are compiled from
    /// now on name it behind the prefix; an evaluation finds it in its composition.
    pub fn compose(&mut self, prefix: &str, name: &str, kind: Type) {
        let (_, composed) = self.declarations.composed.get_or_insert_with(|| (prefix.to_owned(), Vec::new()));
        composed.push((name.to_owned(), kind));
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
            Arc::make_mut(&mut self.declarations.functions).add(function);
        }
        self.declarations.types.extend(library.types.iter().cloned());
        self
    }

    #[must_use]
    pub fn variable(mut self, name: &str, kind: Type) -> Self {
        Arc::make_mut(&mut self.declarations.variables).push((name.to_owned(), kind));
        self
    }

    /// Gives a variable that is there another type.
    #[must_use]
    pub fn retype(mut self, name: &str, kind: Type) -> Self {
        let variables = Arc::make_mut(&mut self.declarations.variables);
        if let Some((_, known)) = variables.iter_mut().find(|(n, _)| n == name) {
            *known = kind;
        }
        self
    }

    /// An object type with its fields; `Type::object(name)` refers to it.
    #[must_use]
    pub fn object(mut self, name: &str, fields: impl IntoIterator<Item = (String, Type)>) -> Self {
        let fields: BTreeMap<String, Type> = fields.into_iter().collect();
        self.declarations.objects.insert(name.to_owned(), fields);
        self
    }

    /// An object type with its fields that expressions can make objects of: `Name{field: 1}`.
    #[must_use]
    pub fn made(mut self, name: &str, fields: impl IntoIterator<Item = (String, Type)>) -> Self {
        self.declarations.made.push(Made { name: name.to_owned(), open: false });
        self.object(name, fields)
    }

    /// A type that expressions can make objects of, and with it every type whose name goes on behind it with a dot:
    /// `Name.a.b{c: 1}`. All have whatever fields an expression gives them.
    #[must_use]
    pub fn made_openly(mut self, name: &str) -> Self {
        self.declarations.made.push(Made { name: name.to_owned(), open: true });
        self
    }

    /// Lets expressions select keys of maps that are no names by their spelling, as upstream's do with what comes as JSON.
    #[must_use]
    pub fn spelled(mut self) -> Self {
        self.declarations.spelled = true;
        self
    }

    pub fn build(self) -> Environment {
        Environment { declarations: self.declarations }
    }
}
