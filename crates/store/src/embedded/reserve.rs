//! The reserve: room that the store keeps for itself, so that a snapshot can still replace the log when the disk is full.
//!
//! A snapshot needs as much room as the data has, and room is what a full disk lacks; without the snapshot nothing of
//! the log can go. The reserve is a file of that size that holds nothing. Making a snapshot gives it up when there is
//! no other room, and it is taken again afterwards.

use std::io;

use super::disk::Disk;

const NAME: &str = "reserve";

/// Whether a write failed for want of room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Takes the reserve for a store with `live_bytes` of data: `least` bytes or the size of its snapshot. Where there is no
/// room for that any more, the store works without.
pub(super) fn take(disk: &dyn Disk, least: u64, live_bytes: u64) {
    if least == 0 {
        return;
    }
    let wanted = least.max(live_bytes + live_bytes / 4);
    let held = disk.read(NAME).map_or(0, |(len, _)| len);
    // Grown in large steps: the file is made anew each time.
    if (wanted..=wanted.saturating_mul(3)).contains(&held) {
        return;
    }
    give_up(disk);
    match disk.allocate(NAME, wanted) {
        Ok(()) => {}
        Err(error) if is_full(&error) => {
            // Less is better than nothing.
            let less = wanted > least && disk.allocate(NAME, least).is_ok();
            tracing::warn!(
                folder = disk.name(),
                "the disk is nearly full: the store cannot keep {wanted} bytes free for its next snapshot{}; make room there",
                if less { format!(", only {least}") } else { String::new() }
            );
        }
        Err(error) => tracing::debug!(%error, "this file system sets no room apart"),
    }
}

/// Whether there was one.
pub(super) fn give_up(disk: &dyn Disk) -> bool {
    disk.remove(NAME).is_ok()
}

/// Does work that needs room: once more without the reserve when the disk is full.
pub(super) fn with_room<T>(disk: &dyn Disk, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(error) if is_full(&error) && give_up(disk) => work(),
        done => done,
    }
}
