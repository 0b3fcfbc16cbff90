//! Tokens that were accepted a moment ago, and how often that spares a check.
//! Upstream counterpart: apiserver/pkg/authentication/token/cache.

use std::collections::HashMap;

use clock::{Duration, Instant};
use meter::{Each, Metric, Metrics, USUAL};
use parking_lot::Mutex;

use crate::http::access::Known;

/// How long an accepted token is believed without another check, and how many are remembered.
const LONG: Duration = Duration::from_secs(10);
const MANY: usize = 8192;

static ASKED: Metric = Metric::counter("authentication_token_cache_request_total", "[ALPHA] ");
static SECONDS: Metric = Metric::histogram("authentication_token_cache_request_duration_seconds", "[ALPHA] ", USUAL);
static FETCHED: Metric = Metric::counter("authentication_token_cache_fetch_total", "[ALPHA] ");
static FETCHING: Metric = Metric::gauge("authentication_token_cache_active_fetch_count", "[ALPHA] ");

/// A token's SHA-256.
pub(super) type Key = [u8; 32];

#[derive(Default)]
struct Users {
    /// Each with the end of the trust in it.
    by_token: HashMap<Key, (Instant, Known)>,
    /// The changes of the configuration under which they were accepted.
    changes: u64,
}

impl Users {
    /// The tokens that were accepted since the last change.
    fn of(&mut self, changes: u64) -> &mut HashMap<Key, (Instant, Known)> {
        if self.changes != changes {
            self.changes = changes;
            self.by_token.clear();
        }
        &mut self.by_token
    }
}

#[derive(Default)]
pub(super) struct Remembered {
    users: Mutex<Users>,
    pub metrics: Metrics,
    /// Found, and not found.
    asked: [Each<2>; 2],
}

impl Remembered {
    /// The user of a token, where it was accepted a moment ago.
    pub fn get(&self, key: &Key, now: Instant, changes: u64) -> Option<Known> {
        let mut users = self.users.lock();
        let (until, known) = users.of(changes).get(key)?;
        (*until > now).then(|| known.clone())
    }

    pub fn keep(&self, key: Key, now: Instant, changes: u64, known: &Known) {
        let mut users = self.users.lock();
        let users = users.of(changes);
        if users.len() >= MANY {
            users.retain(|_, (until, _)| *until > now);
        }
        if users.len() < MANY {
            users.insert(key, (now + LONG, known.clone()));
        }
    }

    /// Counts one search for the user of a token.
    pub fn searched(&self, began: Instant, found: bool) {
        let place = usize::from(!found);
        let of = |metric| self.metrics.series(metric, &[("status", ["hit", "miss"][place])]);
        self.asked[0].at(place, || of(&ASKED)).count();
        self.asked[1].at(place, || of(&SECONDS)).observe(began.elapsed().as_secs_f64());
    }

    /// A check begins, and lasts until its end is said or it is given up.
    pub fn checking(&self) -> Checking<'_> {
        let checking = Checking { metrics: &self.metrics, ended: false };
        checking.shift(1.0);
        checking
    }
}

/// A check of a token that goes on.
pub(super) struct Checking<'r> {
    metrics: &'r Metrics,
    ended: bool,
}

impl Checking<'_> {
    fn shift(&self, by: f64) {
        self.metrics.series(&FETCHING, &[("status", "in_flight")]).shift(by);
    }

    pub fn end(mut self, well: bool) {
        self.ended = true;
        self.metrics.count(&FETCHED, &[("status", if well { "ok" } else { "error" })]);
    }
}

impl Drop for Checking<'_> {
    fn drop(&mut self) {
        self.shift(-1.0);
        // The sender has gone meanwhile.
        if !self.ended {
            self.metrics.count(&FETCHED, &[("status", "error")]);
        }
    }
}
