//! All controllers against the API server in one thread under paused time. The tests play the kubelets.

mod common;

use std::{sync::Arc, time::Duration};

use client::{
    Api, Caches, Client, Kind,
    rest::{self, DeleteOptions, Form, Resource, Verb},
};
use json::{Value, json};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    core::v1::{ConfigMap, Endpoints, Event, Namespace, Node, Pod, Secret, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
};

use common::{lagging, object, server};
use controllers::service_account::tokens::TokenSigner;
use http::Method;

/// An API server in which all controllers run.
struct Cluster {
    client: Client,
    _controllers: tokio::task::JoinSet<()>,
}

impl Cluster {
    async fn start() -> Self {
        let client = server(1).await;
        Self::with_caches(client.clone(), Caches::new(client)).await
    }

    async fn with_caches(client: Client, caches: Caches) -> Self {
        let signer = TokenSigner(Arc::new(|subject| Ok(format!("token of {}", subject.account))));
        let options = controllers::Options { root_ca: "PEM".into(), token_signer: Some(signer), ..Default::default() };
        let tasks = controllers::run(&caches, |_| client.clone(), &options);
        let cluster = Cluster { client, _controllers: tasks };
        let namespace: Namespace = object(json!({"metadata": {"name": "d"}}));
        Api::all(cluster.client.clone()).create(&namespace).await.unwrap();
        cluster
    }

    fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), "d")
    }

    async fn create<K: Kind>(&self, value: Value) {
        self.api::<K>().create(&object(value)).await.unwrap();
    }

    async fn list<K: Kind>(&self) -> Vec<K> {
        self.api::<K>().list(&[]).await.unwrap()
    }

    /// Every Pod that is not running yet runs and is ready, as a kubelet would say.
    async fn run_pods(&self) {
        for pod in self.list::<Pod>().await {
            let name = pod.metadata.name.unwrap();
            if pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running") {
                continue;
            }
            let ip = format!("10.0.0.{}", 1 + name.bytes().map(u32::from).sum::<u32>() % 250);
            let now = clock::now_seconds().to_string();
            let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}]});
            // It may be gone by now.
            let _ = self.api::<Pod>().merge_patch(&name, "status", json!({"status": status})).await;
        }
    }

    /// Lets the controllers work, and kubelets run Pods, until `done` holds.
    async fn until<F: Future<Output = bool>>(&self, what: &str, done: impl Fn() -> F) {
        for _ in 0..300 {
            self.run_pods().await;
            if done().await {
                return;
            }
            clock::sleep(Duration::from_millis(500)).await;
        }
        let pods: Vec<_> = self.list::<Pod>().await.into_iter().map(|p| (p.metadata.name, p.status)).collect();
        let sets: Vec<_> = self.list::<ReplicaSet>().await.into_iter().map(|s| (s.metadata.name, s.status)).collect();
        panic!("never {what}: {pods:?} {sets:?}");
    }

    async fn rolled_out(&self, image: &str) {
        self.until(&format!("all on {image}"), || async {
            let deployment = self.api::<Deployment>().get("web").await.unwrap();
            let status = deployment.status.clone().unwrap_or_default();
            let reason = status.conditions.iter().flatten().find(|c| c.type_ == "Progressing");
            status.observed_generation == deployment.metadata.generation
                && status.updated_replicas == Some(3)
                && status.available_replicas == Some(3)
                && status.replicas == Some(3)
                && reason.and_then(|c| c.reason.as_deref()) == Some("NewReplicaSetAvailable")
        })
        .await;
        let pods = self.list::<Pod>().await;
        let images = pods.iter().filter_map(|p| p.spec.as_ref()?.containers[0].image.as_deref());
        assert!(images.clone().all(|i| i == image) && pods.len() == 3, "{:?}", images.collect::<Vec<_>>());
    }
}

fn deployment(image: &str) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "d"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]}}},
    })
}

