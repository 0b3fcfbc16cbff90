//! Functions of lists: cel-go's extension, and those that Kubernetes had before.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::value::{Key, List, Value, compare, equal};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("list<T>::slice(int, int): list<T>", slice).costs(cost::result_list).estimated(estimate::slice),
        function("list<list<T>>::flatten(): list<T>", flatten).costs(cost::flatten).estimated(estimate::flattened),
        function("list<dyn>::flatten(int): list<dyn>", flatten).costs(cost::flatten).estimated(estimate::flattened),
        function("list<int>::sort(): list<int>", sort).costs(cost::first_with_itself).estimated(estimate::first_sorted),
        function("list<uint>::sort(): list<uint>", sort)
            .costs(cost::first_with_itself)
            .estimated(estimate::first_sorted),
        function("list<double>::sort(): list<double>", sort)
            .costs(cost::first_with_itself)
            .estimated(estimate::first_sorted),
        function("list<bool>::sort(): list<bool>", sort)
            .costs(cost::first_with_itself)
            .estimated(estimate::first_sorted),
        function("list<duration>::sort(): list<duration>", sort)
            .costs(cost::first_with_itself)
            .estimated(estimate::first_sorted),
        function("list<timestamp>::sort(): list<timestamp>", sort)
            .costs(cost::first_with_itself)
            .estimated(estimate::first_sorted),
        function("list<string>::sort(): list<string>", sort)
            .costs(cost::first_with_itself)
            .estimated(estimate::first_sorted),
        function("list<bytes>::sort(): list<bytes>", sort)
            .costs(cost::first_with_itself)
            .estimated(estimate::first_sorted),
        function("list<T>::@sortByAssociatedKeys(list<int>): list<T>", sort)
            .costs(cost::second_with_itself)
            .estimated(estimate::second_sorted),
        function("list<T>::@sortByAssociatedKeys(list<uint>): list<T>", sort)
            .costs(cost::second_with_itself)
            .estimated(estimate::second_sorted),
        function("list<T>::@sortByAssociatedKeys(list<double>): list<T>", sort)
            .costs(cost::second_with_itself)
            .estimated(estimate::second_sorted),
        function("list<T>::@sortByAssociatedKeys(list<bool>): list<T>", sort)
            .costs(cost::second_with_itself)
            .estimated(estimate::second_sorted),
        function("list<T>::@sortByAssociatedKeys(list<duration>): list<T>", sort)
            .costs(cost::second_with_itself)
            .estimated(estimate::second_sorted),
        function("list<T>::@sortByAssociatedKeys(list<timestamp>): list<T>", sort)
            .costs(cost::second_with_itself)
            .estimated(estimate::second_sorted),
        function("list<T>::@sortByAssociatedKeys(list<string>): list<T>", sort)
            .costs(cost::second_with_itself)
            .estimated(estimate::second_sorted),
        function("list<T>::@sortByAssociatedKeys(list<bytes>): list<T>", sort)
            .costs(cost::second_with_itself)
            .estimated(estimate::second_sorted),
        function("lists.range(int): list<int>", range).costs(cost::result_list).estimated(estimate::range),
        function("list<T>::reverse(): list<T>", reverse).costs(cost::result_list).estimated(estimate::copied),
        function("list<T>::distinct(): list<T>", distinct).costs(cost::first_with_itself).estimated(estimate::distinct),
    ],
    types: &[],
};

