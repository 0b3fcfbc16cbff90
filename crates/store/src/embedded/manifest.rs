//! The manifest: what must be there. Everything else in the folder is found by looking at it, so a file that is gone, or
//! cut where a frame ends, would leave a smaller store that looks whole.
//!
//! It names the store, the log segments that were begun and a revision that the store has reached. It is replaced as a
//! whole, after what it tells of is durable: when the store opens and closes, and when a new segment begins. So it never
//! promises what a crash could take back. A segment that it does not name was never written to.

use std::io::{self, Read};

use super::{
    disk::Disk,
    files::{Files, UNFINISHED, log_name, snapshot_name},
    open_error::OpenError,
};
use crate::Revision;

pub(super) const NAME: &str = "manifest";
/// Longer than any manifest.
const LIMIT: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Tells this store's files from another's.
    pub store: u64,
    /// Where the segments begin, in order. Those that a snapshot has replaced may be gone.
    pub logs: Vec<Revision>,
    /// The store has reached this revision.
    pub revision: Revision,
}

/// A name for a new store: the time at which it was made, in nanoseconds.
pub(super) fn new_store() -> u64 {
    clock::now().as_nanosecond() as u64
}

impl Manifest {
    fn text(&self) -> String {
        let logs: Vec<String> = self.logs.iter().map(Revision::to_string).collect();
        let body = format!("store {:016x}\nlogs {}\nrevision {}\n", self.store, logs.join(" "), self.revision);
        let sum = crc32c::crc32c(body.as_bytes());
        format!("{body}sum {sum:08x}\n")
    }

    fn parse(text: &str) -> Option<Manifest> {
        let mut fields = text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
        let mut field = |name| fields.next().filter(|(key, _)| *key == name).map(|(_, value)| value);
        let manifest = Manifest {
            store: u64::from_str_radix(field("store")?, 16).ok()?,
            logs: field("logs")?.split(' ').map(|log| log.parse().ok()).collect::<Option<_>>()?,
            revision: field("revision")?.parse().ok()?,
        };
        // The text must be the one that would be written; the sum is checked with it.
        (manifest.text() == text).then_some(manifest)
    }

    /// `None` when there is none: the folder is new, or older than manifests.
    pub fn read(disk: &dyn Disk) -> Result<Option<Manifest>, OpenError> {
        let source = match disk.read(NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(OpenError::io(disk, "read", NAME))?.1,
        };
        let mut bytes = Vec::new();
        source.take(LIMIT).read_to_end(&mut bytes).map_err(OpenError::io(disk, "read", NAME))?;
        let manifest = std::str::from_utf8(&bytes).ok().and_then(Manifest::parse);
        let damaged = || OpenError::damaged(disk, NAME, 0, "it is not what the store writes");
        manifest.map(Some).ok_or_else(damaged)
    }

    /// Replaces the manifest, durably.
    pub fn write(&self, disk: &dyn Disk) -> io::Result<()> {
        self.replace(disk)?;
        disk.sync_folder()
    }

    /// Replaces the manifest. After an error it is what it was; what it is after a power cut is only known when the
    /// folder has been synced.
    pub fn replace(&self, disk: &dyn Disk) -> io::Result<()> {
        let unfinished = format!("{NAME}{UNFINISHED}");
        let written = disk.create(&unfinished).and_then(|mut file| {
            file.append(self.text().as_bytes())?;
            file.sync()?;
            disk.rename(&unfinished, NAME)
        });
        if written.is_err() {
            // Best effort: what stays is removed at the next start.
            let _ = disk.remove(&unfinished);
        }
        written
    }
}

/// The segments to read, after a look whether all are there. A snapshot is only made beside the segment that goes on
/// from it, and segments only go when a snapshot has replaced them.
pub(super) fn segments(
    disk: &dyn Disk,
    manifest: Option<&Manifest>,
    files: &Files,
) -> Result<Vec<Revision>, OpenError> {
    let missing = |file| Err(OpenError::Missing { folder: disk.name(), file });
    let snapshot = files.snapshots.last().copied();
    let begun = manifest.map_or(&files.logs, |m| &m.logs);
    // A compaction may have been cut short between its snapshot and the manifest.
    let wanted = snapshot.into_iter().chain(begun.iter().copied().filter(|log| Some(*log) > snapshot));
    let wanted: Vec<Revision> = wanted.collect();
    // Without a snapshot everything begins at revision 1; what is there of a later time had one before it.
    if snapshot.is_none()
        && let Some(first) = wanted.iter().find(|log| files.logs.contains(log))
        && *first > 1
    {
        return missing(snapshot_name(*first));
    }
    match wanted.iter().find(|log| !files.logs.contains(log)) {
        Some(gone) => missing(log_name(*gone)),
        None => Ok(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_read() {
        let manifest = Manifest { store: 0xfeed, logs: vec![7, 12], revision: 19 };
        let text = manifest.text();
        assert_eq!(Manifest::parse(&text), Some(manifest));
        for at in 0..text.len() {
            assert_eq!(Manifest::parse(&text[..at]), None, "cut at {at}");
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            assert_eq!(Manifest::parse(&String::from_utf8(changed).unwrap()), None, "changed at {at}");
        }
        assert_eq!(Manifest::parse(&format!("{text}more")), None);
    }

    #[test]
    fn which_files_must_be_there() {
        let check = |manifest: Option<&[Revision]>, snapshots: &[Revision], logs: &[Revision], expected: &str| {
            let files = Files { logs: logs.to_vec(), snapshots: snapshots.to_vec(), unfinished: Vec::new() };
            let manifest = manifest.map(|logs| Manifest { store: 1, logs: logs.to_vec(), revision: 1 });
            let outcome = match segments(&super::super::memory::Memory::default(), manifest.as_ref(), &files) {
                Ok(found) => format!("{found:?}"),
                Err(OpenError::Missing { file, .. }) => file.replace("00000000000000000", ""),
                Err(other) => other.to_string(),
            };
            assert_eq!(outcome, expected, "{manifest:?} {snapshots:?} {logs:?}");
        };
        check(None, &[], &[], "[]");
        check(None, &[], &[1], "[1]");
        check(None, &[], &[1, 9], "[1, 9]");
        check(None, &[9], &[], "log-009");
        check(None, &[9], &[12], "log-009");
        check(None, &[], &[9, 12], "snapshot-009");
        check(Some(&[1]), &[], &[1], "[1]");
        check(Some(&[1]), &[], &[], "log-001");
        // A segment that was made and never begun.
        check(Some(&[1]), &[], &[1, 9], "[1]");
        check(Some(&[1, 9]), &[], &[1], "log-009");
        check(Some(&[1, 9]), &[], &[9], "snapshot-009");
        check(Some(&[1, 9]), &[9], &[9], "[9]");
        check(Some(&[1, 9]), &[9], &[1, 9], "[9]");
        check(Some(&[1, 9]), &[9], &[1], "log-009");
        check(Some(&[1]), &[9], &[1, 9], "[9]");
        check(Some(&[9]), &[], &[9], "snapshot-009");
        check(Some(&[9]), &[], &[], "log-009");
    }
}
