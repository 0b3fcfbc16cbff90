//! The figures of plugins, under upstream's names.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use api::rules::metrics_text::escaped;
use clock::{Duration, Instant};
use parking_lot::Mutex;

use crate::{kms::Failure, way::Way};

/// Upper bounds of the histogram of calls, in seconds: 0.0001, doubled nineteen times.
const BUCKETS: usize = 20;
const FIRST_BOUND: f64 = 0.0001;
/// The number of a plugin's keys that have series; a plugin that changes its key at each question makes no more.
const KEYS: usize = 100;

/// How often a key was used, and when the last time.
#[derive(Default)]
struct Used {
    count: AtomicU64,
    second: AtomicI64,
}

impl Used {
    fn now(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.second.store(clock::now().as_second(), Ordering::Relaxed);
    }
}

#[derive(Default)]
struct OfKey {
    written: Used,
    read: Used,
    status: Used,
}

#[derive(Default)]
struct Calls {
    buckets: [u64; BUCKETS],
    count: u64,
    seconds: f64,
}

/// The figures of one plugin.
#[derive(Default)]
pub struct Figures {
    /// By the hash of the key's id.
    keys: Mutex<BTreeMap<String, OfKey>>,
    /// By the method and the code of the answer.
    calls: Mutex<BTreeMap<(&'static str, String), Calls>>,
    invalid_ids: Mutex<BTreeMap<&'static str, u64>>,
}

impl Figures {
    /// Counts a call with the time that it took.
    pub async fn call<T>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let begin = Instant::now();
        let answer = call.await;
        let code = answer.as_ref().err().map_or("OK", |failure| &failure.code);
        self.took(method, code, begin.elapsed());
        answer
    }

    fn took(&self, method: &'static str, code: &str, took: Duration) {
        let mut calls = self.calls.lock();
        let calls = calls.entry((method, code.to_owned())).or_default();
        let seconds = took.as_secs_f64();
        if let Some(bucket) = bounds().position(|bound| seconds <= bound) {
            calls.buckets[bucket] += 1;
        }
        calls.count += 1;
        calls.seconds += seconds;
    }

    fn of_key(&self, hash: &str, count: impl FnOnce(&OfKey)) {
        let mut keys = self.keys.lock();
        if !keys.contains_key(hash) && keys.len() < KEYS {
            keys.insert(hash.to_owned(), OfKey::default());
        }
        if let Some(key) = keys.get(hash) {
            count(key);
        }
    }

    /// A value was written or read with a key.
    pub fn used(&self, hash: &str, way: Way) {
        self.of_key(hash, |key| match way {
            Way::ToStorage => key.written.now(),
            Way::FromStorage => key.read.now(),
        });
    }

    /// The plugin said that this is its key.
    pub fn told(&self, hash: &str) {
        self.of_key(hash, |key| key.status.now());
    }

    pub fn invalid_id(&self, error: &'static str) {
        *self.invalid_ids.lock().entry(error).or_default() += 1;
    }

    /// Adds the plugin's lines to those of the others, metric by metric.
    pub fn write(&self, provider: &str, cached: usize, out: &mut Text) {
        let provider = format!("provider_name=\"{}\"", escaped(provider));
        for (hash, key) in self.keys.lock().iter() {
            for (way, used) in [("from_storage", &key.read), ("to_storage", &key.written)] {
                let labels = format!("transformation_type=\"{way}\",{provider},{}", out.key(hash));
                out.used(Metric::KeyTotal, Metric::KeySecond, &labels, used);
            }
            out.second(Metric::StatusSecond, &format!("{provider},{}", out.key(hash)), &key.status);
        }
        for (error, count) in self.invalid_ids.lock().iter() {
            out.line(Metric::InvalidIds, "", &format!("{provider},error=\"{error}\""), count);
        }
        out.line(Metric::Cached, "", &provider, cached);
        for ((method, code), calls) in self.calls.lock().iter() {
            let code = escaped(code);
            let labels = format!("{provider},method_name=\"{method}\",grpc_status_code=\"{code}\"");
            let mut sum = 0;
            for (count, bound) in calls.buckets.iter().zip(bounds()) {
                sum += count;
                out.line(Metric::Calls, "_bucket", &format!("{labels},le=\"{bound}\""), sum);
            }
            out.line(Metric::Calls, "_bucket", &format!("{labels},le=\"+Inf\""), calls.count);
            out.line(Metric::Calls, "_sum", &labels, calls.seconds);
            out.line(Metric::Calls, "_count", &labels, calls.count);
        }
    }
}

fn bounds() -> impl Iterator<Item = f64> {
    (0..BUCKETS).map(|power| FIRST_BOUND * f64::from(1 << power))
}

#[derive(Debug, Clone, Copy)]
enum Metric {
    KeyTotal,
    KeySecond,
    StatusSecond,
    InvalidIds,
    Cached,
    Calls,
}

/// Name, type and help of each metric.
const METRICS: [(&str, &str, &str); 6] = [
    ("key_id_hash_total", "counter", "Values written and read with each key of a KMS plugin."),
    ("key_id_hash_last_timestamp_seconds", "gauge", "When a key of a KMS plugin was used last."),
    ("key_id_hash_status_last_timestamp_seconds", "gauge", "When a KMS plugin named the key as its own last."),
    ("invalid_key_id_from_status_total", "counter", "Answers of a KMS plugin with an id of a key that is none."),
    ("dek_source_cache_size", "gauge", "Keys and seeds that a KMS plugin decrypted and this server remembers."),
    ("kms_operations_latency_seconds", "histogram", "Time that a KMS plugin takes to answer."),
];

/// The lines of all plugins, those of one metric together.
pub struct Text {
    lines: [String; METRICS.len()],
    /// The hash of this server's identity.
    server: String,
}

impl Text {
    pub fn of(server: &str) -> Self {
        Text { lines: Default::default(), server: server.to_owned() }
    }

    /// The labels of a key, as this server knows it.
    fn key(&self, hash: &str) -> String {
        format!("key_id_hash=\"{hash}\",apiserver_id_hash=\"{}\"", self.server)
    }

    fn line(&mut self, metric: Metric, suffix: &str, labels: &str, value: impl std::fmt::Display) {
        let (name, ..) = METRICS[metric as usize];
        let _ =
            writeln!(self.lines[metric as usize], "apiserver_envelope_encryption_{name}{suffix}{{{labels}}} {value}");
    }

    fn used(&mut self, total: Metric, second: Metric, labels: &str, used: &Used) {
        if used.count.load(Ordering::Relaxed) > 0 {
            self.line(total, "", labels, used.count.load(Ordering::Relaxed));
            self.second(second, labels, used);
        }
    }

    fn second(&mut self, metric: Metric, labels: &str, used: &Used) {
        if used.count.load(Ordering::Relaxed) > 0 {
            self.line(metric, "", labels, used.second.load(Ordering::Relaxed));
        }
    }

    /// The page with the head of each metric that has lines.
    pub fn page(&self) -> String {
        let metrics = METRICS.iter().zip(&self.lines).filter(|(_, lines)| !lines.is_empty());
        metrics
            .map(|((name, sort, help), lines)| {
                format!(
                    "# HELP apiserver_envelope_encryption_{name} {help}\n# TYPE apiserver_envelope_encryption_{name} \
                     {sort}\n{lines}"
                )
            })
            .collect()
    }
}
