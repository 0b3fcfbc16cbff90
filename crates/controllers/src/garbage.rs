//! Garbage collector: deletes what no owner needs any more, in the background, in the foreground, or not at all (orphan).
//! Reads: the metadata of all objects of all kinds that can be listed and deleted. Writes: deletions, owner references,
//! the finalizers `foregroundDeletion` and `orphan`.
//! Upstream counterpart: pkg/controller/garbagecollector.

mod graph;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use client::{
    Client, EventKind, EventRecorder, Key, Sink,
    object::MetadataOnly,
    reflector::{Listing, reflect, revision_of},
    rest::{self, Collection, DeleteOptions, Form, Resource, Verb},
};
use controller::{Done, Queue, Reconcile, Setup, drive};
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Notify, task::JoinSet};

use crate::discovery::{Offered, discover};
use graph::{FOREGROUND, Graph, Look, ORPHAN, Object};

pub const NAME: &str = "garbage-collector-controller";
/// The two sorts of work, as namespaces of the queue's keys; the names are UIDs.
const DELETE: &str = "delete";
const ORPHANED: &str = "orphan";

struct Collector {
    client: Client,
    recorder: EventRecorder,
    graph: Mutex<Graph>,
    queue: Arc<Queue>,
    /// What the server offers, to find the resource of an owner's kind.
    offered: Mutex<Vec<Offered>>,
    /// Everything was listed once: before, an owner that is unknown may only not be listed yet.
    ready: AtomicBool,
    /// A list came in, or the set of kinds changed.
    changed: Notify,
    kinds_changed: Notify,
    /// Owners that the server said do not exist, by UID and the namespace of who names them; UIDs are never used again.
    absent: Mutex<HashSet<Key>>,
}

/// How many absent owners are remembered; all are forgotten together when there are more.
const ABSENT: usize = 4096;

pub async fn run(setup: Setup) {
    let collector = Arc::new(Collector {
        client: setup.client,
        recorder: setup.recorder,
        graph: Mutex::default(),
        queue: Arc::new(Queue::default()),
        offered: Mutex::default(),
        ready: AtomicBool::new(false),
        changed: Notify::new(),
        kinds_changed: Notify::new(),
        absent: Mutex::default(),
    });
    tokio::join!(watch_all(collector.clone()), drive(NAME, collector.queue.clone(), collector, 20));
}

/// One watch per kind; the set of kinds follows discovery, which is asked again when CustomResourceDefinitions change.
async fn watch_all(collector: Arc<Collector>) {
    let mut tasks = JoinSet::new();
    let mut watched: BTreeMap<Resource, (tokio::task::AbortHandle, Arc<AtomicBool>)> = BTreeMap::new();
    let mut retry = Duration::from_secs(1);
    loop {
        let complete = match discover(&collector.client).await {
            Ok((offered, failed)) => {
                let wanted: Vec<Resource> =
                    offered.iter().filter(|o| is_collected(o)).map(|o| o.resource.clone()).collect();
                watched.retain(|resource, (task, _)| {
                    let keep = wanted.contains(resource) || !failed.is_empty();
                    if !keep {
                        task.abort();
                        collector.tell(|graph| graph.replace(resource, Vec::new()));
                    }
                    keep
                });
                for resource in wanted {
                    watched.entry(resource.clone()).or_insert_with(|| {
                        let listed = Arc::new(AtomicBool::new(false));
                        let sink = Monitor {
                            collector: collector.clone(),
                            resource: Arc::new(resource.clone()),
                            listed: listed.clone(),
                        };
                        let collection = Collection::all(resource, Form::Metadata);
                        let client = collector.client.clone();
                        let task = tasks.spawn(async move { reflect(&client, &collection, &sink).await });
                        (task, listed)
                    });
                }
                *collector.offered.lock() = offered;
                failed.is_empty()
            }
            Err(error) => {
                tracing::debug!(%error, "discovery failed, trying again");
                false
            }
        };
        while !watched.is_empty() && !watched.values().all(|(_, listed)| listed.load(Ordering::Acquire)) {
            collector.changed.notified().await;
        }
        if complete && !watched.is_empty() && !collector.ready.swap(true, Ordering::AcqRel) {
            let looks = collector.graph.lock().doubtful();
            tracing::debug!(objects = collector.graph.lock().len(), "the garbage collector knows all objects");
            collector.look_at(looks);
        }
        if complete {
            retry = Duration::from_secs(1);
            collector.kinds_changed.notified().await;
            // A new kind is served a moment after its definition was written.
            clock::sleep(Duration::from_secs(1)).await;
        } else {
            clock::sleep(retry).await;
            retry = (retry * 2).min(Duration::from_secs(30));
        }
    }
}