#[tokio::test(start_paused = true)]
async fn a_deployment_rolls_out_behind_a_service_rolls_back_and_is_collected() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment("v1")).await;
    let service = json!({"metadata": {"name": "web"},
        "spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "selector": {"app": "web"},
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]}});
    cluster.create::<Service>(service).await;
    cluster.rolled_out("v1").await;
    let change = |image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    for (image, revision) in [("v2", "2"), ("v1", "3")] {
        cluster.api::<Deployment>().strategic_patch("web", "", change(image)).await.unwrap();
        cluster.rolled_out(image).await;
        let deployment = cluster.api::<Deployment>().get("web").await.unwrap();
        assert_eq!(deployment.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], revision);
    }
    assert_eq!(cluster.list::<ReplicaSet>().await.len(), 2, "a rollback uses the old one again");
    cluster
        .until("endpoints follow", || async {
            let slices = cluster.list::<EndpointSlice>().await;
            let endpoints = cluster.list::<Endpoints>().await;
            let old =
                endpoints.iter().flat_map(|e| e.subsets.iter().flatten()).flat_map(|s| s.addresses.iter().flatten());
            slices.iter().map(|s| s.endpoints.len()).sum::<usize>() == 3 && slices.len() == 1 && old.count() == 3
        })
        .await;
    cluster.api::<Deployment>().delete("web", propagated("Background")).await.unwrap();
    cluster.api::<Service>().delete("web", propagated("Background")).await.unwrap();
    cluster
        .until("everything is collected", || async {
            let left = cluster.list::<Pod>().await.len() + cluster.list::<ReplicaSet>().await.len();
            left + cluster.list::<EndpointSlice>().await.len() + cluster.list::<Endpoints>().await.len() == 0
        })
        .await;
}

/// The revisions of the object with this name, oldest first.
async fn revisions(cluster: &Cluster, owner: &str) -> Vec<ControllerRevision> {
    let mut revisions = cluster.list::<ControllerRevision>().await;
    revisions.retain(|r| r.metadata.name.as_ref().is_some_and(|name| name.starts_with(owner)));
    revisions.sort_by_key(|r| r.revision);
    revisions
}

async fn all_run(cluster: &Cluster, app: &str, image: &str) {
    let runs = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.containers[0].image.as_deref()) == Some(image);
    cluster
        .until(&format!("{app} on {image}"), || async {
            let mut pods = cluster.list::<Pod>().await;
            pods.retain(|p| p.metadata.labels.as_ref().and_then(|l| l.get("app").cloned()).as_deref() == Some(app));
            pods.len() == 2 && pods.iter().all(runs)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_revision_brings_its_template_back() {
    let cluster = Cluster::start().await;
    for name in ["n1", "n2"] {
        let node: Node = object(json!({"metadata": {"name": name}}));
        Api::<Node>::all(cluster.client.clone()).create(&node).await.unwrap();
    }
    let spec = |app: &str| {
        json!({"selector": {"matchLabels": {"app": app}}, "template": {"metadata": {"labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "image": "v1", "args": ["old"]}]}}})
    };
    let mut set = spec("set");
    set["replicas"] = 2.into();
    cluster.create::<StatefulSet>(json!({"metadata": {"name": "set"}, "spec": set})).await;
    cluster.create::<DaemonSet>(json!({"metadata": {"name": "agent"}, "spec": spec("agent")})).await;
    let patch = async |data: Value| {
        cluster.api::<StatefulSet>().strategic_patch("set", "", data.clone()).await.unwrap();
        cluster.api::<DaemonSet>().strategic_patch("agent", "", data).await.unwrap();
    };
    all_run(&cluster, "set", "v1").await;
    all_run(&cluster, "agent", "v1").await;
    patch(json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "v2", "args": null}]}}}})).await;
    all_run(&cluster, "set", "v2").await;
    all_run(&cluster, "agent", "v2").await;
    // As `kubectl rollout undo` does it.
    let first = async |owner: &str| revisions(&cluster, owner).await[0].data.clone().unwrap().0;
    let (of_set, of_agent) = (first("set").await, first("agent").await);
    cluster.api::<StatefulSet>().strategic_patch("set", "", of_set.into()).await.unwrap();
    cluster.api::<DaemonSet>().strategic_patch("agent", "", of_agent.into()).await.unwrap();
    all_run(&cluster, "set", "v1").await;
    all_run(&cluster, "agent", "v1").await;
    for owner in ["set", "agent"] {
        let numbers: Vec<i64> = revisions(&cluster, owner).await.iter().map(|r| r.revision).collect();
        assert_eq!(numbers, [2, 3], "{owner}: the first one was counted up");
    }
    let set = cluster.api::<StatefulSet>().get("set").await.unwrap();
    let template = set.spec.unwrap().template;
    assert_eq!(template.spec.unwrap().containers[0].args.as_deref(), Some(["old".to_owned()].as_slice()));
}