pub(super) const KUBERNETES: Library = Library {
    functions: &[
        function("list<int>::isSorted(): bool", is_sorted).costs(cost::deep).estimated(estimate::searched),
        function("list<uint>::isSorted(): bool", is_sorted).costs(cost::deep).estimated(estimate::searched),
        function("list<double>::isSorted(): bool", is_sorted).costs(cost::deep).estimated(estimate::searched),
        function("list<bool>::isSorted(): bool", is_sorted).costs(cost::deep).estimated(estimate::searched),
        function("list<duration>::isSorted(): bool", is_sorted).costs(cost::deep).estimated(estimate::searched),
        function("list<timestamp>::isSorted(): bool", is_sorted).costs(cost::deep).estimated(estimate::searched),
        function("list<string>::isSorted(): bool", is_sorted).costs(cost::deep).estimated(estimate::searched),
        function("list<bytes>::isSorted(): bool", is_sorted).costs(cost::deep).estimated(estimate::searched),
        function("list<int>::sum(): int", sum).costs(cost::deep).estimated(estimate::searched),
        function("list<uint>::sum(): uint", sum_uint).costs(cost::deep).estimated(estimate::searched),
        function("list<double>::sum(): double", sum_double).costs(cost::deep).estimated(estimate::searched),
        function("list<duration>::sum(): duration", sum_duration).costs(cost::deep).estimated(estimate::searched),
        function("list<int>::max(): int", max).costs(cost::deep).estimated(estimate::searched),
        function("list<uint>::max(): uint", max).costs(cost::deep).estimated(estimate::searched),
        function("list<double>::max(): double", max).costs(cost::deep).estimated(estimate::searched),
        function("list<bool>::max(): bool", max).costs(cost::deep).estimated(estimate::searched),
        function("list<duration>::max(): duration", max).costs(cost::deep).estimated(estimate::searched),
        function("list<timestamp>::max(): timestamp", max).costs(cost::deep).estimated(estimate::searched),
        function("list<string>::max(): string", max).costs(cost::deep).estimated(estimate::searched),
        function("list<bytes>::max(): bytes", max).costs(cost::deep).estimated(estimate::searched),
        function("list<int>::min(): int", min).costs(cost::deep).estimated(estimate::searched),
        function("list<uint>::min(): uint", min).costs(cost::deep).estimated(estimate::searched),
        function("list<double>::min(): double", min).costs(cost::deep).estimated(estimate::searched),
        function("list<bool>::min(): bool", min).costs(cost::deep).estimated(estimate::searched),
        function("list<duration>::min(): duration", min).costs(cost::deep).estimated(estimate::searched),
        function("list<timestamp>::min(): timestamp", min).costs(cost::deep).estimated(estimate::searched),
        function("list<string>::min(): string", min).costs(cost::deep).estimated(estimate::searched),
        function("list<bytes>::min(): bytes", min).costs(cost::deep).estimated(estimate::searched),
        function("list<A>::indexOf(A): int", index_of).costs(cost::deep).estimated(estimate::searched),
        function("list<A>::lastIndexOf(A): int", last_index_of).costs(cost::deep).estimated(estimate::searched),
    ],
    types: &[],
};

fn wrong() -> EvaluationError {
    EvaluationError::no_such_overload()
}

fn list<'v, 'a>(given: &'v [Value<'a>], index: usize) -> Result<&'v List<'a>, EvaluationError> {
    match given.get(index) {
        Some(Value::List(list)) => Ok(list),
        _ => Err(wrong()),
    }
}

/// The items of a list that is about to be copied.
fn items<'a>(call: &mut Call<'_>, list: &List<'a>) -> Result<Vec<Value<'a>>, EvaluationError> {
    call.making(list.len())?;
    call.budget.work(list.len() as u64)?;
    Ok(list.iter().collect())
}

fn slice<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (list, [_, Value::Int(start), Value::Int(end)]) = (list(given, 0)?, given) else { return Err(wrong()) };
    let refused = |why: String| Err(EvaluationError::new(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return refused("negative indexes not supported".to_owned());
    };
    if from > to {
        return refused("start index must be less than or equal to end index".to_owned());
    }
    if list.len() < to {
        return refused(format!("list is length {}", list.len()));
    }
    call.budget.work((to - from) as u64)?;
    Ok(Value::list((from..to).filter_map(|at| list.get(at)).collect()))
}

fn flatten<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let depth = match given.get(1) {
        Some(Value::Int(depth)) if *depth < 0 => return Err(EvaluationError::new("level must be non-negative")),
        Some(Value::Int(depth)) => *depth,
        _ => 1,
    };
    let mut flat = Vec::new();
    flatten_into(call, list(given, 0)?, depth, &mut flat)?;
    Ok(Value::list(flat))
}

/// Lists nest as deeply as JSON and expressions may, so this ends.
fn flatten_into<'a>(
    call: &mut Call<'_>,
    list: &List<'a>,
    depth: i64,
    flat: &mut Vec<Value<'a>>,
) -> Result<(), EvaluationError> {
    for item in list.iter() {
        call.budget.work(1)?;
        match item {
            Value::List(inner) if depth > 0 => flatten_into(call, &inner, depth - 1, flat)?,
            other => flat.push(other),
        }
    }
    Ok(())
}

