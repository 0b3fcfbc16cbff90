//! The embedded store on a disk that is cut, flipped, full or broken, in memory.

use std::sync::Arc;

use crate::behaviour::{Shared, delete, part, put};
use futures::StreamExt;
use store::{
    Expect, Range, StoreError,
    embedded::{Embedded, OpenError, Options, disk::Disk, memory::Memory},
};

pub fn options() -> Options {
    Options { inline: true, abort_when_broken: false, reserve_bytes: 0, ..Options::default() }
}

pub fn open(disk: &Memory, options: Options) -> Result<Shared, OpenError> {
    Ok(Arc::new(Embedded::open_on(Arc::new(disk.clone()), options)?))
}

pub fn log_of(disk: &Memory) -> String {
    disk.list().unwrap().into_iter().rfind(|name| name.starts_with("log-")).unwrap()
}

/// All keys with their values and revisions.
pub async fn picture(store: &Shared) -> Vec<(String, Vec<u8>, u64, u64)> {
    let page = store.range(Range::prefix("/")).await.unwrap();
    page.entries.iter().map(|e| (e.key.to_string(), e.value.to_vec(), e.created, e.modified)).collect()
}

/// A disk as a crash leaves it behind three commits, and the log's length behind each.
async fn three_commits() -> (Memory, Vec<usize>) {
    let disk = Memory::default();
    let store = open(&disk, options()).unwrap();
    let length = || content(&disk, &log_of(&disk)).len();
    let mut lengths = vec![length()];
    for key in ["/a", "/b", "/c"] {
        put(&store, key, &key.repeat(40), Expect::Absent).await.unwrap();
        lengths.push(length());
    }
    disk.lose_power(|_| 0);
    drop(store);
    (disk, lengths)
}

#[tokio::test]
async fn a_torn_tail_is_cut_off_and_the_store_goes_on() {
    let (whole, lengths) = three_commits().await;
    let log = log_of(&whole);
    for cut in lengths[0]..lengths[3] {
        let disk = three_commits().await.0;
        disk.tamper(&log, |bytes| bytes.truncate(cut));
        let complete = lengths[1..].iter().filter(|len| **len <= cut).count() as u64;
        let store = open(&disk, options()).unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
        assert_eq!(store.revision().await.unwrap(), 1 + complete, "cut at {cut}");
        put(&store, "/d", "after", Expect::Absent).await.unwrap();
        let before = picture(&store).await;
        drop(store);
        assert_eq!(picture(&open(&disk, options()).unwrap()).await, before, "cut at {cut}");
    }
}

/// Wherever the write of a transaction is interrupted, all of it is there afterwards or nothing.
#[tokio::test]
async fn a_torn_transaction_is_all_or_nothing() {
    let written = async || {
        let disk = Memory::default();
        let store = open(&disk, options()).unwrap();
        put(&store, "/old", "1", Expect::Absent).await.unwrap();
        let before = content(&disk, &log_of(&disk)).len();
        let parts = [("/a", Some("2"), Expect::Absent), ("/b", Some("3"), Expect::Absent), ("/old", None, Expect::Any)];
        store.commit_all(parts.map(|(key, value, expect)| part(key, value, expect)).to_vec()).await.unwrap();
        let length = content(&disk, &log_of(&disk)).len();
        disk.lose_power(|_| 0);
        (disk, before, length)
    };
    let (disk, before, length) = written().await;
    let log = log_of(&disk);
    for cut in before..=length {
        let disk = written().await.0;
        disk.tamper(&log, |bytes| bytes.truncate(cut));
        let store = open(&disk, options()).unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
        let found: Vec<String> = picture(&store).await.into_iter().map(|(key, ..)| key).collect();
        let expected: &[&str] = if cut == length { &["/a", "/b"] } else { &["/old"] };
        assert_eq!(found, expected, "cut at {cut}");
    }
}

