//! The rows of rules in the kernel: all Services and all policies of a large cluster, and then one change among them. Everything
//! is written by a thread in a network namespace of its own, which goes with it; the machine's rules are not touched.

mod policies;
mod services;

use std::time::Duration;

use anyhow::{Context, anyhow};
use nix::sched::{CloneFlags, unshare};

use crate::{
    node::is_root,
    report::{Goal::AtMost, Report},
};

/// How often each change is made.
const ROUNDS: usize = 20;

pub fn measure(report: &mut Report) -> anyhow::Result<()> {
    if !is_root() {
        eprintln!("SKIPPED: rules in the kernel need root");
        return Ok(());
    }
    let apart = || -> anyhow::Result<()> {
        // The programs that the thread starts are in its namespace too. Its runtime has no other thread that could start them.
        unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            policies::measure(report).await?;
            services::measure(report).await
        })
    };
    std::thread::scope(|scope| scope.spawn(apart).join()).map_err(|_| anyhow!("the thread of the rules panicked"))?
}

/// The times that one change took, again and again.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn push(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1000.0);
        self.0.sort_by(f64::total_cmp);
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    fn slowest(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// Adds the row of a change. `most` is in milliseconds.
    fn report(&self, what: &str, most: Option<f64>, note: &str, report: &mut Report) {
        let note = format!("median of {ROUNDS}, slowest {:.0} ms{note}", self.slowest());
        report.add(what, self.median(), "ms", most.map(AtMost), note);
    }
}
