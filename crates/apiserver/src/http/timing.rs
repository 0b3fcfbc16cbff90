//! The part of a request's time that was not this server's own doing: the wait for seats and the answers of webhooks; when its time is over;
//! and whether the server broke the request off in its own defence. Code that waits or asks says so here, wherever on the way of a request it stands.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use clock::{Duration, Instant};

tokio::task_local! {
    static TIMING: Arc<Timing>;
}

/// Of one request. Times are microseconds.
#[derive(Debug, Default)]
pub struct Timing {
    waited: AtomicU64,
    /// Mutating webhooks are asked one after another.
    changed: AtomicU64,
    /// Validating ones at once: the slowest counts.
    judged: AtomicU64,
    end: OnceLock<Instant>,
    broken_off: AtomicBool,
}

impl Timing {
    /// The time that others took.
    pub fn of_others(&self) -> Duration {
        let all = [&self.waited, &self.changed, &self.judged];
        Duration::from_micros(all.into_iter().map(|time| time.load(Ordering::Relaxed)).sum())
    }

    pub fn is_broken_off(&self) -> bool {
        self.broken_off.load(Ordering::Relaxed)
    }

    /// The server had no room or no time for the request.
    pub fn break_off(&self) {
        self.broken_off.store(true, Ordering::Relaxed);
    }
}

/// The work on a request, which says what takes its time.
pub fn of<W: Future>(timing: Arc<Timing>, work: W) -> impl Future<Output = W::Output> {
    TIMING.scope(timing, work)
}

fn note<T>(note: impl FnOnce(&Timing) -> T) {
    // Work that is not on a request has no time to tell of.
    let _ = TIMING.try_with(|timing| note(timing));
}

/// The request had to wait for seats.
pub fn waited(time: Duration) {
    note(|timing| timing.waited.fetch_add(time.as_micros() as u64, Ordering::Relaxed));
}

/// A mutating webhook answered.
pub fn changed(time: Duration) {
    note(|timing| timing.changed.fetch_add(time.as_micros() as u64, Ordering::Relaxed));
}

/// A validating webhook answered, perhaps beside others.
pub fn judged(time: Duration) {
    note(|timing| timing.judged.fetch_max(time.as_micros() as u64, Ordering::Relaxed));
}

/// The request is answered by then, in one way or another.
pub fn ends(at: Instant) {
    note(|timing| _ = timing.end.set(at));
}

/// The seconds that the request has left, of which a part counts as a whole one; `None` where nothing ends it.
pub fn left() -> Option<u64> {
    let end = TIMING.try_with(|timing| timing.end.get().copied()).ok().flatten()?;
    let left = end.saturating_duration_since(Instant::now());
    Some(left.as_millis().div_ceil(1000).max(1) as u64)
}

/// The server had no room or no time for the request.
pub fn broken_off() {
    note(Timing::break_off);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_time_of_others_is_that_of_the_request() {
        let (timing, seconds) = (Arc::<Timing>::default(), Duration::from_secs);
        waited(seconds(100));
        of(timing.clone(), async {
            waited(seconds(1));
            changed(seconds(2));
            changed(seconds(3));
            judged(seconds(5));
            judged(seconds(4));
        })
        .await;
        assert_eq!(timing.of_others(), seconds(11));
        let left_of = |time| of(Arc::default(), async move { (left(), ends(Instant::now() + time), left()).2 });
        assert_eq!(
            (left(), left_of(seconds(0)).await, left_of(Duration::from_millis(1500)).await),
            (None, Some(1), Some(2))
        );
        assert!(!timing.is_broken_off());
        of(timing.clone(), async { broken_off() }).await;
        assert!(timing.is_broken_off());
    }
}
