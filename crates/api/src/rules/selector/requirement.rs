//! One condition of a label selector: how it is written, what it matches, and whether it may be.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use json::{Map, Value};

use crate::validation::names;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

/// Anything that gives a value for a label key.
pub trait Labels {
    fn get(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn get(&self, key: &str) -> Option<&str> {
        BTreeMap::get(self, key).map(String::as_str)
    }
}

impl Labels for Map {
    fn get(&self, key: &str) -> Option<&str> {
        Map::get(self, key).and_then(Value::as_str)
    }
}

impl<L: Labels> Labels for Option<L> {
    fn get(&self, key: &str) -> Option<&str> {
        self.as_ref().and_then(|l| l.get(key))
    }
}

impl<L: Labels> Labels for &L {
    fn get(&self, key: &str) -> Option<&str> {
        (*self).get(key)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted; one number for `GreaterThan` and `LessThan`, none for `Exists` and `DoesNotExist`.
    pub values: Vec<String>,
    /// Written as `=` or `!=`, not as a set: matters for the text alone.
    plain: bool,
}

impl Requirement {
    pub fn new(key: &str, operator: Operator, values: &[&str]) -> Self {
        let mut values: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        values.sort_unstable();
        values.dedup();
        let plain = values.len() == 1;
        Requirement { key: key.to_owned(), operator, values, plain }
    }

    /// Written as a set also when it has one value.
    pub(crate) fn new_set(key: &str, operator: Operator, values: &[&str]) -> Self {
        Requirement { plain: false, ..Requirement::new(key, operator, values) }
    }

    pub fn matches(&self, labels: &impl Labels) -> bool {
        let value = labels.get(&self.key);
        let listed = || value.is_some_and(|v| self.values.binary_search_by(|w| w.as_str().cmp(v)).is_ok());
        match self.operator {
            Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => self.compare(value, |a, b| a > b),
            Operator::LessThan => self.compare(value, |a, b| a < b),
        }
    }

    fn compare(&self, value: Option<&str>, holds: fn(i64, i64) -> bool) -> bool {
        let wanted = self.values.first().and_then(|v| v.parse().ok());
        matches!((value.and_then(|v| v.parse().ok()), wanted), (Some(a), Some(b)) if holds(a, b))
    }
}

impl Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::In if self.plain => write!(f, "{key}={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn if self.plain => write!(f, "{key}!={values}"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// Checks the key and values of a requirement; the error is in upstream's words.
pub fn check_requirement(requirement: &Requirement) -> Result<(), String> {
    let key = &requirement.key;
    let wrong = names::qualified_name(key);
    if !wrong.is_empty() {
        return Err(format!("key: Invalid value: {key:?}: {}", wrong.join("; ")));
    }
    if matches!(requirement.operator, Operator::GreaterThan | Operator::LessThan)
        && let Some(value) = requirement.values.iter().find(|v| v.parse::<i64>().is_err())
    {
        return Err(format!(
            "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
        ));
    }
    for (i, value) in requirement.values.iter().enumerate() {
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            return Err(format!("values[{i}][{key}]: Invalid value: {value:?}: {}", wrong.join("; ")));
        }
    }
    Ok(())
}
