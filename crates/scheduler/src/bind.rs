//! The writes that follow a decision: the binding, or the condition that says why there is none, each with its event.
//! Upstream counterpart: DefaultBinder, handleSchedulingFailure.

use std::sync::Arc;

use client::{
    Caches, EventKind, EventRecorder, Key, events,
    rest::{self, DeleteOptions, Resource, Verb},
};
use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::Client;
use serde_json::{Map, Value, json};

use crate::{plugin::Plugin, queue::Waiting};

/// The outcome of a write, as far as the engine must know it.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    NotBound {
        key: Key,
        uid: String,
    },
    /// These victims of a Pod could not be deleted.
    NotPreempted {
        preemptor: Key,
        victims: Vec<Key>,
    },
}

/// What becomes of the Pod's `nominatedNodeName`.
#[derive(Debug, PartialEq, Eq)]
pub enum Nomination {
    Node(Arc<str>),
    None,
    AsBefore,
}

/// Binds a Pod to a node, after the plugins did what has to be done before.
pub async fn bind(
    caches: Caches,
    recorder: EventRecorder,
    plugins: &'static [Plugin],
    pod: Waiting,
    node: Arc<str>,
) -> Outcome {
    for plugin in plugins {
        let Some(pre_bind) = plugin.pre_bind else { continue };
        if let Err(why) = pre_bind(caches.clone(), pod.clone(), node.clone()).await {
            let message = format!("running PreBind plugin \"{}\": {why}", plugin.name);
            tracing::info!(pod = %pod.key, %node, error = message, "binding failed");
            recorder.event(&reference(&pod), EventKind::Warning, "FailedScheduling", &message);
            return Outcome::NotBound { key: pod.key, uid: pod.uid };
        }
    }
    let Key { namespace, name } = &pod.key;
    waypoint::scheduler::bind(name);
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": namespace, "name": name, "uid": pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": &*node},
    });
    let about = reference(&pod);
    match rest::write(caches.client(), &Resource::of::<Pod>(), namespace, name, "binding", &Verb::Create(body)).await {
        Ok(_) => {
            let message = format!("Successfully assigned {namespace}/{name} to {node}");
            recorder.event(&about, EventKind::Normal, "Scheduled", &message);
            Outcome::Done
        }
        Err(error) => {
            let why = rest::message(&error);
            tracing::info!(pod = %pod.key, %node, error = why, "binding failed");
            // A Pod that is gone needs no event.
            if rest::reason(&error) != "NotFound" {
                let message = format!("binding rejected: {why}");
                recorder.event(&about, EventKind::Warning, "FailedScheduling", &message);
            }
            Outcome::NotBound { key: pod.key, uid: pod.uid }
        }
    }
}

fn reference(pod: &Waiting) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.key.namespace.clone()),
        name: Some(pod.key.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Tells the user why a Pod has no node, and for which node room is being made.
pub async fn report(
    client: Client,
    recorder: EventRecorder,
    pod: Arc<Pod>,
    message: String,
    nomination: Nomination,
) -> Outcome {
    recorder.event(&events::reference(&*pod), EventKind::Warning, "FailedScheduling", &message);
    let mut status = Map::new();
    if let Some(condition) = condition(&pod, &message) {
        status.insert("conditions".to_owned(), json!([condition]));
    }
    let held = pod.status.as_ref().and_then(|s| s.nominated_node_name.as_deref());
    match &nomination {
        Nomination::Node(node) if held != Some(node) => {
            _ = status.insert("nominatedNodeName".to_owned(), json!(**node))
        }
        Nomination::None if held.is_some() => _ = status.insert("nominatedNodeName".to_owned(), Value::Null),
        _ => {}
    }
    if !status.is_empty() {
        let patch = Verb::StrategicPatch(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}));
        let key = Key::of(&*pod);
        let written = rest::write(&client, &Resource::of::<Pod>(), &key.namespace, &key.name, "status", &patch).await;
        if let Err(error) = written {
            // The Pod is tried again anyhow, and with it this.
            tracing::debug!(pod = %key, error = rest::message(&error), "cannot write the PodScheduled condition");
        }
    }
    Outcome::Done
}

/// Deletes the victims of a preemption, each with a condition that says why.
pub async fn evict(
    client: Client,
    recorder: EventRecorder,
    scheduler: Arc<str>,
    preemptor: Waiting,
    node: Arc<str>,
    victims: Vec<Arc<Pod>>,
) -> Outcome {
    for (index, victim) in victims.iter().enumerate() {
        match evict_one(&client, &scheduler, victim).await {
            Ok(()) => {
                let message = format!("Preempted by pod {} on node {node}", preemptor.uid);
                recorder.about(&**victim, EventKind::Normal, "Preempted", &message);
            }
            // One that is gone has made room.
            Err(error) if rest::reason(&error) == "NotFound" => {}
            Err(error) => {
                tracing::info!(victim = %Key::of(&**victim), error = rest::message(&error), "cannot preempt");
                let victims = victims[index..].iter().map(|pod| Key::of(&**pod)).collect();
                return Outcome::NotPreempted { preemptor: preemptor.key, victims };
            }
        }
    }
    Outcome::Done
}

async fn evict_one(client: &Client, scheduler: &str, victim: &Pod) -> Result<(), kube::Error> {
    let (resource, key, uid) = (Resource::of::<Pod>(), Key::of(victim), victim.metadata.uid.clone());
    let message = format!("{scheduler}: preempting to accommodate a higher priority pod");
    let now = clock::now_seconds();
    let condition = api::rules::pod::disruption_target(victim, "PreemptionByScheduler", &message, now);
    let patch = Verb::StrategicPatch(json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}}));
    let delete = Verb::Delete(DeleteOptions { uid, ..DeleteOptions::default() });
    for (subresource, verb) in [("status", patch), ("", delete)] {
        rest::write(client, &resource, &key.namespace, &key.name, subresource, &verb).await?;
    }
    Ok(())
}

/// Room that was made for a Pod is given to a more important one.
pub async fn clear_nomination(client: Client, pod: Arc<Pod>) -> Outcome {
    let status = json!({"nominatedNodeName": null});
    let patch = Verb::StrategicPatch(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}));
    let key = Key::of(&*pod);
    let written = rest::write(&client, &Resource::of::<Pod>(), &key.namespace, &key.name, "status", &patch).await;
    if let Err(error) = written {
        // The Pod's next attempt writes it again.
        tracing::debug!(pod = %key, error = rest::message(&error), "cannot clear nominatedNodeName");
    }
    Outcome::Done
}

/// The condition to write; `None` when the Pod says so already.
fn condition(pod: &Pod, message: &str) -> Option<PodCondition> {
    let held = api::rules::pod::condition(pod, "PodScheduled");
    let same = |c: &PodCondition| {
        c.status == "False" && c.reason.as_deref() == Some("Unschedulable") && c.message.as_deref() == Some(message)
    };
    if held.is_some_and(same) {
        return None;
    }
    let since = held.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
    Some(PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "False".to_owned(),
        reason: Some("Unschedulable".to_owned()),
        message: Some(message.to_owned()),
        observed_generation: pod.metadata.generation,
        last_transition_time: since.or_else(|| Some(Time(clock::now_seconds()))),
        ..PodCondition::default()
    })
}
