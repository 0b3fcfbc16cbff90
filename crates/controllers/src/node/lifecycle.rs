//! Node lifecycle: notices nodes that fall silent, and taints nodes by their conditions.
//! Reads: Node, Lease (kube-node-lease), Pod. Writes: Node/status (conditions), Node (taints), Pod/status (Ready).
//! Upstream counterpart: pkg/controller/nodelifecycle.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::rules::pod;
use client::Key;
use clock::{Instant, Timestamp};
use controller::{Controller, Listers, Note, Plan, Step, Watches, Write};
use json::json;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, ObjectReference, Pod},
};
use parking_lot::Mutex;

use crate::node::{
    conditions, on_node,
    zones::{Evictions, Zone, is_counted, zone_of},
};

/// The namespace of the Leases by which kubelets say that they live.
const LEASES: &str = "kube-node-lease";

/// When a node counts as lost, and how fast lost nodes are emptied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// How long a node may say nothing before it counts as unreachable.
    pub grace: Duration,
    /// How long at first, while it starts.
    pub startup_grace: Duration,
    pub evictions: Evictions,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            grace: Duration::from_secs(50),
            startup_grace: Duration::from_secs(60),
            evictions: Evictions::default(),
        }
    }
}

/// The shortest pause before a node's silence is measured again: its clock may stand.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// When each node was last heard of, by the time that we listened to leases: nodes' clocks may be wrong, and who hears
/// nobody must not call everybody silent.
type Heard = Arc<Mutex<HashMap<String, Silence>>>;

#[derive(Debug, Clone, Copy)]
struct Silence {
    /// The time for which this process had listened when the node was heard of, or first seen.
    since: Duration,
    /// How long it had been silent at that time.
    before: Duration,
}

impl Silence {
    fn lasts(&self, listened: Duration) -> Duration {
        self.before + listened.saturating_sub(self.since)
    }
}

#[derive(Default)]
pub struct NodeLifecycle {
    limits: Limits,
    heard: Heard,
    /// When a node of each zone was last given a taint that evicts.
    last_eviction: Mutex<HashMap<Zone, Instant>>,
    /// The nodes that were told of, each with its UID.
    registered: Mutex<HashMap<String, Option<String>>>,
}

