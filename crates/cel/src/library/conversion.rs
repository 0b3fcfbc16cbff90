//! From one type to another. A value that does not fit is an error, never a different value.

use super::cost;
use super::time::{self, instant, nanos, unreadable};
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::go_number::parse_float;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("bool(bool): bool", itself),
        function("bool(string): bool", to_bool),
        function("bytes(bytes): bytes", itself),
        function("bytes(string): bytes", to_bytes).costs(cost::first).estimated(estimate::to_bytes),
        function("double(double): double", itself),
        function("double(int): double", to_double),
        function("double(uint): double", to_double),
        function("double(string): double", to_double),
        function("int(int): int", itself),
        function("int(uint): int", to_int),
        function("int(double): int", to_int),
        function("int(string): int", to_int),
        function("int(timestamp): int", to_int),
        function("int(duration): int", to_int),
        function("uint(uint): uint", itself),
        function("uint(int): uint", to_uint),
        function("uint(double): uint", to_uint),
        function("uint(string): uint", to_uint),
        function("string(string): string", itself),
        function("string(bool): string", to_string),
        function("string(int): string", to_string),
        function("string(uint): string", to_string),
        function("string(double): string", to_string),
        function("string(bytes): string", to_string).costs(cost::first).estimated(estimate::from_bytes),
        function("string(timestamp): string", to_string),
        function("string(duration): string", to_string),
        function("timestamp(timestamp): timestamp", itself),
        function("timestamp(string): timestamp", to_timestamp),
        function("timestamp(int): timestamp", to_timestamp),
        function("duration(duration): duration", itself),
        function("duration(string): duration", to_duration),
        function("duration(int): duration", to_duration),
        function("dyn(A): dyn", itself),
        function("type(A): type<A>", type_of),
    ],
    types: &[],
};

fn wrong() -> EvaluationError {
    EvaluationError::no_such_overload()
}

fn out_of_range(kind: &str) -> EvaluationError {
    EvaluationError::new(format!("{kind} overflow"))
}

fn itself<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(given[0].clone())
}

fn type_of<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Type(given[0].type_of()))
}

fn to_bool<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given[0].as_str() {
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Value::Bool(true)),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Value::Bool(false)),
        Some(_) => Err(unreadable("bool")),
        None => Err(wrong()),
    }
}

fn to_bytes<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    given[0].as_str().map(|t| Value::Bytes(t.as_bytes().into())).ok_or_else(wrong)
}

fn to_double<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    #[expect(clippy::cast_precision_loss)]
    Ok(Value::Double(match &given[0] {
        Value::Int(i) => *i as f64,
        Value::Uint(u) => *u as f64,
        Value::String(text) => parse_float(text).ok_or_else(|| unreadable("double"))?,
        _ => return Err(wrong()),
    }))
}

/// The bounds are those that a double can hold exactly; the nearest doubles beyond are out.
fn to_int<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    Ok(Value::Int(match &given[0] {
        Value::Uint(u) => i64::try_from(*u).map_err(|_| out_of_range("integer"))?,
        Value::Double(d) if *d > i64::MIN as f64 && *d < i64::MAX as f64 => *d as i64,
        Value::Double(_) => return Err(out_of_range("integer")),
        Value::String(text) => decimal(text).and_then(|t| t.parse().ok()).ok_or_else(|| unreadable("int"))?,
        Value::Timestamp(at) => nanos(*at).div_euclid(time::SECOND.into()) as i64,
        Value::Duration(nanos) => *nanos,
        _ => return Err(wrong()),
    }))
}

/// Digits with a sign, and nothing else.
fn decimal(text: &str) -> Option<&str> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(text)
}

fn to_uint<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let overflow = || out_of_range("unsigned integer");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    Ok(Value::Uint(match &given[0] {
        Value::Int(i) => u64::try_from(*i).map_err(|_| overflow())?,
        Value::Double(d) if *d >= 0.0 && *d < u64::MAX as f64 => *d as u64,
        Value::Double(_) => return Err(overflow()),
        Value::String(text) => {
            let digits = decimal(text).filter(|t| !t.starts_with(['+', '-']));
            digits.and_then(|t| t.parse().ok()).ok_or_else(|| unreadable("uint"))?
        }
        _ => return Err(wrong()),
    }))
}

fn to_string<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::string(match &given[0] {
        Value::Bytes(bytes) => {
            call.making(bytes.len())?;
            let text = String::from_utf8(bytes.to_vec());
            text.map_err(|_| EvaluationError::new("invalid UTF-8 in bytes, cannot convert to string"))?
        }
        Value::Double(d) => double_text(*d),
        Value::Duration(nanos) => time::duration_text(*nanos),
        other => other.to_string(),
    }))
}

/// Go's `%g` with as many digits as are needed.
pub(super) fn double_text(d: f64) -> String {
    if d.is_nan() {
        return "NaN".to_owned();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{d:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if d == 0.0 || (-4..6).contains(&exponent) {
        return format!("{d}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

fn to_timestamp<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match &given[0] {
        Value::Int(seconds) => {
            let at = instant(i128::from(*seconds) * i128::from(time::SECOND));
            at.map(|at| Value::Timestamp(at.into())).ok_or_else(|| out_of_range("timestamp"))
        }
        Value::String(text) => time::parse_timestamp(text).map(Value::Timestamp),
        _ => Err(wrong()),
    }
}

fn to_duration<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match &given[0] {
        Value::Int(nanos) => Ok(Value::Duration(*nanos)),
        Value::String(text) => time::parse_duration(text).map(Value::Duration),
        _ => Err(wrong()),
    }
}
