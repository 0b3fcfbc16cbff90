//! Custom objects whose schema has changed since they were stored, and those that others stored: every read brings them into
//! the shape of the version that they are stored in, as upstream's decoding from etcd does.

use std::sync::Arc;

use api::Value;
use json::json;
use store::{Change, Commit, Expect, Store, embedded::Embedded};

use crate::{special::table::Specials, storage::object, tests::conversation::Conversation};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/foos.tests.io";
const FOOS: &str = "/apis/tests.io/v1/namespaces/a/foos";
const MERGE: &str = "content-type: application/merge-patch+json";
const TABLE: &str = "accept: application/json;as=Table;g=meta.k8s.io;v=v1";
const METADATA: &str = "accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

fn text(default: Value) -> Value {
    if default.is_null() { json!({"type": "string"}) } else { json!({"type": "string", "default": default}) }
}

fn version(name: &str, storage: bool, fields: Value) -> Value {
    let half = json!({"type": "object", "properties": fields});
    json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": ".spec.a"}],
        "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".spec.a"}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": half, "status": half}}}})
}

fn foos(versions: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.tests.io"},
        "spec": {"group": "tests.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"}, "versions": versions}})
}

/// A server that serves these versions, and the store below it.
async fn start(versions: Value) -> (Conversation, Arc<Embedded>) {
    let below = Arc::new(Embedded::memory());
    let c = Conversation::over(below.clone(), Specials::default()).await;
    let made = c.say(&format!("POST {CRDS}"), foos(versions).to_string()).await;
    assert_eq!(made.code, 201, "{}", made.text);
    while c.say(&format!("GET {FOOS}"), "").await.code != 200 {
        clock::sleep(std::time::Duration::from_millis(10)).await;
    }
    (c, below)
}

/// Changes the versions of the definition.
async fn change(c: &Conversation, versions: Value) {
    let patch = json!({"spec": {"versions": versions}}).to_string();
    let changed = c.say(&format!("PATCH {CRD}\n{MERGE}"), patch).await;
    assert_eq!(changed.code, 200, "{}", changed.text);
    c.server.objects().caught_up().await.unwrap();
}

async fn put(below: &Embedded, name: &str, value: Vec<u8>) {
    let (key, change) =
        (format!("/registry/tests.io/foos/a/{name}"), Change::Put { value: value.into(), ttl_seconds: None });
    below.commit(Commit { key: key.into(), expect: Expect::Any, change }).await.unwrap();
}

async fn stored(below: &Embedded, name: &str) -> Value {
    let entry = below.get(&format!("/registry/tests.io/foos/a/{name}")).await.unwrap().0.unwrap();
    object::stored(&entry.value)
}

