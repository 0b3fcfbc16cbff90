//! The checkers: what must hold after every single change in the store.
//!
//! They follow the store itself, not the API, so no fault hides anything from them.

pub mod attachments;
pub mod autoscalers;
pub mod budgets;
pub mod claims;
pub mod deployments;
mod news;
mod pace;
pub mod quotas;
pub mod schedules;
pub mod workloads;

use std::{collections::BTreeMap, time::Duration};

use clock::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        core::v1::{Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use serde::de::DeserializeOwned;
use store::Event;

use self::{
    attachments::{Attachments, Cluster},
    autoscalers::Autoscalers,
    budgets::Budgets,
    claims::Claims,
    deployments::Deployments,
    news::Serving,
    pace::Pace,
    quotas::Quotas,
    schedules::Schedules,
    workloads::Workloads,
};
use crate::objects::{owner, serves, set};

/// Everything that the checkers remember.
#[derive(Default)]
pub struct Model {
    pub revision: u64,
    /// Every change is told (`SIM_TRACE=1`).
    pub traced: bool,
    pods: BTreeMap<String, Pod>,
    nodes: BTreeMap<String, Node>,
    pub deployments: Deployments,
    pub workloads: Workloads,
    pub claims: Claims,
    pub attachments: Attachments,
    pub autoscalers: Autoscalers,
    pub quotas: Quotas,
    pub schedules: Schedules,
    pub budgets: Budgets,
    pace: Pace,
    serving: Serving,
    /// Nodes die or answers are lost: how many Pods serve is no controller's promise then.
    pub service_may_drop: bool,
    pub violations: Vec<String>,
    /// The object behind each key: its identity, and the revision of its last change.
    stored: BTreeMap<String, (Identity, u64)>,
    /// The revisions of all changes of Pods, in order.
    pub pod_changes: Vec<u64>,
    /// The last change that was no heartbeat.
    pub last_work: Option<(String, clock::Instant)>,
    /// Power is cut on purpose: the store may end its watches.
    pub power_cut: bool,
    /// The store ended its watches.
    pub store_ended: bool,
    /// A fingerprint of all changes so far: equal seeds give equal fingerprints.
    pub fingerprint: u64,
}

/// The part of an object that stays during its life, or only grows.
#[derive(Debug, Clone, PartialEq, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Identity {
    uid: String,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    generation: i64,
    owner_references: Vec<OwnerReference>,
}

impl Identity {
    /// The UID of the controller.
    fn owner(&self) -> Option<&str> {
        self.owner_references.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
    }

    /// Names what an update did and may not do, if it did.
    fn broken_by(&self, new: &Identity) -> Option<&'static str> {
        let broken = [
            (
                self.uid != new.uid || self.creation_timestamp != new.creation_timestamp,
                "an update made another object of it",
            ),
            (self.deletion_timestamp.is_some() && new.deletion_timestamp.is_none(), "its deletion was taken back"),
            (new.generation < self.generation, "its generation went back"),
        ];
        broken.into_iter().find(|(broken, _)| *broken).map(|(_, what)| what)
    }
}

/// Writes that go on in a cluster at rest: leases, and events whose time is over.
fn is_heartbeat(event: &Event) -> bool {
    let key = event.key.trim_start_matches("/registry/");
    key.starts_with("leases/") || (key.starts_with("events/") && event.entry.is_none())
}

fn decode<T: DeserializeOwned>(event: &Event) -> Option<T> {
    event.entry.as_ref().and_then(|entry| serde_json::from_slice(&entry.value).ok())
}

