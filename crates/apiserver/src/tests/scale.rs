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
