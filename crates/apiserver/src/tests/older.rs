//! Older versions of kinds: the same objects in another shape, with a warning.

use json::json;

use crate::tests::conversation::Conversation;

const ALL: &str = "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true,networking.k8s.io/v1beta1=true,storage.k8s.io/v1beta1=true";

fn claims(version: &str) -> String {
    format!("/apis/resource.k8s.io/{version}/namespaces/a/resourceclaims")
}

fn slices(version: &str) -> String {
    format!("/apis/resource.k8s.io/{version}/resourceslices")
}

#[tokio::test(start_paused = true)]
async fn claims_are_the_same_in_every_version() {
    let c = Conversation::serving(ALL).await;
    let flat = json!([{"name": "r", "deviceClassName": "gpu"}]);
    let claim = json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "c"},
        "spec": {"devices": {"requests": flat}}});
    let made = c.say(&format!("POST {}", claims("v1beta1")), claim.to_string()).await;
    assert_eq!(made.code, 201, "{}", made.text);
    let request = json!({"name": "r", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    assert_eq!(made.at("/spec/devices/requests/0"), request);
    assert_eq!(
        made.headers["warning"],
        "299 - \"resource.k8s.io/v1beta1 ResourceClaim is deprecated in v1.35+, unavailable in v1.38+\""
    );
    for version in ["v1", "v1beta2"] {
        let read = c.say(&format!("GET {}/c", claims(version)), "").await;
        assert_eq!(read.at("/apiVersion"), format!("resource.k8s.io/{version}"));
        let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
        assert_eq!(read.at("/spec/devices/requests/0"), json!({"name": "r", "exactly": exactly}));
        assert!(!read.headers.contains_key("warning"));
    }
    let list = c.say(&format!("GET {}", claims("v1beta1")), "").await;
    assert_eq!(list.at("/items/0/spec/devices/requests/0"), request);
    // A refusal is told by the fields of v1, in which all versions are judged.
    let mut nothing = claim.clone();
    nothing["spec"]["devices"]["requests"] = json!([{"name": "r"}]);
    let refused = c.say(&format!("POST {}", claims("v1beta1")), nothing.to_string()).await;
    assert_eq!(refused.code, 422);
    assert_eq!(refused.at("/details/causes/0/field"), "spec.devices.requests[0].exactly.deviceClassName");
    let merge = format!("PATCH {}/c\ncontent-type: application/merge-patch+json", claims("v1beta1"));
    let labelled = c.say(&merge, r#"{"metadata":{"labels":{"a":"b"}}}"#).await;
    assert_eq!((labelled.code, labelled.at("/spec/devices/requests/0")), (200, request));
    let other = c.say(&merge, r#"{"spec":{"devices":{"requests":[{"name":"r","deviceClassName":"other"}]}}}"#).await;
    assert_eq!(other.code, 422, "what a claim asks for does not change");
    let unknown = format!("POST {}?fieldValidation=Strict", claims("v1beta1"));
    let mut later = claim;
    later["spec"]["devices"]["requests"] = json!([{"name": "r", "exactly": {"deviceClassName": "gpu"}}]);
    assert_eq!(c.say(&unknown, later.to_string()).await.code, 400, "v1beta1 has no such field");
}

#[tokio::test(start_paused = true)]
async fn devices_are_the_same_in_every_version() {
    let c = Conversation::serving(ALL).await;
    let taint = json!({"key": "k", "effect": "NoSchedule"});
    let slice = json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {
        "driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "a", "basic": {"attributes": {"x": {"int": 1}}, "taints": [taint]}}]}});
    let made = c.say(&format!("POST {}", slices("v1beta1")), slice.to_string()).await;
    assert_eq!((made.code, made.at("/metadata/generation")), (201, json!(1)), "{}", made.text);
    let device = made.at("/spec/devices/0/basic");
    assert_eq!(device["attributes"], json!({"x": {"int": 1}}));
    let read = c.say(&format!("GET {}/s", slices("v1")), "").await;
    assert_eq!(read.at("/spec/devices/0/attributes"), device["attributes"]);
    assert_eq!(
        c.say(&format!("GET {}?fieldSelector=spec.nodeName=n", slices("v1beta1")), "")
            .await
            .at("/items/0/metadata/name"),
        "s"
    );
    let apply = |version: &str| {
        format!("PATCH {}/s?fieldManager=me\ncontent-type: application/apply-patch+yaml", slices(version))
    };
    let wanted = json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "metadata": {"name": "s", "labels": {"a": "b"}}});
    let applied = c.say(&apply("v1beta1"), wanted.to_string()).await;
    assert_eq!((applied.code, applied.at("/spec/devices/0/basic")), (200, device), "{}", applied.text);
    let mut wanted = wanted;
    wanted["apiVersion"] = json!("resource.k8s.io/v1");
    wanted["metadata"]["labels"] = json!({});
    let applied = c.say(&apply("v1"), wanted.to_string()).await;
    assert_eq!((applied.code, applied.at("/metadata/labels")), (200, json!(null)), "{}", applied.text);
    let mut watch = c.watch(&format!("{}?watch=1&resourceVersion=0&timeoutSeconds=1", slices("v1beta1"))).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["object"]["spec"]["devices"][0]["basic"]["attributes"]["x"]["int"], 1);
}

#[tokio::test(start_paused = true)]
async fn versions_of_one_shape_differ_by_their_names() {
    let c = Conversation::serving(ALL).await;
    let of = json!({"apiVersion": "storage.k8s.io/v1beta1", "kind": "VolumeAttributesClass", "metadata": {"name": "v"},
        "driverName": "d", "parameters": {"a": "b"}});
    let path = |version: &str| format!("/apis/storage.k8s.io/{version}/volumeattributesclasses");
    let made = c.say(&format!("POST {}", path("v1beta1")), of.to_string()).await;
    assert_eq!((made.code, made.at("/apiVersion")), (201, json!("storage.k8s.io/v1beta1")), "{}", made.text);
    let warnings: Vec<&str> = made.headers.get_all("warning").iter().map(|text| text.to_str().unwrap()).collect();
    let deprecated = "299 - \"storage.k8s.io/v1beta1 VolumeAttributesClass is deprecated in v1.34+, unavailable in v1.37+; use \
                      storage.k8s.io/v1 VolumeAttributesClass\"";
    assert!(warnings.contains(&deprecated), "{warnings:?}");
    assert_eq!(c.say(&format!("GET {}/v", path("v1")), "").await.at("/apiVersion"), "storage.k8s.io/v1");
    for version in ["v1", "v1beta1"] {
        let list = c.say(&format!("GET {}", path(version)), "").await;
        let item = ["name", "kind", "apiVersion"].map(|field| match field {
            "name" => list.at("/items/0/metadata/name"),
            other => list.at(&format!("/items/0/{other}")),
        });
        assert_eq!(
            item,
            [json!("v"), json!(null), json!(null)],
            "items of lists have no kind of their own: {}",
            list.text
        );
        assert!(list.at("/items/0/metadata/resourceVersion").is_string());
    }
    let table = "accept: application/json;as=Table;g=meta.k8s.io;v=v1";
    let rows = c.say(&format!("GET {}\n{table}", path("v1beta1")), "").await;
    assert_eq!(rows.at("/rows/0/cells/1"), "d");
    let groups = c.say("GET /apis/networking.k8s.io/v1beta1", "").await;
    let names: Vec<String> =
        groups.at("/resources").as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["ipaddresses", "servicecidrs", "servicecidrs/status"]);
    let off = Conversation::start().await;
    assert_eq!(off.say(&format!("GET {}", path("v1beta1")), "").await.code, 404);
}