/// Events come and go by their own time to live, and nothing owns or is owned by them.
fn is_collected(offered: &Offered) -> bool {
    let is_event = offered.resource.plural == "events" && matches!(&*offered.resource.group, "" | "events.k8s.io");
    offered.can(&["list", "watch", "delete"]) && !is_event
}

/// Feeds the graph with one kind.
struct Monitor {
    collector: Arc<Collector>,
    resource: Arc<Resource>,
    listed: Arc<AtomicBool>,
}

impl Monitor {
    fn note_kinds(&self) {
        if self.resource.plural == "customresourcedefinitions" && self.listed.load(Ordering::Acquire) {
            self.collector.kinds_changed.notify_one();
        }
    }
}

impl Sink for Monitor {
    fn list(&self) -> Box<dyn Listing + '_> {
        Box::new(Listed { monitor: self, objects: Vec::new() })
    }

    fn apply(&self, object: &str) -> Result<u64, serde_json::Error> {
        let MetadataOnly { metadata } = serde_json::from_str(object)?;
        if let Some(uid) = &metadata.uid {
            self.collector.tell(|graph| graph.apply(uid, Object::of(&self.resource, &metadata)));
            self.note_kinds();
        }
        Ok(revision_of(&metadata))
    }

    fn delete(&self, object: &str) -> Result<u64, serde_json::Error> {
        let MetadataOnly { metadata } = serde_json::from_str(object)?;
        if let Some(uid) = &metadata.uid {
            self.collector.tell(|graph| graph.remove(uid));
            self.note_kinds();
        }
        Ok(revision_of(&metadata))
    }

    fn advance(&self, _revision: u64) {}
}

/// All objects of a kind, by UID, as a list brings them.
struct Listed<'a> {
    monitor: &'a Monitor,
    objects: Vec<(String, Object)>,
}

impl Listing for Listed<'_> {
    fn add(&mut self, object: &str) -> Result<(), serde_json::Error> {
        let MetadataOnly { metadata } = serde_json::from_str(object)?;
        let object = Object::of(&self.monitor.resource, &metadata);
        self.objects.extend(metadata.uid.map(|uid| (uid, object)));
        Ok(())
    }

    fn finish(self: Box<Self>, _revision: u64) {
        let Listed { monitor, objects } = *self;
        monitor.collector.tell(|graph| graph.replace(&monitor.resource, objects));
        monitor.note_kinds();
        monitor.listed.store(true, Ordering::Release);
        monitor.collector.changed.notify_one();
    }
}

impl Collector {
    fn tell(&self, change: impl FnOnce(&mut Graph) -> Vec<Look>) {
        let looks = change(&mut self.graph.lock());
        if self.ready.load(Ordering::Acquire) {
            self.look_at(looks);
        }
    }

    fn look_at(&self, looks: Vec<Look>) {
        for look in looks {
            self.queue.add(match look {
                Look::Delete(uid) => Key::new(DELETE, &*uid),
                Look::Orphan(uid) => Key::new(ORPHANED, &*uid),
            });
        }
    }
}

impl Reconcile for Collector {
    async fn reconcile(&self, key: &Key) -> Done {
        let outcome = match key.namespace.as_str() {
            ORPHANED => self.orphan(&key.name).await,
            _ => self.attempt(&key.name).await,
        };
        // A conflict means that the object changed: the watch will tell, but the key must not be lost meanwhile.
        let failed = outcome.inspect_err(|error| {
            tracing::debug!(controller = NAME, uid = key.name, message = rest::message(error), "trying again later");
        });
        Done { failed: failed.is_err(), ..Done::default() }
    }
}

