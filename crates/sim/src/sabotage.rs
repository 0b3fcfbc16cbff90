//! Parts that break promises, so that tests see whether the checkers notice: what managers and the scheduler send is changed
//! on its way.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use client::Body;
use http::{HeaderValue, Method, Request, header::CONTENT_LENGTH};
use http_body_util::BodyExt;
use json::{Value, json};

use crate::duty::parts;

/// A promise that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Each Pod is made twice.
    PodsTwice,
    /// A Pod that is deleted is gone at once, whether it has stopped or not.
    HastyDeletions,
    /// ReplicaSets ask for this many replicas more than their Deployment says, or fewer.
    MoreReplicas(i64),
    /// Each member of a StatefulSet gets a companion with a number that nobody asked for.
    StrangeNumbers,
    /// Jobs count this many successes more, or fewer.
    Successes(i64),
    Failures,
    /// A second Job for each time of a schedule.
    SameTime,
    /// A second Job beside each of a schedule's, for a time of its own.
    Beside,
    /// Each volume goes from the claim that it was chosen for to another.
    WrongClaim,
    /// Each claim gets the volume after the one that was chosen for it, and is bound whatever happens.
    WrongVolume,
    /// Each volume is attached to a second node, too.
    TwoNodes,
    /// When a volume is attached, the one before is detached.
    HastyDetaching,
    /// An autoscaler asks for many more.
    HighScale,
    /// Quotas forget what is used.
    Forgetful,
    /// Evictions are always allowed.
    Evictions,
    /// The scheduler sends all Pods to one node.
    OneNode,
}

thread_local! {
    static HERE: Cell<Option<Sabotage>> = const { Cell::new(None) };
    /// The attachment that was made last.
    static ATTACHED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From now on the parts of this thread's simulation do this.
pub fn begin(sabotage: Sabotage) {
    HERE.set(Some(sabotage));
}

/// The requests that are sent in the place of one: one or two.
pub async fn changed(request: Request<Body>) -> Vec<Request<Body>> {
    let Some(sabotage) = HERE.get() else { return vec![request] };
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let written: Option<Value> = serde_json::from_slice(&bytes).ok();
    let again = |body: Bytes| {
        let mut again = Request::new(Body::from(body.to_vec()));
        *again.method_mut() = head.method.clone();
        *again.uri_mut() = head.uri.clone();
        *again.headers_mut() = head.headers.clone();
        again.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        again
    };
    let mut sent = vec![again(bytes.clone())];
    let [_, resource, _, subresource] = parts(head.uri.path());
    let target = (resource, subresource);
    let encode = |value: &Value| Bytes::from(serde_json::to_vec(value).expect("JSON is written"));
    match (sabotage, head.method.clone(), target, written) {
        (Sabotage::PodsTwice, Method::POST, ("pods", ""), Some(_)) => sent.push(again(bytes)),
        (Sabotage::StrangeNumbers, Method::POST, ("pods", ""), Some(mut pod)) => {
            // Only members of StatefulSets are made with a name.
            if let Some(name) = pod["metadata"]["name"].as_str() {
                pod["metadata"]["name"] = json!(format!("{name}9"));
                sent.push(again(encode(&pod)));
            }
        }
        (Sabotage::SameTime | Sabotage::Beside, Method::POST, ("jobs", ""), Some(mut job)) => {
            let name = job["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            job["metadata"]["name"] = json!(format!("{name}-b"));
            if sabotage == Sabotage::Beside {
                job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] = json!(name);
            }
            sent.push(again(encode(&job)));
        }
        (Sabotage::TwoNodes, Method::POST, ("volumeattachments", ""), Some(mut attachment)) => {
            let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
            attachment["spec"]["nodeName"] = json!(if node == "node-00" { "node-01" } else { "node-00" });
            attachment["metadata"]["name"] = json!(format!("{}-b", clock::uuid()));
            sent.push(again(encode(&attachment)));
        }
        (Sabotage::HastyDetaching, Method::POST, ("volumeattachments", ""), Some(attachment)) => {
            let name = attachment["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let before = ATTACHED.replace(name);
            let mut other = again(Bytes::from_static(b"{}"));
            *other.method_mut() = Method::DELETE;
            *other.uri_mut() = format!("{}/{before}", head.uri.path()).parse().expect("a name of an object");
            sent.push(other);
        }
        (Sabotage::WrongClaim, Method::PUT | Method::PATCH, ("persistentvolumes", ""), Some(mut volume)) => {
            if let Some(uid) = volume.pointer_mut("/spec/claimRef/uid") {
                *uid = json!("another");
                volume["metadata"]["resourceVersion"] = Value::Null;
                sent.push(again(encode(&volume)));
            }
        }
        (_, method, _, Some(written)) => {
            sent = change(sabotage, &method, target, written).map_or(sent, |written| vec![again(encode(&written))]);
        }
        _ => {}
    }
    sent
}

/// Changes what is written, if it is what the sabotage is about.
fn change(sabotage: Sabotage, method: &Method, target: (&str, &str), mut written: Value) -> Option<Value> {
    let add = |number: &mut Value, more: i64| *number = json!((number.as_i64().unwrap_or(0) + more).max(0));
    match (sabotage, target) {
        (Sabotage::HastyDeletions, ("pods", "")) if method == Method::DELETE => {
            written.as_object_mut()?.insert("gracePeriodSeconds".to_owned(), json!(0));
        }
        (Sabotage::MoreReplicas(more), ("replicasets", "" | "scale")) => {
            add(written.get_mut("spec")?.get_mut("replicas")?, more);
        }
        (Sabotage::Successes(more), ("jobs", "status")) => {
            add(written.get_mut("status")?.get_mut("succeeded")?, more);
        }
        (Sabotage::Failures, ("jobs", "status")) => add(written.get_mut("status")?.get_mut("failed")?, 1),
        (Sabotage::HighScale, ("deployments", "scale")) => add(written.get_mut("spec")?.get_mut("replicas")?, 30),
        (Sabotage::Evictions, ("poddisruptionbudgets", "status")) => {
            *written.get_mut("status")?.get_mut("disruptionsAllowed")? = json!(9);
        }
        (Sabotage::Forgetful, ("resourcequotas", "status")) => {
            let used = written.get_mut("status")?.get_mut("used")?.as_object_mut()?;
            used.values_mut().for_each(|used| *used = json!("0"));
        }
        (Sabotage::WrongVolume, ("persistentvolumeclaims", "")) => {
            let volume = written.get_mut("spec")?.get_mut("volumeName")?;
            let number: u64 = volume.as_str()?.strip_prefix('v')?.parse().ok()?;
            *volume = json!(format!("v{}", number + 1));
        }
        (Sabotage::WrongVolume, ("persistentvolumeclaims", "status")) => {
            *written.get_mut("status")?.get_mut("phase")? = json!("Bound");
        }
        (Sabotage::OneNode, ("pods", "binding")) => *written.get_mut("target")?.get_mut("name")? = json!("node-00"),
        _ => return None,
    }
    Some(written)
}
