//! How many requests are worked on, and wait, by whether they change anything. What is told is the most there were at once within the
//! last second, so that a short rush between two looks is seen.

use clock::{Duration, Instant};
use meter::{Metric, labels, told};
use parking_lot::Mutex;

static EXECUTING: Metric = Metric::gauge(
    "apiserver_current_inflight_requests",
    "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
);
static WAITING: Metric = Metric::gauge(
    "apiserver_current_inqueue_requests",
    "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.",
);

const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Executing,
    Waiting,
}

#[derive(Default)]
struct Mark(Mutex<Level>);

#[derive(Default)]
struct Level {
    now: u32,
    most: u32,
    /// When the window began whose most that is.
    since: Option<Instant>,
}

impl Level {
    fn roll(&mut self) {
        let at = Instant::now();
        if self.since.is_none_or(|since| at.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.most) = (Some(at), self.now);
        }
    }
}

impl Mark {
    fn rise(&self) {
        let mut level = self.0.lock();
        level.roll();
        level.now += 1;
        level.most = level.most.max(level.now);
    }

    fn fall(&self) {
        let mut level = self.0.lock();
        level.roll();
        level.now = level.now.saturating_sub(1);
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
        of(&EXECUTING, Phase::Executing) + &of(&WAITING, Phase::Waiting)
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
    }
}
