//! A full disk: the store opens, is read and refuses writes, and the room that it kept lets a snapshot replace the log.

use std::{process::Command, sync::Arc};

use crate::{
    behaviour::{Shared, put},
    faults::{open, options, picture},
};
use store::{
    Expect, StoreError,
    embedded::{Embedded, Options, disk::Disk, maintenance, memory::Memory},
};

const RESERVE: u64 = 8_000;

fn with_reserve() -> Options {
    Options { reserve_bytes: RESERVE, ..options() }
}

/// Writes new keys until the disk is full.
async fn fill(store: &Shared) -> StoreError {
    for n in 0.. {
        match put(store, &format!("/fill{n}"), &"v".repeat(100), Expect::Any).await {
            Ok(_) => {}
            Err(error) => return error,
        }
    }
    unreachable!("the disk has an end")
}

#[tokio::test]
async fn a_full_disk_opens_for_reading_and_can_be_compacted() {
    let disk = Memory::default();
    let store = open(&disk, with_reserve()).unwrap();
    assert_eq!(disk.read("reserve").unwrap().0, RESERVE);
    for n in 0..200 {
        put(&store, &format!("/k{}", n % 20), &"v".repeat(100), Expect::Any).await.unwrap();
    }
    let before = picture(&store).await;
    drop(store);
    // Whoever shares the disk leaves nothing.
    disk.set_capacity(Some(disk.used()));
    assert_eq!(picture(&open(&disk, with_reserve()).unwrap()).await, before);
    let (large, small) = maintenance::compact_on(&disk, RESERVE).unwrap();
    assert!(small < large / 3, "{small} of {large}");
    assert_eq!(disk.read("reserve").unwrap().0, RESERVE, "it is kept for the next time");
    let store = open(&disk, with_reserve()).unwrap();
    assert_eq!(picture(&store).await, before);
    put(&store, "/more", "v", Expect::Any).await.unwrap();
    // A store whose whole content is needed cannot be made smaller.
    for _ in 0..3 {
        let refused = fill(&store).await;
        let StoreError::Full(said) = &refused else { panic!("{refused}") };
        for words in ["the disk of memory is full", "make room there", "skiff store compact", "reads go on"] {
            assert!(said.contains(words), "{said}");
        }
    }
}

/// A disk that runs full has the log replaced by a snapshot at once, where that helps.
#[tokio::test]
async fn a_running_store_makes_room_for_itself() {
    let disk = Memory::default();
    let small = Options { snapshot_after_bytes: 10_000, ..with_reserve() };
    let store = open(&disk, small).unwrap();
    disk.set_capacity(Some(disk.used() + 8_000));
    let mut refused = 0;
    for n in 0..400 {
        let (key, value) = (format!("/k{}", n % 20), "v".repeat(100));
        if put(&store, &key, &value, Expect::Any).await.is_err() {
            refused += 1;
            put(&store, &key, &value, Expect::Any).await.unwrap();
        }
    }
    assert!(refused > 0, "the disk was never full");
    assert!(disk.list().unwrap().iter().any(|name| name.starts_with("snapshot-")));
    assert_eq!(picture(&store).await.len(), 20);
}

#[tokio::test]
async fn a_disk_without_room_for_a_reserve_is_used_without() {
    let disk = Memory::default();
    disk.set_capacity(Some(3_000));
    let store = open(&disk, with_reserve()).unwrap();
    put(&store, "/k", "v", Expect::Any).await.unwrap();
    assert!(!disk.list().unwrap().contains(&"reserve".to_owned()));
}

/// A small file system, gone when this is dropped.
pub struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    /// `None`, and a word about it, where nothing can be mounted.
    pub fn mount(size: &str) -> Option<Tmpfs> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        if mounted.is_ok_and(|m| m.status.success()) {
            return Some(Tmpfs(folder));
        }
        eprintln!("SKIPPED: a tmpfs cannot be mounted here (no root?)");
        None
    }

    pub fn path(&self) -> &std::path::Path {
        self.0.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_real_full_disk_is_compacted_with_the_reserve() {
    let Some(tmpfs) = Tmpfs::mount("24m") else { return };
    let (folder, filler) = (tmpfs.path().join("store"), tmpfs.path().join("filler"));
    let open = || Embedded::open(&folder, Options::default()).map(|store| -> Shared { Arc::new(store) });
    let store = open().unwrap();
    for n in 0..600 {
        // Each has nothing in common with the one before it under its key.
        let value = char::from(b'a' + (n % 26) as u8).to_string().repeat(5_000);
        put(&store, &format!("/k{}", n % 20), &value, Expect::Any).await.unwrap();
    }
    let before = picture(&store).await;
    // Somebody else takes all that is left.
    let mut other = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut other, &[1; 4096]).is_ok() {}
    drop(store);
    let store = open().unwrap();
    assert_eq!(picture(&store).await, before);
    drop(store);
    let (large, small) = maintenance::compact(&folder).unwrap();
    assert!(small < large / 10, "{small} of {large}");
    put(&open().unwrap(), "/more", "v", Expect::Any).await.unwrap();
}
