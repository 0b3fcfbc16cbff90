//! Events on their way to the log while their requests wait for it: those that come together are written together.
//!
//! The first request that waits leads: it lets others that are ready go before it once, and writes for all that came
//! meanwhile. One request alone waits for nobody. A leader that is given up on its way writes as it goes, so nobody waits for
//! one that is not there. An event that nobody waits for goes with the next one, or after [`LATE`].

use std::sync::Arc;

use clock::Duration;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{
    event::Event,
    log::Log,
    metrics::{Metrics, Part},
};

/// Events that nobody waits for are written this long after they were taken, at the latest.
const LATE: Duration = Duration::from_millis(5);

#[derive(Clone)]
pub struct Group(Arc<Shared>);

struct Shared {
    log: Arc<Log>,
    metrics: Arc<Metrics>,
    pending: Mutex<Pending>,
    late: Notify,
}

#[derive(Default)]
struct Pending {
    text: Vec<u8>,
    /// The place where each event ends in the text.
    ends: Vec<usize>,
    /// The requests that wait for the one that leads, with the number of their event.
    followers: Vec<(usize, oneshot::Sender<bool>)>,
    is_led: bool,
}

impl Group {
    /// The way in, and the work that has to run behind it.
    pub fn new(log: Arc<Log>, metrics: Arc<Metrics>) -> (Self, impl Future<Output = ()> + Send) {
        let group = Group(Arc::new(Shared { log, metrics, pending: Mutex::default(), late: Notify::new() }));
        let shared = group.0.clone();
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
        if self.0.append(event, &mut self.0.pending.lock()) == 0 {
            self.0.late.notify_one();
        }
    }

    /// Takes an event and waits until it is written. False when it cannot be.
    pub async fn write(&self, event: &Event) -> bool {
        let (number, follows) = {
            let mut pending = self.0.pending.lock();
            let number = self.0.append(event, &mut pending);
            let follows = pending.is_led.then(oneshot::channel);
            pending.is_led = true;
            let told = follows.map(|(tell, told)| {
                pending.followers.push((number, tell));
                told
            });
            (number, told)
        };
        if let Some(told) = follows {
            return told.await.unwrap_or(false);
        }
        let leader = Leader(Some(&self.0));
        tokio::task::yield_now().await;
        !leader.commit().contains(&number)
    }

    /// Writes what was taken before.
    pub fn flush(&self) {
        self.0.commit();
    }
}

impl Shared {
    /// The number of the event among those that wait.
    fn append(&self, event: &Event, pending: &mut Pending) -> usize {
        self.log.append(event, &mut pending.text);
        let end = pending.text.len();
        pending.ends.push(end);
        pending.ends.len() - 1
    }

    /// Writes what waits. The numbers of those that could not be written.
    fn commit(&self) -> Vec<usize> {
        let mut pending = self.pending.lock();
        let (text, ends) = (Vec::with_capacity(pending.text.len()), Vec::with_capacity(pending.ends.len()));
        let batch = std::mem::replace(&mut *pending, Pending { text, ends, ..Pending::default() });
        if batch.ends.is_empty() {
            return Vec::new();
        }
        // The file is taken before others can add again: batches are written in the order of their events.
        let mut file = self.log.locked();
        drop(pending);
        let lost = file.write(&batch.text, &batch.ends);
        drop(file);
        if let Some(error) = &lost.why {
            self.metrics.lost(Part::Log, lost.events.len(), error);
        }
        for (number, follower) in batch.followers {
            let _ = follower.send(!lost.events.contains(&number));
        }
        lost.events
    }
}

/// The duty to write for all who follow.
struct Leader<'a>(Option<&'a Shared>);

impl Leader<'_> {
    fn commit(mut self) -> Vec<usize> {
        self.0.take().map(Shared::commit).unwrap_or_default()
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.commit();
        }
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
        assert_eq!(group.0.metrics.lost_in(Part::Log), 1);
        assert_eq!(ids(&path), ["1"]);
    }
}
