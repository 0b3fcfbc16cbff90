//! The order of values, membership, and what compares whole values.

use std::cmp::Ordering;

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::typing::Type;
use crate::value::{Value, compare, equal};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

/// The forms of one comparison: two of one type that has an order, or two numbers.
macro_rules! ordered {
    ($name:literal, $run:ident) => {
        Library {
            functions: &[
                function(concat!($name, "(bool, bool): bool"), $run),
                function(concat!($name, "(int, int): bool"), $run),
                function(concat!($name, "(int, double): bool"), $run),
                function(concat!($name, "(int, uint): bool"), $run),
                function(concat!($name, "(uint, uint): bool"), $run),
                function(concat!($name, "(uint, double): bool"), $run),
                function(concat!($name, "(uint, int): bool"), $run),
                function(concat!($name, "(double, double): bool"), $run),
                function(concat!($name, "(double, int): bool"), $run),
                function(concat!($name, "(double, uint): bool"), $run),
                function(concat!($name, "(string, string): bool"), $run)
                    .costs(cost::smaller)
                    .estimated(estimate::comparison),
                function(concat!($name, "(bytes, bytes): bool"), $run)
                    .costs(cost::smaller)
                    .estimated(estimate::comparison),
                function(concat!($name, "(timestamp, timestamp): bool"), $run),
                function(concat!($name, "(duration, duration): bool"), $run),
            ],
            types: &[],
        }
    };
}

pub(super) const LESS: Library = ordered!("_<_", less);
pub(super) const LESS_OR_EQUAL: Library = ordered!("_<=_", less_or_equal);
pub(super) const GREATER: Library = ordered!("_>_", greater);
pub(super) const GREATER_OR_EQUAL: Library = ordered!("_>=_", greater_or_equal);

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("_==_(A, A): bool", same).costs(cost::smaller).estimated(estimate::equality),
        function("_!=_(A, A): bool", different).costs(cost::smaller).estimated(estimate::comparison),
        function("@in(A, list<A>): bool", in_list).costs(cost::second_size).estimated(estimate::membership),
        function("@in(A, map<A, B>): bool", in_map),
        // Their evaluation is the evaluator's own; here they have a signature for messages.
        function("optional<V>::or(optional<V>): optional<V>", unreachable),
        function("optional<V>::orValue(V): V", unreachable),
    ],
    types: &[
        ("bool", Type::Bool),
        ("int", Type::Int),
        ("uint", Type::Uint),
        ("double", Type::Double),
        ("string", Type::String),
        ("bytes", Type::Bytes),
        ("null_type", Type::Null),
        ("google.protobuf.Timestamp", Type::Timestamp),
        ("google.protobuf.Duration", Type::Duration),
    ],
};

fn unreachable<'a>(_: &mut Call<'_>, _: &[Value<'a>]) -> Outcome<'a> {
    Err(EvaluationError::no_such_overload())
}

/// NaN is neither less nor greater; values without an order are a mistake.
fn ordered<'a>(given: &[Value<'_>], holds: fn(Ordering) -> bool) -> Outcome<'a> {
    let [a, b] = given else { return Err(EvaluationError::no_such_overload()) };
    Ok(Value::Bool(compare(a, b).is_some_and(holds)))
}

fn less<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    ordered(given, Ordering::is_lt)
}

fn less_or_equal<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    ordered(given, Ordering::is_le)
}

fn greater<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    ordered(given, Ordering::is_gt)
}

fn greater_or_equal<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    ordered(given, Ordering::is_ge)
}

fn same<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    equal(&given[0], &given[1], call.budget).map(Value::Bool)
}

fn different<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    equal(&given[0], &given[1], call.budget).map(|e| Value::Bool(!e))
}

fn in_list<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let [item, Value::List(list)] = given else { return Err(EvaluationError::no_such_overload()) };
    for other in list.iter() {
        if equal(item, &other, call.budget)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn in_map<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let [key, Value::Map(map)] = given else { return Err(EvaluationError::no_such_overload()) };
    map.has(key).map(Value::Bool)
}
