//! The commands `skiff store {status,snapshot,restore,verify,compact,accept-loss}`: looking after a data folder from
//! outside.
//!
//! `status`, `verify` and `snapshot` only read and work beside a running server; the others need the folder for
//! themselves.

use std::path::Path;

use super::{
    OpenError, Torn,
    disk::{Disk, LockError},
    files::{Files, log_name, snapshot_name},
    folder::Folder,
    manifest::{self, Manifest},
    recovery::{self, Loaded},
    reserve, snapshot, writer,
};
use crate::{Entry, Revision, index::Figures};

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

/// The content of a data folder.
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

/// The process that has a data folder open.
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
    let revision = loaded.index.revision();
    let bytes = write(&target, &name, revision, loaded.store.unwrap_or(0), &loaded);
    Ok((revision, bytes.map_err(OpenError::io(&target, "write", &name))?))
}

/// Makes a data folder from such a file. The store continues `skip` revisions later, so that no client that has seen
/// newer revisions than the snapshot's meets one of them again. Returns the revision it continues at.
pub fn restore(file: &Path, folder: &Path, skip: Revision) -> Result<Revision, MaintenanceError> {
    let (source, name) = split(file)?;
    let loaded = recovery::load_copy(&source, &name)?;
    let disk = Folder::create(folder);
    let path = folder.display().to_string();
    let disk = disk.map_err(|source| OpenError::Io { action: "create the folder", path, source })?;
    let _lock = disk.lock().map_err(|error| OpenError::lock(&disk, error))?;
    if !is_empty(&disk)? {
        return Err(MaintenanceError::NotEmpty(disk.name()));
    }
    let revision = loaded.index.revision() + skip;
    begin_at(&disk, revision, manifest::new_store(), &loaded)?;
    Ok(revision)
}

/// Replaces the log by a snapshot. Returns the bytes of all files before and after. On a full disk it makes do with the
/// room that the store has kept for this.
pub fn compact(folder: &Path) -> Result<(u64, u64), MaintenanceError> {
    compact_on(&existing(folder)?, super::Options::default().reserve_bytes)
}

/// [`compact`] on any disk.
pub fn compact_on(disk: &dyn Disk, reserve_bytes: u64) -> Result<(u64, u64), MaintenanceError> {
    let _lock = disk.lock().map_err(|error| OpenError::lock(disk, error))?;
    let loaded = recovery::load(disk)?;
    let before = file_bytes(disk)?;
    let revision = loaded.index.revision();
    begin_at(disk, revision, loaded.store.unwrap_or_else(manifest::new_store), &loaded)?;
    for name in files_before(disk, revision)? {
        disk.remove(&name).map_err(OpenError::io(disk, "remove", &name))?;
    }
    disk.sync_folder().map_err(OpenError::io(disk, "sync", ""))?;
    reserve::take(disk, reserve_bytes, loaded.index.live_bytes());
    Ok((before, file_bytes(disk)?))
}

/// The outcome of [`accept_loss`].
#[derive(Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Why the store did not start.
    pub why: String,
    /// The revision up to which everything was there, and how many keys that leaves.
    pub found: Revision,
    pub keys: usize,
    /// Where the store goes on.
    pub revision: Revision,
    /// The new names of the old files.
    pub kept: Vec<String>,
}

