//! The index: every key's present state and recent history in memory, in key order.
//!
//! Readers share one lock with the short moment in which a durable batch is applied; they never wait for the disk.
//! Only durable commits get in here, so nothing that a reader or watcher sees can be lost by a power cut. The embedded
//! store has one revision for each change; the copy of an etcd cluster has what etcd tells: revisions that were about
//! other keys are missing, and the changes of one transaction share one.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use crate::{Entry, Event, Page, Range, Result, Revision, StoreError};

/// The bytes that one remembered change costs beside its values.
const EVENT_BYTES: usize = size_of::<Event>() + size_of::<Version>();

/// A key's state from revision `at` on; `None` after a deletion.
#[derive(Debug)]
struct Version {
    at: Revision,
    entry: Option<Entry>,
}

/// A key's states, `latest` and those that are still readable before it, oldest first.
#[derive(Debug)]
struct Node {
    latest: Version,
    older: Vec<Version>,
}

impl Node {
    fn as_of(&self, revision: Revision) -> Option<&Entry> {
        if self.latest.at <= revision {
            return self.latest.entry.as_ref();
        }
        self.older.iter().rev().find(|v| v.at <= revision)?.entry.as_ref()
    }

    /// Forgets states that no read at `revision` or later can see. True when nothing is left of the key.
    fn compact(&mut self, revision: Revision) -> bool {
        if self.latest.at <= revision {
            self.older = Vec::new();
            return self.latest.entry.is_none();
        }
        let first_needed = self.older.iter().rposition(|v| v.at <= revision).unwrap_or(0);
        self.older.drain(..first_needed);
        if self.older.first().is_some_and(|v| v.at <= revision && v.entry.is_none()) {
            self.older.remove(0);
        }
        self.older.shrink_to_fit();
        false
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    nodes: BTreeMap<Arc<str>, Node>,
    /// The changes behind `compacted` up to `revision`, in order.
    events: VecDeque<Event>,
    revision: Revision,
    compacted: Revision,
    /// While a snapshot is being read at this revision, compaction stops there.
    pinned: Option<Revision>,
    /// Bytes of keys and values that are live.
    live_bytes: u64,
    live_keys: usize,
    /// Bytes that are held for history alone.
    history_bytes: usize,
}

/// Figures about an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    pub revision: Revision,
    /// The oldest revision that can be read.
    pub oldest: Revision,
    pub keys: usize,
    /// Bytes of live keys and values.
    pub live_bytes: u64,
    /// Bytes that are kept for reads and watches of the past.
    pub history_bytes: usize,
}

fn size(entry: &Entry) -> u64 {
    (entry.key.len() + entry.value.len()) as u64
}

fn held(event: &Event) -> usize {
    EVENT_BYTES + event.previous.as_ref().map_or(0, |p| p.value.len())
}

impl Index {
    /// An index at `revision` that knows nothing of the time before.
    pub fn starting_at(revision: Revision) -> Self {
        Index {
            nodes: BTreeMap::new(),
            events: VecDeque::new(),
            revision,
            compacted: revision,
            pinned: None,
            live_bytes: 0,
            live_keys: 0,
            history_bytes: 0,
        }
    }

    /// Puts an entry of a snapshot in: state without an event.
    pub fn load(&mut self, entry: Entry) {
        self.live_bytes += size(&entry);
        self.live_keys += 1;
        let version = Version { at: entry.modified, entry: Some(entry.clone()) };
        self.nodes.insert(entry.key, Node { latest: version, older: Vec::new() });
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub fn figures(&self) -> Figures {
        Figures {
            revision: self.revision,
            oldest: self.compacted,
            keys: self.live_keys,
            live_bytes: self.live_bytes,
            history_bytes: self.history_bytes,
        }
    }

    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.nodes.get(key)?.latest.entry.as_ref()
    }

    /// Applies the next change. Returns the event that watchers get.
    pub fn apply(&mut self, key: Arc<str>, revision: Revision, entry: Option<Entry>) -> Event {
        assert_eq!(revision, self.revision + 1, "revisions follow one another");
        self.follow(key, revision, entry)
    }

