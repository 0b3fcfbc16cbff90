//! From text to a tree: tokens, grammar, macros.

pub(crate) mod ast;
mod lexer;
mod literal;
mod macros;
mod parser;

pub use parser::is_identifier;
pub(crate) use parser::parse;
