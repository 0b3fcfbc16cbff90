//! Expiry: keys with a time to live are deleted by ordinary commits when it is over.
//!
//! Deadlines are wall-clock times, stored with the key, so that they also pass while the store is closed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Embedded, Shared};
use crate::{Change, Commit, Entry, Expect, Revision};

/// The number of keys that expire in one go, at most.
const AT_ONCE: usize = 1000;
/// Expiry is a second late at most, so that keys that end together go together.
const GRAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Expiry {
    state: Mutex<Deadlines>,
    changed: Notify,
}

#[derive(Default)]
struct Deadlines {
    by_key: BTreeMap<Arc<str>, (u64, Revision)>,
    by_time: BTreeSet<(u64, Arc<str>)>,
}

impl Expiry {
    /// Takes over the deadlines of keys: (key, revision of its write, milliseconds of Unix time or 0 for never).
    pub fn note(&self, deadlines: &[(Arc<str>, Revision, u64)]) {
        let mut state = self.state.lock();
        let first = state.by_time.first().map(|(at, _)| *at);
        for (key, revision, expires_ms) in deadlines {
            if let Some((old, _)) = state.by_key.remove(key) {
                state.by_time.remove(&(old, key.clone()));
            }
            if *expires_ms != 0 {
                state.by_key.insert(key.clone(), (*expires_ms, *revision));
                state.by_time.insert((*expires_ms, key.clone()));
            }
        }
        let sooner = state.by_time.first().is_some_and(|(at, _)| first.is_none_or(|first| *at < first));
        drop(state);
        if sooner {
            self.changed.notify_one();
        }
    }

    /// When the entry expires, or 0; 0 also when it was written again since.
    pub fn deadline(&self, entry: &Entry) -> u64 {
        let state = self.state.lock();
        state.by_key.get(&entry.key).filter(|(_, revision)| *revision == entry.modified).map_or(0, |(at, _)| *at)
    }

    fn next(&self) -> Option<u64> {
        self.state.lock().by_time.first().map(|(at, _)| *at)
    }

    fn due(&self, now_ms: u64) -> Vec<(Arc<str>, Revision)> {
        let state = self.state.lock();
        let due = state.by_time.iter().take_while(|(at, _)| *at <= now_ms).take(AT_ONCE);
        due.filter_map(|(_, key)| Some((key.clone(), state.by_key.get(key)?.1))).collect()
    }
}

/// Deletes what is over for as long as the store is open.
pub(super) async fn run(shared: Weak<Shared>) {
    loop {
        let Some(store) = shared.upgrade() else { return };
        let expiry = store.expiry.clone();
        let now = u64::try_from(clock::now().as_millisecond()).unwrap_or(0);
        let due = expiry.due(now);
        let failed = !due.is_empty() && !delete(&store, due).await;
        drop(store);
        let wait = match expiry.next() {
            None => Duration::MAX,
            Some(at) => Duration::from_millis(at.saturating_sub(now)).max(if failed { GRAIN * 10 } else { GRAIN }),
        };
        tokio::select! {
            biased;
            () = clock::sleep(wait.min(Duration::from_secs(3600))) => {}
            () = expiry.changed.notified() => clock::sleep(GRAIN).await,
        }
    }
}

/// False when the store took no write.
async fn delete(store: &Arc<Shared>, due: Vec<(Arc<str>, Revision)>) -> bool {
    let deletions = due.into_iter().map(|(key, revision)| {
        let commit = Commit { key, expect: Expect::Modified(revision), change: Change::Delete };
        Embedded::submit(store, commit)
    });
    // A conflict means that the key was renewed or deleted meanwhile.
    let outcomes = futures::future::join_all(deletions).await;
    outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(crate::StoreError::Conflict { .. })))
}
