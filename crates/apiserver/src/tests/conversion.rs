//! Custom kinds whose versions a webhook converts, through all verbs, with a webhook that is honest, lies, hangs and dies.

use json::{Value, json};

use super::{
    conversation::{Answer, Conversation},
    converter::{Converter, Mood},
};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const V1: &str = "/apis/a.io/v1/namespaces/s/hosts";
pub(super) const V2: &str = "/apis/a.io/v2/namespaces/s/hosts";
pub(super) const MERGE: &str = "content-type: application/merge-patch+json";
pub(super) const APPLY: &str = "content-type: application/apply-patch+yaml";
const TABLE: &str = "accept: application/json;as=Table;v=v1;g=meta.k8s.io";

pub(super) struct Scene {
    c: Conversation,
    pub webhook: Converter,
}

/// The definition of hosts, stored as v1 or v2.
fn hosts(stored: &str, conversion: Value) -> Value {
    let version = |name: &str, fields: &[&str]| {
        let mut properties: json::Map =
            fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string"}))).collect();
        for part in ["spec", "status"] {
            properties.insert(part, json!({"type": "object", "properties": {"replicas": {"type": "integer"}}}));
        }
        let paths = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
        json!({"name": name, "served": true, "storage": name == stored,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
            "subresources": {"status": {}, "scale": paths},
            "selectableFields": [{"jsonPath": format!(".{}", fields[0])}],
            "additionalPrinterColumns": [{"name": "Where", "type": "string", "jsonPath": format!(".{}", fields[0])}]})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "hosts.a.io"},
        "spec": {"group": "a.io", "scope": "Namespaced", "names": {"plural": "hosts", "kind": "Host"}, "conversion": conversion,
            "versions": [version("v1", &["hostPort"]), version("v2", &["host", "port"])]}})
}

pub(super) fn host(version: &str, name: &str, fields: Value) -> String {
    let mut host = json!({"apiVersion": format!("a.io/{version}"), "kind": "Host", "metadata": {"name": name}});
    for (field, value) in fields.as_object().unwrap() {
        host[field.as_str()] = value.clone();
    }
    host.to_string()
}

fn v1(name: &str, host_port: &str) -> String {
    host("v1", name, json!({ "hostPort": host_port }))
}

impl Scene {
    pub async fn start(stored: &str) -> Self {
        let webhook = Converter::start().await;
        let c = Conversation::start().await;
        let scene = Scene { c, webhook };
        let made = scene.c.say(&format!("POST {CRDS}"), hosts(stored, scene.webhook.conversion()).to_string()).await;
        assert_eq!((made.code, made.headers.get("warning")), (201, None), "{}", made.text);
        scene.until_served().await;
        scene
    }

    /// Waits until both versions are served.
    async fn until_served(&self) {
        while self.say(&format!("GET {V2}"), "").await.code != 200 {
            clock::sleep(std::time::Duration::from_millis(5)).await;
        }
        self.webhook.questions();
    }

    pub async fn say(&self, head: &str, body: impl AsRef<[u8]>) -> Answer {
        self.c.say(head, body).await
    }

    pub async fn ok(&self, head: &str, body: impl AsRef<[u8]>) -> Value {
        let answer = self.say(head, body).await;
        assert!(answer.code < 300, "{head}: {}", answer.text);
        answer.json()
    }
}

/// The fields in which the versions differ.
fn shown(object: &Value) -> Value {
    let fields = ["apiVersion", "hostPort", "host", "port"].into_iter();
    fields.filter_map(|field| Some(object.get(field)?.as_str()?.to_owned())).collect::<Vec<_>>().join(" ").into()
}

