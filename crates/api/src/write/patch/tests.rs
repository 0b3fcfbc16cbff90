//! Patches that cannot be read, and results that are no object.

use ::json::json;

use super::*;

/// The outcome of a patch of a Deployment of three replicas: a code and the message, or the warnings.
fn outcome(kind: Kind, validation: Validation, body: &str) -> (i32, String) {
    let ty = crate::schema::of("io.k8s.api.apps.v1.Deployment").expect("a Deployment");
    let current =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": 3}});
    let (current, _) = decode::normalise(ty, current).expect("a Deployment");
    let patched = Patch::read(kind, body.as_bytes()).and_then(|patch| patch.apply(ty, &current, validation));
    match patched {
        Ok(decoded) => (200, decoded.warnings.join("; ")),
        Err(error) => (error.code.into(), error.message),
    }
}

#[track_caller]
fn check(kind: Kind, validation: Validation, body: &str, code: i32, message: &str) {
    assert_eq!(outcome(kind, validation, body), (code, message.to_owned()), "{body}");
}

#[test]
fn a_body_that_is_no_patch_is_refused_as_go_reads_it() {
    use Kind::{Json, Merge, Strategic};
    let key = "invalid character 'b' looking for beginning of object key string";
    let array = "json: cannot unmarshal array into Go value of type map[string]interface {}";
    let rows = [
        (Merge, "{bad", format!("error decoding patch: {key}")),
        (Json, "{bad", format!("error decoding patch: {key}")),
        (Strategic, "{bad", key.to_owned()),
        (Merge, "[]", format!("error decoding patch: {array}")),
        (Strategic, "[]", array.to_owned()),
        (Strategic, "\"x\"", array.replace("array", "string")),
        (
            Json,
            "{}",
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
                .to_owned(),
        ),
        (
            Json,
            "[7]",
            "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp".to_owned(),
        ),
        (
            Json,
            r#"[{"op":true}]"#,
            "error decoding patch: json: cannot unmarshal bool into Go struct field jsonPatchOp.op of type string"
                .to_owned(),
        ),
    ];
    for (kind, body, message) in rows {
        check(kind, Validation::Warn, body, 400, &message);
    }
}

#[test]
fn what_an_operation_does_not_know_is_told() {
    let body = r#"[{"op":"add","path":"/spec/foo","value":1,"op":"add"},{"op":"test","path":"/kind","value":"Deployment","foo":2}]"#;
    let faults = [
        r#"json patch duplicate field "[0].op""#,
        r#"json patch unknown field "[1].foo""#,
        r#"unknown field "spec.foo""#,
    ];
    check(Kind::Json, Validation::Warn, body, 200, &faults.join("; "));
    check(Kind::Json, Validation::Ignore, body, 200, "");
    let (code, message) = outcome(Kind::Json, Validation::Strict, body);
    assert_eq!(code, 422);
    assert!(message.ends_with(&format!("strict decoding error: {}", faults.join(", "))), "{message}");
    assert!(message.starts_with(r#" "" is invalid: patch: Invalid value: "{\"apiVersion\":\"apps/v1\""#), "{message}");
}

#[test]
fn a_result_that_is_no_object_is_told_with_the_patch() {
    let wrong = "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32";
    for (kind, body) in [
        (Kind::Merge, r#"{"spec":{"replicas":"x"}}"#),
        (Kind::Json, r#"[{"op":"replace","path":"/spec/replicas","value":"x"}]"#),
    ] {
        let (code, message) = outcome(kind, Validation::Warn, body);
        assert_eq!(code, 422);
        assert!(
            message.starts_with(r#" "" is invalid: patch: Invalid value: "{\"apiVersion\":\"apps/v1\""#),
            "{message}"
        );
        assert!(message.contains(r#"\"replicas\":\"x\""#) && message.ends_with(wrong), "{message}");
    }
    let rows = [
        (r#"{"metadata":{"labels":"invalid"}}"#, "map[metadata:map[labels:invalid]]", "cannot restore map from string"),
        (r#"{"metadata":{"labels":{"a":1}}}"#, "map[metadata:map[labels:map[a:1]]]", "cannot convert int64 to string"),
        (r#"{"metadata":{"name":true}}"#, "map[metadata:map[name:true]]", "unrecognized type: string"),
        (r#"{"spec":{"replicas":"x"}}"#, "map[spec:map[replicas:x]]", "unrecognized type: int32"),
        (r#"{"spec":{"replicas":1.5}}"#, "map[spec:map[replicas:1.5]]", "cannot convert float64 to int32"),
        (r#"{"spec":{"template":[]}}"#, "map[spec:map[template:[]]]", "cannot restore struct from: slice"),
        (
            r#"{"metadata":{"ownerReferences":{}}}"#,
            "map[metadata:map[ownerReferences:map[]]]",
            "cannot restore slice from map",
        ),
    ];
    for (body, shown, why) in rows {
        check(
            Kind::Strategic,
            Validation::Ignore,
            body,
            422,
            &format!(" \"\" is invalid: patch: Invalid value: {shown:?}: {why}"),
        );
    }
    let body = r#"{"spec":{"bad":"x","bad":"y"}}"#;
    let why = r#"strict decoding error: duplicate field "spec.bad", unknown field "spec.bad""#;
    check(
        Kind::Strategic,
        Validation::Strict,
        body,
        422,
        &format!(" \"\" is invalid: patch: Invalid value: \"map[spec:map[bad:y]]\": {why}"),
    );
}
