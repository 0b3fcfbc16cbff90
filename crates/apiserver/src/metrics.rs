//! What the server counts, in Prometheus' text form at `/metrics`.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;

/// Upper bounds of the latency histogram, in seconds, as upstream has them.
const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// The labels of one request series.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Series {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    code: u16,
}

#[derive(Default)]
struct Counter {
    count: AtomicU64,
    microseconds: AtomicU64,
    buckets: [AtomicU64; 24],
}

/// The series with one fingerprint: hardly ever more than one.
type Bucket = Vec<(Series, Arc<Counter>)>;

/// All counters of one server.
#[derive(Default)]
pub struct Metrics {
    requests: RwLock<HashMap<u64, Bucket>>,
    pub long_running: AtomicI64,
    pub watch_events: AtomicU64,
    pub watchers_cut: AtomicU64,
    pub rejected: AtomicU64,
}

fn fingerprint(info: &crate::request::Info, code: u16) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (info.verb, info.group(), info.version(), info.resource(), info.subresource, code).hash(&mut hasher);
    hasher.finish()
}

impl Metrics {
    /// Counts one finished request.
    pub fn finished(&self, info: &crate::request::Info, code: u16, took: Duration) {
        let fingerprint = fingerprint(info, code);
        let matches = |s: &Series| {
            s.verb == info.verb
                && s.code == code
                && s.resource == info.resource()
                && s.subresource == info.subresource
                && s.group == info.group()
                && s.version == info.version()
        };
        let known = self
            .requests
            .read()
            .get(&fingerprint)
            .and_then(|list| list.iter().find(|(s, _)| matches(s)).map(|(_, c)| c.clone()));
        let counter = known.unwrap_or_else(|| {
            let series = Series {
                verb: info.verb,
                group: info.group().to_owned(),
                version: info.version().to_owned(),
                resource: info.resource().to_owned(),
                subresource: info.subresource.to_owned(),
                code,
            };
            let counter = Arc::new(Counter::default());
            let mut requests = self.requests.write();
            requests.entry(fingerprint).or_default().push((series, counter.clone()));
            counter
        });
        counter.count.fetch_add(1, Ordering::Relaxed);
        counter.microseconds.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        let bucket = BUCKETS.iter().position(|b| took.as_secs_f64() <= *b).unwrap_or(BUCKETS.len());
        counter.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// The page at `/metrics`; the feed counts for itself.
    pub fn render(&self, feed: &Metrics) -> String {
        let mut out = String::new();
        let requests = self.requests.read();
        let mut series: Vec<_> = requests.values().flatten().collect();
        series.sort_by_key(|(s, _)| (s.group.clone(), s.resource.clone(), s.subresource.clone(), s.verb, s.code));
        out.push_str("# HELP apiserver_request_total Counter of apiserver requests by verb, group, version, resource and code.\n# TYPE apiserver_request_total counter\n");
        for (s, counter) in &series {
            let count = counter.count.load(Ordering::Relaxed);
            let _ = writeln!(out, "apiserver_request_total{{{},code=\"{}\"}} {count}", labels(s), s.code);
        }
        out.push_str("# HELP apiserver_request_duration_seconds Response latency distribution in seconds.\n# TYPE apiserver_request_duration_seconds histogram\n");
        for (s, counter) in &series {
            let labels = format!("{},code=\"{}\"", labels(s), s.code);
            let mut sum = 0;
            for (bucket, bound) in counter.buckets.iter().zip(BUCKETS) {
                sum += bucket.load(Ordering::Relaxed);
                let _ = writeln!(out, "apiserver_request_duration_seconds_bucket{{{labels},le=\"{bound}\"}} {sum}");
            }
            let count = counter.count.load(Ordering::Relaxed);
            let seconds = counter.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
            let _ = writeln!(out, "apiserver_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "apiserver_request_duration_seconds_sum{{{labels}}} {seconds}");
            let _ = writeln!(out, "apiserver_request_duration_seconds_count{{{labels}}} {count}");
        }
        let gauges = [
            (
                "apiserver_longrunning_requests",
                "gauge",
                "Requests open without a deadline, such as watches.",
                self.long_running.load(Ordering::Relaxed).max(0) as u64,
            ),
            (
                "apiserver_watch_events_total",
                "counter",
                "Events put into the queues of watchers.",
                feed.watch_events.load(Ordering::Relaxed),
            ),
            (
                "apiserver_terminated_watchers_total",
                "counter",
                "Watchers cut off because they did not keep up.",
                feed.watchers_cut.load(Ordering::Relaxed),
            ),
            (
                "apiserver_rejected_requests_total",
                "counter",
                "Requests answered 429 because too many were in flight.",
                self.rejected.load(Ordering::Relaxed),
            ),
        ];
        for (name, sort, help, value) in gauges {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {sort}\n{name} {value}");
        }
        out
    }
}

fn labels(s: &Series) -> String {
    let verb = s.verb.to_uppercase();
    format!(
        "verb=\"{verb}\",group=\"{}\",version=\"{}\",resource=\"{}\",subresource=\"{}\"",
        s.group, s.version, s.resource, s.subresource
    )
}
