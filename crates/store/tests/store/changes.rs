//! Values that are told by what is different from those before them.

use crate::{
    behaviour::put,
    faults::{content, log_of, open, options, picture},
};
use store::{
    Expect, Range,
    embedded::{Options, disk::Disk, memory::Memory},
};

/// A heartbeat: two times in much that stays.
fn heartbeat(n: usize) -> String {
    format!("{{\"time\":\"10:00:{n:02}\",\"holder\":\"{}\",\"renewed\":\"10:00:{n:02}.0\"}}", "h".repeat(500))
}

async fn beating(beats: usize) -> Memory {
    let disk = Memory::default();
    let store = open(&disk, options()).unwrap();
    for n in 0..beats {
        put(&store, "/beat", &heartbeat(n), Expect::Any).await.unwrap();
    }
    disk.lose_power(|_| 0);
    disk
}

#[tokio::test]
async fn a_heartbeat_costs_its_difference() {
    let (one, ten) = (beating(1).await, beating(11).await);
    let length = |disk: &Memory| content(disk, &log_of(disk)).len();
    let each = (length(&ten) - length(&one)) / 10;
    assert!(each < 90, "{each} bytes each");
    let store = open(&ten, options()).unwrap();
    assert_eq!(picture(&store).await, [("/beat".to_owned(), heartbeat(10).into_bytes(), 2, 12)]);
    for revision in 2..=12 {
        let range = Range { revision: Some(revision), ..Range::prefix("/") };
        let then = store.range(range).await.unwrap().entries.remove(0);
        assert_eq!((&then.value[..], then.created), (heartbeat(revision as usize - 2).as_bytes(), 2));
    }
    // Over what the start has read, and behind a deletion.
    put(&store, "/beat", &heartbeat(20), Expect::Modified(12)).await.unwrap();
    crate::behaviour::delete(&store, "/beat", Expect::Any).await.unwrap();
    put(&store, "/beat", &heartbeat(21), Expect::Absent).await.unwrap();
    put(&store, "/beat", &heartbeat(22), Expect::Any).await.unwrap();
    let before = picture(&store).await;
    drop(store);
    assert_eq!(picture(&open(&ten, options()).unwrap()).await, before);
}

/// Where each write costs whole blocks, a heartbeat costs one, at the price of some room in the file.
#[tokio::test]
async fn a_heartbeat_costs_one_block() {
    const BLOCK: usize = 512;
    let disk = Memory::in_blocks(BLOCK);
    let store = open(&disk, options()).unwrap();
    let end = || content(&disk, &log_of(&disk)).len();
    put(&store, "/beat", &heartbeat(0), Expect::Any).await.unwrap();
    let first = end();
    for n in 1..100 {
        let begin = end();
        put(&store, "/beat", &heartbeat(n), Expect::Any).await.unwrap();
        assert_eq!(begin / BLOCK, (end() - 1) / BLOCK, "beat {n} is at {begin} to {}", end());
    }
    assert!(end() - first < 100 * 120, "{} bytes", end() - first);
    let before = picture(&store).await;
    disk.lose_power(|_| 0);
    drop(store);
    assert_eq!(picture(&open(&disk, options()).unwrap()).await, before);
}

#[tokio::test]
async fn a_torn_difference_is_cut_off_and_a_flipped_bit_is_damage() {
    for block in [1, 512] {
        torn_and_flipped(&Memory::in_blocks(block), block).await;
    }
}

/// The last of some heartbeats, which ends where its block does, is cut anywhere and flipped anywhere.
async fn torn_and_flipped(disk: &Memory, block: usize) {
    let store = open(disk, options()).unwrap();
    let length = || content(disk, &log_of(disk)).len();
    let (mut last, mut begin) = (0, 0);
    while last < 3 || !length().is_multiple_of(block) {
        (last, begin) = (last + 1, length());
        put(&store, "/beat", &heartbeat(last), Expect::Any).await.unwrap();
    }
    disk.lose_power(|_| 0);
    drop(store);
    let log = log_of(disk);
    let whole = content(disk, &log);
    assert!(whole.len() - begin < heartbeat(last).len() / 2, "the last one is a difference");
    for cut in begin..whole.len() {
        disk.tamper(&log, |bytes| *bytes = whole[..cut].to_vec());
        disk.remove("manifest").unwrap();
        let store = open(disk, options()).unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
        assert_eq!(picture(&store).await[0].1, heartbeat(last - 1).into_bytes(), "cut at {cut}");
    }
    for at in begin..whole.len() {
        disk.tamper(&log, |bytes| {
            *bytes = whole.clone();
            bytes[at] ^= 0x10;
        });
        assert!(open(disk, options()).is_err(), "byte {at}");
    }
    disk.tamper(&log, |bytes| *bytes = whole);
    assert_eq!(picture(&open(disk, options()).unwrap()).await[0].1, heartbeat(last).into_bytes());
}

/// Differences are short, but whoever reads them makes whole values of them: a snapshot comes as early as ever.
#[tokio::test]
async fn differences_count_as_what_they_stand_for() {
    let disk = Memory::default();
    let small = Options { snapshot_after_bytes: 20_000, ..options() };
    let snapshots = || disk.list().unwrap().into_iter().filter(|name| name.starts_with("snapshot-")).count();
    for n in 0..60 {
        // Also when the log is opened anew each time.
        let store = open(&disk, small.clone()).unwrap();
        put(&store, "/beat", &heartbeat(n), Expect::Any).await.unwrap();
        let written = content(&disk, &log_of(&disk)).len();
        assert!(snapshots() == 1 || (n < 40 && written < 10_000), "{n} beats, {written} bytes, no snapshot");
    }
}

/// Every segment tells the whole of what it tells of, so that one without those before it still says all it ever did.
#[tokio::test]
async fn a_segment_needs_no_other() {
    let disk = Memory::default();
    let store = open(&disk, Options { snapshot_after_bytes: 20_000, ..options() }).unwrap();
    let first = log_of(&disk);
    let mut n = 0;
    while log_of(&disk) == first {
        put(&store, "/beat", &heartbeat(n % 60), Expect::Any).await.unwrap();
        n += 1;
    }
    let begun = content(&disk, &log_of(&disk)).len();
    put(&store, "/beat", &heartbeat(n % 60), Expect::Any).await.unwrap();
    let grown = content(&disk, &log_of(&disk)).len() - begun;
    assert!(grown > heartbeat(0).len(), "the first one of a segment is whole, not {grown} bytes");
}

/// A segment that an older version can read stays one that it can read.
#[tokio::test]
async fn a_segment_of_an_older_version_gets_no_differences() {
    let disk = beating(1).await;
    let log = log_of(&disk);
    disk.tamper(&log, |bytes| {
        bytes[8] = 2;
        let sum = crc32c::crc32c(&bytes[..32]).to_le_bytes();
        bytes[32..36].copy_from_slice(&sum);
    });
    let before = content(&disk, &log).len();
    let store = open(&disk, options()).unwrap();
    put(&store, "/beat", &heartbeat(1), Expect::Any).await.unwrap();
    assert!(content(&disk, &log).len() - before > heartbeat(1).len());
}
