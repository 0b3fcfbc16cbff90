//! The table: what was measured, its unit, and what the project wants to reach.

use std::path::Path;

use anyhow::Context;
use json::json;

use crate::load::Run;

/// One figure. `goal` is what must be reached; whether more or less is better follows from the unit's sense.
pub struct Row {
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
    pub goal: Option<Goal>,
    pub note: String,
}

#[derive(Clone, Copy)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn reached(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(g) => value >= g,
            Goal::AtMost(g) => value <= g,
        }
    }
}

#[derive(Default)]
pub struct Report(Vec<Row>);

impl Report {
    pub fn add(&mut self, what: &str, value: f64, unit: &'static str, goal: Option<Goal>, note: impl Into<String>) {
        eprintln!("{what}: {}", number(value));
        self.0.push(Row { what: what.to_owned(), value, unit, goal, note: note.into() });
    }

    /// A rate, and the server's own CPU time for each call, both with their goals.
    pub fn rate(&mut self, what: &str, run: &Run, least: f64, most_micros: f64) {
        self.add(what, run.per_second(), "/s", Some(Goal::AtLeast(least)), run.latencies());
        self.add(&cpu_of(what), run.cpu_micros, "µs", Some(Goal::AtMost(most_micros)), "for each");
    }

    /// The time that a list of this many bytes takes, and the server's own CPU time for it.
    pub fn list(&mut self, what: &str, run: &Run, bytes: usize, most: f64, most_cpu: Option<f64>) {
        let note = format!("{:.1} MB each", bytes as f64 / 1e6);
        self.add(what, run.quantile(0.5), "ms", Some(Goal::AtMost(most)), note);
        if let Some(most_cpu) = most_cpu {
            let cpu = run.cpu_micros / 1000.0;
            self.add(&cpu_of(what), cpu, "ms", Some(Goal::AtMost(most_cpu)), "for each");
        }
    }

    pub fn print(&self) {
        println!("{:<56} {:>12} {:<9} {:>12}  ", "what", "measured", "", "must reach");
        for row in &self.0 {
            let (goal, mark) = match row.goal {
                None => (String::new(), ""),
                Some(g @ (Goal::AtLeast(v) | Goal::AtMost(v))) => {
                    (number(v), if g.reached(row.value) { "yes" } else { "NO" })
                }
            };
            println!("{:<56} {:>12} {:<9} {goal:>12}  {mark:<4} {}", row.what, number(row.value), row.unit, row.note);
        }
    }

    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let rows: Vec<_> =
            self.0.iter().map(|r| json!({"what": r.what, "value": r.value, "unit": r.unit, "note": r.note})).collect();
        std::fs::write(path, format!("{:#}\n", json!(rows))).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The row of what a row costs the server.
fn cpu_of(what: &str) -> String {
    let short = what.split([',', '(']).next().unwrap_or(what).trim();
    format!("{short}: CPU in the server")
}

/// A number with as many digits as say something.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
