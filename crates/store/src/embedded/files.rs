//! The names of the store's files, and which of them a folder holds.

use super::{disk::Disk, open_error::OpenError};
use crate::Revision;

pub(super) fn log_name(base: Revision) -> String {
    format!("log-{base:020}")
}

pub(super) fn snapshot_name(revision: Revision) -> String {
    format!("snapshot-{revision:020}")
}

/// Files that are being written end so until they are whole.
pub(super) const UNFINISHED: &str = ".new";

/// The files of a store in a folder, by their base revision.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub logs: Vec<Revision>,
    pub snapshots: Vec<Revision>,
    pub unfinished: Vec<String>,
}

impl Files {
    pub fn list(disk: &dyn Disk) -> Result<Files, OpenError> {
        let mut files = Files::default();
        for name in disk.list().map_err(OpenError::io(disk, "list the files of", ""))? {
            if name.ends_with(UNFINISHED) {
                files.unfinished.push(name);
            } else if let Some(base) = name.strip_prefix("log-").and_then(|n| n.parse().ok()) {
                files.logs.push(base);
            } else if let Some(base) = name.strip_prefix("snapshot-").and_then(|n| n.parse().ok()) {
                files.snapshots.push(base);
            }
        }
        files.logs.sort_unstable();
        files.snapshots.sort_unstable();
        Ok(files)
    }
}
