//! The extension for texts, in the version that Kubernetes uses. Places in a text count code points.

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::value::{Value, quoted};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("string::charAt(int): string", char_at),
        function("string::indexOf(string): int", index_of).costs(cost::deep).estimated(estimate::searched),
        function("string::indexOf(string, int): int", index_of).costs(cost::deep).estimated(estimate::searched),
        function("string::lastIndexOf(string): int", last_index_of).costs(cost::deep).estimated(estimate::searched),
        function("string::lastIndexOf(string, int): int", last_index_of)
            .costs(cost::deep)
            .estimated(estimate::searched),
        function("string::lowerAscii(): string", lower).costs(cost::first).estimated(estimate::as_large),
        function("string::upperAscii(): string", upper).costs(cost::first).estimated(estimate::as_large),
        function("string::replace(string, string): string", replace)
            .costs(cost::first_twice)
            .estimated(estimate::replaced),
        function("string::replace(string, string, int): string", replace)
            .costs(cost::first_twice)
            .estimated(estimate::replaced),
        function("string::split(string): list<string>", split).costs(cost::first_twice).estimated(estimate::split),
        function("string::split(string, int): list<string>", split).costs(cost::first_twice).estimated(estimate::split),
        function("string::substring(int): string", substring).costs(cost::first).estimated(estimate::as_large),
        function("string::substring(int, int): string", substring).costs(cost::first).estimated(estimate::as_large),
        function("string::trim(): string", trim).costs(cost::first).estimated(estimate::as_large),
        function("list<string>::join(): string", join).costs(cost::result_twice).estimated(estimate::joined),
        function("list<string>::join(string): string", join).costs(cost::result_twice).estimated(estimate::joined),
        function("strings.quote(string): string", quote).costs(cost::first).estimated(estimate::quoted),
    ],
    types: &[],
};

fn text<'v>(given: &'v [Value<'_>], index: usize) -> Result<&'v str, EvaluationError> {
    given.get(index).and_then(Value::as_str).ok_or_else(EvaluationError::no_such_overload)
}

fn int(given: &[Value<'_>], index: usize) -> Option<i64> {
    match given.get(index) {
        Some(Value::Int(i)) => Some(*i),
        _ => None,
    }
}

fn out_of_range(index: i64) -> EvaluationError {
    EvaluationError::new(format!("index out of range: {index}"))
}

fn count(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

/// Where the code point of this number begins in bytes, the end included.
fn offset(text: &str, index: i64) -> Option<usize> {
    let index = usize::try_from(index).ok()?;
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(index)
}

fn char_at<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, index) = (text(given, 0)?, int(given, 1).unwrap_or(0));
    let at = offset(text, index).ok_or_else(|| out_of_range(index))?;
    Ok(Value::string(text[at..].chars().next().map(String::from).unwrap_or_default()))
}

fn index_of<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, from) = (text(given, 0)?, text(given, 1)?, int(given, 2).unwrap_or(0));
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    if from < 0 {
        return Err(out_of_range(from));
    }
    let found = offset(text, from).and_then(|start| text[start..].find(part).map(|at| start + at));
    Ok(Value::Int(found.map_or(-1, |at| count(&text[..at]))))
}

fn last_index_of<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, part) = (text(given, 0)?, text(given, 1)?);
    let from = int(given, 2);
    if part.is_empty() {
        return Ok(Value::Int(from.unwrap_or_else(|| count(text))));
    }
    let found = match from {
        None => text.rfind(part),
        Some(from) if from < 0 => return Err(out_of_range(from)),
        Some(from) if from >= count(text) => None,
        Some(from) => {
            // The last place that is not behind the given one.
            let start = offset(text, from).unwrap_or(text.len());
            let fits = |at: &usize| text[*at..].starts_with(part);
            text[..start].char_indices().map(|(at, _)| at).chain([start]).rev().find(fits)
        }
    };
    Ok(Value::Int(found.map_or(-1, |at| count(&text[..at]))))
}

fn lower<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let text = text(given, 0)?;
    call.making(text.len())?;
    Ok(Value::string(text.to_ascii_lowercase()))
}

fn upper<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let text = text(given, 0)?;
    call.making(text.len())?;
    Ok(Value::string(text.to_ascii_uppercase()))
}

/// As many replacements as asked for; a negative number means all.
fn replace<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, old, new) = (text(given, 0)?, text(given, 1)?, text(given, 2)?);
    let most = usize::try_from(int(given, 3).unwrap_or(-1)).unwrap_or(usize::MAX);
    let occurrences = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    call.making(text.len().saturating_add(occurrences.min(most).saturating_mul(new.len())))?;
    Ok(Value::string(text.replacen(old, new, most)))
}

fn split<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, separator) = (text(given, 0)?, text(given, 1)?);
    let most = int(given, 2).unwrap_or(-1);
    call.making(text.len().saturating_mul(8))?;
    let part = |p: &str| Value::string(p);
    if most == 0 {
        return Ok(Value::list(Vec::new()));
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if separator.is_empty() {
        // Every code point is a part; the last part takes what is left.
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next().filter(|_| parts.len() + 1 < most) {
            parts.push(part(&rest[..c.len_utf8()]));
            rest = &rest[c.len_utf8()..];
        }
        if !rest.is_empty() {
            parts.push(part(rest));
        }
        return Ok(Value::list(parts));
    }
    Ok(Value::list(text.splitn(most, separator).map(part).collect()))
}

fn substring<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (text, start, end) = (text(given, 0)?, int(given, 1).unwrap_or(0), int(given, 2));
    if let Some(end) = end
        && start > end
    {
        return Err(EvaluationError::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let from = offset(text, start).ok_or_else(|| out_of_range(start))?;
    let to = match end {
        Some(end) => offset(text, end).ok_or_else(|| out_of_range(end))?,
        None => text.len(),
    };
    Ok(Value::string(&text[from..to]))
}

fn trim<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    text(given, 0).map(|t| Value::string(t.trim()))
}

fn join<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let Value::List(list) = &given[0] else { return Err(EvaluationError::no_such_overload()) };
    let separator = given.get(1).and_then(Value::as_str).unwrap_or_default();
    let mut joined = String::new();
    for (index, item) in list.iter().enumerate() {
        let Value::String(item) = item else {
            return Err(EvaluationError::new(format!("join: invalid input: {item}")));
        };
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(&item);
        if index % 1024 == 0 {
            call.making(joined.len())?;
        }
    }
    call.making(joined.len())?;
    Ok(Value::string(joined))
}

fn quote<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let text = text(given, 0)?;
    call.making(text.len() * 2)?;
    Ok(Value::string(quoted(text)))
}
