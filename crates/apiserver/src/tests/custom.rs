//! Custom kinds as clients see them: conversations from the definition to its end.

use futures::FutureExt;
use json::{Value, json};

use crate::tests::conversation::Conversation;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DOGS: &str = "/apis/example.com/v1/namespaces/a/dogs";
const MERGE: &str = "content-type: application/merge-patch+json";

/// A definition with most of what one can have.
fn dogs() -> Value {
    let spec = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "minLength": 2}, "color": {"type": "string", "default": "brown"},
        "age": {"type": "integer", "minimum": 0, "maximum": 30}, "replicas": {"type": "integer"},
        "port": {"x-kubernetes-int-or-string": true},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "toys": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"], "items": {
            "type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "price": {"type": "integer"}}}},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}},
        "x-kubernetes-validations": [{"rule": "!has(self.age) || self.age != 13", "message": "thirteen is no age"}]});
    let status = json!({"type": "object", "properties": {"replicas": {"type": "integer"}, "mood": {"type": "string"}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "dogs.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "dogs", "kind": "Dog", "shortNames": ["d"], "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                    {"name": "Age", "type": "integer", "jsonPath": ".spec.age", "priority": 1}]}]}})
}

fn dog(name: &str, spec: Value) -> String {
    json!({"apiVersion": "example.com/v1", "kind": "Dog", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// Waits until a definition's condition is what it has to be.
async fn condition(c: &Conversation, name: &str, kind: &str, wanted: &str) -> Value {
    for _ in 0..1000 {
        let read = c.say(&format!("GET {CRDS}/{name}"), "").await.json();
        let conditions = read["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|c| c["type"] == kind && c["status"] == wanted) {
            return read;
        }
        clock::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{name} never is {kind}={wanted}");
}

async fn start() -> Conversation {
    let c = Conversation::start().await;
    let made = c.say(&format!("POST {CRDS}"), dogs().to_string()).await;
    assert_eq!(made.code, 201, "{}", made.text);
    assert_eq!(made.at("/status/storedVersions"), json!(["v1"]));
    condition(&c, "dogs.example.com", "Established", "True").await;
    c
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_served_as_soon_as_it_is_established() {
    let c = start().await;
    let crd = c.say(&format!("GET {CRDS}/dogs.example.com"), "").await;
    assert_eq!(crd.at("/status/acceptedNames/singular"), "dog");
    assert_eq!(crd.at("/status/acceptedNames/listKind"), "DogList");
    let made = c
        .say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex", "age": 3, "wings": 2, "free": {"x": 1}})))
        .await;
    assert_eq!(made.code, 201, "{}", made.text);
    assert_eq!(made.at("/spec"), json!({"name": "Rex", "age": 3, "color": "brown", "free": {"x": 1}}));
    assert_eq!(made.headers["warning"], "299 - \"unknown field \\\"spec.wings\\\"\"");
    assert_eq!(made.at("/metadata/generation"), 1);
    let strict =
        c.say(&format!("POST {DOGS}?fieldValidation=Strict"), dog("max", json!({"name": "Max", "wings": 2}))).await;
    let words = "Dog in version \"v1\" cannot be handled as a Dog: strict decoding error: unknown field \"spec.wings\"";
    assert_eq!((strict.code, strict.message().as_str()), (400, words));
    let read = c.say(&format!("GET {DOGS}/rex"), "").await;
    assert_eq!(read.json(), made.json());
    let list = c.say("GET /apis/example.com/v1/dogs", "").await;
    assert_eq!((list.at("/kind"), list.at("/items/0/metadata/name")), (json!("DogList"), json!("rex")));
    for (selector, count) in [("brown", 1), ("white", 0)] {
        let found = c.say(&format!("GET {DOGS}?fieldSelector=spec.color%3D{selector}"), "").await;
        assert_eq!(found.at("/items").as_array().map(Vec::len), Some(count), "{selector}");
    }
    let unknown = c.say(&format!("GET {DOGS}?fieldSelector=spec.age%3D3"), "").await;
    assert_eq!((unknown.code, unknown.message().as_str()), (400, "field label not supported: spec.age"));
    let table = c.say(&format!("GET {DOGS}\naccept: application/json;as=Table;v=v1;g=meta.k8s.io"), "").await;
    assert_eq!(table.at("/rows/0/cells"), json!(["rex", "brown", 3]));
    assert_eq!(table.at("/columnDefinitions/1/name"), "Color");
}

/// They have no messages; their metadata have.
#[tokio::test(start_paused = true)]
async fn objects_are_not_to_be_had_in_protobuf() {
    let c = start().await;
    assert_eq!(c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await.code, 201);
    let binary = "application/vnd.kubernetes.protobuf";
    for (accept, code, media_type) in [
        (binary.to_owned(), 406, binary),
        (format!("{binary},application/json"), 200, "application/json"),
        (format!("{binary}, */*"), 200, "application/json"),
        (format!("{binary};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"), 200, binary),
        (format!("{binary};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"), 200, binary),
    ] {
        for path in [format!("GET {DOGS}/rex"), format!("GET {DOGS}"), format!("PATCH {DOGS}/rex\n{MERGE}")] {
            let listed = path == format!("GET {DOGS}");
            // The form of one object is none of a list, nor the other way around.
            if accept.contains("PartialObjectMetadata") && accept.contains("List") != listed {
                continue;
            }
            let answer = c.say(&format!("{path}\naccept: {accept}"), "{}").await;
            assert_eq!(
                (answer.code, &answer.headers["content-type"]),
                (code, &media_type.parse().unwrap()),
                "{path} {accept}"
            );
        }
    }
    let watch = c.say(&format!("GET {DOGS}?watch=1\naccept: {binary}"), "").await;
    assert_eq!(watch.code, 406);
}

#[tokio::test(start_paused = true)]
async fn wrong_objects_are_refused_in_upstreams_words() {
    let c = start().await;
    for (spec, message) in [
        (json!({"name": "R"}), "spec.name: Invalid value: \"R\": spec.name in body should be at least 2 chars long"),
        (
            json!({}),
            "[spec.name: Required value, <nil>: Invalid value: null: some validation rules were not checked because the \
                     object was invalid; correct the existing errors to complete validation]",
        ),
        (json!({"name": "Rex", "age": 13}), "spec: Invalid value: thirteen is no age"),
        (
            json!({"name": "Rex", "age": 31}),
            "spec.age: Invalid value: 31: spec.age in body should be less than or equal to 30",
        ),
        (json!({"name": "Rex", "tags": ["a", "a"]}), "spec.tags[1]: Duplicate value: \"a\""),
        (json!({"name": "Rex", "toys": [{"id": "1"}, {"id": "1"}]}), "spec.toys[1]: Duplicate value: {\"id\":\"1\"}"),
        (
            json!([]),
            "[spec: Invalid value: \"array\": spec in body must be of type object: \"array\", .spec.replicas: Invalid value: 0: \
             .spec.replicas accessor error: [] is of the type []interface {}, expected map[string]interface{}, <nil>: Invalid \
             value: null: some validation rules were not checked because the object was invalid; correct the existing errors \
             to complete validation]",
        ),
        (json!({"name": "Rex", "replicas": -1}), ".spec.replicas: Invalid value: -1: should be a non-negative integer"),
    ] {
        let refused = c.say(&format!("POST {DOGS}"), dog("rex", spec)).await;
        let wanted = format!("Dog.example.com \"rex\" is invalid: {message}");
        assert_eq!((refused.code, refused.message()), (422, wanted));
    }
    // Warnings are told beside the refusal.
    let refused = c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "R", "wings": 2}))).await;
    assert_eq!(
        (refused.code, refused.headers["warning"].as_bytes()),
        (422, &b"299 - \"unknown field \\\"spec.wings\\\"\""[..])
    );
    c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await;
    let patch = r#"{"spec":{"name":"R","wings":2}}"#;
    let refused = c.say(&format!("PATCH {DOGS}/rex\n{MERGE}"), patch.to_owned()).await;
    assert_eq!(
        (refused.code, refused.headers["warning"].as_bytes()),
        (422, &b"299 - \"unknown field \\\"spec.wings\\\"\""[..])
    );
}

#[tokio::test(start_paused = true)]
async fn objects_are_changed_like_those_of_other_kinds() {
    let c = start().await;
    c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex", "age": 3}))).await;
    let patched = c.say(&format!("PATCH {DOGS}/rex\n{MERGE}"), r#"{"spec":{"age":4,"color":null}}"#).await;
    assert_eq!((patched.code, patched.at("/spec/age"), patched.at("/spec/color")), (200, json!(4), json!("brown")));
    assert_eq!(patched.at("/metadata/generation"), 2);
    let strategic =
        c.say(&format!("PATCH {DOGS}/rex\ncontent-type: application/strategic-merge-patch+json"), "{}").await;
    assert_eq!(strategic.code, 415);
    let status = c
        .say(
            &format!("PATCH {DOGS}/rex/status\n{MERGE}"),
            r#"{"status":{"mood":"good","replicas":2},"spec":{"age":9},"metadata":{"labels":{"a":"b"}}}"#,
        )
        .await;
    assert_eq!((status.at("/status/mood"), status.at("/spec/age")), (json!("good"), json!(4)));
    let owned = status.at("/metadata/managedFields");
    let by_status = owned.as_array().unwrap().iter().find(|entry| entry["subresource"] == "status").unwrap();
    // As upstream: the label does not come to be, and is owned.
    let expected = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:status": {".": {}, "f:mood": {}, "f:replicas": {}}});
    assert_eq!((&by_status["fieldsV1"], status.at("/metadata/labels")), (&expected, json!(null)));
    assert_eq!(status.at("/metadata/generation"), 2);
    let scaled = c.say(&format!("PATCH {DOGS}/rex/scale\n{MERGE}"), r#"{"spec":{"replicas":5}}"#).await;
    assert_eq!((scaled.at("/spec/replicas"), scaled.at("/status/replicas")), (json!(5), json!(2)));
    let read = c.say(&format!("GET {DOGS}/rex"), "").await;
    assert_eq!((read.at("/spec/replicas"), read.at("/metadata/generation")), (json!(5), json!(3)));
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 6}}).to_string();
    let scaling =
        format!("PATCH {DOGS}/rex/scale?fieldManager=scaler&force=true\ncontent-type: application/apply-patch+yaml");
    let scaled = c.say(&scaling, scale).await;
    assert_eq!((scaled.code, scaled.at("/spec/replicas")), (200, json!(6)), "{}", scaled.text);

    let apply =
        |manager: &str| format!("PATCH {DOGS}/rex?fieldManager={manager}\ncontent-type: application/apply-patch+yaml");
    let one = c.say(&apply("one"), dog("rex", json!({"name": "Rex", "toys": [{"id": "1", "price": 1}]}))).await;
    assert_eq!(one.code, 200, "{}", one.text);
    let two = c.say(&apply("two"), dog("rex", json!({"name": "Rex", "toys": [{"id": "2"}]}))).await;
    assert_eq!(two.at("/spec/toys"), json!([{"id": "1", "price": 1}, {"id": "2"}]));
    let conflict = c.say(&apply("two"), dog("rex", json!({"name": "Rex", "toys": [{"id": "1", "price": 2}]}))).await;
    assert_eq!(conflict.code, 409, "{}", conflict.text);
    let misfit = c.say(&apply("two"), dog("rex", json!({"name": "Rex", "age": "old"}))).await;
    let message = misfit.at("/message").as_str().unwrap_or_default().to_owned();
    assert!(message.ends_with("Kind=Dog): .spec.age: expected numeric (int or float), got string"), "{message}");
    assert_eq!(misfit.code, 500);
}

