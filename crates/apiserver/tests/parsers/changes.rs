//! Patches and server-side apply: whatever they say, and a change that was made once changes nothing when it is made again.

use api::{
    Value,
    codec::decode::{Validation, decode},
    kind::Definition,
    write::{
        apply,
        entries::Writer,
        patch::{Kind, Patch},
        resets::Resets,
    },
};
use fuzz::Target;

use crate::{found, kinds, objects};

const WORDS: &[&str] = &[
    "\"op\":\"add\"",
    "\"op\":\"copy\"",
    "\"op\":\"move\"",
    "\"op\":\"test\"",
    "\"op\":\"remove\"",
    "\"path\":\"/spec/containers/0\"",
    "\"path\":\"/metadata/labels/a~1b\"",
    "\"from\":\"\"",
    "\"path\":\"\"",
    "/-",
    "~0",
    "~1",
    "\"value\":",
    "\"$patch\":\"delete\"",
    "\"$patch\":\"replace\"",
    "\"$retainKeys\":[\"name\"]",
    "\"$setElementOrder/containers\":[{\"name\":\"c\"}]",
    "\"$deleteFromPrimitiveList/finalizers\":[\"example.com/x\"]",
    "\"containers\":[{\"name\":\"c\"}]",
    "\"metadata\":",
    "\"spec\":",
    "null",
];

/// The Pod that is changed.
fn pod() -> (std::sync::Arc<Definition>, Value) {
    let text = objects().swap_remove(0);
    let definition = kinds::of(&text);
    let pod = decode(&definition.ty, kinds::gvk(&definition), &text, "", Validation::Strict).unwrap().value;
    (definition, pod)
}

fn patches(name: &str, kind: Kind, seeds: &[&str], check: impl Fn(&dyn Fn(Value) -> Option<Value>, Value)) {
    let (definition, pod) = pod();
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    let target = Target { name, seeds, words: WORDS, found: found() };
    fuzz::run(&target, |input| {
        let patch = match Patch::read(kind, input) {
            Ok(patch) => patch,
            Err(error) => return error.message,
        };
        let apply = |to: Value| patch.apply(&definition.ty, &to, Validation::Warn);
        match apply(pod.clone()) {
            Ok(patched) => {
                check(&|to| apply(to).ok().map(|decoded| decoded.value), patched.value);
                "patched".to_owned()
            }
            Err(error) => error.message,
        }
    });
}

#[test]
fn json_patch() {
    let seeds = [
        r#"[{"op":"replace","path":"/spec/containers/0/image","value":"j"},{"op":"test","path":"/kind","value":"Pod"}]"#,
        r#"[{"op":"add","path":"/spec/containers/-","value":{"name":"d","image":"i"}},{"op":"remove","path":"/metadata/labels/app"}]"#,
        r#"[{"op":"copy","from":"/spec","path":"/metadata/annotations"},{"op":"move","from":"/spec/volumes/0","path":"/spec/volumes/1"}]"#,
        r#"[{"op":"copy","from":"","path":"/a"},{"op":"copy","from":"","path":"/a"},{"op":"copy","from":"","path":"/a"}]"#,
    ];
    patches("json-patch", Kind::Json, &seeds, |_, _| {});
}

#[test]
fn merge_patch() {
    let seeds = [
        r#"{"metadata":{"labels":{"app":null,"b":"c"}},"spec":{"containers":[{"name":"x","image":"i"}]}}"#,
        r#"{"spec":null,"metadata":{"annotations":{}}}"#,
    ];
    patches("merge-patch", Kind::Merge, &seeds, |apply, patched| {
        assert_eq!(apply(patched.clone()), Some(patched), "again");
    });
}

#[test]
fn strategic_patch() {
    let seeds = [
        r#"{"spec":{"containers":[{"name":"c","image":"j","env":[{"name":"A","$patch":"delete"},{"name":"C","value":"2"}]}]}}"#,
        r#"{"spec":{"$setElementOrder/containers":[{"name":"d"},{"name":"c"}],"containers":[{"name":"d","image":"i"}]}}"#,
        r#"{"spec":{"volumes":[{"$retainKeys":["name","emptyDir"],"name":"v","emptyDir":{}}],"containers":[{"$patch":"replace"},{"name":"z"}]}}"#,
        r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/x"],"labels":{"$patch":"replace","x":"y"}}}"#,
    ];
    patches("strategic-patch", Kind::Strategic, &seeds, |_, _| {});
}

/// Whether an item was applied without one of its list's keys that has no default. The stored item then has a zero there, as
/// upstream's, and the next apply is about another item; validation refuses all of these zeros.
fn lacks_a_key(object: &Value) -> bool {
    const PAIRS: [(&str, &str); 2] = [("port", "containerPort"), ("topologyKey", "whenUnsatisfiable")];
    let owned = object["metadata"]["managedFields"].to_string().replace('\\', "");
    owned.split("\"k:{").skip(1).filter_map(|item| item.split('}').next()).any(|keys| {
        let has = |key: &str| keys.contains(&format!("\"{key}\":"));
        let [(service, container), (topology, otherwise)] = PAIRS;
        (has("protocol") && !has(service) && !has(container)) || has(topology) != has(otherwise)
    })
}

#[test]
fn server_side_apply() {
    let target = Target { name: "apply", seeds: objects(), words: WORDS, found: found() };
    fuzz::run(&target, |input| {
        let definition = kinds::of(input);
        let (ty, gvk, api_version) = (&definition.ty, kinds::gvk(&definition), definition.api_version());
        let request = match apply::read(ty, gvk, input, Validation::Warn) {
            Ok(request) => request,
            Err(error) => return error.message,
        };
        let now = "2020-01-01T00:00:00Z".parse().unwrap();
        let by = Writer {
            manager: "m",
            api_version: &api_version,
            subresource: "",
            now,
            resets: Resets::NONE,
            versions: None,
        };
        let first = match request.apply(ty, gvk, None, &by, false) {
            Ok(first) => first.value,
            Err(error) => return error.message,
        };
        if lacks_a_key(&first) {
            return "an item without one of its keys".to_owned();
        }
        let again = request.apply(ty, gvk, Some(&first), &by, false);
        assert_eq!(again.expect("nobody else owns anything").value, first, "again");
        // Another one who says the same has no conflict, but about atomic lists to whose items the schema has added zeros.
        let other = Writer { manager: "n", ..by };
        let shared = match request.apply(ty, gvk, Some(&first), &other, false) {
            Ok(shared) => shared.value,
            Err(error) if error.code == 409 => return error.message,
            Err(error) => panic!("{}", error.message),
        };
        let forced = request.apply(ty, gvk, Some(&shared), &by, true).expect("force").value;
        assert_eq!(forced["spec"], first["spec"], "what two say alike");
        "applied".to_owned()
    });
}
