//! The write barrier of a connection: a record of what was done that has to be written before more bytes of the connection leave.
//!
//! An answer need not wait for its record by itself, with a task that sleeps and is woken: nobody sees the answer before its
//! bytes leave. So a handler says which record it depends on and goes on, and whoever writes to the socket has the record
//! written first, with everything else that waits by then. One write of the record serves all answers that leave together.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

/// A record whose entries are numbered in their order, from 1 on.
pub trait Record: Send + Sync {
    /// Returns when the entries up to this one are written, or cannot be.
    fn settle(&self, entry: u64);
}

/// The barrier of one connection.
#[derive(Default)]
pub(crate) struct Barrier {
    record: OnceLock<Arc<dyn Record>>,
    /// The last entry that bytes wait for.
    entry: AtomicU64,
}

impl Barrier {
    /// All entries of a connection are of one record.
    pub fn raise(&self, record: &Arc<dyn Record>, entry: u64) {
        self.record.get_or_init(|| record.clone());
        self.entry.fetch_max(entry, Ordering::Release);
    }

    /// Has the record written as far as bytes depend on it that leave now.
    pub fn pass(&self) {
        if self.entry.load(Ordering::Relaxed) == 0 {
            return;
        }
        let entry = self.entry.swap(0, Ordering::Acquire);
        if let Some(record) = self.record.get().filter(|_| entry > 0) {
            record.settle(entry);
        }
    }
}

impl std::fmt::Debug for Barrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Barrier").field(&self.entry).finish()
    }
}
