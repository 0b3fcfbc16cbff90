//! A store that counts what is asked of it, by operation and kind, under the names that upstream has for requests to etcd: whichever
//! store is below, dashboards find how fast it is.
//! Upstream counterpart: k8s.io/apiserver/pkg/storage/etcd3/metrics.

use std::{collections::HashMap, sync::Arc};

use api::kind::Definition;
use clock::Instant;
use futures::future::BoxFuture;
use meter::{Each, Metric, Metrics, Series, labels, told};
use parking_lot::RwLock;
use store::{Change, Commit, Entry, Expect, Page, Range, Refused, Result, Revision, Store, StoreError, Watch};

use super::kinds::Kinds;

static SECONDS: Metric = Metric::histogram(
    "etcd_request_duration_seconds",
    "[ALPHA] Etcd request latency in seconds for each operation and object type.",
    meter::REQUESTS,
);
static REQUESTS: Metric =
    Metric::counter("etcd_requests_total", "[ALPHA] Etcd request counts for each operation and object type.");
static ERRORS: Metric = Metric::counter(
    "etcd_request_errors_total",
    "[ALPHA] Etcd failed request counts for each operation and object type.",
);
static OBJECTS: Metric = Metric::gauge(
    "apiserver_resource_objects",
    "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.",
);
static OBJECTS_BY_NAME: Metric = Metric::gauge(
    "apiserver_storage_objects",
    "[STABLE] [DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the time of last check split \
     by kind. In case of a fetching error, the value will be -1.",
);

#[derive(Debug, Clone, Copy)]
enum Operation {
    Get,
    List,
    Create,
    Update,
    Delete,
}

const NAMES: [&str; 5] = ["get", "list", "create", "update", "delete"];

impl Operation {
    fn of(commit: &Commit) -> Operation {
        match (&commit.change, commit.expect) {
            (Change::Delete, _) => Operation::Delete,
            (Change::Put { .. }, Expect::Absent) => Operation::Create,
            (Change::Put { .. }, _) => Operation::Update,
        }
    }
}

/// The series of one kind.
struct Counted {
    group: String,
    resource: String,
    seconds: Each<5>,
    requests: Each<5>,
    errors: Each<5>,
}

/// Another store, measured.
pub struct Measured {
    store: Arc<dyn Store>,
    kinds: Arc<Kinds>,
    metrics: Metrics,
    /// By the kinds' storage prefixes.
    known: RwLock<HashMap<String, Arc<Counted>>>,
}

impl Measured {
    pub fn new(store: Arc<dyn Store>, kinds: Arc<Kinds>) -> Self {
        Measured { store, kinds, metrics: Metrics::new(), known: RwLock::default() }
    }

    /// The series of the kind that a key is of; what is no object's is not counted.
    fn of(&self, key: &str) -> Option<Arc<Counted>> {
        let table = self.kinds.table();
        let (prefix, definition) = table.of_key(key)?;
        if let Some(known) = self.known.read().get(prefix) {
            return Some(known.clone());
        }
        let (group, resource) = (definition.group.clone(), definition.plural.clone());
        let (seconds, requests, errors) = Default::default();
        let counted = Arc::new(Counted { group, resource, seconds, requests, errors });
        Some(self.known.write().entry(prefix.to_owned()).or_insert(counted).clone())
    }

    async fn measure<T, E>(
        &self,
        key: &str,
        operation: Operation,
        failed: impl Fn(&E) -> bool,
        asking: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        let began = Instant::now();
        let answer = asking.await;
        if let Some(counted) = self.of(key) {
            let at = operation as usize;
            let labels: [(&str, &str); 3] =
                [("group", &counted.group), ("operation", NAMES[at]), ("resource", &counted.resource)];
            let of = |metric| -> Arc<Series> { self.metrics.series(metric, &labels) };
            counted.seconds.at(at, || of(&SECONDS)).observe(began.elapsed().as_secs_f64());
            counted.requests.at(at, || of(&REQUESTS)).count();
            if answer.as_ref().is_err_and(failed) {
                counted.errors.at(at, || of(&ERRORS)).count();
            }
        }
        answer
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        self.metrics.render()
    }

