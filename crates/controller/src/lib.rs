//! The runner of controllers: a key leads to `observe` (reads caches), for a few to `ask` (reads the server), then to
//! `plan` (pure) and `act` (writes).
//!
//! The runner owns the queue, single flight per key, backoff, resync and bounded concurrency. It replaces upstream's
//! *expectations* by one rule: a key is not planned again until the cache of each kind it wrote has reached the revision
//! of that write. Objects that a key makes in vain it makes later and later (`losses`).

mod act;
mod losses;
pub mod metrics;
mod ownership;
mod plan;
mod queue;
mod runner;
mod watches;

pub use act::carry_out;
pub use ownership::{claim, claim_with, controller_of, owner_reference};
pub use plan::{Counted, Failure, Note, Plan, Step, Write};
pub use queue::{Done, Queue, Reconcile, drive};
pub use runner::{Controller, Listers, Setup, run};
pub use watches::Watches;
