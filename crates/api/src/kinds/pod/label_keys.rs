//! Keys of labels whose values a Pod compares with its own: a new Pod's selectors get its values, so that whoever reads the
//! selector later needs not know of the keys.

use json::{Map, Value, json};

/// Writes the Pod's own values into the selectors that ask for them.
pub(super) fn merge(pod: &mut Value) {
    let says = |part: &str| pod.get("spec").is_some_and(|spec| spec.get(part).is_some());
    if !says("topologySpreadConstraints") && !says("affinity") {
        return;
    }
    let Some(labels) = pod.pointer("/metadata/labels").and_then(Value::as_object).cloned() else { return };
    let Some(spec) = pod.get_mut("spec") else { return };
    for constraint in list(spec.get_mut("topologySpreadConstraints")) {
        add(constraint, &labels);
    }
    let Some(affinity) = spec.get_mut("affinity") else { return };
    for sort in ["podAffinity", "podAntiAffinity"] {
        let Some(terms) = affinity.get_mut(sort) else { continue };
        for term in list(terms.get_mut("requiredDuringSchedulingIgnoredDuringExecution")) {
            add(term, &labels);
        }
        for preferred in list(terms.get_mut("preferredDuringSchedulingIgnoredDuringExecution")) {
            if let Some(term) = preferred.get_mut("podAffinityTerm") {
                add(term, &labels);
            }
        }
    }
}

fn list(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_array_mut).into_iter().flatten()
}

/// A term without a selector selects nothing, with or without further conditions.
fn add(term: &mut Value, labels: &Map) {
    let keys = |field: &str| -> Vec<String> {
        let keys = term.get(field).and_then(Value::as_array).into_iter().flatten();
        keys.filter_map(|key| key.as_str().map(str::to_owned)).collect()
    };
    let asked = [("In", keys("matchLabelKeys")), ("NotIn", keys("mismatchLabelKeys"))];
    let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut) else { return };
    for (operator, keys) in asked {
        for (key, value) in keys.iter().filter_map(|key| Some((key, labels.get(key)?))) {
            let expression = json!({"key": key, "operator": operator, "values": [value]});
            match selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
                Some(expressions) => expressions.push(expression),
                None => _ = selector.insert("matchExpressions", json!([expression])),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_pods_selectors_get_its_own_values() {
        let labels = json!({"app": "web", "version": "2"});
        let merged = |term: Value| {
            let mut pod = json!({"metadata": {"labels": labels}, "spec": {"topologySpreadConstraints": [term],
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
                    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]}}}});
            merge(&mut pod);
            let places = [
                "/spec/topologySpreadConstraints/0",
                "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0",
                "/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm",
            ];
            let found = places.map(|place| pod.pointer(place).unwrap()["labelSelector"].clone());
            assert!(found.iter().all(|selector| *selector == found[0]), "{pod}");
            found[0].clone()
        };
        let of = |operator: &str| json!({"key": "version", "operator": operator, "values": ["2"]});
        for (term, expected) in [
            (json!({"labelSelector": {"matchLabels": {"app": "web"}}}), json!({"matchLabels": {"app": "web"}})),
            (
                json!({"labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["version", "absent"]}),
                json!({"matchLabels": {"app": "web"}, "matchExpressions": [of("In")]}),
            ),
            (
                json!({"labelSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]},
                    "mismatchLabelKeys": ["version"]}),
                json!({"matchExpressions": [{"key": "x", "operator": "Exists"}, of("NotIn")]}),
            ),
            (json!({"matchLabelKeys": ["version"]}), Value::Null),
        ] {
            assert_eq!(merged(term.clone()), expected, "{term}");
        }
    }
}
