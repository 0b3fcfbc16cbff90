//! The plugin against quotas in a store.

use std::sync::Arc;

use api::k8s_openapi::api::core::v1::ScopedResourceSelectorRequirement;
use json::json;

use super::{
    charges::Charges,
    configuration::{Configuration, Limited},
    *,
};
use crate::tests::admission::{self, Write};

/// A quota of namespace `ns` whose hard and used amounts are `name=hard/used`.
pub(super) fn quota(name: &str, spec: Value, amounts: &str) -> (&'static str, Value) {
    let mut status = json!({"hard": {}, "used": {}});
    for word in amounts.split_whitespace() {
        let (resource, amounts) = word.split_once('=').unwrap();
        let (hard, used) = amounts.split_once('/').unwrap_or((amounts, ""));
        status["hard"][resource] = json!(hard);
        if !used.is_empty() {
            status["used"][resource] = json!(used);
        }
    }
    ("resourcequotas", json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": status}))
}

fn pod(name: &str, resources: Value) -> Write {
    let containers = json!([{"name": "c", "resources": resources}]);
    Write::create("pods", json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"containers": containers}}))
}

pub(super) async fn used(context: &Context, quota: &str) -> Value {
    context.objects.live("", "resourcequotas", "ns", quota).await.unwrap().unwrap()["status"]["used"].take()
}

#[tokio::test]
async fn a_write_is_charged_or_refused_in_upstreams_words() {
    let context = admission::context(vec![
        quota("cpus", json!({}), "requests.cpu=2/500m pods=5/1"),
        quota("idle", json!({"scopes": ["BestEffort"]}), "pods=1/0"),
    ])
    .await;
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
    pod("a", asks("1")).through(&context, &PLUGIN).await.unwrap();
    assert_eq!(used(&context, "cpus").await, json!({"requests.cpu": "1500m", "pods": "2"}));
    assert_eq!(used(&context, "idle").await, json!({"pods": "0"}));
    let error = pod("b", asks("1")).through(&context, &PLUGIN).await.unwrap_err();
    let expected = "pods \"b\" is forbidden: exceeded quota: cpus, requested: requests.cpu=1, used: requests.cpu=1500m, \
                    limited: requests.cpu=2";
    assert_eq!(error, expected);
    let error = pod("c", json!({})).through(&context, &PLUGIN).await.unwrap_err();
    assert_eq!(error, "pods \"c\" is forbidden: failed quota: cpus: must specify requests.cpu for: c");
    assert_eq!(used(&context, "cpus").await, json!({"requests.cpu": "1500m", "pods": "2"}));
}

#[tokio::test]
async fn a_write_that_is_tried_again_is_charged_once() {
    let context = admission::context(vec![quota("q", json!({}), "services=2/0")]).await;
    let service = |name: &str| {
        let spec = json!({"type": "ClusterIP", "ports": [{"port": 80}]});
        Write::create("services", json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec}))
    };
    for (name, expected) in [("a", "1"), ("b", "2")] {
        service(name).again(&context, &PLUGIN).await.unwrap();
        assert_eq!(used(&context, "q").await, json!({"services": expected}));
    }
}

#[tokio::test]
async fn what_one_quota_refuses_is_charged_to_none() {
    let context =
        admission::context(vec![quota("a", json!({}), "pods=9/0"), quota("b", json!({}), "count/pods=1/1")]).await;
    let error = pod("p", json!({})).through(&context, &PLUGIN).await.unwrap_err();
    let expected = "exceeded quota: b, requested: count/pods=1, used: count/pods=1, limited: count/pods=1";
    assert!(error.ends_with(expected), "{error}");
    assert_eq!(used(&context, "a").await, json!({"pods": "0"}));
}

#[tokio::test]
async fn a_quota_that_is_not_counted_yet_lets_nothing_through() {
    let context = admission::context(vec![quota("q", json!({}), "pods=9 services=1")]).await;
    let error = pod("p", json!({})).through(&context, &PLUGIN).await.unwrap_err();
    assert_eq!(error, "pods \"p\" is forbidden: status unknown for quota: q, resources: pods");
    let map = Write::create("configmaps", json!({"metadata": {"name": "m", "namespace": "ns"}}));
    map.through(&context, &PLUGIN).await.unwrap();
}

#[tokio::test]
async fn objects_of_any_kind_are_counted() {
    let context = admission::context(vec![quota("q", json!({}), "count/widgets.example.com=1/0")]).await;
    let widget = || {
        let mut write = Write::create("widgets", json!({"metadata": {"name": "w", "namespace": "ns"}}));
        write.kind = ("example.com", "widgets", "");
        write.through(&context, &PLUGIN)
    };
    widget().await.unwrap();
    assert!(widget().await.unwrap_err().contains("exceeded quota: q, requested: count/widgets.example.com=1"));
}

#[tokio::test]
async fn updates_are_charged_for_what_they_add() {
    let context = admission::context(vec![quota("q", json!({}), "services.nodeports=3/0 services=1/1")]).await;
    let service = |kind: &str, ports: u16| {
        let ports: Vec<_> = (1..=ports).map(|port| json!({"port": port})).collect();
        json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": {"type": kind, "ports": ports}})
    };
    let update = async |old: Value, new: Value| {
        let write = Write { operation: Operation::Update, old: Some(old), ..Write::create("services", new) };
        write.through(&context, &PLUGIN).await
    };
    update(service("ClusterIP", 2), service("NodePort", 2)).await.unwrap();
    assert_eq!(used(&context, "q").await, json!({"services.nodeports": "2", "services": "1"}));
    update(service("NodePort", 2), service("NodePort", 1)).await.unwrap();
    assert_eq!(used(&context, "q").await["services.nodeports"], "2", "the controller gives back");
    let error = update(service("NodePort", 1), service("NodePort", 3)).await.unwrap_err();
    assert!(error.contains("requested: services.nodeports=2, used: services.nodeports=2"), "{error}");
}

