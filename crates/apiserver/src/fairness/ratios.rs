//! The demand of a level beside its seats, as a histogram over time: each value weighs as many nanoseconds as it lasted.
//!
//! Upstream counterpart: apiserver/pkg/util/flowcontrol/metrics, timing_ratio_histogram.go.

use std::fmt::Write as _;

/// Upper bounds, as upstream has them.
const BUCKETS: [f64; 12] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

#[derive(Default)]
pub struct Ratios {
    /// The nanoseconds in each bucket; those above all are last.
    buckets: [u64; BUCKETS.len() + 1],
    sum: f64,
    now: f64,
}

impl Ratios {
    /// Notes that the ratio was as it was for `seconds`, and is another one now.
    pub fn set(&mut self, seconds: f64, ratio: f64) {
        let nanoseconds = (seconds * 1e9).round();
        let bucket = BUCKETS.iter().position(|most| self.now <= *most).unwrap_or(BUCKETS.len());
        self.buckets[bucket] += nanoseconds as u64;
        self.sum += self.now * nanoseconds;
        self.now = ratio;
    }

    pub fn render(&self, labels: &str) -> String {
        let (mut below, mut text) = (0, String::new());
        let name = "apiserver_flowcontrol_demand_seats";
        for (count, most) in self.buckets.iter().zip(BUCKETS) {
            below += count;
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{most}\"}} {below}");
        }
        let all = below + self.buckets[BUCKETS.len()];
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {all}");
        let _ = write!(text, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {all}", self.sum);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_weighs_as_long_as_it_lasts() {
        let mut ratios = Ratios::default();
        ratios.set(1.0, 0.5);
        ratios.set(2.0, 8.0);
        ratios.set(0.5, 0.0);
        let page = ratios.render("priority_level=\"a\"");
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
