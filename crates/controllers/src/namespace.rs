//! Namespace: empties a namespace that is being deleted, then lets it go.
//! Reads: Namespace, discovery, the content of terminating namespaces. Writes: deletions of content, Namespace/status,
//! Namespace/finalize.
//! Upstream counterpart: pkg/controller/namespace.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::{
    Api, Client, Key, Object,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::Timestamp;
use controller::{Done, Queue, Reconcile, Setup, drive};
use k8s_openapi::{
    api::core::v1::{Namespace, NamespaceCondition, NamespaceStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use tokio::sync::broadcast::error::RecvError;

use crate::discovery::{Offered, discover};

pub const NAME: &str = "namespace-controller";
/// The finalizer in `spec.finalizers` that this controller takes off.
const FINALIZER: &str = "kubernetes";

/// Lives: things may be made in it.
pub fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|s| s.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_none() && phase != Some("Terminating")
}

struct Namespaces {
    setup: Setup,
}

pub async fn run(setup: Setup) {
    let cache = setup.caches.of::<Namespace>();
    let queue = Arc::new(Queue::default());
    let feed = {
        let (cache, queue) = (cache.clone(), queue.clone());
        let mut changes = cache.subscribe();
        let add_all = move |queue: &Queue| {
            for namespace in cache.list().iter().filter(|n| n.metadata.deletion_timestamp.is_some()) {
                queue.add(Key::of(&**namespace));
            }
        };
        async move {
            add_all(&queue);
            loop {
                match changes.recv().await {
                    Ok(change) if change.new.as_ref().is_some_and(|n| n.metadata.deletion_timestamp.is_some()) => {
                        queue.add(change.key);
                    }
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => add_all(&queue),
                    Err(RecvError::Closed) => return,
                }
            }
        }
    };
    tokio::join!(feed, drive(NAME, queue, Arc::new(Namespaces { setup }), 10));
}

impl Reconcile for Namespaces {
    async fn reconcile(&self, key: &Key) -> Done {
        waypoint::controller::reconcile(&key.name);
        match self.empty(&key.name).await {
            Ok(requeue_after) => Done { requeue_after, ..Done::default() },
            Err(error) => {
                tracing::info!(controller = NAME, %key, message = rest::message(&error), "trying again later");
                Done { failed: true, ..Done::default() }
            }
        }
    }
}

/// What is left of a namespace's content after all of it was told to go.
#[derive(Debug, Default, PartialEq)]
struct Remains {
    /// Groups whose resources are unknown.
    undiscovered: Vec<String>,
    /// `resource: message` for what could not be deleted.
    errors: Vec<String>,
    /// How many objects of each `resource.group` are still there.
    objects: BTreeMap<String, usize>,
    /// On how many objects each finalizer still is.
    finalizers: BTreeMap<String, usize>,
}

impl Remains {
    fn is_nothing(&self) -> bool {
        self.undiscovered.is_empty() && self.errors.is_empty() && self.objects.is_empty()
    }
}

impl Namespaces {
    async fn empty(&self, name: &str) -> Result<Option<Duration>, kube::Error> {
        let client = &self.setup.client;
        let api: Api<Namespace> = Api::all(client.clone());
        // The server's own word, not the cache's: this deletes things.
        let Some(namespace) = api.find(name).await? else { return Ok(None) };
        let held = namespace.spec.as_ref().and_then(|s| s.finalizers.clone()).unwrap_or_default();
        if namespace.metadata.deletion_timestamp.is_none() || !held.iter().any(|f| f == FINALIZER) {
            return Ok(None);
        }
        let (offered, undiscovered) = discover(client).await?;
        let mut remains = Remains { undiscovered, ..Remains::default() };
        // Pods first: what they use (policies, secrets, services) stays until the last of them has ended.
        let (pods, others): (Vec<&Offered>, Vec<&Offered>) =
            offered.iter().filter(|o| o.namespaced).partition(|o| is_pods(o));
        for kind in pods {
            delete_all(client, name, kind, &mut remains).await;
        }
        if remains.is_nothing() {
            for kind in others {
                delete_all(client, name, kind, &mut remains).await;
            }
        }
        self.write_conditions(&namespace, &remains).await?;
        if remains.is_nothing() {
            self.finalize(name).await?;
            return Ok(None);
        }
        // Pods end by themselves soon; anything else waits for somebody's finalizer.
        let only_pods = remains.objects.keys().all(|r| r == "pods.") && remains.errors.is_empty();
        Ok(Some(Duration::from_secs(if only_pods { 1 } else { 5 })))
    }

    async fn write_conditions(&self, namespace: &Namespace, remains: &Remains) -> Result<(), kube::Error> {
        let mut new = namespace.clone();
        let status = new.status.get_or_insert_default();
        if !set_conditions(status, remains, clock::now_seconds()) {
            return Ok(());
        }
        let body = Verb::Update(new.to_value());
        let name = namespace.metadata.name.as_deref().unwrap_or("");
        rest::write(&self.setup.client, &Resource::of::<Namespace>(), "", name, "status", &body).await?;
        Ok(())
    }

    async fn finalize(&self, name: &str) -> Result<(), kube::Error> {
        waypoint::controller::act(name);
        let resource = Resource::of::<Namespace>();
        let mut namespace = Api::<Namespace>::all(self.setup.client.clone()).get(name).await?;
        if let Some(finalizers) = namespace.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
            finalizers.retain(|f| f != FINALIZER);
        }
        let body = Verb::Update(namespace.to_value());
        match rest::write(&self.setup.client, &resource, "", name, "finalize", &body).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

fn is_pods(offered: &Offered) -> bool {
    offered.resource.group.is_empty() && offered.resource.plural == "pods"
}

/// Tells everything of a kind to go, and notes what is still there.
async fn delete_all(client: &Client, namespace: &str, kind: &Offered, remains: &mut Remains) {
    let resource = &kind.resource;
    let title = format!("{}.{}", resource.plural, resource.group);
    let outcome = async {
        if !kind.can(&["list", "delete"]) && !kind.can(&["deletecollection"]) {
            return Ok(());
        }
        let list = || rest::list_metadata(client, resource, namespace);
        let before = if kind.can(&["list"]) { list().await? } else { Vec::new() };
        if kind.can(&["list"]) && before.is_empty() {
            return Ok(());
        }
        let options = DeleteOptions { propagation: Some("Background"), ..Default::default() };
        if kind.can(&["deletecollection"]) {
            rest::write(client, resource, namespace, "", "", &Verb::DeleteCollection(options)).await?;
        } else {
            for object in &before {
                let name = object.name.as_deref().unwrap_or("");
                match rest::write(client, resource, namespace, name, "", &Verb::Delete(options.clone())).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => drop(other?),
                }
            }
        }
        for object in list().await? {
            *remains.objects.entry(title.clone()).or_default() += 1;
            for finalizer in object.finalizers.into_iter().flatten() {
                *remains.finalizers.entry(finalizer).or_default() += 1;
            }
        }
        Ok::<(), kube::Error>(())
    };
    if let Err(error) = outcome.await {
        remains.errors.push(format!("{title}: {}", rest::message(&error)));
    }
}

/// Says in the status why the namespace is still there. Whether anything changed.
fn set_conditions(status: &mut NamespaceStatus, remains: &Remains, now: Timestamp) -> bool {
    let counted = |counts: &BTreeMap<String, usize>, join: &str| {
        let parts: Vec<String> =
            counts.iter().map(|(what, count)| format!("{what} {join} {count} resource instances")).collect();
        parts.join(", ")
    };
    let conditions = [
        (
            "NamespaceDeletionDiscoveryFailure",
            !remains.undiscovered.is_empty(),
            ("ResourcesDiscovered", "All resources successfully discovered".to_owned()),
            (
                "DiscoveryFailed",
                format!(
                    "Discovery failed for some groups, {} failing: {}",
                    remains.undiscovered.len(),
                    remains.undiscovered.join(", ")
                ),
            ),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed".to_owned()),
            ("GroupVersionParsingFailed", String::new()),
        ),
        (
            "NamespaceDeletionContentFailure",
            !remains.errors.is_empty(),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization".to_owned()),
            (
                "ContentDeletionFailed",
                format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    remains.errors.len(),
                    remains.errors.join(", ")
                ),
            ),
        ),
        (
            "NamespaceContentRemaining",
            !remains.objects.is_empty(),
            ("ContentRemoved", "All content successfully removed".to_owned()),
            ("SomeResourcesRemain", format!("Some resources are remaining: {}", counted(&remains.objects, "has"))),
        ),
        (
            "NamespaceFinalizersRemaining",
            !remains.finalizers.is_empty(),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished".to_owned()),
            (
                "SomeFinalizersRemain",
                format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    counted(&remains.finalizers, "in")
                ),
            ),
        ),
    ];
    let mut changed = false;
    let held = status.conditions.get_or_insert_default();
    for (kind, is_true, fine, wrong) in conditions {
        let (reason, message) = if is_true { wrong } else { fine };
        let word = if is_true { "True" } else { "False" };
        let old = held.iter().position(|c| c.type_ == kind);
        let same = |c: &NamespaceCondition| {
            c.status == word && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(&*message)
        };
        if old.is_some_and(|i| same(&held[i])) {
            continue;
        }
        let since = old.filter(|i| held[*i].status == word).and_then(|i| held[i].last_transition_time.clone());
        let new = NamespaceCondition {
            type_: kind.to_owned(),
            status: word.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        };
        match old {
            Some(i) => held[i] = new,
            None => held.push(new),
        }
        changed = true;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_say_what_remains() {
        let mut status = NamespaceStatus::default();
        let remains = Remains {
            objects: BTreeMap::from([("pods.".to_owned(), 2)]),
            finalizers: BTreeMap::from([("example.com/x".to_owned(), 1)]),
            ..Remains::default()
        };
        assert!(set_conditions(&mut status, &remains, Timestamp::UNIX_EPOCH));
        assert!(!set_conditions(&mut status, &remains, Timestamp::UNIX_EPOCH));
        let text = |status: &NamespaceStatus, kind: &str| {
            let c = status.conditions.as_ref().unwrap().iter().find(|c| c.type_ == kind).unwrap().clone();
            format!("{} {}: {}", c.status, c.reason.unwrap(), c.message.unwrap())
        };
        assert_eq!(
            text(&status, "NamespaceContentRemaining"),
            "True SomeResourcesRemain: Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            text(&status, "NamespaceFinalizersRemaining"),
            "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/x in 1 \
             resource instances"
        );
        assert!(set_conditions(&mut status, &Remains::default(), Timestamp::UNIX_EPOCH));
        assert_eq!(
            text(&status, "NamespaceContentRemaining"),
            "False ContentRemoved: All content successfully removed"
        );
    }
}
