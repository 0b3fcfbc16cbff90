//! Kubernetes's functions that find parts of texts.

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("string::find(string): string", find).costs(cost::pattern).estimated(estimate::found),
        function("string::findAll(string): list<string>", find_all).costs(cost::pattern).estimated(estimate::found),
        function("string::findAll(string, int): list<string>", find_all)
            .costs(cost::pattern)
            .estimated(estimate::found),
    ],
    types: &[],
};

fn two<'v>(given: &'v [Value<'_>]) -> Result<(&'v str, &'v str), EvaluationError> {
    match given {
        [Value::String(a), Value::String(b), ..] => Ok((a, b)),
        _ => Err(EvaluationError::no_such_overload()),
    }
}

fn find<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, pattern) = two(given)?;
    let found = call.with_pattern(pattern, |p| p.find(text).map(|m| m.as_str().to_owned()))?;
    Ok(Value::string(found.unwrap_or_default()))
}

/// A negative number means all.
fn find_all<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, pattern) = two(given)?;
    let most = match given.get(2) {
        Some(Value::Int(most)) => usize::try_from(*most).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    call.making(text.len().saturating_mul(8))?;
    let found =
        |p: &regex::Regex| -> Vec<String> { p.find_iter(text).take(most).map(|m| m.as_str().to_owned()).collect() };
    let found = call.with_pattern(pattern, found)?;
    Ok(Value::list(found.into_iter().map(Value::string).collect()))
}
