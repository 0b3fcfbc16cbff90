//! How many seats a request takes: one, but for lists, which take as many as they are large.
//!
//! Upstream counterpart: apiserver/pkg/util/flowcontrol/request.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use api::{
    kind::Definition,
    rules::url::{is_true, query_firsts},
};
use parking_lot::RwLock;

use crate::http::request::{Info, has_pages};

/// The bytes of a list that take a seat.
const BYTES_PER_SEAT: u64 = 100_000;
/// No more of a list than this is in memory at once.
const BYTES_AT_ONCE: u64 = 1_000_000;
/// One request takes no more than this part of its level's seats.
const PART: f64 = 0.15;

/// The number of a kind's objects and their bytes, as its last whole list found them.
#[derive(Default)]
struct Size {
    objects: AtomicU64,
    bytes: AtomicU64,
}

/// The sizes of the kinds that were listed.
#[derive(Default)]
pub struct Sizes(RwLock<HashMap<(String, String), Size>>);

impl Sizes {
    /// Notes the number and the bytes of all objects of a kind, as a list had them.
    pub fn listed(&self, definition: &Definition, objects: usize, bytes: usize) {
        let key = (definition.group.clone(), definition.plural.clone());
        let store = |size: &Size| {
            size.objects.store(objects as u64, Ordering::Relaxed);
            size.bytes.store(bytes as u64, Ordering::Relaxed);
        };
        if let Some(size) = self.0.read().get(&key) {
            return store(size);
        }
        store(self.0.write().entry(key).or_default());
    }

    /// The seats for a request, of a level with `nominal` seats.
    pub fn seats(&self, info: &Info, query: &str, nominal: impl FnOnce() -> u32) -> u32 {
        // A list of one name is a get.
        if !info.name.is_empty() || !matches!(info.verb, "list" | "watch") {
            return 1;
        }
        let value = |name: &str| query_firsts(query).find(|(key, _)| key == name).map(|(_, value)| value);
        let version = value("resourceVersion").filter(|version| !version.is_empty());
        let is_any = version.as_deref() == Some("0");
        // A watch from anywhere begins with a list.
        let begins = || version.is_none() || is_any || value("sendInitialEvents").is_some_and(|value| is_true(&value));
        if info.verb == "watch" && !begins() {
            return 1;
        }
        let Some(definition) = &info.definition else { return 1 };
        let known = self.0.read();
        let Some(size) = known.get(&(definition.group.clone(), definition.plural.clone())) else { return 1 };
        let (objects, bytes) = (size.objects.load(Ordering::Relaxed), size.bytes.load(Ordering::Relaxed));
        let limit = value("limit").filter(|_| has_pages(definition, is_any)).and_then(|value| value.parse().ok());
        let read = limit.filter(|limit| *limit > 0).map_or(objects, |limit: u64| limit.min(objects));
        let at_once = (bytes / objects.max(1)).saturating_mul(read).min(BYTES_AT_ONCE);
        let most = ((f64::from(nominal()) * PART) as u64).max(1);
        at_once.div_ceil(BYTES_PER_SEAT).clamp(1, most) as u32
    }
}
