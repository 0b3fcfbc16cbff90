//! Values against a schema, in the words of upstream's validator. On a change, what is wrong already and stays as it was is
//! passed over (ratcheting).
//!
//! Upstream counterpart: kube-openapi/pkg/validation/validate, and apiextensions-apiserver/pkg/apiserver/validation.

use json::{Map, Number, Value};

use super::formats;
use super::list_types::repeated;
use super::structural::{Additional, Structural};
use crate::codec::numbers;
use crate::validation::field::{Cause, Errors, FieldError, Path};
use crate::validation::internal_form::json_text;

/// The errors of a value that stands at `path`; `old` is the one that stood there before.
pub fn check(value: &Value, old: Option<&Value>, schema: &Structural, path: &str) -> Errors {
    Place { path }.check(schema, value, old).errors
}

/// The path of what no field stands for, as upstream's messages have it.
fn nowhere() -> Path {
    Path::new("<nil>")
}

#[derive(Default)]
struct Found {
    errors: Errors,
    /// Checks that passed, by which the alternative is chosen whose errors are told.
    passed: usize,
}

impl Found {
    fn merge(&mut self, other: Found) {
        self.errors.extend(other.errors);
        self.passed += other.passed;
    }

    fn step(&mut self, error: Option<FieldError>) {
        match error {
            Some(error) => self.errors.push(error),
            None => self.passed += 1,
        }
    }
}

/// Where a value stands: names with dots, indexes in brackets; nothing at the root.
struct Place<'p> {
    path: &'p str,
}

