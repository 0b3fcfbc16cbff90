//! How many images are pulled at once, and how many pulls begin in a second.
//! Upstream counterpart: pkg/kubelet/images, its `puller.go` and `helpers.go`.

use std::sync::Arc;

use clock::Instant;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::configuration::pulls::Pulls;

/// The tokens that are left of a bucket, as they were at a moment.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// See the module.
pub struct Limits {
    places: Option<Arc<Semaphore>>,
    per_second: f64,
    burst: f64,
    bucket: Mutex<Bucket>,
}

impl Limits {
    pub fn new(settings: &Pulls) -> Self {
        let burst = f64::from(settings.burst);
        Limits {
            places: settings.most().map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))),
            per_second: f64::from(settings.per_second),
            burst,
            bucket: Mutex::new(Bucket { tokens: burst, at: Instant::now() }),
        }
    }

    /// Waits for a place among the images that are pulled, in the order of those who asked.
    pub async fn place(&self) -> Option<OwnedSemaphorePermit> {
        match &self.places {
            // It is never closed.
            Some(places) => places.clone().acquire_owned().await.ok(),
            None => None,
        }
    }

    /// Whether one more pull may begin now.
    pub fn allows(&self) -> bool {
        if self.per_second == 0.0 {
            return true;
        }
        let mut bucket = self.bucket.lock();
        let now = Instant::now();
        let grown = now.saturating_duration_since(bucket.at).as_secs_f64() * self.per_second;
        *bucket = Bucket { tokens: (bucket.tokens + grown).min(self.burst), at: now };
        let allows = bucket.tokens >= 1.0;
        if allows {
            bucket.tokens -= 1.0;
        }
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clock::Duration;
    use futures::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn pulls_begin_in_bursts_that_fill_up_again() {
        let limits = Limits::new(&Pulls { per_second: 2, burst: 3, ..Pulls::default() });
        let count = || (0..10).filter(|_| limits.allows()).count();
        assert_eq!(count(), 3);
        clock::sleep(Duration::from_millis(1000)).await;
        assert_eq!(count(), 2);
        clock::sleep(Duration::from_secs(100)).await;
        assert_eq!(count(), 3);
        let free = Limits::new(&Pulls { per_second: 0, burst: 0, ..Pulls::default() });
        assert!((0..100).all(|_| free.allows()));
        let closed = Limits::new(&Pulls { per_second: 1, burst: 0, ..Pulls::default() });
        assert!(!closed.allows());
    }

    #[tokio::test]
    async fn images_are_pulled_one_after_the_other_unless_more_may() {
        let waits = |limits: &Limits| limits.place().now_or_never().is_none();
        let one = Limits::new(&Pulls::default());
        let held = one.place().await;
        assert!(held.is_some() && waits(&one));
        drop(held);
        assert!(!waits(&one));
        let two = Limits::new(&Pulls { at_once: Some(2), ..Pulls::default() });
        let _first = two.place().await;
        let _second = two.place().await;
        assert!(waits(&two));
        let any = Limits::new(&Pulls { serialize: Some(false), ..Pulls::default() });
        let _first = any.place().await;
        assert!(!waits(&any));
    }
}
