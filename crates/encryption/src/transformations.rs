//! How often values are written and read with each provider, and how long that takes, under upstream's names.
//! Upstream counterpart: apiserver/pkg/storage/value, `metrics.go`.

use std::sync::Arc;

use clock::Duration;
use meter::{Metric, Metrics, Series};

use crate::{cipher::Sort, kms, provider::ENCRYPTED, way::Way};

static COUNT: Metric =
    Metric::counter("apiserver_storage_transformation_operations_total", "[ALPHA] Total number of transformations.");
static SECONDS: Metric = Metric::histogram(
    "apiserver_storage_transformation_duration_seconds",
    "[ALPHA] Latencies in seconds of value transformation operations.",
    &BOUNDS,
);

/// Five millionths of a second, doubled for each further bucket.
const BOUNDS: [f64; 25] = {
    let (mut bounds, mut at, mut bound) = ([0.0; 25], 0, 5e-6);
    while at < bounds.len() {
        bounds[at] = bound;
        bound *= 2.0;
        at += 1;
    }
    bounds
};

/// The status of what failed in this process.
const FAILED: &str = "unknown-non-grpc";

/// The counters of one provider, and of its key where it names one.
struct Used {
    resource: String,
    way: Way,
    prefix: Vec<u8>,
    series: Vec<[Arc<Series>; 2]>,
}

/// Counts for whoever reads and writes one value after another: neighbours are mostly of one provider.
#[derive(Default)]
pub struct Counter {
    last: Option<Used>,
}

impl Counter {
    /// A value of a resource became what is stored, or was it.
    pub fn done(&mut self, all: &Metrics, resource: &str, way: Way, stored: &[u8], took: Duration) {
        let (provider, key) = prefixes(stored);
        let length = provider.len() + key.map_or(0, <[u8]>::len);
        let fits = |used: &Used| {
            used.way == way && used.resource == resource && used.prefix == stored.get(..length).unwrap_or(stored)
        };
        if !self.last.as_ref().is_some_and(fits) {
            let of = |prefix: &[u8]| {
                let prefix = String::from_utf8_lossy(prefix);
                let labels = [
                    ("resource", resource),
                    ("status", "OK"),
                    ("transformation_type", way.label()),
                    ("transformer_prefix", &*prefix),
                ];
                [all.series(&COUNT, &labels), all.series(&SECONDS, &[labels[0], labels[2], labels[3]])]
            };
            let series = [Some(provider), key].into_iter().flatten().map(of).collect();
            let prefix = stored.get(..length).unwrap_or(stored).to_vec();
            self.last = Some(Used { resource: resource.to_owned(), way, prefix, series });
        }
        for [count, seconds] in self.last.iter().flat_map(|used| &used.series) {
            count.count();
            seconds.observe(took.as_secs_f64());
        }
    }
}

/// A value could not be written, or read. `stored` is empty where no provider has its prefix.
pub fn failed(all: &Metrics, resource: &str, way: Way, stored: &[u8]) {
    let prefix = String::from_utf8_lossy(prefixes(stored).0);
    let prefix = if stored.is_empty() { "unknown" } else { &*prefix };
    let labels = [
        ("resource", resource),
        ("status", FAILED),
        ("transformation_type", way.label()),
        ("transformer_prefix", prefix),
    ];
    all.count(&COUNT, &labels);
}

/// The prefix of the provider that wrote a value, and of its key. A plugin's name is part of its prefix; a value that is stored
/// as it is has an empty one.
fn prefixes(stored: &[u8]) -> (&[u8], Option<&[u8]>) {
    if !stored.starts_with(ENCRYPTED) {
        return (b"", None);
    }
    let named = |length: usize| stored[length..].iter().position(|byte| *byte == b':').map(|at| length + at + 1);
    if stored.starts_with(kms::PREFIX.as_bytes()) {
        return (&stored[..named(kms::PREFIX.len()).unwrap_or(stored.len())], None);
    }
    let sort = Sort::ALL.into_iter().find(|sort| stored.starts_with(sort.prefix().as_bytes()));
    let Some(length) = sort.map(|sort| sort.prefix().len()) else { return (ENCRYPTED, None) };
    (&stored[..length], named(length).map(|end| &stored[length..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_provider_and_its_key() {
        let check = |stored: &str, provider: &str, key: Option<&str>| {
            let expected = (provider.as_bytes(), key.map(str::as_bytes));
            assert_eq!(prefixes(stored.as_bytes()), expected, "{stored}");
        };
        check("k8s:enc:aescbc:v1:key1:x:y", "k8s:enc:aescbc:v1:", Some("key1:"));
        check("k8s:enc:secretbox:v1:k:", "k8s:enc:secretbox:v1:", Some("k:"));
        check("k8s:enc:kms:v2:plugin:x:y", "k8s:enc:kms:v2:plugin:", None);
        check("k8s:enc:other:v1:x", "k8s:enc:", None);
        check("{\"kind\"", "", None);
        check("", "", None);
    }

    #[test]
    fn what_is_counted_has_upstreams_labels() {
        let (all, mut counter) = (Metrics::default(), Counter::default());
        let took = Duration::from_micros(7);
        for stored in [&b"k8s:enc:aesgcm:v1:a:1"[..], b"k8s:enc:aesgcm:v1:a:2", b"k8s:enc:aesgcm:v1:b:3", b"plain"] {
            counter.done(&all, "secrets", Way::FromStorage, stored, took);
        }
        counter.done(&all, "secrets", Way::ToStorage, b"k8s:enc:aesgcm:v1:a:1", took);
        failed(&all, "configmaps", Way::FromStorage, b"");
        failed(&all, "secrets", Way::ToStorage, b"k8s:enc:kms:v2:p:");
        let page = all.render();
        for (resource, status, way, prefix, count) in [
            ("secrets", "OK", "from_storage", "k8s:enc:aesgcm:v1:", 3),
            ("secrets", "OK", "from_storage", "a:", 2),
            ("secrets", "OK", "from_storage", "b:", 1),
            ("secrets", "OK", "from_storage", "", 1),
            ("secrets", "OK", "to_storage", "k8s:enc:aesgcm:v1:", 1),
            ("configmaps", FAILED, "from_storage", "unknown", 1),
            ("secrets", FAILED, "to_storage", "k8s:enc:kms:v2:p:", 1),
        ] {
            let line = format!(
                "apiserver_storage_transformation_operations_total{{resource=\"{resource}\",status=\"{status}\",\
                 transformation_type=\"{way}\",transformer_prefix=\"{prefix}\"}} {count}\n"
            );
            assert!(page.contains(&line), "{line} in {page}");
        }
        let bucket = "duration_seconds_bucket{resource=\"secrets\",transformation_type=\"from_storage\",\
                      transformer_prefix=\"b:\",le=\"1e-05\"} 1\n";
        assert!(page.contains(bucket), "{page}");
    }
}