/// As upstream's apiextensions-apiserver answers, which was asked the same.
#[tokio::test(start_paused = true)]
async fn a_body_says_of_which_kind_it_is() {
    let c = start().await;
    let unrecognized = "the object provided is unrecognized (must be of type Dog): ";
    for (body, code, message) in [
        ("null", 400, format!("{unrecognized}Object 'Kind' is missing in 'null' (6e756c6c)")),
        (
            r#"{"apiVersion":"example.com/v1"}"#,
            400,
            format!(
                "{unrecognized}Object 'Kind' is missing in '{{\"apiVersion\":\"example.com/v1\"}}' \
                 ({{\"apiVersion\":\"example.com/v1\" ...)"
            ),
        ),
        (
            r#"{"kind":"Dog"}"#,
            400,
            "the API version in the data () does not match the expected API version (example.com/v1)".to_owned(),
        ),
        (
            r#"{"kind":"Cat","apiVersion":"example.com/v1","metadata":{"name":"q"}}"#,
            422,
            "Cat.example.com \"q\" is invalid: kind: Invalid value: \"Cat\": must be Dog".to_owned(),
        ),
    ] {
        let refused = c.say(&format!("POST {DOGS}"), body.to_owned()).await;
        assert_eq!((refused.code, refused.message()), (code, message), "{body}");
    }
    c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await;
    for (patch, code, message) in [
        (r#"{"kind":"Cat"}"#, 422, "Cat.example.com \"rex\" is invalid: kind: Invalid value: \"Cat\": must be Dog"),
        (
            r#"{"apiVersion":"example.com/v2"}"#,
            422,
            "Dog.example.com \"rex\" is invalid: apiVersion: Invalid value: \"example.com/v2\": must be example.com/v1",
        ),
        (
            r#"{"metadata":null}"#,
            400,
            "the name of the object (rex based on URL) was undeterminable: name must be provided",
        ),
    ] {
        let refused = c.say(&format!("PATCH {DOGS}/rex\n{MERGE}"), patch.to_owned()).await;
        assert_eq!((refused.code, refused.message().as_str()), (code, message), "{patch}");
    }
    let apply = format!("PATCH {DOGS}/max?fieldManager=one\ncontent-type: application/apply-patch+yaml");
    let other = dog("max", json!({"name": "Max"})).replace("\"Dog\"", "\"Cat\"");
    let refused = c.say(&apply, other).await;
    assert_eq!((refused.code, refused.message().as_str()), (400, "invalid object type: example.com/v1, Kind=Cat"));
}

#[tokio::test(start_paused = true)]
async fn any_finalizer_will_do_and_an_odd_one_is_warned_of() {
    let c = start().await;
    let made =
        dog("rex", json!({"name": "Rex"})).replace("\"name\":\"rex\"", "\"name\":\"rex\",\"finalizers\":[\"odd\"]");
    let made = c.say(&format!("POST {DOGS}"), made).await;
    let warning = "299 - \"metadata.finalizers: \\\"odd\\\": prefer a domain-qualified finalizer name to avoid accidental \
                   conflicts with other finalizer writers\"";
    assert_eq!((made.code, made.headers["warning"].to_str().ok()), (201, Some(warning)), "{}", made.text);
    let patch = r#"{"metadata":{"finalizers":["odd","odder"]}}"#;
    assert_eq!(c.say(&format!("PATCH {DOGS}/rex\n{MERGE}"), patch.to_owned()).await.code, 200);
    let wrong =
        dog("max", json!({"name": "Max"})).replace("\"name\":\"max\"", "\"name\":\"max\",\"finalizers\":[\"a b\"]");
    assert_eq!(c.say(&format!("POST {DOGS}"), wrong).await.code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_scale_needs_no_version_and_has_columns_of_its_own() {
    let c = start().await;
    c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await;
    let scale = |replicas: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "rex"}, "spec": {"replicas": replicas}});
    let scaled = c.say(&format!("PUT {DOGS}/rex/scale"), scale(3).to_string()).await;
    assert_eq!((scaled.code, scaled.at("/spec/replicas")), (200, json!(3)), "{}", scaled.text);
    let refused = c.say(&format!("PUT {DOGS}/rex/scale"), scale(-1).to_string()).await;
    let words =
        "Dog.example.com \"rex\" is invalid: .spec.replicas: Invalid value: -1: should be a non-negative integer";
    assert_eq!((refused.code, refused.message().as_str()), (422, words));
    let table = c.say(&format!("GET {DOGS}/rex/scale\naccept: application/json;as=Table;v=v1;g=meta.k8s.io"), "").await;
    assert_eq!((table.at("/rows/0/cells/0"), table.at("/rows/0/cells/1")), (json!("rex"), json!(3)), "{}", table.text);
    assert_eq!(table.at("/columnDefinitions/1/name"), "Desired");
}

