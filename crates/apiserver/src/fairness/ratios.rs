//! A number beside its limit, as a histogram over time: each value weighs as many nanoseconds as it lasted.
//!
//! Upstream counterpart: apiserver/pkg/util/flowcontrol/metrics, timing_ratio_histogram.go.

use std::fmt::Write as _;

/// The upper bounds of a level's demand, as upstream has them.
pub const DEMAND: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];
/// Of its seats in use.
pub const SEATS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
/// Of its requests.
pub const REQUESTS: &[f64] = &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
/// Of all requests that read, or write.
pub const ALL: &[f64] = &[0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

pub struct Ratios {
    bounds: &'static [f64],
    /// The nanoseconds in each bucket; those above all are last.
    buckets: Vec<u64>,
    sum: f64,
    now: f64,
}

impl Ratios {
    pub fn new(bounds: &'static [f64]) -> Self {
        Ratios { bounds, buckets: vec![0; bounds.len() + 1], sum: 0.0, now: 0.0 }
    }

    /// Notes that the ratio was as it was for `seconds`, and is another one now.
    pub fn set(&mut self, seconds: f64, ratio: f64) {
        let nanoseconds = (seconds * 1e9).round();
        let bucket = self.bounds.iter().position(|most| self.now <= *most).unwrap_or(self.bounds.len());
        self.buckets[bucket] += nanoseconds as u64;
        self.sum += self.now * nanoseconds;
        self.now = ratio;
    }

    /// The lines of a metric.
    pub fn render(&self, name: &str, labels: &str) -> String {
        let (mut below, mut text) = (0, String::new());
        for (count, most) in self.buckets.iter().zip(self.bounds) {
            below += count;
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{most}\"}} {below}");
        }
        let all = below + self.buckets[self.bounds.len()];
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {all}");
        let _ = writeln!(text, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {all}", self.sum);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_weighs_as_long_as_it_lasts() {
        let mut ratios = Ratios::new(DEMAND);
        ratios.set(1.0, 0.5);
        ratios.set(2.0, 8.0);
        ratios.set(0.5, 0.0);
        let page = ratios.render("apiserver_flowcontrol_demand_seats", "priority_level=\"a\"");
        for line in [
            "_bucket{priority_level=\"a\",le=\"0.2\"} 1000000000",
            "_bucket{priority_level=\"a\",le=\"0.6\"} 3000000000",
            "_bucket{priority_level=\"a\",le=\"1\"} 3000000000",
            "_bucket{priority_level=\"a\",le=\"6\"} 3000000000",
            "_bucket{priority_level=\"a\",le=\"+Inf\"} 3500000000",
            "_sum{priority_level=\"a\"} 5000000000",
            "_count{priority_level=\"a\"} 3500000000",
        ] {
            let line = format!("apiserver_flowcontrol_demand_seats{line}");
            assert!(page.lines().any(|one| one == line), "{line} in {page}");
        }
    }
}
