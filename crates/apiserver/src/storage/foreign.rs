//! Values in the forms in which upstream's API servers write them: objects of built-in kinds in protobuf, definitions of custom kinds
//! in an older version and, where `CBORServingAndStorage` is on, objects of custom kinds in CBOR. They are read as this server
//! would have stored them. A write replaces them by text, which upstream's servers read too, or by CBOR where that gate is on here.

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

/// The value as text in the version that is stored here, if it is an object in protobuf of a kind that is known, one in CBOR, or a
/// definition. The other values that upstream keeps in its store (its servers' leases, allocations) pass as they are: nobody here
/// reads them.
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
    let Some(named) = protobuf::named(value) else { return Ok(value.clone()) };
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
}
