//! Taint eviction: deletes Pods from nodes whose NoExecute taints they do not tolerate, or no longer.
//! Reads: Pod, Node. Writes: Pod (delete), Pod/status (DisruptionTarget).
//! Upstream counterpart: pkg/controller/tainteviction.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::rules::{
    pod,
    taint::{NO_EXECUTE, tolerates},
};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use json::json;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use parking_lot::Mutex;

use crate::node::on_node::{self, node_of};

#[derive(Default)]
pub struct TaintEviction {
    /// Since when each Pod is on a node that it tolerates only for a while.
    since: Mutex<HashMap<Key, Timestamp>>,
}

pub struct Observed {
    tolerance: Tolerance,
    /// Since when, when it is for a while.
    since: Option<Timestamp>,
    /// The Pod was to go some time, and may stay now.
    reprieved: bool,
}

fn no_execute(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|t| t.effect == NO_EXECUTE).cloned().collect()
}

impl Controller for TaintEviction {
    const NAME: &'static str = "taint-eviction-controller";
    type Object = Pod;
    type Observed = Observed;

    /// No taint is about a Pod that waits for a node.
    fn concerns(change: &Change<Pod>) -> bool {
        fn decisive(pod: &Option<Arc<Pod>>) -> Option<(&str, &Option<Vec<Toleration>>)> {
            let pod = pod.as_ref()?;
            Some((node_of(pod), &pod.spec.as_ref()?.tolerations)).filter(|(node, _)| !node.is_empty())
        }
        decisive(&change.old) != decisive(&change.new)
    }

    fn watches(&self, watches: &mut Watches<Pod>) {
        on_node::index(&watches.caches().of());
        watches.changed::<Node>(|change, caches| {
            let taints = |node: &Option<Arc<Node>>| node.as_ref().map(|n| no_execute(n)).unwrap_or_default();
            if taints(&change.old) == taints(&change.new) {
                return Vec::new();
            }
            on_node::keys(caches, &change.key.name)
        });
    }

    fn observe(&self, pod: &Pod, listers: &Listers) -> Observed {
        let node = listers.caches.of::<Node>().get(&Key::new("", node_of(pod)));
        let taints = node.map(|n| no_execute(&n)).unwrap_or_default();
        let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        let tolerance = tolerated_for(&taints, tolerations);
        let (mut all, key) = (self.since.lock(), Key::of(pod));
        match tolerance {
            Tolerance::Forever => Observed { tolerance, since: None, reprieved: all.remove(&key).is_some() },
            Tolerance::Seconds(_) => {
                let since = Some(*all.entry(key).or_insert_with(clock::now_seconds));
                Observed { tolerance, since, reprieved: false }
            }
        }
    }

    fn plan(&self, pod: &Pod, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if pod.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        match observed.tolerance {
            Tolerance::Forever if observed.reprieved => {
                plan.tell(Note::normal("TaintManagerEviction", format!("Cancelling deletion of Pod {}", Key::of(pod))));
            }
            Tolerance::Forever => {}
            Tolerance::Seconds(seconds) => {
                let passed = observed.since.map_or(0, |since| now.as_second() - since.as_second());
                if passed < seconds {
                    plan.again_after(Duration::from_secs((seconds - passed) as u64));
                } else {
                    evict(&mut plan, pod, now);
                }
            }
        }
        plan
    }

