//! Recovery: the way from the files of a folder back to an index.
//!
//! State is the newest snapshot plus the log segments from its revision on. A segment begins where the one before it
//! ends; only the last may have a torn tail. A file gets its name when its header is durable, so that one with less than
//! a header was cut. Anything that does not fit is damage, and the store does not start on it.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    sync::Arc,
};

use super::{
    disk::Disk,
    edits,
    files::{Files, log_name, snapshot_name},
    frame::{self, FileHeader, Frame, FrameReader, HeaderFault, Read1, Record, Role},
    manifest::{self, Manifest},
    open_error::OpenError,
    writer::VALUE_LIMIT,
};
use crate::{Entry, Revision, index::Index};

/// A tail to cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    pub file: String,
    /// The length of the part that is whole.
    pub good: u64,
    pub len: u64,
}

impl std::fmt::Display for Torn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "in {} from byte {} to {}", self.file, self.good, self.len)
    }
}

/// All that was read from a folder.
pub(super) struct Loaded {
    pub index: Index,
    /// When keys expire, in milliseconds of Unix time.
    pub expiries: BTreeMap<Arc<str>, u64>,
    /// Where the segments begin that were read; the last is the one to append to.
    pub logs: Vec<Revision>,
    /// The length of that one without padding.
    pub tail: u64,
    /// The store that the files belong to; `None` when none says.
    pub store: Option<u64>,
    pub torn: Option<Torn>,
    /// The format of that one.
    pub format: u32,
    /// Bytes in the segments that no snapshot covers yet.
    pub log_bytes: u64,
    /// By how much the values in them are longer than what is written of them.
    pub folded_bytes: u64,
    /// Files that a newer snapshot has made superfluous.
    pub stale: Vec<String>,
    pub frames: u64,
}

impl Loaded {
    fn starting_at(revision: Revision) -> Self {
        Loaded {
            index: Index::starting_at(revision),
            expiries: BTreeMap::new(),
            logs: Vec::new(),
            tail: 0,
            store: None,
            torn: None,
            format: frame::FORMAT,
            log_bytes: 0,
            folded_bytes: 0,
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
    let (header, _) = open_file(disk, name, Role::Snapshot)?;
    let mut loaded = Loaded::starting_at(header.base);
    load_snapshot(disk, name, &mut loaded)?;
    Ok(loaded)
}

/// Reads everything; changes nothing. An empty folder gives an empty index at revision 1.
pub(super) fn load(disk: &dyn Disk) -> Result<Loaded, OpenError> {
    // First, since a server beside us may begin a new segment and remove the ones before it.
    let manifest = Manifest::read(disk)?;
    let files = Files::list(disk)?;
    let logs = manifest::segments(disk, manifest.as_ref(), &files)?;
    let mut loaded = Loaded::starting_at(files.snapshots.last().copied().unwrap_or(1));
    loaded.store = manifest.as_ref().map(|m| m.store);
    read_all(disk, &files, &logs, &mut loaded)?;
    check_loaded(disk, manifest.as_ref(), &loaded)?;
    note_stale(disk, files, &mut loaded)?;
    Ok(loaded)
}

/// Reads as much as can be read, for who accepts the loss of the rest; and why that is not everything.
pub(super) fn load_rest(disk: &dyn Disk) -> Result<(Loaded, Option<OpenError>), OpenError> {
    let lost = match load(disk) {
        Ok(loaded) => return Ok((loaded, None)),
        Err(error @ (OpenError::Damaged { .. } | OpenError::Missing { .. })) => error,
        Err(other) => return Err(other),
    };
    let files = Files::list(disk)?;
    // Without the snapshot before them, the changes that the segments hold are still something.
    let base = files.snapshots.last().or(files.logs.first()).copied().unwrap_or(1);
    let logs: Vec<Revision> = files.logs.iter().copied().filter(|log| *log >= base).collect();
    let mut loaded = Loaded::starting_at(base);
    match read_all(disk, &files, &logs, &mut loaded) {
        Ok(()) | Err(OpenError::Damaged { .. } | OpenError::Missing { .. }) => Ok((loaded, Some(lost))),
        Err(other) => Err(other),
    }
}

/// Whether what was read reaches as far as the store had come.
fn check_loaded(disk: &dyn Disk, manifest: Option<&Manifest>, loaded: &Loaded) -> Result<(), OpenError> {
    let (Some(manifest), Some(log)) = (manifest, loaded.logs.last()) else { return Ok(()) };
    let revision = loaded.index.revision();
    if revision >= manifest.revision {
        return Ok(());
    }
    let what = format!("it ends at revision {revision}, but the store had reached {}", manifest.revision);
    Err(OpenError::damaged(disk, &log_name(*log), loaded.tail, what))
}

fn read_all(disk: &dyn Disk, files: &Files, logs: &[Revision], loaded: &mut Loaded) -> Result<(), OpenError> {
    if let Some(revision) = files.snapshots.last() {
        load_snapshot(disk, &snapshot_name(*revision), loaded)?;
    }
    for (i, log) in logs.iter().enumerate() {
        if *log != loaded.index.revision() {
            let what =
                format!("it continues revision {log}, but the files before it end at {}", loaded.index.revision());
            return Err(OpenError::damaged(disk, &log_name(*log), 0, what));
        }
        replay(disk, *log, i + 1 == logs.len(), loaded)?;
    }
    Ok(())
}

/// Notes the files that nobody needs: unfinished ones, those that the snapshot has replaced, and segments that were
/// made and never begun.
fn note_stale(disk: &dyn Disk, files: Files, loaded: &mut Loaded) -> Result<(), OpenError> {
    let snapshot = files.snapshots.last().copied();
    for log in files.logs.into_iter().filter(|log| !loaded.logs.contains(log)).collect::<Vec<_>>() {
        let name = log_name(log);
        if Some(log) > snapshot {
            let (_, mut reader) = open_file(disk, &name, Role::Log)?;
            let offset = reader.offset;
            if !matches!(reader.next().map_err(OpenError::io(disk, "read", &name))?, Read1::End) {
                return Err(OpenError::damaged(
                    disk,
                    &name,
                    offset,
                    "there are writes in it that the manifest does not name",
                ));
            }
        }
        loaded.stale.push(name);
    }
    loaded.stale.extend(files.unfinished);
    let replaced = files.snapshots.into_iter().filter(|s| Some(*s) != snapshot);
    loaded.stale.extend(replaced.map(snapshot_name));
    Ok(())
}

/// Opens a file and reads its header.
fn open_file(disk: &dyn Disk, name: &str, role: Role) -> Result<(FileHeader, FrameReader), OpenError> {
    let (len, mut source) = disk.read(name).map_err(OpenError::io(disk, "read", name))?;
    let mut bytes = Vec::new();
    frame::read_up_to(&mut *source, &mut bytes, frame::FILE_HEADER).map_err(OpenError::io(disk, "read", name))?;
    let kind = if role == Role::Log { "log" } else { "snapshot" };
    match frame::parse_file_header(&bytes, role) {
        Ok(header) => {
            let rest = io::Cursor::new(bytes.split_off(header.len));
            Ok((header, FrameReader::new(Box::new(rest.chain(source)), header.len)))
        }
        Err(HeaderFault::Newer(found)) => {
            Err(OpenError::Newer { folder: disk.name(), file: name.to_owned(), found, supported: frame::FORMAT })
        }
        Err(HeaderFault::Short) if len <= frame::FILE_HEADER as u64 => {
            let what = format!("it has {len} bytes, less than the header of a {kind}: it was cut off");
            Err(OpenError::damaged(disk, name, 0, what))
        }
        Err(_) => Err(OpenError::damaged(disk, name, 0, format!("its header is not that of a {kind}"))),
    }
}

/// As [`open_file`], for a file of this store that begins at the revision that was reached.
fn open_next(disk: &dyn Disk, name: &str, role: Role, loaded: &mut Loaded) -> Result<FrameReader, OpenError> {
    let (header, reader) = open_file(disk, name, role)?;
    if header.base != loaded.index.revision() {
        return Err(OpenError::damaged(disk, name, 0, format!("its header names revision {}", header.base)));
    }
    match (loaded.store, header.store) {
        (Some(ours), Some(its)) if ours != its => Err(OpenError::damaged(disk, name, 0, "it belongs to another store")),
        (known, said) => {
            (loaded.store, loaded.format) = (known.or(said), header.version);
            Ok(reader)
        }
    }
}

fn load_snapshot(disk: &dyn Disk, name: &str, loaded: &mut Loaded) -> Result<(), OpenError> {
    let revision = loaded.index.revision();
    let mut reader = open_next(disk, name, Role::Snapshot, loaded)?;
    let (mut entries, mut ended) = (0u64, false);
    loop {
        let offset = reader.offset;
        match reader.next().map_err(OpenError::io(disk, "read", name))? {
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
                        _ => return Err(OpenError::damaged(disk, name, offset, "a record is out of place")),
                    }
                }
            }
            Read1::End if ended => return Ok(()),
            Read1::End => return Err(OpenError::damaged(disk, name, offset, "it ends too early")),
            Read1::Torn | Read1::Damaged => {
                return Err(OpenError::damaged(disk, name, offset, "a checksum does not match"));
            }
        }
    }
}

