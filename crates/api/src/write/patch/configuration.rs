//! Part of an object, merged into the whole as server-side apply does, but for nobody: no field has an owner after it. It sets
//! fields, and adds to lists and maps whose parts can be told apart; what is only replaced as a whole it may not hold, since
//! whoever writes a part of that would take the rest away.
//! Upstream counterpart: apiserver/pkg/admission/plugin/policy/mutating/patch/smd.go.

use json::Value;

use crate::codec::decode;
use crate::schema::{ListKind, Type};
use crate::write::{structured_merge, typed};

/// The object with the part merged in, run through the schema.
pub fn apply(ty: &Type, object: &Value, part: &Value) -> Result<Value, String> {
    let unfit = |why: String| format!("failed to convert patch object to typed object: {why}");
    if let Some(why) = typed::misfit(ty, part) {
        return Err(unfit(why));
    }
    let (part, _) = decode::typed(ty, part.clone()).map_err(unfit)?;
    let mut whole = Vec::new();
    atomics(ty, &part, String::new(), &mut whole);
    if !whole.is_empty() {
        let places = whole.join(", ");
        return Err(format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {places}"));
    }
    let merged = structured_merge::merge(ty, object.clone(), &part);
    let (merged, _) = decode::normalise_changed(ty, merged, object)
        .map_err(|why| format!("failed to convert typed object to object: {why}"))?;
    Ok(merged)
}

/// The places of what is replaced as a whole.
fn atomics(ty: &Type, value: &Value, place: String, found: &mut Vec<String>) {
    match (ty.resolve(), value) {
        (Type::Object(object), Value::Object(fields)) => {
            if object.atomic {
                found.push(place.clone());
            }
            for (name, value) in fields {
                if let Some(field) = object.field(name) {
                    atomics(&field.ty, value, format!("{place}.{name}"), found);
                }
            }
        }
        (Type::Map(map), Value::Object(_)) if map.atomic => found.push(place),
        (Type::List(list), Value::Array(items)) => {
            if list.kind == ListKind::Atomic {
                found.push(place.clone());
            }
            for (index, item) in items.iter().enumerate() {
                atomics(&list.items, item, format!("{place}[{index}]"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::schema;

    fn merged(object: Value, part: Value) -> Result<Value, String> {
        let ty = schema::of("io.k8s.api.apps.v1.Deployment").expect("known");
        let (object, _) = decode::normalise(ty, object).expect("a Deployment");
        apply(ty, &object, &part).map(|mut object| object["spec"].take())
    }

    /// A Deployment whose Pods have this spec.
    fn of_pods(spec: Value) -> Value {
        json!({"spec": {"template": {"spec": spec}}})
    }

    #[test]
    fn parts_are_merged_by_the_keys_of_their_lists() {
        let pods = |object: Value, part: Value| {
            merged(of_pods(object), of_pods(part)).map(|mut spec| spec["template"]["spec"].take())
        };
        assert_eq!(merged(json!({"spec": {"replicas": 1}}), json!({"spec": {"replicas": 3}})).unwrap()["replicas"], 3);
        let volumes = |volumes: Value| json!({"volumes": volumes});
        let check = |object: Value, part: Value, expected: Value| {
            assert_eq!(pods(volumes(object), volumes(part)).expect("merged")["volumes"], expected);
        };
        check(json!([{"name": "x"}]), json!([{"name": "y"}]), json!([{"name": "x"}, {"name": "y"}]));
        check(
            json!([{"name": "x"}, {"name": "y"}]),
            json!([{"name": "y", "hostPath": {"path": "a"}}]),
            json!([{"name": "x"}, {"name": "y", "hostPath": {"path": "a"}}]),
        );
        // An item that is changed stands once afterwards.
        let environment = |variables: Value| json!({"containers": [{"name": "c", "env": variables}]});
        let changed = pods(
            environment(json!([{"name": "t", "value": "a"}, {"name": "t", "value": "b"}, {"name": "f", "value": "f"}])),
            environment(json!([{"name": "t", "value": "c"}])),
        );
        let expected = json!([{"name": "t", "value": "c"}, {"name": "f", "value": "f"}]);
        assert_eq!(changed.expect("merged")["containers"][0]["env"], expected);
    }

    #[test]
    fn what_is_replaced_as_a_whole_is_refused() {
        let check = |part: Value, expected: &str| {
            let why = merged(json!({"spec": {"replicas": 1}}), part).expect_err("refused");
            assert_eq!(why, expected);
        };
        let whole = "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: ";
        check(json!({"spec": {"selector": {"matchLabels": {"l": "v"}}}}), &format!("{whole}.spec.selector"));
        check(
            of_pods(json!({"containers": [{"name": "c", "args": ["a"], "command": []}], "nodeSelector": {"a": "b"}})),
            &format!(
                "{whole}.spec.template.spec.containers[0].args, .spec.template.spec.containers[0].command, \
                 .spec.template.spec.nodeSelector"
            ),
        );
        check(
            json!({"spec": {"replicasx": 1}}),
            "failed to convert patch object to typed object: .spec.replicasx: field not declared in schema",
        );
        check(
            json!({"spec": {"replicas": "x"}}),
            "failed to convert patch object to typed object: .spec.replicas: expected numeric (int or float), got string",
        );
    }
}
