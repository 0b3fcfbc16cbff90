//! Other servers' parts of the one OpenAPI document of version 2. Pure.
//! Upstream counterpart: kube-openapi/pkg/aggregator.

use std::collections::{BTreeMap, BTreeSet};

use api::Value;
use json::{Map, json};

const DEFINITIONS: &str = "#/definitions/";
/// The number of names that are tried for one that is taken.
const RENAMES: usize = 100;

/// The paths below one path, and the definitions that they use; `None` where there are none.
pub fn part(mut document: Value, below: &str) -> Option<Value> {
    let Value::Object(document) = &mut document else { return None };
    let Some(Value::Object(mut paths)) = document.remove("paths") else { return None };
    let prefix = format!("{below}/");
    paths.retain(|path, _| path.starts_with(&prefix));
    if paths.is_empty() {
        return None;
    }
    let definitions = document.remove("definitions").unwrap_or_default();
    let mut used = BTreeSet::new();
    let mut open = Vec::new();
    paths.values().for_each(|path| names(path, &mut open));
    // Kinds that no path names are looked up by clients all the same.
    let group_version = below.trim_start_matches("/apis/");
    for (name, definition) in definitions.as_object().into_iter().flatten() {
        let kinds = definition["x-kubernetes-group-version-kind"].as_array();
        let of = |kind: &Value| {
            let text = |field: &str| kind[field].as_str().unwrap_or_default();
            format!("{}/{}", text("group"), text("version")) == group_version
        };
        if kinds.is_some_and(|kinds| kinds.iter().any(of)) {
            open.push(name.to_string());
        }
    }
    while let Some(name) = open.pop() {
        if let Some(definition) = definitions.get(&name)
            && used.insert(name)
        {
            names(definition, &mut open);
        }
    }
    let definitions: Map =
        used.into_iter().filter_map(|name| Some((name.clone(), definitions.get(&name)?.clone()))).collect();
    Some(json!({"paths": paths, "definitions": definitions}))
}

/// Adds the names of all definitions that a value refers to.
fn names(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(DEFINITIONS));
            found.extend(reference.map(str::to_owned));
            fields.values().for_each(|value| names(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, found)),
        _ => {}
    }
}

/// Adds a part to the document of everything. No path that is there already is replaced, nor is a definition: one of the same
/// name that says something else gets another name.
pub fn merge(document: &mut Value, part: &Value) {
    let Some(own) = document["definitions"].as_object() else { return };
    let mut renamed = BTreeMap::new();
    for (name, definition) in part["definitions"].as_object().into_iter().flatten() {
        let fits = |name: &String| own.get(name).is_none_or(|present| present == definition);
        let others = (2..RENAMES).map(|n| format!("{name}_v{n}"));
        let Some(fitting) = std::iter::once(name.to_string()).chain(others).find(fits) else { return };
        renamed.insert(name.to_string(), fitting);
    }
    let pairs = |field: &str| part[field].as_object().cloned().unwrap_or_default();
    for (name, mut definition) in pairs("definitions") {
        rename(&mut definition, &renamed);
        document["definitions"]
            .as_object_mut()
            .map(|all| all.entry(renamed[name.as_str()].clone()).or_insert(definition));
    }
    for (path, mut value) in pairs("paths") {
        rename(&mut value, &renamed);
        document["paths"].as_object_mut().map(|all| all.entry(path).or_insert(value));
    }
}

fn rename(value: &mut Value, renamed: &BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(new) = reference.strip_prefix(DEFINITIONS).and_then(|name| renamed.get(name))
            {
                *reference = format!("{DEFINITIONS}{new}");
            }
            fields.values_mut().for_each(|value| rename(value, renamed));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, renamed)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refers(name: &str) -> Value {
        json!({"schema": {"$ref": format!("{DEFINITIONS}{name}")}})
    }

    #[test]
    fn a_part_is_what_is_below_its_path() {
        let document = json!({
            "paths": {"/apis/a/v1/things": refers("Thing"), "/apis/a/v10/x": refers("Other"), "/apis/apps/v1/x": {}},
            "definitions": {"Thing": refers("Meta"), "Meta": refers("Thing"), "Other": {}},
        });
        let part = part(document.clone(), "/apis/a/v1").unwrap();
        assert_eq!(part["paths"], json!({"/apis/a/v1/things": refers("Thing")}));
        assert_eq!(part["definitions"], json!({"Thing": refers("Meta"), "Meta": refers("Thing")}));
        assert_eq!(super::part(document, "/apis/b/v1"), None);
        for broken in [json!({"paths": 7}), json!([1]), json!("text"), json!(null)] {
            assert_eq!(super::part(broken, "/apis/b/v1"), None);
        }
        let odd = json!({"paths": {"/apis/a/v1/x": [{"$ref": 7}, refers("none")]}, "definitions": [1]});
        assert_eq!(super::part(odd, "/apis/a/v1").unwrap()["definitions"], json!({}));
    }

    #[test]
    fn nothing_that_is_there_is_replaced() {
        let mut all =
            json!({"paths": {"/apis/a/v1/x": {"own": true}}, "definitions": {"Meta": {"own": true}, "Same": {}}});
        let part = json!({
            "paths": {"/apis/a/v1/x": {"own": false}, "/apis/a/v1/y": refers("Meta")},
            "definitions": {"Meta": refers("Meta"), "Same": {}},
        });
        merge(&mut all, &part);
        assert_eq!(all["paths"], json!({"/apis/a/v1/x": {"own": true}, "/apis/a/v1/y": refers("Meta_v2")}));
        assert_eq!(all["definitions"]["Meta"], json!({"own": true}));
        assert_eq!(all["definitions"]["Meta_v2"], refers("Meta_v2"));
    }
}
