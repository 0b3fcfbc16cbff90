//! Pod GC: deletes Pods that nobody else would: of nodes that are gone, ended ones beyond a number, and those that were
//! deleted before they got a node.
//! Reads: Pod, Node. Writes: Pod (delete), Pod/status.
//! Upstream counterpart: pkg/controller/podgc.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::rules::pod;
use client::{Change, Key, rest::DeleteOptions};
use clock::Timestamp;
use controller::{Controller, Counted, Listers, Plan, Watches, Write};
use json::json;
use k8s_openapi::api::core::v1::{Node, Pod};
use meter::{Metric, Metrics};
use parking_lot::Mutex;

use crate::node::{
    conditions,
    on_node::{self, node_of},
};

pub struct PodGarbage {
    /// How many ended Pods are kept; 0 keeps all.
    pub keep: usize,
    /// Since when each node is missing that Pods still name.
    missing: Mutex<BTreeMap<String, Timestamp>>,
}

impl PodGarbage {
    pub fn new(keep: usize) -> Self {
        PodGarbage { keep, missing: Mutex::default() }
    }

    /// How long the node has been missing, in seconds; `None` while it is there.
    fn missing_for(&self, node: &str, exists: bool, now: Timestamp) -> Option<i64> {
        let mut missing = self.missing.lock();
        if exists {
            missing.remove(node);
            return None;
        }
        let since = missing.entry(node.to_owned()).or_insert(now);
        Some(now.as_second() - since.as_second())
    }
}

/// How long a node must be gone before its Pods are: it may only be registering anew.
const QUARANTINE: Duration = Duration::from_secs(40);

const ENDED: &str = "pod gc: ended";

/// Why a Pod is deleted, as the metrics say it.
const TERMINATED: &str = "terminated";
const OUT_OF_SERVICE: &str = "out-of-service";
const ORPHANED: &str = "orphaned";
const UNSCHEDULED: &str = "unscheduled";

static DELETED: Metric = Metric::counter(
    "pod_gc_collector_force_delete_pods_total",
    "[ALPHA] Number of pods that are being forcefully deleted since the Pod GC Controller started.",
);
static FAILED: Metric = Metric::counter(
    "pod_gc_collector_force_delete_pod_errors_total",
    "[ALPHA] Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.",
);
static METRICS: Metrics = Metrics::new();

/// Counts a deletion, of a namespace and for a reason.
fn count([namespace, reason]: &[String; 2], failed: bool) {
    let labels = &[("namespace", namespace.as_str()), ("reason", reason.as_str())];
    METRICS.count(&DELETED, labels);
    if failed {
        METRICS.count(&FAILED, labels);
    }
}

/// The lines of the page of metrics.
pub fn metrics() -> String {
    METRICS.render()
}

pub struct Observed {
    /// For how many seconds the Pod's node has been missing.
    node_missing: Option<i64>,
    node_out_of_service: bool,
    /// Among the oldest of too many ended Pods.
    surplus: bool,
}

impl Controller for PodGarbage {
    const NAME: &'static str = "pod-garbage-collector-controller";
    type Object = Pod;
    type Observed = Observed;

    /// A Pod that only waits for a node is none of the garbage.
    fn concerns(change: &Change<Pod>) -> bool {
        fn decisive(pod: &Option<Arc<Pod>>) -> Option<(bool, bool, &str)> {
            let pod = pod.as_ref()?;
            let decisive = (pod::is_terminal(pod), pod.metadata.deletion_timestamp.is_some(), node_of(pod));
            (decisive != (false, false, "")).then_some(decisive)
        }
        change.new.is_some() && decisive(&change.old) != decisive(&change.new)
    }

    fn watches(&self, watches: &mut Watches<Pod>) {
        let pods = watches.caches().of::<Pod>();
        on_node::index(&pods);
        pods.add_index(ENDED, |pod| pod::is_terminal(pod).then(String::new).into_iter().collect());
        watches.changed::<Node>(|change, caches| {
            let out = |node: &Option<Arc<Node>>| node.as_ref().is_some_and(|n| is_given_up(n));
            let counts = change.new.is_none() || out(&change.new) != out(&change.old);
            if counts { on_node::keys(caches, &change.key.name) } else { Vec::new() }
        });
    }

    fn observe(&self, pod: &Pod, listers: &Listers) -> Observed {
        let node = listers.caches.of::<Node>().get(&Key::new("", node_of(pod)));
        let surplus = self.keep > 0 && pod::is_terminal(pod) && {
            let mut ended = listers.caches.of::<Pod>().by_index(ENDED, "");
            let surplus = ended.len().saturating_sub(self.keep);
            if surplus > 0 {
                ended.sort_by_key(|p| {
                    (!is_evicted(p), p.metadata.creation_timestamp.as_ref().map(|t| t.0), Key::of(&**p))
                });
            }
            ended.iter().take(surplus).any(|p| p.metadata.uid == pod.metadata.uid)
        };
        Observed {
            node_missing: self.missing_for(node_of(pod), node.is_some(), clock::now_seconds()),
            node_out_of_service: node.is_some_and(|n| is_given_up(&n)),
            surplus,
        }
    }

