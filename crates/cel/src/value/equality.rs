//! Which values are equal, and which of two comes first. Numbers are compared by their mathematical value whatever
//! their types are; values of other types that differ are simply not equal.

use std::cmp::Ordering;

use super::{List, Value};
use crate::budget::Budget;
use crate::error::EvaluationError;

/// Lists and objects are compared to this depth; JSON is not accepted deeper than that.
const DEEPEST: usize = 300;

pub fn equal(a: &Value<'_>, b: &Value<'_>, budget: &mut Budget) -> Result<bool, EvaluationError> {
    equal_at(a, b, budget, 0)
}

fn equal_at(a: &Value<'_>, b: &Value<'_>, budget: &mut Budget, depth: usize) -> Result<bool, EvaluationError> {
    if depth > DEEPEST {
        return Err(EvaluationError::new("values are nested too deeply to be compared"));
    }
    budget.work(1)?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => {
            budget.work(a.len().min(b.len()) as u64 / 64)?;
            a == b
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.work(a.len().min(b.len()) as u64 / 64)?;
            a == b
        }
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a.to_string() == b.to_string(),
        (Value::Opaque(a), Value::Opaque(b)) => a.type_name() == b.type_name() && a.equals(&**b),
        (Value::Object(a), Value::Object(b)) => {
            if a.name != b.name || a.fields.len() != b.fields.len() {
                return Ok(false);
            }
            for (field, a) in &a.fields {
                let Some(b) = b.get(field) else { return Ok(false) };
                if !equal_at(a, b, budget, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => equal_at(a, b, budget, depth + 1)?,
        (Value::List(a), Value::List(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            // The left one decides, as upstream.
            if let List::Associative(a) = a {
                budget.work(a.items.len() as u64)?;
                return a.equals(b, |a, b| equal_at(a, b, budget, depth + 1));
            }
            for (a, b) in a.iter().zip(b.iter()) {
                if !equal_at(&a, &b, budget, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(a), Value::Map(b)) => {
            let keys = a.keys();
            if a.len() != b.len() || keys.len() < a.len() {
                return Ok(false);
            }
            for key in keys {
                let (Some(a), Some(b)) = (a.get(&key)?, b.get(&key)?) else { return Ok(false) };
                if !equal_at(&a, &b, budget, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (a, b) => numbers(a, b) == Some(Some(Ordering::Equal)),
    })
}

/// The order of two numbers: `None` if one is no number, `Some(None)` if one is not a number in the other sense.
fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Option<Ordering>> {
    let whole = |v: &Value<'_>| match v {
        Value::Int(i) => Some(i128::from(*i)),
        Value::Uint(u) => Some(i128::from(*u)),
        _ => None,
    };
    Some(match (a, b) {
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Double(a), b) => whole_and_double(whole(b)?, *a).map(Ordering::reverse),
        (a, Value::Double(b)) => whole_and_double(whole(a)?, *b),
        (a, b) => Some(whole(a)?.cmp(&whole(b)?)),
    })
}

fn whole_and_double(whole: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    #[expect(clippy::cast_possible_truncation)]
    let floor = double.floor() as i128;
    let fraction = if double.fract() == 0.0 { Ordering::Equal } else { Ordering::Less };
    Some(whole.cmp(&floor).then(fraction))
}

/// The order of two values that have one; `None` when they have not.
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
        (a, b) => numbers(a, b).flatten(),
    }
}
