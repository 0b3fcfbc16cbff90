//! How many starts of sandboxes and containers the engine works on at a time, and which of those that wait comes next.
//!
//! An engine takes longer for many starts that it is asked for at once than for the same ones a few at a time: they wait for each
//! other in its database and in the kernel, and are waited for by all. Whatever ends a Pod does not pass here.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::pod::{admit, desired::DesiredPod};

/// A start that takes longer gives its place to the next one, and goes on without. So starts that hang hold the others up for this
/// long at most, `most` of them at a time, and cannot stop the node: each of the starts that wait behind any number of those gets
/// its place. An engine that needs longer for each start is held to no bound in the end, and that is what it was asked without one.
const PATIENCE: Duration = Duration::from_secs(10);

/// The starts at a time on a machine with that many processors. containerd alone made 50 Pods on 2 idle processors in 3.2 s when it was
/// asked for 8 at a time, and in 4.9 s for 50; on busy ones all numbers from 4 to 50 took about as long.
pub fn most(cpus: i64) -> usize {
    usize::try_from(cpus).unwrap_or(1).saturating_mul(4).max(8)
}

/// The order in which starts get their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// The node or the cluster can do without the Pod: others go first.
    is_ordinary: bool,
    /// It is not the rest of a Pod that has got its sandbox.
    begins: bool,
    /// The number of those that came to the line before.
    number: u64,
}

impl Turn {
    /// The turn of a Pod that is to have a sandbox.
    pub fn of_sandbox(desired: &DesiredPod) -> Self {
        Turn { is_ordinary: !admit::is_critical(&desired.pod, desired.is_static), begins: true, number: 0 }
    }

    /// The turn of a container. One that has not run in its sandbox yet goes before new sandboxes: Pods are finished one after the
    /// other, and half of a burst runs when half of its time is over. There are only as many of those as sandboxes have got their
    /// places. One that runs again lines up with the new sandboxes: containers that end all the time keep no Pod from its first start.
    pub fn of_container(desired: &DesiredPod, is_first: bool) -> Self {
        Turn { begins: !is_first, ..Turn::of_sandbox(desired) }
    }
}

#[derive(Debug, Default)]
struct Line {
    /// How many have a place.
    begun: usize,
    came: u64,
    waiting: BTreeMap<Turn, oneshot::Sender<()>>,
}

/// See the module.
#[derive(Debug)]
pub struct ParallelStarts {
    pub most: usize,
    line: Mutex<Line>,
}

/// A place in the line and, after that, at the engine. It is left by dropping it, wherever in the two it is.
struct Place<'a> {
    starts: &'a ParallelStarts,
    turn: Turn,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut line = self.starts.line.lock();
        if line.waiting.remove(&self.turn).is_some() {
            return;
        }
        match line.waiting.pop_first() {
            // One that has just ceased to wait gives it on by its own drop.
            Some((_, next)) => drop(next.send(())),
            None => line.begun -= 1,
        }
    }
}

impl ParallelStarts {
    pub fn new(most: usize) -> Self {
        ParallelStarts { most, line: Mutex::default() }
    }

