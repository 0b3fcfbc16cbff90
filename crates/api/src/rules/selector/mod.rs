//! Label selectors and field selectors: their text, their objects, and what they match.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::{Map, Value};

use crate::validation::names;

mod text;

/// Anything that gives a value for a label key.
pub trait Labels {
    fn get(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn get(&self, key: &str) -> Option<&str> {
        BTreeMap::get(self, key).map(String::as_str)
    }
}

impl Labels for Map<String, Value> {
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

/// Conditions that must all hold. None at all matches everything; [`Selector::NOTHING`] matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Selector {
    pub requirements: Vec<Requirement>,
    nothing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

impl Selector {
    pub const EVERYTHING: Selector = Selector { requirements: Vec::new(), nothing: false };
    pub const NOTHING: Selector = Selector { requirements: Vec::new(), nothing: true };

    pub fn matches(&self, labels: &impl Labels) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(labels))
    }

    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        crate::rules::selector::text::parse(text).map_err(SelectorError)
    }

    /// Equality with each of the labels: what a Service or ReplicationController selects.
    pub fn of_labels(labels: &BTreeMap<String, String>) -> Self {
        let requirements = labels.iter().map(|(k, v)| Requirement::new(k, Operator::In, &[v])).collect();
        Selector { requirements, nothing: false }
    }

    pub(crate) fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Selector { requirements, nothing: false }
    }

    /// A `LabelSelector` object: absent selects nothing, empty selects everything. An unknown operator is an error.
    pub fn of_object(selector: Option<&LabelSelector>) -> Result<Self, SelectorError> {
        let Some(selector) = selector else { return Ok(Selector::NOTHING) };
        let mut list: Vec<Requirement> =
            selector.match_labels.iter().flatten().map(|(k, v)| Requirement::new(k, Operator::In, &[v])).collect();
        for expression in selector.match_expressions.iter().flatten() {
            list.push(of_expression(expression)?);
        }
        Ok(Selector::of(list))
    }
}

fn of_expression(expression: &LabelSelectorRequirement) -> Result<Requirement, SelectorError> {
    let operator = match expression.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => return Err(SelectorError(format!("{other:?} is not a valid label selector operator"))),
    };
    let values: Vec<&str> = expression.values.iter().flatten().map(String::as_str).collect();
    Ok(Requirement::new_set(&expression.key, operator, &values))
}

impl Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.requirements.iter().map(ToString::to_string).collect();
        f.write_str(&list.join(","))
    }
}

/// The selector of a table's column: `a=b,c in (d)`, `<none>` when there is nothing to select by, `<error>` when it is broken.
pub fn describe(selector: Option<&LabelSelector>) -> String {
    match Selector::of_object(selector) {
        Err(_) => "<error>".to_owned(),
        Ok(selector) if selector.requirements.is_empty() => "<none>".to_owned(),
        Ok(selector) => selector.to_string(),
    }
}

/// One condition on one field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    pub field: String,
    pub value: String,
    /// `=` or `!=`.
    pub equal: bool,
}

/// Conditions on fields that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldSelector(pub Vec<FieldRequirement>);

impl FieldSelector {
    /// Parses `metadata.name=a,status.phase!=Running`; `\,`, `\=` and `\\` stand for themselves in values.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut list = Vec::new();
        for term in split_unescaped(text).into_iter().filter(|t| !t.is_empty()) {
            let broken = || SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'"));
            let at = term.find(['=', '!']).ok_or_else(broken)?;
            let (field, rest) = term.split_at(at);
            let (equal, raw) = if let Some(value) = rest.strip_prefix("!=") {
                (false, value)
            } else if let Some(value) = rest.strip_prefix("==") {
                (true, value)
            } else {
                (true, rest.strip_prefix('=').ok_or_else(broken)?)
            };
            list.push(FieldRequirement { field: field.to_owned(), value: unescape(raw)?, equal });
        }
        Ok(FieldSelector(list))
    }

    /// `value` gives the value of a field, empty when it has none.
    pub fn matches<'a>(&self, value: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|r| (value(&r.field) == r.value) == r.equal)
    }

    /// The value that this field must have, when the selector demands one: for indexes.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|r| r.equal && r.field == field).map(|r| r.value.as_str())
    }

    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut list, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                list.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    list.push(&text[start..]);
    list
}