    fn plan_gone(&self, key: &Key, _listers: &Listers, _: Timestamp) -> Plan {
        self.since.lock().remove(key);
        Plan::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Tolerance {
    Forever,
    Seconds(i64),
}

/// How long a Pod may stay with these taints: not at all if one is not tolerated, else as long as the shortest of the
/// tolerations that apply, which is the first one for each taint.
fn tolerated_for(taints: &[Taint], tolerations: &[Toleration]) -> Tolerance {
    let mut shortest = Tolerance::Forever;
    for taint in taints {
        let Some(first) = tolerations.iter().find(|t| tolerates(t, taint)) else { return Tolerance::Seconds(0) };
        if let Some(seconds) = first.toleration_seconds {
            shortest = match shortest {
                Tolerance::Seconds(other) if other <= seconds => Tolerance::Seconds(other),
                _ => Tolerance::Seconds(seconds.max(0)),
            };
        }
    }
    shortest
}

fn evict(plan: &mut Plan, pod: &Pod, now: Timestamp) {
    let meta = &pod.metadata;
    plan.tell(Note::normal("TaintManagerEviction", format!("Marking for deletion Pod {}", Key::of(pod))));
    let message = "Taint manager: deleting due to NoExecute taint";
    let condition = pod::disruption_target(pod, "DeletionByTaintManager", message, now);
    let patch = json!({"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}});
    plan.step(Write::strategic_patch(pod, "status", patch).tolerate(&["NotFound"]));
    plan.step(Write::delete(pod));
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller::Step;

    #[test]
    fn the_shortest_toleration_counts() {
        let taint = |key: &str| Taint { key: key.into(), effect: NO_EXECUTE.into(), ..Default::default() };
        let toleration = |key: &str, seconds: Option<i64>| Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Default::default()
        };
        let check = |tolerations: &[Toleration], expected| {
            assert_eq!(tolerated_for(&[taint("a"), taint("b")], tolerations), expected);
        };
        check(&[], Tolerance::Seconds(0));
        check(&[toleration("a", Some(300))], Tolerance::Seconds(0));
        check(&[toleration("a", None), toleration("b", None)], Tolerance::Forever);
        check(&[toleration("a", Some(300)), toleration("b", Some(30))], Tolerance::Seconds(30));
        check(&[toleration("a", Some(-1)), toleration("b", None)], Tolerance::Seconds(0));
        let first = [toleration("a", None), toleration("b", Some(60)), toleration("a", Some(5)), toleration("b", None)];
        check(&first, Tolerance::Seconds(60));
    }

    #[test]
    fn a_pod_that_waits_for_a_node_is_not_looked_at() {
        let pod = |node: &str, seconds: i64| {
            let spec = json!({"containers": [], "nodeName": node, "tolerations": [{"tolerationSeconds": seconds}]});
            Some(Arc::new(json::from_value::<Pod>(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()))
        };
        let check = |old: Option<Arc<Pod>>, new: Option<Arc<Pod>>, expected: bool| {
            let change = Change { key: Key::new("", "p"), old, new };
            assert_eq!(TaintEviction::concerns(&change), expected, "{change:?}");
        };
        check(None, pod("", 1), false);
        check(pod("", 1), pod("", 2), false);
        check(pod("", 1), None, false);
        check(pod("", 1), pod("n", 1), true);
        check(None, pod("n", 1), true);
        check(pod("n", 1), pod("n", 1), false);
        check(pod("n", 1), pod("n", 2), true);
        check(pod("n", 1), pod("", 1), true);
        check(pod("n", 1), None, true);
    }

    #[test]
    fn a_pod_is_evicted_when_its_time_is_up() {
        let pod: Pod = json::from_value(json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [], "nodeName": "n"},
        }))
        .unwrap();
        let at = |second: i64| {
            let tolerance = Tolerance::Seconds(300);
            let observed = Observed { tolerance, since: Some(Timestamp::UNIX_EPOCH), reprieved: false };
            let plan = TaintEviction::default().plan(&pod, &observed, Timestamp::from_second(second).unwrap());
            (plan.to_string(), plan.requeue_after)
        };
        assert_eq!(at(100), (String::new(), Some(Duration::from_secs(200))));
        assert_eq!(at(300), ("patch pods/status p, delete pods p".to_owned(), None));
        let stays = Observed { tolerance: Tolerance::Forever, since: None, reprieved: true };
        let plan = TaintEviction::default().plan(&pod, &stays, Timestamp::UNIX_EPOCH);
        let Some(Step::Tell(note)) = plan.steps.first() else { panic!("{plan}") };
        assert_eq!(note.message, "Cancelling deletion of Pod d/p");
    }
}
