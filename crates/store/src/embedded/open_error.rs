//! Why a store does not open, in words that say what to do about it.

use std::io;

use super::disk::{Disk, LockError};

/// Why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{folder} is in use by {}; stop it first, or use another data folder",
        .pid.map_or("another process".to_owned(), |pid| format!("process {pid}")))]
    Locked { folder: String, pid: Option<u32> },
    #[error(
        "{folder}/{file} was written in format {found} by a newer version; this one reads up to format {supported}: \
        install the newer version again, or restore a snapshot into an empty folder"
    )]
    Newer { folder: String, file: String, found: u32, supported: u32 },
    #[error("{folder}/{file} is damaged at byte {offset}: {what}; {WAYS_ON}")]
    Damaged { folder: String, file: String, offset: u64, what: String },
    #[error(
        "{folder}/{file} is missing, and with it what the store kept there; put the file back if you have it; {WAYS_ON}"
    )]
    Missing { folder: String, file: String },
    #[error("cannot {action} {path}: {source}{}", advice(.source))]
    Io { action: &'static str, path: String, source: io::Error },
}

/// The ways on with a store that is not whole.
const WAYS_ON: &str = "nothing was changed: restore a snapshot into an empty folder (`skiff store restore`), or go on \
    without what is lost (`skiff store accept-loss`)";

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; the store's files must belong to the user that skiff runs as",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room on that disk",
        _ => "",
    }
}

impl OpenError {
    /// The error of an operation on the file `name`, or on the folder itself when that is empty.
    pub(super) fn io(disk: &dyn Disk, action: &'static str, name: &str) -> impl FnOnce(io::Error) -> OpenError {
        let path = if name.is_empty() { disk.name() } else { format!("{}/{name}", disk.name()) };
        move |source| OpenError::Io { action, path, source }
    }

    pub(super) fn lock(disk: &dyn Disk, error: LockError) -> OpenError {
        match error {
            LockError::Held(pid) => OpenError::Locked { folder: disk.name(), pid },
            LockError::Io(source) => OpenError::io(disk, "lock", "")(source),
        }
    }

    pub(super) fn damaged(disk: &dyn Disk, file: &str, offset: u64, what: impl Into<String>) -> OpenError {
        OpenError::Damaged { folder: disk.name(), file: file.to_owned(), offset, what: what.into() }
    }
}
