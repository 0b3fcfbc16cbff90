//! A store that is copied into another one.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use store::{
    Change, Commit, Expect, Range, Store,
    embedded::Embedded,
    transfer::{Copied, TransferError, copy},
};

async fn put(store: &dyn Store, key: &str, value: &str, ttl_seconds: Option<u32>) {
    let change = Change::Put { value: Bytes::copy_from_slice(value.as_bytes()), ttl_seconds };
    store.commit(Commit { key: key.into(), expect: Expect::Any, change }).await.unwrap();
}

async fn held(store: &dyn Store) -> BTreeMap<Arc<str>, Bytes> {
    store.range(Range::prefix("/registry/")).await.unwrap().entries.into_iter().map(|e| (e.key, e.value)).collect()
}

/// More keys than a page has, some written twice, one gone, one that lives for a while, one beside the prefix.
async fn filled() -> Embedded {
    let store = Embedded::memory();
    for n in 0..1203 {
        put(&store, &format!("/registry/pods/default/p-{n}"), &format!("{{\"n\":{n}}}"), None).await;
    }
    put(&store, "/registry/pods/default/p-7", "{\"n\":\"again\"}", None).await;
    put(&store, "/registry/events/default/e", "{}", Some(3600)).await;
    put(&store, "/elsewhere/x", "{}", None).await;
    let gone = Commit { key: "/registry/pods/default/p-8".into(), expect: Expect::Any, change: Change::Delete };
    store.commit(gone).await.unwrap();
    store
}

fn lifetime(key: &str) -> Option<u32> {
    key.starts_with("/registry/events/").then_some(3600)
}

async fn is_copied(from: &dyn Store, to: &dyn Store) {
    let revision = from.revision().await.unwrap();
    let copied = copy(from, to, "/registry/", lifetime).await.unwrap();
    assert_eq!(copied, Copied { keys: 1203, revision });
    assert_eq!(held(to).await, held(from).await);
    assert!(to.get("/elsewhere/x").await.unwrap().0.is_none());
    let again = copy(from, to, "/registry/", lifetime).await;
    assert!(matches!(again, Err(TransferError::NotEmpty(_))), "{again:?}");
}

#[tokio::test]
async fn every_key_comes_along_and_nothing_is_mixed() {
    is_copied(&filled().await, &Embedded::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_an_etcd_and_back() {
    let Some(server) = crate::etcd::Server::start() else { return };
    let (first, etcd, last) = (filled().await, server.connect("").await, Embedded::memory());
    is_copied(&first, &etcd).await;
    is_copied(&etcd, &last).await;
    assert_eq!(held(&last).await, held(&first).await);
}
