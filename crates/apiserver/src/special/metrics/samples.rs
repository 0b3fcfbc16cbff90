//! From what kubelets tell to what is used: two readings make an interval, and the difference between them its average.
//! Pure. Upstream counterpart: metrics-server's pkg/storage.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use api::rules::metrics_text;

/// The time from one reading of a node to the next.
pub const ROUND: Duration = Duration::from_secs(15);
/// A container that is younger than a round is measured from its start, if it is at least this old: less time tells little.
const FRESH_MIN_MILLIS: i64 = 10_000;
const FRESH_MAX_MILLIS: i64 = ROUND.as_millis() as i64;

/// One reading.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// When the container began; 0 for a node.
    pub started_millis: i64,
    pub millis: i64,
    /// Nanoseconds of one processor since then.
    pub cpu_nanos: u64,
    /// Bytes.
    pub memory: u64,
}

/// The last reading, and the one before it that it can be compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair {
    last: Point,
    before: Option<Point>,
}

/// The average usage over an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Nanoseconds of one processor in each second.
    pub cpu_nanos: u64,
    /// Bytes at its end.
    pub memory: u64,
    pub end_millis: i64,
    pub window: Duration,
}

type PodKey = (String, String);

/// The readings of one kubelet at one time.
#[derive(Debug, Default, PartialEq)]
pub struct Batch {
    node: Option<Point>,
    /// Points of containers by namespace and name of their Pod.
    pods: HashMap<PodKey, BTreeMap<String, Point>>,
}

/// The samples of one node.
#[derive(Debug, Default)]
pub struct NodeSamples {
    node: Option<Pair>,
    pods: HashMap<PodKey, BTreeMap<String, Pair>>,
}

/// The samples of all nodes.
#[derive(Debug, Default)]
pub struct Samples {
    /// How often all nodes were asked.
    pub rounds: u32,
    pub nodes: HashMap<String, NodeSamples>,
}

impl Samples {
    pub fn of_node(&self, name: &str) -> Option<Usage> {
        self.nodes.get(name)?.node?.usage()
    }

    /// By container. A Pod of which one container cannot be told yet is not told at all: it would seem to use less.
    pub fn of_pod(&self, node: &str, namespace: &str, name: &str) -> Option<Vec<(&str, Usage)>> {
        let pod = self.nodes.get(node)?.pods.get(&(namespace.to_owned(), name.to_owned()))?;
        pod.iter().map(|(name, pair)| Some((name.as_str(), pair.usage()?))).collect()
    }
}

impl Pair {
    fn usage(&self) -> Option<Usage> {
        let (last, before) = (self.last, self.before?);
        let window = u64::try_from(last.millis.checked_sub(before.millis)?).ok().filter(|window| *window > 0)?;
        let used = last.cpu_nanos.checked_sub(before.cpu_nanos)?;
        let cpu_nanos = u64::try_from(u128::from(used) * 1000 / u128::from(window)).ok()?;
        let window = Duration::from_millis(window);
        Some(Usage { cpu_nanos, memory: last.memory, end_millis: last.millis, window })
    }

    fn following(known: Option<&Pair>, new: Point) -> Pair {
        let age = new.millis.saturating_sub(new.started_millis);
        if new.started_millis > 0 && (FRESH_MIN_MILLIS..FRESH_MAX_MILLIS).contains(&age) {
            let begin = Point { millis: new.started_millis, cpu_nanos: 0, ..new };
            return Pair { last: new, before: Some(begin) };
        }
        // Of a run that began after the last reading nothing is known.
        let Some(known) = known.filter(|known| new.started_millis < known.last.millis) else {
            return Pair { last: new, before: None };
        };
        let before = if new.millis > known.last.millis { Some(known.last) } else { known.before };
        Pair { last: new, before: before.filter(|before| before.millis < new.millis) }
    }
}

impl NodeSamples {
    /// The samples when a node has told something new. A container that it no longer tells of is forgotten.
    pub fn following(known: Option<&NodeSamples>, batch: Batch) -> NodeSamples {
        let node = batch.node.map(|new| Pair::following(known.and_then(|known| known.node.as_ref()), new));
        let pods = batch.pods.into_iter().map(|(key, points)| {
            let known = known.and_then(|known| known.pods.get(&key));
            let pair = |(name, new): (String, Point)| {
                let pair = Pair::following(known.and_then(|known| known.get(&name)), new);
                (name, pair)
            };
            let pairs = points.into_iter().map(pair).collect();
            (key, pairs)
        });
        NodeSamples { node, pods: pods.collect() }
    }
}

/// A number that was written as a floating one; what is none of these counts as nothing.
fn whole(value: f64) -> u64 {
    value as u64
}

