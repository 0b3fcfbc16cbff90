//! The owners of the fields of a custom object whose versions a webhook converts: fields are named as their manager's
//! version names them, whatever version the next write is in.

use json::{Value, json};

use super::{
    conversion::{APPLY, MERGE, Scene, V1, V2, host},
    converter::Mood,
};

/// Each owner with its version and fields: `one v1 {"f:hostPort":{}}`.
fn owners(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let show = |entry: &Value| {
        let version = entry["apiVersion"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        format!("{} {version} {}", entry["manager"].as_str().unwrap(), entry["fieldsV1"])
    };
    entries.iter().map(show).collect()
}

fn apply(version: &str, manager: &str) -> String {
    let path = if version == "v1" { V1 } else { V2 };
    format!("PATCH {path}/a?fieldManager={manager}\n{APPLY}")
}

fn spec(fields: &Value, replicas: u32) -> Value {
    let mut all = fields.clone();
    all["spec"] = json!({ "replicas": replicas });
    all
}

#[tokio::test]
async fn an_update_in_one_version_takes_fields_from_owners_in_another() {
    let scene = Scene::start("v1").await;
    let made = scene.ok(&apply("v1", "one"), host("v1", "a", spec(&json!({"hostPort": "h:1"}), 1))).await;
    let both = r#"one v1 {"f:hostPort":{},"f:spec":{"f:replicas":{}}}"#;
    assert_eq!(owners(&made), [both]);
    let labelled = scene.ok(&format!("PATCH {V2}/a?fieldManager=two\n{MERGE}"), r#"{"spec":{"replicas":2}}"#).await;
    let less = r#"one v1 {"f:hostPort":{}}"#;
    let two = r#"two v2 {"f:spec":{"f:replicas":{}}}"#;
    assert_eq!(owners(&labelled), [less, two], "what did not change in v1 stays its owner's");
    let moved = scene.ok(&format!("PATCH {V2}/a?fieldManager=three\n{MERGE}"), r#"{"port":"2"}"#).await;
    assert_eq!(owners(&moved), [r#"three v2 {"f:port":{}}"#, two].map(str::to_owned), "who set the whole has lost it");
}

#[tokio::test]
async fn a_conflict_is_told_in_the_words_of_the_owners_version() {
    let scene = Scene::start("v2").await;
    scene.ok(&apply("v1", "one"), host("v1", "a", json!({"hostPort": "h:1"}))).await;
    let other = host("v2", "a", json!({"port": "2"}));
    let refused = scene.say(&apply("v2", "two"), &other).await;
    let words = "Apply failed with 1 conflict: conflict with \"one\": .hostPort";
    assert_eq!((refused.code, refused.message()), (409, words.to_owned()));
    let same = scene.ok(&apply("v2", "two"), host("v2", "a", json!({"host": "h", "port": "1"}))).await;
    assert_eq!(owners(&same), [r#"one v1 {"f:hostPort":{}}"#, r#"two v2 {"f:host":{},"f:port":{}}"#]);
    let forced = scene.ok(&apply("v2", "two&force=true"), other).await;
    assert_eq!(owners(&forced), [r#"two v2 {"f:port":{}}"#]);
}

#[tokio::test]
async fn an_applier_moves_to_another_version_and_loses_what_it_leaves_out() {
    let scene = Scene::start("v1").await;
    scene.ok(&apply("v1", "one"), host("v1", "a", spec(&json!({"hostPort": "h:1"}), 3))).await;
    let now = json!({"host": "h", "port": "1"});
    let moved = scene.ok(&apply("v2", "one"), host("v2", "a", now.clone())).await;
    assert_eq!(owners(&moved), [r#"one v2 {"f:host":{},"f:port":{}}"#]);
    assert_eq!((&moved["host"], &moved["port"], moved.get("spec")), (&json!("h"), &json!("1"), None));

    scene.ok(&apply("v1", "two"), host("v1", "a", spec(&json!({}), 3))).await;
    scene.ok(&apply("v2", "one"), host("v2", "a", spec(&now, 3))).await;
    let shared = scene.ok(&apply("v1", "one"), host("v1", "a", json!({"hostPort": "h:1"}))).await;
    assert_eq!(shared["spec"]["replicas"], 3, "somebody else states it still, in another version");
    let (one, two) = (r#"one v1 {"f:hostPort":{}}"#, r#"two v1 {"f:spec":{"f:replicas":{}}}"#);
    assert_eq!(owners(&shared), [one, two]);
}

#[tokio::test]
async fn owners_in_a_version_that_is_gone_are_forgotten() {
    let scene = Scene::start("v1").await;
    let mut made = scene.ok(&apply("v1", "one"), host("v1", "a", json!({"hostPort": "h:1"}))).await;
    let mut old = made["metadata"]["managedFields"][0].clone();
    (old["apiVersion"], old["manager"]) = (json!("a.io/v0"), json!("old"));
    made["metadata"]["managedFields"].as_array_mut().unwrap().push(old);
    let held = scene.ok(&format!("PUT {V1}/a"), made.to_string()).await;
    assert_eq!(owners(&held).len(), 2, "{held}");
    let changed = scene.ok(&format!("PATCH {V1}/a?fieldManager=two\n{MERGE}"), r#"{"hostPort":"g:1"}"#).await;
    assert_eq!(owners(&changed), [r#"two v1 {"f:hostPort":{}}"#]);
}

#[tokio::test]
async fn a_webhook_that_does_not_answer_changes_nobodys_fields() {
    let scene = Scene::start("v1").await;
    scene.ok(&apply("v1", "one"), host("v1", "a", json!({"hostPort": "h:1"}))).await;
    scene.ok(&format!("PATCH {V2}/a?fieldManager=two\n{MERGE}"), r#"{"spec":{"replicas":2}}"#).await;
    scene.webhook.be(Mood::Refusing("not now"));
    let refused = scene.say(&format!("PATCH {V1}/a?fieldManager=three\n{MERGE}"), r#"{"hostPort":"g:2"}"#).await;
    assert!(refused.code == 500 && refused.message().ends_with("not now"), "{}", refused.text);
    scene.webhook.be(Mood::Honest);
    let now = scene.ok(&format!("GET {V1}/a"), "").await;
    assert_eq!((&now["hostPort"], owners(&now).len()), (&json!("h:1"), 2));
}
