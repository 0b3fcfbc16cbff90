//! Events on their way to the log: those that come together are written together.
//!
//! An answer waits for its event on its connection: whatever writes to the socket has the log written first, so that no task
//! sleeps until then, and one write serves all answers that leave together. A request that may not go on before its event is
//! written waits by itself. The first of those leads: it lets others that are ready go before it once, and writes for all that
//! came meanwhile. A leader that is given up on its way writes as it goes, so nobody waits for one that is not there. An event
//! that nothing waits for goes with the next one, or after [`LATE`].

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use clock::Duration;
use listener::Connection;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{
    event::Event,
    log::Log,
    metrics::{Metrics, Part},
};

/// Events that nothing waits for are written this long after they were taken, at the latest.
const LATE: Duration = Duration::from_millis(5);
/// The events of one request that its answer may wait for: more of them are of others.
const OWN: usize = 2;
/// Room that is kept from one batch to the next one.
const ROOM: usize = 1 << 20;

#[derive(Clone)]
pub struct Group {
    shared: Arc<Shared>,
    record: Arc<dyn listener::Record>,
}

struct Shared {
    log: Arc<Log>,
    metrics: Arc<Metrics>,
    pending: Mutex<Pending>,
    /// The number of the last event that is written, or cannot be.
    written: AtomicU64,
    late: Notify,
}

#[derive(Default)]
struct Pending {
    batch: Batch,
    /// The number of the last event that was taken.
    taken: u64,
    /// A request will write the batch.
    is_led: bool,
    /// The memory of the batch before.
    spare: Batch,
}

#[derive(Default)]
struct Batch {
    text: Vec<u8>,
    /// The place where each event ends in the text.
    ends: Vec<usize>,
    /// The requests that wait, with the place of their event in the batch.
    waiting: Vec<(usize, oneshot::Sender<bool>)>,
}

impl Group {
    /// The way in, and the work that has to run behind it.
    pub fn new(log: Arc<Log>, metrics: Arc<Metrics>) -> (Self, impl Future<Output = ()> + Send) {
        let (pending, written, late) = (Mutex::default(), AtomicU64::new(0), Notify::new());
        let shared = Arc::new(Shared { log, metrics, pending, written, late });
        let group = Group { shared: shared.clone(), record: shared.clone() };
        let late = async move {
            loop {
                shared.late.notified().await;
                clock::sleep(LATE).await;
                shared.commit();
            }
        };
        (group, late)
    }

    /// Takes an event that goes with the next ones.
    pub fn add(&self, event: &Event) {
        self.shared.add(event);
    }

    /// Takes an event that is written before more bytes leave on the connection.
    pub fn hold(&self, connection: &Connection, event: &Event) {
        connection.waits_for(&self.record, self.shared.add(event));
    }

    /// Takes an event and waits until it is written. False when it cannot be.
    pub async fn write(&self, event: &Event) -> bool {
        let (tell, told) = oneshot::channel();
        let follows = {
            let mut pending = self.shared.pending.lock();
            let (place, _) = self.shared.append(event, &mut pending);
            pending.batch.waiting.push((place, tell));
            std::mem::replace(&mut pending.is_led, true)
        };
        if !follows {
            let leader = Leader(&self.shared);
            tokio::task::yield_now().await;
            drop(leader);
        }
        told.await.unwrap_or(false)
    }

    /// Writes what was taken before.
    pub fn flush(&self) {
        self.shared.commit();
    }
}

impl listener::Record for Shared {
    fn settle(&self, entry: u64) {
        if self.written.load(Ordering::Acquire) < entry {
            self.commit();
        }
    }

    fn has_company(&self, entry: u64) -> bool {
        self.written.load(Ordering::Acquire) < entry && self.pending.lock().batch.ends.len() > OWN
    }
}

impl Shared {
    /// The number of the event.
    fn add(&self, event: &Event) -> u64 {
        let (place, number) = self.append(event, &mut self.pending.lock());
        if place == 0 {
            self.late.notify_one();
        }
        number
    }

    /// The place of the event in the batch, and its number.
    fn append(&self, event: &Event, pending: &mut Pending) -> (usize, u64) {
        let batch = &mut pending.batch;
        self.log.append(event, &mut batch.text);
        batch.ends.push(batch.text.len());
        pending.taken += 1;
        (batch.ends.len() - 1, pending.taken)
    }