/// Sorts by the items themselves, or by a key for each.
fn sort<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let values = items(call, list(given, 0)?)?;
    let keys = if given.len() > 1 { items(call, list(given, 1)?)? } else { values.clone() };
    if values.len() != keys.len() {
        return Err(EvaluationError::new(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} \
             elements respectively",
            values.len(),
            keys.len()
        )));
    }
    if let Some(first) = keys.first() {
        if compare(first, first).is_none() && !matches!(first, Value::Double(_)) {
            return Err(EvaluationError::new("list elements must be comparable"));
        }
        if keys.iter().any(|k| k.type_of() != first.type_of()) {
            return Err(EvaluationError::new("list elements must have the same type"));
        }
    }
    let size = keys.len() as u64;
    call.budget.work(size * u64::from(size.max(1).ilog2() + 1))?;
    let mut pairs: Vec<(Value<'a>, Value<'a>)> = keys.into_iter().zip(values).collect();
    // NaN has no order; it is put last, so that the order is one.
    let rank = |key: &Value<'_>| matches!(key, Value::Double(d) if d.is_nan());
    pairs.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)).then(compare(a, b).unwrap_or(Ordering::Equal)));
    Ok(Value::list(pairs.into_iter().map(|(_, value)| value).collect()))
}

fn range<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let Value::Int(end) = given[0] else { return Err(wrong()) };
    call.making(usize::try_from(end.max(0)).unwrap_or(usize::MAX))?;
    call.budget.work(u64::try_from(end.max(0)).unwrap_or(u64::MAX))?;
    Ok(Value::list((0..end).map(Value::Int).collect()))
}

fn reverse<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let mut values = items(call, list(given, 0)?)?;
    values.reverse();
    Ok(Value::list(values))
}

fn distinct<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let values = items(call, list(given, 0)?)?;
    let mut seen = HashSet::new();
    let mut kept: Vec<Value<'a>> = Vec::new();
    let mut unhashed: Vec<Value<'a>> = Vec::new();
    for value in values {
        let new = match Key::of(&value) {
            Some(key) => seen.insert(key),
            None => {
                let mut known = false;
                for other in &unhashed {
                    known = known || equal(other, &value, call.budget)?;
                }
                if !known {
                    unhashed.push(value.clone());
                }
                !known
            }
        };
        if new {
            kept.push(value);
        }
    }
    Ok(Value::list(kept))
}

fn is_sorted<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let list = list(given, 0)?;
    let mut before: Option<Value<'a>> = None;
    for item in list.iter() {
        if before.as_ref().is_some_and(|b| compare(b, &item) == Some(Ordering::Greater)) {
            return Ok(Value::Bool(false));
        }
        before = Some(item);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let mut total = 0i64;
    for item in list(given, 0)?.iter() {
        let Value::Int(item) = item else { return Err(wrong()) };
        total = total.checked_add(item).ok_or_else(|| EvaluationError::new("integer overflow"))?;
    }
    Ok(Value::Int(total))
}

fn sum_uint<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let mut total = 0u64;
    for item in list(given, 0)?.iter() {
        let Value::Uint(item) = item else { return Err(wrong()) };
        total = total.checked_add(item).ok_or_else(|| EvaluationError::new("unsigned integer overflow"))?;
    }
    Ok(Value::Uint(total))
}

fn sum_double<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let mut total = 0.0;
    for item in list(given, 0)?.iter() {
        let Value::Double(item) = item else { return Err(wrong()) };
        total += item;
    }
    Ok(Value::Double(total))
}

fn sum_duration<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let mut total = 0i64;
    for item in list(given, 0)?.iter() {
        let Value::Duration(item) = item else { return Err(wrong()) };
        total = total.checked_add(item).ok_or_else(|| EvaluationError::new("duration overflow"))?;
    }
    Ok(Value::Duration(total))
}

fn extreme<'a>(given: &[Value<'a>], name: &str, wanted: Ordering) -> Outcome<'a> {
    let mut found: Option<Value<'a>> = None;
    for item in list(given, 0)?.iter() {
        if found.as_ref().is_none_or(|f| compare(&item, f) == Some(wanted)) {
            found = Some(item);
        }
    }
    found.ok_or_else(|| EvaluationError::new(format!("{name} called on empty list")))
}

fn max<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    extreme(given, "max", Ordering::Greater)
}

fn min<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    extreme(given, "min", Ordering::Less)
}

fn place<'a>(call: &mut Call<'_>, given: &[Value<'a>], mut order: impl Iterator<Item = usize>) -> Outcome<'a> {
    let list = list(given, 0)?;
    let found = order.try_fold(-1i64, |_, at| match list.get(at).map(|item| equal(&item, &given[1], call.budget)) {
        Some(Ok(true)) => Err(Ok(i64::try_from(at).unwrap_or(-1))),
        Some(Err(error)) => Err(Err(error)),
        _ => Ok(-1),
    });
    match found {
        Ok(at) | Err(Ok(at)) => Ok(Value::Int(at)),
        Err(Err(error)) => Err(error),
    }
}

fn index_of<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    place(call, given, 0..list(given, 0)?.len())
}

fn last_index_of<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    place(call, given, (0..list(given, 0)?.len()).rev())
}
