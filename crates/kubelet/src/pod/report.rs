//! Writes a Pod's status to the API: only what has changed, only when something has, and beside the work on the Pod. An API server
//! that does not answer holds up no start, no restart and no end of a container; when it answers again it is told the newest status.
//! Of its Pods the kubelet knows best: what others have written over it is put right.
//! Upstream counterpart: pkg/kubelet/status (Manager).

use std::{sync::Arc, time::Duration};

use api::object::Object;
use client::{Api, Key, rest::DeleteOptions};
use clock::Instant;
use json::{Value, json};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::{Notify, watch};

use crate::{
    kubelet::{Kubelet, PATIENCE},
    pod::{
        desired::DesiredPod,
        status::{
            self,
            conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING},
        },
        workers::Inbox,
    },
};

/// The conditions that are there only as long as they hold, and hold no longer. Those that others set are theirs.
fn taken_back(before: &json::Map, after: &json::Map) -> impl Iterator<Item = &'static str> + use<> {
    let has = |status: &json::Map, kind: &str| {
        let conditions = status.get("conditions").and_then(Value::as_array);
        conditions.is_some_and(|list| list.iter().any(|c| c["type"] == kind))
    };
    let gone =
        [RESIZE_PENDING, RESIZE_IN_PROGRESS].map(|kind| (has(before, kind) && !has(after, kind)).then_some(kind));
    gone.into_iter().flatten()
}

/// The fields of `after` that differ, with `null` for those that are gone.
fn difference(before: &PodStatus, after: &PodStatus) -> Value {
    let fields = |s: &PodStatus| match s.to_value() {
        Value::Object(map) => map,
        _ => json::Map::new(),
    };
    let (before, mut after) = (fields(before), fields(after));
    let gone: Vec<String> = before.keys().filter(|k| !after.contains_key(k)).map(ToString::to_string).collect();
    let taken_back: Vec<&str> = taken_back(&before, &after).collect();
    after.retain(|key, value| before.get(key) != Some(value));
    if let Some(Value::Array(conditions)) = after.get_mut("conditions") {
        // They are merged by their type into what is there, in this order: behind those of others, and that the Pod has a node, which
        // was said first, stands last.
        let is_ours = |kind: &Value| {
            conditions.iter().any(|ours| ours["type"] == *kind) || taken_back.iter().any(|gone| kind == *gone)
        };
        let shown = before.get("conditions").and_then(Value::as_array).into_iter().flatten();
        let others = shown.filter(|condition| !is_ours(&condition["type"]));
        let order: Vec<Value> =
            others.chain(conditions.iter()).map(|condition| json!({"type": condition["type"]})).collect();
        // A reason that is no longer said has to be taken back.
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            for field in ["reason", "message"] {
                condition.entry(field).or_insert(Value::Null);
            }
        }
        conditions.extend(taken_back.iter().map(|kind| json!({"type": kind, "$patch": "delete"})));
        after.insert("$setElementOrder/conditions", Value::Array(order));
    }
    for list in ["podIPs", "hostIPs"] {
        if let Some(Value::Array(addresses)) = after.get_mut(list) {
            // Addresses are merged by themselves: those of a sandbox that is gone would stay beside the new ones.
            addresses.insert(0, json!({"$patch": "replace"}));
        }
    }
    after.extend(gone.into_iter().filter(|k| k == "reason" || k == "message").map(|k| (k, Value::Null)));
    Value::Object(after)
}

/// When a status that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// A status that looks different in the API is looked at again after this time: events of what was written here have come by then.
const SETTLED: Duration = Duration::from_secs(5);

/// A status that the API is to show. They are numbered from 1.
#[derive(Clone, Default)]
struct Wanted {
    number: u64,
    /// The Pod as the server has it goes by this, a mirror by its own: a namesake is left alone.
    uid: String,
    status: Arc<PodStatus>,
    /// When it became so.
    since: Option<Instant>,
}

/// The worker's end.
pub struct Outbox {
    wanted: watch::Sender<Wanted>,
    tried: watch::Receiver<u64>,
}

