//! The duties of every backend, as one list of checks. Each check gets a prefix of its own.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use store::{Batch, Change, Commit, Entry, Expect, Range, Refused, Result, Revision, Store, StoreError, Watch};

pub type Shared = Arc<dyn Store>;

pub async fn put(store: &Shared, key: &str, value: &str, expect: Expect) -> Result<Entry> {
    let change = Change::Put { value: Bytes::copy_from_slice(value.as_bytes()), ttl_seconds: None };
    store.commit(Commit { key: key.into(), expect, change }).await
}

pub async fn delete(store: &Shared, key: &str, expect: Expect) -> Result<Entry> {
    store.commit(Commit { key: key.into(), expect, change: Change::Delete }).await
}

/// One part of a transaction: with a value to write, without to delete.
pub fn part(key: &str, value: Option<&str>, expect: Expect) -> Commit {
    let put = |value: &str| Change::Put { value: Bytes::copy_from_slice(value.as_bytes()), ttl_seconds: None };
    Commit { key: key.into(), expect, change: value.map_or(Change::Delete, put) }
}

fn keys(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|e| &*e.key).collect()
}

/// Waits for a step, and fails the test rather than hang.
pub async fn soon<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), step).await.expect("the store answers within 20 s")
}

async fn next(watch: &mut Watch) -> Result<Batch> {
    soon(watch.next()).await.expect("the watch goes on")
}

/// Reads until `count` events came; each as "key=value", "key~value" for a change and "key-value" for a removal.
pub async fn events(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    let mut last = 0;
    while seen.len() < count {
        let batch = next(watch).await.unwrap();
        for event in batch.events {
            assert!(event.revision > last && event.revision <= batch.revision, "events come in order");
            last = event.revision;
            let text = |e: &Entry| String::from_utf8(e.value.to_vec()).unwrap();
            seen.push(match (&event.entry, &event.previous) {
                (Some(new), None) => format!("{}={}", event.key, text(new)),
                (Some(new), Some(_)) => format!("{}~{}", event.key, text(new)),
                (None, Some(old)) => format!("{}-{}", event.key, text(old)),
                (None, None) => panic!("an event without a state"),
            });
        }
    }
    seen
}

/// Runs the whole list.
pub async fn all(store: Shared) {
    create_update_delete(&store, "/create/").await;
    conflicts(&store, "/conflicts/").await;
    transactions(&store, "/transactions/").await;
    transactions_at_once(&store, "/at-once/").await;
    ranges(&store, "/ranges/").await;
    the_past(&store, "/past/").await;
    watching(&store, "/watching/").await;
    progress(&store, "/progress/").await;
    concurrent_writers(&store, "/concurrent/").await;
    expiry(&store, "/expiry/").await;
    compaction(&store, "/compaction/").await;
}

async fn create_update_delete(store: &Shared, p: &str) {
    let key = format!("{p}a");
    let before = store.revision().await.unwrap();
    assert!(before >= 1, "revision 0 means \"any\" to clients");
    let created = put(store, &key, "1", Expect::Absent).await.unwrap();
    assert_eq!((created.created, created.modified), (before + 1, before + 1));
    let updated = put(store, &key, "2", Expect::Modified(created.modified)).await.unwrap();
    assert_eq!((updated.created, updated.modified, &updated.value[..]), (before + 1, before + 2, &b"2"[..]));
    assert_eq!(store.get(&key).await.unwrap(), (Some(updated.clone()), before + 2));
    let removed = delete(store, &key, Expect::Modified(updated.modified)).await.unwrap();
    assert_eq!((removed.created, removed.modified, &removed.value[..]), (before + 1, before + 3, &b"2"[..]));
    assert_eq!(store.get(&key).await.unwrap(), (None, before + 3));
    let again = put(store, &key, "3", Expect::Any).await.unwrap();
    assert_eq!((again.created, again.modified), (before + 4, before + 4), "a new incarnation");
    assert_eq!(store.revision().await.unwrap(), before + 4);
}