    fn plan(&self, pod: &Pod, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let node = node_of(pod);
        let deleting = pod.metadata.deletion_timestamp.as_ref();
        if node.is_empty() {
            if deleting.is_some() || observed.surplus {
                let reason = if observed.surplus { TERMINATED } else { UNSCHEDULED };
                end(&mut plan, pod, reason, None, now);
            }
        } else if observed.surplus {
            end(&mut plan, pod, TERMINATED, None, now);
        } else if let Some(missing) = observed.node_missing {
            let left = QUARANTINE.saturating_sub(Duration::from_secs(missing.max(0) as u64));
            if left.is_zero() {
                end(&mut plan, pod, ORPHANED, Some(("DeletionByPodGC", "PodGC: node no longer exists")), now);
            } else {
                plan.again_after(left);
            }
        } else if observed.node_out_of_service && deleting.is_some() {
            end(&mut plan, pod, OUT_OF_SERVICE, None, now);
        }
        plan
    }
}

/// An administrator says of a node that is not ready that it will not come back by itself.
fn is_given_up(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    conditions::ready(node) != Some("True") && taints.iter().any(|t| t.key == "node.kubernetes.io/out-of-service")
}

/// Pods that were evicted tell least, so they go before others that ended.
fn is_evicted(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    pod::phase(pod) == "Failed" && status.and_then(|s| s.reason.as_deref()) == Some("Evicted")
}

/// Deletes at once; a Pod that had not ended is marked as failed first, so that nobody takes it for a success.
fn end(plan: &mut Plan, pod: &Pod, reason: &'static str, disruption: Option<(&str, &str)>, now: Timestamp) {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    plan.counted = Some(Counted { of: [namespace, reason.to_owned()], count });
    if !pod::is_terminal(pod) {
        let mut status: BTreeMap<&str, json::Value> = BTreeMap::from([("phase", "Failed".into())]);
        if let Some((reason, message)) = disruption {
            status.insert("conditions", json!([pod::disruption_target(pod, reason, message, now)]));
        }
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
        plan.step(Write::strategic_patch(pod, "status", patch).tolerate(&["NotFound"]));
    }
    plan.step(Write::delete_with(pod, DeleteOptions { grace_seconds: Some(0), ..Default::default() }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_nobody_else_would_delete() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let check = |text: &str, expected: &str, reason: &str| {
            let has = |word: &str| text.split(' ').any(|w| w == word);
            let pod: Pod = json::from_value(json!({
                "metadata": {"name": "p", "uid": "u", "deletionTimestamp": has("deleting").then_some("2026-01-01T00:00:00Z"),
                    "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"containers": [], "nodeName": has("bound").then_some("n")},
                "status": {"phase": if has("ended") { "Succeeded" } else { "Running" }},
            }))
            .unwrap();
            let observed = Observed {
                node_missing: (!has("node")).then_some(if has("lately") { 39 } else { 40 }),
                node_out_of_service: has("out"),
                surplus: has("surplus"),
            };
            let plan = PodGarbage::new(1).plan(&pod, &observed, now);
            assert_eq!(plan.to_string().replace(" p, ", ", ").replace(" p", ""), expected, "{text}");
            let counted = plan.counted.map(|counted| counted.of).unwrap_or_default();
            assert_eq!(counted, ["", reason], "{text}");
        };
        let both = "patchods/status, deleteods";
        check("bound node", "", "");
        check("bound", both, ORPHANED);
        check("bound lately", "", "");
        check("bound ended", "deleteods", ORPHANED);
        check("deleting", both, UNSCHEDULED);
        check("", "", "");
        check("ended surplus bound node", "deleteods", TERMINATED);
        check("bound node out deleting", both, OUT_OF_SERVICE);
        check("bound node deleting", "", "");
        check("ended surplus", "deleteods", TERMINATED);
        check("ended surplus bound lately", "deleteods", TERMINATED);
    }

    #[test]
    fn a_pod_that_waits_for_a_node_is_not_looked_at() {
        let pod = |text: &str| {
            let has = |word: &str| text.split(' ').any(|w| w == word);
            let pod = json!({
                "metadata": {"name": "p", "deletionTimestamp": has("deleting").then_some("2026-01-01T00:00:00Z")},
                "spec": {"containers": [], "nodeName": has("bound").then_some("n")},
                "status": {"phase": if has("ended") { "Failed" } else { "Pending" }},
            });
            has("pod").then(|| Arc::new(json::from_value::<Pod>(pod).unwrap()))
        };
        let check = |old: &str, new: &str, expected: bool| {
            let change = Change { key: Key::new("", "p"), old: pod(old), new: pod(new) };
            assert_eq!(PodGarbage::concerns(&change), expected, "{old} to {new}");
        };
        check("none", "pod", false);
        check("pod", "pod", false);
        check("pod bound", "none", false);
        for other in ["pod bound", "pod deleting", "pod ended"] {
            check("none", other, true);
            check("pod", other, true);
            check(other, "pod", true);
            check(other, other, false);
        }
    }

    #[test]
    fn deletions_are_counted() {
        count(&["metered".to_owned(), ORPHANED.to_owned()], false);
        count(&["metered".to_owned(), ORPHANED.to_owned()], true);
        let page = metrics();
        for (name, times) in [("pods", 2), ("pod_errors", 1)] {
            let line = format!(
                "pod_gc_collector_force_delete_{name}_total{{namespace=\"metered\",reason=\"orphaned\"}} {times}\n"
            );
            assert!(page.contains(&line), "{page}");
        }
    }

    #[test]
    fn a_node_is_given_up_only_while_it_is_not_ready() {
        let check = |ready: &str, taint: &str, expected: bool| {
            let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": taint, "effect": "NoExecute"}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            assert_eq!(is_given_up(&json::from_value(node).unwrap()), expected, "{ready} {taint}");
        };
        check("Unknown", "node.kubernetes.io/out-of-service", true);
        check("True", "node.kubernetes.io/out-of-service", false);
        check("Unknown", "node.kubernetes.io/unreachable", false);
    }
}