impl Model {
    /// One change, in the order of the store.
    pub fn apply(&mut self, event: &Event) {
        if event.revision != self.revision + 1 && self.revision != 0 {
            self.violate(event, format!("revision {} after {}", event.revision, self.revision));
        }
        self.revision = event.revision;
        if self.traced {
            eprintln!("{} {} {}", clock::now(), event.revision, event.key);
        }
        self.note(event);
        let is_new = !self.stored.contains_key(&*event.key);
        self.identity(event);
        self.pace(event, is_new);
        if !is_heartbeat(event) {
            self.last_work = Some((event.key.to_string(), clock::Instant::now()));
        }
        let key = event.key.strip_prefix("/registry/").unwrap_or(&event.key).to_owned();
        match key.split('/').next().unwrap_or("") {
            "pods" => {
                self.pod_changes.push(event.revision);
                self.pod(event, key, decode(event));
            }
            // Upstream's name for them in the store.
            "minions" => {
                if let Some(name) = key.rsplit('/').next() {
                    let before = self.nodes.len();
                    set(&mut self.nodes, name.to_owned(), decode(event));
                    self.attachments.node(name, self.nodes.get(name), clock::now());
                    if self.nodes.len() != before {
                        self.workloads.nodes(before, clock::now());
                    }
                }
            }
            "replicasets" => {
                let wrong = self.deployments.replica_set(key, decode(event), clock::now());
                self.object(event, wrong);
            }
            "deployments" => {
                let new: Option<Deployment> = decode(event);
                let wrong = new.as_ref().and_then(|new| self.autoscalers.target(self.deployments.get(&key), new));
                self.object(event, wrong);
                self.deployments.deployment(key, new, clock::now());
            }
            "statefulsets" => self.workloads.stateful_set(key, decode(event), clock::now()),
            "daemonsets" => self.workloads.daemon_set(key, decode(event)),
            "jobs" => {
                let new: Option<Job> = decode(event);
                let of_schedule = self.schedules.job(key.clone(), new.as_ref());
                let wrong = self.workloads.job(key, new);
                self.object(event, wrong.into_iter().chain(of_schedule));
            }
            "cronjobs" => self.schedules.cron_job(key, decode(event)),
            "poddisruptionbudgets" => self.budgets.budget(key, decode(event)),
            "storageclasses" => self.claims.class(key, decode(event)),
            "persistentvolumes" => {
                let wrong = self.claims.volume(key, decode(event));
                self.object(event, wrong);
            }
            "persistentvolumeclaims" => {
                let wrong = self.claims.claim(key, decode(event), &self.pods, clock::now());
                self.object(event, wrong);
            }
            "volumeattachments" => {
                let cluster = Cluster { pods: &self.pods, nodes: &self.nodes, claims: &self.claims };
                let wrong = self.attachments.attachment(key, decode(event), cluster, clock::now());
                self.object(event, wrong);
            }
            "horizontalpodautoscalers" => self.autoscalers.autoscaler(key, decode(event)),
            "resourcequotas" => self.quotas.quota(key, decode(event)),
            "configmaps" => {
                let wrong = self.quotas.config_map(key, event.entry.is_some(), &self.pods);
                self.object(event, wrong);
            }
            _ => {}
        }
    }