impl Place<'_> {
    fn field(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn at(&self) -> Path {
        if self.path.is_empty() { nowhere() } else { Path::new(self.path) }
    }

    /// `spec.size in body should be …`
    fn said(&self, what: &str) -> String {
        format!("{} in body {what}", self.path)
    }

    fn invalid(&self, value: impl serde::Serialize, what: &str) -> FieldError {
        FieldError::invalid(&self.at(), value, &self.said(what))
    }

    fn check(&self, schema: &Structural, value: &Value, old: Option<&Value>) -> Found {
        let mut found = Found::default();
        found.step(self.type_of(schema, value));
        if !value.is_null() {
            found.merge(self.alternatives(schema, value));
            match value {
                Value::String(text) => {
                    found.step(self.text(schema, text));
                    let unfit = schema.format.as_deref().filter(|format| !formats::fits(format, text));
                    found.step(unfit.map(|format| {
                        let what = self.said(&format!("must be of type {format}: {}", go_quote(text)));
                        FieldError::type_invalid(&self.at(), text, &what)
                    }));
                }
                Value::Number(number) => found.merge(self.number(schema, number)),
                Value::Array(list) => found.merge(self.list(schema, list, old)),
                _ => {}
            }
        }
        found.step(self.allowed(schema, value));
        if let Value::Object(map) = value {
            found.merge(self.object(schema, map, old));
        }
        // A value that was wrong before may stay.
        if !found.errors.is_empty() && old == Some(value) {
            found.errors.clear();
        }
        found
    }

    fn type_of(&self, schema: &Structural, value: &Value) -> Option<FieldError> {
        let wanted = if schema.int_or_string { "integer,string" } else { &*schema.ty };
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::Number(number) if number.is_f64() && number.as_f64().is_some_and(is_no_integer) => "number",
            Value::Number(_) if wanted == "number" => "number",
            Value::Number(_) => "integer",
        };
        let fits = wanted.is_empty() || wanted.split(',').any(|ty| ty == found) || value.is_null() && schema.nullable;
        (!fits).then(|| {
            // Of what is no text and no list the format is told, where one is asked for.
            let format =
                schema.format.as_deref().filter(|_| !matches!(value, Value::Null | Value::String(_) | Value::Array(_)));
            let (wanted, found) = format.map_or((wanted, found), |format| (format, format_of(value)));
            let what = self.said(&format!("must be of type {wanted}: \"{found}\""));
            FieldError::type_invalid(&self.at(), found, &what)
        })
    }

    fn text(&self, schema: &Structural, text: &str) -> Option<FieldError> {
        let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let limits = &schema.limits;
        if let Some(most) = limits.max_length.filter(|most| length() > *most) {
            return Some(FieldError::too_long(&self.at(), usize::try_from(most).unwrap_or_default()));
        }
        if let Some(least) = limits.min_length.filter(|least| length() < *least) {
            return Some(self.invalid(text, &format!("should be at least {least} chars long")));
        }
        let pattern = schema.pattern.as_ref().filter(|pattern| !pattern.matches(text))?;
        Some(self.invalid(text, &format!("should match '{}'", pattern.text)))
    }

    fn number(&self, schema: &Structural, number: &Number) -> Found {
        let limits = &schema.limits;
        let value = number.as_f64().unwrap_or_default();
        // A whole number is compared with what is whole of a bound.
        let whole = !number.is_f64() && &*schema.ty == "number";
        let limit = |limit: Option<f64>| limit.map(|limit| if whole { limit.trunc() } else { limit });
        let bound = |limit: f64| if number.is_f64() { numbers::double(limit) } else { limit.to_string() };
        let mut found = Found::default();
        if let Some(factor) = limits.multiple_of {
            let right = factor > 0.0 && (value / factor).fract() == 0.0;
            found.step((!right).then(|| self.invalid(number, &format!("should be a multiple of {}", bound(factor)))));
        }
        if let Some(most) = limit(limits.maximum) {
            let (right, words) = if limits.exclusive_maximum {
                (value < most, "less than")
            } else {
                (value <= most, "less than or equal to")
            };
            found.step((!right).then(|| self.invalid(number, &format!("should be {words} {}", bound(most)))));
        }
        if let Some(least) = limit(limits.minimum) {
            let (right, words) = if limits.exclusive_minimum {
                (value > least, "greater than")
            } else {
                (value >= least, "greater than or equal to")
            };
            found.step((!right).then(|| self.invalid(number, &format!("should be {words} {}", bound(least)))));
        }
        found
    }

    fn list(&self, schema: &Structural, list: &[Value], old: Option<&Value>) -> Found {
        let mut found = Found::default();
        if let Some(items) = &schema.items {
            let before = Before::of(schema, old);
            for (i, item) in list.iter().enumerate() {
                let path = format!("{}[{i}]", self.path);
                found.merge(Place { path: &path }.check(items, item, before.find(item)));
            }
        }
        let count = i64::try_from(list.len()).unwrap_or(i64::MAX);
        if let Some(least) = schema.limits.min_items {
            let few = count < least;
            found.step(few.then(|| self.invalid(count, &format!("should have at least {least} items"))));
        }
        if let Some(most) = schema.limits.max_items {
            found.step((count > most).then(|| too_many(&self.at(), list.len(), most)));
        }
        if schema.limits.unique_items {
            found.step((!repeated(list).is_empty()).then(|| self.invalid("", "shouldn't contain duplicates")));
        }
        found
    }

    fn allowed(&self, schema: &Structural, value: &Value) -> Option<FieldError> {
        let same = |allowed: &Value| match (allowed, value) {
            (Value::Null, _) => false,
            (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
            (a, b) => a == b,
        };
        if schema.allowed.is_empty() || schema.allowed.iter().any(same) {
            return None;
        }
        let shown = |value: &Value| value.as_str().map_or_else(|| json_text(value), str::to_owned);
        let words: Vec<String> = schema.allowed.iter().map(shown).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Some(FieldError::not_supported(&self.at(), value, &words))
    }

    fn object(&self, schema: &Structural, map: &Map, old: Option<&Value>) -> Found {
        let mut found = Found::default();
        let count = i64::try_from(map.len()).unwrap_or(i64::MAX);
        if let Some(least) = schema.limits.min_properties.filter(|least| count < *least) {
            found.step(Some(self.invalid(count, &format!("should have at least {least} properties"))));
        }
        if let Some(most) = schema.limits.max_properties.filter(|most| count > *most) {
            found.step(Some(too_many(&self.at(), map.len(), most)));
        }
        for (name, value) in map {
            let known = schema.properties.get(name.as_str());
            let of = match (known, &schema.additional) {
                (Some(of), _) => of,
                (None, Some(Additional::Of(of))) => of,
                (None, Some(Additional::Allowed(false))) => {
                    let what = format!("{}.{name} in body is a forbidden property", self.path);
                    found.step(Some(FieldError::invalid(&self.at(), name, &what)));
                    continue;
                }
                _ => continue,
            };
            let path = self.field(name);
            // Both versions of an object are seen in the same kind and version, so these say nothing about a change.
            let about_type = self.path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind");
            let before = old.filter(|_| !about_type).and_then(|old| old.get(name));
            found.merge(Place { path: &path }.check(of, value, before));
        }
        for name in schema.required.iter().filter(|name| !map.contains_key(name)) {
            found.step(Some(FieldError::required(&Path::new(&self.field(name)), "")));
        }
        found
    }

    fn alternatives(&self, schema: &Structural, value: &Value) -> Found {
        let mut found = Found { errors: Errors::new(), passed: 1 };
        let general = |what: String| FieldError {
            path: nowhere(),
            cause: Cause::Invalid,
            detail: format!("Invalid value: \"\": {:?} {what}", self.path),
        };
        let try_all = |parts: &[Structural]| parts.iter().map(|part| self.check(part, value, None)).collect::<Vec<_>>();
        if !schema.any.is_empty() {
            let tried = try_all(&schema.any);
            if !tried.iter().any(|t| t.errors.is_empty()) {
                found.step(Some(general("must validate at least one schema (anyOf)".to_owned())));
                found.merge(closest(tried));
            }
        }
        if !schema.one.is_empty() {
            let tried = try_all(&schema.one);
            match tried.iter().filter(|t| t.errors.is_empty()).count() {
                1 => found.passed += 1,
                0 => {
                    found.step(Some(general(
                        "must validate one and only one schema (oneOf). Found none valid".to_owned(),
                    )));
                    found.merge(closest(tried));
                }
                n => {
                    let what = format!("must validate one and only one schema (oneOf). Found {n} valid alternatives");
                    found.step(Some(general(what)));
                }
            }
        }
        if !schema.all.is_empty() {
            let tried = try_all(&schema.all);
            let wrong = tried.iter().filter(|t| !t.errors.is_empty()).count();
            let all = wrong == tried.len();
            tried.into_iter().for_each(|t| found.merge(t));
            if wrong > 0 {
                let none = if all { ". None validated" } else { "" };
                found.step(Some(general(format!("must validate all the schemas (allOf){none}"))));
            }
        }
        if let Some(not) = &schema.not
            && self.check(not, value, None).errors.is_empty()
        {
            found.step(Some(general("must not validate the schema (not)".to_owned())));
        }
        found
    }
}

