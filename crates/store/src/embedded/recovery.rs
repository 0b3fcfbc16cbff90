//! What a folder holds: its files, and the way from them back to an index.
//!
//! State is the newest snapshot plus the log segments from its revision on. A segment begins where the one before it
//! ends; only the last may have a torn tail. Anything that does not fit is damage, and the store does not start on it.

use std::{collections::BTreeMap, io, sync::Arc};

use super::{
    disk::{Disk, LockError},
    frame::{self, Frame, FrameReader, HeaderFault, Read1, Record, Role},
    index::Index,
};
use crate::{Entry, Revision};

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
    #[error(
        "{folder}/{file} is damaged at byte {offset}: {what}; nothing was changed: restore a snapshot, or copy the \
        folder and ask for help"
    )]
    Damaged { folder: String, file: String, offset: u64, what: String },
    #[error("cannot {action} in {folder}: {source}")]
    Io { folder: String, action: &'static str, source: io::Error },
}

impl OpenError {
    pub(super) fn io(disk: &dyn Disk, action: &'static str) -> impl FnOnce(io::Error) -> OpenError {
        let folder = disk.name();
        move |source| OpenError::Io { folder, action, source }
    }

    pub(super) fn lock(disk: &dyn Disk, error: LockError) -> OpenError {
        match error {
            LockError::Held(pid) => OpenError::Locked { folder: disk.name(), pid },
            LockError::Io(source) => OpenError::Io { folder: disk.name(), action: "lock the store", source },
        }
    }
}

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
        for name in disk.list().map_err(OpenError::io(disk, "list the files"))? {
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

/// A tail to cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    pub file: String,
    /// The length of the part that is whole.
    pub good: u64,
    pub len: u64,
}

/// What was read from a folder.
pub(super) struct Loaded {
    pub index: Index,
    /// When keys expire, in milliseconds of Unix time.
    pub expiries: BTreeMap<Arc<str>, u64>,
    /// The base of the segment that is appended to, and its length without padding; `None` when there is none that can be.
    pub tail: Option<(Revision, u64)>,
    pub torn: Option<Torn>,
    /// Bytes in the segments that no snapshot covers yet.
    pub log_bytes: u64,
    /// Files that a newer snapshot has made superfluous.
    pub stale: Vec<String>,
    pub frames: u64,
}

impl Loaded {
    fn starting_at(revision: Revision) -> Self {
        Loaded {
            index: Index::starting_at(revision),
            expiries: BTreeMap::new(),
            tail: None,
            torn: None,
            log_bytes: 0,
            stale: Vec::new(),
            frames: 0,
        }
    }

    /// All entries in key order, with the time of their expiry or 0.
    pub fn entries(&self) -> Vec<(Entry, u64)> {
        let all = self.index.snapshot_page(None, usize::MAX, self.index.revision());
        all.into_iter().map(|e| (e.clone(), self.expiries.get(&e.key).copied().unwrap_or(0))).collect()
    }
}

/// Reads a snapshot that lies anywhere.
pub(super) fn load_copy(disk: &dyn Disk, name: &str) -> Result<Loaded, OpenError> {
    let (revision, _) = read_header(disk, name, Role::Snapshot)?.1.map_err(|_| not_a(disk, name, "snapshot"))?;
    let mut loaded = Loaded::starting_at(revision);
    load_snapshot(disk, name, &mut loaded)?;
    Ok(loaded)
}

fn not_a(disk: &dyn Disk, name: &str, what: &str) -> OpenError {
    damaged(disk, name, 0, format!("its header is not that of a {what}"))
}

/// Reads everything; changes nothing. An empty folder gives an empty index at revision 1.
pub(super) fn load(disk: &dyn Disk) -> Result<Loaded, OpenError> {
    let files = Files::list(disk)?;
    let mut stale = files.unfinished;
    let snapshot = files.snapshots.last().copied();
    stale.extend(files.snapshots.iter().filter(|s| Some(**s) != snapshot).map(|s| snapshot_name(*s)));
    let base = snapshot.unwrap_or(1);
    stale.extend(files.logs.iter().filter(|log| **log < base).map(|log| log_name(*log)));
    let mut loaded = Loaded::starting_at(base);
    loaded.stale = stale;
    if let Some(revision) = snapshot {
        load_snapshot(disk, &snapshot_name(revision), &mut loaded)?;
    }
    let logs: Vec<Revision> = files.logs.into_iter().filter(|log| *log >= base).collect();
    for (i, log) in logs.iter().enumerate() {
        if *log != loaded.index.revision() {
            let what =
                format!("it continues revision {log}, but the files before it end at {}", loaded.index.revision());
            return Err(damaged(disk, &log_name(*log), 0, what));
        }
        replay(disk, *log, i + 1 == logs.len(), &mut loaded)?;
    }
    Ok(loaded)
}

fn damaged(disk: &dyn Disk, file: &str, offset: u64, what: impl Into<String>) -> OpenError {
    OpenError::Damaged { folder: disk.name(), file: file.to_owned(), offset, what: what.into() }
}

