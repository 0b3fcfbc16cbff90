//! The costs of calls, by upstream's rules. Functions that no rule names cost one unit.

use crate::budget::{LIST_COST, matching, traversal, two_traversals};
use crate::value::Value;

type Arguments<'v, 'a> = &'v [Value<'a>];
type Result<'v, 'a> = Option<&'v Value<'a>>;

/// The size of an argument; one if there is none.
pub fn size(arguments: Arguments<'_, '_>, index: usize) -> u64 {
    arguments.get(index).map_or(1, Value::size)
}

/// One walk over a text of this size.
pub fn walk(size: u64) -> u64 {
    traversal(size)
}

/// One walk over the first argument.
pub fn first(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    traversal(size(arguments, 0))
}

/// One walk to read the first argument, and one to write as much.
pub fn first_twice(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    two_traversals(size(arguments, 0))
}

pub(super) fn result_twice(_: Arguments<'_, '_>, result: Result<'_, '_>) -> u64 {
    two_traversals(result.map_or(1, Value::size))
}

pub(super) fn both(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    traversal(size(arguments, 0) + size(arguments, 1))
}

pub(super) fn smaller(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    traversal(size(arguments, 0).min(size(arguments, 1)))
}

pub(super) fn product(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    traversal(size(arguments, 0)).saturating_mul(traversal(size(arguments, 1)))
}

pub(super) fn second_size(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    size(arguments, 1)
}

/// Matching the first argument against the pattern that is the second.
pub(super) fn pattern(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    matching(size(arguments, 0), size(arguments, 1))
}

/// Matching the second argument against a pattern of this size.
pub fn matching_second(arguments: Arguments<'_, '_>, pattern: u64) -> u64 {
    matching(size(arguments, 1), pattern)
}

/// A walk over the first argument with everything in it: one for each scalar, a tenth for each byte of a text.
pub(super) fn deep(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    arguments.first().map_or(0, |value| deep_of(value, 0))
}

fn deep_of(value: &Value<'_>, depth: usize) -> u64 {
    if depth > 300 {
        return 1;
    }
    match value {
        Value::String(text) => text.len() as u64 / 10,
        Value::Bytes(bytes) => bytes.len() as u64 / 10,
        Value::List(list) => list.iter().map(|item| deep_of(&item, depth + 1)).sum(),
        Value::Map(map) => {
            let entry = |key: &Value<'_>| map.get(key).ok().flatten().map_or(0, |v| deep_of(&v, depth + 1));
            map.keys().iter().map(|key| deep_of(key, depth + 1) + entry(key)).sum()
        }
        _ => 1,
    }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn allocating(factor: f64, size: u64) -> u64 {
    ((size as f64 * factor) as u64).saturating_add(1 + LIST_COST)
}

pub(super) fn result_list(_: Arguments<'_, '_>, result: Result<'_, '_>) -> u64 {
    allocating(1.0, result.map_or(1, Value::size))
}

pub(super) fn flatten(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    #[expect(clippy::cast_precision_loss)]
    let depth = match arguments.get(1) {
        Some(Value::Int(depth)) => (*depth).max(0) as f64,
        _ => 1.0,
    };
    allocating(depth, size(arguments, 0))
}

fn with_itself(list: Option<&Value<'_>>) -> u64 {
    let Some(Value::List(list)) = list else { return 1 };
    let texts = matches!(list.get(0), Some(Value::String(_) | Value::Bytes(_)));
    let size = list.len() as u64;
    allocating(if texts { 2.1 } else { 2.0 }, size.saturating_mul(size))
}

pub(super) fn first_with_itself(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    with_itself(arguments.first())
}

pub(super) fn second_with_itself(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    with_itself(arguments.get(1))
}

pub(super) fn sets(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    size(arguments, 0).saturating_mul(size(arguments, 1)).saturating_add(1)
}

pub(super) fn sets_both_ways(arguments: Arguments<'_, '_>, _: Result<'_, '_>) -> u64 {
    size(arguments, 0).saturating_mul(size(arguments, 1)).saturating_mul(2).saturating_add(1)
}