/// The alternative that most of holds; the first of those.
fn closest(tried: Vec<Found>) -> Found {
    let mut best: Option<Found> = None;
    for found in tried {
        if best.as_ref().is_none_or(|best| found.passed > best.passed) {
            best = Some(found);
        }
    }
    best.unwrap_or_default()
}

fn too_many(path: &Path, count: usize, most: i64) -> FieldError {
    FieldError::too_many(path, count, usize::try_from(most).unwrap_or_default())
}

/// Whether a double stands for no integer: it has a fraction, or is one that other doubles may mean too.
fn is_no_integer(double: f64) -> bool {
    const MOST: f64 = 9_007_199_254_740_991.0;
    double.fract() != 0.0 || !(-MOST - 1.0..=MOST).contains(&double)
}

/// The format that a value has by itself, as Go holds it.
fn format_of(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        _ => "",
    }
}

fn go_quote(text: &str) -> String {
    crate::validation::field::quote(text)
}

/// The items of a list as it was, where they can be told apart.
pub(super) struct Before<'v> {
    keys: &'v [Box<str>],
    items: &'v [Value],
}

impl<'v> Before<'v> {
    pub fn of(schema: &'v Structural, old: Option<&'v Value>) -> Self {
        let items = old.and_then(Value::as_array).filter(|_| &*schema.list_type == "map");
        Before { keys: &schema.list_keys, items: items.map(Vec::as_slice).unwrap_or_default() }
    }