    /// Does the work when there is a place for it. Dropped, it waits no more, and others have its place.
    pub async fn run<T>(&self, turn: Turn, work: impl Future<Output = T>) -> T {
        let place = self.place(turn).await;
        tokio::pin!(work);
        match clock::timeout(PATIENCE, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                drop(place);
                work.await
            }
        }
    }

    async fn place(&self, turn: Turn) -> Place<'_> {
        let (place, called) = {
            let mut line = self.line.lock();
            line.came += 1;
            let place = Place { starts: self, turn: Turn { number: line.came, ..turn } };
            if line.begun < self.most {
                line.begun += 1;
                return place;
            }
            let (call, called) = oneshot::channel();
            line.waiting.insert(place.turn, call);
            (place, called)
        };
        // The other end is kept until it is called.
        let _ = called.await;
        place
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::{FutureExt, future::BoxFuture};

    use super::*;
    use crate::pod::fixture;

    const NEW: Turn = Turn { is_ordinary: true, begins: true, number: 0 };
    const REST: Turn = Turn { begins: false, ..NEW };
    const CRITICAL: Turn = Turn { is_ordinary: false, ..NEW };

    /// Starts that note their names when they begin.
    #[derive(Default)]
    struct Notes(Mutex<Vec<&'static str>>);

    impl Notes {
        /// A start that takes this long, or, without a duration, for ever.
        fn start<'a>(
            &'a self,
            starts: &'a ParallelStarts,
            turn: Turn,
            name: &'static str,
            takes: Option<u64>,
        ) -> BoxFuture<'a, ()> {
            let work = async move {
                self.0.lock().push(name);
                match takes {
                    Some(seconds) => clock::sleep(Duration::from_secs(seconds)).await,
                    None => std::future::pending().await,
                }
            };
            starts.run(turn, work).boxed()
        }

        fn take(&self) -> Vec<&'static str> {
            std::mem::take(&mut *self.0.lock())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_given_in_the_order_of_turns_and_else_in_that_of_coming() {
        let (starts, notes) = (ParallelStarts::new(1), Notes::default());
        let all = [
            (NEW, "first"),
            (NEW, "new"),
            (REST, "rest"),
            (NEW, "newer"),
            (CRITICAL, "critical"),
            (REST, "later rest"),
            (NEW, "newest"),
        ];
        let all = all.map(|(turn, name)| notes.start(&starts, turn, name, Some(1)));
        futures::future::join_all(all).await;
        assert_eq!(notes.take(), ["first", "critical", "rest", "later rest", "new", "newer", "newest"]);
        assert_eq!(starts.line.lock().begun, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_ceases_to_wait_is_not_waited_for() {
        let (starts, notes) = (ParallelStarts::new(1), Notes::default());
        let mut first = notes.start(&starts, NEW, "first", Some(5));
        let mut second = notes.start(&starts, NEW, "second", Some(5));
        let mut third = notes.start(&starts, NEW, "third", Some(5));
        for waiting in [&mut first, &mut second, &mut third] {
            assert!(waiting.now_or_never().is_none());
        }
        // It stands in the line.
        drop(second);
        assert_eq!(starts.line.lock().waiting.len(), 1);
        // It has a place, and gives it to one that goes before it has noticed.
        drop(first);
        drop(third);
        assert_eq!(starts.line.lock().begun, 0);
        notes.start(&starts, NEW, "fourth", Some(5)).await;
        assert_eq!(notes.take(), ["first", "fourth"]);
    }

    #[tokio::test(start_paused = true)]
    async fn starts_that_hang_keep_no_other_from_its_place() {
        let (starts, notes) = (Arc::new(ParallelStarts::new(2)), Arc::new(Notes::default()));
        let begun = clock::Instant::now();
        let start = |name, takes| {
            let (starts, notes) = (starts.clone(), notes.clone());
            async move { notes.start(&starts, NEW, name, takes).await }
        };
        let hanging: Vec<_> = (0..7).map(|_| tokio::spawn(start("hangs", None))).collect();
        tokio::task::yield_now().await;
        start("well", Some(1)).await;
        assert_eq!(begun.elapsed(), PATIENCE * 3 + Duration::from_secs(1));
        assert_eq!(notes.take(), [["hangs"; 7].as_slice(), &["well"]].concat());
        // The places that they have given away are not given back twice.
        for hangs in hanging {
            hangs.abort();
            let _ = hangs.await;
        }
        assert_eq!(starts.line.lock().begun, 0);
        let three = [(); 3].map(|()| start("after", Some(3)));
        let begun = clock::Instant::now();
        futures::future::join_all(three).await;
        assert_eq!(begun.elapsed().as_secs(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_is_late_ends_as_ever() {
        let starts = ParallelStarts::new(1);
        let done = starts.run(NEW, async {
            clock::sleep(PATIENCE * 9).await;
            "done"
        });
        assert_eq!(done.await, "done");
    }

    #[test]
    fn a_pod_with_a_sandbox_comes_before_new_ones_and_a_critical_one_before_all() {
        let plain = fixture::pod(r#"{"containers": []}"#);
        let critical = fixture::pod(r#"{"priority": 2000000000, "containers": []}"#);
        assert!(Turn::of_container(&plain, true) < Turn::of_sandbox(&plain));
        assert!(Turn::of_sandbox(&critical) < Turn::of_container(&plain, true));
        assert_eq!(Turn::of_container(&plain, false), Turn::of_sandbox(&plain), "it has run before");
    }
}
