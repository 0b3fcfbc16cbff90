//! How long a failed Pod of a node stays before it is replaced. A kubelet that refuses a set's Pods is asked less and less
//! often.

use std::{collections::HashMap, time::Duration};

use clock::Timestamp;
use parking_lot::Mutex;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// A node of a set, as the set was when it was last worked on: a changed set begins anew.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    pub set: String,
    pub generation: i64,
    pub node: String,
}

struct Entry {
    /// The Pod that was given up last.
    pod: String,
    at: Timestamp,
    delay: Duration,
}

impl Entry {
    fn age(&self, now: Timestamp) -> Duration {
        Duration::try_from(now.duration_since(self.at)).unwrap_or_default()
    }
}

/// The failed Pods that this process remembers. One that starts anew begins with the shortest delay.
#[derive(Default)]
pub struct Backoff(Mutex<HashMap<Place, Entry>>);

impl Backoff {
    /// How long the failed Pod with this UID still stays. Zero means that it may go now, and remains the answer for it.
    pub fn left(&self, place: Place, pod: &str, now: Timestamp) -> Duration {
        let mut entries = self.0.lock();
        entries.retain(|_, entry| entry.age(now) <= LONGEST * 2);
        let delay = match entries.get(&place) {
            Some(entry) if entry.pod == pod => return Duration::ZERO,
            Some(entry) if entry.age(now) < entry.delay => return entry.delay - entry.age(now),
            Some(entry) => (entry.delay * 2).min(LONGEST),
            None => FIRST,
        };
        entries.insert(place, Entry { pod: pod.to_owned(), at: now, delay });
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_delay() {
        let backoff = Backoff::default();
        let start = Timestamp::from_second(1_000_000).unwrap();
        let left = |pod: &str, generation: i64, second: u64| {
            let place = Place { set: "s".into(), generation, node: "n".into() };
            backoff.left(place, pod, start + Duration::from_secs(second)).as_secs()
        };
        assert_eq!(left("a", 1, 0), 0);
        assert_eq!(left("a", 1, 0), 0, "the same Pod again, since it could not be deleted");
        assert_eq!((left("b", 1, 0), left("b", 1, 1)), (1, 0));
        assert_eq!((left("c", 1, 1), left("c", 1, 3)), (2, 0));
        assert_eq!((left("d", 1, 4), left("d", 1, 7)), (3, 0));
        assert_eq!(left("e", 2, 7), 0, "a changed set begins anew");
        let mut second = 7;
        for pod in 0..20 {
            while left(&format!("p{pod}"), 1, second) > 0 {
                second += left(&format!("p{pod}"), 1, second);
            }
        }
        assert_eq!(left("last", 1, second), LONGEST.as_secs());
        assert_eq!(left("later", 1, second + 2 * LONGEST.as_secs() + 1), 0);
        assert_eq!(left("next", 1, second + 2 * LONGEST.as_secs() + 1), 1, "what was long ago is forgotten");
    }
}
