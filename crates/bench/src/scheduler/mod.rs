//! The scheduler's engine alone, on upstream's workloads: how many Pods it decides in a second of one
//! core's time, from the event that shows a Pod to the event that shows it bound.
//!
//! Upstream's figures are taken through its API server, whose part is in the row "create to bound"; they are here as the
//! measure of what a workload costs a scheduler.

mod cases;
mod cluster;
mod devices;
mod events;
mod large;
mod objects;
mod table;

use crate::report::{Goal, Report};

/// How many times upstream's threshold is to be reached.
const TIMES: f64 = 10.0;
/// The unit of the kernel's accounts of a thread's time.
const SHORTEST: f64 = 0.004;

/// Adds a row for every workload whose name contains `filter`.
pub fn measure(filter: &str, report: &mut Report) {
    for workload in table::workloads() {
        let what = format!("{} {}", workload.case, workload.name);
        if !what.contains(filter) {
            continue;
        }
        let (run, cluster) = cases::run(&workload);
        let rate = run.placed as f64 / run.seconds.max(SHORTEST);
        let (then, later) = workload.thresholds;
        let upstream = match (then, later) {
            (_, Some(later)) => Some((later, then.map_or(String::new(), |then| format!(" (around 1.35: {then})")))),
            (Some(then), None) => Some((then, String::new())),
            (None, None) => None,
        };
        let mut note: Vec<String> = Vec::new();
        if let Some((threshold, before)) = &upstream {
            note.push(format!("upstream {threshold}{before}, {:.0} times", rate / threshold));
        }
        if run.left > 0 {
            note.push(format!("{} LEFT WITHOUT A NODE", run.left));
        }
        if run.seconds < 10.0 * SHORTEST {
            note.push("too short for an exact figure".to_owned());
        }
        if cluster.victims > 0 {
            note.push(format!("{} victims", cluster.victims));
        }
        let goal = upstream.map(|(threshold, _)| Goal::AtLeast(TIMES * threshold));
        report.add(&what, rate, "Pods/s", goal, note.join(", "));
    }
    large::measure(filter, report);
}
