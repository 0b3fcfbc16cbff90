//! The metrics of components, under upstream's names, in Prometheus' text form.
//!
//! A [`Metric`] is declared once, as a constant: its name, what it is about, and its sort. [`Metrics`] holds the series that came to
//! be, each a [`Series`] that can be kept and counted with without looking it up again. Labels come from what this program knows; where
//! an administrator's or a user's name is among them, the bound on series keeps the page finite.
//! Upstream counterpart: k8s.io/component-base/metrics.

pub mod build;
pub mod process;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use api::rules::metrics_text::escaped;
use parking_lot::RwLock;

/// The series of one metric. What is more is counted nowhere.
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

impl Metric {
    pub const fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric { name, help, sort: Sort::Counter }
    }

    pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric { name, help, sort: Sort::Gauge }
    }

    pub const fn histogram(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Metric {
        Metric { name, help, sort: Sort::Histogram(bounds) }
    }

    /// The lines that announce it.
    fn announce(&self, page: &mut String) {
        let sort = match self.sort {
            Sort::Counter => "counter",
            Sort::Gauge => "gauge",
            Sort::Histogram(_) => "histogram",
        };
        let _ = writeln!(page, "# HELP {} {}\n# TYPE {} {sort}", self.name, self.help.replace('\n', " "), self.name);
    }
}

/// The bounds that histograms have where nobody chose others.
pub const USUAL: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The bounds of decisions that take milliseconds, in seconds: each is twice the one before.
pub const DOUBLED: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// The bounds of requests to the API server and to its store, in seconds.
pub const REQUESTS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// The bounds of operations on volumes, in seconds.
pub const STORAGE: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// The numbers of one metric under certain labels.
#[derive(Debug)]
pub struct Series {
    bounds: &'static [f64],
    /// The count of a counter and of a histogram.
    count: AtomicU64,
    /// The value of a gauge and the sum of a histogram: the bits of an `f64`.
    value: AtomicU64,
    buckets: Box<[AtomicU64]>,
}

impl Series {
    fn of(metric: &Metric) -> Series {
        let bounds = if let Sort::Histogram(bounds) = metric.sort { bounds } else { &[] };
        let buckets = bounds.iter().map(|_| AtomicU64::new(0)).collect();
        Series { bounds, count: AtomicU64::new(0), value: AtomicU64::new(0f64.to_bits()), buckets }
    }

    /// Counts one.
    pub fn count(&self) {
        self.count_more(1);
    }

    pub fn count_more(&self, more: u64) {
        self.count.fetch_add(more, Ordering::Relaxed);
    }

    /// Brings a counter up to what was counted elsewhere.
    pub fn reach(&self, count: u64) {
        self.count.fetch_max(count, Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, value: f64) {
        self.value.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Moves a gauge.
    pub fn shift(&self, by: f64) {
        let _ = self
            .value
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| Some((f64::from_bits(bits) + by).to_bits()));
    }

    /// Counts a value in a histogram.
    pub fn observe(&self, value: f64) {
        self.observe_more(value, 1);
    }

    /// Counts a value in a histogram as often as it came.
    pub fn observe_more(&self, value: f64, times: u64) {
        if let Some(at) = self.bounds.iter().position(|bound| value <= *bound) {
            self.buckets[at].fetch_add(times, Ordering::Relaxed);
        }
        self.shift(value * times as f64);
        self.count_more(times);
    }

    fn write(&self, page: &mut String, metric: &Metric, labels: &str) {
        let name = metric.name;
        let of = |suffix: &str, labels: &str| {
            if labels.is_empty() { format!("{name}{suffix}") } else { format!("{name}{suffix}{{{labels}}}") }
        };
        let value = number(f64::from_bits(self.value.load(Ordering::Relaxed)));
        match metric.sort {
            Sort::Counter => {
                let _ = writeln!(page, "{} {}", of("", labels), self.count.load(Ordering::Relaxed));
            }
            Sort::Gauge => {
                let _ = writeln!(page, "{} {value}", of("", labels));
            }
            Sort::Histogram(bounds) => {
                // The buckets are read before the count, so that none is larger.
                let mut below = 0;
                let comma = if labels.is_empty() { "" } else { "," };
                for (bound, bucket) in bounds.iter().zip(&self.buckets) {
                    below += bucket.load(Ordering::Relaxed);
                    let labels = format!("{labels}{comma}le=\"{}\"", number(*bound));
                    let _ = writeln!(page, "{} {below}", of("_bucket", &labels));
                }
                let count = self.count.load(Ordering::Relaxed).max(below);
                let _ = writeln!(page, "{} {count}", of("_bucket", &format!("{labels}{comma}le=\"+Inf\"")));
                let _ = writeln!(page, "{} {value}\n{} {count}", of("_sum", labels), of("_count", labels));
            }
        }
    }
}

/// A number as Go's clients of Prometheus write it, by which series of both are one.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    // Nothing is below zero and zero.
    let value = value + 0.0;
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{value}")
}

