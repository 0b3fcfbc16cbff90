//! `+ - * / %`, the signs, and what joins texts and lists. Numbers never wrap around.

use super::cost;
use super::time::{instant, nanos};
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::value::{List, Moment, Text, Value, equal};

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("_+_(int, int): int", int),
        function("_+_(uint, uint): uint", uint),
        function("_+_(double, double): double", double),
        function("_+_(string, string): string", join_texts).costs(cost::both).estimated(estimate::joined_texts),
        function("_+_(bytes, bytes): bytes", join_bytes).costs(cost::both).estimated(estimate::joined_texts),
        function("_+_(list<A>, list<A>): list<A>", join_lists).estimated(estimate::joined_lists),
        function("_+_(timestamp, duration): timestamp", later),
        function("_+_(duration, timestamp): timestamp", later),
        function("_+_(duration, duration): duration", longer),
        function("_-_(int, int): int", int_minus),
        function("_-_(uint, uint): uint", uint_minus),
        function("_-_(double, double): double", double_minus),
        function("_-_(timestamp, timestamp): duration", between),
        function("_-_(timestamp, duration): timestamp", earlier),
        function("_-_(duration, duration): duration", shorter),
        function("_*_(int, int): int", int_times),
        function("_*_(uint, uint): uint", uint_times),
        function("_*_(double, double): double", double_times),
        function("_/_(int, int): int", int_over),
        function("_/_(uint, uint): uint", uint_over),
        function("_/_(double, double): double", double_over),
        function("_%_(int, int): int", int_rest),
        function("_%_(uint, uint): uint", uint_rest),
        function("-_(int): int", negated),
        function("-_(double): double", negated),
        function("!_(bool): bool", not),
        function("cel.@mapInsert(map<K, V>, K, V): map<K, V>", map_insert),
        function("cel.@mapInsert(map<K, V>, map<K, V>): map<K, V>", map_insert),
    ],
    types: &[],
};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

fn failed(message: &str) -> EvaluationError {
    EvaluationError::new(message)
}

fn wrong() -> EvaluationError {
    EvaluationError::no_such_overload()
}

fn ints(arguments: &[Value<'_>]) -> Result<(i64, i64), EvaluationError> {
    match arguments {
        [Value::Int(a), Value::Int(b)] => Ok((*a, *b)),
        _ => Err(wrong()),
    }
}

fn uints(arguments: &[Value<'_>]) -> Result<(u64, u64), EvaluationError> {
    match arguments {
        [Value::Uint(a), Value::Uint(b)] => Ok((*a, *b)),
        _ => Err(wrong()),
    }
}

fn doubles(arguments: &[Value<'_>]) -> Result<(f64, f64), EvaluationError> {
    match arguments {
        [Value::Double(a), Value::Double(b)] => Ok((*a, *b)),
        _ => Err(wrong()),
    }
}

fn whole<'a>(result: Option<i64>) -> Outcome<'a> {
    result.map(Value::Int).ok_or_else(|| failed("integer overflow"))
}

fn natural<'a>(result: Option<u64>) -> Outcome<'a> {
    result.map(Value::Uint).ok_or_else(|| failed("unsigned integer overflow"))
}

fn int<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    ints(given).and_then(|(a, b)| whole(a.checked_add(b)))
}

fn int_minus<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    ints(given).and_then(|(a, b)| whole(a.checked_sub(b)))
}

fn int_times<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    ints(given).and_then(|(a, b)| whole(a.checked_mul(b)))
}

fn int_over<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match ints(given)? {
        (_, 0) => Err(failed("division by zero")),
        (a, b) => whole(a.checked_div(b)),
    }
}

fn int_rest<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match ints(given)? {
        (_, 0) => Err(failed("modulus by zero")),
        (a, b) => whole(a.checked_rem(b)),
    }
}

fn uint<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    uints(given).and_then(|(a, b)| natural(a.checked_add(b)))
}

fn uint_minus<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    uints(given).and_then(|(a, b)| natural(a.checked_sub(b)))
}

