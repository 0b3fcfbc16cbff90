//! The writes that follow a decision: the binding, or the condition that says why there is none, each with its event.
//! Upstream counterpart: DefaultBinder, handleSchedulingFailure.

use std::{borrow::Cow, sync::Arc};

use client::{
    Caches, Client, EventKind, Key,
    events::{self, Act, ActRecorder},
    rest::{self, DeleteOptions, Resource, Verb},
};
use json::{Map, Value, json};
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::{
    claims_made::ClaimsMade,
    engine::Preparation,
    extender::Extenders,
    plugin::Preparing,
    queue::{Waiting, reference},
};

/// The outcome of a write, as far as the engine must know it.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Bound {
        key: Key,
        uid: String,
    },
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

/// The change to the Pod's `nominatedNodeName`.
#[derive(Debug, PartialEq, Eq)]
pub enum Nomination {
    Node(Arc<str>),
    None,
    AsBefore,
}

/// Why a Pod has no node, as its condition says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It fits nowhere.
    Unschedulable,
    /// Something failed that should have worked.
    SchedulerError,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Reason::Unschedulable => "Unschedulable",
            Reason::SchedulerError => "SchedulerError",
        }
    }
}

/// A Pod that is to be bound to a node.
pub struct Binding {
    pub prepare: Vec<Preparation>,
    pub pod: Waiting,
    pub node: Arc<str>,
    /// The extender that binds it, by its place in the list.
    pub binder: Option<(Extenders, usize)>,
    pub made: ClaimsMade,
}

/// Binds a Pod to a node, after the plugins did what has to be done before.
pub async fn bind(caches: Caches, recorder: ActRecorder, binding: Binding) -> Outcome {
    let Binding { prepare, pod, node, binder, made } = binding;
    let failed = match prepared((&caches, &recorder, &made), prepare, &pod, &node).await {
        Ok(()) => {
            let elsewhere = match &binder {
                Some((extenders, index)) => extenders.bind(*index, &pod, &node).await,
                None => None,
            };
            match elsewhere {
                Some(Ok(())) => {
                    announce(&recorder, &pod, &node);
                    Ok(())
                }
                Some(Err(why)) => Err(Some(why)),
                None => assigned(&caches, &recorder, &pod, &node).await,
            }
        }
        Err(why) => Err(Some(why)),
    };
    let Err(why) = failed else { return Outcome::Bound { key: pod.key, uid: pod.uid } };
    if let Some(why) = why {
        tracing::info!(pod = %pod.key, %node, error = why, "binding failed");
        let object = caches.of::<Pod>().get(&pod.key).filter(|o| o.metadata.uid.as_deref() == Some(&pod.uid));
        if let Some(object) = object {
            let said = (Reason::SchedulerError, why);
            report(caches.client().clone(), recorder, object, said, Nomination::None).await;
        }
    }
    Outcome::NotBound { key: pod.key, uid: pod.uid }
}

/// Lets the plugins act before the binding.
async fn prepared(
    (caches, recorder, made): (&Caches, &ActRecorder, &ClaimsMade),
    prepare: Vec<Preparation>,
    pod: &Waiting,
    node: &Arc<str>,
) -> Result<(), String> {
    for Preparation { plugin, class, args, brought } in prepare {
        let Some(pre_bind) = plugin.pre_bind else { continue };
        let (caches, recorder, made) = (caches.clone(), recorder.clone(), made.clone());
        let (pod, node) = (pod.clone(), node.clone());
        let preparing = Preparing { caches, recorder, made, pod, class, node, args, brought };
        let done = pre_bind(preparing).await;
        done.map_err(|why| format!("running PreBind plugin \"{}\": {why}", plugin.name))?;
    }
    Ok(())
}

