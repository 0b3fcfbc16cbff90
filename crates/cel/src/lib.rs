//! The Common Expression Language as Kubernetes uses it: text → tree → checked program → value, with upstream's costs.
//!
//! The language is written here and not taken from the crate `cel`: that one checks no types, accounts for no costs
//! and copies its input, and these three are what makes expressions of users safe to run in an API server.
//!
//! `Environment` declares what an expression may name, `Program` is a compiled one, `Budget` bounds its evaluation.
//! This crate is below all others of ours. Types of Kubernetes that have rules elsewhere (quantities, addresses, names)
//! are libraries that `api` adds: see `rules/cel` there.
//!
//! `estimate` says before anything is evaluated what an expression can cost at the most.

mod budget;
mod check;
mod cost_rule;
mod environment;
mod error;
pub mod estimate;
mod eval;
mod function;
mod go_class;
mod go_escape;
mod go_number;
mod go_pattern;
mod go_property;
mod go_url;
mod library;
mod node;
mod syntax;
mod typing;
mod value;

pub use budget::{Budget, PER_CALL_LIMIT};
pub use environment::{Builder, Environment};
pub use error::{CompileError, EvaluationError, Issue};
pub use eval::{Composed, Composition, Program, Variables};
pub use function::{Call, Cost, Function, Implementation, Library, function};
pub use go_pattern::compile_pattern;
pub use go_url::check_uri;
pub use library::{cost, semantic_version::semver, time::timestamp};
pub use syntax::{escaped, is_identifier, selects, unescaped};
pub use typing::Type;
pub use value::{Key, List, Lookup, Made, Map, Moment, Opaque, Text, Value, compare, equal};
