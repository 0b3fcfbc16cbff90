//! How the server answers: the main behaviours as conversations.

use json::{Value, json};

use crate::tests::conversation::Conversation;

const MAPS: &str = "/api/v1/namespaces/a/configmaps";
const PODS: &str = "/api/v1/namespaces/a/pods";

fn map(name: &str, label: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"l": label}}, "data": {"k": "v"}}).to_string()
}

fn pod(name: &str, node: &str) -> String {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod.to_string()
}

async fn start() -> Conversation {
    Conversation::start().await
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_object_is_created_read_changed_and_deleted() {
    let c = start().await;
    let made = c.say(&format!("POST {MAPS}"), &map("x", "1")).await;
    assert_eq!(made.code, 201, "{}", made.text);
    assert_eq!(made.at("/metadata/namespace"), "a");
    assert_eq!(made.at("/metadata/creationTimestamp"), "2023-11-14T22:13:20Z");
    assert_eq!(made.at("/metadata/managedFields/0/manager"), "test");
    assert!(
        made.text
            .starts_with(r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","namespace":"a","uid":""#)
    );
    let again = c.say(&format!("POST {MAPS}"), &map("x", "1")).await;
    assert_eq!((again.code, again.message().as_str()), (409, r#"configmaps "x" already exists"#));
    let read = c.say(&format!("GET {MAPS}/x"), "").await;
    assert_eq!(read.json(), made.json());

    let mut changed = read.json();
    changed["data"]["k"] = json!("w");
    let updated = c.say(&format!("PUT {MAPS}/x"), &changed.to_string()).await;
    assert_eq!((updated.code, updated.at("/data/k")), (200, json!("w")));
    let stale = c.say(&format!("PUT {MAPS}/x"), &changed.to_string()).await;
    assert_eq!(stale.code, 409);
    assert_eq!(
        stale.message(),
        r#"Operation cannot be fulfilled on configmaps "x": the object has been modified; please apply your changes to the latest version and try again"#
    );
    let same = c.say(&format!("PUT {MAPS}/x"), &updated.text).await;
    assert_eq!(same.at("/metadata/resourceVersion"), updated.at("/metadata/resourceVersion"), "nothing changed");

    let merge = format!("PATCH {MAPS}/x\ncontent-type: application/merge-patch+json");
    let patched = c.say(&merge, r#"{"data":{"k":null,"n":"1"}}"#).await;
    assert_eq!((patched.code, patched.at("/data")), (200, json!({"n": "1"})));
    let gone = c.say(&format!("DELETE {MAPS}/x"), "").await;
    assert_eq!((gone.code, gone.at("/status"), gone.at("/details/kind")), (200, json!("Success"), json!("configmaps")));
    let missing = c.say(&format!("GET {MAPS}/x"), "").await;
    assert_eq!((missing.code, missing.message().as_str()), (404, r#"configmaps "x" not found"#));
}

#[tokio::test(start_paused = true)]
async fn wrong_input_is_answered_in_upstreams_words() {
    let c = start().await;
    let made = c.say(&format!("POST {MAPS}"), &map("x", "1")).await;
    let uid = made.at("/metadata/uid").as_str().unwrap().to_owned();
    let recreated = format!(
        r#"Operation cannot be fulfilled on ConfigMap "x": the UID in the precondition (u) does not match the UID in record ({uid}). The object might have been deleted and then recreated"#
    );
    for (head, body, code, message) in [
        (
            format!("POST {MAPS}"),
            "",
            400,
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)",
        ),
        (
            format!("POST {MAPS}"),
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
            400,
            r#"Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion"#,
        ),
        (
            format!("PUT {MAPS}/x"),
            r#"{"kind":"Foo","apiVersion":"v1"}"#,
            400,
            r#"Foo in version "v1" cannot be handled as a ConfigMap: no kind "Foo" is registered for version "v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            format!("POST {MAPS}?dryRun=Some"),
            "{}",
            422,
            r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All""#,
        ),
        (format!("GET {MAPS}?limit=many"), "", 400, r#"strconv.ParseInt: parsing "many": invalid syntax"#),
        (
            format!("GET {MAPS}?resourceVersionMatch=Exact&sendInitialEvents=true"),
            "",
            422,
            r#"ListOptions.meta.k8s.io "" is invalid: [resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided, sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list]"#,
        ),
        (
            format!("GET {MAPS}?watch=1&sendInitialEvents=true"),
            "",
            422,
            r#"ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"#,
        ),
        (
            format!("GET {MAPS}?labelSelector=a%20in%20(b"),
            "",
            400,
            "unable to parse requirement: found '', expected: ',' or ')'",
        ),
        (
            format!("DELETE {MAPS}/x?propagationPolicy=Some"),
            "",
            422,
            r#"DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Some": supported values: "Foreground", "Background", "Orphan", "nil""#,
        ),
        (format!("DELETE {MAPS}/x"), r#"{"preconditions":{"uid":"u"}}"#, 409, &recreated),
    ] {
        let answer = c.say(&head, body).await;
        assert_eq!((answer.code, answer.message().as_str()), (code, message), "{head}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_creates_where_the_kind_allows_it() {
    let c = start().await;
    let missing = c.say(&format!("PUT {MAPS}/x"), &map("x", "1")).await;
    assert_eq!((missing.code, missing.message().as_str()), (404, r#"configmaps "x" not found"#));
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/a/leases";
    let lease = r#"{"metadata":{"name":"l","resourceVersion":"7"},"spec":{"holderIdentity":"h"}}"#;
    let made = c.say(&format!("PUT {LEASES}/l"), lease).await;
    assert_eq!((made.code, made.at("/spec/holderIdentity")), (201, json!("h")), "{}", made.text);
    let blind = c.say(&format!("PUT {LEASES}/l"), r#"{"metadata":{"name":"l"}}"#).await;
    let expected = r#"leases.coordination.k8s.io "l" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"#;
    assert_eq!((blind.code, blind.message().as_str()), (422, expected));
    for (name, kind) in [("l", "existing"), ("n", "new")] {
        let odd = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"abc"}}}}"#);
        let odd = c.say(&format!("PUT {LEASES}/{name}"), &odd).await;
        let expected = r#"strconv.ParseUint: parsing "abc": invalid syntax"#;
        assert_eq!((odd.code, odd.message().as_str(), odd.at("/reason")), (500, expected, Value::Null), "{kind}");
    }
    let posted = c.say(&format!("POST {LEASES}"), r#"{"metadata":{"name":"p","resourceVersion":"abc"}}"#).await;
    assert_eq!(posted.code, 201, "{}", posted.text);
    let other = r#"{"metadata":{"name":"m","uid":"u"}}"#;
    let other = c.say(&format!("PUT {LEASES}/m"), other).await;
    assert_eq!(other.code, 409, "{}", other.text);
}

#[tokio::test(start_paused = true)]
async fn names_are_generated_and_dry_runs_leave_nothing() {
    let c = start().await;
    let made = c.say(&format!("POST {MAPS}"), r#"{"metadata":{"generateName":"x-"}}"#).await;
    let name = made.at("/metadata/name");
    assert!(name.as_str().unwrap().starts_with("x-") && name.as_str().unwrap().len() == 7, "{}", made.text);
    assert_eq!(c.say(&format!("POST {MAPS}?dryRun=All"), &map("dry", "1")).await.code, 201);
    assert_eq!(c.say(&format!("GET {MAPS}/dry"), "").await.code, 404);
    let elsewhere = r#"{"metadata":{"name":"x","namespace":"b"}}"#;
    let refused = c.say(&format!("POST {MAPS}"), elsewhere).await;
    let expected = "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!((refused.code, refused.message().as_str()), (400, expected));
    let nameless = c.say(&format!("POST {MAPS}"), "{}").await;
    assert_eq!(nameless.code, 422);
    let unknown = c.say(&format!("POST {MAPS}?fieldValidation=Strict"), r#"{"metadata":{"name":"u"},"oops":1}"#).await;
    assert_eq!(unknown.code, 400);
    assert!(unknown.message().contains(r#"unknown field "oops""#), "{}", unknown.message());
    let warned = c.say(&format!("POST {MAPS}"), r#"{"metadata":{"name":"u"},"oops":1}"#).await;
    assert_eq!(warned.headers["warning"], r#"299 - "unknown field \"oops\"""#);
}

#[tokio::test(start_paused = true)]
async fn lists_select_and_page() {
    let c = start().await;
    for (name, label) in [("p", "1"), ("q", "2"), ("r", "1"), ("s", "1")] {
        assert_eq!(c.say(&format!("POST {MAPS}"), &map(name, label)).await.code, 201);
    }
    let all = c.say(&format!("GET {MAPS}"), "").await.json();
    assert_eq!((names(&all), &all["kind"]), (vec!["p", "q", "r", "s"], &json!("ConfigMapList")));
    let labelled = c.say(&format!("GET {MAPS}?labelSelector=l%3D1"), "").await.json();
    assert_eq!(names(&labelled), ["p", "r", "s"]);
    let named = c.say(&format!("GET {MAPS}?fieldSelector=metadata.name!%3Dp"), "").await.json();
    assert_eq!(names(&named), ["q", "r", "s"]);
    let unlimited = c.say(&format!("GET {MAPS}?limit=-1"), "").await.json();
    assert!(unlimited["metadata"].get("continue").is_none(), "{unlimited}");
    let page = c.say(&format!("GET {MAPS}?limit=2&labelSelector=l%3D1"), "").await.json();
    assert_eq!(names(&page), ["p", "r"]);
    let page = c.say(&format!("GET {MAPS}?limit=3"), "").await.json();
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    // The second page is of the same moment as the first.
    c.say(&format!("DELETE {MAPS}/s"), "").await;
    let rest = c.say(&format!("GET {MAPS}?limit=3&continue={token}"), "").await.json();
    assert_eq!((names(&rest), &rest["metadata"]["resourceVersion"]), (vec!["s"], &page["metadata"]["resourceVersion"]));
    let future = c.say(&format!("GET {MAPS}?resourceVersion=99999"), "").await;
    assert_eq!((future.code, future.at("/details/causes/0/reason")), (504, json!("ResourceVersionTooLarge")));
    let bad = c.say(&format!("GET {MAPS}?fieldSelector=data.k%3Dx"), "").await;
    assert_eq!(bad.code, 400);
    let newest = c.server.objects().caught_up().await.unwrap();
    c.server.objects().store.compact(newest).await.unwrap();
    let expired = c.say(&format!("GET {MAPS}?limit=3&continue={token}"), "").await;
    assert_eq!((expired.code, expired.at("/reason")), (410, json!("Expired")));
    // The error brings a token for the same place, in the list as it is now.
    let fresh = expired.at("/metadata/continue").as_str().expect("a token").to_owned();
    c.say(&format!("POST {MAPS}"), &map("z", "1")).await;
    let rest = c.say(&format!("GET {MAPS}?limit=3&continue={fresh}"), "").await.json();
    assert_eq!(names(&rest), ["z"], "s is gone by now");
    let both = c.say(&format!("GET {MAPS}?continue={fresh}&resourceVersion=99999"), "").await;
    assert_eq!(
        (both.code, both.at("/message")),
        (400, json!("specifying resource version is not allowed when using continue"))
    );
    let old = c.say(&format!("GET {MAPS}?resourceVersion=1&resourceVersionMatch=Exact"), "").await;
    assert_eq!((old.code, old.at("/metadata")), (410, json!({})));
}

#[tokio::test(start_paused = true)]
async fn watches_show_changes_once_and_resume() {
    let c = start().await;
    let first = c.say(&format!("POST {MAPS}"), &map("p", "1")).await.at("/metadata/resourceVersion");
    let mut live = c.watch(&format!("{MAPS}?watch=1")).await;
    let mut selected =
        c.watch(&format!("{MAPS}?watch=1&labelSelector=l%3D1&resourceVersion={}", first.as_str().unwrap())).await;
    c.say(&format!("POST {MAPS}"), &map("q", "1")).await;
    let merge = format!("PATCH {MAPS}/q\ncontent-type: application/merge-patch+json");
    c.say(&merge, r#"{"metadata":{"labels":{"l":"2"}}}"#).await;
    c.say(&format!("DELETE {MAPS}/q"), "").await;
    for expected in ["ADDED p", "ADDED q", "MODIFIED q", "DELETED q"] {
        assert_eq!(live.line().await, expected);
    }
    for expected in ["ADDED q", "DELETED q"] {
        assert_eq!(selected.line().await, expected, "leaving the selection is a deletion");
    }
    let mut resumed = c.watch(&format!("{MAPS}?watch=1&resourceVersion={}", first.as_str().unwrap())).await;
    for expected in ["ADDED q", "MODIFIED q", "DELETED q"] {
        assert_eq!(resumed.line().await, expected);
    }
    let mut list = c.watch(&format!("{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=5")).await;
    assert_eq!(list.line().await, "ADDED p");
    let end = list.next().await.unwrap();
    assert_eq!(
        (&end["type"], &end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"]),
        (&json!("BOOKMARK"), &json!("true"))
    );
    assert_eq!((list.line().await, list.line().await), ("BOOKMARK".to_owned(), "END".to_owned()));
    let objects = c.server.objects();
    objects.store.compact(objects.caught_up().await.unwrap()).await.unwrap();
    let old = c.say(&format!("GET {MAPS}?watch=1&resourceVersion=1"), "").await;
    assert_eq!((old.code, old.at("/type"), old.at("/object/code")), (200, json!("ERROR"), json!(410)));
    assert!(old.at("/object/message").as_str().unwrap().starts_with("too old resource version: 1 ("), "{}", old.text);
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_is_cut_off_and_others_are_not() {
    let c = start().await;
    let mut slow = c.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    let mut quick = c.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    let mut other = c.watch("/api/v1/namespaces/b/configmaps?watch=1&resourceVersion=0").await;
    for i in 0..1100 {
        assert_eq!(c.say(&format!("POST {MAPS}"), &map(&format!("m{i}"), "1")).await.code, 201);
        assert_eq!(quick.line().await, format!("ADDED m{i}"));
    }
    let mut seen = 0;
    while slow.next().await.is_some() {
        seen += 1;
    }
    assert_eq!(seen, 1000, "what was queued arrives, then the watch ends");
    c.say("POST /api/v1/namespaces/b/configmaps", &map("b", "1")).await;
    assert_eq!(other.line().await, "ADDED b");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_keep_an_idle_watch_fresh() {
    let c = start().await;
    let mut watch = c.watch(&format!("{MAPS}?watch=1&resourceVersion=0&allowWatchBookmarks=true")).await;
    let began = watch.next().await.unwrap();
    assert_eq!(began["type"], "BOOKMARK");
    let made = c.say(&format!("POST {PODS}"), &pod("x", "")).await;
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], made.at("/metadata/resourceVersion"));
}

#[tokio::test(start_paused = true)]
async fn namespaces_wait_for_their_finalizers() {
    let c = start().await;
    assert_eq!(c.say("POST /api/v1/namespaces", r#"{"metadata":{"name":"n"}}"#).await.at("/status/phase"), "Active");
    let ending = c.say("DELETE /api/v1/namespaces/n", "").await;
    assert_eq!((ending.code, ending.at("/status/phase")), (200, json!("Terminating")));
    let times =
        ["deletionTimestamp", "deletionGracePeriodSeconds"].map(|field| ending.at(&format!("/metadata/{field}")));
    assert!(times[0].is_string() && times[1].is_null(), "a namespace has no grace period: {}", ending.text);
    let mut object = ending.json();
    object["spec"]["finalizers"] = json!([]);
    let done = c.say("PUT /api/v1/namespaces/n/finalize", &object.to_string()).await;
    assert_eq!(done.code, 200, "{}", done.text);
    assert_eq!(c.say("GET /api/v1/namespaces/n", "").await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn large_answers_are_streamed_and_compressed_when_asked() {
    let c = start().await;
    for i in 0..40 {
        let body = json!({"metadata": {"name": format!("m{i:02}")}, "data": {"k": "x".repeat(9000)}}).to_string();
        assert_eq!(c.say(&format!("POST {MAPS}"), &body).await.code, 201);
    }
    let list = c.say(&format!("GET {MAPS}"), "").await;
    assert_eq!((names(&list.json()).len(), list.headers.get("content-encoding")), (40, None));
    let small = c.say(&format!("GET {MAPS}?limit=1\naccept-encoding: gzip"), "").await;
    assert_eq!(names(&small.json()), ["m00"], "a small answer is not worth it");
    let zipped = c.say_bytes(&format!("GET {MAPS}\naccept-encoding: gzip")).await;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&zipped[..]), &mut text).unwrap();
    assert_eq!(text, list.text);
    assert!(zipped.len() < list.text.len() / 10);
}

#[tokio::test(start_paused = true)]
async fn pods_are_watched_by_node_and_deleted_gracefully() {
    let c = start().await;
    let mut n1 = c.watch("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1").await;
    for (name, node) in [("x", "n1"), ("y", "n2"), ("z", "")] {
        let made = c.say(&format!("POST {PODS}"), &pod(name, node)).await;
        assert_eq!(made.code, 201, "{}", made.text);
    }
    assert_eq!(n1.line().await, "ADDED x");
    let marked = c.say(&format!("DELETE {PODS}/x"), "").await;
    assert_eq!((marked.code, marked.at("/metadata/deletionGracePeriodSeconds")), (200, json!(30)));
    let ends = marked.at("/metadata/deletionTimestamp");
    assert_eq!(ends, "2023-11-14T22:13:50Z");
    let sooner = c.say(&format!("DELETE {PODS}/x?gracePeriodSeconds=10"), "").await;
    assert_eq!(sooner.at("/metadata/deletionTimestamp"), "2023-11-14T22:13:30Z");
    let longer = c.say(&format!("DELETE {PODS}/x?gracePeriodSeconds=20"), "").await;
    assert_eq!(longer.at("/metadata/deletionTimestamp"), "2023-11-14T22:13:30Z");
    let wrong = r#"{"preconditions":{"uid":"no"},"gracePeriodSeconds":0}"#;
    assert_eq!(c.say(&format!("DELETE {PODS}/x"), wrong).await.code, 409);
    assert_eq!(c.say(&format!("DELETE {PODS}/x"), r#"{"gracePeriodSeconds":0}"#).await.code, 200);
    assert_eq!(c.say(&format!("GET {PODS}/x"), "").await.code, 404);
    for expected in ["MODIFIED x", "MODIFIED x", "DELETED x"] {
        assert_eq!(n1.line().await, expected);
    }
    assert_eq!(c.say(&format!("DELETE {PODS}?gracePeriodSeconds=0"), "").await.code, 200);
    assert_eq!(names(&c.say(&format!("GET {PODS}"), "").await.json()), Vec::<&str>::new());
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_an_object_until_they_are_gone() {
    let c = start().await;
    let held = r#"{"metadata":{"name":"h","finalizers":["example.com/hold"]}}"#;
    c.say(&format!("POST {MAPS}"), held).await;
    let marked = c.say(&format!("DELETE {MAPS}/h"), "").await;
    assert_eq!((marked.code, marked.at("/metadata/deletionGracePeriodSeconds")), (200, json!(0)));
    let patch = format!("PATCH {MAPS}/h\ncontent-type: application/merge-patch+json");
    assert_eq!(c.say(&patch, r#"{"metadata":{"finalizers":null}}"#).await.code, 200);
    assert_eq!(c.say(&format!("GET {MAPS}/h"), "").await.code, 404);
    c.say(&format!("POST {MAPS}"), &map("f", "1")).await;
    let body = r#"{"propagationPolicy":"Foreground"}"#;
    let foreground = c.say(&format!("DELETE {MAPS}/f"), body).await;
    assert_eq!(foreground.at("/metadata/finalizers"), json!(["foregroundDeletion"]));
}

const DEPLOYMENT: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":2,
    "selector":{"matchLabels":{"a":"b"}},
    "template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#;

#[tokio::test(start_paused = true)]
async fn status_and_scale_are_windows_on_the_object() {
    let c = start().await;
    let path = "/apis/apps/v1/namespaces/a/deployments";
    let made = c.say(&format!("POST {path}"), DEPLOYMENT).await;
    assert_eq!((made.code, made.at("/metadata/generation")), (201, json!(1)), "{}", made.text);
    let scale = c.say(&format!("GET {path}/d/scale"), "").await;
    assert_eq!(
        (scale.at("/kind"), scale.at("/spec/replicas"), scale.at("/status/selector")),
        (json!("Scale"), json!(2), json!("a=b"))
    );
    let table = c.say(&format!("GET {path}/d/scale\naccept: application/json;as=Table;v=v1;g=meta.k8s.io"), "").await;
    let names: Vec<Value> = (0..4).map(|at| table.at(&format!("/columnDefinitions/{at}/name"))).collect();
    assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
    assert_eq!(table.at("/rows/0/cells"), json!(["d", scale.at("/spec/replicas"), 0, table.at("/rows/0/cells/3")]));
    let patch = format!("PATCH {path}/d/scale\ncontent-type: application/merge-patch+json");
    let scaled = c.say(&patch, r#"{"spec":{"replicas":5}}"#).await;
    assert_eq!((scaled.code, scaled.at("/spec/replicas")), (200, json!(5)), "{}", scaled.text);
    let read = c.say(&format!("GET {path}/d"), "").await;
    assert_eq!((read.at("/spec/replicas"), read.at("/metadata/generation")), (json!(5), json!(2)));
    let status = format!("PATCH {path}/d/status\ncontent-type: application/merge-patch+json");
    let reported = c.say(&status, r#"{"spec":{"replicas":9},"status":{"replicas":5}}"#).await;
    assert_eq!((reported.at("/spec/replicas"), reported.at("/status/replicas")), (json!(5), json!(5)));
    assert_eq!(reported.at("/metadata/generation"), 2);
}

#[tokio::test(start_paused = true)]
async fn apply_creates_changes_and_reports_conflicts() {
    let c = start().await;
    let apply =
        |manager: &str| format!("PATCH {MAPS}/s?fieldManager={manager}\ncontent-type: application/apply-patch+yaml");
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {k: one}\n";
    let made = c.say(&apply("m"), body).await;
    assert_eq!((made.code, made.at("/metadata/managedFields/0/operation")), (201, json!("Apply")), "{}", made.text);
    assert_eq!(c.say(&apply("m"), &body.replace("one", "two")).await.at("/data/k"), "two");
    let conflict = c.say(&apply("other"), body).await;
    assert_eq!((conflict.code, conflict.at("/reason")), (409, json!("Conflict")));
    let misfit = c.say(&apply("m"), &body.replace("k: one", "k: 1")).await;
    let words = "failed to create typed patch object (/s; /v1, Kind=ConfigMap): .data.k: expected string, got \
                 &value.valueUnstructured{Value:1}";
    assert_eq!((misfit.code, misfit.at("/message")), (500, json!(words)));
}

#[tokio::test(start_paused = true)]
async fn views_are_negotiated() {
    let c = start().await;
    c.say(&format!("POST {PODS}"), &pod("x", "")).await;
    let accept = "accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = c.say(&format!("GET {PODS}\n{accept}"), "").await;
    assert_eq!(
        (table.at("/kind"), table.at("/rows/0/cells/0"), table.at("/rows/0/object/kind")),
        (json!("Table"), json!("x"), json!("PartialObjectMetadata"))
    );
    assert_eq!(table.at("/columnDefinitions/0/name"), "Name");
    for path in [PODS.to_owned(), format!("{PODS}/x")] {
        for (include, kind) in
            [("Object", json!("Pod")), ("Metadata", json!("PartialObjectMetadata")), ("None", json!(null))]
        {
            let table = c.say(&format!("GET {path}?includeObject={include}\n{accept}"), "").await;
            assert_eq!(table.at("/rows/0/object/kind"), kind, "{path} {include}");
        }
        let refused = c.say(&format!("GET {path}?includeObject=All\n{accept}"), "").await;
        let why = "includeObject: Invalid value: \"All\": must be 'Metadata', 'Object', 'None', or empty";
        let message = format!("Unable to convert to Table as requested: {why}");
        assert_eq!((refused.code, refused.message()), (400, message), "{path}");
    }
    let metadata =
        c.say(&format!("GET {PODS}/x\naccept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"), "").await;
    assert_eq!(
        (metadata.at("/kind"), metadata.at("/metadata/name"), metadata.at("/spec")),
        (json!("PartialObjectMetadata"), json!("x"), Value::Null)
    );
    let (one, list) = ("PartialObjectMetadata", "PartialObjectMetadataList");
    let is_list = |kind: &str| format!("you requested {one}, but the requested object is a list ({kind})");
    let is_none = |kind: &str| format!("you requested {list}, but the requested object is not a list ({kind})");
    for (request, form, expected) in [
        (format!("GET {PODS}"), one, is_list("*core.PodList")),
        (format!("DELETE {PODS}?labelSelector=a%3Db"), one, is_list("*core.PodList")),
        (format!("GET {PODS}/x"), list, is_none("*core.Pod")),
        (format!("GET {PODS}?watch=1"), list, is_none("*core.Pod")),
        ("GET /apis/apps/v1/replicasets".to_owned(), one, is_list("*apps.ReplicaSetList")),
        ("GET /apis/events.k8s.io/v1/events".to_owned(), one, is_list("*core.EventList")),
    ] {
        let asked = format!("{request}\naccept: application/json;as={form};v=v1;g=meta.k8s.io");
        let refused = c.say(&asked, "").await;
        assert_eq!((refused.code, refused.message()), (406, expected), "{request}");
    }
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: from-yaml\n";
    assert_eq!(c.say(&format!("POST {MAPS}\ncontent-type: application/yaml"), yaml).await.code, 201);
    assert_eq!(c.say(&format!("POST {MAPS}\ncontent-type: application/cbor"), "x").await.code, 415);
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_endpoints_is_told_of_slices() {
    let c = start().await;
    let warning = "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"";
    let list = "/api/v1/namespaces/default/endpoints";
    let created = c.say(&format!("POST {list}"), r#"{"metadata": {"name": "e"}}"#).await;
    assert_eq!((created.code, &created.headers["warning"]), (201, &warning.parse().unwrap()));
    assert_eq!(c.say(&format!("GET {list}/e"), "").await.headers["warning"], warning);
    assert_eq!(c.say(&format!("GET {list}"), "").await.headers["warning"], warning);
    // A refusal does not hide it, and others stand behind it.
    let twice = c.say(&format!("POST {list}"), r#"{"metadata": {"name": "e"}, "a": 1}"#).await;
    let told: Vec<_> = twice.headers.get_all("warning").iter().map(|told| told.to_str().unwrap()).collect();
    assert_eq!((twice.code, told), (409, vec![warning, r#"299 - "unknown field \"a\"""#]));
}

#[tokio::test(start_paused = true)]
async fn every_document_can_be_had_in_yaml() {
    let c = start().await;
    c.say(&format!("POST {PODS}"), &pod("x", "")).await;
    for (path, parameters) in [
        (format!("GET {PODS}/x"), ""),
        (format!("GET {PODS}"), ""),
        (format!("GET {PODS}"), ";as=Table;v=v1;g=meta.k8s.io"),
        (format!("GET {PODS}/y"), ""),
        (format!("PATCH {PODS}/x"), ""),
        ("GET /api/v1".to_owned(), ""),
        ("GET /api/v1/nothing".to_owned(), ""),
    ] {
        let json = c.say(&format!("{path}\naccept: application/json{parameters}"), "").await;
        let yaml = c.say(&format!("{path}\naccept: application/yaml{parameters}"), "").await;
        assert_eq!(
            (yaml.code, &yaml.headers["content-type"]),
            (json.code, &"application/yaml".parse().unwrap()),
            "{path}"
        );
        let read: Value = serde_saphyr::from_str(&yaml.text).unwrap_or_else(|e| panic!("{e}: {}", yaml.text));
        assert_eq!(read, json.json(), "{path}");
    }
    let watch = c.say(&format!("GET {PODS}?watch=1\naccept: application/yaml"), "").await;
    let expected = "only the following media types are accepted: application/json;stream=watch, \
                    application/vnd.kubernetes.protobuf;stream=watch";
    let said: Value = serde_saphyr::from_str(&watch.text).unwrap();
    assert_eq!((watch.code, &said["message"]), (406, &json!(expected)));
    let cbor = c.say(&format!("GET {PODS}/x\naccept: application/cbor"), "").await;
    let expected = "only the following media types are accepted: application/json, application/yaml, \
                    application/vnd.kubernetes.protobuf";
    assert_eq!((cbor.code, cbor.message().as_str()), (406, expected));
}

#[tokio::test(start_paused = true)]
async fn discovery_and_pages() {
    let c = start().await;
    let core = c.say("GET /api/v1", "").await.json();
    let resources = core["resources"].as_array().unwrap();
    let find = |name: &str| resources.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(find("pods")["shortNames"], json!(["po"]));
    assert_eq!(find("pods/status")["kind"], "Pod");
    assert_eq!(
        (&find("pods/eviction")["kind"], &find("pods/eviction")["group"]),
        (&json!("Eviction"), &json!("policy"))
    );
    let groups = c.say("GET /apis", "").await;
    assert!(groups.text.contains(r#""groupVersion":"apps/v1""#));
    let accept = "accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let all = c.say(&format!("GET /apis\n{accept}"), "").await;
    assert_eq!(all.at("/kind"), "APIGroupDiscoveryList");
    assert_eq!(all.headers["content-type"], "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let etag = all.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(c.say(&format!("GET /apis\n{accept}\nif-none-match: {etag}"), "").await.code, 304);
    assert_eq!(c.say("GET /version", "").await.at("/minor"), "35");
    assert_eq!(c.say("GET /readyz", "").await.text, "ok");
    assert!(c.say("GET /metrics", "").await.text.contains("apiserver_request_total{code=\"200\""));
    assert_eq!(c.say("GET /openapi/v3/api/v1", "").await.at("/openapi"), "3.0.0");
    let places = c.say("GET /openapi/v3", "").await.json();
    let place = places["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let whole = c.say(&format!("GET {place}"), "").await;
    assert_eq!((whole.code, &whole.headers["cache-control"]), (200, &"public, immutable".parse().unwrap()));
    assert_eq!(whole.headers["expires"], "Wed, 13 Nov 2024 22:13:20 GMT");
    let moved = c.say("GET /openapi/v3/apis/apps/v1?hash=OLD", "").await;
    assert_eq!((moved.code, moved.headers["location"].to_str().unwrap()), (301, place.as_str()));
    assert!(!moved.headers["cache-control"].to_str().unwrap().contains("immutable"));
    let binary = "application/com.github.proto-openapi.spec.v2";
    for (path, accept, code, media_type) in [
        ("/openapi/v2", "application/json", 200, "application/json"),
        ("/openapi/v2", "application/*;q=0.1, text/html", 200, "application/json"),
        ("/openapi/v2", &format!("{binary}@v1.0+protobuf"), 200, &*format!("{binary}.v1.0+protobuf")),
        ("/openapi/v2", &format!("{binary}.v1.0+protobuf"), 200, &format!("{binary}.v1.0+protobuf")),
        ("/openapi/v2", "application/xml", 406, ""),
        ("/openapi/v3/api/v1", "text/html", 406, ""),
        ("/openapi/v3", "text/html", 200, "application/json"),
        (
            "/openapi/v3/api/v1",
            &format!("{}@v1.0+protobuf", binary.replace("v2", "v3")),
            200,
            &format!("{}.v1.0+protobuf", binary.replace("v2", "v3")),
        ),
    ] {
        let page = c.say(&format!("GET {path}\naccept: {accept}"), "").await;
        let found = page.headers.get("content-type").map_or("", |value| value.to_str().unwrap());
        assert_eq!((page.code, found), (code, media_type), "{path} {accept}");
    }
    for path in ["/nowhere", "/openapi/v3/apis/nothing/v1", "/openapi/v3/api", "/openapi/v4"] {
        for accept in ["*/*", "application/json", "text/html", "image/png"] {
            let nowhere = c.say(&format!("GET {path}\naccept: {accept}"), "").await;
            assert_eq!((nowhere.code, nowhere.text.as_str()), (404, "404 page not found\n"), "{path} {accept}");
        }
    }
    let unknown = c.say("GET /api/v1/foos", "").await;
    assert_eq!((unknown.code, unknown.message().as_str()), (404, "the server could not find the requested resource"));
    assert_eq!(unknown.at("/details"), json!({}));
    assert_eq!(c.say("PUT /api/v1/namespaces/a/configmaps", "{}").await.code, 405);
    assert_eq!(c.say("POST /api/v1/configmaps", &map("x", "1")).await.code, 405, "it would be in no namespace");
    assert_eq!(c.say("DELETE /api/v1/configmaps", "").await.code, 405);
    assert_eq!(c.say("GET /api/v1/namespaces/a/configmaps/b%2Fc", "").await.code, 400);
}

/// An object that is too large with the word on who set what is stored without it. An apply is nothing without.
#[tokio::test(start_paused = true)]
async fn large_objects_have_no_managers() {
    let c = start().await;
    let key = |i: usize| format!("this-key-is-very-long-so-as-to-create-a-very-large-serialized-fieldset-{i}");
    let data: Value = (0..9999).map(|i| (key(i), json!("A"))).collect::<json::Map>().into();
    let large = |name: &str, data: &Value| json!({"metadata": {"name": name}, "data": data});
    let made = c.say(&format!("POST {MAPS}"), large("x", &data).to_string()).await;
    assert_eq!((made.code, made.at("/metadata/managedFields")), (201, Value::Null), "{}", made.message());
    let apply = format!("PATCH {MAPS}/x?fieldManager=m\ncontent-type: application/apply-patch+yaml");
    let applied = c.say(&apply, r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}"#).await;
    assert_eq!(applied.code, 413, "{}", applied.message());
    let small = json!({"k": "v"});
    for name in ["y", "z"] {
        let made = c.say(&format!("POST {MAPS}"), large(name, &small).to_string()).await;
        assert!(made.at("/metadata/managedFields").is_array());
    }
    let put = c.say(&format!("PUT {MAPS}/y"), large("y", &data).to_string()).await;
    let patch = json!({"data": data}).to_string();
    let patched = c.say(&format!("PATCH {MAPS}/z\ncontent-type: application/merge-patch+json"), patch).await;
    for changed in [put, patched] {
        assert_eq!((changed.code, changed.at("/metadata/managedFields")), (200, Value::Null), "{}", changed.message());
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_of_managers_ends_the_tracking() {
    let c = start().await;
    c.say(&format!("POST {MAPS}"), map("x", "1")).await;
    let bare = r#"{"metadata": {"name": "x", "managedFields": [], "labels": {"l": "2"}}}"#;
    let put = c.say(&format!("PUT {MAPS}/x"), bare).await;
    assert_eq!((put.code, put.at("/metadata/managedFields")), (200, Value::Null), "{}", put.text);
    let merge = format!("PATCH {MAPS}/x\ncontent-type: application/merge-patch+json");
    let patched = c.say(&merge, r#"{"metadata":{"labels":{"l":"3"}}}"#).await;
    assert_eq!((patched.at("/metadata/labels/l"), patched.at("/metadata/managedFields")), (json!("3"), Value::Null));
}