/// The readings in a kubelet's `/metrics/resource`. Incomplete readings are left out, for a Pod with all of its
/// containers.
pub fn read(text: &str, now_millis: i64) -> Batch {
    let mut node = Point::default();
    let mut pods = HashMap::<PodKey, BTreeMap<String, Point>>::new();
    for row in metrics_text::rows(text) {
        let (what, amount) = match row.name.split_once('_') {
            Some((what @ ("node" | "container"), amount)) => (what, amount),
            _ => continue,
        };
        let point = if what == "node" {
            &mut node
        } else {
            let key = (row.label("namespace").to_owned(), row.label("pod").to_owned());
            pods.entry(key).or_default().entry(row.label("container").to_owned()).or_default()
        };
        match amount {
            "cpu_usage_seconds_total" => {
                point.cpu_nanos = whole(row.value * 1e9);
                point.millis = row.millis.unwrap_or(now_millis);
            }
            "memory_working_set_bytes" => {
                point.memory = whole(row.value);
                // Times of processor and memory differ by little; the former decides, since it is divided by.
                if point.millis == 0 {
                    point.millis = row.millis.unwrap_or(now_millis);
                }
            }
            "start_time_seconds" => point.started_millis = (row.value * 1e3) as i64,
            _ => {}
        }
    }
    let complete = |point: &Point| point.cpu_nanos > 0 && point.memory > 0;
    pods.retain(|_, containers| containers.values().all(complete));
    Batch { node: Some(node).filter(complete), pods }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container: its name, processor seconds, bytes and start.
    type Told = (&'static str, f64, f64, f64);

    fn text(millis: i64, containers: &[Told]) -> String {
        let mut text = format!(
            "node_cpu_usage_seconds_total {} {millis}\nnode_memory_working_set_bytes 7 {millis}\n",
            millis / 1000
        );
        for (name, cpu, memory, started) in containers {
            let labels = format!("{{container=\"{name}\",namespace=\"n\",pod=\"p\"}}");
            text += &format!(
                "container_cpu_usage_seconds_total{labels} {cpu} {millis}\n\
                 container_memory_working_set_bytes{labels} {memory} {millis}\n\
                 container_start_time_seconds{labels} {started}\n"
            );
        }
        text + "pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 9\ncontainer_swap_usage_bytes{} 1\n"
    }

    /// `cpu/memory/window` of each container after these readings.
    fn check(readings: &[(i64, &[Told])], expected: Option<&[&str]>) {
        let mut samples = Samples::default();
        for (millis, containers) in readings {
            let batch = read(&text(*millis, containers), 0);
            let following = NodeSamples::following(samples.nodes.get("node"), batch);
            samples.nodes.insert("node".to_owned(), following);
        }
        let shown = |(name, u): (&str, Usage)| format!("{name} {}/{}/{:?}", u.cpu_nanos, u.memory, u.window);
        let found = samples.of_pod("node", "n", "p").map(|pod| pod.into_iter().map(shown).collect::<Vec<_>>());
        let expected = expected.map(|list| list.iter().map(ToString::to_string).collect());
        assert_eq!(found, expected, "{readings:?}");
        assert_eq!(samples.of_pod("other", "n", "p"), None, "no other node is asked about the Pod");
    }

    #[test]
    fn two_readings_of_one_run_make_a_rate() {
        let (a, b) = (("a", 1.0, 5.0, 1.0), ("a", 2.5, 6.0, 1.0));
        check(&[(100_000, &[a])], None);
        check(&[(100_000, &[a]), (115_000, &[b])], Some(&["a 100000000/6/15s"]));
        // The same reading twice keeps the interval that was known.
        check(&[(100_000, &[a]), (115_000, &[b]), (115_000, &[b])], Some(&["a 100000000/6/15s"]));
        check(&[(100_000, &[a]), (100_000, &[a])], None);
        // Readings that go back in time or in use tell nothing.
        check(&[(115_000, &[b]), (100_000, &[a])], None);
        check(&[(100_000, &[b]), (115_000, &[a])], None);
    }

    #[test]
    fn a_new_run_begins_anew() {
        let old = ("a", 9.0, 5.0, 1.0);
        check(&[(100_000, &[old]), (115_000, &[("a", 0.5, 6.0, 107.0)])], None);
        check(&[(100_000, &[old]), (115_000, &[("a", 1.0, 6.0, 105.0)])], Some(&["a 100000000/6/10s"]));
        check(&[(115_000, &[("a", 1.0, 6.0, 105.0)])], Some(&["a 100000000/6/10s"]));
        check(&[(115_000, &[("a", 1.0, 6.0, 100.0)])], None);
    }

    #[test]
    fn a_pod_is_told_whole_or_not_at_all() {
        let (a, b, c) = (("a", 1.0, 5.0, 1.0), ("b", 1.0, 5.0, 1.0), ("b", 0.0, 5.0, 1.0));
        check(&[(100_000, &[a, b]), (110_000, &[a, b])], Some(&["a 0/5/10s", "b 0/5/10s"]));
        check(&[(100_000, &[a]), (110_000, &[a, b])], None);
        check(&[(100_000, &[a, c]), (110_000, &[a, c])], None);
        check(&[(100_000, &[a, b]), (110_000, &[a])], Some(&["a 0/5/10s"]));
    }

    #[test]
    fn strange_numbers_are_no_readings() {
        for number in ["NaN", "-1", "1e999", "x"] {
            let rows = format!("node_cpu_usage_seconds_total {number} 1\nnode_memory_working_set_bytes 1 1\n");
            let batch = |text: &str| NodeSamples::following(None, read(text, 5));
            let first = Samples { nodes: HashMap::from([("n".to_owned(), batch(&rows))]), rounds: 1 };
            assert_eq!(first.of_node("n"), None, "{number}");
        }
        assert_eq!(read("", 0), Batch::default());
    }
}
