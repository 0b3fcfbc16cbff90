//! The Pods that wait for a node: active ones by priority and time, those in backoff, those parked until something
//! changes that could help them, and gated ones.
//! Upstream counterpart: pkg/scheduler/backend/queue.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use client::Key;
use clock::Instant;

use crate::class::ClassId;

/// A waiting Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub key: Key,
    pub uid: String,
    pub class: ClassId,
    pub priority: i32,
    /// It has scheduling gates and is not tried until they are gone.
    pub gated: bool,
    pub never_preempts: bool,
    /// How often it was tried in vain.
    pub attempts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Active(Instant),
    /// Until when. After an error it waits in full; otherwise it is taken early when nothing else is to do.
    Backoff(Instant, bool),
    /// Since when, and until when backoff would last.
    Parked(Instant, Instant),
    Gated,
}

struct Entry {
    pod: Waiting,
    place: Place,
    /// Orders what is equal otherwise: first come, first served.
    number: u64,
}

/// Parked Pods of one class.
#[derive(Default)]
struct Group {
    /// The plugins that turned them away, as bits.
    plugins: u32,
    pods: BTreeSet<Key>,
}

#[derive(Default)]
pub struct Queue {
    entries: HashMap<Key, Entry>,
    active: BTreeSet<(Reverse<i32>, Instant, u64, Key)>,
    backoff: BTreeSet<(Instant, u64, Key)>,
    error_backoff: BTreeSet<(Instant, u64, Key)>,
    parked: BTreeMap<ClassId, Group>,
    parked_since: BTreeSet<(Instant, u64, Key)>,
    next: u64,
}

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// A parked Pod is tried again after this time even if nothing seems to have changed.
const LONGEST_PARKING: Duration = Duration::from_secs(300);

fn backoff(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(10);
    (FIRST_BACKOFF * (1 << doublings)).min(LONGEST_BACKOFF)
}

impl Queue {
    pub fn get(&self, key: &Key) -> Option<&Waiting> {
        self.entries.get(key).map(|e| &e.pod)
    }

    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.entries.keys()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A new Pod, or one that changed so that it may be tried again.
    pub fn add(&mut self, pod: Waiting, now: Instant) {
        let place = if pod.gated { Place::Gated } else { Place::Active(now) };
        self.put(pod, place);
    }

    /// A Pod that fits nowhere for now, turned away by `plugins`.
    pub fn park(&mut self, mut pod: Waiting, plugins: u32, now: Instant) {
        pod.attempts += 1;
        let group = self.parked.entry(pod.class).or_default();
        group.plugins |= plugins;
        let place = Place::Parked(now, now + backoff(pod.attempts));
        self.put(pod, place);
    }

    /// A Pod whose binding failed.
    pub fn retry_later(&mut self, mut pod: Waiting, now: Instant) {
        pod.attempts += 1;
        let until = now + backoff(pod.attempts);
        self.put(pod, Place::Backoff(until, true));
    }

    fn put(&mut self, pod: Waiting, place: Place) {
        self.remove(&pod.key);
        self.next += 1;
        let entry = Entry { pod, place, number: self.next };
        let key = entry.pod.key.clone();
        match place {
            Place::Active(since) => _ = self.active.insert((Reverse(entry.pod.priority), since, entry.number, key)),
            Place::Backoff(until, true) => _ = self.error_backoff.insert((until, entry.number, key)),
            Place::Backoff(until, false) => _ = self.backoff.insert((until, entry.number, key)),
            Place::Parked(since, _) => {
                self.parked.entry(entry.pod.class).or_default().pods.insert(key.clone());
                self.parked_since.insert((since, entry.number, key));
            }
            Place::Gated => {}
        }
        self.entries.insert(entry.pod.key.clone(), entry);
    }

    pub fn remove(&mut self, key: &Key) -> Option<Waiting> {
        let Entry { pod, place, number } = self.entries.remove(key)?;
        let key = key.clone();
        match place {
            Place::Active(since) => _ = self.active.remove(&(Reverse(pod.priority), since, number, key)),
            Place::Backoff(until, true) => _ = self.error_backoff.remove(&(until, number, key)),
            Place::Backoff(until, false) => _ = self.backoff.remove(&(until, number, key)),
            Place::Parked(since, _) => {
                if let Some(group) = self.parked.get_mut(&pod.class) {
                    group.pods.remove(&key);
                    if group.pods.is_empty() {
                        self.parked.remove(&pod.class);
                    }
                }
                self.parked_since.remove(&(since, number, key));
            }
            Place::Gated => {}
        }
        Some(pod)
    }

