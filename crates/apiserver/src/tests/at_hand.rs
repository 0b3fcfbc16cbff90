//! Requests that are served with what is known here: writes over a store that knows an older object, and reads while the place that
//! would know newer ones is away.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::future::BoxFuture;
use json::json;
use parking_lot::Mutex;
use store::{Commit, Entry, Page, Range, Refused, Result, Revision, Store, StoreError, Watch, embedded::Embedded};

use crate::{special::table::Specials, tests::conversation::Conversation};

/// A store that has some keys at hand as they once were.
struct Old {
    store: Embedded,
    known: Mutex<HashMap<String, Entry>>,
    /// Only what is known here is still answered.
    away: AtomicBool,
}

impl Old {
    fn new() -> Arc<Old> {
        Arc::new(Old { store: Embedded::memory(), known: Mutex::default(), away: AtomicBool::default() })
    }

    async fn asking<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        if self.away.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("etcd: nothing listens there".to_owned()));
        }
        answer.await
    }

    /// From here on the key is at hand as it is now.
    async fn remember(&self, key: &str) {
        let entry = self.store.get(key).await.unwrap().0.unwrap();
        self.known.lock().insert(key.to_owned(), entry);
    }
}

impl Store for Old {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, Revision)>> {
        Box::pin(self.asking(self.store.get(key)))
    }

    fn at_hand_up_to(&self) -> Option<Revision> {
        futures::FutureExt::now_or_never(self.store.revision())?.ok()
    }

    fn at_hand<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, bool)>> {
        let known = self.known.lock().get(key).cloned();
        Box::pin(async { Ok((known, false)) })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        match range.revision {
            Some(_) => self.store.range(range),
            None => Box::pin(self.asking(self.store.range(range))),
        }
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Entry>> {
        self.store.commit(commit)
    }

    fn commit_all(&self, commits: Vec<Commit>) -> BoxFuture<'_, Result<Vec<Entry>, Refused>> {
        self.store.commit_all(commits)
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Option<Revision>) -> BoxFuture<'a, Result<Watch>> {
        self.store.watch(prefix, after)
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        self.store.compact(revision)
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.request_progress()
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.asking(self.store.revision()))
    }
}

const X: &str = "/api/v1/namespaces/a/configmaps/x";

/// A server whose store has the map at hand with the label 1; it has another one by now.
async fn start(label: &str) -> Conversation {
    let store = Old::new();
    let c = Conversation::over(store.clone(), Specials::default()).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"l": "1"}}});
    assert_eq!(c.say("POST /api/v1/namespaces/a/configmaps", &map.to_string()).await.code, 201);
    store.remember("/registry/configmaps/a/x").await;
    assert_eq!(patch(&c, json!({"metadata": {"labels": {"l": label}}})).await.code, 200);
    c
}

async fn patch(c: &Conversation, patch: json::Value) -> crate::tests::conversation::Answer {
    c.say(&format!("PATCH {X}\ncontent-type: application/merge-patch+json"), &patch.to_string()).await
}

#[tokio::test(start_paused = true)]
async fn a_change_is_made_to_the_newest_object() {
    let c = start("2").await;
    let changed = patch(&c, json!({"data": {"k": "v"}})).await;
    assert_eq!((changed.code, changed.at("/metadata/labels/l")), (200, json!("2")), "{}", changed.text);
    assert_eq!(c.say(&format!("GET {X}"), "").await.at("/data/k"), "v");
}

/// It is one to the object as it is.
#[tokio::test(start_paused = true)]
async fn what_changes_nothing_in_an_older_object_is_written() {
    let c = start("2").await;
    let changed = patch(&c, json!({"metadata": {"labels": {"l": "1"}}})).await;
    assert_eq!((changed.code, changed.at("/metadata/labels/l")), (200, json!("1")), "{}", changed.text);
    assert_eq!(c.say(&format!("GET {X}"), "").await.at("/metadata/labels/l"), "1");
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_object_refuses_a_change() {
    let c = start("2").await;
    let tested = async |value: &str, to: &str| {
        let patch = json!([{"op": "test", "path": "/metadata/labels/l", "value": value},
            {"op": "replace", "path": "/metadata/labels/l", "value": to}]);
        c.say(&format!("PATCH {X}\ncontent-type: application/json-patch+json"), &patch.to_string()).await.code
    };
    assert_eq!(tested("1", "9").await, 422, "that was so once");
    assert_eq!(tested("2", "3").await, 200);

    let newest = c.say(&format!("GET {X}"), "").await.json();
    assert_eq!(newest["metadata"]["labels"]["l"], "3");
    let mut changed = newest.clone();
    changed["data"]["k"] = "w".into();
    assert_eq!(c.say(&format!("PUT {X}"), &changed.to_string()).await.code, 200);
    let again = c.say(&format!("PUT {X}"), &changed.to_string()).await;
    assert_eq!(again.code, 409, "{}", again.text);
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_not_changed() {
    let c = start("2").await;
    assert_eq!(c.say(&format!("DELETE {X}"), "").await.code, 200);
    for body in [json!({"data": {"k": "v"}}), json!({"metadata": {"labels": {"l": "1"}}})] {
        let changed = patch(&c, body).await;
        assert_eq!(changed.code, 404, "{}", changed.text);
    }
}

/// As upstream's cacher.
#[tokio::test(start_paused = true)]
async fn reads_of_what_is_known_ask_nobody() {
    let store = Old::new();
    let c = Conversation::over(store.clone(), Specials::default()).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
    let made = c.say("POST /api/v1/namespaces/a/configmaps", &map.to_string()).await;
    let version = made.at("/metadata/resourceVersion").as_str().expect("a version").to_owned();
    store.remember("/registry/configmaps/a/x").await;
    store.away.store(true, Ordering::Relaxed);
    let maps = "/api/v1/namespaces/a/configmaps";
    for (request, code) in [
        (format!("GET {X}"), 503),
        (format!("GET {X}?resourceVersion=0"), 200),
        (format!("GET {X}?resourceVersion={version}"), 200),
        (format!("GET {X}?resourceVersion=1000"), 503),
        (format!("GET {maps}/y?resourceVersion=0"), 404),
        (format!("GET {maps}"), 503),
        (format!("GET {maps}?resourceVersion=0"), 200),
        (format!("GET {maps}?resourceVersion=0&limit=1&labelSelector=a"), 200),
        (format!("GET {maps}?resourceVersion=0&resourceVersionMatch=NotOlderThan"), 200),
        (format!("GET {maps}?resourceVersion={version}"), 200),
        (format!("GET {maps}?resourceVersion={version}&resourceVersionMatch=Exact"), 200),
        (format!("GET {maps}?resourceVersion=1000"), 503),
    ] {
        let answer = c.say(&request, "").await;
        assert_eq!(answer.code, code, "{request}: {}", answer.text);
    }
}
