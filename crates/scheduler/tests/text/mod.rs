//! Nodes and Pods as text, for tables of the engine's decisions.
//!
//! A node is `name [cpu=4] [pods=110] [taint=key:effect] [label=key:value] [cordoned]`, a Pod is
//! `name [cpu=1] [on=node] [port=80] [label=key:value] …` or a JSON spec.

use clock::Instant;
use json::{Value, json};
use k8s_openapi::api::core::v1::{Node, Pod};
use scheduler::{Decision, Engine, Settings, failure::Preemption};

fn words(text: &str) -> (&str, Vec<(&str, &str)>) {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap();
    (name, words.map(|w| w.split_once('=').unwrap_or((w, ""))).collect())
}

pub fn node(text: &str) -> Node {
    let (name, words) = words(text);
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": []},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    });
    for (word, value) in words {
        let (key, second) = value.split_once(':').unwrap_or((value, ""));
        match word {
            "cordoned" => node["spec"]["unschedulable"] = true.into(),
            "taint" => {
                node["spec"]["taints"].as_array_mut().unwrap().push(json!({"key": key, "value": "", "effect": second}))
            }
            "label" => node["metadata"]["labels"][key] = second.into(),
            resource => node["status"]["allocatable"][resource] = value.into(),
        }
    }
    json::from_value(node).unwrap()
}

pub fn pod_with(text: &str, more: Value) -> Pod {
    let (name, words) = words(text);
    let mut container = json!({"name": "c", "image": "image", "resources": {"requests": {}}});
    let mut pod = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "labels": {}}, "spec": {}});
    for (word, value) in words {
        let (key, second) = value.split_once(':').unwrap_or((value, ""));
        match word {
            "on" => pod["spec"]["nodeName"] = value.into(),
            "port" => container["ports"] = json!([{"hostPort": value.parse::<i32>().unwrap(), "containerPort": 1}]),
            "label" => pod["metadata"]["labels"][key] = second.into(),
            "priority" => pod["spec"]["priority"] = value.parse::<i32>().unwrap().into(),
            "tolerates" => pod["spec"]["tolerations"] = json!([{"key": value, "operator": "Exists"}]),
            resource => container["resources"]["requests"][resource] = value.into(),
        }
    }
    pod["spec"]["containers"] = json!([container]);
    for (field, value) in more.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    json::from_value(pod).unwrap()
}

pub fn pod(text: &str) -> Pod {
    pod_with(text, Value::Null)
}

pub fn engine(nodes: &[&str], pods: &[Pod]) -> Engine {
    let (mut engine, now) = (Engine::new(Settings::default()), Instant::now());
    nodes.iter().for_each(|n| engine.set_node(&node(n), now));
    pods.iter().for_each(|p| engine.set_pod(p, now));
    engine
}

/// The node of the next Pod, or why there is none (without the part about preemption).
pub fn next(engine: &mut Engine) -> String {
    match engine.schedule_one(Instant::now()) {
        None => "nothing to do".to_owned(),
        Some(Decision::Waits { pod }) => format!("{} waits", pod.key.name),
        Some(Decision::Consult(question)) => format!("ask about {:?}", question.about),
        Some(Decision::Failed { why, .. }) => why,
        Some(Decision::Bind { node, .. }) => node.to_string(),
        Some(Decision::Unschedulable { preemption: Preemption::Victims(victims), .. }) => {
            let node = victims.node;
            let names: Vec<String> = victims.pods.iter().map(|key| key.name.clone()).collect();
            format!("{} must leave {node}", names.join(" "))
        }
        Some(Decision::Unschedulable { failure, preemption, .. }) => {
            let message = failure.message(&preemption);
            let end = [" no new claims", " still not schedulable"].iter().find_map(|rest| message.find(rest));
            message[..end.unwrap_or(message.len())].to_owned()
        }
    }
}

pub fn check(nodes: &[&str], placed: &[Pod], waiting: Pod, expected: &str) {
    let mut engine = engine(nodes, placed);
    engine.set_pod(&waiting, Instant::now());
    assert_eq!(next(&mut engine), expected, "{nodes:?} {waiting:?}");
}
