//! CBOR both ways: the same documents as in JSON where the gate is on, and nobody's business where it is off.

use api::{codec::cbor, schema::Type};
use http::header;
use json::{Value, json};

use crate::tests::conversation::Conversation;

const MAPS: &str = "/api/v1/namespaces/a/configmaps";
const SECRETS: &str = "/api/v1/namespaces/a/secrets";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOXES: &str = "/apis/example.com/v1/namespaces/a/boxes";
const ACCEPT: &str = "accept: application/cbor";
const SENDS: &str = "content-type: application/cbor";
const META: &str = "g=meta.k8s.io;v=v1";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"l": "1"}}, "data": {"k": "v"}})
}

async fn ask(c: &Conversation, head: &str, body: impl AsRef<[u8]>) -> (u16, String, Value) {
    let (parts, answer) = c.send(head, body).await.into_parts();
    let media_type = parts.headers[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    let bytes = answer.collect(1 << 30).await.unwrap();
    assert!(bytes.starts_with(&[0xd9, 0xd9, 0xf7]), "{head}: {}", String::from_utf8_lossy(&bytes));
    (parts.status.as_u16(), media_type, cbor::read(&bytes).unwrap())
}

/// As a client writes it that knows no schema: text is text.
fn document(value: &Value) -> Vec<u8> {
    cbor::document(&Type::Any, value)
}

#[tokio::test(start_paused = true)]
async fn every_document_can_be_had_in_cbor() {
    let c = Conversation::with_cbor().await;
    for name in ["a", "b", "c"] {
        c.say(&format!("POST {MAPS}"), map(name).to_string()).await;
    }
    for path in [
        format!("GET {MAPS}/a"),
        format!("GET {MAPS}"),
        format!("GET {MAPS}?limit=2"),
        format!("GET {MAPS}?limit=0&labelSelector=none=1"),
        format!("PUT {MAPS}/a?dryRun=All"),
        format!("GET {MAPS}/nobody"),
        format!("GET {MAPS}?watch=1&resourceVersion=x"),
        format!("PATCH {MAPS}/a"),
        "GET /api".to_owned(),
        "GET /apis".to_owned(),
        "GET /apis/apps".to_owned(),
        "GET /api/v1".to_owned(),
        "GET /api/v1/nothing".to_owned(),
        format!("DELETE {MAPS}/nobody"),
    ] {
        let body = if path.starts_with("PUT") { map("a").to_string() } else { String::new() };
        let json = c.say(&path, &body).await;
        let (code, media_type, value) = ask(&c, &format!("{path}\n{ACCEPT}"), &body).await;
        assert_eq!((code, media_type.as_str()), (json.code, "application/cbor"), "{path}");
        assert_eq!(value, json.json(), "{path}");
    }
    for (form, paths) in [
        ("Table", &[&*format!("{MAPS}/a"), MAPS][..]),
        ("PartialObjectMetadata", &[&format!("{MAPS}/a")]),
        ("PartialObjectMetadataList", &[MAPS]),
    ] {
        for path in paths {
            let with = |encoding: &str| format!("GET {path}\naccept: application/{encoding};as={form};{META}");
            let json = c.say(&with("json"), "").await.json();
            assert_eq!(ask(&c, &with("cbor"), "").await.2, json, "{form} {path}");
        }
    }
    let discovery = format!("GET /apis\n{ACCEPT};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json");
    let (_, media_type, discovery) = ask(&c, &discovery, "").await;
    assert_eq!(media_type, "application/cbor;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    assert_eq!(discovery["items"][0]["metadata"]["name"], "apiregistration.k8s.io");
}

#[tokio::test(start_paused = true)]
async fn objects_are_created_changed_and_deleted_in_cbor() {
    let c = Conversation::with_cbor().await;
    // Bytes as bytes, with the tag that says that they become base64; and as the base64 text that JSON has.
    let as_text = &document(&json!("AQI="))[3..];
    for (name, bytes) in [("tagged", &[0xd6, 0x42, 1, 2][..]), ("plain", as_text)] {
        let mut body = cbor::map_head(3);
        for (key, value) in [("apiVersion", json!("v1")), ("metadata", json!({"name": name}))] {
            cbor::text(&mut body, key);
            cbor::append(&mut body, &Type::Any, &value);
        }
        cbor::text(&mut body, "data");
        body.extend([0xa1, 0x41, b'k']);
        body.extend(bytes);
        let (code, _, made) = ask(&c, &format!("POST {SECRETS}\n{SENDS}\n{ACCEPT}"), body).await;
        assert_eq!((code, &made["data"]["k"]), (201, &json!("AQI=")), "{name}: {made}");
    }
    let apply = format!("PATCH {MAPS}/x?fieldManager=me\ncontent-type: application/apply-patch+cbor\n{ACCEPT}");
    let (code, _, made) = ask(&c, &apply, document(&map("x"))).await;
    assert_eq!((code, &made["metadata"]["managedFields"][0]["operation"]), (201, &json!("Apply")), "{made}");
    let mut changed = made;
    changed["data"]["k"] = json!("w");
    let (code, _, mut changed) = ask(&c, &format!("PUT {MAPS}/x\n{SENDS}\n{ACCEPT}"), document(&changed)).await;
    assert_eq!((code, &changed["data"]), (200, &json!({"k": "w"})));
    let strict = format!("PUT {MAPS}/x?fieldValidation=Strict\n{SENDS}\n{ACCEPT}");
    changed["spec"] = json!(1);
    let (code, _, refused) = ask(&c, &strict, document(&changed)).await;
    assert_eq!(code, 400);
    // Behind data and kind, by the length of their names.
    let unknown = "cbor: found unknown field at map element index 2";
    let refusal = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: ";
    assert_eq!(refused["message"], format!("{refusal}{unknown}"));
    let warned = c.send(&format!("PUT {MAPS}/x\n{SENDS}\n{ACCEPT}"), document(&changed)).await;
    assert_eq!(warned.headers()[header::WARNING], format!("299 - \"{unknown}\""));
    assert_eq!(warned.status(), 200);
    let ignored = c.send(&format!("PUT {MAPS}/x?fieldValidation=Ignore\n{SENDS}"), document(&map("x"))).await;
    assert_eq!((ignored.status().as_u16(), ignored.headers().get(header::WARNING)), (200, None));
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}});
    let delete = format!("DELETE {MAPS}/x\n{SENDS}\n{ACCEPT}");
    assert_eq!(ask(&c, &delete, document(&options)).await.0, 409);
    assert_eq!(ask(&c, &delete, "").await.0, 200);
    let (code, _, broken) = ask(&c, &format!("POST {MAPS}\n{SENDS}\n{ACCEPT}"), [0xa1, 0x01]).await;
    assert_eq!(code, 400);
    assert_eq!(
        broken["message"],
        "the object provided is unrecognized (must be of type ConfigMap): unable to determine group/version/kind: cbor: \
         cannot unmarshal map key into Go value of type string (a101)"
    );
}

