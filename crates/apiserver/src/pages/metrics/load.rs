//! How many requests are worked on, and wait, by whether they change anything. What is told is the most there were at once within the
//! last second, so that a short rush between two looks is seen.

use clock::{Duration, Instant};
use meter::{Metric, labels, told};
use parking_lot::Mutex;

use crate::fairness::ratios::{self, Ratios};

static EXECUTING: Metric = Metric::gauge(
    "apiserver_current_inflight_requests",
    "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
);
static WAITING: Metric = Metric::gauge(
    "apiserver_current_inqueue_requests",
    "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.",
);

/// Each request is one: nothing bounds those that read, or write, apart.
const OVER_TIME: &str = "apiserver_flowcontrol_read_vs_write_current_requests";
const OVER_TIME_HELP: &str = "[ALPHA] Observations, at the end of every nanosecond, of the number of requests (as a fraction of the relevant \
     limit) waiting or in regular stage of execution";

const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Executing,
    Waiting,
}

#[derive(Default)]
struct Mark(Mutex<Level>);

struct Level {
    now: u32,
    most: u32,
    /// When the window began whose most that is.
    since: Option<Instant>,
    over_time: Ratios,
    at: Instant,
}

impl Default for Level {
    fn default() -> Self {
        Level { now: 0, most: 0, since: None, over_time: Ratios::new(ratios::ALL), at: Instant::now() }
    }
}

impl Level {
    fn roll(&mut self) {
        let at = Instant::now();
        let passed = at.saturating_duration_since(std::mem::replace(&mut self.at, at));
        self.over_time.set(passed.as_secs_f64(), f64::from(self.now));
        if self.since.is_none_or(|since| at.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.most) = (Some(at), self.now);
        }
    }
}

impl Level {
    fn note(&mut self) {
        self.over_time.set(0.0, f64::from(self.now));
    }
}

impl Mark {
    fn rise(&self) {
        let mut level = self.0.lock();
        level.roll();
        level.now += 1;
        level.note();
        level.most = level.most.max(level.now);
    }

    fn fall(&self) {
        let mut level = self.0.lock();
        level.roll();
        level.now = level.now.saturating_sub(1);
        level.note();
    }

    fn most(&self) -> u32 {
        let mut level = self.0.lock();
        level.roll();
        level.most
    }
}

/// The requests of one server.
#[derive(Default)]
pub struct Load {
    /// Of each phase those that read and those that write.
    marks: [[Mark; 2]; 2],
}

impl Load {
    /// A request is in this phase for as long as what is returned is kept.
    pub fn enter(&self, phase: Phase, writes: bool) -> Entered<'_> {
        let mark = &self.marks[phase as usize][usize::from(writes)];
        mark.rise();
        Entered(mark)
    }

    /// The lines of the page.
    pub fn render(&self) -> String {
        let of = |metric, phase: Phase| {
            let series = ["readOnly", "mutating"].into_iter().zip(&self.marks[phase as usize]);
            told(metric, series.map(|(kind, mark)| (labels(&[("request_kind", kind)]), f64::from(mark.most()))))
        };
        of(&EXECUTING, Phase::Executing) + &of(&WAITING, Phase::Waiting) + &self.over_time()
    }

    fn over_time(&self) -> String {
        let mut text = format!("# HELP {OVER_TIME} {OVER_TIME_HELP}\n# TYPE {OVER_TIME} histogram\n");
        for (phase, marks) in ["executing", "waiting"].into_iter().zip(&self.marks) {
            for (kind, mark) in ["readOnly", "mutating"].into_iter().zip(marks) {
                let mut level = mark.0.lock();
                level.roll();
                text += &level.over_time.render(OVER_TIME, &format!("phase=\"{phase}\",request_kind=\"{kind}\""));
            }
        }
        text
    }
}

pub struct Entered<'a>(&'a Mark);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.fall();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rush_is_seen_for_a_second() {
        let load = Load::default();
        let line = |kind, count| format!("apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {count}\n");
        let reading = [(); 3].map(|()| load.enter(Phase::Executing, false));
        drop(reading);
        let _writing = load.enter(Phase::Executing, true);
        assert!(load.render().contains(&line("readOnly", 3)), "{}", load.render());
        assert!(load.render().contains("apiserver_current_inqueue_requests{request_kind=\"mutating\"} 0\n"));
        clock::sleep(WINDOW).await;
        assert!(load.render().contains(&line("readOnly", 0)), "{}", load.render());
        assert!(load.render().contains(&line("mutating", 1)), "{}", load.render());
        let sum = |labels| format!("{OVER_TIME}_sum{{{labels}}} 1000000000\n");
        let page = load.render();
        assert!(page.contains(&sum("phase=\"executing\",request_kind=\"mutating\"")), "one, for a second: {page}");
        let none = format!("{OVER_TIME}_bucket{{phase=\"waiting\",request_kind=\"readOnly\",le=\"0\"}} 1000000000\n");
        assert!(page.contains(&none), "{page}");
    }
}