pub fn content(disk: &Memory, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut disk.read(name).unwrap().1, &mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn a_flipped_bit_stops_the_start_and_changes_nothing() {
    let (disk, lengths) = three_commits().await;
    let log = log_of(&disk);
    for at in 0..lengths[3] {
        disk.tamper(&log, |bytes| bytes[at] ^= 0x10);
        let before = content(&disk, &log);
        match open(&disk, options()).map(drop) {
            Err(OpenError::Damaged { file, .. }) => assert_eq!(file, log),
            Err(OpenError::Newer { .. }) if (8..12).contains(&at) => {}
            other => panic!("byte {at}: {other:?}"),
        }
        assert_eq!(content(&disk, &log), before);
        disk.tamper(&log, |bytes| bytes[at] ^= 0x10);
    }
    open(&disk, options()).unwrap();
}

#[tokio::test]
async fn a_missing_file_and_a_newer_format_stop_the_start() {
    let disk = Memory::default();
    let store = open(&disk, options()).unwrap();
    put(&store, "/a", "1", Expect::Absent).await.unwrap();
    drop(store);
    let log = log_of(&disk);
    disk.rename(&log, "log-00000000000000000009").unwrap();
    let error = open(&disk, options()).map(drop).unwrap_err().to_string();
    assert!(error.contains("log-00000000000000000001 is missing"), "{error}");
    disk.rename("log-00000000000000000009", &log).unwrap();
    disk.tamper(&log, |bytes| bytes[8] = 9);
    let error = open(&disk, options()).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 9, supported: 3, .. }), "{error}");
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_recovers() {
    let disk = Memory::default();
    let store = open(&disk, options()).unwrap();
    put(&store, "/a", "1", Expect::Absent).await.unwrap();
    // Every amount of room short of what the commit needs.
    for room in [0, 1, 30, 90] {
        let (used, before) = (disk.used(), picture(&store).await);
        disk.set_capacity(Some(used + room));
        let refused = put(&store, "/b", &"x".repeat(100), Expect::Absent).await;
        assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
        let conflict = put(&store, "/a", "2", Expect::Absent).await;
        assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");
        assert_eq!((disk.used(), picture(&store).await), (used, before));
    }
    disk.set_capacity(None);
    let entry = put(&store, "/b", "2", Expect::Absent).await.unwrap();
    assert_eq!(entry.modified, 3, "a refused commit takes no revision");
    let before = picture(&store).await;
    drop(store);
    assert_eq!(picture(&open(&disk, options()).unwrap()).await, before);
}

#[tokio::test]
async fn a_disk_that_cannot_sync_breaks_the_store() {
    let disk = Memory::default();
    let store = open(&disk, options()).unwrap();
    put(&store, "/a", "1", Expect::Absent).await.unwrap();
    let mut watch = store.watch("/", None).await.unwrap();
    disk.fail_syncs(true);
    let failed = put(&store, "/b", "1", Expect::Absent).await;
    assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
    disk.fail_syncs(false);
    let later = put(&store, "/c", "1", Expect::Absent).await;
    assert!(matches!(later, Err(StoreError::Unavailable(_))), "it does not come back by itself: {later:?}");
    assert!(watch.next().await.unwrap().is_err());
    drop(store);
    disk.lose_power(|unsynced| unsynced / 2);
    let store = open(&disk, options()).unwrap();
    assert_eq!(picture(&store).await.len(), 1, "the acknowledged commit is there, the others are not");
}

