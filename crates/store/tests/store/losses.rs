//! Files that are gone, cut, swapped or another store's: the store says which, changes nothing, and goes on without them
//! only when it is told to.

use std::path::Path;

use crate::{
    behaviour::put,
    faults::{content, log_of, open, options, picture},
};
use store::{
    Expect,
    embedded::{
        Embedded, OpenError, Options,
        disk::Disk,
        maintenance::{self, MaintenanceError},
        memory::Memory,
    },
};

fn names(disk: &Memory, prefix: &str) -> Vec<String> {
    disk.list().unwrap().into_iter().filter(|name| name.starts_with(prefix)).collect()
}

/// A store with a snapshot and a log behind it that holds writes, closed in order.
async fn grown() -> Memory {
    let disk = Memory::default();
    let store = open(&disk, Options { snapshot_after_bytes: 2_000, ..options() }).unwrap();
    let mut n = 0;
    while names(&disk, "snapshot-").is_empty() || content(&disk, &log_of(&disk)).len() < 500 {
        put(&store, &format!("/k{n}"), &"v".repeat(100), Expect::Absent).await.unwrap();
        n += 1;
    }
    disk
}

/// Only a log, closed in order.
async fn young() -> Memory {
    let disk = Memory::default();
    let store = open(&disk, options()).unwrap();
    for n in 0..5 {
        put(&store, &format!("/k{n}"), "v", Expect::Absent).await.unwrap();
    }
    disk
}

/// Opening fails with these words and leaves every file as it is.
fn refused(disk: &Memory, case: &str, expected: &[&str]) {
    let files = |disk: &Memory| disk.list().unwrap().into_iter().map(|n| (content(disk, &n), n)).collect::<Vec<_>>();
    let before = files(disk);
    let error = match open(disk, options()) {
        Ok(_) => panic!("{case}: it opened"),
        Err(error) => error.to_string(),
    };
    for words in expected.iter().chain(&["nothing was changed", "store restore", "store accept-loss"]) {
        assert!(error.contains(words), "{case}: {words:?} is not in {error:?}");
    }
    assert_eq!(files(disk), before, "{case}");
}

#[tokio::test]
async fn a_log_that_is_gone_or_cut_is_missed() {
    let disk = young().await;
    let log = log_of(&disk);
    disk.remove(&log).unwrap();
    refused(&disk, "the only log is deleted", &[&log, "is missing"]);

    let disk = grown().await;
    let (log, whole) = (log_of(&disk), content(&disk, &log_of(&disk)));
    for len in 0..36 {
        disk.tamper(&log, |bytes| *bytes = whole[..len].to_vec());
        refused(&disk, "a log without a header", &[&log, "less than the header of a log"]);
    }
    // Closed in order, so that every cut is a loss, also one where a frame ends.
    for len in 36..whole.len() - 28 {
        disk.tamper(&log, |bytes| *bytes = whole[..len].to_vec());
        refused(&disk, &format!("cut at {len}"), &[&log, "it ends at revision", "but the store had reached"]);
    }
    disk.tamper(&log, |bytes| *bytes = whole.clone());
    open(&disk, options()).map(drop).unwrap();
    disk.remove(&log).unwrap();
    refused(&disk, "a log is deleted beside its snapshot", &[&log, "is missing"]);
    // Also where no manifest tells of it.
    disk.remove("manifest").unwrap();
    refused(&disk, "a log is deleted with the manifest", &[&log, "is missing"]);
}

#[tokio::test]
async fn a_snapshot_that_is_gone_or_another_files_is_missed() {
    let disk = grown().await;
    let (snapshot, log) = (names(&disk, "snapshot-").pop().unwrap(), log_of(&disk));
    let whole = content(&disk, &snapshot);
    disk.remove(&snapshot).unwrap();
    refused(&disk, "a snapshot is deleted", &[&snapshot, "is missing"]);
    disk.remove(&log).unwrap();
    refused(&disk, "snapshot and log are deleted", &[&log, "is missing"]);

    let disk = grown().await;
    for len in [0, 10, 36, whole.len() / 2, whole.len() - 1] {
        disk.tamper(&snapshot, |bytes| *bytes = whole[..len].to_vec());
        refused(&disk, "a snapshot is cut", &[&snapshot, "is damaged"]);
    }
    disk.tamper(&snapshot, |bytes| *bytes = content(&disk, &log));
    refused(&disk, "a log in a snapshot's place", &[&snapshot, "not that of a snapshot"]);
}

#[tokio::test]
async fn files_of_another_store_are_told() {
    let (disk, other) = (grown().await, grown().await);
    let (snapshot, log) = (names(&disk, "snapshot-").pop().unwrap(), log_of(&disk));
    for name in [&snapshot, &log] {
        let ours = content(&disk, name);
        disk.tamper(name, |bytes| *bytes = content(&other, name));
        refused(&disk, "another store's file", &[name, "it belongs to another store"]);
        disk.tamper(name, |bytes| *bytes = ours);
    }
    disk.tamper("manifest", |bytes| *bytes = content(&other, "manifest"));
    refused(&disk, "another store's manifest", &["it belongs to another store"]);
    disk.tamper("manifest", |bytes| bytes[9] ^= 1);
    refused(&disk, "a changed manifest", &["manifest", "is damaged"]);
}

