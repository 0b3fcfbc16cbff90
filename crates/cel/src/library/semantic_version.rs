//! Versions by the rules of semver.org.

use std::any::Any;
use std::cmp::Ordering;

use semver::Version;

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::typing::Type;
use crate::value::{Opaque, Value};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

const NAME: &str = "kubernetes.Semver";

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("semver(string): kubernetes.Semver", parse).costs(cost::first).estimated(estimate::first),
        function("semver(string, bool): kubernetes.Semver", parse).costs(cost::first).estimated(estimate::first),
        function("isSemver(string): bool", is_version).costs(cost::first).estimated(estimate::first),
        function("isSemver(string, bool): bool", is_version).costs(cost::first).estimated(estimate::first),
        function("kubernetes.Semver::major(): int", major),
        function("kubernetes.Semver::minor(): int", minor),
        function("kubernetes.Semver::patch(): int", patch),
        function("kubernetes.Semver::isGreaterThan(kubernetes.Semver): bool", is_greater),
        function("kubernetes.Semver::isLessThan(kubernetes.Semver): bool", is_less),
        function("kubernetes.Semver::compareTo(kubernetes.Semver): int", compare),
    ],
    types: &[(NAME, Type::Opaque(NAME))],
};

/// A version; build metadata does not count when two are compared.
#[derive(Debug)]
struct Semver(Version);

impl Opaque for Semver {
    fn type_name(&self) -> &'static str {
        NAME
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Semver>().is_some_and(|other| self.0.cmp_precedence(&other.0).is_eq())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn read(given: &[Value<'_>]) -> Result<Semver, EvaluationError> {
    let text = given[0].as_str().ok_or_else(EvaluationError::no_such_overload)?;
    let loose = given.get(1).and_then(Value::as_bool).unwrap_or(false);
    let text = if loose { normalized(text)? } else { text.to_owned() };
    strict(&text).map(Semver)
}

/// A version by the rules of semver.org as the value of an expression.
pub fn semver(text: &str) -> Result<Value<'static>, EvaluationError> {
    strict(text).map(|version| Value::opaque(Semver(version)))
}

fn strict(text: &str) -> Result<Version, EvaluationError> {
    Version::parse(text).map_err(|why| EvaluationError::new(fault(text).unwrap_or_else(|| why.to_string())))
}

/// The fault in a version, in the words of the library that upstream reads versions with.
fn fault(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("Version string empty".to_owned());
    }
    let mut parts = text.splitn(3, '.');
    let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return Some("No Major.Minor.Patch elements found".to_owned());
    };
    let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
    let (patch, before) = rest.split_once('-').map_or((rest, None), |(patch, before)| (patch, Some(before)));
    let zeros = |part: &str| part.len() > 1 && part.starts_with('0');
    for (name, title, part) in [("major", "Major", major), ("minor", "Minor", minor), ("patch", "Patch", patch)] {
        if !part.bytes().all(|b| b.is_ascii_digit()) {
            return Some(format!("Invalid character(s) found in {name} number {part:?}"));
        }
        if zeros(part) {
            return Some(format!("{title} number must not contain leading zeroes {part:?}"));
        }
    }
    let strange = |part: &str| !part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    for part in before.into_iter().flat_map(|all| all.split('.')) {
        if part.is_empty() {
            return Some("Prerelease is empty".to_owned());
        }
        if zeros(part) && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some(format!("Numeric PreRelease version must not contain leading zeroes {part:?}"));
        }
        if strange(part) {
            return Some(format!("Invalid character(s) found in prerelease {part:?}"));
        }
    }
    build.into_iter().flat_map(|all| all.split('.')).find_map(|part| {
        if part.is_empty() {
            return Some("Build meta data is empty".to_owned());
        }
        strange(part).then(|| format!("Invalid character(s) found in build meta data {part:?}"))
    })
}

/// Drops a leading `v` and leading zeros, and adds the parts that are missing.
fn normalized(text: &str) -> Result<String, EvaluationError> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
    for part in &mut parts {
        if part.len() > 1 {
            let trimmed = part.trim_start_matches('0');
            let digit = trimmed.starts_with(|c: char| c.is_ascii_digit());
            *part = if digit { trimmed.to_owned() } else { format!("0{trimmed}") };
        }
    }
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err(EvaluationError::new("short version cannot contain PreRelease/Build meta data"));
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

fn parse<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    read(given).map(Value::opaque)
}

fn is_version<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(read(given).is_ok()))
}

fn version<'v>(value: &'v Value<'_>) -> Result<&'v Version, EvaluationError> {
    value.downcast::<Semver>().map(|v| &v.0).ok_or_else(EvaluationError::no_such_overload)
}

fn number<'a>(part: u64) -> Outcome<'a> {
    Ok(Value::Int(i64::try_from(part).unwrap_or(i64::MAX)))
}

fn major<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    version(&given[0]).and_then(|v| number(v.major))
}

fn minor<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    version(&given[0]).and_then(|v| number(v.minor))
}

fn patch<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    version(&given[0]).and_then(|v| number(v.patch))
}

fn order(given: &[Value<'_>]) -> Result<Ordering, EvaluationError> {
    Ok(version(&given[0])?.cmp_precedence(version(&given[1])?))
}

fn is_greater<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    order(given).map(|o| Value::Bool(o.is_gt()))
}

fn is_less<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    order(given).map(|o| Value::Bool(o.is_lt()))
}

fn compare<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    order(given).map(|o| Value::Int(o as i64))
}
