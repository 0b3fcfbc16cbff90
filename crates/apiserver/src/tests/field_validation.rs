//! Fields that nobody knows and fields that stand twice, by verb, format and `fieldValidation`, row by row like upstream's test.
//! Upstream counterpart: test/integration/apiserver/field_validation_test.go.

use http::header;
use json::json;

use crate::tests::assembled::Talk;
use crate::tests::conversation::{Answer, Conversation};

const LIST: &str = "/apis/apps/v1/namespaces/default/deployments";

const JSON: &str = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"app": "nginx"}},
"spec": {"unknown1": "val1", "unknownDupe": "valDupe", "unknownDupe": "valDupe2", "paused": true, "paused": false,
"selector": {"matchLabels": {"app": "nginx"}}, "template": {"metadata": {"labels": {"app": "nginx"}}, "spec": {"containers": [
{"name": "nginx", "image": "nginx:latest", "unknownNested": "val1", "imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}"#;

const YAML: &str = "apiVersion: apps/v1
kind: Deployment
metadata:
  name: d
  labels:
    app: nginx
spec:
  unknown1: val1
  unknownDupe: valDupe
  unknownDupe: valDupe2
  paused: true
  paused: false
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: nginx:latest
        unknownNested: val1
        imagePullPolicy: Always
        imagePullPolicy: Never
";

const CHANGES: &str = r#"{"spec": {"unknown1": "val1", "unknownDupe": "valDupe", "unknownDupe": "valDupe2", "paused": true,
"paused": false, "template": {"spec": {"containers": [{"name": "nginx", "image": "nginx:latest", "unknownNested": "val1",
"imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}"#;

const OPERATIONS: &str = r#"[{"op": "add", "path": "/spec/unknown1", "value": "val1", "foo": "bar"},
{"op": "add", "path": "/spec/unknown2", "path": "/spec/unknown3", "value": "val1"},
{"op": "add", "path": "/spec/unknownDupe", "value": "valDupe"}, {"op": "add", "path": "/spec/unknownDupe", "value": "valDupe2"},
{"op": "add", "path": "/spec/paused", "value": true}, {"op": "add", "path": "/spec/paused", "value": false},
{"op": "add", "path": "/spec/template/spec/containers/0/unknownNested", "value": "val1"},
{"op": "add", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "Never"}]"#;

const TWICE: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  paused: false
  paused: true
";

/// In the order of a body of JSON.
const FIELDS: &[&str] = &[
    r#"unknown field "spec.unknown1""#,
    r#"unknown field "spec.unknownDupe""#,
    r#"duplicate field "spec.paused""#,
    r#"unknown field "spec.template.spec.containers[0].unknownNested""#,
    r#"duplicate field "spec.template.spec.containers[0].imagePullPolicy""#,
];

/// One document of YAML is read twice: for keys that stand twice, and for the object.
const LINES: &[&str] = &[
    r#"line 10: key "unknownDupe" already set in map"#,
    r#"line 12: key "paused" already set in map"#,
    r#"line 26: key "imagePullPolicy" already set in map"#,
    r#"unknown field "spec.template.spec.containers[0].unknownNested""#,
    r#"unknown field "spec.unknown1""#,
    r#"unknown field "spec.unknownDupe""#,
];

/// Of a patch, what stands twice in it, and what is unknown in the patched object.
const PATCHED: &[&str] = &[
    r#"duplicate field "spec.unknownDupe""#,
    r#"duplicate field "spec.paused""#,
    r#"duplicate field "spec.template.spec.containers[0].imagePullPolicy""#,
    r#"unknown field "spec.template.spec.containers[0].unknownNested""#,
    r#"unknown field "spec.unknown1""#,
    r#"unknown field "spec.unknownDupe""#,
];

const OPERATED: &[&str] = &[
    r#"json patch duplicate field "[1].path""#,
    r#"json patch unknown field "[0].foo""#,
    r#"unknown field "spec.template.spec.containers[0].unknownNested""#,
    r#"unknown field "spec.unknown1""#,
    r#"unknown field "spec.unknown3""#,
    r#"unknown field "spec.unknownDupe""#,
];

fn warned(answer: &Answer) -> Vec<String> {
    let all = answer.headers.get_all(header::WARNING).iter();
    let text = |value: &http::HeaderValue| {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let text = text.strip_prefix("299 - \"").and_then(|text| text.strip_suffix('"')).unwrap_or(&text).to_owned();
        text.replace("\\\"", "\"")
    };
    all.map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn unknown_and_repeated_fields_refuse_or_warn_as_the_request_says() {
    let c = Conversation::start().await;
    let labels = json!({"app": "nginx"});
    let spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "nginx", "image": "nginx:latest"}]}}});
    let valid = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec});
    let name = format!("{LIST}/d");
    let ask = async |verb: &str, directive: &str, media_type: &str, body: &str| {
        let path = if verb == "POST" { LIST } else { &name };
        let query = format!("?dryRun=All&fieldManager=m&fieldValidation={directive}");
        c.say(&format!("{verb} {path}{query}\ncontent-type: {media_type}"), body).await
    };
    for (verb, media_type, body, code, fields) in [
        ("POST", "application/json", JSON, 400, FIELDS),
        ("POST", "application/yaml", YAML, 400, LINES),
        ("PUT", "application/json", JSON, 400, FIELDS),
        ("PUT", "application/yaml", YAML, 400, LINES),
        ("PATCH", "application/merge-patch+json", CHANGES, 422, PATCHED),
        ("PATCH", "application/strategic-merge-patch+json", CHANGES, 422, PATCHED),
        ("PATCH", "application/json-patch+json", OPERATIONS, 422, OPERATED),
        ("PATCH", "application/apply-patch+yaml", TWICE, 400, &[r#"line 6: key "paused" already set in map"#]),
    ] {
        if verb == "PUT" && media_type == "application/json" {
            let made = c.say(&format!("POST {LIST}"), valid.to_string()).await;
            assert_eq!(made.code, 201, "{}", made.text);
        }
        let of = format!("{verb} {media_type}");
        let strict = ask(verb, "Strict", media_type, body).await;
        assert_eq!((strict.code, warned(&strict)), (code, vec![]), "{of}: {}", strict.text);
        let message = strict.message();
        let missing: Vec<_> = fields.iter().filter(|field| !message.contains(*field)).collect();
        assert!(missing.is_empty(), "{of}: {missing:?} in {message}");
        for directive in ["Warn", ""] {
            let done = ask(verb, directive, media_type, body).await;
            assert!(done.code < 300, "{of}: {}", done.text);
            assert_eq!(warned(&done), fields, "{of} {directive}");
        }
        let ignored = ask(verb, "Ignore", media_type, body).await;
        assert!(ignored.code < 300 && warned(&ignored).is_empty(), "{of}: {}", ignored.text);
        let odd = ask(verb, "Perhaps", media_type, body).await;
        let why = r#"fieldValidation: Unsupported value: "Perhaps": supported values: "", "Ignore", "Strict", "Warn""#;
        assert!(odd.code == 422 && odd.message().ends_with(why), "{of}: {}", odd.text);
    }
}

/// The objects that special requests carry are read with the same care as those that are stored.
#[tokio::test(start_paused = true)]
async fn unknown_fields_of_special_requests_are_warned_of() {
    const PLACE: &str = "/api/v1/namespaces/default";
    const REVIEWS: &str = "/apis/authorization.k8s.io/v1";
    let talk = Talk::start().await;
    talk.ok("+root", &format!("POST {PLACE}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await;
    for name in ["x", "y"] {
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        talk.ok("+root", &format!("POST {PLACE}/pods"), pod).await;
    }
    let binding = |name: &str| json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}, "zz": 1});
    let attributes = json!({"verb": "get", "resource": "pods", "namespace": "default"});
    let (path, here) = (|name: &str| format!("{PLACE}/{name}"), |kind: &str| format!("{REVIEWS}/{kind}"));
    let spec = json!({"user": "jane", "resourceAttributes": attributes});
    for (path, body, code) in [
        (path("pods/x/binding"), binding("x"), 201),
        (path("pods/x/binding"), binding("x"), 409),
        (path("bindings"), binding("y"), 201),
        (path("pods/x/eviction"), json!({"metadata": {"name": "x"}, "zz": 1}), 201),
        (path("serviceaccounts/default/token"), json!({"spec": {}, "zz": 1}), 201),
        (here("subjectaccessreviews"), json!({"spec": spec, "zz": 1}), 201),
        (here("subjectaccessreviews"), json!({"spec": {}, "zz": 1}), 422),
        (format!("{REVIEWS}/namespaces/default/localsubjectaccessreviews"), json!({"spec": spec, "zz": 1}), 201),
        (here("selfsubjectaccessreviews"), json!({"spec": {"resourceAttributes": attributes}, "zz": 1}), 201),
        (here("selfsubjectrulesreviews"), json!({"spec": {"namespace": "default"}, "zz": 1}), 201),
        ("/apis/authentication.k8s.io/v1/tokenreviews".to_owned(), json!({"spec": {"token": "t"}, "zz": 1}), 201),
        ("/apis/authentication.k8s.io/v1/selfsubjectreviews".to_owned(), json!({"zz": 1}), 201),
    ] {
        let hear = async |query: &str| talk.hear("+root", &format!("POST {path}{query}"), body.clone()).await;
        assert_eq!(hear("?fieldValidation=Strict").await.0, 400, "{path}");
        let (found, told, answer) = hear("").await;
        assert_eq!((found, told), (code, vec![r#"299 - "unknown field \"zz\"""#.to_owned()]), "{path}: {answer}");
    }
    let quiet = format!("POST {REVIEWS}/selfsubjectaccessreviews?fieldValidation=Ignore");
    let (code, told, _) =
        talk.hear("+root", &quiet, json!({"spec": {"resourceAttributes": attributes}, "zz": 1})).await;
    assert_eq!((code, told), (201, vec![]));
}