/// Power is lost in each sync of a run in turn: the store always opens, with everything that was acknowledged.
#[tokio::test]
async fn no_power_cut_looks_like_a_loss() {
    let small = || Options { snapshot_after_bytes: 2_000, ..options() };
    let (mut cuts, mut snapshots) = (0, 0);
    for syncs in 0.. {
        let disk = Memory::default();
        disk.die_after_syncs(syncs);
        let mut acknowledged = 0;
        if let Ok(store) = open(&disk, small()) {
            while acknowledged < 60
                && put(&store, &format!("/k{acknowledged}"), &"v".repeat(100), Expect::Absent).await.is_ok()
            {
                acknowledged += 1;
            }
        }
        // The last syncs are those of an orderly end.
        let survived = !disk.is_dead();
        disk.lose_power(|unsynced| unsynced / 2);
        let store = open(&disk, small()).unwrap_or_else(|e| panic!("after sync {syncs}: {e}"));
        let found = picture(&store).await.len();
        assert!((acknowledged..=acknowledged + 1).contains(&found), "after sync {syncs}: {found} of {acknowledged}");
        snapshots += names(&disk, "snapshot-").len();
        put(&store, "/more", "v", Expect::Absent).await.unwrap();
        cuts += 1;
        if survived {
            break;
        }
    }
    assert!(cuts > 60 && snapshots > 0, "{cuts} cuts, {snapshots} snapshots");
}

/// However little room there is for a new segment: the one at hand goes on, and the store opens again.
#[tokio::test]
async fn a_segment_that_could_not_be_begun_is_no_loss() {
    for room in (0..600).step_by(20) {
        let disk = Memory::default();
        let store = open(&disk, Options { snapshot_after_bytes: 2_000, ..options() }).unwrap();
        let mut n = 0;
        while content(&disk, &log_of(&disk)).len() < 1_900 {
            put(&store, &format!("/k{n}"), &"v".repeat(100), Expect::Absent).await.unwrap();
            n += 1;
        }
        disk.set_capacity(Some(disk.used() + room));
        // Whether it is taken depends on the room.
        let _ = put(&store, "/last", &"v".repeat(100), Expect::Absent).await;
        disk.set_capacity(None);
        put(&store, "/after", "v", Expect::Absent).await.unwrap();
        let before = picture(&store).await;
        disk.lose_power(|_| 0);
        drop(store);
        let store = open(&disk, options()).unwrap_or_else(|e| panic!("{room} bytes of room: {e}"));
        assert_eq!(picture(&store).await, before, "{room} bytes of room");
    }
}

fn only(folder: &Path, prefix: &str) -> std::path::PathBuf {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    let mut found = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix)).map(|e| e.path());
    found.next().unwrap()
}

#[tokio::test]
async fn a_loss_that_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let fill = async |from: u64| {
        let store: crate::behaviour::Shared =
            std::sync::Arc::new(Embedded::open(folder.path(), Options::default()).unwrap());
        for n in from..from + 20 {
            put(&store, &format!("/k{n}"), "v", Expect::Absent).await.unwrap();
        }
    };
    fill(0).await;
    maintenance::compact(folder.path()).unwrap();
    fill(20).await;
    assert_eq!(maintenance::accept_loss(folder.path(), 1000).unwrap(), None, "nothing is lost yet");
    std::fs::remove_file(only(folder.path(), "log-")).unwrap();
    let refused = maintenance::compact(folder.path()).unwrap_err();
    assert!(matches!(refused, MaintenanceError::Open(OpenError::Missing { .. })), "{refused}");
    let accepted = maintenance::accept_loss(folder.path(), 1000).unwrap().unwrap();
    assert!(accepted.why.contains("is missing"), "{}", accepted.why);
    // Revision 41 was reached, and none of those that were handed out is used again.
    assert_eq!((accepted.found, accepted.keys, accepted.revision), (21, 20, 1041));
    assert!(accepted.kept.iter().all(|name| folder.path().join(name).exists()) && accepted.kept.len() == 1);
    let status = maintenance::verify(folder.path()).unwrap();
    assert_eq!((status.figures.revision, status.figures.keys), (1041, 20));
    fill(20).await;

    // A log that is damaged in its middle gives what stands before that.
    let log = only(folder.path(), "log-");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[700] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let accepted = maintenance::accept_loss(folder.path(), 1000).unwrap().unwrap();
    assert!(accepted.why.contains("is damaged at byte"), "{}", accepted.why);
    assert!((21..40).contains(&accepted.keys) && accepted.revision == 2061, "{accepted:?}");
    assert_eq!(maintenance::verify(folder.path()).unwrap().figures.keys, accepted.keys);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    drop(Embedded::open(folder.path(), Options::default()).unwrap());
    for name in [only(folder.path(), "log-"), folder.path().join("manifest")] {
        let aside = folder.path().join("aside");
        std::fs::rename(&name, &aside).unwrap();
        std::fs::create_dir(&name).unwrap();
        let error = Embedded::open(folder.path(), Options::default()).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot read {}: ", name.display())), "{error}");
        std::fs::remove_dir(&name).unwrap();
        std::fs::rename(&aside, &name).unwrap();
    }
    Embedded::open(folder.path(), Options::default()).map(drop).unwrap();
}