    /// The item with the same keys.
    pub fn find(&self, item: &Value) -> Option<&'v Value> {
        let same = |old: &&Value| self.keys.iter().all(|key| old.get(&**key) == item.get(&**key));
        self.items.iter().find(same)
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn errors(of: &Value, value: &Value, old: Option<&Value>) -> Vec<String> {
        let schema = Structural::of(&json::from_value(of.clone()).expect("a schema"));
        super::check(value, old, &schema, "").iter().map(ToString::to_string).collect()
    }

    fn check(of: Value, value: Value, expected: &[&str]) {
        let of = json!({"type": "object", "properties": {"f": of}});
        assert_eq!(errors(&of, &json!({"f": value}), None), expected, "{of}");
    }

    #[test]
    fn each_rule_in_upstreams_words() {
        let number = json!({"type": "integer", "minimum": 1, "maximum": 10});
        check(number.clone(), json!(5), &[]);
        check(number.clone(), json!(0), &["f: Invalid value: 0: f in body should be greater than or equal to 1"]);
        check(number.clone(), json!(11), &["f: Invalid value: 11: f in body should be less than or equal to 10"]);
        check(number, json!("a"), &["f: Invalid value: \"string\": f in body must be of type integer: \"string\""]);
        check(
            json!({"type": "integer"}),
            json!(1.5),
            &["f: Invalid value: \"number\": f in body must be of type integer: \"number\""],
        );
        check(
            json!({"type": "integer"}),
            json!(1e17),
            &["f: Invalid value: \"number\": f in body must be of type integer: \"number\""],
        );
        check(json!({"type": "integer"}), json!(i64::MAX), &[]);
        check(json!({"type": "integer"}), json!(1e15), &[]);
        check(json!({"type": "number"}), json!(1), &[]);
        check(
            json!({"type": "number", "multipleOf": 0.5}),
            json!(1.2),
            &["f: Invalid value: 1.2: f in body should be a multiple of 0.5"],
        );
        let open =
            json!({"type": "number", "minimum": 1, "exclusiveMinimum": true, "maximum": 2, "exclusiveMaximum": true});
        check(open.clone(), json!(1), &["f: Invalid value: 1: f in body should be greater than 1"]);
        check(open, json!(2), &["f: Invalid value: 2: f in body should be less than 2"]);
        let large = json!({"type": "number", "minimum": 1e-7, "maximum": 1e10, "enum": [1e25, 3]});
        check(
            large.clone(),
            json!(2e10),
            &[
                "f: Invalid value: 2e+10: f in body should be less than or equal to 1e+10",
                "f: Unsupported value: 2e+10: supported values: \"1e+25\", \"3\"",
            ],
        );
        check(
            large,
            json!(30_000_000_000_i64),
            &[
                "f: Invalid value: 30000000000: f in body should be less than or equal to 10000000000",
                "f: Unsupported value: 30000000000: supported values: \"1e+25\", \"3\"",
            ],
        );
        let between = json!({"type": "number", "minimum": 1.5, "maximum": 2.5});
        check(between.clone(), json!(1), &[]);
        check(between, json!(3), &["f: Invalid value: 3: f in body should be less than or equal to 2"]);
        check(json!({"type": "string", "maxLength": 2}), json!("abc"), &["f: Too long: may not be more than 2 bytes"]);
        check(
            json!({"type": "string", "minLength": 2}),
            json!("a"),
            &["f: Invalid value: \"a\": f in body should be at least 2 chars long"],
        );
        check(
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            &["f: Invalid value: \"b\": f in body should match '^a+$'"],
        );
        check(
            json!({"type": "string", "format": "date"}),
            json!("b"),
            &["f: Invalid value: \"b\": f in body must be of type date: \"b\""],
        );
        check(
            json!({"type": "string", "format": "date-time"}),
            json!("b"),
            &["f: Invalid value: \"b\": f in body must be of type date-time: \"b\""],
        );
        check(json!({"type": "string", "format": "int32"}), json!("b"), &[]);
        check(
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            &["f: Unsupported value: \"c\": supported values: \"a\", \"b\""],
        );
        check(
            json!({"type": "integer", "enum": [1, 2]}),
            json!(3),
            &["f: Unsupported value: 3: supported values: \"1\", \"2\""],
        );
        let list = json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2});
        check(list.clone(), json!([]), &["f: Invalid value: 0: f in body should have at least 1 items"]);
        check(list.clone(), json!(["a", "b", "c"]), &["f: Too many: 3: must have at most 2 items"]);
        check(
            list,
            json!([1]),
            &["f[0]: Invalid value: \"integer\": f[0] in body must be of type string: \"integer\""],
        );
        let object = json!({"type": "object", "required": ["a"], "minProperties": 1, "maxProperties": 1});
        check(
            object.clone(),
            json!({}),
            &["f: Invalid value: 0: f in body should have at least 1 properties", "f.a: Required value"],
        );
        check(object, json!({"a": 1, "b": 1}), &["f: Too many: 2: must have at most 1 item"]);
        check(
            json!({"type": "object", "additionalProperties": {"type": "boolean"}}),
            json!({"k": 1}),
            &["f.k: Invalid value: \"integer\": f.k in body must be of type boolean: \"integer\""],
        );
        check(json!({"type": "string", "nullable": true}), json!(null), &[]);
        check(
            json!({"type": "string"}),
            json!(null),
            &["f: Invalid value: \"null\": f in body must be of type string: \"null\""],
        );
        check(json!({"x-kubernetes-int-or-string": true}), json!("80"), &[]);
        check(
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            &["f: Invalid value: \"boolean\": f in body must be of type integer,string: \"boolean\""],
        );
        check(json!({"x-kubernetes-preserve-unknown-fields": true}), json!([1]), &[]);
    }

    #[test]
    fn alternatives_tell_of_the_closest() {
        let one = json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
        check(one.clone(), json!({"a": 1}), &[]);
        check(
            one.clone(),
            json!({}),
            &[
                "<nil>: Invalid value: \"\": \"f\" must validate one and only one schema (oneOf). Found none valid",
                "f.a: Required value",
            ],
        );
        check(
            one,
            json!({"a": 1, "b": 1}),
            &[
                "<nil>: Invalid value: \"\": \"f\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ],
        );
        let any = json!({"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 2}]});
        check(any.clone(), json!(1), &[]);
        check(
            any,
            json!(3),
            &[
                "<nil>: Invalid value: \"\": \"f\" must validate at least one schema (anyOf)",
                "f: Invalid value: 3: f in body should be greater than or equal to 5",
            ],
        );
        check(
            json!({"type": "integer", "not": {"minimum": 5}}),
            json!(6),
            &["<nil>: Invalid value: \"\": \"f\" must not validate the schema (not)"],
        );
        check(
            json!({"type": "integer", "allOf": [{"minimum": 5}, {"maximum": 2}]}),
            json!(6),
            &[
                "f: Invalid value: 6: f in body should be less than or equal to 2",
                "<nil>: Invalid value: \"\": \"f\" must validate all the schemas (allOf)",
            ],
        );
        check(
            json!({"type": "integer", "allOf": [{"maximum": 2}]}),
            json!(6),
            &[
                "f: Invalid value: 6: f in body should be less than or equal to 2",
                "<nil>: Invalid value: \"\": \"f\" must validate all the schemas (allOf). None validated",
            ],
        );
    }

    #[test]
    fn what_was_wrong_before_may_stay() {
        let of = json!({"type": "object", "properties": {
            "a": {"type": "string", "enum": ["x"]}, "b": {"type": "string", "enum": ["x"]},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}},
            "plain": {"type": "array", "items": {"type": "string", "maxLength": 1}}}});
        let old = json!({"a": "y", "b": "x", "map": [{"k": "1", "v": "long"}], "plain": ["long"]});
        assert_eq!(errors(&of, &old, Some(&old)), [""; 0]);
        let mut new = old.clone();
        new["b"] = json!("z");
        new["map"] = json!([{"k": "0"}, {"k": "1", "v": "long"}]);
        new["plain"] = json!(["long", "a"]);
        assert_eq!(
            errors(&of, &new, Some(&old)),
            [
                "b: Unsupported value: \"z\": supported values: \"x\"",
                "plain[0]: Too long: may not be more than 1 bytes",
            ]
        );
    }
}