    /// The lines that say how many objects there are of each kind.
    pub async fn count(&self) -> String {
        let table = self.kinds.table();
        // Reviews and figures are kinds too, and never stored.
        let stored = |d: &&Arc<Definition>| ["create", "list"].iter().all(|verb| d.verbs.iter().any(|one| one == verb));
        let mut kinds: Vec<&Arc<Definition>> = table.all().iter().filter(stored).collect();
        kinds.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural)));
        kinds.dedup_by(|a, b| a.storage_prefix == b.storage_prefix);
        let revision = self.store.revision().await.ok();
        let mut counts = Vec::new();
        for definition in kinds {
            let range = Range::prefix(&format!("/registry/{}/", definition.storage_prefix));
            let found = self.store.range(Range { limit: 1, revision, ..range }).await;
            counts.push((definition, found.map_or(-1.0, |page| (page.entries.len() + page.remaining) as f64)));
        }
        let by_both = counts.iter().map(|(definition, count)| {
            (labels(&[("group", &definition.group), ("resource", &definition.plural)]), *count)
        });
        let by_name = counts.iter().map(|(definition, count)| {
            let dot = if definition.group.is_empty() { "" } else { "." };
            (labels(&[("resource", &format!("{}{dot}{}", definition.plural, definition.group))]), *count)
        });
        told(&OBJECTS, by_both) + &told(&OBJECTS_BY_NAME, by_name)
    }
}

/// A compare-and-swap that did not fit is an answer as good as another.
fn failed(error: &StoreError) -> bool {
    !matches!(error, StoreError::Conflict { .. })
}

impl Store for Measured {
    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, Revision)>> {
        Box::pin(self.measure(key, Operation::Get, failed, self.store.get(key)))
    }

    fn at_hand<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, bool)>> {
        self.store.at_hand(key)
    }

    fn at_hand_up_to(&self) -> Option<Revision> {
        self.store.at_hand_up_to()
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move {
            let key = range.start.clone();
            self.measure(&key, Operation::List, failed, self.store.range(range)).await
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Entry>> {
        Box::pin(async move {
            let (key, operation) = (commit.key.clone(), Operation::of(&commit));
            self.measure(&key, operation, failed, self.store.commit(commit)).await
        })
    }

    fn commit_all(&self, commits: Vec<Commit>) -> BoxFuture<'_, Result<Vec<Entry>, Refused>> {
        Box::pin(async move {
            let Some((key, operation)) = commits.first().map(|first| (first.key.clone(), Operation::of(first))) else {
                return self.store.commit_all(commits).await;
            };
            let failed = |refused: &Refused| failed(&refused.error);
            self.measure(&key, operation, failed, self.store.commit_all(commits)).await
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Option<Revision>) -> BoxFuture<'a, Result<Watch>> {
        self.store.watch(prefix, after)
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        self.store.compact(revision)
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<()>> {
        self.store.request_progress()
    }

    fn outdated<'a>(&'a self, entry: &'a Entry) -> BoxFuture<'a, Result<bool>> {
        self.store.outdated(entry)
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision>> {
        self.store.revision()
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::conversation::Conversation;

    #[tokio::test(start_paused = true)]
    async fn the_store_is_measured_by_operation_and_kind() {
        let conversation = Conversation::start().await;
        let map = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}"#;
        let maps = "/api/v1/namespaces/default/configmaps";
        assert_eq!(conversation.say(&format!("POST {maps}"), map).await.code, 201);
        assert_eq!(conversation.say(&format!("POST {maps}"), map).await.code, 409);
        assert_eq!(conversation.say(&format!("GET {maps}/a"), "").await.code, 200);
        let page = conversation.say("GET /metrics", "").await.text;
        for line in [
            r#"etcd_requests_total{group="",operation="create",resource="configmaps"} 2"#,
            r#"etcd_request_duration_seconds_count{group="",operation="get",resource="configmaps"} 1"#,
            r#"apiserver_resource_objects{group="",resource="configmaps"} 1"#,
            r#"apiserver_storage_objects{resource="configmaps"} 1"#,
            r#"apiserver_storage_objects{resource="deployments.apps"} 0"#,
        ] {
            assert!(page.lines().any(|one| one == line), "{line} in {page}");
        }
        assert!(!page.contains("etcd_request_errors_total"), "a conflict is no failure");
    }
}