/// Writes the binding. An error without words is about a Pod that is gone, which needs none.
async fn assigned(caches: &Caches, recorder: &ActRecorder, pod: &Waiting, node: &str) -> Result<(), Option<String>> {
    let Key { namespace, name } = &pod.key;
    waypoint::scheduler::bind(name);
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": namespace, "name": name, "uid": pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let resource = Resource::of::<Pod>();
    match rest::write(caches.client(), &resource, namespace, name, "binding", &Verb::Create(body)).await {
        Ok(_) => {
            announce(recorder, pod, node);
            Ok(())
        }
        Err(error) if rest::reason(&error) == "NotFound" => Err(None),
        Err(error) => Err(Some(format!("running Bind plugin \"DefaultBinder\": {}", rest::message(&error)))),
    }
}

fn announce(recorder: &ActRecorder, pod: &Waiting, node: &str) {
    let Key { namespace, name } = &pod.key;
    let message = format!("Successfully assigned {namespace}/{name} to {node}");
    let act = Act { kind: EventKind::Normal, reason: "Scheduled", action: "Binding", related: None };
    recorder.tell(&reference(pod), act, &message);
}

/// Tells the user why a Pod has no node, and for which node room is being made.
pub async fn report(
    client: Client,
    recorder: ActRecorder,
    pod: Arc<Pod>,
    (reason, message): (Reason, String),
    nomination: Nomination,
) -> Outcome {
    let act = Act { kind: EventKind::Warning, reason: "FailedScheduling", action: "Scheduling", related: None };
    recorder.tell(&events::reference(&*pod), act, &note(&message));
    let mut status = Map::new();
    if let Some(condition) = condition(&pod, reason, &message) {
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

/// The Pods that have to go from a node for another one.
pub struct Eviction {
    pub scheduler: Arc<str>,
    pub preemptor: Waiting,
    pub node: Arc<str>,
    pub victims: Vec<Arc<Pod>>,
}

/// Deletes the victims of a preemption, each with a condition that says why.
pub async fn evict(client: Client, recorder: ActRecorder, eviction: Eviction) -> Outcome {
    let Eviction { scheduler, preemptor, node, victims } = eviction;
    for (index, victim) in victims.iter().enumerate() {
        match evict_one(&client, &scheduler, victim).await {
            Ok(()) => {
                tell_preempted(&recorder, victim, (&preemptor, &node));
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

/// Says of a Pod that it made room for another one on a node.
pub fn tell_preempted(recorder: &ActRecorder, victim: &Pod, (preemptor, node): (&Waiting, &str)) {
    let message = format!("Preempted by pod {} on node {node}", preemptor.uid);
    let related = reference(preemptor);
    let act = Act { kind: EventKind::Normal, reason: "Preempted", action: "Preempting", related: Some(&related) };
    recorder.tell(&events::reference(victim), act, &message);
}

async fn evict_one(client: &Client, scheduler: &str, victim: &Pod) -> Result<(), client::Error> {
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

/// The longest message of an event.
const LONGEST_NOTE: usize = 1024;

/// A message as an event can carry it.
fn note(message: &str) -> Cow<'_, str> {
    const MORE: &str = " ...";
    if message.len() <= LONGEST_NOTE {
        return message.into();
    }
    let end = (0..=LONGEST_NOTE - MORE.len()).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{MORE}", &message[..end]).into()
}

/// The condition to write; `None` when the Pod says so already.
fn condition(pod: &Pod, reason: Reason, message: &str) -> Option<PodCondition> {
    let (held, reason) = (api::rules::pod::condition(pod, "PodScheduled"), reason.as_str());
    let same = |c: &PodCondition| {
        c.status == "False" && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(message)
    };
    if held.is_some_and(same) {
        return None;
    }
    let since = held.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
    Some(PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "False".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        observed_generation: pod.metadata.generation,
        last_transition_time: since.or_else(|| Some(Time(clock::now_seconds()))),
        ..PodCondition::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_carries_so_much_of_a_message() {
        assert_eq!(note("short"), "short");
        assert_eq!(note(&"x".repeat(1024)).len(), 1024);
        let long = "é".repeat(600);
        assert!(note(&long).ends_with("é ...") && note(&long).len() <= 1024);
    }
}