/// Opens a file: its length, and its base revision with its frames.
fn read_header(disk: &dyn Disk, name: &str, role: Role) -> Result<(u64, Opened), OpenError> {
    let (len, mut source) = disk.read(name).map_err(OpenError::io(disk, "read a file"))?;
    let mut header = Vec::new();
    frame::read_up_to(&mut *source, &mut header, frame::FILE_HEADER).map_err(OpenError::io(disk, "read a file"))?;
    match frame::parse_file_header(&header, role) {
        Ok(base) => Ok((len, Ok((base, FrameReader::new(source))))),
        Err(HeaderFault::Newer(found)) => {
            Err(OpenError::Newer { folder: disk.name(), file: name.to_owned(), found, supported: frame::FORMAT })
        }
        Err(fault) => Ok((len, Err(fault))),
    }
}

type Opened = Result<(Revision, FrameReader), HeaderFault>;

/// As [`read_header`], for a file whose header must name the revision.
fn open_file(
    disk: &dyn Disk,
    name: &str,
    role: Role,
    base: Revision,
) -> Result<(u64, Result<FrameReader, HeaderFault>), OpenError> {
    match read_header(disk, name, role)? {
        (_, Ok((found, _))) if found != base => {
            Err(damaged(disk, name, 0, format!("its header names revision {found}")))
        }
        (len, opened) => Ok((len, opened.map(|(_, reader)| reader))),
    }
}

fn load_snapshot(disk: &dyn Disk, name: &str, loaded: &mut Loaded) -> Result<(), OpenError> {
    let revision = loaded.index.revision();
    let (_, reader) = open_file(disk, name, Role::Snapshot, revision)?;
    let mut reader = reader.map_err(|_| not_a(disk, name, "snapshot"))?;
    let (mut entries, mut ended) = (0u64, false);
    loop {
        let offset = reader.offset;
        match reader.next().map_err(OpenError::io(disk, "read a snapshot"))? {
            Read1::Frame(frame) => {
                loaded.frames += 1;
                for record in frame.records {
                    match record {
                        Record::Put { entry, expires_ms } if !ended && entry.modified <= revision => {
                            entries += 1;
                            if expires_ms != 0 {
                                loaded.expiries.insert(entry.key.clone(), expires_ms);
                            }
                            loaded.index.load(entry);
                        }
                        Record::End { entries: told } if !ended && told == entries => ended = true,
                        _ => return Err(damaged(disk, name, offset, "a record is out of place")),
                    }
                }
            }
            Read1::End if ended => return Ok(()),
            Read1::End => return Err(damaged(disk, name, offset, "it ends too early")),
            Read1::Torn | Read1::Damaged => return Err(damaged(disk, name, offset, "a checksum does not match")),
        }
    }
}

fn replay(disk: &dyn Disk, base: Revision, last: bool, loaded: &mut Loaded) -> Result<(), OpenError> {
    let name = log_name(base);
    let (len, reader) = open_file(disk, &name, Role::Log, base)?;
    let mut reader = match reader {
        Ok(reader) => reader,
        Err(HeaderFault::Torn) if last && len <= frame::FILE_HEADER as u64 => {
            // The segment was being created; it is created again.
            loaded.torn = Some(Torn { file: name, good: 0, len });
            return Ok(());
        }
        Err(_) => return Err(not_a(disk, &name, "log")),
    };
    loop {
        let offset = reader.offset;
        match reader.next().map_err(OpenError::io(disk, "read a log"))? {
            Read1::Frame(frame) => {
                loaded.frames += 1;
                apply(frame, loaded).map_err(|what| damaged(disk, &name, offset, what))?;
            }
            Read1::End => break,
            Read1::Torn if last => {
                loaded.torn = Some(Torn { file: name, good: offset, len });
                break;
            }
            Read1::Torn => return Err(damaged(disk, &name, offset, "it ends in the middle, but a later file exists")),
            Read1::Damaged => return Err(damaged(disk, &name, offset, "a checksum does not match")),
        }
    }
    loaded.log_bytes += reader.offset;
    loaded.tail = last.then_some((base, reader.offset));
    Ok(())
}

fn apply(frame: Frame, loaded: &mut Loaded) -> Result<(), String> {
    if frame.before != loaded.index.revision() {
        return Err(format!("revisions {} to {} are missing", loaded.index.revision() + 1, frame.before));
    }
    for record in frame.records {
        let next = loaded.index.revision() + 1;
        match record {
            Record::Put { entry, expires_ms } if entry.modified == next => {
                let key = entry.key.clone();
                note_expiry(&mut loaded.expiries, &key, expires_ms);
                loaded.index.apply(key, next, Some(entry));
            }
            Record::Delete { key, revision } if revision == next => {
                loaded.expiries.remove(&key);
                loaded.index.apply(key, next, None);
            }
            Record::Compact { revision } if revision < next => {
                loaded.index.compact(revision);
            }
            _ => return Err(format!("a record is out of place behind revision {}", next - 1)),
        }
    }
    Ok(())
}

pub(super) fn note_expiry(expiries: &mut BTreeMap<Arc<str>, u64>, key: &Arc<str>, expires_ms: u64) {
    if expires_ms == 0 {
        expiries.remove(key);
    } else {
        expiries.insert(key.clone(), expires_ms);
    }
}