    /// Nothing else changed up to this revision.
    pub fn advance(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// Applies a change that somebody else made. Returns the event that watchers get.
    pub fn follow(&mut self, key: Arc<str>, revision: Revision, entry: Option<Entry>) -> Event {
        assert!(revision >= self.revision, "revisions do not go back");
        self.revision = revision;
        if let Some(entry) = &entry {
            self.live_bytes += size(entry);
            self.live_keys += 1;
        }
        let version = Version { at: revision, entry: entry.clone() };
        let previous = match self.nodes.get_mut(&key) {
            Some(node) => {
                let old = std::mem::replace(&mut node.latest, version);
                let previous = old.entry.clone();
                node.older.push(old);
                previous
            }
            None => {
                self.nodes.insert(key.clone(), Node { latest: version, older: Vec::new() });
                None
            }
        };
        if let Some(previous) = &previous {
            self.live_bytes -= size(previous);
            self.live_keys -= 1;
        }
        let event = Event { key, revision, entry, previous };
        self.history_bytes += held(&event);
        self.events.push_back(event.clone());
        event
    }

    /// The page of a range. Clones references only.
    pub fn range(&self, range: &Range) -> Result<Page> {
        let revision = range.revision.unwrap_or(self.revision);
        self.check_readable(revision)?;
        let mut page = Page { entries: Vec::new(), revision, remaining: 0 };
        if range.start >= range.end {
            return Ok(page);
        }
        let bounds = (Bound::Included(range.start.as_str()), Bound::Excluded(range.end.as_str()));
        for entry in self.nodes.range::<str, _>(bounds).filter_map(|(_, node)| node.as_of(revision)) {
            if range.limit == 0 || page.entries.len() < range.limit {
                page.entries.push(entry.clone());
            } else {
                page.remaining += 1;
            }
        }
        Ok(page)
    }

    /// Up to `limit` entries behind `after` as of a pinned revision.
    pub fn snapshot_page(&self, after: Option<&str>, limit: usize, revision: Revision) -> Vec<Entry> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let nodes = self.nodes.range::<str, _>((start, Bound::Unbounded));
        nodes.filter_map(|(_, node)| node.as_of(revision)).take(limit).cloned().collect()
    }

    /// The changes of keys with the prefix behind `after`.
    pub fn events_after(&self, prefix: &str, after: Revision) -> Result<Vec<Event>> {
        self.check_readable(after)?;
        let skip = self.events.partition_point(|event| event.revision <= after);
        Ok(self.events.iter().skip(skip).filter(|e| e.key.starts_with(prefix)).cloned().collect())
    }

    fn check_readable(&self, revision: Revision) -> Result<()> {
        if revision < self.compacted {
            return Err(StoreError::Compacted { requested: revision, oldest: self.compacted });
        }
        if revision > self.revision {
            return Err(StoreError::Future { requested: revision, newest: self.revision });
        }
        Ok(())
    }

    /// Keeps the revision readable until [`Index::unpin`].
    pub fn pin(&mut self, revision: Revision) {
        self.pinned = Some(revision);
    }

    pub fn unpin(&mut self) {
        self.pinned = None;
    }

    /// Forgets what lies before `revision`; costs what is forgotten, not what exists. Returns the oldest revision
    /// that stays readable, which is an older one while a snapshot is being read.
    pub fn compact(&mut self, revision: Revision) -> Revision {
        let target = revision.min(self.revision).min(self.pinned.unwrap_or(Revision::MAX));
        while let Some(event) = self.events.pop_front_if(|event| event.revision <= target) {
            self.history_bytes -= held(&event);
            // The last change of a key within the forgotten span decides what stays of it, so every change may look.
            if self.nodes.get_mut(&event.key).is_some_and(|node| node.compact(target)) {
                self.nodes.remove(&event.key);
            }
        }
        self.compacted = self.compacted.max(target);
        if self.events.capacity() > 1024 && self.events.len() < self.events.capacity() / 4 {
            self.events.shrink_to(self.events.len() * 2);
        }
        self.compacted
    }

    /// Forgets the oldest history, of what watchers were told up to this revision, once it holds more than `limit` bytes.
    pub fn bound_history(&mut self, limit: usize, told: Revision) {
        if self.history_bytes <= limit {
            return;
        }
        let (mut excess, mut target) = (self.history_bytes - limit / 4 * 3, self.compacted);
        for event in &self.events {
            if excess == 0 || event.revision > told {
                break;
            }
            excess = excess.saturating_sub(held(event));
            target = event.revision;
        }
        self.compact(target);
    }
}
