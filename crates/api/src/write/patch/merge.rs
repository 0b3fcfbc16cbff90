//! JSON merge patch, RFC 7386: objects merge, null removes, everything else replaces.

use json::{Map, Value};

/// Merges `patch` into `current`.
pub fn apply(mut current: Value, patch: &Value) -> Value {
    merge(&mut current, patch);
    current
}

/// Goes as deep as the patch, which was read within bounds.
fn merge(current: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *current = patch.clone();
        return;
    };
    if !current.is_object() {
        *current = Value::Object(Map::new());
    }
    let Value::Object(fields) = current else { return };
    for (name, value) in patch {
        match (value, fields.get_mut(name)) {
            (Value::Null, _) => drop(fields.remove(name)),
            (value, Some(field)) => merge(field, value),
            (value, None) => {
                let mut field = Value::Null;
                merge(&mut field, value);
                fields.insert(name.clone(), field);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    /// The examples of the RFC's appendix.
    #[test]
    fn the_rfc_says_what_comes_out() {
        let check = |current: Value, patch: Value, merged: Value| {
            assert_eq!(apply(current.clone(), &patch), merged, "{current} with {patch}");
        };
        check(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}));
        check(json!({"a": "b"}), json!({"a": null}), json!({}));
        check(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}));
        check(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}));
        check(json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}}));
        check(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}));
        check(json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"]));
        check(json!({"a": "b"}), json!(["c"]), json!(["c"]));
        check(json!({"a": "foo"}), json!(null), json!(null));
        check(json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1}));
        check(json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"}));
        check(json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}}));
    }
}