    /// The objects that the checker of attachments knows besides them.
    fn cluster(&self) -> Cluster<'_> {
        Cluster { pods: &self.pods, nodes: &self.nodes, claims: &self.claims }
    }

    /// Notes the objections of a checker to a change.
    fn object(&mut self, event: &Event, wrong: impl IntoIterator<Item = String>) {
        wrong.into_iter().for_each(|what| self.violate(event, what));
    }

    fn note(&mut self, event: &Event) {
        let value = event.entry.as_ref().map_or(&b""[..], |e| &e.value);
        let so_far = self.fingerprint.to_le_bytes();
        self.fingerprint = api::rules::hash::fnv_64(so_far.iter().chain(event.key.as_bytes()).chain(value));
    }

    fn identity(&mut self, event: &Event) {
        #[derive(serde::Deserialize)]
        struct Object {
            metadata: Identity,
        }
        let old = self.stored.remove(&*event.key).map(|(identity, _)| identity);
        let Some(entry) = &event.entry else { return };
        let Some(new) = decode::<Object>(event).map(|o| o.metadata) else { return };
        if entry.created == event.revision {
            if old.is_some() {
                self.violate(event, "made while another one has its name");
            }
        } else if let Some(what) = old.and_then(|old| old.broken_by(&new)) {
            self.violate(event, what);
        }
        self.stored.insert(event.key.to_string(), (new, event.revision));
    }

    fn pace(&mut self, event: &Event, is_new: bool) {
        let owner = self.stored.get(&*event.key).filter(|_| is_new).and_then(|(identity, _)| identity.owner());
        let key = event.key.strip_prefix("/registry/").unwrap_or(&event.key);
        let wrong = self.pace.wrote(key, owner, clock::now());
        self.object(event, wrong);
    }

    /// Compares a store that was opened again with all that was acknowledged: keys with the revision of their last
    /// change, as of the store's `revision`. One write may have become durable without an answer.
    pub fn survived(&mut self, keys: &BTreeMap<String, u64>, revision: u64) {
        let unanswered = revision > self.revision;
        if revision < self.revision || revision > self.revision + 1 {
            self.violations.push(format!("revision {revision} after a power cut at {}", self.revision));
        }
        for (key, (_, modified)) in &self.stored {
            let intact = match keys.get(key) {
                Some(found) => found == modified || *found > self.revision,
                None => unanswered,
            };
            if !intact {
                self.violations.push(format!("a power cut lost {key} of revision {modified}"));
            }
        }
    }

    fn violate(&mut self, event: &Event, what: impl Into<String>) {
        self.violations.push(format!("revision {}, {}: {}", event.revision, event.key, what.into()));
    }

    fn pod(&mut self, event: &Event, key: String, new: Option<Pod>) {
        let old = match &new {
            Some(new) => self.pods.insert(key, new.clone()),
            None => self.pods.remove(&key),
        };
        let node_of = |pod: &Option<Pod>| pod.as_ref().and_then(|p| p.spec.as_ref()?.node_name.clone());
        let same = matches!((&old, &new), (Some(a), Some(b)) if a.metadata.uid == b.metadata.uid);
        match (node_of(&old).filter(|_| same), node_of(&new)) {
            (Some(before), after) if after.as_ref() != Some(&before) => {
                self.violate(event, format!("bound to {before}, then to {after:?}"));
            }
            (None, Some(node)) => {
                self.fits(event, &node);
                let wrong = new.as_ref().and_then(|pod| self.claims.placed(pod, clock::now()));
                self.object(event, wrong);
            }
            _ => {}
        }
        if let Some(new) = new.as_ref().filter(|_| !same) {
            let wrong = self.quotas.pod(new.metadata.namespace.as_deref().unwrap_or_default(), &self.pods);
            self.object(event, wrong);
        }
        let wrong = self.workloads.pod(old.as_ref(), new.as_ref(), &self.pods);
        self.object(event, wrong);
        let now = clock::now();
        let cluster = Cluster { pods: &self.pods, nodes: &self.nodes, claims: &self.claims };
        let wrong = self.attachments.pod([old.as_ref(), new.as_ref()], cluster, now);
        self.object(event, wrong);
        if let Some(new) = new.as_ref().filter(|_| !same && !self.service_may_drop) {
            let (of_set, numbered) = (self.deployments.made(new, &self.pods, now), self.workloads.numbered(new, now));
            self.object(event, of_set.into_iter().chain(numbered));
        }
        let goes = |pod: &Option<Pod>| pod.as_ref().is_some_and(budgets::is_evicted);
        self.budgets.evicted += usize::from(goes(&new) && !(same && goes(&old)));
        let since = self.serving.changed(old.as_ref(), new.as_ref(), now);
        if let Some(gone) = old.as_ref().zip(since) {
            let evicted = new.as_ref().filter(|new| same && budgets::is_evicted(new));
            let wrong: Vec<String> = match evicted {
                // A Pod that a user takes away is no controller's doing.
                Some(evicted) => self.budgets.goes(evicted, &self.pods, now).into_iter().collect(),
                None if self.service_may_drop => {
                    self.budgets.lost(gone.0, now);
                    Vec::new()
                }
                None => {
                    let of_deployment = self.deployments.still_serves(gone, &self.pods, now);
                    let of_set = self.workloads.still_serves(gone, &self.pods, self.nodes.len(), now);
                    of_deployment.into_iter().chain(of_set).collect()
                }
            };
            self.object(event, wrong);
        }
    }

    /// A Pod was bound: the node must hold all that it has now.
    fn fits(&mut self, event: &Event, name: &str) {
        let Some(node) = self.nodes.get(name) else { return };
        let on_it = self.pods.values().filter(|p| !api::rules::pod::is_terminal(p));
        let on_it = on_it.filter_map(|p| p.spec.as_ref()).filter(|s| s.node_name.as_deref() == Some(name));
        let mut used: BTreeMap<String, i64> = BTreeMap::new();
        for spec in on_it {
            *used.entry("pods".to_owned()).or_default() += 1000;
            for (resource, amount) in api::rules::pod::requests(spec) {
                *used.entry(resource).or_default() += amount.milli_value();
            }
        }
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        let has =
            |r: &str| allocatable.and_then(|a| a.get(r)).map_or(0, |q| api::rules::quantity::parse(q).milli_value());
        let over: Vec<String> = used.iter().filter(|(r, n)| **n > has(r)).map(|(r, n)| format!("{r}: {n}m")).collect();
        if !over.is_empty() {
            self.violate(event, format!("node {name} holds more than it has: {}", over.join(", ")));
        }
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Whether every workload is rolled out: the newest template everywhere, as many as wanted, all ready, and nothing
    /// else left; and every Job over.
    pub fn rolled_out(&self) -> bool {
        let nodes = self.nodes.keys().cloned().collect();
        self.workloads.settled(&self.pods, &nodes)
            && self.deployments.rolled_out(&self.pods)
            && self.claims.settled(&self.pods)
            && self.attachments.settled(self.cluster())
            && self.quotas_settled()
    }

    /// How much longer than anything else what is under way may take, by its own rules.
    pub fn patience(&self) -> Duration {
        self.workloads.patience()
    }

    /// Whether each quota says what is used.
    pub fn quotas_settled(&self) -> bool {
        self.quotas.settled(&self.pods)
    }

    /// How many Pods with this image serve.
    pub fn serving(&self, image: &str) -> i32 {
        let has = |p: &&Pod| p.spec.iter().flat_map(|s| &s.containers).any(|c| c.image.as_deref() == Some(image));
        self.pods.values().filter(|p| serves(p)).filter(has).count() as i32
    }

    /// The state in one line, for a failure.
    pub fn summary(&self) -> String {
        let count = |f: &dyn Fn(&Pod) -> bool| self.pods.values().filter(|p| f(p)).count();
        let unbound = count(&|p| p.spec.as_ref().is_none_or(|s| s.node_name.is_none()));
        let terminating = count(&|p| p.metadata.deletion_timestamp.is_some());
        format!(
            "{} nodes, {} Pods ({unbound} unbound, {terminating} terminating, {} serving), ReplicaSets {}; {}; {}",
            self.nodes.len(),
            self.pods.len(),
            count(&serves),
            self.deployments.summary(),
            self.claims.summary(),
            self.attachments.summary(self.cluster()),
        )
    }

    /// Objects whose controlling owner does not exist.
    pub fn orphans(&self) -> Vec<String> {
        let lost = |meta: &ObjectMeta, exists: bool| {
            (owner(meta).is_some() && !exists).then(|| meta.name.clone().unwrap_or_default())
        };
        let sets = self.deployments.replica_sets().filter_map(|r| {
            let exists = self.deployments.all().any(|d| d.metadata.uid.as_deref() == owner(&r.metadata));
            lost(&r.metadata, exists)
        });
        let pods = self.pods.values().filter_map(|p| {
            let of_set = self.deployments.replica_sets().any(|r| r.metadata.uid.as_deref() == owner(&p.metadata));
            lost(&p.metadata, of_set || self.workloads.owners().any(|uid| Some(uid) == owner(&p.metadata)))
        });
        sets.chain(pods).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};
    use std::sync::Arc;
    use store::Entry;

    fn violations(changes: &[(&str, Value)]) -> Vec<String> {
        let mut model = Model::default();
        for (i, (key, value)) in changes.iter().enumerate() {
            let (key, revision): (Arc<str>, u64) = (format!("/registry/{key}").into(), i as u64 + 1);
            let first =
                changes[..i].iter().rposition(|(k, v)| *k == changes[i].0 && v.is_null()).map_or(0, |gone| gone + 1);
            let created = (first..).find(|n| changes[*n].0 == changes[i].0).map_or(revision, |n| n as u64 + 1);
            let value_bytes = value.to_string().into();
            let entry =
                (!value.is_null()).then(|| Entry { key: key.clone(), value: value_bytes, created, modified: revision });
            model.apply(&Event { key, revision, entry, previous: None });
        }
        model.violations
    }

    fn node() -> (&'static str, Value) {
        ("minions/n", json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "pods": "9"}}}))
    }

    fn pod(node: &str, cpu: &str, ready: bool) -> Value {
        let owner = json!([{"apiVersion": "v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]);
        let ready = if ready { "True" } else { "False" };
        json!({"metadata": {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": owner}, "spec": {"nodeName": node, "containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    }

    #[test]
    fn a_pod_is_bound_once() {
        assert!(violations(&[("pods/d/a", pod("n", "1", true)), ("pods/d/a", pod("n", "1", true))]).is_empty());
        let found = violations(&[("pods/d/a", pod("n", "1", true)), ("pods/d/a", pod("m", "1", true))]);
        assert!(found[0].contains("bound to n, then to"), "{found:?}");
    }

    #[test]
    fn revisions_have_no_gaps() {
        let mut model = Model::default();
        for revision in [5, 6, 8, 8] {
            model.apply(&Event { key: "/registry/pods/d/a".into(), revision, entry: None, previous: None });
        }
        assert_eq!(model.violations.len(), 2, "{:?}", model.violations);
        assert!(model.violations[0].contains("revision 8 after 6"), "{:?}", model.violations);
    }

    #[test]
    fn an_object_stays_itself() {
        let object = |uid: &str, generation: i64, deleting: bool| {
            let gone = deleting.then_some("2026-01-01T00:00:00Z");
            json!({"metadata": {"uid": uid, "generation": generation, "deletionTimestamp": gone}})
        };
        let check = |before: Value, after: Value, expected: &str| {
            let found = violations(&[("configmaps/d/a", before), ("configmaps/d/a", after)]).join("");
            assert!(if expected.is_empty() { found.is_empty() } else { found.contains(expected) }, "{found}");
        };
        check(object("u", 1, false), object("u", 2, true), "");
        check(object("u", 1, false), object("v", 1, false), "another object");
        check(object("u", 2, false), object("u", 1, false), "generation went back");
        check(object("u", 1, true), object("u", 1, false), "deletion was taken back");
        let again = [("configmaps/d/a", object("u", 1, false)), ("configmaps/d/a", Value::Null)];
        assert!(violations(&[&again[..], &[("configmaps/d/a", object("v", 1, false))]].concat()).is_empty());
    }

    #[test]
    fn a_power_cut_may_not_lose_what_was_acknowledged() {
        let check = |keys: &[(&str, u64)], revision: u64, expected: usize| {
            let mut model = Model::default();
            for (revision, name) in [(1, "a"), (2, "b")] {
                let key: Arc<str> = format!("/registry/configmaps/d/{name}").into();
                let value = json!({"metadata": {"uid": name}}).to_string().into();
                let entry = Some(Entry { key: key.clone(), value, created: revision, modified: revision });
                model.apply(&Event { key, revision, entry, previous: None });
            }
            let keys = keys.iter().map(|(name, at)| (format!("/registry/configmaps/d/{name}"), *at)).collect();
            model.survived(&keys, revision);
            assert_eq!(model.violations.len(), expected, "{:?}", model.violations);
        };
        check(&[("a", 1), ("b", 2)], 2, 0);
        check(&[("a", 1), ("b", 3)], 3, 0);
        check(&[("a", 1)], 3, 0);
        check(&[("a", 1)], 2, 1);
        check(&[("a", 1), ("b", 1)], 2, 1);
        check(&[("a", 1)], 1, 2);
    }

    #[test]
    fn nodes_hold_what_they_have() {
        assert!(violations(&[node(), ("pods/d/a", pod("n", "1", true))]).is_empty());
        let found = violations(&[node(), ("pods/d/a", pod("n", "1", true)), ("pods/d/b", pod("n", "1m", true))]);
        assert!(found[0].contains("node n holds more than it has: cpu: 1001m"), "{found:?}");
    }
}
