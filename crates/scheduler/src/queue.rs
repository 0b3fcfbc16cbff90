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
use k8s_openapi::api::core::v1::ObjectReference;

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
    /// How often it fitted nowhere.
    pub attempts: u32,
    /// How often in turn its binding failed.
    pub errors: u32,
    /// When it could be tried for the first time.
    pub waits_since: Option<Instant>,
}

/// The Pod, as events refer to it.
pub(crate) fn reference(pod: &Waiting) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.key.namespace.clone()),
        name: Some(pod.key.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Active,
    /// Until when. After an error it waits in full; otherwise it is taken early when nothing else is to do.
    Backoff(Instant, bool),
    /// Until when backoff would last.
    Parked(Instant),
    Gated,
}

/// When a Pod came into the queue, for the first time or back from an attempt. Being parked, woken and backed off does
/// not change it, so that Pods of one priority are tried in the order in which they came.
type Turn = (Instant, u64);

struct Entry {
    pod: Waiting,
    place: Place,
    turn: Turn,
}

/// Parked Pods of one class.
#[derive(Default)]
struct Group {
    /// Plugins as bits. For every node one of them is set that turns the Pods away there, even if all Pods of lower
    /// priority went; an event that none of these plugins asks for can therefore not help.
    plugins: u32,
    /// The greatest priority of any of them, or more.
    priority: i32,
    pods: BTreeSet<Key>,
}

/// The facts about the parked Pods of one class by which the engine judges whether a change helps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parked {
    pub class: ClassId,
    pub plugins: u32,
    pub priority: i32,
}

/// The events that bring a Pod into a queue, in upstream's words, beside the changes of the cluster (see
/// [`Change::label`]).
///
/// [`Change::label`]: crate::change::Change::label
mod event {
    pub const NEW: &str = "UnschedulablePodAdd";
    pub const FAILED: &str = "ScheduleAttemptFailure";
    pub const BACKOFF_OVER: &str = "BackoffComplete";
    pub const FORCED: &str = "ForceActivate";
    pub const PARKED_LONG: &str = "UnschedulableTimeout";
}

#[derive(Default)]
pub struct Queue {
    entries: HashMap<Key, Entry>,
    active: BTreeSet<(Reverse<i32>, Turn, Key)>,
    /// Within the second in which they end, in the order of `active`.
    backoff: BTreeSet<(Instant, Reverse<i32>, Turn, Key)>,
    error_backoff: BTreeSet<(Instant, Reverse<i32>, Turn, Key)>,
    parked: BTreeMap<ClassId, Group>,
    parked_since: BTreeSet<(Turn, Key)>,
    next: u64,
    /// Backoffs end on whole seconds after this.
    epoch: Option<Instant>,
    /// The first and the longest backoff.
    backoff_times: Option<(Duration, Duration)>,
    /// How many Pods came into which queue for which event since somebody asked.
    incoming: BTreeMap<(&'static str, &'static str), u64>,
}

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// A parked Pod is tried again after this time even if nothing seems to have changed.
const LONGEST_PARKING: Duration = Duration::from_secs(300);

fn backoff((first, longest): (Duration, Duration), attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(20);
    first.saturating_mul(1 << doublings).min(longest)
}

