//! How long what failed waits before it is tried again. Pure.

use clock::{Duration, Timestamp};

/// The first pause and the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    pub first: Duration,
    pub longest: Duration,
}

impl Pauses {
    pub const USUAL: Pauses = Pauses { first: Duration::from_secs(10), longest: Duration::from_secs(300) };
    /// Those of containers where the feature ReduceDefaultCrashLoopBackOffDecay is on.
    pub const REDUCED: Pauses = Pauses { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

    /// The same pauses, where none is longer than that.
    pub fn at_most(self, longest: Option<Duration>) -> Pauses {
        let longest = longest.unwrap_or(self.longest);
        Pauses { first: self.first.min(longest), longest }
    }
}

/// Earlier failures do not count after so long without one.
const FORGIVEN: Duration = Duration::from_secs(600);
/// How long a failed pull shows its error before it shows that it waits.
const SHOW_ERROR: Duration = Duration::from_secs(1);

/// A pause that doubles with each failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    pub delay: Duration,
    /// When it was last lengthened.
    pub since: Timestamp,
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(at)
}

impl Backoff {
    /// After a failure at `failed`, of which is learnt `now`: doubled, or from the beginning when all went well for long.
    pub fn next(previous: Option<Backoff>, failed: Timestamp, now: Timestamp, pauses: Pauses) -> Backoff {
        let delay = match previous {
            Some(b) if !b.is_past(failed) => (b.delay * 2).min(pauses.longest),
            _ => pauses.first,
        };
        Backoff { delay, since: now }
    }

    /// Whether all went well before the failure at `failed`, long enough for earlier failures not to count.
    fn is_past(&self, failed: Timestamp) -> bool {
        failed > later(self.since, FORGIVEN)
    }

    /// When the next try is due after a failure at `failed`.
    pub fn due(&self, failed: Timestamp) -> Option<Timestamp> {
        (!self.is_past(failed)).then(|| later(failed, self.delay))
    }
}

/// An image that could not be pulled for this Pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Pull {
    pub backoff: Backoff,
    /// The status shows this, such as `ErrImagePull`, and then that it waits.
    pub reason: &'static str,
    pub error: String,
}

impl Pull {
    pub fn due(&self) -> Timestamp {
        later(self.backoff.since, self.backoff.delay)
    }

    /// Shown from then on: that it waits, no longer how it failed.
    pub fn shown_as_waiting_at(&self) -> Timestamp {
        later(self.backoff.since, SHOW_ERROR)
    }
}

/// A duration as Go prints it: `10s`, `1m20s`, `5m0s`.
pub fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{at, now};

    #[test]
    fn pauses_double_to_five_minutes_and_begin_anew_after_ten_good_ones() {
        let mut backoff = None;
        let mut seen = Vec::new();
        for _ in 0..7 {
            backoff = Some(Backoff::next(backoff, now(), now(), Pauses::USUAL));
            seen.push(in_words(backoff.unwrap().delay));
        }
        assert_eq!(seen, ["10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"]);
        for (ran_seconds, delay, due) in [(599, "5m0s", true), (600, "5m0s", true), (601, "10s", false)] {
            let ended = at(ran_seconds);
            assert_eq!(in_words(Backoff::next(backoff, ended, ended, Pauses::USUAL).delay), delay, "{ran_seconds}");
            assert_eq!(backoff.unwrap().due(ended).is_some(), due, "{ran_seconds}");
        }
    }

    #[test]
    fn pauses_may_be_shorter() {
        let check = |pauses: Pauses, expected: &[u64]| {
            let mut backoff = None;
            for seconds in expected {
                backoff = Some(Backoff::next(backoff, now(), now(), pauses));
                assert_eq!(backoff.unwrap().delay.as_secs(), *seconds, "{pauses:?}");
            }
        };
        check(Pauses::USUAL.at_most(Some(Duration::from_secs(25))), &[10, 20, 25, 25]);
        check(Pauses::USUAL.at_most(Some(Duration::from_secs(7))), &[7, 7]);
        check(Pauses::REDUCED.at_most(None), &[1, 2, 4, 8, 16, 32, 60, 60]);
        check(Pauses::REDUCED.at_most(Some(Duration::from_secs(300))), &[1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
    }
}
