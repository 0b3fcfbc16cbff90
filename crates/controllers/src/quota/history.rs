//! The charges to each quota a moment ago, as the controller saw them: the object of such a charge may still be on its way.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use api::rules::{
    pod::Resources,
    quantity::{Format, Quantity},
};
use client::Key;
use clock::Instant;
use parking_lot::Mutex;

use super::{PAUSE, SETTLING};

/// The charges of this time are kept together.
const GRAIN: Duration = Duration::from_millis(100);

/// The part of the usage that may still be without its object.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    /// Nothing is known of the time before: any part may be.
    pub is_new: bool,
    pub rises: Resources,
    /// How long to wait until it is worth counting again.
    pub rest: Option<Duration>,
}

impl Recent {
    /// The most that can be used when this was counted.
    pub fn with(&self, name: &str, counted: Quantity) -> Quantity {
        let mut sum = counted;
        sum += if self.is_new {
            Quantity::new(i64::MAX, Format::DecimalSi)
        } else {
            self.rises.get(name).copied().unwrap_or_default()
        };
        sum
    }
}

struct History {
    since: Instant,
    /// The lowest that the quota can be at by now: what was seen last, or what was planned since.
    last: Resources,
    /// The sums of what was added to it, each with the first time that it stands for. There are as many as grains in the time
    /// of settling.
    rises: BTreeMap<Instant, Resources>,
    counted: Option<Instant>,
}

/// The histories of all quotas.
#[derive(Default)]
pub struct Histories(Mutex<HashMap<Key, History>>);

impl Histories {
    /// Notes the use that a quota has now. One that is `complete` is counted after a rest only.
    pub fn note(&self, key: &Key, used: &Resources, complete: bool) -> Recent {
        let now = Instant::now();
        let mut all = self.0.lock();
        let history = all.entry(key.clone()).or_insert_with(|| History {
            since: now,
            last: used.clone(),
            rises: BTreeMap::new(),
            counted: None,
        });
        history.rise(used, now);
        let rest = history.counted.and_then(|at| PAUSE.checked_sub(now.duration_since(at)));
        let rest = rest.filter(|rest| complete && !rest.is_zero());
        if rest.is_none() {
            history.counted = Some(now);
        }
        let mut rises = Resources::new();
        for (name, amount) in history.rises.values().flatten() {
            *rises.entry(name.clone()).or_default() += *amount;
        }
        Recent { is_new: now.duration_since(history.since) < SETTLING, rises, rest }
    }

    /// A lower use is about to be written: what is charged on top of it counts from there.
    pub fn plans(&self, key: &Key, used: &Resources) {
        if let Some(history) = self.0.lock().get_mut(key) {
            for (name, amount) in used {
                let last = history.last.entry(name.clone()).or_insert(*amount);
                *last = (*last).min(*amount);
            }
        }
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

impl History {
    fn rise(&mut self, used: &Resources, now: Instant) {
        self.rises.retain(|from, _| now.duration_since(*from) < SETTLING + GRAIN);
        let rise = used.iter().filter_map(|(name, amount)| {
            let mut rise = *amount;
            rise -= self.last.get(name).copied().unwrap_or_default();
            (!rise.is_negative() && !rise.is_zero()).then(|| (name.clone(), rise))
        });
        let rise: Resources = rise.collect();
        self.last.clone_from(used);
        if rise.is_empty() {
            return;
        }
        let grain = self.rises.last_entry().filter(|last| now.duration_since(*last.key()) < GRAIN);
        let from = grain.map_or(now, |last| *last.key());
        let sums = self.rises.entry(from).or_default();
        for (name, amount) in rise {
            *sums.entry(name).or_default() += amount;
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// `name=amount` each.
    pub fn resources(text: &str) -> Resources {
        let words = text.split_whitespace().map(|word| word.split_once('=').unwrap());
        words.map(|(name, amount)| (name.to_owned(), amount.parse().unwrap())).collect()
    }

    fn pods(number: u32) -> Resources {
        resources(&format!("pods={number}"))
    }

    #[tokio::test(start_paused = true)]
    async fn charges_are_remembered_until_they_have_settled() {
        clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
        let (histories, key) = (Histories::default(), Key::new("d", "q"));
        let note = |number| {
            let recent = histories.note(&key, &pods(number), true);
            (recent.is_new, recent.rises.get("pods").map_or(0, |rise| rise.value()))
        };
        assert_eq!(note(3), (true, 0));
        clock::sleep(SETTLING).await;
        assert_eq!(note(5), (false, 2));
        clock::sleep(Duration::from_millis(1000)).await;
        assert_eq!(note(6), (false, 3));
        clock::sleep(Duration::from_millis(1200)).await;
        assert_eq!(note(6), (false, 1));
        // Something was given back, and somebody else charged it: one change shows both.
        histories.plans(&key, &pods(1));
        assert_eq!(note(4), (false, 4));
        clock::sleep(SETTLING * 2).await;
        assert_eq!(note(4), (false, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_quota_rests_between_counts() {
        clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
        let (histories, key) = (Histories::default(), Key::new("d", "q"));
        let rest = |complete| histories.note(&key, &pods(1), complete).rest;
        assert_eq!(rest(true), None);
        clock::sleep(Duration::from_millis(300)).await;
        assert_eq!(rest(true), Some(Duration::from_millis(700)));
        assert_eq!(rest(false), None, "a new limit is counted at once");
        clock::sleep(PAUSE).await;
        assert_eq!(rest(true), None);
    }
}
