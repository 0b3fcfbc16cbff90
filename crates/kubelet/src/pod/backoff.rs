//! How long what failed waits before it is tried again. Pure.

use clock::{Duration, Timestamp};

/// The first pause and the longest.
pub const FIRST: Duration = Duration::from_secs(10);
pub const LONGEST: Duration = Duration::from_secs(300);
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
    pub fn next(previous: Option<Backoff>, failed: Timestamp, now: Timestamp) -> Backoff {
        let delay = match previous {
            Some(b) if !b.is_past(failed) => (b.delay * 2).min(LONGEST),
            _ => FIRST,
        };
        Backoff { delay, since: now }
    }

    /// The same pause, where none is longer than that.
    pub fn at_most(self, longest: Duration) -> Backoff {
        Backoff { delay: self.delay.min(longest), ..self }
    }

    /// Whether all went well before the failure at `failed`, long enough for earlier failures not to count.
    fn is_past(&self, failed: Timestamp) -> bool {
        failed > later(self.since, 2 * LONGEST)
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
            backoff = Some(Backoff::next(backoff, now(), now()));
            seen.push(in_words(backoff.unwrap().delay));
        }
        assert_eq!(backoff.unwrap().at_most(Duration::from_secs(7)).delay, Duration::from_secs(7));
        assert_eq!(seen, ["10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"]);
        for (ran_seconds, delay, due) in [(599, "5m0s", true), (600, "5m0s", true), (601, "10s", false)] {
            let ended = at(ran_seconds);
            assert_eq!(in_words(Backoff::next(backoff, ended, ended).delay), delay, "{ran_seconds}");
            assert_eq!(backoff.unwrap().due(ended).is_some(), due, "{ran_seconds}");
        }
    }
}
