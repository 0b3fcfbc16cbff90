//! The metrics of webhooks, under upstream's names.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/metrics.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::rules::metrics_text::escaped;
use clock::Duration;
use parking_lot::Mutex;

use super::super::attributes::Operation;

/// Upper bounds of the latency histogram, in seconds, as upstream has them.
const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Series of each metric: names are those of webhooks that once were configured. Series beyond are not counted.
const SERIES: usize = 10_000;
/// Codes beyond are counted as this one.
const CODE_MAX: u16 = 600;

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

#[derive(Default)]
struct Counted {
    durations: BTreeMap<String, Histogram>,
    requests: BTreeMap<String, u64>,
    rejections: BTreeMap<String, u64>,
    fail_opens: BTreeMap<String, u64>,
    exclusions: BTreeMap<String, u64>,
}

#[derive(Default)]
pub struct Metrics(Mutex<Counted>);

fn at<T: Default>(series: &mut BTreeMap<String, T>, labels: String, count: impl FnOnce(&mut T)) {
    if series.len() < SERIES || series.contains_key(&labels) {
        count(series.entry(labels).or_default());
    }
}

/// How a question ended.
pub(super) struct End {
    pub code: u16,
    /// Upstream's type of the error; empty where there is none.
    pub error: &'static str,
    pub rejected: bool,
}

impl Metrics {
    /// Counts a question that took some time: `sort` is upstream's type.
    pub(super) fn asked(&self, webhook: &str, sort: &str, operation: Operation, took: Duration, end: End) {
        let (name, operation) = (escaped(webhook), operation.name());
        let End { code, error, rejected } = end;
        let code = code.min(CODE_MAX);
        let base = format!("name=\"{name}\",type=\"{sort}\"");
        let about = format!("{base},operation=\"{operation}\"");
        let mut counted = self.0.lock();
        at(&mut counted.durations, format!("{about},rejected=\"{rejected}\""), |histogram| {
            if let Some(bucket) = BUCKETS.iter().position(|bound| took.as_secs_f64() <= *bound) {
                histogram.buckets[bucket] += 1;
            }
            histogram.count += 1;
            histogram.seconds += took.as_secs_f64();
        });
        let request = format!("{about},code=\"{code}\",rejected=\"{rejected}\"");
        at(&mut counted.requests, request, |count| *count += 1);
        if rejected {
            let rejection = format!("{about},error_type=\"{error}\",rejection_code=\"{code}\"");
            at(&mut counted.rejections, rejection, |count| *count += 1);
        } else if !error.is_empty() {
            at(&mut counted.fail_opens, base, |count| *count += 1);
        }
    }

    /// Counts a write that match conditions kept from a webhook.
    pub(super) fn excluded(&self, webhook: &str, sort: &str, operation: Operation) {
        let (name, operation) = (escaped(webhook), operation.name());
        let labels = format!("name=\"{name}\",kind=\"webhook\",type=\"{sort}\",operation=\"{operation}\"");
        at(&mut self.0.lock().exclusions, labels, |count| *count += 1);
    }

    /// The lines of the page.
    pub fn render(&self) -> String {
        const DURATION: &str = "apiserver_admission_webhook_admission_duration_seconds";
        let counted = self.0.lock();
        let mut out = String::new();
        let _ = writeln!(out, "# HELP {DURATION} Admission webhook latency histogram in seconds.");
        let _ = writeln!(out, "# TYPE {DURATION} histogram");
        for (labels, histogram) in &counted.durations {
            let mut sum = 0;
            for (bucket, bound) in histogram.buckets.iter().zip(BUCKETS) {
                sum += bucket;
                let _ = writeln!(out, "{DURATION}_bucket{{{labels},le=\"{bound}\"}} {sum}");
            }
            let _ = writeln!(out, "{DURATION}_bucket{{{labels},le=\"+Inf\"}} {}", histogram.count);
            let _ = writeln!(out, "{DURATION}_sum{{{labels}}} {}", histogram.seconds);
            let _ = writeln!(out, "{DURATION}_count{{{labels}}} {}", histogram.count);
        }
        let counters = [
            ("webhook_request_total", "Admission webhook requests.", &counted.requests),
            ("webhook_rejection_count", "Writes that admission webhooks rejected.", &counted.rejections),
            ("webhook_fail_open_count", "Writes let through although a webhook failed.", &counted.fail_opens),
            (
                "match_condition_exclusions_total",
                "Writes that match conditions kept from webhooks.",
                &counted.exclusions,
            ),
        ];
        for (name, help, series) in counters {
            let name = format!("apiserver_admission_{name}");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
            for (labels, count) in series {
                let _ = writeln!(out, "{name}{{{labels}}} {count}");
            }
        }
        out
    }
}
