//! The preparation of an object before it is checked: nulls that stand for nothing go, defaults come in, and fields that
//! the schema does not know are taken out.

use json::{Map, Value};

use super::structural::{Additional, Structural};
use crate::codec::bounds::{OBJECT_BYTES_MAX, json_bytes};

/// The fields that every whole object has.
pub(crate) const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Takes out nulls that the schema does not allow, where no default will replace them.
pub fn drop_nulls(value: &mut Value, schema: &Structural) {
    match value {
        Value::Object(map) => {
            map.retain(|name, value| {
                let Some(of) = schema.field(name) else { return true };
                if value.is_null() && !of.nullable && of.default.is_none() {
                    return false;
                }
                drop_nulls(value, of);
                true
            });
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|item| drop_nulls(item, items));
            }
        }
        _ => {}
    }
}

/// The defaults that one object gets, in bytes of JSON. A list of empty objects, each with a large default, would take all the
/// memory there is; an object with more defaults than this is twice as large as what may be stored, and is refused for that.
const FILLED_MAX: usize = 2 * OBJECT_BYTES_MAX;

/// Fills in defaults, also those within defaults, as far as [`FILLED_MAX`].
pub fn default(value: &mut Value, schema: &Structural) {
    Filling { left: FILLED_MAX }.fill_in(value, schema);
}

/// The bytes of defaults for which there is still room.
struct Filling {
    left: usize,
}

impl Filling {
    /// A copy of a default. Once one does not fit there is none any more.
    fn copy(&mut self, default: &Value) -> Option<Value> {
        self.left = json_bytes(default, self.left).map_or(0, |bytes| self.left - bytes);
        (self.left > 0).then(|| default.clone())
    }

    fn fill_in(&mut self, value: &mut Value, schema: &Structural) {
        match value {
            Value::Object(map) => {
                for (name, of) in schema.properties.iter() {
                    if let Some(default) = &of.default
                        && !map.contains_key(name)
                        && let Some(copy) = self.copy(default)
                    {
                        map.insert(name.clone(), copy);
                    }
                }
                for (name, value) in map {
                    if let Some(of) = schema.field(name) {
                        self.fill(value, of);
                    }
                }
            }
            Value::Array(list) => {
                if let Some(items) = &schema.items {
                    list.iter_mut().for_each(|item| self.fill(item, items));
                }
            }
            _ => {}
        }
    }

    fn fill(&mut self, value: &mut Value, of: &Structural) {
        if value.is_null() && !of.nullable {
            *value = of.default.as_ref().and_then(|default| self.copy(default)).unwrap_or_default();
        }
        self.fill_in(value, of);
    }
}

/// Takes out the fields that the schema does not know. `whole` says that the value has metadata of its own.
pub fn prune(value: &mut Value, schema: &Structural, whole: bool) {
    match value {
        Value::Object(map) => prune_fields(map, schema, whole || schema.embedded),
        Value::Array(list) => match &schema.items {
            Some(items) => list.iter_mut().for_each(|item| prune(item, items, false)),
            None if schema.open => {}
            None => list.iter_mut().for_each(|item| prune(item, &Structural::default(), false)),
        },
        _ => {}
    }
}

fn prune_fields(map: &mut Map, schema: &Structural, whole: bool) {
    map.retain(|name, value| {
        if whole && META.contains(&name.as_str()) {
            return true;
        }
        match (schema.properties.get(name.as_str()), &schema.additional) {
            (Some(of), _) => prune(value, of, false),
            (None, Some(Additional::Of(of))) => prune(value, of, false),
            (None, _) if schema.open => {}
            (None, Some(Additional::Allowed(true))) => prune(value, &Structural::default(), false),
            (None, _) => return false,
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn schema(value: Value) -> Structural {
        Structural::of(&json::from_value(value).expect("a schema"))
    }

    #[test]
    fn defaults_come_in_at_every_depth_and_nulls_go() {
        let check = |of: Value, mut given: Value, expected: Value| {
            let of = schema(of);
            drop_nulls(&mut given, &of);
            default(&mut given, &of);
            assert_eq!(given, expected);
        };
        let inner = json!({"type": "object", "properties": {"b": {"type": "integer", "default": 3}}});
        let with = |default: Value| {
            json!({"type": "object", "properties": {"a": {"type": "object",
            "properties": {"b": {"type": "integer", "default": 3}}, "default": default}}})
        };
        check(with(json!({})), json!({}), json!({"a": {"b": 3}}));
        check(with(json!({"b": 4})), json!({"a": {}}), json!({"a": {"b": 3}}));
        check(with(json!({})), json!({"a": null}), json!({"a": {"b": 3}}));
        let list = json!({"properties": {"l": {"type": "array", "items": inner}, "m": {"type": "object",
            "additionalProperties": {"type": "string", "nullable": true, "default": "x"}}}});
        check(
            list,
            json!({"l": [{}, {"b": 1}], "m": {"k": null}}),
            json!({"l": [{"b": 3}, {"b": 1}], "m": {"k": null}}),
        );
        let nulls = json!({"properties": {"a": {"type": "string"}, "b": {"type": "string", "nullable": true},
            "c": {"type": "string", "default": "d"}}});
        check(
            nulls,
            json!({"a": null, "b": null, "c": null, "other": null}),
            json!({"b": null, "c": "d", "other": null}),
        );
    }

    #[test]
    fn defaults_make_an_object_too_large_and_no_larger() {
        let large = "x".repeat(200_000);
        let of = json!({"properties": {"l": {"type": "array", "items": {"type": "object", "properties": {"d": {"default": large}}}}}});
        let filled = |items: Vec<Value>| {
            let mut given = json!({"l": items});
            default(&mut given, &schema(of.clone()));
            given["l"].as_array().unwrap().iter().filter(|item| item.get("d").is_some()).count()
        };
        assert_eq!(filled(vec![json!({}); 5]), 5);
        // More than can be stored, so the object is refused.
        let most = filled(vec![json!({}); 90_000]);
        assert!((OBJECT_BYTES_MAX..=FILLED_MAX).contains(&(most * 200_000)), "{most}");
    }

    #[test]
    fn unknown_fields_go_unless_the_schema_keeps_them() {
        let check = |of: Value, mut given: Value, expected: Value| {
            prune(&mut given, &schema(of), true);
            assert_eq!(given, expected);
        };
        let of = json!({"properties": {"known": {"type": "object"}, "free": {"x-kubernetes-preserve-unknown-fields": true,
            "properties": {"tight": {"type": "object"}}}, "list": {"type": "array", "items": {"type": "object"}}}});
        let given = json!({"apiVersion": "v", "metadata": {"name": "n"}, "known": {"a": 1}, "x": 1,
            "free": {"y": {"z": 1}, "tight": {"q": 1}}, "list": [{"r": 1}]});
        let expected = json!({"apiVersion": "v", "metadata": {"name": "n"}, "known": {}, "free": {"y": {"z": 1}, "tight": {}},
            "list": [{}]});
        check(of, given, expected);
    }
}
