//! Objects in JSON, YAML, protobuf and CBOR: what is read is read again from what it is written as, and goes through defaults and
//! validation.

use api::{
    Value,
    codec::{
        cbor,
        decode::{Validation, decode, normalise},
        protobuf,
    },
    kind::Definition,
    schema::Type,
};
use apiserver::storage::strategy;
use fuzz::Target;

use crate::{found, kinds, objects};

const WORDS: &[&str] = &[
    "\"apiVersion\":\"v1\"",
    "\"kind\":\"Pod\"",
    "\"metadata\":",
    "\"name\":",
    "\"spec\":",
    "\"labels\":",
    "\"managedFields\":[",
    "\"fieldsV1\":{\"f:metadata\":{}}",
    "\"creationTimestamp\":\"2020-01-01T00:00:00Z\"",
    "\"1.5Gi\"",
    "\"25%\"",
    "\"100m\"",
    "&a ",
    "*a",
    "<<: *a",
    "!!binary ",
    "!!float ",
    "--- ",
    "...\n",
    "? ",
    "- ",
    "|\n ",
    ">-\n ",
    "# ",
    "\r\n",
    "0x1f",
    "0o17",
    ".inf",
    "~",
];

/// The outcome of a body, and if it was read, whether all that follows from it holds.
fn check(definition: &Definition, input: &[u8], media_type: &str) -> String {
    let (ty, gvk) = (&definition.ty, kinds::gvk(definition));
    let decoded = match decode(ty, gvk, input, media_type, Validation::Warn) {
        Ok(decoded) => decoded.value,
        Err(error) => return error.message,
    };
    let text = decoded.to_string();
    let again = decode(ty, gvk, text.as_bytes(), "application/json", Validation::Strict);
    let again = again.unwrap_or_else(|error| panic!("{}: {text}", error.message));
    assert_eq!(again.value, decoded, "JSON");
    check_binary(definition, &decoded);
    accepted(definition, decoded)
}

/// As bytes and back.
fn check_binary(definition: &Definition, object: &Value) {
    let schema = &definition.ty.object().expect("a kind is an object").name;
    let Some(bytes) = protobuf::encode(schema, object) else { return };
    let back = protobuf::decode(schema, &bytes).expect("what was written can be read");
    let (back, unknown) = normalise(&definition.ty, back).expect("what was written fits");
    assert!(unknown.is_empty(), "{unknown:?}");
    let again = protobuf::encode(schema, &back).expect("what was read can be written");
    let twice = normalise(&definition.ty, protobuf::decode(schema, &again).expect("still")).expect("still");
    assert_eq!(twice.0, back, "protobuf");
}

/// Defaults and validation, as in a create.
fn accepted(definition: &Definition, mut object: Value) -> String {
    definition.default(&mut object, || "2020-01-01T00:00:00Z".to_owned());
    match strategy::before_create(definition, &mut object) {
        Ok(_) => "created".to_owned(),
        Err(error) => error.message.split_once("is invalid: ").map(|(_, why)| why.to_owned()).unwrap_or(error.message),
    }
}

#[test]
fn json() {
    let target = Target { name: "json", seeds: objects(), words: WORDS, found: found() };
    fuzz::run(&target, |input| check(&kinds::of(input), input, "application/json"));
}

#[test]
fn yaml() {
    let plain = "apiVersion: v1\nkind: \"Pod\"\nmetadata: {name: a, labels: &l {a: b}}\nspec:\n  nodeSelector: *l\n  containers:\n  - name: c\n    \
                 image: >-\n      i\n    command: [a, 'b', \"c\"]\n    ports:\n    - containerPort: 80\n";
    let seeds = objects().into_iter().chain([plain.as_bytes().to_vec()]).collect();
    let target = Target { name: "yaml", seeds, words: WORDS, found: found() };
    fuzz::run(&target, |input| check(&kinds::of(input), input, "application/yaml"));
}

#[test]
fn binary() {
    let seeds = objects().into_iter().map(|object| {
        let definition = kinds::of(&object);
        let schema = &definition.ty.object().unwrap().name;
        let value = decode(&definition.ty, kinds::gvk(&definition), &object, "", Validation::Strict).unwrap().value;
        protobuf::encode(schema, &value).unwrap_or_default()
    });
    let target = Target {
        name: "protobuf",
        seeds: seeds.collect(),
        words: &["k8s\0", "\n\u{2}v1", "\u{12}\u{3}Pod", "\u{ff}\u{ff}\u{1}"],
        found: found(),
    };
    fuzz::run(&target, |input| {
        let pods = kinds::of(b"");
        let as_pods = check(&pods, input, protobuf::MEDIA_TYPE);
        let named = |kind: &str| input.windows(kind.len()).any(|part| part == kind.as_bytes());
        let meant = objects().iter().map(|object| kinds::of(object)).find(|definition| named(&definition.kind));
        meant.map_or(as_pods, |definition| check(&definition, input, protobuf::MEDIA_TYPE))
    });
}

/// A document in CBOR is read again from what is written of it, and becomes an object by way of JSON.
#[test]
fn cbor() {
    let seeds = objects().into_iter().map(|object| {
        let definition = kinds::of(&object);
        cbor::document(&definition.ty, &serde_json::from_slice(&object).expect("JSON"))
    });
    let target = Target {
        name: "cbor",
        seeds: seeds.collect(),
        words: &["\u{0}", "Ckind", "CPod", "Hmetadata", "\u{18}", "\u{1f}", "@", "`"],
        found: found(),
    };
    fuzz::run(&target, |input| {
        let value = match cbor::read(input) {
            Ok(value) => value,
            Err(problem) => return problem.to_string(),
        };
        let bytes = cbor::document(&Type::Any, &value);
        assert_eq!(cbor::read(&bytes).as_ref(), Ok(&value), "what was written is read");
        assert_eq!(cbor::document(&Type::Any, &value), bytes, "equal values are equal bytes");
        let json = value.to_string();
        check(&kinds::of(json.as_bytes()), json.as_bytes(), "application/json")
    });
}
