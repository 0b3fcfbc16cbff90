//! Snapshots: the whole state as of one revision in one file, so that the log before it can go.
//!
//! Written beside the running store from pages of a pinned revision, under another name until it is durable.

use std::io;

use super::{
    disk::Disk,
    files::UNFINISHED,
    frame::{self, FrameBuilder, Role},
};
use crate::{Entry, Revision};

/// The bytes that one frame of a snapshot holds, about.
const FRAME_BYTES: usize = 256 << 10;
/// The bytes after which the disk gets a sync, so that the log's syncs beside it never wait for a large write-back.
const SYNC_BYTES: usize = 8 << 20;

/// Writes the snapshot as the file `name`, whole or not at all. `page` gives the entries (with their expiry) behind the last one given.
pub(super) fn write(
    disk: &dyn Disk,
    name: &str,
    revision: Revision,
    store: u64,
    page: impl FnMut(Option<&Entry>) -> Vec<(Entry, u64)>,
) -> io::Result<u64> {
    let unfinished = format!("{name}{UNFINISHED}");
    let written = write_file(disk, &unfinished, revision, store, page);
    if written.is_err() {
        // Best effort: what stays is removed at the next start.
        let _ = disk.remove(&unfinished);
        return written;
    }
    disk.rename(&unfinished, name)?;
    disk.sync_folder()?;
    written
}

fn write_file(
    disk: &dyn Disk,
    name: &str,
    revision: Revision,
    store: u64,
    mut page: impl FnMut(Option<&Entry>) -> Vec<(Entry, u64)>,
) -> io::Result<u64> {
    let mut file = disk.create(name)?;
    file.append(&frame::file_header(Role::Snapshot, revision, store))?;
    let mut builder = FrameBuilder::default();
    builder.clear();
    let (mut count, mut unsynced) = (0u64, 0usize);
    let mut last: Option<Entry> = None;
    loop {
        let entries = page(last.as_ref());
        if entries.is_empty() {
            break;
        }
        for (entry, expires_ms) in &entries {
            builder.put(entry, *expires_ms);
            count += 1;
            if builder.len() >= FRAME_BYTES {
                file.append(builder.finish(revision))?;
                unsynced += builder.len();
                builder.clear();
            }
        }
        if unsynced >= SYNC_BYTES {
            file.sync()?;
            unsynced = 0;
        }
        last = entries.into_iter().last().map(|(entry, _)| entry);
    }
    builder.end(count);
    file.append(builder.finish(revision))?;
    file.sync()?;
    Ok(file.size())
}
