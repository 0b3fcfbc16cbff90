//! A number that others wait for: how far somebody has come.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Waiters are woken in the order in which they came. (`tokio::sync::watch` wakes them in a random one, which a seed
/// does not reach.)
#[derive(Debug, Default)]
pub struct Progress {
    value: AtomicU64,
    moved: Notify,
}

impl Progress {
    pub fn new(value: u64) -> Self {
        Progress { value: AtomicU64::new(value), moved: Notify::new() }
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// Moves on to `value`; a smaller one than before changes nothing.
    pub fn advance(&self, value: u64) {
        if self.value.fetch_max(value, Ordering::AcqRel) < value {
            self.moved.notify_waiters();
        }
    }

    /// Begins anew at `value`, wherever that is.
    pub fn reset(&self, value: u64) {
        self.value.store(value, Ordering::Release);
        self.moved.notify_waiters();
    }

    /// Returns once the number is at `value` or behind it.
    pub async fn reached(&self, value: u64) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            // Waits from here on, so that no step between the look and the wait is missed.
            moved.as_mut().enable();
            if self.get() >= value {
                return;
            }
            moved.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn waiters_are_woken_in_their_order() {
        let (progress, order) = (Arc::new(Progress::default()), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = tokio::task::JoinSet::new();
        for waiter in 0..20_u64 {
            let (progress, order) = (progress.clone(), order.clone());
            tasks.spawn(async move {
                progress.reached(3 + waiter / 15).await;
                order.lock().push(waiter);
            });
        }
        tokio::task::yield_now().await;
        progress.advance(2);
        progress.advance(1);
        assert_eq!(progress.get(), 2);
        tokio::task::yield_now().await;
        assert!(order.lock().is_empty());
        progress.advance(3);
        tokio::task::yield_now().await;
        assert_eq!(*order.lock(), (0..15).collect::<Vec<_>>());
        progress.reset(4);
        tasks.join_all().await;
        assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
        progress.reset(1);
        assert_eq!(progress.get(), 1);
    }
}