/// Labels as a page has them: `name="value",…`.
pub fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{name}=\"{}\"", escaped(value));
    }
    text
}

/// The lines of a metric whose numbers are found out when the page is asked for.
pub fn told(metric: &Metric, series: impl IntoIterator<Item = (String, f64)>) -> String {
    let mut page = String::new();
    for (labels, value) in series {
        if page.is_empty() {
            metric.announce(&mut page);
        }
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(page, "{}{braces} {}", metric.name, number(value));
    }
    page
}

/// The series of a metric for each value of its one label, where these are known beforehand.
pub struct Each<const N: usize>([OnceLock<Arc<Series>>; N]);

impl<const N: usize> Default for Each<N> {
    fn default() -> Self {
        Each(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl<const N: usize> Each<N> {
    /// The series of the value at a place.
    pub fn at(&self, place: usize, of: impl FnOnce() -> Arc<Series>) -> &Series {
        self.0[place].get_or_init(of)
    }
}

/// Whether a label is among those of a series. Values are escaped: none of them holds what looks like a label.
fn has(labels: &str, label: &str) -> bool {
    labels.match_indices(label).any(|(at, _)| {
        let (before, after) = (&labels[..at], &labels[at + label.len()..]);
        (before.is_empty() || before.ends_with(',')) && (after.is_empty() || after.starts_with(','))
    })
}

struct Family {
    metric: &'static Metric,
    series: BTreeMap<String, Arc<Series>>,
}

/// The series that there are.
pub struct Metrics(RwLock<BTreeMap<&'static str, Family>>);

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    pub const fn new() -> Self {
        Metrics(RwLock::new(BTreeMap::new()))
    }

    /// The series of a metric with these labels, made if there is none.
    pub fn series(&self, metric: &'static Metric, pairs: &[(&str, &str)]) -> Arc<Series> {
        let labels = labels(pairs);
        if let Some(known) = self.0.read().get(metric.name).and_then(|family| family.series.get(&labels)) {
            return known.clone();
        }
        let mut all = self.0.write();
        let family = all.entry(metric.name).or_insert_with(|| Family { metric, series: BTreeMap::new() });
        if family.series.len() >= SERIES && !family.series.contains_key(&labels) {
            return Arc::new(Series::of(metric));
        }
        family.series.entry(labels).or_insert_with(|| Arc::new(Series::of(metric))).clone()
    }

    pub fn count(&self, metric: &'static Metric, pairs: &[(&str, &str)]) {
        self.series(metric, pairs).count();
    }

    pub fn set(&self, metric: &'static Metric, pairs: &[(&str, &str)], value: f64) {
        self.series(metric, pairs).set(value);
    }

    pub fn observe(&self, metric: &'static Metric, pairs: &[(&str, &str)], value: f64) {
        self.series(metric, pairs).observe(value);
    }

    /// Sets a gauge of which there is one series for the first of its labels.
    pub fn replace(&self, metric: &'static Metric, pairs: &[(&str, &str)]) {
        let kept = labels(&pairs[..1]);
        if let Some(family) = self.0.write().get_mut(metric.name) {
            family.series.retain(|known, _| !known.starts_with(&kept));
        }
        self.set(metric, pairs, 1.0);
    }

    /// Drops the series of a metric that have all these labels. One that is kept somewhere counts on, and is shown no more.
    pub fn forget(&self, metric: &'static Metric, pairs: &[(&str, &str)]) {
        let gone: Vec<String> = pairs.iter().map(|pair| labels(&[*pair])).collect();
        if let Some(family) = self.0.write().get_mut(metric.name) {
            family.series.retain(|known, _| !gone.iter().all(|label| has(known, label)));
        }
    }

    /// The lines of the page.
    pub fn render(&self) -> String {
        let mut page = String::new();
        for Family { metric, series } in self.0.read().values() {
            metric.announce(&mut page);
            series.iter().for_each(|(labels, series)| series.write(&mut page, metric, labels));
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ASKED: Metric = Metric::counter("asked_total", "Asked.");
    static TOOK: Metric = Metric::histogram("took_seconds", "Took.", &[0.5, 1.0]);
    static SEEN: Metric = Metric::gauge("seen_info", "Seen.");

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
    }

    #[test]
    fn a_series_that_is_kept_counts_on() {
        let metrics = Metrics::default();
        let open = metrics.series(&SEEN, &[]);
        open.shift(2.0);
        open.shift(-1.0);
        assert!(metrics.render().ends_with("seen_info 1\n"), "{}", metrics.render());
        metrics.observe(&TOOK, &[], 0.6);
        assert!(metrics.render().contains("took_seconds_bucket{le=\"1\"} 1\n"), "{}", metrics.render());
    }

    #[test]
    fn series_are_forgotten_by_their_labels() {
        let left = |pairs: &[(&str, &str)]| {
            let metrics = Metrics::default();
            metrics.count(&ASKED, &[("uid", "1"), ("of", "a")]);
            metrics.count(&ASKED, &[("uid", "12"), ("of", "1")]);
            metrics.count(&ASKED, &[("my_uid", "1"), ("of", "b,uid=\"1\"")]);
            metrics.forget(&ASKED, pairs);
            metrics.render().lines().filter(|line| line.starts_with("asked_total")).count()
        };
        assert_eq!(left(&[("uid", "1")]), 2);
        assert_eq!(left(&[("of", "a"), ("uid", "1")]), 2);
        assert_eq!(left(&[("of", "1"), ("uid", "1")]), 3);
        assert_eq!(left(&[("uid", "2")]), 3);
        assert_eq!(left(&[]), 0);
    }

    #[test]
    fn the_series_of_a_metric_are_bounded() {
        let metrics = Metrics::default();
        for n in 0..SERIES + 10 {
            metrics.count(&ASKED, &[("name", &n.to_string())]);
        }
        metrics.count(&ASKED, &[("name", "5")]);
        assert_eq!(metrics.render().lines().count(), SERIES + 2);
        assert!(metrics.render().contains("asked_total{name=\"5\"} 2\n"));
    }

    #[test]
    fn numbers_are_written_as_upstream_writes_them() {
        let check = |value: f64, expected: &str| assert_eq!(number(value), expected);
        check(1.0, "1");
        check(0.0, "0");
        check(-0.0, "0");
        check(0.005, "0.005");
        check(0.00001, "1e-05");
        check(1_000_000.0, "1e+06");
        check(2_592_000.0, "2.592e+06");
        check(31_104_000.0, "3.1104e+07");
        check(100.0, "100");
        check(f64::INFINITY, "+Inf");
    }
}