/// Hundreds of creates at once, through two servers over one store.
#[tokio::test]
async fn concurrent_writes_never_get_more_than_there_is() {
    let store = crate::tests::objects::store(vec![
        quota("a", json!({}), "pods=50/0 requests.cpu=100/0"),
        quota("b", json!({}), "count/pods=40/0"),
    ])
    .await;
    let server = async || {
        let objects = crate::storage::loopback::Loopback::new(store.clone(), &[]).await.unwrap();
        Arc::new(Context { objects: Arc::new(objects), ..admission::context(Vec::new()).await })
    };
    let servers = [server().await, server().await];
    let writes = (0..300).map(|number| {
        let context = servers[number % 2].clone();
        let write = pod(&format!("p{number}"), json!({"requests": {"cpu": "1"}}));
        tokio::spawn(async move { write.through(&context, &PLUGIN).await.is_ok() })
    });
    let mut granted = 0;
    for write in futures::future::join_all(writes.collect::<Vec<_>>()).await {
        granted += usize::from(write.unwrap());
    }
    assert_eq!(granted, 40);
    assert_eq!(used(&servers[0], "b").await, json!({"count/pods": "40"}));
}

#[tokio::test]
async fn the_configuration_demands_quotas() {
    let limited = |resource: &str, contains: &[&str], scope: Option<&str>| Limited {
        group: String::new(),
        resource: resource.to_owned(),
        contains: contains.iter().map(|c| (*c).to_owned()).collect(),
        scopes: scope
            .map(|scope| ScopedResourceSelectorRequirement {
                scope_name: scope.to_owned(),
                operator: "Exists".to_owned(),
                values: None,
            })
            .into_iter()
            .collect(),
    };
    let context = |limited: Limited, objects| async {
        let charges = Charges::new(Configuration { limited: vec![limited] });
        Context { charges, ..admission::context(objects).await }
    };
    let none = context(limited("pods", &["cpu"], None), Vec::new()).await;
    let error = pod("p", json!({"requests": {"cpu": "1"}})).through(&none, &PLUGIN).await.unwrap_err();
    assert_eq!(error, "pods \"p\" is forbidden: insufficient quota to consume: cpu,requests.cpu");
    pod("p", json!({})).through(&none, &PLUGIN).await.unwrap();
    let scoped = context(limited("pods", &[], Some("BestEffort")), Vec::new()).await;
    let error = pod("p", json!({})).through(&scoped, &PLUGIN).await.unwrap_err();
    assert_eq!(error, "insufficient quota to match these scopes: [{BestEffort Exists []}]");
    let quotas = vec![quota("q", json!({"scopes": ["BestEffort"]}), "pods=1/0")];
    let covered = context(limited("pods", &[], Some("BestEffort")), quotas).await;
    pod("p", json!({})).through(&covered, &PLUGIN).await.unwrap();
}

#[tokio::test]
async fn claims_are_charged_for_the_resources_that_their_classes_stand_for() {
    let implicit = "requests.deviceclass.resource.kubernetes.io/gpu";
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "x.io/gpu"}});
    let resources = json!({"requests": {"x.io/gpu": "2"}, "limits": {"x.io/gpu": "2"}});
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": resources}]}});
    let objects = vec![
        quota(
            "q",
            json!({}),
            &format!("requests.x.io/gpu=5/2 {implicit}=9/0 gpu.deviceclass.resource.k8s.io/devices=9/0"),
        ),
        ("deviceclasses", class),
        ("pods", pod),
    ];
    let off = admission::context(objects).await;
    let claim = |name: &str, made: bool| {
        let mut meta = json!({"name": name, "namespace": "ns"});
        if made {
            meta["annotations"] = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
            meta["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]);
        }
        let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2});
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": exactly}]}});
        let write = Write::create("resourceclaims", json!({"metadata": meta, "spec": spec}));
        Write { kind: ("resource.k8s.io", "resourceclaims", ""), ..write }
    };
    let used = async |context: &Context| {
        let used = used(context, "q").await;
        let amount = |name: &str| used[name].as_str().unwrap().to_owned();
        let names = ["requests.x.io/gpu", implicit, "gpu.deviceclass.resource.k8s.io/devices"];
        names.map(amount).join(" ")
    };
    claim("a", false).through(&off, &PLUGIN).await.unwrap();
    assert_eq!(used(&off).await, "2 0 2", "the feature is off");
    let on = Context { features: api::features::Features::default().with(Feature::DRAExtendedResource, true), ..off };
    claim("b", false).through(&on, &PLUGIN).await.unwrap();
    assert_eq!(used(&on).await, "4 2 4");
    claim("made", true).through(&on, &PLUGIN).await.unwrap();
    assert_eq!(used(&on).await, "4 4 6", "the Pod was charged by the resource's name");
    let told = claim("c", false).through(&on, &PLUGIN).await.unwrap_err();
    assert!(told.contains("exceeded quota: q, requested: requests.x.io/gpu=2, used: requests.x.io/gpu=4"), "{told}");
}