/// The managers of an object with a field of its annotations, in the order of their names.
fn managers_of(set: &DaemonSet, annotation: &str) -> Vec<String> {
    let field = format!("f:{annotation}");
    let entries = set.metadata.managed_fields.iter().flatten();
    let owns = |fields: &Value| fields["f:metadata"]["f:annotations"].get(field.as_str()).is_some();
    let mut managers: Vec<String> = entries
        .filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&json::to_value(&fields.0).unwrap())))
        .filter_map(|entry| entry.manager.clone())
        .collect();
    managers.sort();
    managers
}

#[tokio::test(start_paused = true)]
async fn the_count_of_templates_belongs_to_whoever_wrote_the_whole_set() {
    const COUNT: &str = "deprecated.daemonset.template.generation";
    let client = server(1).await;
    let namespace: Namespace = object(json!({"metadata": {"name": "d"}}));
    Api::all(client.clone()).create(&namespace).await.unwrap();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let metadata = json!({"name": "s", "namespace": "d"});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec});
    let resource = Resource::of::<DaemonSet>();
    let write = async |method: Method, name: &str, manager: &str, body: &Value| -> DaemonSet {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let path = rest::with_query(resource.path("d", name, ""), &[("fieldManager", manager)]);
        let body = body.to_string().into_bytes();
        let answer = rest::open(&client, method, &path, "application/json", kind, body).await.unwrap();
        let text = answer.into_body().collect_bytes().await.unwrap();
        json::from_text(std::str::from_utf8(&text).unwrap()).unwrap()
    };
    let made = write(Method::POST, "", "create", &set).await;
    assert_eq!(managers_of(&made, COUNT), ["create"]);
    let relabelled = write(Method::PATCH, "s", "patch", &json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(managers_of(&relabelled, COUNT), ["create"], "a patch says nothing of it");
    let replaced = write(Method::PUT, "s", "update", &set).await;
    assert_eq!(managers_of(&replaced, COUNT), ["update"]);
    assert_eq!(replaced.metadata.annotations.unwrap()[COUNT], "1");
}

fn propagated(how: &'static str) -> DeleteOptions {
    DeleteOptions { propagation: Some(how), ..DeleteOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_waits_and_orphans_stay() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment("v1")).await;
    cluster.rolled_out("v1").await;
    let set = cluster.list::<ReplicaSet>().await.remove(0).metadata.name.unwrap();
    cluster.api::<Deployment>().delete("web", propagated("Orphan")).await.unwrap();
    cluster
        .until("the deployment is gone and the replica set free", || async {
            let owners = cluster.api::<ReplicaSet>().get(&set).await.unwrap().metadata.owner_references;
            cluster.list::<Deployment>().await.is_empty() && owners.unwrap_or_default().is_empty()
        })
        .await;
    assert_eq!(cluster.list::<Pod>().await.len(), 3);
    cluster.api::<ReplicaSet>().delete(&set, propagated("Foreground")).await.unwrap();
    cluster.until("all is gone", || async { cluster.list::<ReplicaSet>().await.is_empty() }).await;
    assert_eq!(cluster.list::<Pod>().await.len(), 0, "the owner goes last");
}