    /// The next Pod to try.
    pub fn pop(&mut self, now: Instant) -> Option<Waiting> {
        self.wake(now);
        let active = self.active.first().map(|(_, _, _, key)| key);
        let key = active.or_else(|| self.backoff.first().map(|(_, _, key)| key))?.clone();
        self.remove(&key)
    }

    /// Moves what has waited long enough.
    fn wake(&mut self, now: Instant) {
        for early in [false, true] {
            loop {
                let queue = if early { &self.backoff } else { &self.error_backoff };
                let Some((_, _, key)) = queue.first().filter(|(until, _, _)| *until <= now) else { break };
                let key = key.clone();
                self.reactivate(&key, now);
            }
        }
        while let Some((_, _, key)) = self.parked_since.first().filter(|(since, _, _)| *since + LONGEST_PARKING <= now)
        {
            let key = key.clone();
            self.reactivate(&key, now);
        }
    }

    fn reactivate(&mut self, key: &Key, now: Instant) {
        if let Some(pod) = self.remove(key) {
            self.put(pod, Place::Active(now));
        }
    }

    /// When [`Queue::pop`] should be asked next if it has nothing now.
    pub fn wake_at(&self) -> Option<Instant> {
        let error = self.error_backoff.first().map(|(until, _, _)| *until);
        let parked = self.parked_since.first().map(|(since, _, _)| *since + LONGEST_PARKING);
        error.into_iter().chain(parked).min()
    }

    /// The classes of parked Pods with the plugins that turned them away.
    pub fn parked(&self) -> Vec<(ClassId, u32)> {
        self.parked.iter().map(|(class, group)| (*class, group.plugins)).collect()
    }

    /// Something changed that could help the parked Pods of a class.
    pub fn retry(&mut self, class: ClassId, now: Instant) {
        let Some(group) = self.parked.get(&class) else { return };
        for key in group.pods.clone() {
            let until = match self.entries[&key].place {
                Place::Parked(_, until) => until,
                _ => now,
            };
            if let Some(pod) = self.remove(&key) {
                self.put(pod, if until <= now { Place::Active(now) } else { Place::Backoff(until, false) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, priority: i32) -> Waiting {
        Waiting {
            key: Key::new("default", name),
            uid: name.to_owned(),
            class: ClassId(0),
            priority,
            gated: false,
            never_preempts: false,
            attempts: 0,
        }
    }

    fn names(queue: &mut Queue, now: Instant) -> String {
        let mut names = Vec::new();
        while let Some(pod) = queue.pop(now) {
            names.push(pod.key.name);
        }
        names.join(" ")
    }

    #[test]
    fn greater_priority_first_then_first_come() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for (name, priority) in [("a", 0), ("b", 10), ("c", 0), ("d", 10)] {
            queue.add(pod(name, priority), now);
        }
        queue.add(Waiting { gated: true, ..pod("gated", 99) }, now);
        assert_eq!(names(&mut queue, now), "b d a c");
    }

    #[test]
    fn parked_pods_wait_for_a_change_or_five_minutes() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.park(pod("a", 0), 1, now);
        assert_eq!(names(&mut queue, now + Duration::from_secs(299)), "");
        assert_eq!(queue.wake_at(), Some(now + Duration::from_secs(300)));
        queue.retry(ClassId(0), now);
        assert_eq!(names(&mut queue, now), "a", "nothing else is to do, so backoff is cut short");
        queue.park(pod("a", 0), 1, now);
        assert_eq!(names(&mut queue, now + Duration::from_secs(300)), "a");
    }

    #[test]
    fn failed_bindings_wait_longer_each_time() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let mut held = pod("a", 0);
        for seconds in [1, 2, 4, 8, 10, 10] {
            queue.retry_later(held, now);
            assert_eq!(queue.wake_at(), Some(now + Duration::from_secs(seconds)));
            assert!(queue.pop(now).is_none());
            now += Duration::from_secs(seconds);
            held = queue.pop(now).unwrap();
        }
    }
}