fn foo(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "tests.io/v1", "kind": "Foo", "metadata": {"name": name, "namespace": "a"}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn a_new_default_is_seen_at_once_and_a_field_that_left_the_schema_is_not() {
    let (c, below) = start(json!([version("v1", true, json!({"a": text(json!(null)), "b": text(json!(null))}))])).await;
    let made = c.say(&format!("POST {FOOS}"), foo("x", json!({"b": "B"})).to_string()).await;
    let first = made.at("/metadata/resourceVersion");
    change(&c, json!([version("v1", true, json!({"a": text(json!("A"))}))])).await;
    let expected = json!({"a": "A"});
    let read = c.say(&format!("GET {FOOS}/x"), "").await;
    assert_eq!((read.at("/spec"), read.at("/metadata/resourceVersion")), (expected.clone(), first.clone()));
    let list = c.say(&format!("GET {FOOS}?fieldSelector=spec.a%3DA&resourceVersion=0"), "").await;
    assert_eq!(list.at("/items/0/spec"), expected);
    let row = c.say(&format!("GET {FOOS}/x\n{TABLE}"), "").await;
    assert_eq!(row.at("/rows/0/cells"), json!(["x", "A"]));
    let mut events = c.watch(&format!("{FOOS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(events.next().await.unwrap()["object"]["spec"], expected);
    // One that watches the field is told that the object goes, which bears no such field in the store.
    let mut selected = c.watch(&format!("{FOOS}?watch=1&fieldSelector=spec.a%3DA")).await;
    assert_eq!(selected.next().await.unwrap()["type"], "ADDED");
    // Nothing was written for all that.
    assert_eq!(stored(&below, "x").await["spec"], json!({"b": "B"}));
    let gone = c.say(&format!("DELETE {FOOS}/x"), "").await;
    assert_eq!(gone.code, 200, "{}", gone.text);
    let told = selected.next().await.unwrap();
    assert_eq!((&told["type"], &told["object"]["spec"]), (&json!("DELETED"), &expected));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_nothing_is_not_written_for_another_schema() {
    let (c, below) = start(json!([version("v1", true, json!({"a": text(json!(null))}))])).await;
    c.say(&format!("POST {FOOS}"), foo("x", json!({"a": "1"})).to_string()).await;
    let before = c.say(&format!("GET {FOOS}/x"), "").await.text;
    change(&c, json!([version("v1", true, json!({"a": text(json!(null)), "b": text(json!(null))}))])).await;
    assert_eq!(c.say(&format!("GET {FOOS}/x"), "").await.text, before);
    let same = c.say(&format!("PATCH {FOOS}/x\n{MERGE}"), r#"{"spec":{"a":"1"}}"#).await;
    assert_eq!(same.text, before);
    // With a default there is something to write.
    change(&c, json!([version("v1", true, json!({"a": text(json!(null)), "b": text(json!("B"))}))])).await;
    c.say(&format!("PATCH {FOOS}/x\n{MERGE}"), r#"{"spec":{"a":"1"}}"#).await;
    assert_eq!(stored(&below, "x").await["spec"], json!({"a": "1", "b": "B"}));
}

/// TestPruningFromStorage, with more that an API server would not have stored.
#[tokio::test(start_paused = true)]
async fn what_others_stored_is_brought_into_shape() {
    let (c, below) = start(json!([version("v1", true, json!({"a": text(json!("A")), "b": text(json!(null))}))])).await;
    let mut odd = foo("x", json!({"b": "B", "unspecified": 1}));
    odd["alien"] = json!(true);
    odd["metadata"]["labels"] = json!({"good": "yes", "bad": 7});
    odd["metadata"]["finalizers"] = json!("none");
    odd["metadata"]["unspecified"] = json!(1);
    // Upstream's server writes without spaces, and a person with them.
    put(&below, "x", odd.to_string().replace("\"good\":", "\"good\" : ").into_bytes()).await;
    c.server.objects().caught_up().await.unwrap();
    let metadata = json!({"name": "x", "namespace": "a", "labels": {"good": "yes"}, "generation": 1});
    let mut expected =
        json!({"apiVersion": "tests.io/v1", "kind": "Foo", "metadata": metadata, "spec": {"a": "A", "b": "B"}});
    let read = c.say(&format!("GET {FOOS}/x"), "").await;
    expected["metadata"]["resourceVersion"] = read.at("/metadata/resourceVersion");
    assert_eq!(read.json(), expected, "{}", read.text);
    let list = c.say(&format!("GET {FOOS}?labelSelector=good%3Dyes"), "").await;
    assert_eq!(list.at("/items/0"), expected, "{}", list.text);
    let partial = c.say(&format!("GET {FOOS}/x\n{METADATA}"), "").await;
    assert_eq!(partial.at("/metadata"), expected["metadata"], "{}", partial.text);
    let changed = c.say(&format!("PATCH {FOOS}/x\n{MERGE}"), r#"{"metadata":{"labels":{"l":"x"}}}"#).await;
    assert_eq!((changed.code, changed.at("/spec")), (200, expected["spec"].clone()), "{}", changed.text);
    assert_eq!(stored(&below, "x").await["spec"], expected["spec"]);
}

/// Another server, or a write that began earlier, may store by the older schema behind the change.
#[tokio::test(start_paused = true)]
async fn what_an_older_schema_stored_behind_the_change_is_seen_by_the_newer() {
    let (c, below) = start(json!([version("v1", true, json!({"b": text(json!(null)), "a": text(json!(null))}))])).await;
    c.say(&format!("POST {FOOS}"), foo("x", json!({"b": "B"})).to_string()).await;
    let older = below.get("/registry/tests.io/foos/a/x").await.unwrap().0.unwrap().value;
    change(&c, json!([version("v1", true, json!({"a": text(json!("A"))}))])).await;
    put(&below, "x", older.to_vec()).await;
    c.server.objects().caught_up().await.unwrap();
    assert_eq!(c.say(&format!("GET {FOOS}/x"), "").await.at("/spec"), json!({"a": "A"}));
}

/// testDefaulting of apiextensions: the defaults of the version that is asked for are those of requests, and reads have those of
/// the version that is stored.
#[tokio::test(start_paused = true)]
async fn reads_have_the_defaults_of_the_version_that_is_stored() {
    let fields = |c: Value, [one, two]: [Value; 2]| json!({"a": text(json!("A")), "c": text(c), "v1": text(one), "v2": text(two)});
    let versions = |c1: Value, c2: Value| {
        let one = version("v1", false, fields(c1, [json!("v1"), json!(null)]));
        let mut two = version("v2", true, fields(c2, [json!(null), json!("v2")]));
        two["served"] = json!(false);
        json!([one, two])
    };
    let (c, _) = start(versions(json!(null), json!(null))).await;
    let made = c.say(&format!("POST {FOOS}"), foo("x", json!({"a": "a"})).to_string()).await;
    assert_eq!(made.at("/spec"), json!({"a": "a", "v1": "v1", "v2": "v2"}), "{}", made.text);
    assert_eq!(made.at("/status"), Value::Null);
    let status = c.say(&format!("PATCH {FOOS}/x/status\n{MERGE}"), r#"{"status":{}}"#).await;
    assert_eq!(status.at("/status"), json!({"a": "A", "v1": "v1", "v2": "v2"}), "{}", status.text);
    let of = async |pointer: &str| c.say(&format!("GET {FOOS}/x"), "").await.at(pointer);
    change(&c, versions(json!(null), json!("C"))).await;
    assert_eq!((of("/spec/c").await, of("/status/c").await), (json!("C"), json!("C")));
    change(&c, versions(json!("C"), json!(null))).await;
    assert_eq!((of("/spec/c").await, of("/status/c").await), (json!(null), json!(null)));
    let again = c.say(&format!("GET {FOOS}/x"), "").await;
    let status = c.say(&format!("PUT {FOOS}/x/status"), again.text).await;
    assert_eq!((status.at("/spec/c"), status.at("/status/c")), (json!(null), json!("C")), "{}", status.text);
    change(&c, versions(json!(null), json!(null))).await;
    assert_eq!((of("/spec/c").await, of("/status/c").await), (json!(null), json!("C")));
}

/// The version that is stored shows its own defaults in what was written through another.
#[tokio::test(start_paused = true)]
async fn what_was_written_through_another_version_has_the_defaults_too() {
    let versions = json!([
        version("v1", false, json!({"a": text(json!(null)), "b": text(json!(null))})),
        version("v2", true, json!({"a": text(json!(null)), "b": text(json!("B"))}))
    ]);
    let (c, _) = start(versions).await;
    c.say(&format!("POST {FOOS}"), foo("x", json!({"a": "a"})).to_string()).await;
    for path in [FOOS, "/apis/tests.io/v2/namespaces/a/foos"] {
        let read = c.say(&format!("GET {path}/x"), "").await;
        assert_eq!(read.at("/spec"), json!({"a": "a", "b": "B"}), "{}", read.text);
    }
}