/// Objects of which each owns the next, the last one the first, are deleted in the foreground: some of them, one after
/// another.
async fn circle_ends(size: usize, deleted: &[usize]) {
    let cluster = Cluster::start().await;
    let name = |n: usize| format!("c{}", n % size);
    let mut uids = Vec::new();
    for n in 0..size {
        let made: ConfigMap = cluster.api().create(&object(json!({"metadata": {"name": name(n)}}))).await.unwrap();
        uids.push(made.metadata.uid.unwrap());
    }
    for (n, uid) in uids.iter().enumerate() {
        let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": name(n), "uid": uid,
            "blockOwnerDeletion": true}]);
        let patch = json!({"metadata": {"ownerReferences": owner}});
        cluster.api::<ConfigMap>().merge_patch(&name(n + 1), "", patch).await.unwrap();
    }
    for n in deleted {
        // The garbage collector may have been faster.
        let _ = cluster.api::<ConfigMap>().delete(&name(*n), propagated("Foreground")).await;
    }
    let left = async || cluster.list::<ConfigMap>().await.into_iter().any(|c| c.metadata.name.unwrap().len() == 2);
    cluster.until("all of the circle are gone", || async { !left().await }).await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_own_each_other_go() {
    circle_ends(3, &[0]).await;
    circle_ends(2, &[1]).await;
    circle_ends(1, &[0]).await;
    // All of them wait for each other at once.
    circle_ends(2, &[0, 1]).await;
    circle_ends(3, &[0, 1, 2]).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_gets_what_every_namespace_has() {
    let cluster = Cluster::start().await;
    cluster
        .until("account and certificate are there", || async {
            cluster.api::<ServiceAccount>().find("default").await.unwrap().is_some()
                && cluster.api::<ConfigMap>().find("kube-root-ca.crt").await.unwrap().is_some()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_token_goes_with_its_account_and_leaves_its_list() {
    let cluster = Cluster::start().await;
    let secret = |name: &str, account: &str| {
        json!({"metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}},
            "type": "kubernetes.io/service-account-token"})
    };
    let listed = json!([{"name": "first"}, {"name": "other"}]);
    cluster.create::<ServiceAccount>(json!({"metadata": {"name": "robot"}, "secrets": listed})).await;
    // The account comes just before its Secret, which nobody may take for one without an account.
    cluster.create::<Secret>(secret("first", "robot")).await;
    cluster
        .until("the Secret has its token", || async {
            let data = cluster.api::<Secret>().get("first").await.unwrap().data.unwrap_or_default();
            data.get("token").is_some_and(|token| token.0 == b"token of robot")
        })
        .await;
    cluster.api::<Secret>().delete("first", DeleteOptions::default()).await.unwrap();
    cluster
        .until("the account lists it no more", || async {
            let listed = cluster.api::<ServiceAccount>().get("robot").await.unwrap().secrets.unwrap_or_default();
            listed.iter().map(|secret| secret.name.as_deref()).eq([Some("other")])
        })
        .await;
    cluster.create::<Secret>(secret("orphan", "nobody")).await;
    cluster.create::<Secret>(secret("second", "robot")).await;
    cluster.api::<ServiceAccount>().delete("robot", DeleteOptions::default()).await.unwrap();
    cluster.until("both have gone", || async { cluster.list::<Secret>().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_tainted_and_its_pods_move_on() {
    let cluster = Cluster::start().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for name in ["n1", "n2"] {
        let node: Node = object(json!({"metadata": {"name": name}}));
        nodes.create(&node).await.unwrap();
    }
    let beat = async |name: &str| {
        let now = clock::now_seconds().to_string();
        let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now});
        let patch = json!({"status": {"conditions": [ready]}});
        nodes.strategic_patch(name, "status", patch).await.unwrap();
    };
    beat("n1").await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "i"}],
        "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 20}]}});
    cluster.create::<Pod>(pod).await;
    let started = clock::now();
    cluster
        .until("the pod is evicted", || async {
            beat("n2").await;
            let pod = cluster.api::<Pod>().find("p").await.unwrap();
            pod.is_none_or(|p| p.metadata.deletion_timestamp.is_some())
        })
        .await;
    let passed = clock::now().duration_since(started).as_secs();
    assert!((69..=75).contains(&passed), "50 s of silence and 20 s tolerated, not {passed}");
    let n1 = nodes.get("n1").await.unwrap();
    let (n1_spec, n1_status) = (n1.spec.unwrap(), n1.status.unwrap());
    let taints: Vec<_> = n1_spec.taints.unwrap().into_iter().map(|t| format!("{}:{}", t.key, t.effect)).collect();
    assert_eq!(taints, ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"]);
    let ready = n1_status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(ready.message.as_deref(), Some("Kubelet stopped posting node status."));
    let ranges = nodes.list(&[]).await.unwrap();
    let mut ranges: Vec<_> = ranges.into_iter().filter_map(|n| n.spec?.pod_cidr).collect();
    ranges.sort();
    assert_eq!(ranges, ["10.244.0.0/24", "10.244.1.0/24"]);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_left_alone() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment("v1")).await;
    cluster.rolled_out("v1").await;
    clock::sleep(Duration::from_secs(60)).await;
    let revision = async || {
        let pods = Resource::of::<Pod>().path("d", "", "");
        let list = rest::read(&cluster.client, &pods, Form::Whole).await.unwrap();
        rest::page(&list).unwrap().metadata.resource_version.unwrap()
    };
    let before = revision().await;
    // Long enough for the progress deadline, resumed watches and everything else that has a timer, but too short for
    // events to end.
    clock::sleep(Duration::from_secs(3000)).await;
    assert_eq!(revision().await, before, "somebody wrote");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_emptied_before_it_goes() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment("v1")).await;
    cluster.rolled_out("v1").await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.delete("d", DeleteOptions::default()).await.unwrap();
    cluster.until("the namespace is gone", || async { namespaces.find("d").await.unwrap().is_none() }).await;
    let left = cluster.list::<Pod>().await.len() + cluster.list::<Deployment>().await.len();
    assert_eq!(left + cluster.list::<ConfigMap>().await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_server_is_gone_keeps_namespaces_and_stops_no_collection() {
    let client = server(1).await;
    let resource = Resource {
        group: "apiregistration.k8s.io".into(),
        version: "v1".into(),
        kind: "APIService".into(),
        plural: "apiservices".into(),
    };
    let send = async |name: &str, verb: Verb| {
        rest::write(&client, &resource, "", name, "", &verb).await.unwrap();
    };
    let registration = json!({"metadata": {"name": "v1.a.io"}, "spec": {"group": "a.io", "version": "v1",
        "groupPriorityMinimum": 1, "versionPriority": 1, "service": {"namespace": "d", "name": "none"}}});
    send("", Verb::Create(registration)).await;
    let cluster = Cluster::with_caches(client.clone(), Caches::new(client.clone())).await;
    cluster.create::<ConfigMap>(json!({"metadata": {"name": "owner"}})).await;
    let owner = cluster.api::<ConfigMap>().get("owner").await.unwrap().metadata.uid.unwrap();
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner}]);
    cluster.create::<ConfigMap>(json!({"metadata": {"name": "owned", "ownerReferences": reference}})).await;
    cluster.api::<ConfigMap>().delete("owner", DeleteOptions::default()).await.unwrap();
    let owned = async || cluster.api::<ConfigMap>().find("owned").await.unwrap();
    cluster.until("what was owned is gone", || async { owned().await.is_none() }).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.delete("d", DeleteOptions::default()).await.unwrap();
    let why = async || {
        let conditions = namespaces.get("d").await.unwrap().status.and_then(|s| s.conditions).unwrap_or_default();
        let failure = conditions.into_iter().find(|c| c.type_ == "NamespaceDeletionDiscoveryFailure");
        failure.filter(|c| c.status == "True").and_then(|c| c.message).unwrap_or_default()
    };
    cluster.until("the namespace says why it stays", || async { why().await.contains("a.io/v1") }).await;
    send("v1.a.io", Verb::Delete(DeleteOptions::default())).await;
    cluster.until("the namespace is gone", || async { namespaces.find("d").await.unwrap().is_none() }).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_named_in_a_version_that_is_not_served_is_not_gone() {
    let cluster = Cluster::start().await;
    let event = json!({"metadata": {"name": "owner"}, "involvedObject": {"namespace": "d"}});
    cluster.create::<Event>(event).await;
    let owner = cluster.api::<Event>().get("owner").await.unwrap().metadata.uid.unwrap();
    // Nobody watches Events: the server is asked about their like.
    for (name, version, kind, uid) in [
        ("wrong", "v9", "Event", &*owner),
        ("other", "apps/v9", "Deployment", &owner),
        ("unknown", "v1", "Occasion", &owner),
        ("right", "events.k8s.io/v1", "Event", &owner),
        ("lost", "events.k8s.io/v1", "Event", "no-such-uid"),
    ] {
        let reference = json!([{"apiVersion": version, "kind": kind, "name": "owner", "uid": uid}]);
        cluster.create::<ConfigMap>(json!({"metadata": {"name": name, "ownerReferences": reference}})).await;
    }
    let left = async || {
        let all = cluster.list::<ConfigMap>().await;
        all.into_iter()
            .filter_map(|map| map.metadata.name)
            .filter(|name| name != "kube-root-ca.crt")
            .collect::<Vec<_>>()
    };
    cluster.until("what has no owner is gone", || async { !left().await.contains(&"lost".to_owned()) }).await;
    assert_eq!(left().await, ["other", "right", "unknown", "wrong"]);
}

/// Everything that a watch says arrives this much later.
const LAG: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn what_was_written_is_not_written_again_while_the_watch_lags() {
    let client = server(1).await;
    let cluster = Cluster::with_caches(client.clone(), Caches::new(lagging(client, LAG))).await;
    cluster.create::<Deployment>(deployment("v1")).await;
    cluster.rolled_out("v1").await;
    let events = cluster.list::<Event>().await;
    let count = |reason: &str| events.iter().filter(|e| e.reason.as_deref() == Some(reason)).count();
    assert_eq!((count("ScalingReplicaSet"), count("SuccessfulCreate"), count("SuccessfulDelete")), (1, 3, 0));
}
