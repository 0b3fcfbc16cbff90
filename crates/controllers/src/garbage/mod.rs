//! Garbage collector: deletes what no owner needs any more, in the background, in the foreground, or not at all (orphan).
//! It is no `Controller`, because its keys are UIDs of objects of all kinds and what it reads is the graph of owners that
//! it keeps itself; what to do about an object is a [`plan`] like those of the others.
//! Reads: the metadata of all objects of all kinds that can be listed and deleted. Writes: deletions, owner references,
//! the finalizers `foregroundDeletion` and `orphan`.
//! Upstream counterpart: pkg/controller/garbagecollector.

mod collector;
mod graph;
mod monitor;
mod plan;

use std::sync::Arc;

use controller::{Setup, drive};

use collector::Collector;
pub use collector::NAME;

pub async fn run(setup: Setup) {
    let collector = Arc::new(Collector::new(setup));
    tokio::join!(monitor::watch_all(collector.clone()), drive(NAME, collector.queue.clone(), collector, 20));
}
