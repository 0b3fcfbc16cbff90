//! Which Pods are given up first when there are too many.

use std::{cmp::Ordering, collections::BTreeMap};

use api::rules::pod;
use clock::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::node::on_node::node_of;

/// Lets users say which Pods of a set are cheap to lose.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The Pods in the order in which they should go: not yet on a node, not running, not ready, cheap, crowded, young.
pub fn first_to_go<'a>(pods: &[&'a Pod], on_node: &BTreeMap<String, usize>, now: Timestamp) -> Vec<&'a Pod> {
    let mut sorted = pods.to_vec();
    sorted.sort_by(|a, b| compare(a, b, on_node, now));
    sorted
}

/// The Pods that have got least far first: not yet on a node, not running, not ready, young. Neither costs nor nodes count.
pub fn least_advanced_first<'a>(pods: &[&'a Pod]) -> Vec<&'a Pod> {
    let mut sorted = pods.to_vec();
    sorted.sort_by(|a, b| {
        (!node_of(a).is_empty(), phase_rank(a), pod::is_ready(a))
            .cmp(&(!node_of(b).is_empty(), phase_rank(b), pod::is_ready(b)))
            .then_with(|| ready_since(b).cmp(&ready_since(a)))
            .then_with(|| most_restarts(b).cmp(&most_restarts(a)))
            .then_with(|| created(b).cmp(&created(a)))
            .then_with(|| a.metadata.name.cmp(&b.metadata.name))
    });
    sorted
}

fn compare(a: &Pod, b: &Pod, on_node: &BTreeMap<String, usize>, now: Timestamp) -> Ordering {
    let by_number = |of: &dyn Fn(&Pod) -> i64| of(a).cmp(&of(b));
    by_number(&|p| i64::from(!node_of(p).is_empty()))
        .then_with(|| by_number(&phase_rank))
        .then_with(|| by_number(&|p| i64::from(pod::is_ready(p))))
        .then_with(|| by_number(&deletion_cost))
        .then_with(|| by_number(&|p| -(on_node.get(node_of(p)).copied().unwrap_or(0) as i64)))
        .then_with(|| by_age(a, b, ready_since, now))
        .then_with(|| most_restarts(b).cmp(&most_restarts(a)))
        .then_with(|| by_age(a, b, created, now))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|t| t.0)
}

/// The younger first; of those that are about as old, any.
fn by_age(a: &Pod, b: &Pod, since: fn(&Pod) -> Option<Timestamp>, now: Timestamp) -> Ordering {
    if since(a) == since(b) {
        return Ordering::Equal;
    }
    age_class(since(a), now).cmp(&age_class(since(b), now)).then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

fn phase_rank(pod: &Pod) -> i64 {
    match pod::phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    }
}

fn deletion_cost(pod: &Pod) -> i64 {
    let cost = pod.metadata.annotations.as_ref().and_then(|a| a.get(DELETION_COST));
    cost.and_then(|text| text.parse::<i32>().ok()).unwrap_or(0).into()
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    pod::condition(pod, "Ready").filter(|c| c.status == "True")?.last_transition_time.as_ref().map(|t| t.0)
}

/// Ages are compared by their magnitude only (powers of two), so that of Pods of about one age any may go. An unknown
/// age counts as young.
fn age_class(since: Option<Timestamp>, now: Timestamp) -> i64 {
    let seconds = since.map_or(0, |since| now.as_second() - since.as_second());
    if seconds <= 0 { -1 } else { seconds.ilog2().into() }
}

/// The most restarts of any container, and of any sidecar.
fn most_restarts(pod: &Pod) -> (i32, i32) {
    let most =
        |statuses: &mut dyn Iterator<Item = &ContainerStatus>| statuses.map(|c| c.restart_count).max().unwrap_or(0);
    let status = pod.status.as_ref();
    let sidecars = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten()).filter(|c| pod::is_sidecar(c));
    let names: Vec<&str> = sidecars.map(|c| c.name.as_str()).collect();
    let init = status.and_then(|s| s.init_container_statuses.as_ref()).into_iter().flatten();
    (
        most(&mut status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten()),
        most(&mut init.filter(|c| names.contains(&c.name.as_str()))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn cheap_crowded_restarted_and_young_go_first() {
        let make = |name: &str, node: &str, cost: &str, restarts: i32, ready: &str| -> Pod {
            json::from_value(json!({
                "metadata": {"name": name, "uid": name, "annotations": {DELETION_COST: cost}},
                "spec": {"containers": [], "nodeName": node},
                "status": {"phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ready}],
                    "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": restarts}]},
            }))
            .unwrap()
        };
        let (old, young) = ("2026-01-01T00:00:00Z", "2026-01-01T23:00:00Z");
        let pods = [
            make("plain", "n1", "0", 0, old),
            make("restarted", "n1", "0", 3, old),
            make("young", "n1", "0", 0, young),
            make("crowded", "n2", "0", 0, old),
            make("cheap", "n1", "-5", 0, old),
        ];
        let on_node = BTreeMap::from([("n1".to_owned(), 1), ("n2".to_owned(), 2)]);
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let order: Vec<_> = first_to_go(&pods.iter().collect::<Vec<_>>(), &on_node, now)
            .iter()
            .map(|p| p.metadata.name.clone().unwrap())
            .collect();
        assert_eq!(order, ["cheap", "crowded", "young", "restarted", "plain"]);
    }

    #[test]
    fn of_about_the_same_age_any_may_go_and_sidecars_count_last() {
        let make = |name: &str, ready: &str, restarts: (i32, i32)| -> Pod {
            let status = |name: &str, restarts: i32| json!([{"name": name, "image": "", "imageID": "", "ready": true, "restartCount": restarts}]);
            json::from_value(json!({
                "metadata": {"name": name, "uid": name},
                "spec": {"containers": [], "initContainers": [{"name": "s", "restartPolicy": "Always"}], "nodeName": "n"},
                "status": {"phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ready}],
                    "containerStatuses": status("c", restarts.0), "initContainerStatuses": status("s", restarts.1)},
            }))
            .unwrap()
        };
        let (one, other) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z");
        let first = |a: Pod, b: Pod| {
            let now = "2026-01-02T00:00:00Z".parse().unwrap();
            first_to_go(&[&a, &b], &BTreeMap::new(), now)[0].metadata.name.clone().unwrap()
        };
        assert_eq!(first(make("b", one, (9, 0)), make("a", other, (0, 0))), "a", "restarts do not matter then");
        assert_eq!(first(make("b", one, (9, 0)), make("a", one, (0, 9))), "b");
        assert_eq!(first(make("b", one, (1, 2)), make("a", one, (1, 1))), "b");
    }
}
