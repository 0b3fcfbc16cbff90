//! Values in the forms in which upstream's API servers write them: objects of built-in kinds in protobuf, definitions of custom kinds
//! in an older version and, where `CBORServingAndStorage` is on, objects of custom kinds in CBOR. They are read as this server
//! would have stored them. A write replaces them by text, which upstream's servers read too, or by CBOR where that gate is on here.
//!
//! In etcd anybody may write anything. A value that is no object there is an error to those who read it, as upstream.

use api::{
    Value,
    codec::{
        cbor,
        decode::{Gvk, Validation, decode},
        protobuf,
    },
    kinds::custom_resource_definition::beta,
    schema::{Type, of_kind},
};
use bytes::Bytes;

use super::object;

/// The beginning of a definition of a custom kind as upstream's servers write all of them.
const BETA_DEFINITION: &[u8] = br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","#;

/// Stands before a value that begins as an object and is none.
const BROKEN: u8 = 0;

/// A value as it comes from a place where anybody writes: text that is no whole object is marked, once, so that [`as_text`] has to
/// look at no more than its beginning each time it is read.
pub fn arriving(value: Bytes) -> Bytes {
    let text = value.trim_ascii();
    if !text.starts_with(b"{") {
        return value;
    }
    let length = std::str::from_utf8(text).ok().and_then(json::length_of_value);
    if length == Some(text.len()) { value.slice_ref(text) } else { [&[BROKEN], &*value].concat().into() }
}

/// The error that a value is to those who read it.
fn broken(value: &[u8]) -> String {
    let value = value.strip_prefix(&[BROKEN]).unwrap_or(value);
    let why = match std::str::from_utf8(value) {
        Ok(text) => json::parse(text).err().map(|malformed| malformed.to_string()),
        Err(malformed) => Some(malformed.to_string()),
    };
    format!("couldn't get version/kind: {}", why.as_deref().unwrap_or("the value is no object"))
}

/// The value as text in the version that is stored here, if it is an object in protobuf of a kind that is known, one in CBOR, or a
/// definition. The other values that upstream keeps in its store (its servers' leases, allocations) pass as they are: nobody here
/// reads them. A value in no form that objects have is an error.
pub fn as_text(value: &Bytes) -> Result<Bytes, String> {
    if value.starts_with(cbor::SELF_DESCRIBED) {
        let object = cbor::read(value).map_err(|malformed| malformed.to_string())?;
        let (group, version, kind) = names(&object).ok_or("an object in CBOR does not say what it is")?;
        if ![group, version, kind].into_iter().all(is_name) {
            return Err("an object in CBOR says that it is of a kind without a name".to_owned());
        }
        return Ok(object::encode_as(kind, group, version, &object).into_boxed_slice().into());
    }
    if value.starts_with(BETA_DEFINITION) {
        let text = std::str::from_utf8(value).map_err(|malformed| malformed.to_string())?;
        let mut object = json::parse(text).map_err(|malformed| malformed.to_string())?;
        beta::into_v1(&mut object);
        let text = object::encode_as("CustomResourceDefinition", "apiextensions.k8s.io", "v1", &object);
        return Ok(text.into_boxed_slice().into());
    }
    let Some(named) = protobuf::named(value) else {
        return if value.starts_with(b"{") { Ok(value.clone()) } else { Err(broken(value)) };
    };
    let (api_version, kind) = named.map_err(|malformed| malformed.to_string())?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let ty = of_kind(group, version, kind);
    if matches!(ty, Type::Any) || ![group, version, kind].into_iter().all(is_name) {
        return Ok(value.clone());
    }
    let gvk = Gvk { group, version, kind };
    let decoded =
        decode(&ty, gvk, value, protobuf::MEDIA_TYPE, Validation::Ignore).map_err(|error| error.to_string())?;
    Ok(object::encode_as(kind, group, version, &decoded.value).into_boxed_slice().into())
}

/// Whether it can stand in the text as it is.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

/// Group, version and kind of an object.
fn names(object: &Value) -> Option<(&str, &str, &str)> {
    let (api_version, kind) = (object.get("apiVersion")?.as_str()?, object.get("kind")?.as_str()?);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    object.get("metadata")?.as_object().map(|_| (group, version, kind))
}