/// The end that writes.
pub struct Reporter {
    kubelet: Arc<Kubelet>,
    pod: Key,
    /// The uid of the Pod or mirror, and its status as the API shows it.
    shown: (String, Arc<PodStatus>),
    /// Since when the API shows something else than it should.
    behind: Option<Instant>,
    wanted: watch::Receiver<Wanted>,
    tried: watch::Sender<u64>,
    /// The Pod and its mirror as the API has them, and that they may show something else.
    desired: watch::Receiver<DesiredPod>,
    mirror: watch::Receiver<Option<Arc<Pod>>>,
    doubt: Arc<Notify>,
}

/// Both ends for a Pod that begins with the status that the API shows.
pub fn outbox(kubelet: Arc<Kubelet>, inbox: &Inbox) -> (Outbox, Reporter) {
    let ((wanted, asked), (tried, done)) = (watch::channel(Wanted::default()), watch::channel(0));
    let (desired, mirror, doubt) = (inbox.desired.clone(), inbox.mirror.clone(), inbox.doubt.clone());
    let (pod, uid) = {
        let desired = desired.borrow();
        (Key::new(desired.namespace(), desired.name()), desired.uid().to_owned())
    };
    let shown = (uid, inbox.status.borrow().clone());
    let reporter = Reporter { kubelet, pod, shown, behind: None, wanted: asked, tried, desired, mirror, doubt };
    (Outbox { wanted, tried: done }, reporter)
}

impl Outbox {
    /// Takes the place of the status before, also of one that is not written yet.
    pub fn show(&self, uid: &str, status: &Arc<PodStatus>) {
        self.wanted.send_if_modified(|wanted| {
            let is_new = wanted.number == 0 || wanted.uid != uid || *wanted.status != **status;
            if is_new {
                let (number, since) = (wanted.number + 1, Some(Instant::now()));
                *wanted = Wanted { number, uid: uid.to_owned(), status: status.clone(), since };
            }
            is_new
        });
    }

    /// Waits until writing the newest status has been tried.
    pub async fn tried(&mut self) {
        let newest = self.wanted.borrow().number;
        // Both ends go together.
        let _ = self.tried.wait_for(|number| *number >= newest).await;
    }
}

impl Reporter {
    /// Writes until it is dropped. A write has a large future, which is there only while it lasts.
    pub async fn run(mut self: Box<Self>) {
        let doubt = self.doubt.clone();
        loop {
            // A doubt that a new status cuts short comes again with the event of it.
            let in_doubt = async {
                doubt.notified().await;
                clock::sleep(SETTLED).await;
            };
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                () = in_doubt => if !self.is_overwritten() {
                    continue;
                },
            }
            while !Box::pin(self.write()).await {
                clock::sleep(RETRY).await;
            }
        }
    }

    /// Whether the API shows another status than the one that was written last. A Pod that others have ended stays so.
    fn is_overwritten(&mut self) -> bool {
        let wanted = self.wanted.borrow().clone();
        let is_it = |pod: &&Arc<Pod>| pod.metadata.uid.as_deref() == Some(wanted.uid.as_str());
        let desired = self.desired.borrow();
        let mirror = self.mirror.borrow();
        let found = [Some(&desired.pod), mirror.as_ref()].into_iter().flatten().find(is_it);
        let Some(pod) = found.filter(|pod| wanted.number > 0 && !desired.removed && !api::rules::pod::is_terminal(pod))
        else {
            return false;
        };
        let shown = pod.status.clone().unwrap_or_default();
        let is_other = !status::is_shown(&shown, &wanted.status);
        if is_other {
            tracing::info!(pod = %self.pod, "the status was changed by others, and is written again");
            self.shown = (wanted.uid, Arc::new(shown));
        }
        is_other
    }

    /// False when it should be tried again.
    async fn write(&mut self) -> bool {
        let wanted = self.wanted.borrow_and_update().clone();
        let is_new = wanted.number > *self.tried.borrow();
        if self.shown.0 != wanted.uid {
            // A new mirror, which shows nothing.
            self.shown = (wanted.uid, Arc::default());
        }
        let (uid, shown) = &self.shown;
        let changed = difference(shown, &wanted.status);
        let is_same = changed.as_object().is_none_or(json::Map::is_empty);
        self.behind = self.behind.or(wanted.since.filter(|_| is_new));
        let written = is_same || write(&self.kubelet, &self.pod, uid, changed).await;
        if written {
            self.shown.1 = wanted.status;
            let behind = self.behind.take().filter(|_| !is_same);
            behind.iter().for_each(|since| self.kubelet.figures.wrote_status(since.elapsed()));
        }
        self.tried.send_replace(wanted.number);
        written
    }
}