async fn conflicts(store: &Shared, p: &str) {
    let key = format!("{p}a");
    let current = |outcome: Result<Entry>| match outcome {
        Err(StoreError::Conflict { current, .. }) => current.map(|e| e.modified),
        other => panic!("expected a conflict, got {other:?}"),
    };
    let start = store.revision().await.unwrap();
    assert_eq!(current(put(store, &key, "1", Expect::Modified(start)).await), None);
    assert_eq!(current(delete(store, &key, Expect::Any).await), None);
    assert_eq!(current(delete(store, &key, Expect::Modified(start)).await), None);
    assert_eq!(store.revision().await.unwrap(), start, "a conflict takes no revision");
    let one = put(store, &key, "1", Expect::Any).await.unwrap().modified;
    assert_eq!(current(put(store, &key, "2", Expect::Absent).await), Some(one));
    let two = put(store, &key, "2", Expect::Modified(one)).await.unwrap().modified;
    assert_eq!(current(put(store, &key, "3", Expect::Modified(one)).await), Some(two));
    assert_eq!(current(delete(store, &key, Expect::Modified(one)).await), Some(two));
}

async fn transactions(store: &Shared, p: &str) {
    let key = |name: &str| format!("{p}{name}");
    let parts = |list: &[(&str, Option<&str>, Expect)]| -> Vec<Commit> {
        list.iter().map(|(name, value, expect)| part(&key(name), *value, *expect)).collect()
    };
    let old = put(store, &key("old"), "0", Expect::Absent).await.unwrap();
    let made = [("a", Some("1"), Expect::Absent), ("b", Some("2"), Expect::Any), ("old", None, Expect::Any)];
    let done = store.commit_all(parts(&made)).await.unwrap();
    let newest = store.revision().await.unwrap();
    assert!(done.iter().all(|entry| entry.modified > old.modified && entry.modified <= newest));
    assert_eq!(done[2].value, old.value, "a deletion answers with what was removed");
    for (at, name) in ["a", "b"].iter().enumerate() {
        assert_eq!(store.get(&key(name)).await.unwrap(), (Some(done[at].clone()), newest));
    }
    assert_eq!(store.get(&key("old")).await.unwrap().0, None);
    // Each place where one may be refused; the others fit.
    let (a, b) = (Expect::Modified(done[0].modified), Expect::Modified(done[1].modified));
    type Part = (&'static str, Option<&'static str>, Expect);
    let refused: &[(usize, Option<u64>, [Part; 3])] = &[
        (
            0,
            Some(done[0].modified),
            [("a", Some("3"), Expect::Absent), ("b", None, b), ("c", Some("3"), Expect::Absent)],
        ),
        (
            1,
            Some(done[1].modified),
            [("a", None, a), ("b", Some("3"), Expect::Modified(1)), ("c", Some("3"), Expect::Any)],
        ),
        (2, None, [("a", None, a), ("b", Some("3"), b), ("c", None, Expect::Any)]),
        (2, None, [("a", None, a), ("b", Some("3"), b), ("c", Some("3"), Expect::Modified(newest))]),
    ];
    for (place, state, list) in refused {
        let Refused { at, error } = store.commit_all(parts(list)).await.unwrap_err();
        let StoreError::Conflict { current, .. } = error else { panic!("expected a conflict, got {error:?}") };
        assert_eq!((at, current.map(|entry| entry.modified)), (*place, *state), "{list:?}");
    }
    let twice = [("c", Some("3"), Expect::Absent), ("d", Some("3"), Expect::Absent), ("c", None, Expect::Any)];
    assert_eq!(store.commit_all(parts(&twice)).await.unwrap_err().at, 2, "a key that is named twice");
    assert_eq!(store.revision().await.unwrap(), newest, "what is refused takes no revision");
    assert_eq!(keys(&store.range(Range::prefix(p)).await.unwrap().entries), [key("a"), key("b")]);
}