fn uint_times<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    uints(given).and_then(|(a, b)| natural(a.checked_mul(b)))
}

fn uint_over<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (a, b) = uints(given)?;
    a.checked_div(b).map(Value::Uint).ok_or_else(|| failed("division by zero"))
}

fn uint_rest<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (a, b) = uints(given)?;
    a.checked_rem(b).map(Value::Uint).ok_or_else(|| failed("modulus by zero"))
}

fn double<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    doubles(given).map(|(a, b)| Value::Double(a + b))
}

fn double_minus<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    doubles(given).map(|(a, b)| Value::Double(a - b))
}

fn double_times<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    doubles(given).map(|(a, b)| Value::Double(a * b))
}

fn double_over<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    doubles(given).map(|(a, b)| Value::Double(a / b))
}

fn negated<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given {
        [Value::Int(i)] => whole(i.checked_neg()),
        [Value::Double(d)] => Ok(Value::Double(-d)),
        _ => Err(wrong()),
    }
}

fn not<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given {
        [Value::Bool(b)] => Ok(Value::Bool(!b)),
        _ => Err(wrong()),
    }
}

fn join_texts<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(a), Value::String(b)] = given else { return Err(wrong()) };
    call.making(a.len() + b.len())?;
    Ok(Value::String(Text::from(format!("{}{}", &**a, &**b))))
}

fn join_bytes<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Bytes(a), Value::Bytes(b)] = given else { return Err(wrong()) };
    call.making(a.len() + b.len())?;
    Ok(Value::Bytes([&a[..], &b[..]].concat().into()))
}

fn join_lists<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(a), Value::List(b)] = given else { return Err(wrong()) };
    // One unit is the cost of a join of any size, so what is copied counts as work.
    call.making(a.len() + b.len())?;
    call.budget.work((a.len() + b.len()) as u64)?;
    if let List::Associative(a) = a {
        return a.join(b, |a, b| equal(a, b, call.budget)).map(Value::List);
    }
    let items: Vec<Value<'a>> = List::iter(a).chain(b.iter()).collect();
    Ok(Value::list(items))
}

fn length<'a>(result: Option<i64>) -> Outcome<'a> {
    result.map(Value::Duration).ok_or_else(|| failed("duration overflow"))
}

fn longer<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given {
        [Value::Duration(a), Value::Duration(b)] => length(a.checked_add(*b)),
        _ => Err(wrong()),
    }
}

fn shorter<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given {
        [Value::Duration(a), Value::Duration(b)] => length(a.checked_sub(*b)),
        _ => Err(wrong()),
    }
}

fn moved<'a>(from: Moment, by: i128) -> Outcome<'a> {
    let at = instant(nanos(from) + by).ok_or_else(|| failed("timestamp overflow"))?;
    Ok(Value::Timestamp(from.moved_to(at)))
}

fn later<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given {
        [Value::Timestamp(at), Value::Duration(by)] | [Value::Duration(by), Value::Timestamp(at)] => {
            moved(*at, i128::from(*by))
        }
        _ => Err(wrong()),
    }
}

fn earlier<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given {
        [Value::Timestamp(at), Value::Duration(by)] => moved(*at, -i128::from(*by)),
        _ => Err(wrong()),
    }
}

fn between<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given {
        [Value::Timestamp(a), Value::Timestamp(b)] => length(i64::try_from(nanos(*a) - nanos(*b)).ok()),
        _ => Err(wrong()),
    }
}

/// The steps of folds add to their maps in place; this is for the call itself.
fn map_insert<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given {
        [Value::Map(map), key, value] => map.clone().insert(key.clone(), value.clone()).map(Value::Map),
        [Value::Map(map), Value::Map(more)] => {
            let mut map = map.clone();
            for key in more.keys() {
                call.budget.work(1)?;
                let value = more.get(&key)?.unwrap_or(Value::Null);
                map = map.insert(key, value)?;
            }
            Ok(Value::Map(map))
        }
        _ => Err(wrong()),
    }
}
