//! How much of a processor is used now: from the last reading that is old enough to this one. Nothing is read for it while nobody asks.

use std::collections::BTreeMap;

use clock::{Duration, Timestamp};
use parking_lot::Mutex;

/// Two readings that are closer together tell nothing that is worth telling.
const CLOSEST: Duration = Duration::from_secs(5);
/// A reading that is older is not of now.
const OLDEST: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Timestamp,
    nanos: u64,
    rate: Option<u64>,
}

/// The last readings, by cgroups or by ids of the engine.
#[derive(Debug, Default)]
pub struct Rates(Mutex<BTreeMap<String, Seen>>);

impl Rates {
    /// The billionths of a processor that are used. `None` at the first reading.
    pub fn rate(&self, of: &str, at: Timestamp, nanos: u64) -> Option<u64> {
        let mut all = self.0.lock();
        let seen = all.get(of).copied().filter(|seen| nanos >= seen.nanos);
        let rate = match seen {
            Some(seen) => match at.duration_since(seen.at).try_into() {
                Ok(between) if between < CLOSEST => return seen.rate,
                Ok(between) if between <= OLDEST => Some(per_second(nanos - seen.nanos, between)),
                // A clock that went back, or a reading of long ago.
                _ => None,
            },
            None => None,
        };
        all.insert(of.to_owned(), Seen { at, nanos, rate });
        rate
    }

    /// Forgets what is no longer read.
    pub fn forget(&self, now: Timestamp) {
        let is_fresh = |seen: &Seen| now.checked_sub(OLDEST).is_ok_and(|oldest| seen.at >= oldest);
        self.0.lock().retain(|_, seen| is_fresh(seen));
    }
}

fn per_second(nanos: u64, between: Duration) -> u64 {
    (nanos as f64 / between.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::at;

    #[test]
    fn a_rate_is_of_the_time_since_the_last_reading() {
        let rates = Rates::default();
        let check = |seconds: i64, nanos: u64, expected: Option<u64>| {
            assert_eq!(rates.rate("a", at(seconds), nanos), expected, "{seconds} {nanos}");
        };
        check(0, 1_000, None);
        check(2, 9_000, None);
        check(10, 21_000, Some(2_000));
        check(12, 99_000, Some(2_000));
        check(20, 21_000, Some(0));
        // A container that began anew counts from nothing.
        check(30, 5, None);
        check(40, 15, Some(1));
        check(1_000, 20, None);
        check(990, 30, None);
        assert_eq!(rates.rate("b", at(0), 1), None);
        rates.forget(at(1_200));
        assert!(rates.0.lock().contains_key("a") && !rates.0.lock().contains_key("b"));
    }
}