#[tokio::test]
async fn one_object_is_read_and_written_in_every_version() {
    let scene = Scene::start("v1").await;
    let made = scene.ok(&format!("POST {V2}"), host("v2", "a", json!({"host": "h", "port": "1"}))).await;
    assert_eq!(shown(&made), "a.io/v2 h 1");
    assert_eq!(scene.webhook.questions(), "v1:1 v2:1", "to the store and back");
    assert!(scene.webhook.seen.lock().uri.ends_with("/convert?timeout=30s"));
    let sent = scene.webhook.seen.lock().objects[0]["metadata"].clone();
    assert_eq!((&sent["name"], sent.get("resourceVersion")), (&json!("a"), None));
    let read = scene.ok(&format!("GET {V1}/a"), "").await;
    assert_eq!((shown(&read), scene.webhook.questions()), (json!("a.io/v1 h:1"), String::new()));
    assert_eq!(read["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let mut changed = scene.ok(&format!("GET {V2}/a"), "").await;
    changed["port"] = json!("2");
    let changed = scene.ok(&format!("PUT {V2}/a"), changed.to_string()).await;
    assert_eq!((shown(&changed), &changed["metadata"]["generation"]), (json!("a.io/v2 h 2"), &json!(2)));
    let patched = scene.ok(&format!("PATCH {V2}/a\n{MERGE}"), r#"{"host":"g"}"#).await;
    assert_eq!(shown(&patched), "a.io/v2 g 2");
    let applied = host("v2", "a", json!({"port": "3"}));
    let applied = scene.ok(&format!("PATCH {V2}/a?fieldManager=m&force=true\n{APPLY}"), applied).await;
    assert_eq!(shown(&applied), "a.io/v2 g 3");
    assert_eq!(shown(&scene.ok(&format!("GET {V1}/a"), "").await), "a.io/v1 g:3");
    let status = scene.ok(&format!("PATCH {V2}/a/status\n{MERGE}"), r#"{"status":{"replicas":4}}"#).await;
    assert_eq!((shown(&status), &status["status"]["replicas"]), (json!("a.io/v2 g 3"), &json!(4)));
    let scale = scene.say(&format!("GET {V2}/a/scale"), "").await;
    let why = r#"Internal error occurred: the spec replicas field ".spec.replicas" does not exist"#;
    assert_eq!((scale.code, scale.at("/message")), (500, json!(why)));
    let scale = scene.ok(&format!("PATCH {V2}/a/scale\n{MERGE}"), r#"{"spec":{"replicas":5}}"#).await;
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    assert_eq!(scene.ok(&format!("GET {V2}/a/scale"), "").await["status"]["replicas"], 4);
    let tried = scene.ok(&format!("PATCH {V2}/a?dryRun=All\n{MERGE}"), r#"{"host":"x"}"#).await;
    assert_eq!(shown(&tried), "a.io/v2 x 3");
    let hold = r#"{"metadata":{"finalizers":["a.io/hold"]}}"#;
    scene.ok(&format!("PATCH {V1}/a\n{MERGE}"), hold).await;
    let marked = scene.ok(&format!("DELETE {V2}/a"), "").await;
    assert_eq!((shown(&marked), marked["metadata"]["deletionTimestamp"].is_string()), (json!("a.io/v2 g 3"), true));
    scene.ok(&format!("PATCH {V2}/a\n{MERGE}"), r#"{"metadata":{"finalizers":null}}"#).await;
    assert_eq!(scene.say(&format!("GET {V2}/a"), "").await.code, 404);
}

#[tokio::test]
async fn conversions_are_counted() {
    let scene = Scene::start("v1").await;
    scene.ok(&format!("POST {V1}"), v1("a", "a:1")).await;
    scene.ok(&format!("GET {V2}/a"), "").await;
    scene.webhook.be(Mood::Refusing("too hot"));
    assert_eq!(scene.say(&format!("GET {V2}/a"), "").await.code, 500);
    let page = scene.say("GET /metrics", "").await.text;
    let (good, bad) =
        (r#"result="success",failure_type="""#, r#"result="failure",failure_type="conversion_webhook_call_failure""#);
    let of_kind = r#"crd_name="hosts.a.io",from_version="v1",to_version="v2""#;
    for line in [
        format!("apiserver_conversion_webhook_request_total{{{good}}} 1"),
        format!("apiserver_conversion_webhook_request_total{{{bad}}} 1"),
        format!("apiserver_conversion_webhook_duration_seconds_count{{{good}}} 1"),
        format!("apiserver_conversion_webhook_duration_seconds_count{{{bad}}} 1"),
        format!("apiserver_crd_conversion_webhook_duration_seconds_count{{{of_kind},succeeded=\"true\"}} 1"),
        format!("apiserver_crd_conversion_webhook_duration_seconds_count{{{of_kind},succeeded=\"false\"}} 1"),
    ] {
        assert!(page.lines().any(|one| one == line), "{line} in {page}");
    }
}

#[tokio::test]
async fn a_list_is_one_question() {
    let scene = Scene::start("v1").await;
    for name in ["a", "b", "c"] {
        scene.ok(&format!("POST {V1}"), v1(name, &format!("{name}:1"))).await;
    }
    assert_eq!(scene.webhook.questions(), "");
    let list = scene.ok("GET /apis/a.io/v2/hosts", "").await;
    let items: Vec<Value> = list["items"].as_array().unwrap().iter().map(shown).collect();
    assert_eq!(items, ["a.io/v2 a 1", "a.io/v2 b 1", "a.io/v2 c 1"]);
    assert_eq!((&list["apiVersion"], scene.webhook.questions().as_str()), (&json!("a.io/v2"), "v2:3"));
    let selected = scene.ok(&format!("GET {V2}?fieldSelector=host%3Db"), "").await;
    assert_eq!(selected["items"].as_array().unwrap().iter().map(shown).collect::<Vec<_>>(), ["a.io/v2 b 1"]);
    let page = scene.ok(&format!("GET {V2}?limit=2"), "").await;
    assert_eq!((page["items"].as_array().map(Vec::len), &page["metadata"]["remainingItemCount"]), (Some(2), &json!(1)));
    let table = scene.ok(&format!("GET {V2}\n{TABLE}"), "").await;
    assert_eq!(table["rows"][1]["cells"], json!(["b", "b"]));
    let metadata = "accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    scene.webhook.be(Mood::Lying(|host| host["metadata"]["labels"] = json!({"converted": "yes"})));
    let list = scene.ok(&format!("GET {V2}?labelSelector=converted%3Dyes\n{metadata}"), "").await;
    assert_eq!(list["items"][2]["metadata"]["labels"]["converted"], "yes", "a webhook may change labels");
    let deleted = scene.ok(&format!("DELETE {V2}?fieldSelector=host%3Da"), "").await;
    assert_eq!(deleted["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(scene.ok(&format!("GET {V1}"), "").await["items"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn what_was_stored_in_an_older_version_is_converted_until_it_is_written_again() {
    let scene = Scene::start("v1").await;
    scene.ok(&format!("POST {V1}"), v1("old", "o:1")).await;
    let crd = scene.ok(&format!("GET {CRDS}/hosts.a.io"), "").await;
    let mut moved = hosts("v2", scene.webhook.conversion());
    moved["metadata"] = crd["metadata"].clone();
    let moved = scene.ok(&format!("PUT {CRDS}/hosts.a.io"), moved.to_string()).await;
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
    scene.c.server.objects().caught_up().await.unwrap();
    scene.ok(&format!("POST {V1}"), v1("new", "n:1")).await;
    scene.webhook.questions();
    let list = scene.ok(&format!("GET {V2}"), "").await;
    assert_eq!(list["items"].as_array().unwrap().iter().map(shown).collect::<Vec<_>>(), ["a.io/v2 n 1", "a.io/v2 o 1"]);
    assert_eq!(scene.webhook.questions(), "v2:1", "the new one is stored so");
    let old = scene.ok(&format!("GET {V1}/old"), "").await;
    assert_eq!((shown(&old), scene.webhook.questions()), (json!("a.io/v1 o:1"), String::new()));
    let rewritten = scene.ok(&format!("PUT {V1}/old"), old.to_string()).await;
    assert_ne!(rewritten["metadata"]["resourceVersion"], old["metadata"]["resourceVersion"], "migration is a write");
    scene.webhook.questions();
    assert_eq!(shown(&scene.ok(&format!("GET {V2}/old"), "").await), "a.io/v2 o 1");
    assert_eq!(scene.webhook.questions(), "");
    let again = scene.ok(&format!("PUT {V1}/old"), rewritten.to_string()).await;
    assert_eq!(
        again["metadata"]["resourceVersion"], rewritten["metadata"]["resourceVersion"],
        "now it changes nothing"
    );
}

#[tokio::test]
async fn watchers_of_every_version_see_the_same_changes() {
    let scene = Scene::start("v1").await;
    scene.ok(&format!("POST {V1}"), v1("a", "a:1")).await;
    let mut old = scene.c.watch(&format!("{V1}?watch=1")).await;
    let mut new = scene.c.watch(&format!("{V2}?watch=1")).await;
    let mut only = scene.c.watch(&format!("{V2}?watch=1&fieldSelector=host%3Db&resourceVersion=0")).await;
    let next = async |lines: &mut crate::tests::conversation::Lines| {
        let event = lines.next().await.unwrap();
        format!("{} {}", event["type"].as_str().unwrap(), shown(&event["object"]).as_str().unwrap())
    };
    assert_eq!(next(&mut old).await, "ADDED a.io/v1 a:1");
    assert_eq!(next(&mut new).await, "ADDED a.io/v2 a 1");
    scene.ok(&format!("PATCH {V1}/a\n{MERGE}"), r#"{"hostPort":"b:2"}"#).await;
    let changed = scene.ok(&format!("PATCH {V2}/a\n{MERGE}"), r#"{"host":"c"}"#).await;
    scene.ok(&format!("DELETE {V2}/a"), "").await;
    for expected in ["MODIFIED a.io/v1 b:2", "MODIFIED a.io/v1 c:2", "DELETED a.io/v1 c:2"] {
        assert_eq!(next(&mut old).await, expected);
    }
    for expected in ["MODIFIED a.io/v2 b 2", "MODIFIED a.io/v2 c 2", "DELETED a.io/v2 c 2"] {
        assert_eq!(next(&mut new).await, expected);
    }
    for expected in ["ADDED a.io/v2 b 2", "DELETED a.io/v2 b 2"] {
        assert_eq!(next(&mut only).await, expected, "selectors are about the version that is watched");
    }
    let from = changed["metadata"]["resourceVersion"].as_str().unwrap();
    let mut past =
        scene.c.watch(&format!("{V2}?watch=1&resourceVersion={from}&timeoutSeconds=1&allowWatchBookmarks=true")).await;
    assert_eq!(next(&mut past).await, "DELETED a.io/v2 c 2");
    assert_eq!((past.line().await, past.line().await), ("BOOKMARK".into(), "END".into()));
}

/// Requests that need the webhook fail in upstream's words, all others go on.
#[tokio::test]
async fn a_webhook_that_lies_or_dies_harms_its_own_requests_only() {
    let scene = Scene::start("v1").await;
    let made = scene.ok(&format!("POST {V1}"), v1("a", "a:1")).await;
    let url = format!("https://localhost:{}/convert?timeout=30s", scene.webhook.address.port());
    let deep: &'static str = Box::leak("[".repeat(100_000).into_boxed_str());
    const CALL: &str = "conversion webhook for a.io/v1, Kind=Host failed:";
    const INVALID: &str = "conversion webhook for a.io/v1, Kind=Host returned invalid object";
    for (mood, expected) in [
        (Mood::Refusing("too hot"), format!("{CALL} too hot")),
        (
            Mood::Status(500, "oh no\n"),
            format!("{CALL} an error on the server (\"oh no\") has prevented the request from succeeding"),
        ),
        (Mood::Status(200, deep), format!("{CALL} couldn't get version/kind; json parse error: ")),
        (Mood::Status(404, "where?"), format!("{CALL} the server could not find the requested resource")),
        (
            Mood::Redirecting,
            format!("{CALL} the server responded with the status code 307 but did not return more information"),
        ),
        (
            Mood::Lying(|host| host["metadata"]["uid"] = json!("x")),
            format!("{INVALID}: must have the same UID: {} != x", made["metadata"]["uid"].as_str().unwrap()),
        ),
        (
            Mood::Lying(|host| host["apiVersion"] = json!("a.io/v1")),
            format!("{INVALID} at index 0: invalid groupVersion (expected a.io/v2, received a.io/v1)"),
        ),
        (Mood::Dying, format!("{CALL} Post \"{url}\": ")),
        (Mood::Endless, format!("{CALL} Post \"{url}\": the answer has more than ")),
    ] {
        scene.webhook.be(mood);
        for (verb, path) in [
            ("GET", format!("{V2}/a")),
            ("GET", V2.to_owned()),
            ("DELETE", format!("{V2}/a")),
            ("GET", format!("{V2}/a/scale")),
        ] {
            let answer = scene.say(&format!("{verb} {path}"), "").await;
            assert_eq!((answer.code, answer.at("/reason")), (500, Value::Null), "{verb} {path} {}", answer.text);
            assert!(answer.message().starts_with(&expected), "{verb} {path}: {}\n{expected}", answer.message());
        }
        let refused = scene.say(&format!("PATCH {V2}/a\n{MERGE}"), r#"{"host":"x"}"#).await;
        assert_eq!(refused.code, 500);
        let event = scene.c.watch(&format!("{V2}?watch=1")).await.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(500)));
    }
    assert_eq!(scene.ok(&format!("GET {V1}/a"), "").await, made, "what needs no webhook is as it was");
    scene.webhook.be(Mood::Honest);
    let mut watch = scene.c.watch(&format!("{V2}?watch=1")).await;
    assert_eq!(watch.line().await, "ADDED a");
    scene.webhook.be(Mood::Lying(|host| host["kind"] = json!("Guest")));
    scene.ok(&format!("PATCH {V1}/a\n{MERGE}"), r#"{"hostPort":"b:1"}"#).await;
    assert_eq!((watch.line().await, watch.line().await), ("ERROR".into(), "END".into()));
    scene.webhook.be(Mood::Honest);
    assert_eq!(shown(&scene.ok(&format!("GET {V2}/a"), "").await), "a.io/v2 b 1");
    scene.ok(&format!("DELETE {V1}/a"), "").await;
}

#[tokio::test]
async fn a_webhook_that_hangs_is_given_up() {
    let scene = Scene::start("v1").await;
    scene.ok(&format!("POST {V1}"), v1("a", "a:1")).await;
    let mut watch = scene.c.watch(&format!("{V2}?watch=1&resourceVersion=0")).await;
    assert_eq!(watch.line().await, "ADDED a");
    scene.webhook.be(Mood::Hanging);
    // Its event hangs, and nothing else does.
    scene.ok(&format!("PATCH {V1}/a\n{MERGE}"), r#"{"hostPort":"b:1"}"#).await;
    let mut other = scene.c.watch(&format!("{V1}?watch=1")).await;
    assert_eq!(other.line().await, "ADDED a");
    while scene.webhook.questions().is_empty() {
        scene.webhook.asked.notified().await;
    }
    let asking = async {
        let answer = scene.say(&format!("GET {V2}/a"), "").await;
        let expected = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        assert!(answer.code == 500 && answer.message().ends_with(expected), "{}", answer.text);
    };
    let giving_up = async {
        while scene.webhook.questions().is_empty() {
            scene.webhook.asked.notified().await;
        }
        // Nothing is left to happen but the end of their patience.
        tokio::time::pause();
    };
    tokio::join!(asking, giving_up);
    assert_eq!((watch.line().await, watch.line().await), ("ERROR".into(), "END".into()));
}

#[tokio::test]
async fn a_webhook_behind_a_service_is_reached_by_it() {
    let scene = Scene::start("v1").await;
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    scene.ok("POST /api/v1/namespaces/default/services", service.to_string()).await;
    let mut conversion = scene.webhook.conversion();
    let client = &mut conversion["webhook"]["clientConfig"];
    client["url"] = Value::Null;
    let port = scene.webhook.address.port();
    client["service"] = json!({"namespace": "default", "name": "hook", "path": "/crds", "port": port});
    conversion["webhook"]["conversionReviewVersions"] = json!(["v1beta1"]);
    let patch = json!({"spec": {"conversion": conversion}});
    scene.ok(&format!("PATCH {CRDS}/hosts.a.io\n{MERGE}"), patch.to_string()).await;
    scene.c.server.objects().caught_up().await.unwrap();
    scene.ok(&format!("POST {V1}"), v1("a", "a:1")).await;
    assert_eq!(shown(&scene.ok(&format!("GET {V2}/a"), "").await), "a.io/v2 a 1");
    assert_eq!(scene.webhook.seen.lock().uri, "/crds?timeout=30s");
    let gone = scene.say("DELETE /api/v1/namespaces/default/services/hook", "").await;
    assert_eq!(gone.code, 200);
    let answer = scene.say(&format!("GET {V2}/a"), "").await;
    let expected = format!("Post \"https://hook.default.svc:{port}/crds?timeout=30s\": service \"hook\" not found");
    assert!(answer.message().ends_with(&expected), "{}", answer.message());
}

/// Another authority than the one that the definition names is not believed.
#[tokio::test]
async fn only_the_named_authority_is_believed() {
    let scene = Scene::start("v1").await;
    let other = Converter::start().await;
    let bundle = other.conversion()["webhook"]["clientConfig"]["caBundle"].clone();
    let patch = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": bundle}}}}});
    scene.ok(&format!("PATCH {CRDS}/hosts.a.io\n{MERGE}"), patch.to_string()).await;
    scene.c.server.objects().caught_up().await.unwrap();
    scene.ok(&format!("POST {V1}"), v1("a", "a:1")).await;
    let answer = scene.say(&format!("GET {V2}/a"), "").await;
    assert!(answer.code == 500 && answer.message().contains("tls: "), "{}", answer.text);
    assert_eq!(scene.webhook.questions(), "");
}

/// A kind goes with all of its objects, whatever becomes of its webhook.
#[tokio::test]
async fn a_definition_can_be_deleted_without_its_webhook() {
    let scene = Scene::start("v1").await;
    scene.ok(&format!("POST {V1}"), v1("a", "a:1")).await;
    scene.webhook.be(Mood::Dying);
    scene.ok(&format!("DELETE {CRDS}/hosts.a.io"), "").await;
    while scene.say(&format!("GET {CRDS}/hosts.a.io"), "").await.code != 404 {
        clock::sleep(std::time::Duration::from_millis(5)).await;
    }
}
