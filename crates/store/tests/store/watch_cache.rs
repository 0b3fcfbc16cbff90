//! The copy of an etcd in memory: it does what every backend must do, is not confused by other users of the same etcd, and
//! is there again when etcd is.

use std::{sync::Arc, time::Duration};

use store::{
    Batch, Expect, Range, Revision, StoreError,
    etcd::{Options, watch_cache::WatchCache},
};

use crate::{
    behaviour::{Shared, delete, events, part, put, soon},
    etcd::Server,
};

async fn cached(server: &Server) -> Shared {
    Arc::new(WatchCache::open(server.connect("/cached").await, "/").await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behaviour_through_a_copy() {
    let Some(server) = Server::start() else { return };
    crate::behaviour::all(cached(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_pass_through_the_function_as_they_come() {
    let Some(server) = Server::start() else { return };
    let beside: Shared = Arc::new(server.connect("/cached").await);
    let first = put(&beside, "/a", "x", Expect::Absent).await.unwrap().modified;
    let etcd = server.connect("/cached").await.reading(|value| [b"<", &*value].concat().into());
    let store: Shared = Arc::new(WatchCache::open(etcd, "/").await.unwrap());
    put(&beside, "/b", "y", Expect::Absent).await.unwrap();
    let mut watch = store.watch("/", Some(first)).await.unwrap();
    assert_eq!(events(&mut watch, 1).await, ["/b=<y"]);
    assert_eq!(store.get("/a").await.unwrap().0.unwrap().value, "<x");
    let Err(StoreError::Conflict { current: Some(met), .. }) = put(&store, "/a", "z", Expect::Absent).await else {
        panic!("it was there")
    };
    assert_eq!(met.value, "<x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_write_to_the_same_etcd() {
    let Some(server) = Server::start() else { return };
    let beside: Shared = Arc::new(server.connect("/beside").await);
    let (one, two) = (cached(&server).await, cached(&server).await);
    let mut watch = one.watch("/", None).await.unwrap();
    for n in 0..3 {
        let key = format!("/k{n}");
        let written = put(&one, &key, "1", Expect::Absent).await.unwrap();
        assert_eq!(two.get(&key).await.unwrap().0, Some(written), "what one acknowledged, the other reads");
        let theirs = put(&beside, "/their", &n.to_string(), Expect::Any).await.unwrap().modified;
        // Nothing below the prefix changed at that revision, and yet nobody waits for it in vain.
        let page = soon(two.range(Range::prefix("/"))).await.unwrap();
        assert!(page.revision >= theirs && page.entries.len() == n + 1, "{page:?}");
    }
    assert_eq!(events(&mut watch, 3).await, ["/k0=1", "/k1=1", "/k2=1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_changes_of_a_transaction_stay_together() {
    let Some(server) = Server::start() else { return };
    let store = cached(&server).await;
    let start = store.revision().await.unwrap();
    let all: Vec<String> = (0..100).map(|n| format!("/k{n:03}")).collect();
    for chunk in all.chunks(50) {
        store.commit_all(chunk.iter().map(|key| part(key, Some("1"), Expect::Absent)).collect()).await.unwrap();
    }
    let past = |store: &Shared| {
        let store = store.clone();
        async move {
            let mut watch = store.watch("/", Some(start)).await.unwrap();
            let mut sizes = Vec::new();
            while sizes.iter().sum::<usize>() < 100 {
                let Batch { events, .. } = soon(futures::StreamExt::next(&mut watch)).await.unwrap().unwrap();
                sizes.push(events.len());
            }
            sizes
        }
    };
    assert!(past(&store).await.iter().all(|size| size % 50 == 0));
    // One that begins later knows them too.
    let late = cached(&server).await;
    assert!(past(&late).await.iter().all(|size| size % 50 == 0));
    let first = late.range(Range { revision: Some(start + 1), ..Range::prefix("/") }).await.unwrap();
    assert_eq!(first.entries.len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_do_not_notice_that_etcd_was_away() {
    let Some(mut server) = Server::start() else { return };
    let store = cached(&server).await;
    let mut watch = store.watch("/", None).await.unwrap();
    put(&store, "/a", "1", Expect::Absent).await.unwrap();
    server.kill();
    for failed in [store.get("/a").await.map(drop), put(&store, "/a", "2", Expect::Any).await.map(drop)] {
        let Err(StoreError::Unavailable(why)) = failed else { panic!("{failed:?}") };
        let is_plain =
            ["etcd: nothing listens there", "etcd: the connection to it ended"].iter().any(|s| why.starts_with(s));
        assert!(is_plain, "{why}");
    }
    // The copy is still there for those to whom it is new enough.
    assert!(store.at_hand("/a").await.unwrap().0.is_some_and(|entry| entry.value == "1"));
    let known = store.at_hand_up_to();
    let page = store.range(Range { revision: known, ..Range::prefix("/") }).await.unwrap();
    assert_eq!((page.entries.len(), Some(page.revision)), (1, known));
    server.start_again();
    // By another way, so that the cache has to come back by itself.
    let beside: Shared = Arc::new(server.connect("/cached").await);
    put(&beside, "/b", "1", Expect::Absent).await.unwrap();
    delete(&beside, "/a", Expect::Any).await.unwrap();
    assert_eq!(events(&mut watch, 3).await, ["/a=1", "/b=1", "/a-1"]);
    assert_eq!(soon(store.get("/a")).await.unwrap().0, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_forgotten_meanwhile_ends_the_watches() {
    let Some(mut server) = Server::start() else { return };
    let store = cached(&server).await;
    put(&store, "/a", "1", Expect::Absent).await.unwrap();
    put(&store, "/b", "1", Expect::Absent).await.unwrap();
    let mut watch = store.watch("/", None).await.unwrap();
    // The cache is cut off while others change and forget: it looks for etcd where none is, until that is done.
    let place = server.move_away();
    let beside: Shared = Arc::new(server.connect("/cached").await);
    delete(&beside, "/a", Expect::Any).await.unwrap();
    let newest = put(&beside, "/b", "2", Expect::Any).await.unwrap().modified;
    beside.compact(newest).await.unwrap();
    server.move_back(place);
    let ended = soon(futures::StreamExt::next(&mut watch)).await;
    assert!(matches!(ended, Some(Err(StoreError::Unavailable(_)))), "{ended:?}");
    let page = soon(store.range(Range::prefix("/"))).await.unwrap();
    assert_eq!((page.entries.len(), &page.entries[0].value[..]), (1, &b"2"[..]));
    let old = store.watch("/", Some(newest - 1)).await.map(drop);
    assert!(matches!(old, Err(StoreError::Compacted { .. })), "{old:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_goes_back_as_far_as_etcd_does() {
    let Some(server) = Server::start() else { return };
    let beside: Shared = Arc::new(server.connect("/cached").await);
    let mut written = Vec::new();
    for n in 0..5 {
        written.push(put(&beside, "/a", &n.to_string(), Expect::Any).await.unwrap().modified);
    }
    beside.compact(written[2]).await.unwrap();
    let store = cached(&server).await;
    let mut watch = store.watch("/", Some(written[2])).await.unwrap();
    assert_eq!(events(&mut watch, 2).await, ["/a~3", "/a~4"]);
    let old = store.watch("/", Some(written[1])).await.map(drop);
    assert!(matches!(old, Err(StoreError::Compacted { .. })), "{old:?}");
}

/// A frozen etcd keeps its connections: only time tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_says_nothing_is_not_waited_for_long() {
    let Some(server) = Server::start() else { return };
    let store = cached(&server).await;
    put(&store, "/a", "1", Expect::Absent).await.unwrap();
    server.signal("STOP");
    // A question for each would take minutes.
    let many = futures::future::join_all((0..50).map(|_| store.get("/a")));
    let (reads, write) = soon(futures::future::join(many, put(&store, "/b", "1", Expect::Absent))).await;
    for outcome in reads.into_iter().map(|read| read.map(drop)).chain([write.map(drop)]) {
        assert!(
            matches!(&outcome, Err(StoreError::Unavailable(why)) if why == "etcd did not answer in time"),
            "{outcome:?}"
        );
    }
    server.signal("CONT");
    let found = soon(async {
        loop {
            if let Ok((found, _)) = store.get("/a").await {
                return found;
            }
        }
    });
    assert!(found.await.is_some());
}

/// etcd keeps its history until somebody tells it otherwise: servers do, one at a time, and no more than what is old.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_have_etcd_forget_what_is_old() {
    let Some(server) = Server::start() else { return };
    let every = Some(Duration::from_millis(300));
    let options = || Options { prefix: "/cached".to_owned(), compaction: every, ..Options::default() };
    let beside: Shared = Arc::new(server.connect("").await);
    let first = put(&beside, "/old", "1", Expect::Absent).await.unwrap().modified;
    let is_there = async |revision: Revision| {
        let past = beside.range(Range { revision: Some(revision), ..Range::prefix("/old") }).await;
        match past {
            Ok(_) => true,
            Err(StoreError::Compacted { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    };
    let open = async || WatchCache::open(server.connect_with(options()).await, "/").await.unwrap();
    let (one, _two): (Shared, WatchCache) = (Arc::new(open().await), open().await);
    let mut watch = one.watch("/", None).await.unwrap();
    put(&one, "/a", "1", Expect::Absent).await.unwrap();
    soon(async {
        while is_there(first).await {
            tokio::time::sleep(Duration::from_millis(20)).await
        }
    })
    .await;
    // The present is not forgotten, and those who follow notice nothing.
    put(&one, "/b", "1", Expect::Absent).await.unwrap();
    assert_eq!(one.range(Range::prefix("/")).await.unwrap().entries.len(), 2);
    assert_eq!(events(&mut watch, 2).await, ["/a=1", "/b=1"]);
    // They agree by the key by which upstream's servers do.
    let key = beside.get("compact_rev_key").await.unwrap().0.expect("it is written");
    let said: Revision = std::str::from_utf8(&key.value).unwrap().parse().unwrap();
    assert!(said >= first && said < key.modified, "{said} at {}", key.modified);
}
