//! The embedded store on real folders: killed in the middle of writes, opened twice, on a full file system, and
//! looked after from outside.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use crate::{
    behaviour::{Shared, put},
    room::Tmpfs,
};
use store::{
    Expect, Range, StoreError,
    embedded::{
        Embedded, OpenError, Options,
        maintenance::{self, MaintenanceError, Use},
    },
};

const FOLDER: &str = "STORE_TEST_FOLDER";
const WRITERS: usize = 6;

fn open(folder: &Path, options: Options) -> Result<Shared, OpenError> {
    Ok(Arc::new(Embedded::open(folder, options)?))
}

/// The n-th value of a writer: told from half a value, and of changing length.
fn value(n: u64) -> String {
    format!("{n}:{}:{n}", "x".repeat((n * 37 % 1500) as usize))
}

/// The child that [`killed_in_the_middle_of_writes`] kills: tells what it finds, then writes and tells what was
/// acknowledged.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Small files, so that snapshots and new segments are killed too.
        let options = Options { snapshot_after_bytes: 100_000, ..Options::default() };
        let store = open(Path::new(&folder), options).unwrap_or_else(|e| panic!("refused to start: {e}"));
        let mut counts = [0; WRITERS];
        for entry in store.range(Range::prefix("/w")).await.unwrap().entries {
            let text = std::str::from_utf8(&entry.value).unwrap();
            let n: u64 = text.split(':').next().unwrap().parse().unwrap();
            assert_eq!(text, value(n), "a value is whole");
            let writer: usize = entry.key["/w".len()..].parse().unwrap();
            counts[writer] = n;
            say(&format!("found {writer} {n} {}", entry.modified));
        }
        say("ready");
        let writers = (0..WRITERS).map(|w| {
            let store = store.clone();
            let mut n = counts[w];
            tokio::spawn(async move {
                loop {
                    n += 1;
                    let entry = put(&store, &format!("/w{w}"), &value(n), Expect::Any).await.unwrap();
                    say(&format!("ack {w} {n} {}", entry.modified));
                }
            })
        });
        futures::future::join_all(writers).await;
    });
}

/// One line in one write, so that a kill leaves whole lines.
fn say(line: &str) {
    std::io::stdout().lock().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

fn start_child(folder: &Path) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "durability::child", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines)
}

#[test]
fn killed_in_the_middle_of_writes() {
    const KILLS: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = [(0u64, 0u64); WRITERS];
    let mut revisions: HashMap<u64, (usize, u64)> = HashMap::new();
    let mut total = 0u64;
    for round in 0..KILLS {
        let (mut child, lines) = start_child(folder.path());
        let mut ready = false;
        let mut acks = 0;
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let [kind @ ("found" | "ack"), writer, n, revision] = words[..] else {
                ready |= line == "ready";
                continue;
            };
            let (writer, n, revision): (usize, u64, u64) =
                (writer.parse().unwrap(), n.parse().unwrap(), revision.parse().unwrap());
            let (last_n, last_revision) = acknowledged[writer];
            match kind {
                "found" => {
                    assert!(n == last_n || n == last_n + 1, "round {round}, writer {writer}: {n} after {last_n}");
                    assert!(revision >= last_revision, "round {round}: revision went back");
                }
                _ => {
                    assert!(n > last_n && revision > last_revision, "round {round}, writer {writer}");
                    let reused = revisions.insert(revision, (writer, n));
                    assert_eq!(reused, None, "round {round}: revision {revision} was used twice");
                    acks += 1;
                    // Some rounds end at the first acknowledgement, some in the middle of a snapshot.
                    if acks == 1 + round * 7 % 150 {
                        child.kill().unwrap();
                    }
                }
            }
            acknowledged[writer] = (n, revision);
        }
        child.wait().unwrap();
        assert!(ready, "round {round}: the store did not open again");
        total += acks;
    }
    assert!(total > KILLS, "only {total} writes were acknowledged");
    let status = maintenance::verify(folder.path()).unwrap();
    assert!(status.snapshot.is_some(), "snapshots were made under way");
}

