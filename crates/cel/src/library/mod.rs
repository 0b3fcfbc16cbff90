//! The functions that every expression may call.

mod arithmetic;
mod comparison;
mod conversion;
pub mod cost;
mod formatting;
mod lists;
mod optional;
mod regular_expression;
pub mod semantic_version;
mod sets;
mod strings;
mod text;
pub mod time;
mod url;

use crate::function::Library;

pub(crate) const STANDARD: &[&Library] = &[
    &arithmetic::LIBRARY,
    &comparison::LESS,
    &comparison::LESS_OR_EQUAL,
    &comparison::GREATER,
    &comparison::GREATER_OR_EQUAL,
    &comparison::LIBRARY,
    &conversion::LIBRARY,
    &text::LIBRARY,
    &time::LIBRARY,
    &optional::LIBRARY,
    &strings::LIBRARY,
    &formatting::LIBRARY,
    &lists::LIBRARY,
    &lists::KUBERNETES,
    &sets::LIBRARY,
    &regular_expression::LIBRARY,
    &url::LIBRARY,
    &semantic_version::LIBRARY,
];
