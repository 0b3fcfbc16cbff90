//! Other servers' parts of the one OpenAPI document of version 2. Pure.
//! Upstream counterpart: kube-openapi/pkg/aggregator.

use std::collections::{BTreeMap, BTreeSet};

use api::Value;
use json::{Map, json};

/// The parts of a document that its paths refer to by name: `#/definitions/Thing`.
const SHARED: [&str; 2] = ["definitions", "parameters"];
/// The number of names that are tried for one that is taken.
const RENAMES: usize = 100;

/// The paths below one path, and the definitions and parameters that they use; `None` where there are none.
pub fn part(mut document: Value, below: &str) -> Option<Value> {
    let Value::Object(document) = &mut document else { return None };
    let Some(Value::Object(mut paths)) = document.remove("paths") else { return None };
    let prefix = format!("{below}/");
    paths.retain(|path, _| path.starts_with(&prefix));
    if paths.is_empty() {
        return None;
    }
    let shared = SHARED.map(|section| document.remove(section).unwrap_or_default());
    let mut used = BTreeSet::new();
    let mut open = Vec::new();
    paths.values().for_each(|path| references(path, &mut open));
    // Kinds that no path names are looked up by clients all the same.
    let group_version = below.trim_start_matches("/apis/");
    for (name, definition) in shared[0].as_object().into_iter().flatten() {
        let kinds = definition["x-kubernetes-group-version-kind"].as_array();
        let of = |kind: &Value| {
            let text = |field: &str| kind[field].as_str().unwrap_or_default();
            format!("{}/{}", text("group"), text("version")) == group_version
        };
        if kinds.is_some_and(|kinds| kinds.iter().any(of)) {
            open.push((0, name.to_string()));
        }
    }
    while let Some((section, name)) = open.pop() {
        if let Some(value) = shared[section].get(&name)
            && used.insert((section, name))
        {
            references(value, &mut open);
        }
    }
    let mut part = json!({"paths": paths});
    for (at, section) in SHARED.into_iter().enumerate() {
        let names = used.iter().filter(|(of, _)| *of == at).map(|(_, name)| name);
        let values: Map = names.filter_map(|name| Some((name.clone(), shared[at].get(name)?.clone()))).collect();
        part[section] = Value::Object(values);
    }
    Some(part)
}

/// The place in [`SHARED`] of the section that a reference is into, and the name there.
fn target(reference: &str) -> Option<(usize, String)> {
    let (section, name) = reference.strip_prefix("#/")?.split_once('/')?;
    Some((SHARED.iter().position(|known| *known == section)?, name.to_owned()))
}

/// Adds everything that a value refers to.
fn references(value: &Value, found: &mut Vec<(usize, String)>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).and_then(target));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// Adds a part to the document of everything. No path that is there already is replaced, nor is a definition or parameter: one of
/// the same name that says something else gets another name.
pub fn merge(document: &mut Value, part: &Value) {
    let mut renamed = BTreeMap::new();
    let pairs = |section: &str| part[section].as_object().cloned().unwrap_or_default();
    for (at, section) in SHARED.into_iter().enumerate() {
        for (name, value) in pairs(section) {
            let fits = |name: &String| document[section].get(name).is_none_or(|present| *present == value);
            let others = (2..RENAMES).map(|n| format!("{name}_v{n}"));
            let Some(fitting) = std::iter::once(name.to_string()).chain(others).find(fits) else { return };
            renamed.insert((at, name.to_string()), fitting);
        }
    }
    for (at, section) in SHARED.into_iter().enumerate() {
        for (name, value) in pairs(section) {
            put(document, section, renamed[&(at, name.to_string())].clone(), value, &renamed);
        }
    }
    for (path, value) in pairs("paths") {
        put(document, "paths", path.to_string(), value, &renamed);
    }
}

/// Adds a value, which refers to others by their new names, where nothing has its name.
fn put(
    document: &mut Value,
    section: &str,
    name: String,
    mut value: Value,
    renamed: &BTreeMap<(usize, String), String>,
) {
    rename(&mut value, renamed);
    if document[section].is_null() {
        document[section] = json!({});
    }
    document[section].as_object_mut().map(|all| all.entry(name).or_insert(value));
}

fn rename(value: &mut Value, renamed: &BTreeMap<(usize, String), String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(target) = target(reference)
                && let Some(new) = renamed.get(&target)
            {
                *reference = format!("#/{}/{new}", SHARED[target.0]);
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
        json!({"schema": {"$ref": format!("#/definitions/{name}")}})
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

    #[test]
    fn shared_parameters_come_along() {
        let refer = |name: &str| json!({"parameters": [{"$ref": format!("#/parameters/{name}")}, {"$ref": "#/x/y"}]});
        let document = json!({
            "paths": {"/apis/a/v1/x": refer("namespace-1"), "/apis/b/v1/x": refer("other")},
            "parameters": {"namespace-1": {"schema": {"$ref": "#/definitions/T"}}, "other": {}},
            "definitions": {"T": {"type": "string"}},
        });
        let part = part(document, "/apis/a/v1").unwrap();
        let own = json!({"namespace-1": {"schema": {"$ref": "#/definitions/T"}}});
        assert_eq!((&part["parameters"], &part["definitions"]), (&own, &json!({"T": {"type": "string"}})));
        let mut none = json!({"paths": {}, "definitions": {}});
        merge(&mut none, &part);
        assert_eq!((&none["parameters"], &none["paths"]["/apis/a/v1/x"]), (&own, &refer("namespace-1")));
        let mut taken = json!({"paths": {}, "definitions": {}, "parameters": {"namespace-1": {"in": "path"}}});
        merge(&mut taken, &part);
        assert_eq!(taken["parameters"]["namespace-1"], json!({"in": "path"}));
        assert_eq!(taken["parameters"]["namespace-1_v2"], own["namespace-1"]);
        assert_eq!(taken["paths"]["/apis/a/v1/x"], refer("namespace-1_v2"));
    }
}
