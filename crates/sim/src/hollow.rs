//! A hollow node: everything of a kubelet that the API can see, and no containers.
//!
//! It registers its Node, renews its Lease, lets the Pods bound to it start and become ready after a while, lets those end
//! that do not run for ever, and stops and removes those that are being deleted. A Pod with volumes starts when they are attached.

use std::ops::Range;

use client::{
    Caches, Client, Key,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::{Duration, Timestamp};
use json::{Value, json};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};

use crate::{
    agenda::{Agenda, RETRY},
    mounts::{self, Mounts},
};

/// The properties of a hollow node.
#[derive(Debug, Clone)]
pub struct Profile {
    pub name: String,
    pub zone: String,
    pub cpu: String,
    pub memory: String,
    pub pods: String,
    /// How long a Pod takes to become ready, to end by itself, and to stop.
    pub start_ms: Range<u64>,
    pub run_ms: Range<u64>,
    pub stop_ms: Range<u64>,
    /// By how much the node's clock is wrong.
    pub skew_seconds: i64,
}

impl Profile {
    pub fn new(number: usize) -> Self {
        Profile {
            name: format!("node-{number:02}"),
            zone: format!("zone-{}", number % 3),
            cpu: "4".to_owned(),
            memory: "8Gi".to_owned(),
            pods: "110".to_owned(),
            start_ms: 200..3000,
            run_ms: 300..20_000,
            stop_ms: 100..2000,
            skew_seconds: [0, 15, -15, 90, -90][number % 5],
        }
    }

    /// The node of this name, if it is a hollow one.
    pub fn named(name: &str) -> Option<Self> {
        name.strip_prefix("node-").and_then(|number| number.parse().ok()).map(Profile::new)
    }

    /// The time on the node's own clock.
    fn now(&self) -> Timestamp {
        Timestamp::from_nanosecond(clock::now().as_nanosecond() + i128::from(self.skew_seconds) * 1_000_000_000)
            .expect("a time of our days")
    }

    pub fn now_seconds(&self) -> Timestamp {
        Timestamp::from_second(self.now().as_second()).expect("a time of our days")
    }
}

const HEARTBEAT: Duration = Duration::from_secs(10);

/// Runs the node until the future is dropped. Started again, it goes on with the Pods it has.
pub async fn run(client: Client, profile: Profile) {
    register(&client, &profile).await;
    tokio::join!(heartbeats(&client, &profile), pods(&client, &profile));
}

async fn register(client: &Client, profile: &Profile) {
    let capacity = json!({"cpu": profile.cpu, "memory": profile.memory, "pods": profile.pods});
    let now = profile.now_seconds();
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
        "message": "hollow node is posting ready status", "lastHeartbeatTime": now, "lastTransitionTime": now});
    let status = json!({"capacity": capacity, "allocatable": capacity, "conditions": [ready]});
    let labels = json!({"kubernetes.io/hostname": profile.name, "topology.kubernetes.io/zone": profile.zone});
    let node = json!({"apiVersion": "v1", "kind": "Node", "status": status,
        "metadata": {"name": profile.name, "labels": labels, "annotations": {mounts::MANAGED: "true"}}});
    let resource = Resource::of::<Node>();
    loop {
        let created = rest::write(client, &resource, "", "", "", &Verb::Create(node.clone())).await;
        let there = created.is_ok() || created.is_err_and(|e| rest::reason(&e) == "AlreadyExists");
        let patch = Verb::StrategicPatch(json!({"status": status}));
        if there && rest::write(client, &resource, "", &profile.name, "status", &patch).await.is_ok() {
            return;
        }
        clock::sleep(RETRY).await;
    }
}

async fn heartbeats(client: &Client, profile: &Profile) {
    let (resource, namespace) = (Resource::of::<Lease>(), "kube-node-lease");
    loop {
        let spec = json!({"holderIdentity": profile.name, "leaseDurationSeconds": 40,
            "renewTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(profile.now())});
        let renewal = Verb::MergePatch(json!({"spec": spec}));
        let renewed = rest::write(client, &resource, namespace, &profile.name, "", &renewal).await;
        let failed = renewed.is_err();
        if renewed.is_err_and(|e| rest::reason(&e) == "NotFound") {
            let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
                "metadata": {"name": profile.name, "namespace": namespace}});
            // The next round shows whether it worked.
            let _ = rest::write(client, &resource, namespace, "", "", &Verb::Create(lease)).await;
        }
        clock::sleep(if failed { RETRY } else { HEARTBEAT }).await;
    }
}

/// The annotation that says how many of a hundred Pods end with a failure.
pub const FAILS: &str = "sim/fails-of-hundred";

/// The next thing that a Pod needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Start,
    /// It runs, but was taken for lost while the node was away.
    Recover,
    /// Its containers have done what they had to do.
    End,
    /// It is being deleted: it says that it has ended before it goes.
    Stop,
    Remove,
}

fn need(pod: &Pod) -> Option<Need> {
    // Finalizers may hold it after that.
    let removed = pod.metadata.deletion_grace_period_seconds == Some(0);
    let ends = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).is_some_and(|policy| policy != "Always");
    match (api::rules::pod::is_deleted(pod), api::rules::pod::phase(pod)) {
        (true, phase) if api::rules::pod::is_terminal_phase(phase) => (!removed).then_some(Need::Remove),
        (true, _) => Some(Need::Stop),
        (false, "Pending" | "") => Some(Need::Start),
        (false, "Running") if !api::rules::pod::is_ready(pod) => Some(Need::Recover),
        (false, "Running") => ends.then_some(Need::End),
        _ => None,
    }
}

