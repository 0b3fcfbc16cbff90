//! The garbage collector's state, and how it observes an object: what the server says of it and of its owners.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use client::{
    Key,
    rest::{self, Resource},
};
use controller::{Done, Plan, Queue, Reconcile, Setup, carry_out};
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    graph::{Attempt, Graph, Object},
    plan::{self, Dependents, OwnerState},
};
use crate::discovery::Offered;

pub const NAME: &str = "garbage-collector-controller";

/// The two sorts of work, as namespaces of the queue's keys; the names are UIDs.
const DELETE: &str = "delete";
const ORPHAN: &str = "orphan";

pub struct Collector {
    pub setup: Setup,
    pub graph: Mutex<Graph>,
    pub queue: Arc<Queue>,
    /// The resources of the server, in which an owner's kind is looked up.
    pub offered: Mutex<Vec<Offered>>,
    /// Everything was listed once: before, an owner that is unknown may only not be listed yet.
    pub ready: AtomicBool,
    /// A list came in, or the set of kinds changed.
    pub changed: Notify,
    pub kinds_changed: Notify,
    /// Owners that the server said do not exist; UIDs are never used again.
    absent: Mutex<HashSet<Absent>>,
}

/// An owner that is not there, as a dependent in a namespace names it: the UID with another kind, version or name may be right.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Absent {
    namespace: String,
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

impl Absent {
    fn of(owner: &OwnerReference, namespace: &str) -> Self {
        Absent {
            namespace: namespace.to_owned(),
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        }
    }
}

/// Whether more is heard of an owner. One that the server has and no watch told of may go while its watch is away: the list
/// after that does not name it, and nothing would say that it went. Its dependents are looked at until it is seen or gone.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Told {
    Always,
    Once,
}

/// How many absent owners are remembered; all are forgotten together when there are more.
const ABSENT: usize = 4096;

impl Collector {
    pub fn new(setup: Setup) -> Self {
        Collector {
            setup,
            graph: Mutex::default(),
            queue: Queue::usual(NAME),
            offered: Mutex::default(),
            ready: AtomicBool::new(false),
            changed: Notify::new(),
            kinds_changed: Notify::new(),
            absent: Mutex::default(),
        }
    }

    /// Changes the graph and enqueues what that change leads to.
    pub fn update(&self, change: impl FnOnce(&mut Graph) -> Vec<Attempt>) {
        let attempts = change(&mut self.graph.lock());
        if !self.ready.load(Ordering::Acquire) {
            return;
        }
        for attempt in attempts {
            self.queue.add(match attempt {
                Attempt::Delete(uid) => Key::new(DELETE, &*uid),
                Attempt::Orphan(uid) => Key::new(ORPHAN, &*uid),
            });
        }
    }

    fn known(&self, uid: &str) -> Option<Object> {
        self.graph.lock().get(uid).cloned()
    }

    /// The object's metadata as the server has it now, if it still is this one.
    async fn live(&self, uid: &str, object: &Object) -> Result<Option<ObjectMeta>, client::Error> {
        let meta = self.metadata(&object.resource, &object.namespace, &object.name).await?;
        Ok(meta.filter(|m| m.uid.as_deref() == Some(uid)))
    }

