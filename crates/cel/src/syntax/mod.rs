//! From text to a tree: tokens, grammar, macros.

pub(crate) mod ast;
mod lexer;
mod literal;
mod macros;
mod parser;
mod spelling;

pub(crate) use parser::parse;
pub use parser::{is_identifier, selects};
pub use spelling::{escaped, unescaped};