/// Many move one unit between two accounts at the same time: every picture of both has the same sum.
async fn transactions_at_once(store: &Shared, p: &str) {
    const MOVES: usize = 20;
    let number = |entry: &Entry| std::str::from_utf8(&entry.value).unwrap().parse::<i64>().unwrap();
    let (left, right) = (format!("{p}left"), format!("{p}right"));
    for key in [&left, &right] {
        put(store, key, "0", Expect::Absent).await.unwrap();
    }
    let moves = (0..MOVES).map(|_| async {
        loop {
            let both = store.range(Range::prefix(p)).await.unwrap().entries;
            assert_eq!(number(&both[0]) + number(&both[1]), 0, "a part of a transaction was seen");
            let step = |entry: &Entry, by: i64| {
                part(&entry.key, Some(&(number(entry) + by).to_string()), Expect::Modified(entry.modified))
            };
            match store.commit_all(vec![step(&both[0], 1), step(&both[1], -1)]).await {
                Ok(_) => return,
                Err(Refused { error: StoreError::Conflict { .. }, .. }) => tokio::task::yield_now().await,
                Err(other) => panic!("{other}"),
            }
        }
    });
    soon(futures::future::join_all(moves)).await;
    let both = store.range(Range::prefix(p)).await.unwrap().entries;
    assert_eq!([number(&both[0]), number(&both[1])], [MOVES as i64, -(MOVES as i64)], "no move was lost");
}

async fn ranges(store: &Shared, p: &str) {
    for name in ["b", "a", "c/x", "d"] {
        put(store, &format!("{p}{name}"), name, Expect::Absent).await.unwrap();
    }
    put(store, &format!("{}x", p.trim_end_matches('/')), "beside", Expect::Absent).await.unwrap();
    let all = store.range(Range::prefix(p)).await.unwrap();
    let want: Vec<String> = ["a", "b", "c/x", "d"].iter().map(|n| format!("{p}{n}")).collect();
    assert_eq!(keys(&all.entries), want);
    assert_eq!((all.remaining, all.revision), (0, store.revision().await.unwrap()));
    let first = store.range(Range { limit: 1, ..Range::prefix(p) }).await.unwrap();
    assert_eq!((keys(&first.entries), first.remaining), (vec![&*want[0]], 3));
    let rest = Range { start: format!("{}\0", want[0]), revision: Some(first.revision), ..Range::prefix(p) };
    assert_eq!(keys(&store.range(rest).await.unwrap().entries), &want[1..]);
    let none = store.range(Range::prefix("/nothing/")).await.unwrap();
    assert_eq!((none.entries.len(), none.remaining, none.revision), (0, 0, all.revision));
}