    async fn metadata(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectMeta>, client::Error> {
        rest::metadata(&self.setup.client, resource, namespace, name).await
    }

    /// Deletes the object if nobody needs it, or goes on with its foreground deletion.
    async fn attempt(&self, uid: &str) -> Result<Plan, client::Error> {
        let Some(object) = self.known(uid) else { return Ok(Plan::default()) };
        if object.deleting && !object.foreground {
            return Ok(Plan::default());
        }
        let Some(meta) = self.live(uid, &object).await? else { return Ok(Plan::default()) };
        waypoint::controller::reconcile(&object.name);
        if object.foreground {
            return Ok(self.go_on(uid, &object, &meta));
        }
        let mut owners = Vec::new();
        let mut is_unseen = false;
        for owner in meta.owner_references.iter().flatten() {
            let (state, told) = self.state_of(owner, &object.namespace).await?;
            is_unseen |= told == Told::Once;
            owners.push((owner.uid.clone(), state));
        }
        let mut plan = Plan::default();
        let is_elsewhere = |owner: &&OwnerReference| {
            let known = self.known(&owner.uid);
            known.is_some_and(|known| !known.namespace.is_empty() && known.namespace != object.namespace)
        };
        for owner in meta.owner_references.iter().flatten().filter(is_elsewhere) {
            plan.tell(plan::wrong_namespace(owner, uid, &object));
        }
        let collected = plan::collect(&object, &meta, &owners, self.dependents(uid));
        plan.steps.extend(collected.steps);
        plan.retry = collected.retry || is_unseen;
        Ok(plan)
    }

    fn dependents(&self, uid: &str) -> Dependents {
        let graph = self.graph.lock();
        match graph.has_dependents(uid) {
            false => Dependents::None,
            true if graph.has_waiting_dependents(uid) => Dependents::Waiting,
            true => Dependents::Some,
        }
    }

    async fn state_of(&self, owner: &OwnerReference, namespace: &str) -> Result<(OwnerState, Told), client::Error> {
        let known = self.known(&owner.uid);
        // Of an object that a watch told of, the watch tells more, also when another one is meant.
        let told = if known.is_some() { Told::Always } else { Told::Once };
        if let Some(known) = known.filter(|known| known.is_meant_by(owner, namespace)) {
            return Ok((OwnerState::of(&known), told));
        }
        let absent = Absent::of(owner, namespace);
        if self.absent.lock().contains(&absent) {
            return Ok((OwnerState::Gone, Told::Always));
        }
        let found = {
            let offered = self.offered.lock();
            let named = offered.iter().find(|offered| offered.is_of(&owner.api_version, &owner.kind));
            named.map(|offered| (offered.resource.clone(), offered.namespaced))
        };
        // In a version that is not served nothing is found, which says nothing about the owner.
        let Some((mut resource, namespaced)) = found else {
            let text = format!("no resource is known for kind {} in {}", owner.kind, owner.api_version);
            return Err(client::Error::transport(text));
        };
        resource.version = owner.api_version.rsplit('/').next().unwrap_or_default().to_owned();
        // A cluster-scoped object cannot have an owner in a namespace: such an owner is never found.
        let state = match (namespaced, namespace) {
            (true, "") => return Ok((OwnerState::There, Told::Always)),
            (true, namespace) => self.metadata(&resource, namespace, &owner.name).await?,
            (false, _) => self.metadata(&resource, "", &owner.name).await?,
        };
        match state.filter(|meta| meta.uid.as_deref() == Some(&owner.uid)) {
            Some(meta) => Ok((OwnerState::of(&Object::of(&Arc::new(resource), &meta)), told)),
            None => {
                let mut all = self.absent.lock();
                if all.len() >= ABSENT {
                    all.clear();
                }
                all.insert(absent);
                Ok((OwnerState::Gone, Told::Always))
            }
        }
    }

    /// A foreground deletion ends when no dependent blocks it any more.
    fn go_on(&self, uid: &str, object: &Object, meta: &ObjectMeta) -> Plan {
        let mut blocked = false;
        let graph = self.graph.lock();
        for (dependent, state) in graph.dependents_of(uid) {
            if state.blocks(uid) {
                blocked = true;
                if !state.foreground {
                    self.queue.add(Key::new(DELETE, &*dependent));
                }
            }
        }
        match blocked {
            false => plan::finish_foreground(object, meta),
            true if graph.waits_for_itself(uid) => plan::unblock(object, meta),
            true => Plan::default(),
        }
    }

    async fn orphan(&self, uid: &str) -> Result<Plan, client::Error> {
        let Some(object) = self.known(uid).filter(|o| o.orphan) else { return Ok(Plan::default()) };
        let Some(meta) = self.live(uid, &object).await? else { return Ok(Plan::default()) };
        let known = self.graph.lock().dependents_of(uid);
        let mut dependents = Vec::new();
        for (dependent, state) in known {
            if let Some(meta) = self.live(&dependent, &state).await? {
                dependents.push((state, meta));
            }
        }
        Ok(plan::orphan(uid, &object, &meta, &dependents))
    }
}

impl Reconcile for Collector {
    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Done> {
        Box::pin(self.judge(key))
    }
}

impl Collector {
    async fn judge(&self, key: &Key) -> Done {
        let planned = match key.namespace.as_str() {
            ORPHAN => self.orphan(&key.name).await,
            _ => self.attempt(&key.name).await,
        };
        let mut again = false;
        let outcome = match planned {
            Ok(plan) => {
                again = plan.retry;
                carry_out(&plan, &self.setup.client, &self.setup.recorder).await.map_err(|failure| failure.message)
            }
            Err(error) => Err(rest::message(&error)),
        };
        // A conflict means that the object changed: the watch will tell, but the key must not be lost meanwhile.
        let failed = outcome.inspect_err(|message| {
            tracing::debug!(controller = NAME, uid = key.name, error = message, "trying again later");
        });
        Done { failed: again || failed.is_err(), ..Done::default() }
    }
}