    /// Writes what was taken before. Another one may be at it: then this waits for that one, too.
    fn commit(&self) {
        // Only who has the file takes a batch: they are written in the order of their events, and behind the lock nothing is on
        // its way any more.
        let mut file = self.log.locked();
        let (mut batch, last) = {
            let mut pending = self.pending.lock();
            if pending.batch.ends.is_empty() {
                return;
            }
            pending.is_led = false;
            let spare = std::mem::take(&mut pending.spare);
            (std::mem::replace(&mut pending.batch, spare), pending.taken)
        };
        let lost = file.write(&batch.text, &batch.ends);
        self.written.store(last, Ordering::Release);
        drop(file);
        if let Some(error) = &lost.why {
            self.metrics.lost(Part::Log, lost.events.len(), error);
        }
        for (place, waiting) in batch.waiting.drain(..) {
            let _ = waiting.send(!lost.events.contains(&place));
        }
        if batch.text.capacity() <= ROOM {
            batch.text.clear();
            batch.ends.clear();
            self.pending.lock().spare = batch;
        }
    }
}

/// The duty to write for all who wait. It is done when this goes.
struct Leader<'a>(&'a Shared);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.commit();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures::FutureExt;

    use super::{super::log, *};

    fn group(path: &Path) -> (Group, impl Future<Output = ()> + Send + use<>) {
        let settings = log::Settings {
            path: path.to_owned(),
            format: log::Format::Json,
            days: 0,
            files: 0,
            megabytes: 1,
            compress: false,
        };
        Group::new(Arc::new(Log::open(&settings).unwrap()), Arc::default())
    }

    fn event(id: &str) -> Event {
        Event::for_tests(id)
    }

    /// The identities of the events in the file.
    fn ids(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let id = |line: &str| json::parse(line).unwrap()["auditID"].as_str().unwrap().to_owned();
        text.lines().map(id).collect()
    }

    #[tokio::test]
    async fn events_that_come_together_are_written_together_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (group, _late) = group(&path);
        let (first, second, third) = (event("1"), event("2"), event("3"));
        let mut leader = group.write(&first).boxed();
        assert!((&mut leader).now_or_never().is_none(), "it lets others go before it");
        group.add(&second);
        let mut follower = group.write(&third).boxed();
        assert!((&mut follower).now_or_never().is_none());
        assert_eq!(ids(&path), Vec::<String>::new());
        assert!(leader.await);
        assert_eq!(follower.now_or_never(), Some(true), "it was written with the first");
        assert_eq!(ids(&path), ["1", "2", "3"]);
    }

    #[tokio::test]
    async fn a_leader_that_is_given_up_leaves_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (group, _late) = group(&path);
        let (first, second) = (event("1"), event("2"));
        let mut leader = group.write(&first).boxed();
        assert!((&mut leader).now_or_never().is_none());
        let mut follower = group.write(&second).boxed();
        assert!((&mut follower).now_or_never().is_none());
        drop(leader);
        assert!(follower.await);
        assert_eq!(ids(&path), ["1", "2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_nobody_waits_for_is_written_soon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (group, late) = group(&path);
        let late = tokio::spawn(late);
        group.add(&event("1"));
        assert_eq!(ids(&path), Vec::<String>::new());
        while ids(&path).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        group.add(&event("2"));
        group.flush();
        assert_eq!(ids(&path), ["1", "2"]);
        late.abort();
    }

    #[tokio::test]
    async fn an_event_that_cannot_be_written_takes_no_other_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (group, _late) = group(&path);
        // No line is larger than a file.
        let (small, large) = (event("1"), event(&"x".repeat(1 << 20)));
        let mut leader = group.write(&small).boxed();
        assert!((&mut leader).now_or_never().is_none());
        let mut follower = group.write(&large).boxed();
        assert!((&mut follower).now_or_never().is_none());
        assert!(leader.await && !follower.await);
        assert_eq!(group.shared.metrics.lost_in(Part::Log), 1);
        assert_eq!(ids(&path), ["1"]);
    }
}
