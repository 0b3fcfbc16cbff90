//! TTL: tells each node, in an annotation, how long it may keep Secrets and ConfigMaps: longer in larger clusters.
//! Reads: Node. Writes: Node (annotation).
//! Upstream counterpart: pkg/controller/ttl.

use std::sync::Arc;

use client::{Caches, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use json::json;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// The fewest and the most nodes of a step, and its seconds. Steps overlap, so that a cluster at a border stays in one.
const STEPS: &[(usize, usize, u32)] =
    &[(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

#[derive(Default)]
pub struct Ttl {
    step: Arc<Mutex<usize>>,
}

/// The step of a cluster of this size that was in `step`.
fn moved(mut step: usize, nodes: usize) -> usize {
    while nodes > STEPS[step].1 {
        step += 1;
    }
    while nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

/// Notes the number of nodes; true when the seconds changed.
fn note(step: &Mutex<usize>, caches: &Caches) -> bool {
    let mut step = step.lock();
    let new = moved(*step, caches.of::<Node>().len());
    std::mem::replace(&mut *step, new) != new
}

fn annotation(node: &Node) -> Option<&str> {
    node.metadata.annotations.as_ref()?.get(ANNOTATION).map(String::as_str)
}

impl Controller for Ttl {
    const NAME: &'static str = "ttl-controller";
    type Object = Node;
    /// The seconds.
    type Observed = u32;

    fn concerns(change: &client::Change<Node>) -> bool {
        let held = |node: &Option<Arc<Node>>| node.as_ref().map(|node| annotation(node).map(str::to_owned));
        change.new.is_some() && held(&change.old) != held(&change.new)
    }

    fn watches(&self, watches: &mut Watches<Node>) {
        let step = self.step.clone();
        watches.changed::<Node>(move |change, caches| {
            let counts = change.old.is_some() != change.new.is_some();
            if !counts || !note(&step, caches) {
                return Vec::new();
            }
            caches.of::<Node>().list().iter().map(|node| Key::of(&**node)).collect()
        });
    }

    fn observe(&self, _: &Node, listers: &Listers) -> u32 {
        note(&self.step, listers.caches);
        STEPS[*self.step.lock()].2
    }

    fn plan(&self, node: &Node, seconds: &u32, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let seconds = seconds.to_string();
        if annotation(node) != Some(&seconds) {
            let patch = json!({"metadata": {"annotations": {ANNOTATION: seconds}}});
            plan.step(Write::strategic_patch(node, "", patch).tolerate(&["NotFound"]));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_follows_the_size_with_some_inertia() {
        let check =
            |from: usize, nodes: usize, expected: usize| assert_eq!(moved(from, nodes), expected, "{from} {nodes}");
        check(0, 100, 0);
        check(0, 101, 1);
        check(1, 90, 1);
        check(1, 89, 0);
        check(0, 5000, 4);
        check(4, 1800, 4);
        check(4, 10, 0);
    }

    #[test]
    fn only_what_differs_is_written() {
        let check = |held: json::Value, seconds: u32, expected: &str| {
            let node = json!({"metadata": {"name": "n", "annotations": {ANNOTATION: held}}});
            let plan = Ttl::default().plan(&json::from_value(node).unwrap(), &seconds, Timestamp::UNIX_EPOCH);
            assert_eq!(plan.to_string(), expected);
        };
        check(json!("0"), 0, "");
        check(json!("0"), 15, "patch nodes n");
        check(json!(""), 0, "patch nodes n");
    }
}