#[tokio::test(start_paused = true)]
async fn a_scale_says_how_many_there_are_to_be_and_is_of_this_object() {
    let c = start().await;
    let made = c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await;
    let uid = made.at("/metadata/uid").as_str().expect("a uid").to_owned();
    let (put, patch) = (format!("PUT {DOGS}/rex/scale"), format!("PATCH {DOGS}/rex/scale\n{MERGE}"));
    let apply = format!("PATCH {DOGS}/rex/scale?fieldManager=m\ncontent-type: application/apply-patch+yaml");
    let of = |metadata: Value| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": 3}});
    let empty = "the spec replicas field \".spec.replicas\" cannot be empty";
    let other_uid = format!("Precondition failed: UID in precondition: u, UID in object meta: {uid}");
    let other_name = "the name of the object (max) does not match the name on the URL (rex)";
    let nothing = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "rex"}});
    for (request, body, code, message) in [
        (&patch, json!({"metadata": {"labels": {"a": "b"}}}), 400, empty),
        (&patch, json!({"spec": {}}), 400, empty),
        (&apply, nothing, 400, empty),
        (&put, of(json!({"name": "max"})), 400, other_name),
        (&patch, of(json!({"name": "max"})), 400, other_name),
        (&put, of(json!({"name": "rex", "uid": "u"})), 409, &other_uid),
        (&patch, json!({"kind": "Dog", "spec": {"replicas": 3}}), 422, "no kind \"Dog\" is registered for version"),
    ] {
        let refused = c.say(request, body.to_string()).await;
        assert_eq!(refused.code, code, "{request} {body}: {}", refused.text);
        assert!(refused.message().contains(message), "{request} {body}: {}", refused.message());
    }
    assert_eq!(c.say(&format!("GET {DOGS}/rex"), "").await.at("/spec/replicas"), Value::Null);
    // As upstream: what a patch says of the rest of the metadata comes to nothing, and none at all is zero.
    let scaled = c.say(&patch, of(json!({"uid": "u"})).to_string()).await;
    assert_eq!((scaled.code, scaled.at("/spec/replicas")), (200, json!(3)), "{}", scaled.text);
    let scaled = c.say(&patch, r#"{"spec":{"replicas":null}}"#).await;
    assert_eq!((scaled.code, scaled.at("/spec/replicas")), (200, Value::Null), "{}", scaled.text);
    assert_eq!(c.say(&format!("GET {DOGS}/rex"), "").await.at("/spec/replicas"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_only_tried_answers_like_one() {
    let c = start().await;
    c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await;
    let tried = c.say(&format!("DELETE {DOGS}/rex?dryRun=All"), "").await;
    assert_eq!((tried.code, tried.at("/kind"), tried.at("/status")), (200, json!("Status"), json!("Success")));
    assert_eq!(c.say(&format!("GET {DOGS}/rex"), "").await.code, 200);
}

/// As our own clients do, which read an object, a list or a watch in one way.
#[tokio::test(start_paused = true)]
async fn a_client_may_name_both_forms_of_metadata() {
    let c = start().await;
    c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await;
    let form = |kind: &str| format!("application/json;as={kind};g=meta.k8s.io;v=v1");
    let both = format!("accept: {},{}", form("PartialObjectMetadataList"), form("PartialObjectMetadata"));
    let one = c.say(&format!("GET {DOGS}/rex\n{both}"), "").await;
    let list = c.say(&format!("GET {DOGS}\n{both}"), "").await;
    let watch = c.say(&format!("GET {DOGS}?watch=true&timeoutSeconds=1&resourceVersion=0\n{both}"), "").await;
    let kinds = (one.at("/kind"), list.at("/kind"), watch.at("/object/kind"));
    assert_eq!(
        kinds,
        (json!("PartialObjectMetadata"), json!("PartialObjectMetadataList"), json!("PartialObjectMetadata"))
    );
}

#[tokio::test(start_paused = true)]
async fn discovery_and_documents_follow() {
    let c = start().await;
    let list = c.say("GET /apis/example.com/v1", "").await.json();
    let names: Vec<&str> = list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["dogs", "dogs/status", "dogs/scale"]);
    assert_eq!(list["resources"][0]["shortNames"], json!(["d"]));
    let v3 = c.say("GET /openapi/v3/apis/example.com/v1", "").await;
    assert_eq!(v3.at("/components/schemas/com.example.v1.Dog/properties/spec/properties/age/maximum"), 30);
    // kubectl sends a strategic merge patch wherever a document has it among the patches.
    let dog = "/paths/~1apis~1example.com~1v1~1namespaces~1{namespace}~1dogs~1{name}";
    let types = |place: &str| -> Vec<String> {
        v3.at(place).as_object().unwrap().iter().map(|(name, _)| name.to_string()).collect()
    };
    for place in ["", "~1status", "~1scale"] {
        let patches = types(&format!("{dog}{place}/patch/requestBody/content"));
        let known = ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
        assert_eq!(patches, known, "{place}");
    }
    for place in ["put/requestBody/content", "get/responses/200/content"] {
        assert_eq!(types(&format!("{dog}/{place}")), ["application/json", "application/yaml"], "{place}");
    }
    let v2 = c.say("GET /openapi/v2", "").await;
    assert_eq!(v2.at("/definitions/com.example.v1.Dog/properties/spec/properties/age/type"), "integer");
    let service = c.say("GET /apis/apiregistration.k8s.io/v1/apiservices/v1.example.com", "").await;
    assert_eq!(service.at("/spec/groupPriorityMinimum"), 1000, "{}", service.text);
    let registered = "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com";
    let merge = format!("PATCH {registered}\ncontent-type: application/merge-patch+json");
    let comes_back = async || {
        let mut left = 1000;
        while c.say(&format!("GET {registered}"), "").await.at("/spec/groupPriorityMinimum") != 1000 {
            left -= 1;
            assert!(left > 0, "it does not come back");
            clock::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    assert_eq!(c.say(&format!("DELETE {registered}"), "").await.code, 200);
    comes_back().await;
    assert_eq!(c.say(&merge, r#"{"spec": {"groupPriorityMinimum": 7}}"#).await.code, 200);
    comes_back().await;
    c.say(&format!("DELETE {CRDS}/dogs.example.com"), "").await;
    for path in [
        "/apis/example.com/v1",
        "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com",
        &format!("{CRDS}/dogs.example.com"),
    ] {
        let mut left = 1000;
        while c.say(&format!("GET {path}"), "").await.code != 404 {
            left -= 1;
            assert!(left > 0, "{path} stays");
            clock::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn objects_go_before_their_definition() {
    let c = start().await;
    let held = json!({"apiVersion": "example.com/v1", "kind": "Dog", "metadata": {"name": "held", "finalizers": ["example.com/hold"]},
        "spec": {"name": "Held"}});
    c.say(&format!("POST {DOGS}"), held.to_string()).await;
    c.say(&format!("POST {DOGS}"), dog("free", json!({"name": "Free"}))).await;
    let mut watch = c.watch(&format!("{DOGS}?watch=true&resourceVersion=0")).await;
    assert_eq!([watch.line().await, watch.line().await], ["ADDED held", "ADDED free"]);
    let deleted = c.say(&format!("DELETE {CRDS}/dogs.example.com"), "").await;
    assert_eq!(deleted.at("/metadata/finalizers"), json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let unchanged = [deleted.at("/metadata/generation"), deleted.at("/metadata/deletionGracePeriodSeconds")];
    assert_eq!(unchanged, [json!(1), Value::Null]);
    let told = condition(&c, "dogs.example.com", "Terminating", "True").await;
    assert!(told["metadata"]["deletionTimestamp"].is_string());
    let mut seen = [watch.line().await, watch.line().await];
    seen.sort();
    assert_eq!(seen, ["DELETED free", "MODIFIED held"]);
    let refused = c.say(&format!("POST {DOGS}"), dog("late", json!({"name": "Late"}))).await;
    let words =
        "dogs.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating";
    assert_eq!((refused.code, refused.message().as_str()), (403, words));
    let freed = c.say(&format!("PATCH {DOGS}/held\n{MERGE}"), r#"{"metadata":{"finalizers":null}}"#).await;
    assert_eq!(freed.code, 200, "{}", freed.text);
    let mut left = 1000;
    while c.say(&format!("GET {CRDS}/dogs.example.com"), "").await.code != 404 {
        left -= 1;
        assert!(left > 0, "the definition stays");
        clock::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(c.say(&format!("GET {DOGS}"), "").await.code, 404);
}

/// A watch from a revision still to come has nothing to be ended by while it waits.
#[tokio::test(start_paused = true)]
async fn a_watch_that_begins_behind_the_end_of_its_kind_ends() {
    let c = start().await;
    let list = c.say(&format!("GET {DOGS}"), "").await;
    let now: u64 = list.at("/metadata/resourceVersion").as_str().unwrap().parse().unwrap();
    let mut watch = c.watch(&format!("{DOGS}?watch=true&resourceVersion={}", now + 40)).await;
    let mut line = Box::pin(watch.line());
    assert!((&mut line).now_or_never().is_none(), "it waits");
    c.say(&format!("DELETE {CRDS}/dogs.example.com"), "").await;
    let mut left = 1000;
    while c.say(&format!("GET {DOGS}"), "").await.code != 404 {
        left -= 1;
        assert!(left > 0, "the kind stays");
        clock::sleep(std::time::Duration::from_millis(1)).await;
    }
    for i in 0..40 {
        let map = json!({"metadata": {"name": format!("m{i}")}});
        c.say("POST /api/v1/namespaces/a/configmaps", map.to_string()).await;
    }
    assert_eq!(line.await, "END");
}

/// Upstream makes whatever the body names, for whoever may make one of the name in the path.
#[tokio::test(start_paused = true)]
async fn an_object_is_made_at_its_own_path_too() {
    let c = start().await;
    let rex = dog("rex", json!({"name": "Rex"}));
    let made = c.say(&format!("POST {DOGS}/rex"), &rex).await;
    assert_eq!((made.code, made.at("/metadata/name")), (201, json!("rex")), "{}", made.text);
    let again = c.say(&format!("POST {DOGS}/rex"), &rex).await;
    assert_eq!((again.code, again.message().as_str()), (409, "dogs.example.com \"rex\" already exists"));
    let other = c.say(&format!("POST {DOGS}/max"), &rex).await;
    let words = "the name of the object (rex) does not match the name on the URL (max)";
    assert_eq!((other.code, other.message().as_str()), (400, words));
    let drawn = json!({"apiVersion": "example.com/v1", "kind": "Dog", "metadata": {"generateName": "max"}});
    let drawn = c.say(&format!("POST {DOGS}/max"), drawn.to_string()).await;
    let words = "the name of the object (max based on URL) was undeterminable: name must be provided";
    assert_eq!((drawn.code, drawn.message().as_str()), (400, words));
}

#[tokio::test(start_paused = true)]
async fn versions_show_the_same_objects() {
    let c = start().await;
    c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await;
    let mut crd = c.say(&format!("GET {CRDS}/dogs.example.com"), "").await.json();
    let mut old = crd["spec"]["versions"][0].clone();
    old["storage"] = json!(false);
    old["deprecated"] = json!(true);
    let mut new = crd["spec"]["versions"][0].clone();
    new["name"] = json!("v2");
    new["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["breed"] =
        json!({"type": "string", "default": "mixed"});
    crd["spec"]["versions"] = json!([old, new]);
    let changed = c.say(&format!("PUT {CRDS}/dogs.example.com"), crd.to_string()).await;
    assert_eq!((changed.code, changed.at("/status/storedVersions")), (200, json!(["v1", "v2"])), "{}", changed.text);
    c.server.objects().caught_up().await.unwrap();
    let read = c.say(&format!("GET {}/rex", DOGS.replace("v1", "v2")), "").await;
    // It is stored in the other version, which has no such default.
    assert_eq!(
        (read.at("/apiVersion"), read.at("/spec/breed")),
        (json!("example.com/v2"), Value::Null),
        "{}",
        read.text
    );
    let patch = format!("PATCH {}/rex\n{MERGE}", DOGS.replace("v1", "v2"));
    assert_eq!(c.say(&patch, "{}").await.at("/spec/breed"), json!("mixed"));
    let read = c.say(&format!("GET {DOGS}/rex"), "").await;
    assert_eq!((read.at("/apiVersion"), read.at("/spec/breed")), (json!("example.com/v1"), Value::Null));
    assert_eq!(read.headers["warning"], "299 - \"example.com/v1 Dog is deprecated; use example.com/v2 Dog\"");
    let made = c.say(&format!("POST {DOGS}"), dog("max", json!({"name": "Max"}))).await;
    assert_eq!((made.code, made.at("/apiVersion")), (201, json!("example.com/v1")));
    let groups = c.say("GET /apis/example.com", "").await;
    assert_eq!(groups.at("/preferredVersion/version"), "v2");
}

#[tokio::test(start_paused = true)]
async fn names_that_others_have_are_not_given() {
    let c = start().await;
    let mut second = dogs();
    second["metadata"]["name"] = json!("hounds.example.com");
    second["spec"]["names"] = json!({"plural": "hounds", "kind": "Hound", "shortNames": ["d"]});
    c.say(&format!("POST {CRDS}"), second.to_string()).await;
    let told = condition(&c, "hounds.example.com", "NamesAccepted", "False").await;
    assert_eq!(told["status"]["conditions"][0]["message"], "\"d\" is already in use");
    assert_eq!(c.say("GET /apis/example.com/v1/hounds", "").await.code, 404);
    c.say(&format!("DELETE {CRDS}/dogs.example.com"), "").await;
    condition(&c, "hounds.example.com", "Established", "True").await;
    assert_eq!(c.say("GET /apis/example.com/v1/hounds", "").await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_is_made_of_is_not_given_away() {
    let c = Conversation::start().await;
    let mut crd = dogs();
    crd["metadata"] = json!({"name": "apiservices.apiregistration.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved"}});
    crd["spec"]["group"] = json!("apiregistration.k8s.io");
    crd["spec"]["names"] = json!({"plural": "apiservices", "kind": "Dog"});
    c.say(&format!("POST {CRDS}"), crd.to_string()).await;
    condition(&c, "apiservices.apiregistration.k8s.io", "Established", "True").await;
    let list = c.say("GET /apis/apiregistration.k8s.io/v1/apiservices", "").await;
    assert_eq!(list.at("/kind"), "APIServiceList");
    // Nothing joins the kinds of a version that the server has, as in upstream's TestCRDShadowGroup; another version is its own.
    crd["metadata"]["name"] = json!("foos.networking.k8s.io");
    crd["spec"]["group"] = json!("networking.k8s.io");
    crd["spec"]["names"] = json!({"plural": "foos", "kind": "Foo"});
    let mut other = crd["spec"]["versions"][0].clone();
    (other["name"], other["storage"]) = (json!("v9"), json!(false));
    crd["spec"]["versions"] = json!([crd["spec"]["versions"][0].clone(), other]);
    assert_eq!(c.say(&format!("POST {CRDS}"), crd.to_string()).await.code, 201);
    condition(&c, "foos.networking.k8s.io", "Established", "True").await;
    let there = async |path: &str| c.say(&format!("GET /apis/networking.k8s.io/{path}"), "").await;
    assert_eq!(there("v9/namespaces/a/foos").await.code, 200);
    let missing = there("v1/namespaces/a/foos").await;
    assert_eq!((missing.code, missing.message().as_str()), (404, "the server could not find the requested resource"));
    assert!(!there("v1").await.text.contains("foos") && there("v9").await.text.contains("foos"));
    assert_eq!(there("v1/namespaces/a/networkpolicies").await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn verbs_that_a_kind_does_not_take_are_refused_by_its_name() {
    let c = start().await;
    let unsupported = |verb: &str| (405, format!("{verb} is not supported on resources of kind \"dogs.example.com\""));
    let unnamed = || (400, "name must be provided".to_owned());
    let nothing = || (404, "404 page not found\n".to_owned());
    for (head, expected) in [
        (format!("OPTIONS {DOGS}/rex"), unsupported("")),
        (format!("DELETE {DOGS}/rex/status"), unsupported("delete")),
        (format!("POST {DOGS}/rex/scale"), unsupported("create")),
        (format!("PUT {DOGS}"), unnamed()),
        (format!("PATCH {DOGS}\n{MERGE}"), unnamed()),
        (format!("GET {DOGS}/rex/toys"), (404, "dogs.example.com \"rex\" not found".to_owned())),
        ("POST /apis/example.com/v1/dogs".to_owned(), nothing()),
        ("DELETE /apis/example.com/v1/dogs".to_owned(), nothing()),
        ("GET /apis/example.com/v1/dogs/rex".to_owned(), nothing()),
        ("GET /apis/example.com/v1/cats".to_owned(), nothing()),
    ] {
        let refused = c.say(&head, "{}").await;
        let message = if refused.text.starts_with('{') { refused.message() } else { refused.text.clone() };
        assert_eq!((refused.code, message), expected, "{head}");
        if refused.code == 405 {
            assert_eq!(refused.at("/details"), json!({"group": "example.com", "kind": "dogs"}));
        }
    }
}

/// They state that a field has no value, which is for validation to judge; elsewhere they stand for nothing.
#[tokio::test(start_paused = true)]
async fn nulls_of_an_applied_configuration_stay() {
    let c = start().await;
    let apply = format!("PATCH {DOGS}/rex?fieldManager=one&force=true\ncontent-type: application/apply-patch+yaml");
    let null = "spec.age: Invalid value: \"null\": spec.age in body must be of type integer: \"null\"";
    let unchecked = "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
                     correct the existing errors to complete validation";
    let refusal = format!("Dog.example.com \"rex\" is invalid: [{null}, {unchecked}]");
    let without = json!({"name": "Rex", "age": null, "color": null});
    let refused = c.say(&apply, dog("rex", without.clone())).await;
    assert_eq!((refused.code, refused.message()), (422, refusal.clone()));
    let made = c.say(&format!("POST {DOGS}"), dog("rex", without.clone())).await;
    assert_eq!((made.code, made.at("/spec")), (201, json!({"name": "Rex", "color": "brown"})));
    let mut object = made.json();
    object["spec"]["age"] = Value::Null;
    let put = c.say(&format!("PUT {DOGS}/rex"), object.to_string()).await;
    assert_eq!((put.code, put.at("/spec")), (200, made.at("/spec")));
    let set = r#"[{"op":"add","path":"/spec/age","value":null}]"#;
    let patched = c.say(&format!("PATCH {DOGS}/rex\ncontent-type: application/json-patch+json"), set).await;
    assert_eq!((patched.code, patched.at("/spec")), (200, json!({"name": "Rex", "color": "brown"})));
    let refused = c.say(&apply, dog("rex", without)).await;
    assert_eq!((refused.code, refused.message()), (422, refusal));
    // One that has a default is the default; a port is anything until it is validated.
    let applied = c.say(&apply, dog("rex", json!({"name": "Rex", "color": null}))).await;
    assert_eq!((applied.code, applied.at("/spec/color")), (200, json!("brown")), "{}", applied.text);
    let port = c.say(&apply, dog("rex", json!({"name": "Rex", "port": {"a": 1}}))).await;
    let words = "spec.port: Invalid value: \"object\": spec.port in body must be of type integer,string: \"object\"";
    assert_eq!(
        (port.code, port.message()),
        (422, format!("Dog.example.com \"rex\" is invalid: [{words}, {unchecked}]"))
    );
}

/// An object that is not there is missed before the patch is looked at, but an apply would make it.
#[tokio::test(start_paused = true)]
async fn a_broken_patch_of_nothing_finds_nothing() {
    let c = start().await;
    let missing = "dogs.example.com \"rex\" not found";
    let json = "content-type: application/json-patch+json";
    for (head, body) in [(MERGE, "{"), (MERGE, "[]"), (json, "{"), (json, r#"[{"op":"no"}]"#)] {
        for place in ["rex", "rex/status", "rex/scale"] {
            let answer = c.say(&format!("PATCH {DOGS}/{place}\n{head}"), body).await;
            assert_eq!((answer.code, answer.message().as_str()), (404, missing), "{place} {body}");
        }
    }
    let apply = format!("PATCH {DOGS}/rex?fieldManager=one\ncontent-type: application/apply-patch+yaml");
    assert_eq!(c.say(&apply, "a: b: c").await.code, 400);
    let wrong = c.say(&format!("PATCH {DOGS}/rex?fieldValidation=x\n{MERGE}"), "{").await;
    assert_eq!(wrong.code, 422, "the options come first: {}", wrong.text);
    assert_eq!(c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await.code, 201);
    assert_eq!(c.say(&format!("PATCH {DOGS}/rex\n{MERGE}"), "{").await.code, 400);
}

/// Upstream checks the metadata of a changed object by the rules of all kinds, and again by those of the kind.
#[tokio::test(start_paused = true)]
async fn wrong_metadata_of_a_change_are_told_by_each_rule() {
    let c = start().await;
    assert_eq!(c.say(&format!("POST {DOGS}"), dog("rex", json!({"name": "Rex"}))).await.code, 201);
    let wrong = r#"{"metadata":{"annotations":{"a b":"c"}}}"#;
    let refused = c.say(&format!("PATCH {DOGS}/rex\n{MERGE}"), wrong).await;
    assert_eq!(refused.code, 422);
    let start = "Dog.example.com \"rex\" is invalid: metadata.annotations: Invalid value: \"a b\": name part";
    assert!(refused.message().starts_with(start) && refused.message().matches("a b").count() == 1, "{}", refused.text);
    let causes = refused.at("/details/causes");
    let fields: Vec<&str> = causes.as_array().into_iter().flatten().filter_map(|c| c["field"].as_str()).collect();
    assert_eq!(fields, ["metadata.annotations"; 3]);
}

#[tokio::test(start_paused = true)]
async fn the_server_owns_what_it_says_of_a_definition() {
    let c = Conversation::start().await;
    let made = c.say(&format!("POST {CRDS}"), dogs().to_string()).await;
    let none = r#""status":{"conditions":null,"acceptedNames":{"plural":"","kind":""},"storedVersions":["v1"]}"#;
    assert!(made.text.contains(none), "{}", made.text);
    let read = condition(&c, "dogs.example.com", "Established", "True").await;
    let managers = read["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let own = managers.iter().find(|entry| entry["manager"] == "kube-apiserver").expect("an entry of the server's");
    assert_eq!((&own["subresource"], &own["operation"]), (&json!("status"), &json!("Update")));
    let fields = &own["fieldsV1"]["f:status"];
    assert!(fields["f:acceptedNames"]["f:plural"].is_object(), "{own}");
    assert!(fields["f:conditions"]["k:{\"type\":\"Established\"}"]["f:reason"].is_object(), "{own}");
}