pub struct Observed {
    silent_for: Duration,
    /// First seen by this process.
    is_new: bool,
    /// Whether Pods may be driven off this node now.
    evict: Evict,
    /// The Pods of a node that is unreachable, which still say that they are ready.
    ready_pods: Vec<Arc<Pod>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Evict {
    Yes,
    /// Not a single node is ready: more likely we are cut off than all of them broken.
    No,
    /// Another node was tainted just now, or (without a time) much of a small zone is broken: rather the network is.
    Later(Option<Duration>),
}

/// How long a node has been silent that is seen for the first time: one that was never heard of since it was made, by the
/// server's clock; one that said something before this process began, since now.
fn silent_before(node: &Node, today: Timestamp) -> Duration {
    let made = node.metadata.creation_timestamp.as_ref().filter(|_| conditions::ready(node).is_none());
    let age = made.and_then(|made| u64::try_from(today.as_second() - made.0.as_second()).ok());
    Duration::from_secs(age.unwrap_or(0))
}

impl Controller for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle-controller";
    type Object = Node;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<Node>) {
        on_node::index(&watches.caches().of());
        let (by_lease, by_status) = (self.heard.clone(), self.heard.clone());
        let leases = watches.caches().of::<Lease>();
        let heard_now = move || Silence { since: leases.listened(), before: Duration::ZERO };
        let heard_too = heard_now.clone();
        watches
            .changed::<Lease>(move |change, _| {
                let renewed =
                    |lease: &Option<Arc<Lease>>| lease.as_ref().and_then(|l| l.spec.as_ref()?.renew_time.clone());
                // A lease that goes says nothing: it goes with its node.
                let is_news = change.new.is_some() && renewed(&change.new) != renewed(&change.old);
                if change.key.namespace == LEASES && is_news {
                    by_lease.lock().insert(change.key.name.clone(), heard_now());
                }
                Vec::new()
            })
            .changed::<Node>(move |change, caches| {
                let beat = |node: &Option<Arc<Node>>| {
                    node.as_ref().and_then(|n| conditions::condition(n, "Ready")?.last_heartbeat_time.clone())
                };
                if change.new.is_none() || change.old.is_none() {
                    // Nor is a node that comes as silent as one was that had its name.
                    by_status.lock().remove(&change.key.name);
                } else if beat(&change.new) != beat(&change.old) {
                    by_status.lock().insert(change.key.name.clone(), heard_too());
                }
                // Whether any node is ready decides about all of them.
                let ready =
                    |node: &Option<Arc<Node>>| node.as_ref().is_some_and(|n| conditions::ready(n) == Some("True"));
                if ready(&change.old) == ready(&change.new) {
                    return Vec::new();
                }
                caches.of::<Node>().list().iter().map(|n| Key::of(&**n)).collect()
            })
            .reads::<Pod>();
    }

    fn observe(&self, node: &Node, listers: &Listers) -> Observed {
        let name = node.metadata.name.clone().unwrap_or_default();
        let now = Instant::now();
        let mut heard = self.heard.lock();
        let is_new = self.registered.lock().insert(name.clone(), node.metadata.uid.clone()).is_none();
        let listened = listers.caches.of::<Lease>().listened();
        let silence = heard
            .entry(name.clone())
            .or_insert_with(|| Silence { since: listened, before: silent_before(node, clock::now_seconds()) });
        let silent_for = silence.lasts(listened);
        drop(heard);
        let unreachable = conditions::ready(node) == Some("Unknown");
        let mut ready_pods = if unreachable { on_node::pods(listers.caches, &name) } else { Vec::new() };
        ready_pods.retain(|p| pod::is_ready(p));
        Observed { silent_for, is_new, evict: self.may_evict(node, listers, now), ready_pods }
    }

    fn plan(&self, node: &Node, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let name = node.metadata.name.as_deref().unwrap_or("");
        if observed.is_new {
            let message = format!("Node {name} event: Registered Node {name} in Controller");
            plan.tell(Note::normal("RegisteredNode", message));
        }
        let started = conditions::ready(node).is_some();
        let grace = if started { self.limits.grace } else { self.limits.startup_grace };
        if observed.silent_for < grace {
            plan.again_after((grace - observed.silent_for).max(LOOK_AGAIN));
        } else if let Some(conditions) = conditions::silenced(node, now) {
            // The taints follow when this has come back through the cache.
            let was_ready = conditions::ready(node) == Some("True");
            let mut new = node.clone();
            new.status.get_or_insert_default().conditions = Some(conditions);
            plan.set_status(node, &new);
            if was_ready {
                plan.tell(Note::normal("NodeNotReady", format!("Node {name} status is now: NodeNotReady")));
            }
            return plan;
        }
        if let Some(labels) = old_labels(node) {
            plan.step(Write::strategic_patch(node, "", json!({"metadata": {"labels": labels}})));
        }
        let taints = conditions::taints(node, observed.evict == Evict::Yes, now);
        if node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default() != taints.as_slice() {
            let mut new = node.clone();
            new.spec.get_or_insert_default().taints = (!taints.is_empty()).then_some(taints);
            plan.step(Write::update(&new));
        }
        if let Evict::Later(Some(wait)) = observed.evict {
            plan.again_after(wait);
        }
        if !observed.ready_pods.is_empty() {
            plan.steps.push(Step::All(observed.ready_pods.iter().map(|pod| not_ready(pod, now)).collect()));
        }
        plan
    }

    fn plan_gone(&self, key: &Key, _listers: &Listers, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        self.heard.lock().remove(&key.name);
        if let Some(uid) = self.registered.lock().remove(&key.name) {
            let name = &key.name;
            let node = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(name.clone()),
                uid,
                ..ObjectReference::default()
            };
            let message = format!("Node {name} event: Removing Node {name} from Controller");
            plan.tell(Note::normal("RemovingNode", message).about(node));
        }
        plan
    }
}

/// The old names of labels that are missing or say something else than the new ones.
fn old_labels(node: &Node) -> Option<json::Map> {
    let labels = node.metadata.labels.as_ref()?;
    let mut old = json::Map::new();
    for part in ["os", "arch"] {
        let name = format!("beta.kubernetes.io/{part}");
        if let Some(value) =
            labels.get(&format!("kubernetes.io/{part}")).filter(|value| labels.get(&name) != Some(value))
        {
            old.insert(name, json!(value));
        }
    }
    (!old.is_empty()).then_some(old)
}

/// A Pod of a node that nobody hears of must not get traffic.
fn not_ready(pod: &Pod, now: Timestamp) -> Write {
    let since = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let generation = pod.metadata.generation;
    let condition =
        json!({"type": "Ready", "status": "False", "lastTransitionTime": since, "observedGeneration": generation});
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
    Write::strategic_patch(pod, "status", patch)
        .tolerate(&["NotFound", "Conflict"])
        .on_success(Note::warning("NodeNotReady", "Node is not ready").about(client::events::reference(pod)))
}

impl NodeLifecycle {
    pub fn new(limits: Limits) -> Self {
        NodeLifecycle { limits, ..NodeLifecycle::default() }
    }

