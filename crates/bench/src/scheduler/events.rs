//! The cases about events: Pods wait that one plugin turns away, and event after event lets some of them in. The time of an
//! event is the time that all those take that it wakes.

use client::Key;
use json::json;
use k8s_openapi::api::core::v1::Pod;

use super::{
    cluster::{Cluster, MEASURED, Run, cpu_seconds},
    objects,
    table::Workload,
};

const NAMESPACE: &str = "events";

fn named(name: &str, more: &json::Value) -> Pod {
    let mut pod = json::to_value(objects::named(&objects::pod("light-pod", NAMESPACE), name.to_owned()))
        .expect("a Pod is plain data");
    for (field, value) in more.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    json::from_value(pod).expect("fields of a Pod's spec")
}

fn requesting(cpu: &str) -> json::Value {
    json!({"containers": [{"name": "pause", "resources": {"requests": {"cpu": cpu}}}]})
}

/// An event with its number.
type Event = fn(&mut Cluster, usize);

/// The state before, a Pod that waits, the number of events, and what each event is.
fn case(cluster: &mut Cluster, workload: &Workload) -> (json::Value, usize, Event) {
    let nodes = workload.nodes;
    match workload.case.as_str() {
        "EventHandlingPodDelete" => {
            (0..nodes).for_each(|i| cluster.set_node(&objects::node(&format!("node-{i}"), None)));
            let blockers = (0..10 * nodes).map(|i| named(&format!("blocker-{i}"), &requesting("400m")));
            cluster.settle(blockers);
            (requesting("400m"), 10 * nodes, |cluster, i| {
                cluster.remove(&Key::new(NAMESPACE, format!("blocker-{i}")));
            })
        }
        "EventHandlingPodUpdate" => {
            let mut node = objects::node("node", None);
            objects::taint(&mut node, true);
            objects::offer(&mut node, "pods", "90000");
            cluster.set_node(&node);
            (json!({}), workload.measured, |cluster, i| {
                let tolerations = json!([{"key": "foo", "operator": "Exists"}]);
                let tolerate = |pod: &mut Pod| {
                    let spec = pod.spec.get_or_insert_default();
                    spec.tolerations = json::from_value(tolerations.clone()).ok();
                };
                cluster.change(&Key::new(NAMESPACE, format!("{MEASURED}-{i}")), tolerate);
            })
        }
        "EventHandlingNodeAdd" => {
            cluster.set_node(&objects::node("other", None));
            (json!({"nodeSelector": {objects::ZONE: "zone1"}}), nodes, |cluster, i| {
                cluster.set_node(&objects::node(&format!("node-{i}"), Some("zone1")));
            })
        }
        "EventHandlingPodAdd" => {
            for i in 0..nodes {
                let mut node = objects::node(&format!("node-{i}"), None);
                objects::offer(&mut node, "pods", "90000");
                cluster.set_node(&node);
            }
            let term =
                json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"wanted": "yes"}}}]);
            let near = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}});
            (json!({"affinity": near}), 1, |cluster, _| {
                let mut pod = named("wanted", &json!({}));
                pod.metadata.labels = Some([("wanted".to_owned(), "yes".to_owned())].into());
                cluster.add(pod);
            })
        }
        "EventHandlingNodeUpdate" => {
            for i in 0..nodes {
                let mut node = objects::node(&format!("node-{i}"), None);
                objects::taint(&mut node, true);
                cluster.set_node(&node);
            }
            (json!({}), nodes, |cluster, i| cluster.set_node(&objects::node(&format!("node-{i}"), None)))
        }
        other => panic!("nothing is known of {other}"),
    }
}

pub fn run(cluster: &mut Cluster, workload: &Workload) -> Run {
    let (waiting, events, event) = case(cluster, workload);
    cluster.settle((0..workload.measured).map(|i| named(&format!("{MEASURED}-{i}"), &waiting)));
    let (begun, mut placed) = (cpu_seconds(), 0);
    for i in 0..events {
        event(cluster, i);
        placed += cluster.drain();
    }
    Run { seconds: cpu_seconds() - begun, placed, left: workload.measured - placed }
}