/// What to do with an object, given what is known of its owners.
#[derive(Debug, PartialEq)]
enum Verdict {
    Keep,
    /// Take these owners off: they are gone or going, but another one is there.
    Disown(Vec<String>),
    Delete(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum OwnerState {
    There,
    Gone,
    /// Its deletion waits for its dependents.
    Waiting,
}

fn judge(meta: &ObjectMeta, owners: &[(String, OwnerState)], has_dependents: bool) -> Verdict {
    let of = |state| owners.iter().filter(move |(_, s)| *s == state).map(|(uid, _)| uid.clone());
    if owners.is_empty() {
        return Verdict::Keep;
    }
    if of(OwnerState::There).next().is_some() {
        let off: Vec<String> = of(OwnerState::Gone).chain(of(OwnerState::Waiting)).collect();
        return if off.is_empty() { Verdict::Keep } else { Verdict::Disown(off) };
    }
    if of(OwnerState::Waiting).next().is_some() && has_dependents {
        return Verdict::Delete("Foreground");
    }
    let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
    Verdict::Delete(if has(ORPHAN) {
        "Orphan"
    } else if has(FOREGROUND) {
        "Foreground"
    } else {
        "Background"
    })
}

impl Collector {
    fn known(&self, uid: &str) -> Option<Object> {
        self.graph.lock().get(uid).cloned()
    }

    /// The object's metadata as the server has it now, if it still is this one.
    async fn live(&self, uid: &str, object: &Object) -> Result<Option<ObjectMeta>, kube::Error> {
        let meta = self.metadata(&object.resource, &object.namespace, &object.name).await?;
        Ok(meta.filter(|m| m.uid.as_deref() == Some(uid)))
    }

    async fn metadata(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectMeta>, kube::Error> {
        rest::metadata(&self.client, resource, namespace, name).await
    }

    /// Deletes the object if nobody needs it, or goes on with its foreground deletion.
    async fn attempt(&self, uid: &str) -> Result<(), kube::Error> {
        let Some(object) = self.known(uid) else { return Ok(()) };
        if object.deleting && !object.foreground {
            return Ok(());
        }
        let Some(meta) = self.live(uid, &object).await? else { return Ok(()) };
        waypoint::controller::reconcile(&object.name);
        if object.foreground {
            return self.go_on(uid, &object, &meta).await;
        }
        let mut owners = Vec::new();
        for owner in meta.owner_references.iter().flatten() {
            owners.push((owner.uid.clone(), self.state_of(owner, uid, &object).await?));
        }
        let has_dependents = self.graph.lock().has_dependents(uid);
        match judge(&meta, &owners, has_dependents) {
            Verdict::Keep => Ok(()),
            Verdict::Disown(off) => self.disown(&object, &meta, &off).await,
            Verdict::Delete(policy) => {
                tracing::debug!(kind = object.resource.kind, name = &*object.name, policy, "collected");
                let options = DeleteOptions {
                    uid: Some(uid.to_owned()),
                    resource_version: meta.resource_version.clone(),
                    propagation: Some(policy),
                    ..Default::default()
                };
                self.write(&object, Verb::Delete(options)).await
            }
        }
    }

    async fn state_of(&self, owner: &OwnerReference, uid: &str, object: &Object) -> Result<OwnerState, kube::Error> {
        let namespace = &*object.namespace;
        match self.known(&owner.uid) {
            Some(known) if known.is_meant_by(owner, namespace) => {
                return Ok(if known.foreground { OwnerState::Waiting } else { OwnerState::There });
            }
            Some(known) if !known.namespace.is_empty() && *known.namespace != *namespace => {
                self.tell_wrong_namespace(owner, uid, object);
            }
            _ => {}
        }
        let absent = Key::new(namespace, &owner.uid);
        if self.absent.lock().contains(&absent) {
            return Ok(OwnerState::Gone);
        }
        let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
        let found = {
            let offered = self.offered.lock();
            let of_kind = |o: &&Offered| o.resource.group == group && o.resource.kind == owner.kind;
            offered.iter().find(of_kind).map(|o| (o.resource.clone(), o.namespaced))
        };
        let Some((mut resource, namespaced)) = found else {
            let text = format!("no resource is known for kind {} in {}", owner.kind, owner.api_version);
            return Err(kube::Error::Service(text.into()));
        };
        resource.version = version.to_owned();
        // A cluster-scoped object cannot have an owner in a namespace: such an owner is never found.
        let state = match (namespaced, namespace) {
            (true, "") => return Ok(OwnerState::There),
            (true, namespace) => self.metadata(&resource, namespace, &owner.name).await?,
            (false, _) => self.metadata(&resource, "", &owner.name).await?,
        };
        match state.filter(|meta| meta.uid.as_deref() == Some(&owner.uid)) {
            Some(meta) => {
                let object = Object::of(&Arc::new(resource), &meta);
                Ok(if object.foreground { OwnerState::Waiting } else { OwnerState::There })
            }
            None => {
                let mut all = self.absent.lock();
                if all.len() >= ABSENT {
                    all.clear();
                }
                all.insert(absent);
                Ok(OwnerState::Gone)
            }
        }
    }

    /// An owner in another namespace is none, which surprises those who name it.
    fn tell_wrong_namespace(&self, owner: &OwnerReference, uid: &str, object: &Object) {
        let about = ObjectReference {
            api_version: Some(object.resource.api_version()),
            kind: Some(object.resource.kind.clone()),
            namespace: Some(object.namespace.to_string()),
            name: Some(object.name.to_string()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let OwnerReference { api_version, kind, name, uid, .. } = owner;
        let namespace = &object.namespace;
        let message = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in \
             namespace \"{namespace}\""
        );
        self.recorder.event(&about, EventKind::Warning, "OwnerRefInvalidNamespace", &message);
    }

    /// A foreground deletion ends when no dependent blocks it any more.
    async fn go_on(&self, uid: &str, object: &Object, meta: &ObjectMeta) -> Result<(), kube::Error> {
        let dependents = self.graph.lock().dependents_of(uid);
        let mut blocked = false;
        for (dependent, state) in dependents {
            if state.blocks(uid) {
                blocked = true;
                if !state.foreground {
                    self.queue.add(Key::new(DELETE, &*dependent));
                }
            }
        }
        if blocked { Ok(()) } else { self.drop_finalizer(object, meta, FOREGROUND).await }
    }

    async fn orphan(&self, uid: &str) -> Result<(), kube::Error> {
        let Some(object) = self.known(uid).filter(|o| o.orphan) else { return Ok(()) };
        let Some(meta) = self.live(uid, &object).await? else { return Ok(()) };
        let dependents = self.graph.lock().dependents_of(uid);
        for (dependent, state) in dependents {
            if let Some(meta) = self.live(&dependent, &state).await? {
                self.disown(&state, &meta, &[uid.to_owned()]).await?;
            }
        }
        self.drop_finalizer(&object, &meta, ORPHAN).await
    }

    async fn disown(&self, object: &Object, meta: &ObjectMeta, off: &[String]) -> Result<(), kube::Error> {
        let kept: Vec<&OwnerReference> =
            meta.owner_references.iter().flatten().filter(|o| !off.contains(&o.uid)).collect();
        let patch = json!({"metadata": {
            "ownerReferences": kept, "uid": meta.uid, "resourceVersion": meta.resource_version}});
        self.write(object, Verb::MergePatch(patch)).await
    }

    async fn drop_finalizer(&self, object: &Object, meta: &ObjectMeta, name: &str) -> Result<(), kube::Error> {
        let held: Vec<&String> = meta.finalizers.iter().flatten().collect();
        if !held.iter().any(|f| *f == name) {
            return Ok(());
        }
        let kept: Vec<&String> = held.into_iter().filter(|f| *f != name).collect();
        let patch =
            json!({"metadata": {"finalizers": kept, "uid": meta.uid, "resourceVersion": meta.resource_version}});
        self.write(object, Verb::MergePatch(patch)).await
    }

    async fn write(&self, object: &Object, verb: Verb) -> Result<(), kube::Error> {
        waypoint::controller::act(&object.name);
        let sent = rest::write(&self.client, &object.resource, &object.namespace, &object.name, "", &verb).await;
        match sent {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_goes_when_its_last_owner_does() {
        use OwnerState::{Gone, There, Waiting};
        let check = |owners: &[(&str, OwnerState)], has_dependents: bool, finalizers: &[&str], expected: Verdict| {
            let finalizers = finalizers.iter().map(ToString::to_string).collect();
            let meta = ObjectMeta { finalizers: Some(finalizers), ..Default::default() };
            let owners: Vec<_> = owners.iter().map(|(uid, state)| ((*uid).to_owned(), *state)).collect();
            assert_eq!(judge(&meta, &owners, has_dependents), expected);
        };
        check(&[], false, &[], Verdict::Keep);
        check(&[("a", There)], false, &[], Verdict::Keep);
        check(&[("a", There), ("b", Gone), ("c", Waiting)], false, &[], Verdict::Disown(vec!["b".into(), "c".into()]));
        check(&[("a", Gone)], true, &[], Verdict::Delete("Background"));
        check(&[("a", Gone)], true, &[ORPHAN], Verdict::Delete("Orphan"));
        check(&[("a", Waiting)], true, &[], Verdict::Delete("Foreground"));
        check(&[("a", Waiting), ("b", Gone)], false, &[], Verdict::Delete("Background"));
    }
}
