//! What is counted of authentication and authorization, under upstream's names. A series is one metric with its labels; names in
//! labels are those that an administrator configured, and there is a bound on how many there are all the same.

use std::{collections::BTreeMap, fmt::Write as _};

use api::rules::metrics_text::escaped;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// Further series are not counted.
const SERIES: usize = 10_000;

/// One metric, as the page tells of it.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub help: &'static str,
    pub sort: Sort,
}

#[derive(Debug, Clone, Copy)]
pub enum Sort {
    Counter,
    Gauge,
    /// The upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// The bounds that histograms have where nobody chose others.
pub const USUAL: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Default)]
struct Series {
    /// The count of a counter and a histogram, the value of a gauge.
    value: f64,
    buckets: Vec<u64>,
    sum: f64,
}

type All = BTreeMap<&'static str, (&'static Metric, BTreeMap<String, Series>)>;

/// The series that there are.
#[derive(Default)]
pub struct Metrics(Mutex<All>);

fn labels(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    pairs.join(",")
}

impl Metrics {
    fn at(&self, metric: &'static Metric, labels: String, change: impl FnOnce(&mut Series)) {
        let mut all = self.0.lock();
        let (_, series) = all.entry(metric.name).or_insert_with(|| (metric, BTreeMap::new()));
        if series.len() < SERIES || series.contains_key(&labels) {
            change(series.entry(labels).or_default());
        }
    }

    pub fn count(&self, metric: &'static Metric, pairs: &[(&str, &str)]) {
        self.at(metric, labels(pairs), |series| series.value += 1.0);
    }

    pub fn set(&self, metric: &'static Metric, pairs: &[(&str, &str)], value: f64) {
        self.at(metric, labels(pairs), |series| series.value = value);
    }

    /// Sets a gauge of which there is one series for the first of its labels.
    pub fn replace(&self, metric: &'static Metric, pairs: &[(&str, &str)]) {
        let kept = labels(&pairs[..1]);
        if let Some((_, series)) = self.0.lock().get_mut(metric.name) {
            series.retain(|known, _| !known.starts_with(&kept));
        }
        self.set(metric, pairs, 1.0);
    }

    pub fn observe(&self, metric: &'static Metric, pairs: &[(&str, &str)], seconds: f64) {
        let Sort::Histogram(bounds) = metric.sort else { return };
        self.at(metric, labels(pairs), |series| {
            series.buckets.resize(bounds.len(), 0);
            if let Some(at) = bounds.iter().position(|bound| seconds <= *bound) {
                series.buckets[at] += 1;
            }
            series.value += 1.0;
            series.sum += seconds;
        });
    }

    /// The lines of the page.
    pub fn render(&self) -> String {
        let mut out = String::new();
        for (name, (metric, series)) in &*self.0.lock() {
            let sort = match metric.sort {
                Sort::Counter => "counter",
                Sort::Gauge => "gauge",
                Sort::Histogram(_) => "histogram",
            };
            let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {sort}", metric.help);
            for (labels, series) in series {
                let Sort::Histogram(bounds) = metric.sort else {
                    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
                    let _ = writeln!(out, "{name}{labels} {}", series.value);
                    continue;
                };
                let mut below = 0;
                for (bound, count) in bounds.iter().zip(&series.buckets) {
                    below += count;
                    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
                }
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", series.value);
                let _ =
                    writeln!(out, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {}", series.sum, series.value);
            }
        }
        out
    }
}

/// How metrics name what they do not show.
pub fn hash(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let digest = Sha256::digest(text);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    static ASKED: Metric = Metric { name: "asked_total", help: "Asked.", sort: Sort::Counter };
    static TOOK: Metric = Metric { name: "took_seconds", help: "Took.", sort: Sort::Histogram(&[0.5, 1.0]) };
    static SEEN: Metric = Metric { name: "seen_info", help: "Seen.", sort: Sort::Gauge };

    #[test]
    fn the_page_shows_what_was_counted() {
        let metrics = Metrics::default();
        metrics.count(&ASKED, &[("name", "a\"b"), ("result", "success")]);
        metrics.count(&ASKED, &[("name", "a\"b"), ("result", "success")]);
        for seconds in [0.2, 0.7, 3.0] {
            metrics.observe(&TOOK, &[("name", "x")], seconds);
        }
        metrics.replace(&SEEN, &[("id", "1"), ("hash", "a")]);
        metrics.replace(&SEEN, &[("id", "1"), ("hash", "b")]);
        let expected = "# HELP asked_total Asked.\n# TYPE asked_total counter\n\
            asked_total{name=\"a\\\"b\",result=\"success\"} 2\n\
            # HELP seen_info Seen.\n# TYPE seen_info gauge\nseen_info{id=\"1\",hash=\"b\"} 1\n\
            # HELP took_seconds Took.\n# TYPE took_seconds histogram\n\
            took_seconds_bucket{name=\"x\",le=\"0.5\"} 1\ntook_seconds_bucket{name=\"x\",le=\"1\"} 2\n\
            took_seconds_bucket{name=\"x\",le=\"+Inf\"} 3\ntook_seconds_sum{name=\"x\"} 3.9\n\
            took_seconds_count{name=\"x\"} 3\n";
        assert_eq!(metrics.render(), expected);
        let known = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((hash("abc").as_str(), hash("").as_str()), (known, ""));
    }
}
