//! The write barrier of a connection: a record of what was done that has to be written before more bytes of the connection leave.
//!
//! An answer need not wait for its record by itself, with a task that sleeps and is woken: nobody sees the answer before its
//! bytes leave. So a handler says which record it depends on and goes on, and whoever writes to the socket has the record
//! written first, with everything else that waits by then. One write of the record serves all answers that leave together: where
//! other requests are under way a connection lets those go before it once that are ready, and most find theirs written then.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

/// A record whose entries are numbered in their order, from 1 on.
pub trait Record: Send + Sync {
    /// Returns when the entries up to this one are written, or cannot be.
    fn settle(&self, entry: u64);

    /// Whether the entry is not written, and entries of others wait for the same write.
    fn has_company(&self, entry: u64) -> bool;
}

/// The barrier of one connection.
#[derive(Default)]
pub(crate) struct Barrier {
    record: OnceLock<Arc<dyn Record>>,
    /// The last entry that bytes wait for.
    entry: AtomicU64,
    /// Others had their turn since bytes wait.
    yielded: AtomicBool,
}

impl Barrier {
    /// All entries of a connection are of one record.
    pub fn raise(&self, record: &Arc<dyn Record>, entry: u64) {
        self.record.get_or_init(|| record.clone());
        self.entry.fetch_max(entry, Ordering::Release);
    }

    /// Has the record written as far as bytes depend on it that leave now. The task is ready again at once where it has to come
    /// back, and behind others: it comes back once.
    pub fn pass(&self, cx: &mut Context<'_>) -> Poll<()> {
        let entry = self.entry.load(Ordering::Acquire);
        let Some(record) = self.record.get().filter(|_| entry > 0) else { return Poll::Ready(()) };
        if record.has_company(entry) && !self.yielded.swap(true, Ordering::Relaxed) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.yielded.store(false, Ordering::Relaxed);
        // An entry that came meanwhile stays: the bytes at hand were there before it.
        let _ = self.entry.compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed);
        record.settle(entry);
        Poll::Ready(())
    }
}

impl std::fmt::Debug for Barrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Barrier").field(&self.entry).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A record that counts its writes.
    #[derive(Default)]
    struct Written {
        last: AtomicU64,
        times: AtomicU64,
        company: AtomicBool,
    }

    impl Record for Written {
        fn settle(&self, entry: u64) {
            if self.last.fetch_max(entry, Ordering::Relaxed) < entry {
                self.times.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn has_company(&self, entry: u64) -> bool {
            self.last.load(Ordering::Relaxed) < entry && self.company.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn who_is_not_alone_lets_others_go_before_it_once() {
        let record = Arc::new(Written::default());
        let shared: Arc<dyn Record> = record.clone();
        let cx = &mut Context::from_waker(Waker::noop());
        let (one, other) = (Barrier::default(), Barrier::default());
        assert!(one.pass(cx).is_ready(), "nothing waits");
        one.raise(&shared, 1);
        assert!(one.pass(cx).is_ready(), "it is alone");
        assert_eq!((record.last.load(Ordering::Relaxed), record.times.load(Ordering::Relaxed)), (1, 1));
        record.company.store(true, Ordering::Relaxed);
        one.raise(&shared, 2);
        assert!(one.pass(cx).is_pending());
        other.raise(&shared, 3);
        assert!(other.pass(cx).is_pending());
        record.settle(3);
        assert!(one.pass(cx).is_ready() && other.pass(cx).is_ready(), "both are written");
        assert_eq!(record.times.load(Ordering::Relaxed), 2);
        one.raise(&shared, 4);
        assert!(one.pass(cx).is_pending(), "once for each");
        assert!(one.pass(cx).is_ready(), "it waits for nobody");
        assert_eq!(record.last.load(Ordering::Relaxed), 4);
        assert!(one.pass(cx).is_ready());
    }
}