    fn may_evict(&self, node: &Node, listers: &Listers, now: Instant) -> Evict {
        let wanted = matches!(conditions::ready(node), Some("False" | "Unknown"));
        if !wanted {
            return Evict::No;
        }
        let mut nodes = listers.caches.of::<Node>().list();
        nodes.retain(|n| is_counted(n));
        let is_ready = |node: &&Arc<Node>| conditions::ready(node) == Some("True");
        if !nodes.is_empty() && !nodes.iter().any(|n| is_ready(&n)) {
            return Evict::No;
        }
        let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
        let tainted = taints
            .iter()
            .any(|t| t.effect == "NoExecute" && matches!(&*t.key, conditions::NOT_READY | conditions::UNREACHABLE));
        if tainted {
            return Evict::Yes;
        }
        let zone = zone_of(node);
        let (ready, not_ready): (Vec<_>, Vec<_>) = nodes.iter().filter(|n| zone_of(n) == zone).partition(is_ready);
        let interval = self.limits.evictions.interval(ready.len(), not_ready.len());
        let Some(interval) = interval else { return Evict::Later(None) };
        let mut last = self.last_eviction.lock();
        let since = last.get(&zone).map_or(interval, |at| now.duration_since(*at));
        if since < interval {
            return Evict::Later(Some(interval - since));
        }
        last.insert(zone, now);
        Evict::Yes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ready: Option<&str>, silent: u64, evict: Evict) -> Plan {
        let conditions: Vec<_> = ready.iter().map(|r| json!({"type": "Ready", "status": r})).collect();
        let node: Node = json::from_value(json!({
            "metadata": {"name": "n", "uid": "n"}, "status": {"conditions": conditions},
        }))
        .unwrap();
        let ready_pods = vec![Arc::new(json::from_value(json!({"metadata": {"name": "p"}})).unwrap())];
        let ready_pods = if ready == Some("Unknown") { ready_pods } else { Vec::new() };
        let observed = Observed { silent_for: Duration::from_secs(silent), is_new: false, evict, ready_pods };
        NodeLifecycle::default().plan(&node, &observed, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn silence_makes_a_node_unknown_and_then_tainted() {
        let check = |plan: Plan, expected: &str| assert_eq!(plan.to_string(), expected);
        let waiting = plan(Some("True"), 49, Evict::No);
        assert_eq!((waiting.is_empty(), waiting.requeue_after), (true, Some(Duration::from_secs(1))));
        check(plan(Some("True"), 50, Evict::No), "update nodes/status n");
        check(plan(None, 59, Evict::No), "");
        check(plan(None, 60, Evict::No), "update nodes/status n");
        check(plan(Some("False"), 1, Evict::Yes), "update nodes n");
    }

    #[test]
    fn an_unreachable_node_is_cleared_of_traffic_and_evicted_in_turn() {
        let silent = |evict| {
            let mut plan = plan(Some("Unknown"), 1, evict);
            let taints = plan.writes().next().unwrap().body()["spec"]["taints"].as_array().unwrap().len();
            (taints, plan.writes().count(), plan.requeue_after.take())
        };
        assert_eq!(silent(Evict::Yes), (2, 2, Some(Duration::from_secs(49))));
        assert_eq!(silent(Evict::No).0, 1);
        assert_eq!(silent(Evict::Later(Some(Duration::from_secs(3)))), (1, 2, Some(Duration::from_secs(3))));
    }

    #[test]
    fn labels_have_their_old_names_too() {
        let check = |labels: json::Value, expected: Option<json::Value>| {
            let node: Node = json::from_value(json!({"metadata": {"name": "n", "labels": labels}})).unwrap();
            assert_eq!(old_labels(&node).map(json::Value::Object), expected, "{labels}");
        };
        let (os, old_os) = ("kubernetes.io/os", "beta.kubernetes.io/os");
        check(json!({}), None);
        check(json!({os: "linux"}), Some(json!({old_os: "linux"})));
        check(json!({os: "linux", old_os: "windows"}), Some(json!({old_os: "linux"})));
        check(json!({os: "linux", old_os: "linux"}), None);
        check(json!({old_os: "linux"}), None);
    }

    #[test]
    fn a_node_that_never_spoke_is_silent_since_it_was_made() {
        let check = |ready: Option<&str>, made: i64, expected: u64| {
            let conditions: Vec<_> = ready.iter().map(|r| json!({"type": "Ready", "status": r})).collect();
            let made = Timestamp::from_second(made).unwrap();
            let node: Node = json::from_value(json!({
                "metadata": {"name": "n", "creationTimestamp": made}, "status": {"conditions": conditions},
            }))
            .unwrap();
            let silent = silent_before(&node, Timestamp::from_second(100).unwrap());
            assert_eq!(silent.as_secs(), expected, "{ready:?} {made}");
        };
        check(None, 40, 60);
        check(Some("True"), 40, 0);
        check(None, 140, 0);
    }
}
