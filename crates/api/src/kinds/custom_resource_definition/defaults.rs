//! Defaults are values that the schema allows.
//! Upstream counterpart: apiextensions-apiserver/pkg/apiserver/schema/defaulting/validation.go.

use crate::custom::{Rules, Structural, check_value, prune};
use crate::validation::field::{Errors, FieldError, Path};

/// The errors of the defaults of a schema.
pub fn validate(schema: &Structural, path: &Path) -> Errors {
    let mut errors = Errors::new();
    walk(schema, path, &mut errors);
    errors
}

fn walk(schema: &Structural, path: &Path, errors: &mut Errors) {
    if let Some(default) = &schema.default {
        let place = path.child("default");
        let mut pruned = default.clone();
        prune(&mut pruned, schema, schema.embedded);
        if pruned != *default {
            errors.push(FieldError::invalid(&place, default, "must not have unknown fields"));
        }
        let wrong = check_value(default, None, schema, &place.to_string());
        if wrong.is_empty()
            && let Some(rules) = Rules::of(schema, schema.embedded)
        {
            errors.extend(rules.check(schema, default, None, Some(&place)));
        }
        errors.extend(wrong);
    }
    if let Some(items) = &schema.items {
        walk(items, &path.child("items"), errors);
    }
    for (name, of) in schema.properties.iter() {
        walk(of, &path.child("properties").key(name), errors);
    }
}
