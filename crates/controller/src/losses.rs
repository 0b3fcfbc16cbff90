//! Backing off from what is made in vain.
//!
//! A maker that has not heard that its own object is gone (the watch of it waits for its next try) goes on making objects
//! for it. Garbage collection, which asks the server about owners, takes them away at once, each loss asks the maker for
//! the next one, and both go in a circle as fast as the machine can. The same happens with Pods that a node turns away, or
//! that somebody's program deletes. So a key whose creations are lost soon after they were made waits before it makes more,
//! a little at first and twice as long each time.
//!
//! Upstream bounds such circles only by the 20 requests a second that its clients send at most, whatever they are for;
//! clients here have no such bound. To read the owner anew before each creation would cost every creation a request, and end
//! only the first of these circles. Everything but the creations goes on meanwhile: nothing is lost but time that would be
//! spent in vain.

use std::{any::TypeId, collections::HashMap, time::Duration};

use client::Key;
use clock::Instant;

/// An object that was made, to be found in the cache of its kind.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub type_id: TypeId,
    pub key: Key,
    pub uid: String,
}

/// The age from which an object was not made in vain.
const STOOD: Duration = Duration::from_secs(10);

/// The first wait after a loss, which doubles with each that follows, and the longest. It is as long as upstream's
/// reflectors wait at most before they try again to learn what has happened.
const WAIT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(30));

/// The time without a new object after which a key is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// How many of the objects that a key made are looked after.
pub(crate) const SAMPLE: usize = 4;

#[derive(Default)]
struct Record {
    /// The oldest that are neither lost nor there for long, with the time when they were made. The newest would be no
    /// sample: of many objects that are lost one after the other, there are always some that are not lost yet.
    sample: Vec<(Instant, Made)>,
    /// How often in a row something was lost.
    lost: u32,
    /// No creations until then.
    until: Option<Instant>,
    last: Option<Instant>,
}

impl Record {
    /// Looks after the sample; `stands` says whether an object is still there.
    fn look(&mut self, stands: &dyn Fn(&Made) -> bool, now: Instant) {
        let mut lost = false;
        let mut stood = false;
        self.sample.retain(|(at, made)| {
            let (there, old) = (stands(made), now - *at >= STOOD);
            // When an old one was lost is not known.
            lost |= !there && !old;
            stood |= there && old;
            there && !old
        });
        if stood {
            self.lost = 0;
        }
        if lost && self.until.is_none_or(|until| until <= now) {
            let wait = WAIT.0.saturating_mul(1 << self.lost.min(20)).min(WAIT.1);
            self.until = Some(now + wait);
            self.lost += 1;
        }
    }
}

/// The objects that the keys of one controller made lately.
#[derive(Default)]
pub(crate) struct Losses {
    records: HashMap<Key, Record>,
    /// How many records there may be until those are forgotten that are old.
    most: usize,
}

impl Losses {
    /// How long this key has to wait before it makes anything.
    pub fn wait(&mut self, key: &Key, stands: &dyn Fn(&Made) -> bool, now: Instant) -> Option<Duration> {
        let record = self.records.get_mut(key)?;
        if record.last.is_some_and(|last| now - last >= FORGOTTEN) {
            self.records.remove(key);
            return None;
        }
        record.look(stands, now);
        record.until.filter(|until| *until > now).map(|until| until - now)
    }

    /// Notes what a key has made.
    pub fn made(&mut self, key: &Key, made: Vec<Made>, now: Instant) {
        if made.is_empty() {
            return;
        }
        if self.records.len() >= self.most {
            self.records.retain(|_, record| record.last.is_some_and(|last| now - last < FORGOTTEN));
            self.most = 2 * self.records.len().max(32);
        }
        let record = self.records.entry(key.clone()).or_default();
        record.last = Some(now);
        let room = SAMPLE.saturating_sub(record.sample.len());
        record.sample.extend(made.into_iter().take(room).map(|made| (now, made)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Maker {
        losses: Losses,
        now: Instant,
        number: u64,
    }

    impl Maker {
        fn new() -> Self {
            Maker { losses: Losses::default(), now: Instant::now(), number: 0 }
        }

        /// Makes this many objects when it may, and returns the milliseconds that it had to wait.
        fn make(&mut self, count: usize, stands: bool) -> u64 {
            let key = Key::new("d", "maker");
            let mut waited = Duration::ZERO;
            while let Some(wait) = self.losses.wait(&key, &|_| stands, self.now) {
                waited += wait;
                self.now += wait;
            }
            let made = (0..count).map(|_| {
                self.number += 1;
                Made { type_id: TypeId::of::<()>(), key: Key::new("d", self.number.to_string()), uid: String::new() }
            });
            self.losses.made(&key, made.collect(), self.now);
            waited.as_millis() as u64
        }

        fn pass(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }
    }

    #[test]
    fn what_is_lost_at_once_is_made_again_later_and_later() {
        for count in [1, 500] {
            let mut maker = Maker::new();
            let waits: Vec<u64> = (0..16).map(|_| maker.make(count, false)).collect();
            let doubled: Vec<u64> = (0..13).map(|n| 5 << n).collect();
            assert_eq!((waits[0], &waits[1..14], &waits[14..]), (0, &*doubled, &[30_000, 30_000][..]));
        }
    }

    #[test]
    fn what_stays_hinders_nobody() {
        let mut maker = Maker::new();
        for count in [1, 2, 500, 500, 1] {
            assert_eq!(maker.make(count, true), 0);
        }
        maker.make(1, false);
        assert_eq!(maker.make(1, false), 10);
        maker.pass(11);
        assert_eq!(maker.make(1, true), 0);
        assert_eq!(maker.make(1, false), 5, "one that stood for long makes up for those that were lost");
    }

    #[test]
    fn a_loss_after_a_long_life_costs_nothing() {
        let mut maker = Maker::new();
        for _ in 0..9 {
            assert_eq!(maker.make(1, false), 0);
            maker.pass(15);
        }
    }

    #[test]
    fn losses_are_forgotten() {
        let mut maker = Maker::new();
        (0..9).for_each(|_| _ = maker.make(1, false));
        maker.pass(61);
        assert_eq!(maker.make(1, false), 0);
        assert_eq!(maker.make(1, false), 5);
        let now = maker.now + FORGOTTEN;
        for number in 0..1000 {
            let one = Made { type_id: TypeId::of::<()>(), key: Key::default(), uid: String::new() };
            maker.losses.made(&Key::new("d", number.to_string()), vec![one], now + FORGOTTEN * number / 100);
        }
        assert!(maker.losses.records.len() < 250, "{} are remembered", maker.losses.records.len());
    }
}
