//! Claims that wait for their Pod: which volumes they get with its node.

#[allow(dead_code, reason = "the other tables use more of it")]
mod text;

use std::time::Duration;

use client::Key;
use clock::Instant;
use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use scheduler::{
    Decision, Engine,
    claims::{Capacity, Claim, Class, Volume},
};
use text::{engine, next, pod_with};

fn key(name: &str) -> Key {
    Key::new("default", name)
}

/// A Pod with these claims.
fn pod(name: &str, claims: &[&str]) -> Pod {
    let volumes: Vec<Value> =
        claims.iter().map(|c| json!({"name": c, "persistentVolumeClaim": {"claimName": c}})).collect();
    pod_with(name, json!({"volumes": volumes}))
}

fn set_claim(engine: &mut Engine, name: &str, size: &str, selected: Option<&str>) {
    let annotations = selected.map(|node| json!({"volume.kubernetes.io/selected-node": node}));
    let claim = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations},
        "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}}}});
    engine.set_claim(&key(name), Some(Claim::of(&json::from_value(claim).unwrap())), Instant::now());
}

fn set_volume(engine: &mut Engine, name: &str, size: &str, node: &str, claim: Option<&str>) {
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]);
    let claim = claim.map(|name| json!({"namespace": "default", "name": name, "uid": name}));
    let volume = json!({"metadata": {"name": name}, "status": {"phase": "Available"}, "spec": {"storageClassName": "late",
        "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "claimRef": claim,
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
    engine.set_volume(&Key::new("", name), Some(Volume::of(&json::from_value(volume).unwrap())), Instant::now());
}

fn set_class(engine: &mut Engine, provisioner: &str) {
    let class = json!({"metadata": {"name": "late"}, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer"});
    let class = Class::of(&json::from_value(class).unwrap());
    engine.set_storage_class(&Key::new("", "late"), Some(class), Instant::now());
}

const BY_HAND: &str = "kubernetes.io/no-provisioner";

/// The volumes that the plugin has chosen for the Pod that is bound next.
fn given(engine: &mut Engine) -> Vec<(String, String)> {
    let decision = engine.schedule_one(Instant::now() + Duration::from_secs(60));
    let Some(Decision::Bind { prepare, .. }) = decision else { panic!("no node: {decision:?}") };
    let given = prepare.iter().find_map(|p| p.brought.clone().downcast::<Vec<(Key, String)>>().ok()).unwrap();
    let mut given: Vec<_> = given.iter().map(|(claim, volume)| (claim.name.clone(), volume.clone())).collect();
    given.sort();
    given
}

#[test]
fn all_claims_of_a_pod_get_volumes_on_one_node() {
    let mut engine = engine(&["a", "b"], &[]);
    set_class(&mut engine, BY_HAND);
    for claim in ["big", "small"] {
        set_claim(&mut engine, claim, if claim == "big" { "2Gi" } else { "1Gi" }, None);
    }
    set_volume(&mut engine, "a1", "2Gi", "a", None);
    engine.set_pod(&pod("p", &["big", "small"]), Instant::now());
    let none = "node(s) didn't find available persistent volumes to bind";
    assert_eq!(next(&mut engine), format!("0/2 nodes are available: 2 {none}."), "one volume serves one claim");
    set_volume(&mut engine, "b1", "2Gi", "b", None);
    set_volume(&mut engine, "b2", "3Gi", "b", None);
    // The smallest claim chooses first, so the smallest volume is the small claim's.
    let expected = [("big", "b2"), ("small", "b1")].map(|(c, v)| (c.to_owned(), v.to_owned()));
    assert_eq!(given(&mut engine), expected);
}

#[test]
fn a_chosen_volume_is_kept_until_the_binding_fails() {
    let mut engine = engine(&["a"], &[]);
    set_class(&mut engine, BY_HAND);
    set_volume(&mut engine, "v", "1Gi", "a", None);
    for name in ["c", "d"] {
        set_claim(&mut engine, name, "1Gi", None);
        engine.set_pod(&pod(name, &[name]), Instant::now());
    }
    assert_eq!(given(&mut engine), [("c".to_owned(), "v".to_owned())]);
    let none = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.";
    assert_eq!(next(&mut engine), none, "the other Pod does not get the same volume");
    engine.bind_failed(&key("c"), "c", Instant::now());
    engine.remove_pod(&key("c"), Instant::now());
    // Any news of volumes wakes it.
    set_volume(&mut engine, "elsewhere", "1Gi", "x", None);
    assert_eq!(given(&mut engine), [("d".to_owned(), "v".to_owned())]);
    // Once it is written, it stays the claim's though nothing is kept any more.
    set_volume(&mut engine, "v", "1Gi", "a", Some("d"));
    set_claim(&mut engine, "e", "1Gi", None);
    engine.set_pod(&pod("e", &["e"]), Instant::now());
    assert_eq!(next(&mut engine), none);
}

#[test]
fn a_reserved_volume_is_the_only_one_that_a_claim_can_have() {
    let mut engine = engine(&["a", "b"], &[]);
    set_class(&mut engine, BY_HAND);
    set_claim(&mut engine, "c", "1Gi", None);
    set_volume(&mut engine, "a1", "1Gi", "a", None);
    set_volume(&mut engine, "b1", "9Gi", "b", Some("c"));
    engine.set_pod(&pod("p", &["c"]), Instant::now());
    assert_eq!(given(&mut engine), [("c".to_owned(), "b1".to_owned())]);
}

#[test]
fn a_volume_is_made_where_it_was_ordered_and_where_there_is_room() {
    let mut engine = engine(&["a label=zone:x", "b label=zone:y"], &[]);
    set_class(&mut engine, "example.com/disks");
    set_claim(&mut engine, "c", "2Gi", Some("b"));
    engine.set_pod(&pod("p", &["c"]), Instant::now());
    assert_eq!(next(&mut engine), "b", "it is being made there");

    engine.set_driver(&Key::new("", "example.com/disks"), Some(true), Instant::now());
    set_claim(&mut engine, "d", "2Gi", None);
    engine.set_pod(&pod("q", &["d"]), Instant::now());
    let full = "0/2 nodes are available: 2 node(s) did not have enough free storage.";
    assert_eq!(next(&mut engine), full);
    let mut tell = |most: &str, zone: &str| {
        let capacity = json!({"metadata": {"name": "k"}, "storageClassName": "late", "capacity": "9Gi",
            "maximumVolumeSize": most, "nodeTopology": {"matchLabels": {"zone": zone}}});
        let capacity = Capacity::of(&json::from_value(capacity).unwrap());
        engine.set_capacity(&key("k"), Some(capacity), Instant::now());
        match engine.schedule_one(Instant::now() + Duration::from_secs(60)) {
            Some(Decision::Bind { node, .. }) => node.to_string(),
            _ => String::new(),
        }
    };
    assert_eq!(tell("1Gi", "x"), "");
    assert_eq!(tell("2Gi", "x"), "a");
}
