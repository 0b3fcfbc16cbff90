//! What `skiff store {status,snapshot,restore,verify,compact}` does: looking after a data folder from outside.
//!
//! `status`, `verify` and `snapshot` only read and work beside a running server; `restore` and `compact` need the
//! folder for themselves.

use std::path::Path;

use super::{
    OpenError, Torn,
    disk::{Disk, Folder, LockError},
    index::Figures,
    recovery::{self, Files, Loaded},
    snapshot, writer,
};
use crate::{Entry, Revision};

/// Why a maintenance command did nothing.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{0} exists already; name another file or remove it")]
    Exists(String),
    #[error("{0} holds a store already; restore into an empty folder")]
    NotEmpty(String),
    #[error("{0} holds no store")]
    NoStore(String),
}

/// What a data folder holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub figures: Figures,
    /// The revision of the newest snapshot.
    pub snapshot: Option<Revision>,
    /// Bytes of log since then.
    pub log_bytes: u64,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Frames (writes made durable in one go) that were read and whose checksums are right.
    pub frames: u64,
    /// An interrupted write at the end, or one that is under way; the next start cuts it off.
    pub torn: Option<Torn>,
    pub used_by: Use,
}

/// Who has a data folder open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Nobody,
    Process(u32),
    /// Its id could not be read.
    AnotherProcess,
}

/// Reads and checks the whole folder.
pub fn status(folder: &Path) -> Result<Status, MaintenanceError> {
    let disk = existing(folder)?;
    let used_by = match disk.lock() {
        Ok(_) => Use::Nobody,
        Err(LockError::Held(pid)) => pid.map_or(Use::AnotherProcess, Use::Process),
        Err(error) => return Err(OpenError::lock(&disk, error).into()),
    };
    let loaded = load_beside_a_server(&disk)?;
    let files = Files::list(&disk)?;
    Ok(Status {
        figures: loaded.index.figures(),
        snapshot: files.snapshots.last().copied(),
        log_bytes: loaded.log_bytes,
        file_bytes: file_bytes(&disk)?,
        frames: loaded.frames,
        torn: loaded.torn,
        used_by,
    })
}

/// Checks every checksum and that no revision is missing. `Ok` tells what is there; damage is the error.
pub fn verify(folder: &Path) -> Result<Status, MaintenanceError> {
    status(folder)
}

/// Copies the state into one new file. Returns its revision and size.
pub fn snapshot(folder: &Path, file: &Path) -> Result<(Revision, u64), MaintenanceError> {
    let loaded = load_beside_a_server(&existing(folder)?)?;
    let (target, name) = split(file)?;
    if file.exists() {
        return Err(MaintenanceError::Exists(file.display().to_string()));
    }
    let bytes = write(&target, &name, loaded.index.revision(), &loaded)?;
    Ok((loaded.index.revision(), bytes))
}

/// Makes a data folder from such a file. The store continues `skip` revisions later, so that no client that has seen
/// newer revisions than the snapshot's meets one of them again. Returns the revision it continues at.
pub fn restore(file: &Path, folder: &Path, skip: Revision) -> Result<Revision, MaintenanceError> {
    let (source, name) = split(file)?;
    let loaded = recovery::load_copy(&source, &name)?;
    let disk = Folder::create(folder);
    let disk = disk.map_err(|source| OpenError::Io {
        folder: folder.display().to_string(),
        action: "create the data folder",
        source,
    })?;
    let _lock = disk.lock().map_err(|error| OpenError::lock(&disk, error))?;
    if !is_empty(&disk)? {
        return Err(MaintenanceError::NotEmpty(disk.name()));
    }
    let revision = loaded.index.revision() + skip;
    write(&disk, &recovery::snapshot_name(revision), revision, &loaded)?;
    Ok(revision)
}

/// Replaces the log by a snapshot. Returns the bytes of all files before and after.
pub fn compact(folder: &Path) -> Result<(u64, u64), MaintenanceError> {
    let disk = existing(folder)?;
    let _lock = disk.lock().map_err(|error| OpenError::lock(&disk, error))?;
    let loaded = recovery::load(&disk)?;
    let before = file_bytes(&disk)?;
    let revision = loaded.index.revision();
    let files = Files::list(&disk)?;
    write(&disk, &recovery::snapshot_name(revision), revision, &loaded)?;
    let removed = "remove a file that the snapshot replaces";
    for name in (files.logs.iter().filter(|log| **log < revision).map(|log| recovery::log_name(*log)))
        .chain(files.snapshots.iter().filter(|s| **s < revision).map(|s| recovery::snapshot_name(*s)))
    {
        disk.remove(&name).map_err(OpenError::io(&disk, removed))?;
    }
    // A fresh segment also replaces one that begins at this revision and may have a torn tail.
    writer::new_segment(&disk, revision).map_err(OpenError::io(&disk, "create the log"))?;
    Ok((before, file_bytes(&disk)?))
}

fn write(disk: &Folder, name: &str, revision: Revision, loaded: &Loaded) -> Result<u64, OpenError> {
    let mut all = loaded.entries();
    let pages = |_: Option<&Entry>| std::mem::take(&mut all);
    snapshot::write(disk, name, revision, pages).map_err(OpenError::io(disk, "write a snapshot"))
}

/// Reads the folder, again if a server replaced files meanwhile.
fn load_beside_a_server(disk: &Folder) -> Result<Loaded, OpenError> {
    for _ in 0..5 {
        match recovery::load(disk) {
            Err(OpenError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    recovery::load(disk)
}

fn existing(folder: &Path) -> Result<Folder, MaintenanceError> {
    let none = || MaintenanceError::NoStore(folder.display().to_string());
    let disk = Folder::existing(folder).map_err(|_| none())?;
    if is_empty(&disk)? { Err(none()) } else { Ok(disk) }
}

fn is_empty(disk: &Folder) -> Result<bool, OpenError> {
    let files = Files::list(disk)?;
    Ok(files.logs.is_empty() && files.snapshots.is_empty())
}

/// The folder and the name of a file.
fn split(file: &Path) -> Result<(Folder, String), OpenError> {
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| OpenError::Io { folder: parent.display().to_string(), action: "open the folder", source };
    let name = file.file_name().ok_or_else(|| failed(std::io::ErrorKind::IsADirectory.into()))?;
    Ok((Folder::existing(parent).map_err(failed)?, name.to_string_lossy().into_owned()))
}

fn file_bytes(disk: &Folder) -> Result<u64, OpenError> {
    let names = disk.list().map_err(OpenError::io(disk, "list the files"))?;
    let lengths = names.iter().map(|name| disk.read(name).map(|(len, _)| len));
    Ok(lengths.filter_map(|len| len.ok()).sum())
}