/// A value as it is written in a field selector.
pub fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

fn unescape(raw: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                next => {
                    let sequence = format!("\\{}", next.map(String::from).unwrap_or_default());
                    return Err(SelectorError(format!("invalid field selector: invalid escape sequence: {sequence}")));
                }
            },
            ',' | '=' => {
                let message = format!("invalid field selector: unescaped character in value: {c}");
                return Err(SelectorError(message));
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

/// What is wrong with the key and values of a requirement, in upstream's words.
pub(crate) fn check_requirement(requirement: &Requirement) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn labels(text: &str) -> BTreeMap<String, String> {
        text.split(',').filter_map(|p| p.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    #[test]
    fn label_selectors_match() {
        for (selector, yes, no) in [
            ("", "a=b", ""),
            ("a=b", "a=b", "a=c"),
            ("a==b", "a=b", "b=a"),
            ("a!=b", "a=c", "a=b"),
            ("a!=b", "c=d", "a=b"),
            ("a in (b, c)", "a=c", "a=d"),
            ("a notin (b,c)", "d=e", "a=b"),
            ("a in (b,)", "a=", "a=c"),
            ("a", "a=", "b=a"),
            ("!a", "b=a", "a=b"),
            ("a>1", "a=2", "a=1"),
            ("a<10", "a=9", "a=x"),
            ("x.io/a=b,c", "x.io/a=b,c=d", "c=d"),
            ("in=notin", "in=notin", "in=in"),
        ] {
            let parsed = Selector::parse(selector).unwrap();
            assert!(parsed.matches(&labels(yes)), "{selector} / {yes}");
            assert!(selector.is_empty() || !parsed.matches(&labels(no)), "{selector} / {no}");
        }
    }

    #[test]
    fn label_selector_text() {
        for (given, expected) in [
            ("b=1,a=2", "a=2,b=1"),
            ("a == b", "a=b"),
            ("a in (c,b)", "a in (b,c)"),
            ("a notin (b)", "a notin (b)"),
            ("!a,b", "!a,b"),
            ("a<1", "a<1"),
        ] {
            assert_eq!(Selector::parse(given).unwrap().to_string(), expected);
        }
        for wrong in ["a=b=c", "a in b", "a in (b", ",", "a,,b", "a b", "!a=b", "a=-", "-=a", "a>x", "a in ()x", "=a"] {
            assert!(Selector::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn selector_objects() {
        assert!(!Selector::of_object(None).unwrap().matches(&labels("a=b")));
        let object = |v| serde_json::from_value::<LabelSelector>(v).unwrap();
        assert!(Selector::of_object(Some(&object(json!({})))).unwrap().matches(&labels("")));
        let both = object(json!({"matchLabels": {"b": "1"},
            "matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}));
        assert_eq!(describe(Some(&both)), "a notin (x),b=1");
        assert_eq!(describe(None), "<none>");
    }

    #[test]
    fn field_selectors() {
        let parse = |s: &str| FieldSelector::parse(s).unwrap();
        let of = |f: &str| if f == "a" { "1" } else { "" };
        assert!(parse("a=1").matches(of) && parse("a==1,b=").matches(of) && parse("a!=2").matches(of));
        assert!(!parse("a!=1").matches(of) && !parse("b=1").matches(of));
        assert_eq!(parse(r"a=x\,y\=z\\").exact("a"), Some(r"x,y=z\"));
        assert!(FieldSelector::parse("a").is_err() && FieldSelector::parse(r"a=\x").is_err());
    }
}
