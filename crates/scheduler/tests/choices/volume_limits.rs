//! How many volumes a node can hold, driver by driver.

use crate::text::{engine, next, pod_with};
use clock::Instant;
use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use scheduler::{
    Engine,
    attachable::{self, Attachable, Attachment, Limits},
    claims::{Claim, Volume},
};

const FULL: &str = "0/1 nodes are available: 1 node(s) exceed max volume count.";

fn key(name: &str) -> client::Key {
    client::Key::new("default", name)
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    json::from_value(value).unwrap()
}

/// The node `a` has this CSINode.
fn limit(engine: &mut Engine, drivers: &[(&str, i64)], migrated: &str) {
    let drivers: Vec<_> = drivers
        .iter()
        .map(|(name, count)| json!({"name": name, "nodeID": "a", "allocatable": {"count": count}}))
        .collect();
    let annotations = json!({"storage.alpha.kubernetes.io/migrated-plugins": migrated});
    let node = json!({"metadata": {"name": "a", "annotations": annotations}, "spec": {"drivers": drivers}});
    engine.set_volume_limits(&key("a"), Some(Limits::of(&object(node))), Instant::now());
}

/// A claim with a volume of this source; without one it waits for its class `fast`.
fn claim(engine: &mut Engine, name: &str, source: Option<Value>) {
    let now = Instant::now();
    let volume = source.map(|source| object(json!({"metadata": {"name": name}, "spec": source})));
    let bound = json!({"metadata": {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": if volume.is_some() { name } else { "" }, "storageClassName": "fast"}});
    engine.set_attachable(&key(name), volume.as_ref().and_then(Attachable::of_volume), now);
    engine.set_volume(&key(name), volume.as_ref().map(Volume::of), now);
    engine.set_claim(&key(name), Some(Claim::of(&object(bound))), now);
}

fn csi(driver: &str, handle: &str) -> Option<Value> {
    Some(json!({"csi": {"driver": driver, "volumeHandle": handle}}))
}

fn using(text: &str, claims: &[&str]) -> Pod {
    let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    pod_with(text, json!({"volumes": claims.iter().map(volume).collect::<Vec<_>>()}))
}

/// `next` without the part about preemption.
fn place(engine: &mut Engine, pod: &Pod) -> String {
    engine.set_pod(pod, Instant::now());
    next(engine)
}

#[test]
fn a_node_holds_so_many_volumes_of_a_driver() {
    let mut engine = engine(&["a"], &[]);
    for name in ["x", "y", "z"] {
        claim(&mut engine, name, csi("one", name));
    }
    claim(&mut engine, "same", csi("one", "x"));
    claim(&mut engine, "other", csi("two", "x"));
    assert_eq!(place(&mut engine, &using("p", &["x"])), "a", "no limit is known");
    limit(&mut engine, &[("one", 1), ("two", 1)], "");
    assert_eq!(place(&mut engine, &using("q", &["y"])), FULL);
    assert_eq!(place(&mut engine, &using("r", &["same"])), "a", "the volume is there already");
    assert_eq!(place(&mut engine, &using("s", &["other"])), "a", "each driver has its own limit");
    limit(&mut engine, &[("one", 2)], "");
    assert_eq!(next(&mut engine), "a", "the limit grew");
    assert_eq!(place(&mut engine, &using("t", &["z"])), FULL);
    engine.remove_pod(&key("p"), Instant::now());
    assert_eq!(next(&mut engine), "nothing to do", "another Pod uses that volume too");
    engine.remove_pod(&key("r"), Instant::now());
    assert_eq!(next(&mut engine), "a");
    assert_eq!(place(&mut engine, &using("u priority=1", &["x"])), "t must leave a");
}

#[test]
fn a_volume_counts_while_it_is_attached() {
    let mut engine = engine(&["a"], &[]);
    claim(&mut engine, "gone", csi("one", "gone"));
    claim(&mut engine, "x", csi("one", "x"));
    limit(&mut engine, &[("one", 1)], "");
    let attachment = json!({"metadata": {"name": "va"},
        "spec": {"attacher": "one", "nodeName": "a", "source": {"persistentVolumeName": "gone"}}});
    engine.set_attachment(&key("va"), Attachment::of(&object(attachment)), Instant::now());
    assert_eq!(place(&mut engine, &using("p", &["x"])), FULL);
    engine.set_attachment(&key("va"), None, Instant::now());
    assert_eq!(next(&mut engine), "a");
}

#[test]
fn volumes_that_are_not_made_yet_count_by_their_class() {
    let mut engine = engine(&["a"], &[]);
    let class =
        json!({"metadata": {"name": "fast"}, "provisioner": "one", "volumeBindingMode": "WaitForFirstConsumer"});
    let class = object(class);
    engine.set_provisioner(&key("fast"), Some(attachable::provisioner(&class)), Instant::now());
    engine.set_storage_class(&key("fast"), Some(scheduler::claims::Class::of(&class)), Instant::now());
    limit(&mut engine, &[("one", 1)], "");
    claim(&mut engine, "x", None);
    claim(&mut engine, "y", None);
    assert_eq!(place(&mut engine, &using("p", &["x"])), "a");
    assert_eq!(place(&mut engine, &using("q", &["y"])), FULL);
}

#[test]
fn volumes_of_old_plugins_count_where_a_driver_took_over() {
    let (now, aws) = (Instant::now(), |id: &str| json!({"awsElasticBlockStore": {"volumeID": id}}));
    let inline = |name: &str, id: &str| {
        let mut volume = aws(id);
        volume["name"] = json!("v");
        pod_with(name, json!({"volumes": [volume]}))
    };
    let mut engine = engine(&["a"], &[]);
    claim(&mut engine, "x", Some(aws("vol-1")));
    limit(&mut engine, &[("ebs.csi.aws.com", 1)], "kubernetes.io/gce-pd");
    assert_eq!(place(&mut engine, &using("p", &["x"])), "a");
    assert_eq!(place(&mut engine, &inline("q", "vol-2")), "a", "no driver took over there");
    limit(&mut engine, &[("ebs.csi.aws.com", 2)], "kubernetes.io/gce-pd,kubernetes.io/aws-ebs");
    assert_eq!(place(&mut engine, &inline("r", "vol-1")), "a", "the claim's volume under its own name");
    assert_eq!(place(&mut engine, &inline("s", "vol-3")), FULL);
    engine.remove_pod(&key("q"), now);
    assert_eq!(next(&mut engine), "a");
}
