//! The owners of an object's replicas, where it is changed through its Scale: the steps of upstream's integration test.

use json::{Value, json};

use super::conversation::Conversation;

const APPLY: &str = "content-type: application/apply-patch+yaml";
const MERGE: &str = "content-type: application/merge-patch+json";

/// The managers that own the replicas, in the order of their entries.
fn owners(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let own = |entry: &&Value| entry["fieldsV1"]["f:spec"]["f:replicas"].is_object();
    entries.iter().filter(own).map(|entry| entry["manager"].as_str().unwrap()).collect()
}

fn workload(api_version: &str, kind: &str) -> Value {
    let selector = match kind {
        "ReplicationController" => json!({"app": "web"}),
        _ => json!({"matchLabels": {"app": "web"}}),
    };
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "test"}, "spec": {"replicas": 1, "selector": selector,
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn scale(replicas: u32) -> Value {
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "test"}, "spec": {"replicas": replicas}})
}

#[tokio::test(start_paused = true)]
async fn replicas_belong_to_whoever_set_them() {
    let c = Conversation::start().await;
    for (api_version, kind, path) in [
        ("apps/v1", "Deployment", "/apis/apps/v1/namespaces/a/deployments/test"),
        ("apps/v1", "StatefulSet", "/apis/apps/v1/namespaces/a/statefulsets/test"),
        ("apps/v1", "ReplicaSet", "/apis/apps/v1/namespaces/a/replicasets/test"),
        ("v1", "ReplicationController", "/api/v1/namespaces/a/replicationcontrollers/test"),
    ] {
        let whole = workload(api_version, kind);
        let merge = json!({"spec": {"replicas": 5}});
        let status = json!({"status": {"replicas": 42}});
        for (request, body, code, replicas, expected) in [
            (format!("PATCH {path}?fieldManager=whole\n{APPLY}"), &whole, 201, 1, &["whole"][..]),
            (format!("PATCH {path}/scale?fieldManager=status\n{MERGE}"), &status, 200, 1, &["whole"]),
            (format!("PATCH {path}/scale?fieldManager=merge\n{MERGE}"), &merge, 200, 5, &["merge"]),
            (format!("PATCH {path}?fieldManager=whole\n{APPLY}"), &whole, 409, 5, &["merge"]),
            (format!("PATCH {path}?fieldManager=whole&force=true\n{APPLY}"), &whole, 200, 1, &["whole"]),
            (format!("PATCH {path}/scale?fieldManager=scale\n{APPLY}"), &scale(17), 409, 1, &["whole"]),
            (format!("PATCH {path}/scale?fieldManager=scale&force=true\n{APPLY}"), &scale(17), 200, 17, &["scale"]),
            (format!("PATCH {path}/scale?fieldManager=scale\n{APPLY}"), &scale(18), 200, 18, &["scale"]),
            (format!("PUT {path}/scale?fieldManager=replace"), &scale(7), 200, 7, &["replace"]),
            (format!("PATCH {path}/scale?fieldManager=both\n{APPLY}"), &scale(7), 200, 7, &["both", "replace"]),
            (format!("PATCH {path}/scale?fieldManager=merge\n{MERGE}"), &merge, 200, 5, &["merge"]),
        ] {
            let answer = c.say(&request, body.to_string()).await;
            assert_eq!(answer.code, code, "{request}: {}", answer.text);
            if code == 409 {
                assert!(answer.message().contains(expected[0]), "{}", answer.text);
            }
            let read = c.say(&format!("GET {path}"), "").await.json();
            assert_eq!((&read["spec"]["replicas"], owners(&read)), (&json!(replicas), expected.to_vec()), "{request}");
        }
        let read = c.say(&format!("GET {path}"), "").await.json();
        let entries = read["metadata"]["managedFields"].as_array().unwrap();
        let whole = entries.iter().find(|entry| entry["manager"] == "whole").unwrap();
        assert!(whole["fieldsV1"]["f:spec"]["f:template"].is_object(), "it keeps the rest: {whole}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_applied_scale_is_told_whose_it_is_and_what_is_wrong_with_it() {
    let c = Conversation::start().await;
    let path = "/apis/apps/v1/namespaces/a/deployments/test";
    assert_eq!(
        c.say(&format!("POST {}", &path[..path.len() - 5]), workload("apps/v1", "Deployment").to_string()).await.code,
        201
    );
    let applied =
        c.say(&format!("PATCH {path}/scale?fieldManager=scale&force=true\n{APPLY}"), scale(3).to_string()).await;
    assert_eq!((applied.code, applied.at("/kind"), applied.at("/spec/replicas")), (200, json!("Scale"), json!(3)));
    assert_eq!(applied.at("/metadata/managedFields"), Value::Null);
    let read = c.say(&format!("GET {path}"), "").await.json();
    let entries = read["metadata"]["managedFields"].as_array().unwrap();
    let mine = entries.iter().find(|entry| entry["manager"] == "scale").unwrap();
    let told = ["operation", "subresource", "apiVersion"].map(|field| mine[field].as_str().unwrap());
    assert_eq!((told, &mine["fieldsV1"]), (["Apply", "scale", "apps/v1"], &json!({"f:spec": {"f:replicas": {}}})));
    for (query, body, code) in [
        ("", scale(4), 422),
        ("?fieldManager=scale", json!({"kind": "Scale", "apiVersion": "v1", "metadata": {"name": "test"}}), 400),
        (
            "?fieldManager=scale",
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": {"replicas": "x"}}),
            500,
        ),
        (
            "?fieldManager=scale",
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "other"}, "spec": {"replicas": 3}}),
            400,
        ),
        (
            "?fieldManager=scale",
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": {"replicas": -1}}),
            422,
        ),
    ] {
        let answer = c.say(&format!("PATCH {path}/scale{query}\n{APPLY}"), body.to_string()).await;
        assert_eq!(answer.code, code, "{body}: {}", answer.text);
    }
    let none = c.say(&format!("PATCH {path}x/scale?fieldManager=scale\n{APPLY}"), scale(3).to_string()).await;
    assert_eq!(none.code, 404, "a Scale makes no object: {}", none.text);
}

