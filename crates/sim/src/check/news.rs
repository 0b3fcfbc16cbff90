//! News: what a controller may not have heard of yet.
//!
//! A change counts once a controller could know of it. A count that has just changed, and a Pod that has just become
//! ready, may not have reached one that still acts on an older state, upstream's as little as ours: for [`NEWS`] they do
//! not count against it.

use std::collections::BTreeMap;

use clock::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::objects::serves;

/// How long, in seconds, news may be on its way in the worst weather that a gentle story has.
const NEWS: i64 = 30;

pub fn is_news(at: Timestamp, now: Timestamp) -> bool {
    now.as_second() - at.as_second() < NEWS
}

/// The counts that objects asked for until a moment ago, by the object's key, each with the time of the next.
#[derive(Default)]
pub struct Counts(BTreeMap<String, Vec<(Timestamp, i32)>>);

impl Counts {
    /// The count under this key was `before` until now.
    pub fn changed(&mut self, key: &str, before: i32, now: Timestamp) {
        let counts = self.0.entry(key.to_owned()).or_default();
        counts.retain(|(until, _)| is_news(*until, now));
        counts.push((now, before));
    }

    /// Every count that somebody may still believe in; `count` is the one of now.
    pub fn believed(&self, key: &str, count: i32, now: Timestamp) -> impl Iterator<Item = i32> {
        let before = self.0.get(key).into_iter().flatten().filter(move |(until, _)| is_news(*until, now));
        before.map(|(_, count)| *count).chain([count])
    }
}

/// Since when each Pod serves, by its UID. The Pod itself says when it became ready by the clock of its node, which may be wrong.
#[derive(Default)]
pub struct Serving(BTreeMap<String, Timestamp>);

impl Serving {
    /// Notes a changed Pod; returns since when it served if it does no longer.
    pub fn changed(&mut self, old: Option<&Pod>, new: Option<&Pod>, now: Timestamp) -> Option<Timestamp> {
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let still = new.filter(|new| serves(new)).map(uid);
        let since = old.map(uid).filter(|old| still.as_ref() != Some(old)).and_then(|old| self.0.remove(&old));
        if let Some(uid) = still {
            self.0.entry(uid).or_insert(now);
        }
        since
    }
}
