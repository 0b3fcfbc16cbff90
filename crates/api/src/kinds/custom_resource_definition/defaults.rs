//! Defaults are values that the schema allows.
//! Upstream counterpart: apiextensions-apiserver/pkg/apiserver/schema/defaulting/validation.go.

use json::{Key, Map, Value};

use crate::custom::{META, Rules, Structural, aggregate, check_embedded, check_value, prune};
use crate::validation::field::{Errors, FieldError, Path};

/// The errors of the defaults of a version's schema. Defaults may have fields that the schema does not know where they
/// need not be `pruned`.
pub fn validate(schema: &Structural, pruned: bool, path: &Path) -> Errors {
    let mut walk = Walk { errors: Errors::new(), pruned, steps: Vec::new() };
    walk.place(schema, &Place { resource: schema, start: 0, in_meta: false }, path);
    walk.errors
}

/// One step from an object to what is in it.
enum Step<'s> {
    Field(&'s str),
    Item,
}

/// The whole object around a place, which metadata is checked as a part of.
#[derive(Clone, Copy)]
struct Place<'s> {
    resource: &'s Structural,
    /// The number of steps that lead to it.
    start: usize,
    in_meta: bool,
}

struct Walk<'s> {
    errors: Errors,
    pruned: bool,
    /// The way to the present place.
    steps: Vec<Step<'s>>,
}

impl<'s> Walk<'s> {
    fn place(&mut self, schema: &'s Structural, place: &Place<'s>, path: &Path) {
        let own = Place { resource: schema, start: self.steps.len(), in_meta: false };
        let place = if schema.embedded { &own } else { place };
        let whole = std::ptr::eq(schema, place.resource);
        if let Some(default) = &schema.default {
            let errors = self.errors_of(default, schema, place, &path.child("default"));
            self.errors.extend(errors);
        }
        if let Some(items) = &schema.items {
            self.steps.push(Step::Item);
            self.place(items, place, &path.child("items"));
            self.steps.pop();
        }
        for (name, of) in schema.properties.iter() {
            let in_meta = place.in_meta || whole && META.contains(&name.as_str());
            self.steps.push(Step::Field(name));
            self.place(of, &Place { in_meta, ..*place }, &path.child("properties").key(name));
            self.steps.pop();
        }
    }

    /// The first group of errors that a default has: of its fields and its metadata, of its values, of the rules.
    fn errors_of(&self, default: &Value, schema: &Structural, place: &Place<'s>, path: &Path) -> Errors {
        let mut errors = Errors::new();
        let whole = std::ptr::eq(schema, place.resource);
        if place.in_meta {
            let around = surround(default, &self.steps[place.start..]);
            let wrong = check_embedded(&around, place.resource, true, &Path::default());
            if !wrong.is_empty() {
                let detail = format!("must result in valid metadata: {}", aggregate(&wrong));
                return vec![FieldError::invalid(path, default, &detail)];
            }
        } else {
            let mut known = default.clone();
            prune(&mut known, schema, whole);
            if self.pruned && known != *default {
                errors.push(FieldError::invalid(path, default, "must not have unknown fields"));
            }
            let wrong = check_embedded(default, schema, whole, path);
            if !wrong.is_empty() {
                errors.extend(wrong);
                return errors;
            }
        }
        let wrong = check_value(default, None, schema, &path.to_string());
        if wrong.is_empty()
            && let Some(rules) = Rules::of(schema, whole)
        {
            errors.extend(rules.check_default(schema, default, path));
        }
        errors.extend(wrong);
        errors
    }
}

/// The smallest whole object with this value at the end of these steps.
fn surround(value: &Value, steps: &[Step<'_>]) -> Value {
    let mut around = steps.iter().rev().fold(value.clone(), |inner, step| match step {
        Step::Field(name) => {
            let mut map = Map::new();
            map.insert(Key::of(name), inner);
            Value::Object(map)
        }
        Step::Item => Value::Array(vec![inner]),
    });
    if let Value::Object(map) = &mut around {
        map.entry("apiVersion").or_insert_with(|| "validation/v1".into());
        map.entry("kind").or_insert_with(|| "Validation".into());
    }
    around
}
