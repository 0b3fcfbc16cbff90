//! Objects that come back while servers run, and servers over one store that say where each of them is.

use std::{future::Future, sync::Arc};

use api::{features::Features, kind::Target};
use clock::Duration;
use futures::future::BoxFuture;
use json::{Value, json};
use store::{
    Change, Commit, Entry, Expect, Page, Range, Refused, Result, Revision, Store, StoreError, Watch, embedded::Embedded,
};

use super::{cluster::Cluster, endpoints::LEASES, ensure, keep::Keeper};
use crate::storage::object_store::ObjectStore;

/// A store that several servers have.
struct Shared(Embedded);

impl Store for Shared {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, Revision)>> {
        self.0.get(key)
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        self.0.range(range)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Entry>> {
        self.0.commit(commit)
    }

    fn commit_all(&self, commits: Vec<Commit>) -> BoxFuture<'_, Result<Vec<Entry>, Refused>> {
        self.0.commit_all(commits)
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Option<Revision>) -> BoxFuture<'a, Result<Watch>> {
        self.0.watch(prefix, after)
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        self.0.compact(revision)
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.request_progress()
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision>> {
        self.0.revision()
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// A server, as far as it keeps its objects.
struct Kept {
    objects: Arc<ObjectStore>,
    keeper: Arc<Keeper>,
    task: tokio::task::JoinHandle<()>,
}

impl Kept {
    async fn start(store: Arc<dyn Store>, address: &str) -> Kept {
        let objects = ObjectStore::new(store).await.unwrap();
        let now = clock::now_seconds().to_string();
        let cluster = Cluster { advertise_address: address.parse().unwrap(), now, ..Cluster::example() };
        let keeper = Arc::new(Keeper::new(objects.clone(), &cluster).await.unwrap());
        ensure(&objects, &cluster, Features::default()).await.unwrap();
        let task = tokio::spawn(keeper.clone().run());
        Kept { objects, keeper, task }
    }

    async fn read(&self, (group, plural): (&str, &str), namespace: &str, name: &str) -> Value {
        let definition = self.objects.definition(group, plural).unwrap();
        self.objects.get(&definition, namespace, name).await.unwrap_or_default()
    }

    async fn delete(&self, (group, plural): (&str, &str), namespace: &str, name: &str) {
        let definition = self.objects.definition(group, plural).unwrap();
        let entry = self.objects.entry(&definition, namespace, name).await.unwrap();
        self.objects.swap(&definition, entry).remove().await.unwrap();
    }

    async fn change(&self, (group, plural): (&str, &str), of: (&str, &str), field: &str, value: Value) {
        let definition = self.objects.definition(group, plural).unwrap();
        let change = |object: &mut Value| {
            object[field] = value.clone();
            Ok(true)
        };
        self.objects.update(&definition, of, Target::Object, change).await.unwrap();
    }

    /// The addresses of the Endpoints, if the slice has the same.
    async fn addresses(&self) -> Option<Vec<String>> {
        let texts = |list: &Value, address: fn(&Value) -> &Value| -> Vec<String> {
            let list = list.as_array().into_iter().flatten();
            list.map(|one| address(one).as_str().unwrap_or_default().to_owned()).collect()
        };
        let endpoints = self.read(ENDPOINTS, "default", "kubernetes").await;
        let slice = self.read(SLICES, "default", "kubernetes").await;
        let endpoints = texts(&endpoints["subsets"][0]["addresses"], |one| &one["ip"]);
        (endpoints == texts(&slice["endpoints"], |one| &one["addresses"][0])).then_some(endpoints)
    }

    async fn has_addresses(&self, expected: &[&str]) {
        until(&format!("{expected:?}"), async || self.addresses().await.is_some_and(|found| found == expected)).await;
    }
}

const SERVICES: (&str, &str) = ("", "services");
const ENDPOINTS: (&str, &str) = ("", "endpoints");
const SLICES: (&str, &str) = ("discovery.k8s.io", "endpointslices");
const MAPS: (&str, &str) = ("", "configmaps");
const AUTHENTICATION: &str = "extension-apiserver-authentication";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    for _ in 0..3000 {
        if condition().await {
            return;
        }
        clock::sleep(Duration::from_millis(10)).await;
    }
    panic!("in vain: {what}");
}