#[test]
fn a_second_process_is_refused_with_the_name_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, lines) = start_child(folder.path());
    let mut lines = lines.skip_while(|line| line != "ready");
    lines.next().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _guard = runtime.enter();
    let error = open(folder.path(), Options::default()).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Locked { pid: Some(pid), .. } if pid == child.id()), "{error}");
    assert_eq!(maintenance::status(folder.path()).unwrap().used_by, Use::Process(child.id()));
    let error = maintenance::compact(folder.path()).unwrap_err();
    assert!(matches!(error, MaintenanceError::Open(OpenError::Locked { .. })), "{error}");
    child.kill().unwrap();
    lines.for_each(drop);
    child.wait().unwrap();
    open(folder.path(), Options::default()).unwrap();
}

#[tokio::test]
async fn a_full_file_system() {
    let Some(tmpfs) = Tmpfs::mount("1m") else { return };
    let (folder, filler) = (tmpfs.path().join("data"), tmpfs.path().join("filler"));
    let store = open(&folder, Options::default()).unwrap();
    std::fs::write(&filler, vec![1u8; 600 << 10]).unwrap();
    let mut written = 0;
    let refused = loop {
        match put(&store, &format!("/k{written}"), &"v".repeat(3000), Expect::Absent).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Full(_)), "{refused}");
    assert_eq!(store.range(Range::prefix("/")).await.unwrap().entries.len(), written, "reads go on");
    std::fs::remove_file(&filler).unwrap();
    for n in written..written + 50 {
        put(&store, &format!("/k{n}"), &"v".repeat(3000), Expect::Absent).await.unwrap();
    }
    drop(store);
    let store = open(&folder, Options::default()).unwrap();
    assert_eq!(store.range(Range::prefix("/")).await.unwrap().entries.len(), written + 50);
    assert_eq!(store.revision().await.unwrap(), 1 + written as u64 + 50, "refused commits took no revision");
    drop(store);
}

#[tokio::test]
async fn maintenance_from_outside() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = other.path().join("copy");
    assert!(matches!(maintenance::status(folder.path()), Err(MaintenanceError::NoStore(_))));
    let store = open(folder.path(), Options::default()).unwrap();
    for n in 0..100 {
        put(&store, "/k", &value(n), Expect::Any).await.unwrap();
    }
    let before = store.range(Range::prefix("/")).await.unwrap();
    // Beside the running store.
    assert_eq!(maintenance::snapshot(folder.path(), &copy).unwrap().0, 101);
    assert!(matches!(maintenance::snapshot(folder.path(), &copy), Err(MaintenanceError::Exists(_))));
    drop(store);
    let (large, small) = maintenance::compact(folder.path()).unwrap();
    assert!(small * 10 < large, "{small} of {large}");
    let status = maintenance::verify(folder.path()).unwrap();
    assert_eq!((status.figures.revision, status.figures.keys, status.used_by), (101, 1, Use::Nobody));
    assert!(matches!(maintenance::restore(&copy, folder.path(), 0), Err(MaintenanceError::NotEmpty(_))));
    let restored = other.path().join("restored");
    assert_eq!(maintenance::restore(&copy, &restored, 1000).unwrap(), 1101);
    for path in [folder.path(), &restored] {
        let store = open(path, Options::default()).unwrap();
        assert_eq!(store.range(Range::prefix("/")).await.unwrap().entries, before.entries);
        put(&store, "/k", "more", Expect::Modified(101)).await.unwrap();
    }
    // A copy that was damaged under way restores nothing.
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&copy, bytes).unwrap();
    let target = other.path().join("never");
    let error = maintenance::restore(&copy, &target, 0).unwrap_err();
    assert!(matches!(error, MaintenanceError::Open(OpenError::Damaged { .. })), "{error}");
    assert!(!target.exists());
}