#[tokio::test(start_paused = true)]
async fn conflicts_about_a_scale_are_told_in_its_own_version() {
    let c = Conversation::start().await;
    let path = "/apis/apps/v1/namespaces/a/deployments/test";
    let made = c.say(&format!("POST {}", &path[..path.len() - 5]), workload("apps/v1", "Deployment").to_string()).await;
    assert_eq!(made.code, 201, "{}", made.text);
    let apply = async |query: &str, replicas: u32| {
        c.say(&format!("PATCH {path}/scale?fieldManager=scale{query}\n{APPLY}"), scale(replicas).to_string()).await
    };
    let conflict = |manager: &str| {
        format!("Apply failed with 1 conflict: conflict with {manager} using autoscaling/v1: .spec.replicas")
    };
    let put = c.say(&format!("PUT {path}/scale?fieldManager=curl"), scale(2).to_string()).await;
    assert_eq!(put.code, 200, "{}", put.text);
    assert_eq!(apply("", 3).await.message(), conflict(r#""curl" with subresource "scale""#));
    // Shared, it stays theirs too, in the object's version.
    assert_eq!(apply("", 2).await.code, 200);
    let read = c.say(&format!("GET {path}"), "").await.json();
    assert_eq!(owners(&read), ["scale", "curl"]);
    let entries = read["metadata"]["managedFields"].as_array().unwrap();
    assert!(entries.iter().all(|entry| entry["apiVersion"] == "apps/v1"), "{entries:?}");
    // Nobody is tracked.
    let none = json!({"metadata": {"managedFields": [{}]}});
    assert_eq!(c.say(&format!("PATCH {path}\n{MERGE}"), none.to_string()).await.code, 200);
    assert_eq!(apply("", 4).await.message(), conflict(r#""before-first-apply" with subresource "scale""#));
    assert_eq!(apply("&force=true", 4).await.code, 200);
    assert_eq!(owners(&c.say(&format!("GET {path}"), "").await.json()), ["scale"]);
}

#[tokio::test(start_paused = true)]
async fn a_test_that_fails_on_a_scale_is_told_as_on_an_object() {
    let c = Conversation::start().await;
    let path = "/apis/apps/v1/namespaces/a/deployments/test";
    c.say(&format!("POST {}", &path[..path.len() - 5]), workload("apps/v1", "Deployment").to_string()).await;
    let patch = json!([{"op": "test", "path": "/spec/replicas", "value": 7}]).to_string();
    for place in [path.to_owned(), format!("{path}/scale")] {
        let refused = c.say(&format!("PATCH {place}\ncontent-type: application/json-patch+json"), &patch).await;
        assert_eq!((refused.code, refused.at("/details")), (422, json!({})), "{place}: {}", refused.text);
    }
}

/// As upstream's `checkName`, `ValidateScale` and the preconditions of `scaleUpdatedObjectInfo`.
#[tokio::test(start_paused = true)]
async fn a_scale_is_that_of_the_object_in_the_path() {
    let c = Conversation::start().await;
    let path = "/apis/apps/v1/namespaces/a/deployments/test";
    let made = c.say(&format!("POST {}", &path[..path.len() - 5]), workload("apps/v1", "Deployment").to_string()).await;
    let uid = made.at("/metadata/uid").as_str().expect("a uid").to_owned();
    let (put, merge) = (format!("PUT {path}/scale"), format!("PATCH {path}/scale\n{MERGE}"));
    let strategic = format!("PATCH {path}/scale\ncontent-type: application/strategic-merge-patch+json");
    let of = |metadata: Value| json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": {"replicas": 9}});
    let other_name = "the name of the object (e) does not match the name on the URL (test)";
    let no_name = "the name of the object (test based on URL) was undeterminable: name must be provided";
    let elsewhere = "the namespace of the provided object does not match the namespace sent on the request";
    let other_uid = format!("Precondition failed: UID in precondition: u, UID in object meta: {uid}");
    let stored = format!(
        "Operation cannot be fulfilled on deployments.apps \"test\": StorageError: invalid object, Code: 4, Key: \
         /registry/deployments/a/test, ResourceVersion: 0, AdditionalErrorMsg: {other_uid}"
    );
    let patched = format!("Operation cannot be fulfilled on deployments/scale.apps \"test\": {other_uid}");
    let finalizer = "Scale.autoscaling \"test\" is invalid: [metadata.finalizers: Invalid value: \"a b\": ";
    let kind = "no kind \"Foo\" is registered for version \"autoscaling/v1\"";
    for (request, body, code, message) in [
        (&put, of(json!({"name": "e"})), 400, other_name),
        (&put, of(json!({})), 400, no_name),
        (&put, of(json!({"name": "test", "namespace": "b"})), 400, elsewhere),
        (&put, of(json!({"name": "test", "uid": "u"})), 409, &stored),
        (&put, of(json!({"name": "test", "finalizers": ["a b"]})), 422, finalizer),
        (&merge, of(json!({"name": "e"})), 400, other_name),
        (&merge, of(json!(null)), 400, no_name),
        (&merge, of(json!({"namespace": "b"})), 400, elsewhere),
        (&merge, of(json!({"uid": "u"})), 409, &patched),
        (&merge, of(json!({"finalizers": ["a b"]})), 422, finalizer),
        (&merge, json!({"kind": "Foo", "spec": {"replicas": 9}}), 422, kind),
        (&merge, json!({"apiVersion": "v7", "spec": {"replicas": 9}}), 422, "no kind \"Scale\" is registered"),
    ] {
        let refused = c.say(request, body.to_string()).await;
        assert_eq!(refused.code, code, "{request} {body}: {}", refused.text);
        assert!(refused.message().contains(message), "{request} {body}: {}", refused.message());
    }
    assert_eq!(c.say(&format!("GET {path}"), "").await.at("/spec/replicas"), 1);
    for (request, body) in [
        (&put, of(json!({"name": "test", "uid": uid}))),
        (&strategic, json!({"kind": "Foo", "spec": {"replicas": 10}})),
        (&merge, json!({"kind": null, "metadata": {"uid": uid}, "spec": {"replicas": 11}})),
    ] {
        let scaled = c.say(request, body.to_string()).await;
        let told = (scaled.at("/kind"), scaled.at("/spec/replicas"));
        assert_eq!(told, (json!("Scale"), body["spec"]["replicas"].clone()), "{request} {body}: {}", scaled.text);
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_of_a_scale_are_warned_of() {
    let c = Conversation::start().await;
    let path = "/apis/apps/v1/namespaces/a/deployments/test";
    c.say(&format!("POST {}", &path[..path.len() - 5]), workload("apps/v1", "Deployment").to_string()).await;
    let mut odd = scale(3);
    odd["zz"] = json!(1);
    for request in [format!("PUT {path}/scale"), format!("PATCH {path}/scale\n{MERGE}")] {
        let scaled = c.say(&request, odd.to_string()).await;
        let warning = scaled.headers.get("warning").and_then(|text| text.to_str().ok());
        assert_eq!(
            (scaled.code, warning),
            (200, Some(r#"299 - "unknown field \"zz\"""#)),
            "{request}: {}",
            scaled.text
        );
    }
}
