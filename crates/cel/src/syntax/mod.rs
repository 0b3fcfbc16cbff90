//! From text to a tree: tokens, grammar, macros.

pub(crate) mod ast;
mod lexer;
mod literal;
mod macros;
mod parser;

pub(crate) use parser::parse;
pub use parser::{is_identifier, selects};