/// Whether the Pod succeeds: the same each time it is asked, as the end of a Pod is when a report of it gets lost.
fn succeeds(pod: &Pod) -> bool {
    let fails = pod.metadata.annotations.as_ref().and_then(|a| a.get(FAILS)?.parse::<u64>().ok()).unwrap_or(0);
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    api::rules::hash::fnv_64(uid.as_bytes()) % 100 >= fails
}

async fn pods(client: &Client, profile: &Profile) {
    let caches = Caches::new(client.clone());
    let cache = caches.selected::<Pod>(&format!("spec.nodeName={}", profile.name));
    let mut changes = cache.subscribe();
    cache.synced().await;
    let (mut agenda, mut mounts) = (Agenda::default(), Mounts::default());
    loop {
        let all = cache.list();
        let told = mounts.tell(client, &profile.name, &all).await;
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let needs = all.iter().filter_map(|pod| Some((uid(pod), need(pod)?)));
        let due = agenda.due(needs, |need| delay(profile, need));
        for pod in all.iter().filter(|pod| due.contains(&uid(pod))) {
            let Some(need) = need(pod) else { continue };
            if need != Need::Start || mounts.are_attached(client, &profile.name, pod).await {
                act(client, profile, pod, need).await;
            }
        }
        let next = agenda.next(if told { HEARTBEAT } else { RETRY });
        tokio::select! {
            biased;
            _ = changes.recv() => {}
            () = clock::sleep_until(next) => {}
        }
    }
}

fn delay(profile: &Profile, need: Need) -> Duration {
    let range = match need {
        Need::Start | Need::Recover => profile.start_ms.clone(),
        Need::End => profile.run_ms.clone(),
        Need::Stop => profile.stop_ms.clone(),
        Need::Remove => 0..100,
    };
    Duration::from_millis(clock::random_range(range))
}

/// A request that fails is tried again.
async fn act(client: &Client, profile: &Profile, pod: &Pod, need: Need) {
    let (resource, key) = (Resource::of::<Pod>(), Key::of(pod));
    let (subresource, verb) = match need {
        Need::Start => ("status", Verb::StrategicPatch(running(profile, pod))),
        Need::Recover => {
            let status = json!({"conditions": [condition(profile, "Ready"), condition(profile, "ContainersReady")]});
            ("status", Verb::StrategicPatch(json!({"metadata": {"uid": pod.metadata.uid}, "status": status})))
        }
        Need::End => ("status", Verb::StrategicPatch(ended(profile, pod, succeeds(pod)))),
        Need::Stop => ("status", Verb::StrategicPatch(ended(profile, pod, false))),
        Need::Remove => {
            let uid = pod.metadata.uid.clone();
            ("", Verb::Delete(DeleteOptions { uid, grace_seconds: Some(0), ..DeleteOptions::default() }))
        }
    };
    let _ = rest::write(client, &resource, &key.namespace, &key.name, subresource, &verb).await;
}

fn condition(profile: &Profile, kind: &str) -> Value {
    json!({"type": kind, "status": "True", "lastTransitionTime": profile.now_seconds()})
}

fn ended(profile: &Profile, pod: &Pod, succeeded: bool) -> Value {
    let now = profile.now_seconds();
    let (phase, reason, code) = if succeeded { ("Succeeded", "Completed", 0) } else { ("Failed", "Error", 1) };
    let state = json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": now}});
    let containers = pod.spec.iter().flat_map(|s| &s.containers).map(|c| {
        json!({"name": c.name, "image": c.image, "imageID": "hollow", "ready": false, "restartCount": 0, "state": state})
    });
    let conditions = ["Ready", "ContainersReady"]
        .map(|kind| json!({"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now}));
    json!({"metadata": {"uid": pod.metadata.uid}, "status": {
        "phase": phase, "conditions": conditions, "containerStatuses": containers.collect::<Vec<_>>(),
    }})
}

fn running(profile: &Profile, pod: &Pod) -> Value {
    let now = profile.now_seconds();
    let conditions = ["Initialized", "Ready", "ContainersReady"].map(|kind| condition(profile, kind));
    let containers = pod.spec.iter().flat_map(|s| &s.containers).map(|c| {
        json!({"name": c.name, "image": c.image, "imageID": "hollow", "ready": true, "started": true, "restartCount": 0,
            "containerID": format!("hollow://{}", clock::uuid()), "state": {"running": {"startedAt": now}}})
    });
    let number = profile.name.rsplit('-').next().and_then(|n| n.parse::<u8>().ok()).unwrap_or(0);
    let ip = format!("10.{number}.{}.{}", clock::random_range(0..255), clock::random_range(1..255));
    json!({"metadata": {"uid": pod.metadata.uid}, "status": {
        "phase": "Running", "hostIP": "192.0.2.1", "podIP": ip, "podIPs": [{"ip": ip}], "startTime": now,
        "conditions": conditions,
        "containerStatuses": containers.collect::<Vec<_>>(),
    }})
}
