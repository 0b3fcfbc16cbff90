//! From etcd's keys, values and events to those of the store.

use std::sync::Arc;

use bytes::Bytes;
use etcd_client::{EventType, KeyValue};

use crate::{Entry, Event};

/// How a cluster's answers are read.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    /// The length of the prefix that keys lose.
    pub(super) cut: usize,
    /// Brings a value into the form in which the store has it.
    pub(super) form: fn(Bytes) -> Bytes,
}

impl Reading {
    fn key(self, key: &[u8]) -> Arc<str> {
        String::from_utf8_lossy(key.get(self.cut..).unwrap_or_default()).into()
    }

    pub(super) fn entry(self, kv: KeyValue) -> Entry {
        let (created, modified) = (kv.create_revision().cast_unsigned(), kv.mod_revision().cast_unsigned());
        let (key, value) = kv.into_key_value();
        Entry { key: self.key(&key), value: (self.form)(Bytes::from(value)), created, modified }
    }

    pub(super) fn event(self, event: &etcd_client::Event) -> Option<Event> {
        let kv = event.kv()?;
        let previous = event.prev_kv().map(|kv| self.entry(kv.clone()));
        let (key, revision) = (self.key(kv.key()), kv.mod_revision().cast_unsigned());
        let entry = match event.event_type() {
            EventType::Put => Some(Entry { key: key.clone(), ..self.entry(kv.clone()) }),
            EventType::Delete => None,
        };
        Some(Event { key, revision, entry, previous })
    }
}