fn memory() -> Arc<dyn Store> {
    Arc::new(Embedded::memory())
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_or_changed_comes_back() {
    let one = Kept::start(memory(), "10.0.0.1").await;
    one.has_addresses(&["10.0.0.1"]).await;
    let told = one.read(MAPS, "kube-system", AUTHENTICATION).await["data"].clone();
    assert!(told["client-ca-file"].is_string());
    for (kind, namespace, name) in [
        (SERVICES, "default", "kubernetes"),
        (ENDPOINTS, "default", "kubernetes"),
        (SLICES, "default", "kubernetes"),
        (MAPS, "kube-system", AUTHENTICATION),
        (("", "namespaces"), "", "kube-node-lease"),
    ] {
        one.delete(kind, namespace, name).await;
        until(name, async || one.read(kind, namespace, name).await.is_object()).await;
    }
    one.has_addresses(&["10.0.0.1"]).await;
    assert_eq!(one.read(SERVICES, "default", "kubernetes").await["spec"]["clusterIP"], "10.96.0.1");

    let of = ("default", "kubernetes");
    one.change(ENDPOINTS, of, "subsets", json!([])).await;
    one.has_addresses(&["10.0.0.1"]).await;
    let other = json!([{"addresses": ["10.9.9.9"], "conditions": {"ready": true}}]);
    one.change(SLICES, of, "endpoints", other).await;
    one.has_addresses(&["10.0.0.1"]).await;
    one.change(MAPS, ("kube-system", AUTHENTICATION), "data", json!({"mine": "x"})).await;
    until("data", async || one.read(MAPS, "kube-system", AUTHENTICATION).await["data"] == told).await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_server_writes_nothing() {
    let one = Kept::start(memory(), "10.0.0.1").await;
    // When this is mended, everything before was.
    one.delete(MAPS, "kube-system", AUTHENTICATION).await;
    until("the map", async || one.read(MAPS, "kube-system", AUTHENTICATION).await.is_object()).await;
    clock::sleep(Duration::from_secs(1)).await;
    let before = one.objects.store.revision().await.unwrap();
    clock::sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(one.objects.store.revision().await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn what_is_told_next_is_what_is_restored() {
    let one = Kept::start(memory(), "10.0.0.1").await;
    let next = Cluster::example();
    one.keeper.tell(&next).await.unwrap();
    one.delete(MAPS, "kube-system", AUTHENTICATION).await;
    until("the next authority", async || {
        let data = &one.read(MAPS, "kube-system", AUTHENTICATION).await["data"];
        data["client-ca-file"].as_str().is_some_and(|text| text.trim() == next.client_authority.trim())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_note_about_tokens_is_made_twice_an_hour_at_most() {
    let one = Kept::start(memory(), "10.0.0.1").await;
    let is_day = async || {
        let note = one.read(MAPS, "kube-system", TRACKING).await;
        note["data"]["since"].as_str().is_some_and(super::system::is_day)
    };
    assert!(is_day().await);
    one.change(MAPS, ("kube-system", TRACKING), "data", json!({"since": "today"})).await;
    until("a day", is_day).await;
    one.delete(MAPS, "kube-system", TRACKING).await;
    clock::sleep(Duration::from_secs(29 * 60)).await;
    assert!(!is_day().await, "this server made it at its start");
    clock::sleep(Duration::from_secs(2 * 60)).await;
    until("a day", is_day).await;
}

#[tokio::test(start_paused = true)]
async fn servers_of_one_store_keep_their_own_addresses() {
    let store: Arc<dyn Store> = Arc::new(Shared(Embedded::memory()));
    let first = Kept::start(store.clone(), "10.0.0.1").await;
    first.has_addresses(&["10.0.0.1"]).await;
    let second = Kept::start(store.clone(), "10.0.0.2").await;
    let third = Kept::start(store.clone(), "10.0.0.3").await;
    first.has_addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]).await;
    // Nobody undoes what another one wrote.
    clock::sleep(Duration::from_secs(1)).await;
    let endpoints = first.read(ENDPOINTS, "default", "kubernetes").await;
    clock::sleep(Duration::from_secs(120)).await;
    assert_eq!(first.read(ENDPOINTS, "default", "kubernetes").await, endpoints);
    first.delete(ENDPOINTS, "default", "kubernetes").await;
    first.has_addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]).await;
    // One stops in order, the next one dies.
    third.keeper.leave().await;
    assert_eq!(first.addresses().await.unwrap(), ["10.0.0.1", "10.0.0.2"]);
    second.task.abort();
    // The store ends the key of a server that writes it no more.
    let (key, change) = (format!("{LEASES}10.0.0.2").into(), Change::Delete);
    store.commit(Commit { key, expect: Expect::Any, change }).await.unwrap();
    first.has_addresses(&["10.0.0.1"]).await;
    // The last one is told of still: there is nobody else to ask.
    first.keeper.leave().await;
    clock::sleep(Duration::from_secs(60)).await;
    assert_eq!(first.addresses().await.unwrap(), ["10.0.0.1"]);
    assert!(first.task.is_finished() && third.task.is_finished(), "who left does nothing more");
}