fn replay(disk: &dyn Disk, base: Revision, last: bool, loaded: &mut Loaded) -> Result<(), OpenError> {
    let name = log_name(base);
    let mut reader = open_next(disk, &name, Role::Log, loaded)?;
    let len = disk.read(&name).map_err(OpenError::io(disk, "read", &name))?.0;
    loop {
        let offset = reader.offset;
        match reader.next().map_err(OpenError::io(disk, "read", &name))? {
            Read1::Frame(frame) => {
                loaded.frames += 1;
                apply(frame, loaded).map_err(|what| OpenError::damaged(disk, &name, offset, what))?;
            }
            Read1::End => break,
            Read1::Torn if last => {
                loaded.torn = Some(Torn { file: name, good: offset, len });
                break;
            }
            Read1::Torn => {
                return Err(OpenError::damaged(disk, &name, offset, "it ends in the middle, but a later file exists"));
            }
            Read1::Damaged => return Err(OpenError::damaged(disk, &name, offset, "a checksum does not match")),
        }
    }
    (loaded.tail, loaded.log_bytes) = (reader.offset, loaded.log_bytes + reader.offset);
    loaded.logs.push(base);
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
            Record::Change { key, edits, base, revision, expires_ms } if revision == next => {
                let before = loaded.index.get(&key).filter(|entry| entry.modified == base);
                let value = before.and_then(|entry| edits::applied(&entry.value, &edits, VALUE_LIMIT));
                let (Some(before), Some(value)) = (before, value) else {
                    return Err(format!("the change at revision {next} does not fit what was there at {base}"));
                };
                loaded.folded_bytes += value.len().saturating_sub(edits.len()) as u64;
                let entry =
                    Entry { key: before.key.clone(), value: value.into(), created: before.created, modified: next };
                note_expiry(&mut loaded.expiries, &entry.key, expires_ms);
                loaded.index.apply(entry.key.clone(), next, Some(entry));
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
