//! Values that may be missing.

use std::sync::Arc;

use super::time::is_zero;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::typing::Type;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("optional.of(V): optional<V>", of),
        function("optional.ofNonZeroValue(V): optional<V>", of_non_zero),
        function("optional.none(): optional<V>", none),
        function("optional<V>::value(): V", value),
        function("optional<V>::hasValue(): bool", has_value),
        function("list<V>::first(): optional<V>", first),
        function("list<V>::last(): optional<V>", last),
        function("optional.unwrap(list<optional<V>>): list<V>", unwrap),
        function("list<optional<V>>::unwrapOpt(): list<V>", unwrap),
    ],
    types: &[("optional_type", Type::Dyn)],
};

fn wrong() -> EvaluationError {
    EvaluationError::no_such_overload()
}

fn of<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::some(given[0].clone()))
}

fn of_non_zero<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let zero = match &given[0] {
        Value::Null
        | Value::Bool(false)
        | Value::Int(0)
        | Value::Uint(0)
        | Value::Duration(0)
        | Value::Optional(None) => true,
        Value::Timestamp(at) => is_zero(*at),
        Value::Double(d) => *d == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Object(made) => made.fields.is_empty(),
        _ => false,
    };
    Ok(if zero { Value::Optional(None) } else { Value::some(given[0].clone()) })
}

fn none<'a>(_: &mut Call<'_>, _: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Optional(None))
}

fn value<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match &given[0] {
        Value::Optional(Some(value)) => Ok((**value).clone()),
        Value::Optional(None) => Err(EvaluationError::new("optional.none() dereference")),
        _ => Err(wrong()),
    }
}

fn has_value<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match &given[0] {
        Value::Optional(inner) => Ok(Value::Bool(inner.is_some())),
        _ => Err(wrong()),
    }
}

fn first<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let Value::List(list) = &given[0] else { return Err(wrong()) };
    Ok(Value::Optional(list.get(0).map(Arc::new)))
}

fn last<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let Value::List(list) = &given[0] else { return Err(wrong()) };
    Ok(Value::Optional(list.len().checked_sub(1).and_then(|at| list.get(at)).map(Arc::new)))
}

fn unwrap<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let Value::List(list) = &given[0] else { return Err(wrong()) };
    call.making(list.len())?;
    call.budget.work(list.len() as u64)?;
    let mut values = Vec::new();
    for item in list.iter() {
        match item {
            Value::Optional(inner) => values.extend(inner.map(|v| (*v).clone())),
            other => return Err(EvaluationError::new(format!("value {other} is not optional"))),
        }
    }
    Ok(Value::list(values))
}