/// Reports what has changed of a status. Returns false when it should be tried again.
async fn write(kubelet: &Kubelet, pod: &Key, uid: &str, changed: Value) -> bool {
    waypoint::kubelet::status_update(&pod.to_string());
    let api: Api<Pod> = Api::namespaced(kubelet.config.client.clone().patient(PATIENCE), &pod.namespace);
    let patch = json!({ "metadata": { "uid": uid }, "status": changed });
    match api.strategic_patch(&pod.name, "status", patch).await {
        Ok(_) => true,
        // Gone, or another Pod of that name by now.
        Err(client::Error::Api(s)) if s.code == 404 || s.code == 409 => true,
        Err(error) => {
            tracing::warn!(%pod, %error, "the status could not be written");
            false
        }
    }
}

/// The last act of a deletion: the object goes, if it still is this one.
pub async fn delete(kubelet: &Kubelet, desired: &DesiredPod) -> bool {
    let api: Api<Pod> = Api::namespaced(kubelet.config.client.clone().patient(PATIENCE), desired.namespace());
    let options =
        DeleteOptions { uid: Some(desired.uid().to_owned()), grace_seconds: Some(0), ..DeleteOptions::default() };
    match api.delete(desired.name(), options).await {
        Ok(_) => true,
        Err(client::Error::Api(s)) if s.code == 404 || s.code == 409 => true,
        Err(error) => {
            tracing::warn!(pod = desired.full_name(), %error, "the Pod could not be deleted finally");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(json: Value) -> PodStatus {
        json::from_value(json).unwrap()
    }

    #[test]
    fn only_what_changed_is_written_and_what_is_gone_is_taken_back() {
        let unready = json!({"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "why"});
        let before = status(json!({"phase": "Pending", "podIP": "10.0.0.1", "reason": "Old", "conditions": [unready]}));
        let ready = json!({"type": "Ready", "status": "True"});
        let after = status(json!({"phase": "Running", "podIP": "10.0.0.1", "conditions": [ready]}));
        let expected = json!({
            "phase": "Running", "reason": null,
            "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}],
            "$setElementOrder/conditions": [{"type": "Ready"}],
        });
        assert_eq!(difference(&before, &after), expected);
        assert_eq!(difference(&after, &after), json!({}));
        let pending = json!({"type": "PodResizePending", "status": "True"});
        let others = json!({"type": "example.com/other", "status": "True"});
        let waits = status(json!({"conditions": [pending, others]}));
        let expected = json!({"conditions": [
            {"type": "Ready", "status": "True", "reason": null, "message": null},
            {"type": "PodResizePending", "$patch": "delete"},
        ], "$setElementOrder/conditions": [{"type": "example.com/other"}, {"type": "Ready"}]});
        assert_eq!(difference(&waits, &status(json!({"conditions": [{"type": "Ready", "status": "True"}]}))), expected);
        let at = |ip: &str| status(json!({"podIP": ip, "podIPs": [{"ip": ip}]}));
        let expected = json!({"podIP": "10.0.0.2", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]});
        assert_eq!(difference(&at("10.0.0.1"), &at("10.0.0.2")), expected);
    }

    #[test]
    fn conditions_stand_in_their_order_behind_those_of_others() {
        let conditions = |kinds: &[&str]| {
            let list: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
            json!({ "conditions": list })
        };
        let shown = conditions(&["PodScheduled", "example.com/gate"]);
        let order = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
        let patch = difference(&status(shown.clone()), &status(conditions(&order)));
        let ty = api::schema::of("io.k8s.api.core.v1.PodStatus").unwrap();
        let merged = api::write::patch::strategic::apply(ty, shown, &patch).unwrap();
        let kinds: Vec<&str> = merged["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|condition| condition["type"].as_str())
            .collect();
        assert_eq!(kinds, [&["example.com/gate"], &order[..]].concat());
    }
}
