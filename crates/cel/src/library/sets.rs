//! Lists taken as sets.

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::value::{List, Value, equal};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("sets.contains(list<T>, list<T>): bool", contains).costs(cost::sets).estimated(estimate::sets),
        function("sets.equivalent(list<T>, list<T>): bool", equivalent)
            .costs(cost::sets_both_ways)
            .estimated(estimate::sets_both_ways),
        function("sets.intersects(list<T>, list<T>): bool", intersects).costs(cost::sets).estimated(estimate::sets),
    ],
    types: &[],
};

fn two<'v, 'a>(given: &'v [Value<'a>]) -> Result<(&'v List<'a>, &'v List<'a>), EvaluationError> {
    match given {
        [Value::List(a), Value::List(b)] => Ok((a, b)),
        _ => Err(EvaluationError::no_such_overload()),
    }
}

fn has(call: &mut Call<'_>, list: &List<'_>, item: &Value<'_>) -> Result<bool, EvaluationError> {
    for other in list.iter() {
        if equal(item, &other, call.budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn holds_all(call: &mut Call<'_>, list: &List<'_>, parts: &List<'_>) -> Result<bool, EvaluationError> {
    for item in parts.iter() {
        if !has(call, list, &item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn contains<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (list, parts) = two(given)?;
    holds_all(call, list, parts).map(Value::Bool)
}

fn equivalent<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (a, b) = two(given)?;
    Ok(Value::Bool(holds_all(call, a, b)? && holds_all(call, b, a)?))
}

fn intersects<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (a, b) = two(given)?;
    for item in a.iter() {
        if has(call, b, &item)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
