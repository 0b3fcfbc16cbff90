//! The checker of pace: nobody goes in a circle.
//!
//! A circle of components that undo each other's work is bounded by nothing but the machine. Every request takes some of
//! the simulation's time, so it shows as far more writes of one object, or far more objects made for one owner, than
//! anything in a story asks for.

use std::collections::BTreeMap;

use clock::Timestamp;

/// The span, in seconds, whose writes are counted together.
const SPAN: i64 = 10;

/// How often one object may be written in this time. A circle of a few requests in good weather comes to thousands.
const WRITES: u32 = 150;

/// How many objects may be made for one owner in this time.
const MADE: u32 = 300;

#[derive(Default)]
pub struct Pace {
    span: i64,
    writes: BTreeMap<String, u32>,
    /// By the UID of the controlling owner.
    made: BTreeMap<String, u32>,
}

/// Written by as many as there are users and parts: what is charged to a quota, and what is told.
fn is_everybodys(key: &str) -> bool {
    key.starts_with("resourcequotas/") || key.starts_with("events/")
}

/// Counts one more, and tells when there is the first too many.
fn is_too_much(counts: &mut BTreeMap<String, u32>, of: &str, most: u32) -> bool {
    let count = match counts.get_mut(of) {
        Some(count) => count,
        None => counts.entry(of.to_owned()).or_default(),
    };
    *count += 1;
    *count == most + 1
}

impl Pace {
    /// Notes a write: the key without the common prefix, and the owner of an object that is new.
    pub fn wrote(&mut self, key: &str, new_of: Option<&str>, now: Timestamp) -> Option<String> {
        let span = now.as_second().div_euclid(SPAN);
        if span != self.span {
            *self = Pace { span, ..Pace::default() };
        }
        if is_everybodys(key) {
            return None;
        }
        if is_too_much(&mut self.writes, key, WRITES) {
            return Some(format!("it was written more than {WRITES} times in {SPAN} s"));
        }
        let owner = new_of.filter(|owner| is_too_much(&mut self.made, owner, MADE))?;
        Some(format!("more than {MADE} objects were made for {owner} in {SPAN} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(times: u32, seconds: i64, key: impl Fn(u32) -> String, owner: Option<&str>) -> usize {
        let mut pace = Pace::default();
        let at = |n: u32| Timestamp::from_second(i64::from(n) * seconds / i64::from(times)).expect("a time");
        (0..times).filter_map(|n| pace.wrote(&key(n), owner, at(n))).count()
    }

    #[test]
    fn circles_are_seen_once_in_a_span() {
        let one = |_| "pods/d/p".to_owned();
        assert_eq!(complaints(WRITES, 5, one, None), 0);
        assert_eq!(complaints(2 * WRITES, 5, one, None), 1);
        assert_eq!(complaints(2 * WRITES, 40, one, None), 0, "slowly");
        assert_eq!(complaints(2 * WRITES, 5, |_| "resourcequotas/d/q".to_owned(), None), 0);
        let many = |n| format!("pods/d/p{n}");
        assert_eq!(complaints(2 * MADE, 5, many, None), 0);
        assert_eq!(complaints(2 * MADE, 5, many, Some("owner")), 1);
        assert_eq!(complaints(2 * MADE, 40, many, Some("owner")), 0, "slowly");
    }
}