#[tokio::test(start_paused = true)]
async fn custom_objects_and_events_are_cbor_too() {
    let c = Conversation::with_cbor().await;
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "boxes.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "boxes", "kind": "Box"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": any}}]}});
    assert_eq!(ask(&c, &format!("POST {CRDS}\n{SENDS}\n{ACCEPT}"), document(&definition)).await.0, 201);
    let of = json!({"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": "a"}, "spec": {"size": 1.5, "n": 7}});
    while c.say(&format!("GET {BOXES}"), "").await.code != 200 {
        clock::sleep(std::time::Duration::from_millis(10)).await;
    }
    let (code, _, made) = ask(&c, &format!("POST {BOXES}\n{SENDS}\n{ACCEPT}"), document(&of)).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["spec"], json!({"size": 1.5, "n": 7}));
    let list = c.say(&format!("GET {BOXES}"), "").await.json();
    assert_eq!(ask(&c, &format!("GET {BOXES}\n{ACCEPT}"), "").await.2, list);

    let watch = format!("GET {BOXES}?watch=1&resourceVersion=0&timeoutSeconds=1\n{ACCEPT}");
    let (parts, body) = c.send(&watch, "").await.into_parts();
    assert_eq!(parts.headers[header::CONTENT_TYPE], "application/cbor-seq");
    let bytes = body.collect(1 << 20).await.unwrap();
    assert_eq!(cbor::read(&bytes), Ok(json!({"type": "ADDED", "object": made})), "one event, one item");
    let refused = c.say(&format!("GET {BOXES}?watch=1\naccept: application/yaml"), "").await;
    let known = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch, application/cbor-seq";
    // The message is folded.
    let told = refused.text.replace("\n  ", " ");
    assert!(refused.code == 406 && told.contains(known), "{told}");
}

#[tokio::test(start_paused = true)]
async fn refusals_name_it_where_it_is_on() {
    let (on, off) = (Conversation::with_cbor().await, Conversation::start().await);
    let known = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let body = "the body of the request was in an unknown format - accepted media types include: ";
    let patches = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
                   application/apply-patch+yaml";
    let accepted = "only the following media types are accepted: ";
    for (c, more, more_patches) in [(&on, ", application/cbor", ", application/apply-patch+cbor"), (&off, "", "")] {
        for (head, code, message) in [
            (format!("POST {MAPS}\ncontent-type: text/plain"), 415, format!("{body}{known}{more}")),
            (format!("PATCH {MAPS}/a\n{SENDS}"), 415, format!("{body}{patches}{more_patches}")),
            (format!("GET {MAPS}\naccept: text/plain"), 406, format!("{accepted}{known}{more}")),
        ] {
            let answer = c.say(&head, "").await;
            assert_eq!((answer.code, answer.message()), (code, message), "{head}");
        }
    }
    assert_eq!(off.say(&format!("POST {MAPS}\n{SENDS}"), document(&map("a"))).await.code, 415);
    assert_eq!(off.say(&format!("GET {MAPS}\n{ACCEPT}"), "").await.code, 406);
    let apply = format!("PATCH {MAPS}/x?fieldManager=me\ncontent-type: application/apply-patch+cbor");
    assert_eq!(off.say(&apply, document(&map("x"))).await.code, 415);
}
