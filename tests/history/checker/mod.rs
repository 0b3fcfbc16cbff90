//! Whether a history can be the work of one store that does one thing after another.
//!
//! Revisions are the order. From all that clients and watchers were shown follows the log: what happened at each
//! revision. Then each answer has to be true at a revision that lies behind all that was answered before it was asked for
//! (linearizability, over all objects together), each list has to be the state at its revision, and each watcher has to
//! have seen the log, without a gap and without anything twice.

mod log;
mod order;
mod watching;
mod writes;

use log::Log;

use crate::record::{Answer, History, Seen};

/// The figures of a check, so that a test can tell a history that says something from an empty one.
#[derive(Debug, Default)]
pub struct Figures {
    pub changes: usize,
    pub acknowledged: usize,
    pub unknown: usize,
    pub reads: usize,
    pub events: usize,
    /// How often a watcher had to begin anew.
    pub anew: usize,
}

/// Checks a history; the complaints are sentences.
pub fn check(history: &History) -> Result<Figures, Vec<String>> {
    let mut complaints = Vec::new();
    let log = Log::of(history, &mut complaints);
    log.check_incarnations(&mut complaints);
    for (at, watcher) in history.watchers.iter().enumerate() {
        log.check_watcher(at, watcher, &mut complaints);
    }
    log.check_coverage(&history.watchers, &mut complaints);
    for operation in &history.operations {
        if let Answer::Listed(revision, objects) = &operation.answer {
            log.check_list("a client", *revision, objects, &mut complaints);
        }
    }
    writes::check(&log, &history.operations, &mut complaints);
    order::check(&log, &history.operations, &mut complaints);
    if complaints.is_empty() { Ok(figures(&log, history)) } else { Err(complaints) }
}

fn figures(log: &Log, history: &History) -> Figures {
    let mut figures = Figures { changes: log.changes.len(), ..Figures::default() };
    for operation in &history.operations {
        match operation.answer {
            Answer::Unknown => figures.unknown += 1,
            Answer::Written(_) | Answer::Deleted { .. } => figures.acknowledged += 1,
            _ => figures.reads += 1,
        }
    }
    for watcher in &history.watchers {
        figures.events += watcher.iter().filter(|seen| matches!(seen, Seen::Event(..))).count();
        figures.anew += watcher.iter().filter(|seen| matches!(seen, Seen::Listed(..))).count() - 1;
    }
    figures
}
