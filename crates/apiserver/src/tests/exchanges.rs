//! Documents that clients send and get back: every format of a body, objects that were exported, answers without a body.

use api::codec::protobuf;
use json::{Value, json};

use crate::tests::conversation::{Answer, Conversation};

const MAPS: &str = "/api/v1/namespaces/a/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/a/deployments";
const PROTOBUF: &str = "content-type: application/vnd.kubernetes.protobuf";
const YAML: &str = "content-type: application/yaml";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

/// As a Go client sends it.
fn binary(schema: &str, object: &Value) -> Vec<u8> {
    protobuf::encode(schema, object).expect("the type has a protobuf form")
}

fn deletion(fields: Value) -> Vec<u8> {
    let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
    options.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    binary("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", &options)
}

#[track_caller]
fn is(answer: &Answer, code: u16, message: &str) {
    assert_eq!((answer.code, answer.message().as_str()), (code, message), "{}", answer.text);
}

#[tokio::test(start_paused = true)]
async fn deletes_read_their_options_in_every_format() {
    let c = Conversation::start().await;
    for name in ["one", "two", "three", "four", "five"] {
        assert_eq!(c.say(&format!("POST {MAPS}"), map(name).to_string()).await.code, 201);
    }
    let dry = deletion(json!({"dryRun": ["All"], "propagationPolicy": "Background"}));
    assert_eq!(c.say(&format!("DELETE {MAPS}/one\n{PROTOBUF}"), dry).await.code, 200);
    let other = deletion(json!({"preconditions": {"uid": "u"}}));
    assert_eq!(c.say(&format!("DELETE {MAPS}/one\n{PROTOBUF}"), other).await.code, 409);
    let gone = c.say(&format!("DELETE {MAPS}/one\n{PROTOBUF}"), deletion(json!({}))).await;
    assert_eq!((gone.code, gone.at("/status")), (200, json!("Success")), "{}", gone.text);
    let yaml = "kind: DeleteOptions\npreconditions:\n  uid: u\n";
    assert_eq!(c.say(&format!("DELETE {MAPS}/two\n{YAML}"), yaml).await.code, 409);
    assert_eq!(c.say(&format!("DELETE {MAPS}/two\n{YAML}"), "kind: DeleteOptions").await.code, 200);
    // A type without a body means nothing.
    assert_eq!(c.say(&format!("DELETE {MAPS}/three\ncontent-type: text/plain"), "").await.code, 200);

    let dry = deletion(json!({"dryRun": ["All"]}));
    assert_eq!(c.say(&format!("DELETE {MAPS}\n{PROTOBUF}"), dry).await.code, 200);
    assert_eq!(c.say(&format!("GET {MAPS}"), "").await.at("/items").as_array().unwrap().len(), 2, "a dry run");
    let all = c.say(&format!("DELETE {MAPS}\n{PROTOBUF}"), deletion(json!({"propagationPolicy": "Background"}))).await;
    assert_eq!((all.code, all.at("/items").as_array().unwrap().len()), (200, 2));
    assert_eq!(c.say(&format!("GET {MAPS}"), "").await.at("/items"), json!([]));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_options_deletes_nothing() {
    let c = Conversation::start().await;
    assert_eq!(c.say(&format!("POST {MAPS}"), map("x").to_string()).await.code, 201);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}});
    let no_kind = "no kind \"Pod\" is registered for version \"v1\" in scheme \
                   \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\"";
    let unknown = "the body of the request was in an unknown format - accepted media types include: application/json, \
                   application/yaml, application/vnd.kubernetes.protobuf";
    let wrong = "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64";
    for target in [format!("DELETE {MAPS}/x"), format!("DELETE {MAPS}")] {
        is(&c.say(&target, pod.to_string()).await, 400, no_kind);
        is(&c.say(&format!("{target}\n{PROTOBUF}"), binary("io.k8s.api.core.v1.Pod", &pod)).await, 400, no_kind);
        is(&c.say(&target, r#"{"gracePeriodSeconds": "now"}"#).await, 400, wrong);
        is(&c.say(&format!("{target}\ncontent-type: text/plain"), "{}").await, 415, unknown);
        assert_eq!(c.say(&format!("{target}\n{PROTOBUF}"), "{}").await.code, 400);
        assert_eq!(c.say(&target, deletion(json!({}))).await.code, 400, "protobuf that says it is JSON");
    }
    assert_eq!(c.say(&format!("GET {MAPS}/x"), "").await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn writes_read_their_objects_in_every_format() {
    let c = Conversation::start().await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let mut deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "a"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let schema = "io.k8s.api.apps.v1.Deployment";
    let made = c.say(&format!("POST {DEPLOYMENTS}\n{PROTOBUF}"), binary(schema, &deployment)).await;
    assert_eq!((made.code, made.at("/spec/replicas")), (201, json!(2)), "{}", made.text);
    deployment["spec"]["replicas"] = json!(3);
    let put = c.say(&format!("PUT {DEPLOYMENTS}/d\n{PROTOBUF}"), binary(schema, &deployment)).await;
    assert_eq!((put.code, put.at("/spec/replicas")), (200, json!(3)), "{}", put.text);
    deployment["status"] = json!({"replicas": 3});
    let status = c.say(&format!("PUT {DEPLOYMENTS}/d/status\n{PROTOBUF}"), binary(schema, &deployment)).await;
    assert_eq!((status.code, status.at("/status/replicas")), (200, json!(3)), "{}", status.text);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d", "namespace": "a"},
        "spec": {"replicas": 5}});
    let scaled = binary("io.k8s.api.autoscaling.v1.Scale", &scale);
    let scaled = c.say(&format!("PUT {DEPLOYMENTS}/d/scale\n{PROTOBUF}"), scaled).await;
    assert_eq!((scaled.code, scaled.at("/spec/replicas")), (200, json!(5)), "{}", scaled.text);
    for (head, body) in [
        (format!("POST {MAPS}\ncontent-type: application/apply-patch+yaml"), map("x").to_string()),
        (format!("POST {MAPS}\ncontent-type: application/x-www-form-urlencoded"), map("x").to_string()),
        (format!("PATCH {DEPLOYMENTS}/d\n{PROTOBUF}"), "{}".to_owned()),
        (format!("PATCH {DEPLOYMENTS}/d\ncontent-type: application/json"), "{}".to_owned()),
        (format!("PATCH {DEPLOYMENTS}/d/scale\ncontent-type: application/json"), "{}".to_owned()),
    ] {
        assert_eq!(c.say(&head, body).await.code, 415, "{head}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_exported_object_comes_back() {
    let c = Conversation::start().await;
    let made = c.say(&format!("POST {MAPS}"), map("x").to_string()).await;
    let mut exported = made.json();
    exported["metadata"]["selfLink"] = json!("/api/v1/namespaces/a/configmaps/x");
    exported["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    exported["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    assert_eq!(c.say(&format!("DELETE {MAPS}/x"), "").await.code, 200);
    let versioned = c.say(&format!("POST {MAPS}"), exported.to_string()).await;
    is(&versioned, 500, "resourceVersion should not be set on objects to be created");
    exported["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    clock::simulate(clock::Timestamp::from_second(1_700_001_000).unwrap(), 2);
    let again = c.say(&format!("POST {MAPS}"), exported.to_string()).await;
    assert_eq!(again.code, 201, "{}", again.text);
    assert_ne!(again.at("/metadata/uid"), made.at("/metadata/uid"));
    assert_eq!(again.at("/metadata/creationTimestamp"), "2023-11-14T22:30:00Z");
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        assert_eq!(again.at(&format!("/metadata/{field}")), Value::Null, "{field}");
    }
    // Replaced and patched by what was exported before: times count for nothing, the uid is a precondition.
    let put = c.say(&format!("PUT {MAPS}/x"), exported.to_string()).await;
    assert_eq!(put.code, 409, "{}", put.text);
    assert!(put.message().contains("Precondition failed: UID in precondition"), "{}", put.text);
    let metadata = exported["metadata"].as_object_mut().unwrap();
    metadata.remove("uid");
    let put = c.say(&format!("PUT {MAPS}/x"), exported.to_string()).await;
    assert_eq!(put.code, 422, "only what is being deleted has a time of deletion: {}", put.text);
    let metadata = exported["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| !field.starts_with("deletion"));
    metadata.insert("generation", json!(77));
    let put = c.say(&format!("PUT {MAPS}/x"), exported.to_string()).await;
    assert_eq!((put.code, put.at("/metadata/generation")), (200, Value::Null), "{}", put.text);
    assert_eq!(put.at("/metadata/creationTimestamp"), again.at("/metadata/creationTimestamp"));
    assert_eq!(put.at("/metadata/selfLink"), Value::Null);
    for (media_type, uid_code) in [("merge-patch+json", 422), ("strategic-merge-patch+json", 422)] {
        let head = format!("PATCH {MAPS}/x\ncontent-type: application/{media_type}");
        let time = r#"{"metadata":{"creationTimestamp":"2001-01-01T00:00:00Z"}}"#;
        let patched = c.say(&head, time).await;
        assert_eq!((patched.code, patched.at("/metadata/uid")), (200, again.at("/metadata/uid")), "{}", patched.text);
        assert_eq!(c.say(&head, r#"{"metadata":{"uid":"u"}}"#).await.code, uid_code);
    }
    let apply = "content-type: application/apply-patch+yaml";
    let mut applied = map("x");
    applied["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    let put = c.say(&format!("PATCH {MAPS}/x?fieldManager=me&force=true\n{apply}"), applied.to_string()).await;
    assert_eq!(put.code, 200, "{}", put.text);
    assert_eq!(put.at("/metadata/creationTimestamp"), again.at("/metadata/creationTimestamp"));
    applied["metadata"]["uid"] = json!("u");
    applied["metadata"]["name"] = json!("y");
    let absent = c.say(&format!("PATCH {MAPS}/y?fieldManager=me\n{apply}"), applied.to_string()).await;
    let why = "uid mismatch: the provided object specified uid u, and no existing object was found";
    is(&absent, 409, &format!("Operation cannot be fulfilled on configmaps \"y\": {why}"));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_means_nothing_to_kinds_without_one() {
    let c = Conversation::start().await;
    let class = |value: i64| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7, "globalDefault": false,
            "metadata": {"name": "p", "namespace": "a", "labels": {"l": value.to_string()}}})
        .to_string()
    };
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let apply = "?fieldManager=me&force=true\ncontent-type: application/apply-patch+yaml";
    let merge = "\ncontent-type: application/merge-patch+json";
    for (head, code, label) in [
        (format!("POST {CLASSES}"), 201, 1),
        (format!("PUT {CLASSES}/p"), 200, 2),
        (format!("PATCH {CLASSES}/p{apply}"), 200, 3),
        (format!("PATCH {CLASSES}/p{merge}"), 200, 4),
    ] {
        let answer = c.say(&head, class(label)).await;
        assert_eq!((answer.code, answer.at("/metadata/namespace")), (code, Value::Null), "{head}: {}", answer.text);
        assert_eq!(answer.at("/metadata/labels/l"), label.to_string());
    }
    let namespace = json!({"metadata": {"name": "n", "namespace": "other"}}).to_string();
    let made = c.say("POST /api/v1/namespaces", &namespace).await;
    assert_eq!((made.code, made.at("/metadata/namespace")), (201, Value::Null), "{}", made.text);
    assert_eq!(c.say("PUT /api/v1/namespaces/n", &namespace).await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_head_has_the_headers_alone() {
    let c = Conversation::start().await;
    for path in ["/healthz", "/version", "/openapi/v2", "/no/such/path"] {
        let whole = c.say(&format!("GET {path}"), "").await;
        let head = c.say(&format!("HEAD {path}"), "").await;
        assert_eq!((head.code, head.text.as_str()), (whole.code, ""), "{path}");
        assert_eq!(head.headers["content-length"].to_str().unwrap(), whole.text.len().to_string(), "{path}");
        assert_eq!(head.headers["content-type"], whole.headers["content-type"], "{path}");
    }
}

/// Callers in this process are told nothing: nobody would read it.
#[tokio::test(start_paused = true)]
async fn what_has_no_effect_is_no_news_inside() {
    let c = Conversation::start().await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}).to_string();
    let made = c.say("POST /api/v1/namespaces/a/resourcequotas", quota).await;
    assert_eq!((made.code, made.headers.get("warning")), (201, None), "{}", made.text);
}