async fn the_past(store: &Shared, p: &str) {
    let (a, b) = (format!("{p}a"), format!("{p}b"));
    let one = put(store, &a, "1", Expect::Absent).await.unwrap().modified;
    let two = put(store, &b, "1", Expect::Absent).await.unwrap().modified;
    let three = put(store, &a, "2", Expect::Any).await.unwrap().modified;
    let four = delete(store, &b, Expect::Any).await.unwrap().modified;
    let at = async |revision: Revision| {
        let page = store.range(Range { revision: Some(revision), ..Range::prefix(p) }).await.unwrap();
        assert_eq!(page.revision, revision);
        let texts = page.entries.iter().map(|e| format!("{}={}", &e.key[p.len()..], String::from_utf8_lossy(&e.value)));
        texts.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(at(one - 1).await, "");
    assert_eq!(at(one).await, "a=1");
    assert_eq!(at(two).await, "a=1 b=1");
    assert_eq!(at(three).await, "a=2 b=1");
    assert_eq!(at(four).await, "a=2");
    let future = store.range(Range { revision: Some(four + 10), ..Range::prefix(p) }).await;
    assert!(matches!(future, Err(StoreError::Future { requested, .. }) if requested == four + 10), "{future:?}");
}

async fn watching(store: &Shared, p: &str) {
    let (a, b) = (format!("{p}a"), format!("{p}b"));
    let start = put(store, &a, "1", Expect::Absent).await.unwrap().modified;
    put(store, &a, "2", Expect::Any).await.unwrap();
    let mut new = soon(store.watch(p, None)).await.unwrap();
    let mut old = soon(store.watch(p, Some(start))).await.unwrap();
    put(store, &format!("{}x", p.trim_end_matches('/')), "beside", Expect::Absent).await.unwrap();
    put(store, &b, "1", Expect::Absent).await.unwrap();
    delete(store, &a, Expect::Any).await.unwrap();
    put(store, &a, "3", Expect::Absent).await.unwrap();
    let live = [format!("{b}=1"), format!("{a}-2"), format!("{a}=3")];
    assert_eq!(events(&mut new, 3).await, live);
    assert_eq!(events(&mut old, 4).await, [&[format!("{a}~2")], &live[..]].concat());
}

async fn progress(store: &Shared, p: &str) {
    put(store, &format!("{p}a"), "1", Expect::Absent).await.unwrap();
    let mut quiet = soon(store.watch(&format!("{p}nothing/"), None)).await.unwrap();
    let target = put(store, &format!("{p}b"), "1", Expect::Absent).await.unwrap().modified;
    // On etcd a request may overtake the watch's creation, so it is repeated as the API server repeats it.
    soon(async {
        loop {
            store.request_progress().await.unwrap();
            if let Ok(batch) = tokio::time::timeout(Duration::from_millis(200), quiet.next()).await {
                let batch = batch.unwrap().unwrap();
                assert!(batch.events.is_empty());
                if batch.revision >= target {
                    return;
                }
            }
        }
    })
    .await;
}

async fn concurrent_writers(store: &Shared, p: &str) {
    let key = format!("{p}counter");
    put(store, &key, "0", Expect::Absent).await.unwrap();
    let mut watch = soon(store.watch(p, None)).await.unwrap();
    let writers = (0..8).map(|_| {
        let (store, key) = (store.clone(), key.clone());
        tokio::spawn(async move {
            for _ in 0..10 {
                let mut current = store.get(&key).await.unwrap().0.unwrap();
                loop {
                    let n: u32 = std::str::from_utf8(&current.value).unwrap().parse().unwrap();
                    match put(&store, &key, &(n + 1).to_string(), Expect::Modified(current.modified)).await {
                        Ok(_) => break,
                        Err(StoreError::Conflict { current: Some(newer), .. }) => current = newer,
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        })
    });
    futures::future::try_join_all(writers).await.unwrap();
    assert_eq!(&store.get(&key).await.unwrap().0.unwrap().value[..], b"80", "no update was lost");
    let want: Vec<String> = (1..=80).map(|n| format!("{key}~{n}")).collect();
    assert_eq!(events(&mut watch, 80).await, want, "the watch saw each");
}

async fn expiry(store: &Shared, p: &str) {
    let mut watch = soon(store.watch(p, None)).await.unwrap();
    let put_for = async |key: &str, ttl_seconds| {
        let change = Change::Put { value: Bytes::from_static(b"1"), ttl_seconds };
        store.commit(Commit { key: key.into(), expect: Expect::Any, change }).await.unwrap()
    };
    let (short, renewed) = (format!("{p}short"), format!("{p}renewed"));
    put_for(&short, Some(2)).await;
    put_for(&renewed, Some(2)).await;
    put_for(&renewed, None).await;
    let want = [format!("{short}=1"), format!("{renewed}=1"), format!("{renewed}~1"), format!("{short}-1")];
    assert_eq!(events(&mut watch, 4).await, want);
    assert_eq!(store.get(&short).await.unwrap().0, None);
    assert!(store.get(&renewed).await.unwrap().0.is_some(), "a later write without a time to live stays");
}

async fn compaction(store: &Shared, p: &str) {
    let (a, b) = (format!("{p}a"), format!("{p}b"));
    let one = put(store, &a, "1", Expect::Absent).await.unwrap().modified;
    put(store, &b, "1", Expect::Absent).await.unwrap();
    delete(store, &b, Expect::Any).await.unwrap();
    let four = put(store, &a, "2", Expect::Any).await.unwrap().modified;
    store.compact(four).await.unwrap();
    store.compact(one).await.unwrap_or_else(|e| assert!(matches!(e, StoreError::Compacted { .. }), "{e}"));
    let past = store.range(Range { revision: Some(one), ..Range::prefix(p) }).await;
    assert!(matches!(past, Err(StoreError::Compacted { .. })), "{past:?}");
    let kept = store.range(Range { revision: Some(four), ..Range::prefix(p) }).await.unwrap();
    assert_eq!(keys(&kept.entries), [&*a]);
    let ended = match soon(store.watch(p, Some(one))).await {
        Ok(mut watch) => next(&mut watch).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(ended, Err(StoreError::Compacted { .. })), "{ended:?}");
    let mut watch = soon(store.watch(p, Some(four))).await.unwrap();
    put(store, &b, "2", Expect::Absent).await.unwrap();
    assert_eq!(events(&mut watch, 1).await, [format!("{b}=2")]);
}