#[tokio::test]
async fn snapshots_replace_the_log_and_carry_everything() {
    let disk = Memory::default();
    let small = Options { snapshot_after_bytes: 2_000, ..options() };
    let store = open(&disk, small.clone()).unwrap();
    for n in 0..500 {
        put(&store, &format!("/k{}", n % 7), &format!("{n}").repeat(10), Expect::Any).await.unwrap();
        if n % 5 == 0 {
            delete(&store, &format!("/k{}", n % 7), Expect::Any).await.unwrap();
        }
        assert!(disk.used() < 8_000, "the files stay small: {}", disk.used());
    }
    let before = (picture(&store).await, store.revision().await.unwrap());
    drop(store);
    disk.lose_power(|_| 0);
    let store = open(&disk, small).unwrap();
    assert_eq!((picture(&store).await, store.revision().await.unwrap()), before);
    let past = store.watch("/", Some(2)).await.map(drop);
    assert!(matches!(past, Err(StoreError::Compacted { .. })), "the history before the snapshot is gone: {past:?}");
}

#[tokio::test]
async fn a_snapshot_that_finds_no_room_costs_nothing() {
    let disk = Memory::default();
    let store = open(&disk, Options { snapshot_after_bytes: 2_000, ..options() }).unwrap();
    let mut n = 0;
    while disk.used() < 1_600 {
        n += 1;
        put(&store, &format!("/k{n}"), &"x".repeat(150), Expect::Any).await.unwrap();
    }
    // Room for the commit that makes a snapshot due and for a new segment, but not for the snapshot.
    disk.set_capacity(Some(disk.used() + 900));
    while put(&store, "/full", &"x".repeat(150), Expect::Any).await.is_ok() {}
    let names = disk.list().unwrap();
    let logs = names.iter().filter(|n| n.starts_with("log-")).count();
    assert!(logs > 1 && !names.iter().any(|n| n.starts_with("snapshot-")), "a snapshot was tried: {names:?}");
    disk.set_capacity(None);
    for n in 0..40 {
        put(&store, &format!("/m{n}"), &"x".repeat(150), Expect::Any).await.unwrap();
    }
    let before = picture(&store).await;
    drop(store);
    disk.lose_power(|_| 0);
    assert_eq!(picture(&open(&disk, options()).unwrap()).await, before);
    assert!(!disk.list().unwrap().iter().any(|name| name.ends_with(".new")));
}

#[tokio::test]
async fn a_slow_watcher_is_cut_off_and_history_is_bounded() {
    let bounded = Options { watch_queue_events: 10, history_bytes: 20_000, ..options() };
    let store = open(&Memory::default(), bounded).unwrap();
    let mut slow = store.watch("/", None).await.unwrap();
    let mut fast = store.watch("/", None).await.unwrap();
    for n in 0..200 {
        put(&store, "/k", &format!("{n}").repeat(50), Expect::Any).await.unwrap();
        assert_eq!(fast.next().await.unwrap().unwrap().events.len(), 1);
    }
    let mut got = 0;
    let end = loop {
        match slow.next().await.unwrap() {
            Ok(batch) => got += batch.events.len(),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, StoreError::Unavailable(_)), "{end}");
    assert_eq!(got, 10);
    assert!(slow.next().await.is_none());
    assert!(matches!(store.watch("/", Some(2)).await.map(drop), Err(StoreError::Compacted { .. })));
    let newest = store.revision().await.unwrap();
    store.watch("/", Some(newest - 5)).await.map(drop).unwrap();
}

#[tokio::test(start_paused = true)]
async fn expiry_goes_on_after_a_restart() {
    clock::simulate(clock::Timestamp::from_second(1_700_000_000).unwrap(), 1);
    let disk = Memory::default();
    let store = open(&disk, options()).unwrap();
    let change = store::Change::Put { value: "1".into(), ttl_seconds: Some(60) };
    store.commit(store::Commit { key: "/a".into(), expect: Expect::Any, change }).await.unwrap();
    drop(store);
    clock::sleep(clock::Duration::from_secs(30)).await;
    let store = open(&disk, options()).unwrap();
    let mut watch = store.watch("/", None).await.unwrap();
    let started = clock::Instant::now();
    assert_eq!(watch.next().await.unwrap().unwrap().events[0].entry, None);
    assert!((29..=33).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
}
