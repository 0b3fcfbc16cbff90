//! The language's own functions on texts, and the sizes of things.

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("size(string): int", size),
        function("size(bytes): int", size),
        function("size(list<A>): int", size),
        function("size(map<A, B>): int", size),
        function("string::size(): int", size),
        function("bytes::size(): int", size),
        function("list<A>::size(): int", size),
        function("map<A, B>::size(): int", size),
        function("string::contains(string): bool", contains).costs(cost::product).estimated(estimate::containment),
        function("string::startsWith(string): bool", starts_with).costs(cost::first).estimated(estimate::second),
        function("string::endsWith(string): bool", ends_with).costs(cost::first).estimated(estimate::second),
        function("string::matches(string): bool", matches).costs(cost::pattern).estimated(estimate::matching),
        function("matches(string, string): bool", matches).costs(cost::pattern),
    ],
    types: &[],
};

fn size<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Int(i64::try_from(given[0].size()).unwrap_or(i64::MAX)))
}

/// Two texts, as most functions of texts take them.
fn two<'v>(given: &'v [Value<'_>]) -> Result<(&'v str, &'v str), EvaluationError> {
    match given {
        [Value::String(a), Value::String(b)] => Ok((a, b)),
        _ => Err(EvaluationError::no_such_overload()),
    }
}

fn contains<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    two(given).map(|(text, part)| Value::Bool(text.contains(part)))
}

fn starts_with<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    two(given).map(|(text, part)| Value::Bool(text.starts_with(part)))
}

fn ends_with<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    two(given).map(|(text, part)| Value::Bool(text.ends_with(part)))
}

fn matches<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, pattern) = two(given)?;
    call.with_pattern(pattern, |p| p.is_match(text)).map(Value::Bool)
}
