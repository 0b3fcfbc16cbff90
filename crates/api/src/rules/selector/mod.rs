//! Label selectors and field selectors: their text, their objects, and what they match.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

mod field;
mod requirement;
mod text;

pub use field::{FieldRequirement, FieldSelector, escape};
pub use requirement::{Labels, Operator, Requirement, SelectorError, check_requirement};

/// Conditions that must all hold. None at all matches everything; [`Selector::NOTHING`] matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Selector {
    pub requirements: Vec<Requirement>,
    nothing: bool,
}

impl Selector {
    pub const NOTHING: Selector = Selector { requirements: Vec::new(), nothing: true };

    pub fn matches(&self, labels: &impl Labels) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(labels))
    }

    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        text::parse(text).map(Selector::of).map_err(SelectorError)
    }

    /// Equality with each of the labels: what a Service or ReplicationController selects.
    pub fn of_labels(labels: &BTreeMap<String, String>) -> Self {
        let requirements = labels.iter().map(|(k, v)| Requirement::new(k, Operator::In, &[v])).collect();
        Selector { requirements, nothing: false }
    }

    fn of(mut requirements: Vec<Requirement>) -> Self {
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

/// Whether a `LabelSelector` object selects these labels, as the [`Selector`] of it would; a broken one selects nothing. Nothing is made
/// of it: whoever looks at one object by the selectors of many others would else sort all their values each time, and a selector may
/// have a hundred thousand.
pub fn selects(selector: Option<&LabelSelector>, labels: &impl Labels) -> bool {
    let Some(selector) = selector else { return false };
    let same = |(key, value): (&String, &String)| labels.get(key) == Some(value.as_str());
    selector.match_labels.iter().flatten().all(same)
        && selector.match_expressions.iter().flatten().all(|expression| holds(expression, labels))
}

/// As [`selects`], for the Pods of a controller's object: an empty selector takes nothing either.
pub fn takes(selector: Option<&LabelSelector>, labels: &impl Labels) -> bool {
    let is_empty = |s: &&LabelSelector| {
        s.match_labels.iter().flatten().next().is_none() && s.match_expressions.iter().flatten().next().is_none()
    };
    selects(selector.filter(|selector| !is_empty(selector)), labels)
}

fn holds(expression: &LabelSelectorRequirement, labels: &impl Labels) -> bool {
    let value = labels.get(&expression.key);
    let is_listed = || value.is_some_and(|value| expression.values.iter().flatten().any(|one| one == value));
    match expression.operator.as_str() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

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
    fn an_object_selects_what_the_selector_of_it_matches() {
        let objects = [
            json!({}),
            json!({"matchLabels": {"a": "1"}}),
            json!({"matchLabels": {"a": "1", "b": "2"}}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["2", "1"]}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["2", "1"]}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"}]}),
            json!({"matchLabels": {"b": "2"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
        ];
        for object in objects {
            let of = json::from_value::<LabelSelector>(object.clone()).unwrap();
            let made = Selector::of_object(Some(&of)).unwrap_or(Selector::NOTHING);
            for text in ["", "a=1", "a=2", "a=3", "b=2", "a=1,b=2", "a=1,b=3"] {
                let labels = labels(text);
                assert_eq!(selects(Some(&of), &labels), made.matches(&labels), "{object} {text}");
                assert_eq!(
                    takes(Some(&of), &labels),
                    !made.is_everything() && made.matches(&labels),
                    "{object} {text}"
                );
            }
        }
        assert!(!selects(None, &labels("a=1")) && !takes(None, &labels("")));
    }

    #[test]
    fn selector_objects() {
        assert!(!Selector::of_object(None).unwrap().matches(&labels("a=b")));
        let object = |v| json::from_value::<LabelSelector>(v).unwrap();
        assert!(Selector::of_object(Some(&object(json!({})))).unwrap().matches(&labels("")));
        let both = object(json!({"matchLabels": {"b": "1"},
            "matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}));
        assert_eq!(describe(Some(&both)), "a notin (x),b=1");
        assert_eq!(describe(None), "<none>");
    }
}