/// Makes a store that is not whole one that starts, with what can still be read. Its revisions go on `skip` later than
/// any that it has had, as after a restore. The old files stay under other names. `None` when nothing is lost.
pub fn accept_loss(folder: &Path, skip: Revision) -> Result<Option<Accepted>, MaintenanceError> {
    const ASIDE: &str = ".lost";
    let disk = existing(folder)?;
    let _lock = disk.lock().map_err(|error| OpenError::lock(&disk, error))?;
    let (loaded, Some(why)) = recovery::load_rest(&disk)? else { return Ok(None) };
    let told = Manifest::read(&disk).ok().flatten();
    let files = Files::list(&disk)?;
    let had = files.logs.iter().chain(&files.snapshots).copied().chain(told.iter().map(|m| m.revision));
    let revision = had.fold(loaded.index.revision(), Revision::max) + skip;
    let store = told.map(|m| m.store).or(loaded.store).unwrap_or_else(manifest::new_store);
    // From here on the store starts, and the files before it are not read any more.
    begin_at(&disk, revision, store, &loaded)?;
    let mut kept = Vec::new();
    for name in files_before(&disk, revision)? {
        let aside = format!("{name}{ASIDE}");
        disk.rename(&name, &aside).map_err(OpenError::io(&disk, "rename", &name))?;
        kept.push(aside);
    }
    disk.sync_folder().map_err(OpenError::io(&disk, "sync", ""))?;
    let (found, keys) = (loaded.index.revision(), loaded.index.figures().keys);
    Ok(Some(Accepted { why: why.to_string(), found, keys, revision, kept }))
}

/// Writes the state as a snapshot at `revision`, with the segment that goes on from it. A power cut under way leaves
/// what was there before.
fn begin_at(disk: &dyn Disk, revision: Revision, store: u64, loaded: &Loaded) -> Result<(), OpenError> {
    let name = snapshot_name(revision);
    let written = reserve::with_room(disk, || {
        writer::new_segment(disk, revision, store)?;
        write(disk, &name, revision, store, loaded)?;
        Manifest { store, logs: vec![revision], revision }.write(disk)
    });
    written.map_err(OpenError::io(disk, "write", &name))
}

/// The files before `revision`.
fn files_before(disk: &dyn Disk, revision: Revision) -> Result<Vec<String>, OpenError> {
    let files = Files::list(disk)?;
    let logs = files.logs.iter().filter(|log| **log < revision).map(|log| log_name(*log));
    let snapshots = files.snapshots.iter().filter(|s| **s < revision).map(|s| snapshot_name(*s));
    Ok(logs.chain(snapshots).collect())
}

fn write(disk: &dyn Disk, name: &str, revision: Revision, store: u64, loaded: &Loaded) -> std::io::Result<u64> {
    let mut all = loaded.entries();
    let pages = |_: Option<&Entry>| std::mem::take(&mut all);
    snapshot::write(disk, name, revision, store, pages)
}

/// Reads the folder, again if a server replaced files meanwhile.
fn load_beside_a_server(disk: &Folder) -> Result<Loaded, OpenError> {
    for _ in 0..5 {
        match recovery::load(disk) {
            Err(OpenError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(OpenError::Missing { .. }) => {}
            done => return done,
        }
    }
    recovery::load(disk)
}

fn existing(folder: &Path) -> Result<Folder, MaintenanceError> {
    let none = || MaintenanceError::NoStore(folder.display().to_string());
    let disk = Folder::existing(folder).map_err(|_| none())?;
    let begun = !is_empty(&disk)? || matches!(Manifest::read(&disk), Ok(Some(_)) | Err(_));
    if begun { Ok(disk) } else { Err(none()) }
}

fn is_empty(disk: &Folder) -> Result<bool, OpenError> {
    let files = Files::list(disk)?;
    Ok(files.logs.is_empty() && files.snapshots.is_empty())
}

/// The folder and the name of a file.
fn split(file: &Path) -> Result<(Folder, String), OpenError> {
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| OpenError::Io { action: "open the folder of", path: file.display().to_string(), source };
    let name = file.file_name().ok_or_else(|| failed(std::io::ErrorKind::IsADirectory.into()))?;
    Ok((Folder::existing(parent).map_err(failed)?, name.to_string_lossy().into_owned()))
}

/// The bytes of logs and snapshots.
fn file_bytes(disk: &dyn Disk) -> Result<u64, OpenError> {
    let names = files_before(disk, Revision::MAX)?;
    let lengths = names.iter().map(|name| disk.read(name).map(|(len, _)| len));
    Ok(lengths.filter_map(|len| len.ok()).sum())
}
