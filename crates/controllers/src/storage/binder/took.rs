//! How long volumes take to be made for claims and to be deleted after them, whoever does it, under upstream's name.
//! Upstream counterpart: OperationStartTimeCache of pkg/controller/volume/persistentvolume/metrics.

use std::collections::HashMap;

use client::Key;
use clock::Timestamp;
use meter::{Metric, Metrics, STORAGE};
use parking_lot::Mutex;

static TOTAL: Metric = Metric::histogram(
    "volume_operation_total_seconds",
    "[ALPHA] Storage operation end to end duration in seconds",
    STORAGE,
);

static METRICS: Metrics = Metrics::new();

/// The operations of one sort that are under way, by claim or volume: for whom, and since when.
pub struct Took {
    operation: &'static str,
    begun: Mutex<HashMap<Key, (String, Timestamp)>>,
}

impl Took {
    pub fn new(operation: &'static str) -> Took {
        Took { operation, begun: Mutex::default() }
    }

    /// An operation of a provisioner begins, unless it has already.
    pub fn begin(&self, key: Key, provisioner: &str, now: Timestamp) {
        self.begun.lock().entry(key).or_insert_with(|| (provisioner.to_owned(), now));
    }

    /// It is over. One that nobody saw begin is not counted.
    pub fn end(&self, key: &Key, now: Timestamp) {
        let Some((provisioner, since)) = self.begun.lock().remove(key) else { return };
        let seconds = now.duration_since(since).as_secs_f64().max(0.0);
        METRICS.observe(&TOTAL, &[("operation_name", self.operation), ("plugin_name", &*provisioner)], seconds);
    }

    /// It is not wanted any more.
    pub fn forget(&self, key: &Key) {
        self.begun.lock().remove(key);
    }
}

/// The lines of the page.
pub fn render() -> String {
    METRICS.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_to_begin_is_counted_when_it_ends() {
        let (took, at) = (Took::new("provision"), |second| Timestamp::from_second(second).unwrap());
        let key = |name: &str| Key::new("d", name);
        took.begin(key("a"), "took.test", at(1));
        took.begin(key("a"), "took.test", at(3));
        took.begin(key("b"), "took.test", at(3));
        took.forget(&key("b"));
        for name in ["a", "a", "b", "never"] {
            took.end(&key(name), at(8));
        }
        let page = render();
        let own: Vec<&str> = page.lines().filter(|l| l.contains("took.test") && !l.contains("_bucket")).collect();
        let of = "{operation_name=\"provision\",plugin_name=\"took.test\"}";
        let expected = [
            format!("volume_operation_total_seconds_sum{of} 7"),
            format!("volume_operation_total_seconds_count{of} 1"),
        ];
        assert_eq!(own, expected);
    }
}