/// The value in CBOR, if it is the text of an object of a custom kind.
pub fn as_cbor(value: &Bytes) -> Bytes {
    let object = object::stored(value);
    let custom = |(group, version, kind): (&str, &str, &str)| matches!(of_kind(group, version, kind), Type::Any);
    match names(&object) {
        Some(names) if custom(names) => cbor::document(&Type::Any, &object).into(),
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use encryption::{Current, Encrypted, Table};
    use json::json;
    use store::{Change, Commit, Expect, Store, embedded::Embedded};

    use super::*;
    use crate::{special::table::Specials, tests::conversation::Conversation};

    const PATH: &str = "/apis/apps/v1/namespaces/a/deployments";
    const KEY: &str = "/registry/deployments/a/web";

    fn deployment(image: &str) -> Bytes {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "a", "uid": "u", "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": image}]}}}});
        protobuf::encode("io.k8s.api.apps.v1.Deployment", &object).unwrap().into()
    }

    async fn put(below: &dyn Store, key: &str, value: Bytes) {
        let change = Change::Put { value, ttl_seconds: None };
        below.commit(Commit { key: key.into(), expect: Expect::Any, change }).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_upstream_stored_in_protobuf_is_served_and_goes_on_as_text() {
        let below = Arc::new(Embedded::memory());
        put(&*below, KEY, deployment("one")).await;
        // Of no kind that is known here, and beside the objects.
        let unknown = Bytes::from_static(b"k8s\0\x0a\x0a\x0a\x02v1\x12\x04Odds");
        put(&*below, "/registry/masterleases/192.0.2.1", unknown.clone()).await;
        let above = Encrypted::new(below.clone(), Current::new(Table::default())).reading(as_text);
        let c = Conversation::over(Arc::new(above), Specials::default()).await;
        let read = c.say(&format!("GET {PATH}/web"), "").await;
        let image = "/spec/template/spec/containers/0/image";
        assert_eq!(
            (read.code, read.at(image), read.at("/metadata/uid")),
            (200, json!("one"), json!("u")),
            "{}",
            read.text
        );
        let listed = c.say(&format!("GET {PATH}"), "").await;
        assert_eq!(listed.at(&format!("/items/0{image}")), json!("one"));
        // Another server goes on writing its way.
        put(&*below, KEY, deployment("two")).await;
        let changes = c.say(&format!("GET {PATH}?watch=1&resourceVersion=0&timeoutSeconds=1"), "").await;
        assert!(changes.text.contains("\"image\":\"two\""), "{}", changes.text);
        let patched = c
            .say(&format!("PATCH {PATH}/web\ncontent-type: application/merge-patch+json"), r#"{"spec":{"replicas":3}}"#)
            .await;
        assert_eq!((patched.code, patched.at("/spec/replicas"), patched.at(image)), (200, json!(3), json!("two")));
        let stored = below.get(KEY).await.unwrap().0.unwrap().value;
        assert!(stored.starts_with(b"{\"kind\":\"Deployment\""), "{}", String::from_utf8_lossy(&stored));
        let left = below.get("/registry/masterleases/192.0.2.1").await.unwrap().0.unwrap().value;
        assert_eq!(left, unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn definitions_that_upstream_stored_are_served_and_go_on_in_v1() {
        let below = Arc::new(Embedded::memory());
        let key = "/registry/apiextensions.k8s.io/customresourcedefinitions/boxes.a.io";
        let stored = br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"boxes.a.io","uid":"u","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"group":"a.io","version":"v1","names":{"plural":"boxes","singular":"box","kind":"Box","listKind":"BoxList"},"scope":"Namespaced","validation":{"openAPIV3Schema":{"type":"object","properties":{"n":{"type":"integer"}}}},"versions":[{"name":"v1","served":true,"storage":true}],"conversion":{"strategy":"None"},"preserveUnknownFields":false},"status":{"conditions":[],"acceptedNames":{"plural":"boxes","singular":"box","kind":"Box","listKind":"BoxList"},"storedVersions":["v1"]}}"#;
        put(&*below, key, Bytes::from_static(stored)).await;
        let above = Encrypted::new(below.clone(), Current::new(Table::default())).reading(as_text);
        let c = Conversation::over(Arc::new(above), Specials::default()).await;
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/boxes.a.io";
        let read = c.say(&format!("GET {path}"), "").await;
        let n = "/spec/versions/0/schema/openAPIV3Schema/properties/n/type";
        assert_eq!(
            (read.code, read.at(n), read.at("/metadata/uid")),
            (200, json!("integer"), json!("u")),
            "{}",
            read.text
        );
        assert_eq!((read.at("/apiVersion"), read.at("/spec/version")), (json!("apiextensions.k8s.io/v1"), Value::Null));
        let patch = format!("PATCH {path}\ncontent-type: application/merge-patch+json");
        let patched = c.say(&patch, r#"{"metadata":{"labels":{"l":"x"}}}"#).await;
        assert_eq!((patched.code, patched.at(n)), (200, json!("integer")), "{}", patched.text);
        let now = below.get(key).await.unwrap().0.unwrap().value;
        let head = br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","#;
        assert!(now.starts_with(head), "{}", String::from_utf8_lossy(&now));
    }

    #[test]
    fn custom_objects_are_the_same_behind_cbor() {
        let object = json!({"apiVersion": "a.io/v1", "kind": "Box", "metadata": {"name": "a", "uid": "u", "labels": {"l": "<"}},
            "data": [1, 1.5, {"k": null}], "zone": "é"});
        let text: Bytes = object::encode_as("Box", "a.io", "v1", &object).into();
        let stored = as_cbor(&text);
        assert_eq!(cbor::read(&stored), Ok(object));
        assert_eq!(as_text(&stored).unwrap(), text);
        for other in [
            Bytes::from_static(b"{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"}}"),
            Bytes::from_static(b"{\"ports\":[1]}"),
            Bytes::from_static(b"k8s\0"),
        ] {
            assert_eq!(as_cbor(&other), other);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn custom_objects_are_stored_in_cbor_where_that_is_asked_for() {
        let below = Arc::new(Embedded::memory());
        let above =
            Encrypted::new(below.clone(), Current::new(Table::default())).reading(as_text).writing(Some(as_cbor));
        let text =
            object::encode_as("Box", "a.io", "v1", &json!({"metadata": {"name": "a", "uid": "u"}, "spec": {"n": 1}}));
        let text = Bytes::from(text);
        put(&above, "/registry/a.io/boxes/n/a", text.clone()).await;
        put(&above, "/registry/configmaps/n/a", Bytes::from_static(b"{\"kind\":\"ConfigMap\"}")).await;
        let stored = async |key: &str| below.get(key).await.unwrap().0.unwrap().value;
        assert!(stored("/registry/a.io/boxes/n/a").await.starts_with(cbor::SELF_DESCRIBED));
        assert!(stored("/registry/configmaps/n/a").await.starts_with(b"{"));
        assert_eq!(above.get("/registry/a.io/boxes/n/a").await.unwrap().0.unwrap().value, text);
    }

    #[test]
    fn what_is_broken_is_said_and_text_stays() {
        assert!(as_text(&Bytes::from_static(b"\xd9\xd9\xf7\xa0")).is_err());
        assert!(as_text(&Bytes::from_static(b"\xd9\xd9\xf7\x5f")).is_err());
        let text = Bytes::from_static(b"{\"kind\":\"Pod\"}");
        assert_eq!(as_text(&text).unwrap(), text);
        let whole = deployment("one");
        assert!(as_text(&whole.slice(..whole.len() - 3)).is_err());
        assert!(as_text(&Bytes::from_static(b"k8s\0\xff")).is_err());
        assert!(as_text(&BETA_DEFINITION.into()).is_err());
    }

    #[test]
    fn what_arrives_is_whole_or_marked() {
        let pass = |value: &'static [u8]| arriving(Bytes::from_static(value));
        for whole in [
            &b"{}"[..],
            br#"{"kind":"Pod","spec":{"a":["}"]}}"#,
            b"k8s\0\x0a",
            b"k8s:enc:aesgcm:v1:a:{",
            b"\xd9\xd9\xf7\xa0",
        ] {
            assert_eq!(pass(whole), whole);
        }
        assert_eq!(pass(b" {\"kind\":\"Pod\"}\n"), &b"{\"kind\":\"Pod\"}"[..]);
        for (value, why) in [
            (&b""[..], "EOF while parsing a value at line 1 column 0"),
            (b"null", "the value is no object"),
            (b"garbage", "expected value at line 1 column 0"),
            (br#"{"kind":"Pod","metadata":{"#, "EOF while parsing a list or an object at line 1 column 26"),
            (br#"{"kind":"Pod"}}"#, "trailing characters at line 1 column 14"),
            (b"{\"kind\":\"\xff\"}", "invalid utf-8 sequence of 1 bytes from index 9"),
        ] {
            assert_eq!(as_text(&pass(value)), Err(format!("couldn't get version/kind: {why}")), "{value:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn garbage_is_an_error_to_those_who_read_it() {
        let below = Arc::new(Embedded::memory());
        let above = Encrypted::new(below.clone(), Current::new(Table::default())).reading(as_text);
        let c = Conversation::over(Arc::new(above), Specials::default()).await;
        let good = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "good"}});
        for namespace in ["a", "b"] {
            let made = c.say(&format!("POST /api/v1/namespaces/{namespace}/configmaps"), good.to_string()).await;
            assert_eq!(made.code, 201, "{}", made.text);
        }
        for (name, value) in
            [("half", &br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"half"#[..]), ("odd", b"null")]
        {
            let key = format!("/registry/configmaps/a/{name}");
            put(&*below, &key, arriving(Bytes::from_static(value))).await;
            let one = format!("/api/v1/namespaces/a/configmaps/{name}");
            for request in [
                format!("GET {one}"),
                format!("DELETE {one}"),
                format!("PATCH {one}\ncontent-type: application/merge-patch+json"),
                "GET /api/v1/namespaces/a/configmaps".to_owned(),
                "GET /api/v1/configmaps".to_owned(),
                "DELETE /api/v1/namespaces/a/configmaps".to_owned(),
            ] {
                let refused = c.say(&request, "{}").await;
                assert_eq!(refused.code, 500, "{request}: {}", refused.text);
                assert!(refused.message().contains("couldn't get version/kind: "), "{request}: {}", refused.text);
            }
            assert!(below.get(&key).await.unwrap().0.is_some());
        }
        for request in ["GET /api/v1/namespaces/a/configmaps/good", "GET /api/v1/namespaces/b/configmaps"] {
            assert_eq!(c.say(request, "").await.code, 200, "{request}");
        }
    }
}