impl Queue {
    /// The first and the longest wait after a failure.
    pub fn set_backoff(&mut self, first: Duration, longest: Duration) {
        self.backoff_times = Some((first, longest));
    }

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
        let place = if pod.gated { Place::Gated } else { Place::Active };
        self.put(pod, place, (None, event::NEW), now);
    }

    /// A Pod that fits nowhere for now, turned away by `plugins`.
    pub fn park(&mut self, mut pod: Waiting, plugins: u32, now: Instant) {
        pod.attempts += 1;
        pod.errors = 0;
        let group = self.parked.entry(pod.class).or_insert(Group { priority: i32::MIN, ..Group::default() });
        group.plugins |= plugins;
        group.priority = group.priority.max(pod.priority);
        let until = self.until(pod.attempts, now);
        self.put(pod, Place::Parked(until), (None, event::FAILED), now);
    }

    /// A Pod whose binding failed.
    pub fn retry_later(&mut self, mut pod: Waiting, now: Instant) {
        pod.errors += 1;
        let until = self.until(pod.errors, now);
        self.put(pod, Place::Backoff(until, true), (None, event::FAILED), now);
    }

    /// When the backoff of a Pod ends that failed now, for the `attempts`th time. Pods whose backoff ends in one second
    /// go by their priority, so the end is a whole second.
    fn until(&mut self, attempts: u32, now: Instant) -> Instant {
        let epoch = *self.epoch.get_or_insert(now);
        let wait = backoff(self.backoff_times.unwrap_or((FIRST_BACKOFF, LONGEST_BACKOFF)), attempts);
        epoch + Duration::from_secs((now.saturating_duration_since(epoch) + wait).as_secs())
    }

    /// A Pod without a turn gets one now.
    fn put(&mut self, mut pod: Waiting, place: Place, (turn, event): (Option<Turn>, &'static str), now: Instant) {
        self.remove(&pod.key);
        *self.incoming.entry((place.label(), event)).or_default() += 1;
        if place == Place::Active {
            pod.waits_since.get_or_insert(now);
        }
        let turn = turn.unwrap_or_else(|| {
            self.next += 1;
            (now, self.next)
        });
        let (key, priority) = (pod.key.clone(), Reverse(pod.priority));
        match place {
            Place::Active => _ = self.active.insert((priority, turn, key)),
            Place::Backoff(until, true) => _ = self.error_backoff.insert((until, priority, turn, key)),
            Place::Backoff(until, false) => _ = self.backoff.insert((until, priority, turn, key)),
            Place::Parked(_) => {
                self.parked.entry(pod.class).or_default().pods.insert(key.clone());
                self.parked_since.insert((turn, key));
            }
            Place::Gated => {}
        }
        self.entries.insert(pod.key.clone(), Entry { pod, place, turn });
    }

    pub fn remove(&mut self, key: &Key) -> Option<Waiting> {
        self.take(key).map(|entry| entry.pod)
    }

    fn take(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        let (key, priority, turn) = (key.clone(), Reverse(entry.pod.priority), entry.turn);
        match entry.place {
            Place::Active => _ = self.active.remove(&(priority, turn, key)),
            Place::Backoff(until, true) => _ = self.error_backoff.remove(&(until, priority, turn, key)),
            Place::Backoff(until, false) => _ = self.backoff.remove(&(until, priority, turn, key)),
            Place::Parked(_) => {
                if let Some(group) = self.parked.get_mut(&entry.pod.class) {
                    group.pods.remove(&key);
                    if group.pods.is_empty() {
                        self.parked.remove(&entry.pod.class);
                    }
                }
                self.parked_since.remove(&(turn, key));
            }
            Place::Gated => {}
        }
        Some(entry)
    }

    /// The next Pod to try.
    pub fn pop(&mut self, now: Instant) -> Option<Waiting> {
        self.end_waits(now);
        let active = self.active.first().map(|(_, _, key)| key);
        let key = active.or_else(|| self.backoff.first().map(|(_, _, _, key)| key))?.clone();
        self.remove(&key)
    }

    /// Moves what has waited long enough.
    fn end_waits(&mut self, now: Instant) {
        for early in [false, true] {
            loop {
                let queue = if early { &self.backoff } else { &self.error_backoff };
                let Some((_, _, _, key)) = queue.first().filter(|(until, ..)| *until <= now) else { break };
                let key = key.clone();
                self.reactivate(&key, event::BACKOFF_OVER, now);
            }
        }
        while let Some((_, key)) = self.parked_since.first().filter(|((since, _), _)| *since + LONGEST_PARKING <= now) {
            let key = key.clone();
            self.reactivate(&key, event::PARKED_LONG, now);
        }
    }

    fn reactivate(&mut self, key: &Key, event: &'static str, now: Instant) {
        if let Some(Entry { pod, turn, .. }) = self.take(key) {
            self.put(pod, Place::Active, (Some(turn), event), now);
        }
    }

    /// When [`Queue::pop`] should be asked next if it has nothing now.
    pub fn wake_at(&self) -> Option<Instant> {
        let error = self.error_backoff.first().map(|(until, ..)| *until);
        let parked = self.parked_since.first().map(|((since, _), _)| *since + LONGEST_PARKING);
        error.into_iter().chain(parked).min()
    }

    /// The classes of parked Pods that one of these plugins turned away, and those that none did, since there was no node.
    /// Most changes concern few plugins, and most of the time nothing is parked.
    pub fn parked_by(&self, plugins: u32) -> Vec<Parked> {
        let concerned = |parked: &Parked| parked.plugins == 0 || parked.plugins & plugins != 0;
        self.parked_groups().filter(concerned).collect()
    }

    /// The classes of parked Pods.
    pub fn parked(&self) -> Vec<Parked> {
        self.parked_groups().collect()
    }

    fn parked_groups(&self) -> impl Iterator<Item = Parked> {
        let parked = |(class, group): (&ClassId, &Group)| Parked {
            class: *class,
            plugins: group.plugins,
            priority: group.priority,
        };
        self.parked.iter().map(parked)
    }

    /// The Pods that are parked until something changes.
    pub fn parked_pods(&self) -> impl Iterator<Item = &Waiting> {
        self.parked_since.iter().map(|(_, key)| &self.entries[key].pod)
    }

    /// A further plugin turns the parked Pods of a class away, on a node where another one does so no longer.
    pub fn note(&mut self, class: ClassId, plugin: usize) {
        if let Some(group) = self.parked.get_mut(&class) {
            group.plugins |= 1 << plugin;
        }
    }

    /// Something changed that could help the parked Pods of a class: `event` says what, in upstream's words.
    pub fn retry(&mut self, class: ClassId, event: &'static str, now: Instant) {
        let Some(group) = self.parked.get(&class) else { return };
        for key in group.pods.clone() {
            self.wake(&key, event, now);
        }
    }

    /// Something changed that could help this Pod, if it is parked.
    pub fn wake(&mut self, key: &Key, event: &'static str, now: Instant) {
        let Some(&Entry { place: Place::Parked(until), turn, .. }) = self.entries.get(key) else { return };
        if let Some(pod) = self.remove(key) {
            let place = if until <= now { Place::Active } else { Place::Backoff(until, false) };
            self.put(pod, place, (Some(turn), event), now);
        }
    }

    /// Whatever kept a Pod from being tried is gone, if it is gated.
    pub fn open(&mut self, key: &Key, event: &'static str, now: Instant) {
        let Some(&Entry { place: Place::Gated, turn, .. }) = self.entries.get(key) else { return };
        if let Some(pod) = self.remove(key) {
            self.put(Waiting { gated: false, ..pod }, Place::Active, (Some(turn), event), now);
        }
    }

    /// A Pod is tried at once, if it may be tried at all.
    pub fn activate(&mut self, key: &Key, now: Instant) {
        let Some(&Entry { place: Place::Parked(_) | Place::Backoff(..), .. }) = self.entries.get(key) else { return };
        self.reactivate(key, event::FORCED, now);
    }

    // The figures for the metrics.

    /// How many Pods came into which queue for which event since this was asked last.
    pub fn take_incoming(&mut self) -> impl Iterator<Item = ((&'static str, &'static str), u64)> + use<> {
        std::mem::take(&mut self.incoming).into_iter()
    }

    /// How many Pods each queue holds.
    pub fn lengths(&self) -> [(&'static str, usize); 4] {
        let (active, parked) = (self.active.len(), self.parked_since.len());
        let backoff = self.backoff.len() + self.error_backoff.len();
        let gated = self.entries.len() - active - parked - backoff;
        [("active", active), ("backoff", backoff), ("unschedulable", parked), ("gated", gated)]
    }

    /// The classes of parked Pods, and how many there are of each.
    pub fn parked_counts(&self) -> impl Iterator<Item = (Parked, usize)> {
        self.parked_groups().zip(self.parked.values().map(|group| group.pods.len()))
    }
}

impl Place {
    /// The name of its queue in metrics. Gated Pods are in the unschedulable one, as upstream counts them.
    fn label(self) -> &'static str {
        match self {
            Place::Active => "active",
            Place::Backoff(..) => "backoff",
            Place::Parked(_) | Place::Gated => "unschedulable",
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
            errors: 0,
            waits_since: None,
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
        queue.retry(ClassId(0), "NodeAdd", now);
        assert_eq!(names(&mut queue, now), "a", "nothing else is to do, so backoff is cut short");
        queue.park(pod("a", 0), 1, now);
        assert_eq!(names(&mut queue, now + Duration::from_secs(300)), "a");
    }

    #[test]
    fn equal_pods_are_tried_in_the_order_in_which_they_came() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for name in ["d", "b", "a", "c"] {
            queue.park(pod(name, 0), 1, now);
        }
        queue.wake(&Key::new("default", "a"), "NodeAdd", now);
        queue.retry(ClassId(0), "NodeAdd", now);
        assert_eq!(names(&mut queue, now), "d b a c", "those in backoff");
        for (after, name) in [(0, "d"), (0, "b"), (300, "a"), (300, "c")] {
            queue.park(pod(name, 0), 1, now + Duration::from_millis(after));
        }
        queue.park(pod("important", 1), 1, now + Duration::from_millis(500));
        queue.retry(ClassId(0), "NodeAdd", now);
        assert_eq!(names(&mut queue, now), "important d b a c", "backoffs that end within one second");
        for name in ["d", "b", "a", "c"] {
            queue.park(pod(name, 0), 1, now);
        }
        let later = now + Duration::from_secs(2);
        queue.add(pod("new", 0), later);
        queue.retry(ClassId(0), "NodeAdd", later);
        assert_eq!(names(&mut queue, later), "d b a c new", "those whose backoff is over");
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
