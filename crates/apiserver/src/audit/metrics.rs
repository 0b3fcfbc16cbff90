//! The metrics of auditing, under upstream's names.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use clock::Seldom;

use super::policy::Level;

/// The parts that an event can be lost in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Buffered,
    Log,
    Truncate,
    Webhook,
}

impl Part {
    const ALL: [Part; 4] = [Part::Buffered, Part::Log, Part::Truncate, Part::Webhook];

    fn name(self) -> &'static str {
        match self {
            Part::Buffered => "buffered",
            Part::Log => "log",
            Part::Truncate => "truncate",
            Part::Webhook => "webhook",
        }
    }
}

#[derive(Default)]
pub struct Metrics {
    pub events: AtomicU64,
    /// Requests that were refused because their event could not be kept.
    pub rejected: AtomicU64,
    levels: [AtomicU64; 4],
    errors: [AtomicU64; 4],
}

impl Metrics {
    pub fn decided(&self, level: Level) {
        self.levels[level as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts events that were lost, and says so now and then.
    pub fn lost(&self, part: Part, events: usize, why: &str) {
        static SELDOM: Seldom = Seldom::new();
        self.errors[part as usize].fetch_add(events as u64, Ordering::Relaxed);
        if let Some(more) = SELDOM.turn() {
            tracing::error!(plugin = part.name(), events, why, more, "audit events were lost");
        }
    }

    #[cfg(test)]
    pub fn lost_in(&self, part: Part) -> u64 {
        self.errors[part as usize].load(Ordering::Relaxed)
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut out = String::new();
        let mut counter = |name: &str, help: &str, series: &[(String, u64)]| {
            let _ =
                writeln!(out, "# HELP apiserver_audit_{name} [ALPHA] {help}\n# TYPE apiserver_audit_{name} counter");
            for (labels, value) in series {
                let _ = writeln!(out, "apiserver_audit_{name}{labels} {value}");
            }
        };
        let alone = |value: u64| [(String::new(), value)];
        let events = "Counter of audit events generated and sent to the audit backend.";
        counter("event_total", events, &alone(value(&self.events)));
        let rejected = "Counter of apiserver requests rejected due to an error in audit logging backend.";
        counter("requests_rejected_total", rejected, &alone(value(&self.rejected)));
        let levels =
            Level::ALL.map(|level| (format!("{{level={:?}}}", level.name()), value(&self.levels[level as usize])));
        let levels: Vec<_> = levels.into_iter().filter(|(_, value)| *value > 0).collect();
        counter("level_total", "Counter of policy levels for audit events (1 per request).", &levels);
        let errors =
            Part::ALL.map(|part| (format!("{{plugin={:?}}}", part.name()), value(&self.errors[part as usize])));
        let errors: Vec<_> = errors.into_iter().filter(|(_, value)| *value > 0).collect();
        let lost = "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by \
                    the error.";
        counter("error_total", lost, &errors);
        out
    }
}
