//! Zones of nodes: how fast the nodes of one may be emptied, by how much of it is broken.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;

/// Region and zone.
pub type Zone = (String, String);

/// A node with this label says nothing about the state of its zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// The limits of evictions from broken nodes, with upstream's names and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evictions {
    /// Nodes of a zone per second that are given a taint that evicts their Pods.
    pub rate: f64,
    /// The rate when much of a large zone is broken.
    pub secondary_rate: f64,
    /// A zone with more nodes is large; a small one of which much is broken is not emptied at all.
    pub large_zone: usize,
    /// From this part on, much of a zone is broken.
    pub unhealthy_part: f64,
}

impl Default for Evictions {
    fn default() -> Self {
        Evictions { rate: 0.1, secondary_rate: 0.01, large_zone: 50, unhealthy_part: 0.55 }
    }
}

impl Evictions {
    /// The time between two nodes of a zone, by how many of its nodes are ready; `None` stops it.
    pub fn interval(&self, ready: usize, not_ready: usize) -> Option<Duration> {
        let all = ready + not_ready;
        // A zone that is broken as a whole is emptied into the others. Two nodes may be just two broken machines.
        let much = ready > 0 && not_ready > 2 && not_ready as f64 / all as f64 >= self.unhealthy_part;
        let rate = match much {
            false => self.rate,
            true if all > self.large_zone => self.secondary_rate,
            true => 0.0,
        };
        (rate > 0.0).then(|| Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX))
    }
}

pub fn zone_of(node: &Node) -> Zone {
    let label = |new: &str, old: &str| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|l| l.get(new).or_else(|| l.get(old)).cloned()).unwrap_or_default()
    };
    (
        label("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
        label("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    )
}

/// Whether the node counts for the state of its zone.
pub fn is_counted(node: &Node) -> bool {
    !node.metadata.labels.as_ref().is_some_and(|l| l.contains_key(EXCLUDED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn zones_are_emptied_as_fast_as_their_state_allows() {
        let usual = Evictions::default();
        let check = |limits: Evictions, ready: usize, not_ready: usize, seconds: Option<u64>| {
            let interval = limits.interval(ready, not_ready).map(|i| i.as_secs_f64().round() as u64);
            assert_eq!(interval, seconds, "{ready}/{not_ready}");
        };
        check(usual, 3, 1, Some(10));
        check(usual, 0, 4, Some(10));
        check(usual, 0, 0, Some(10));
        check(usual, 1, 2, Some(10));
        check(usual, 2, 3, None);
        check(usual, 3, 3, Some(10));
        check(usual, 9, 11, None);
        check(usual, 20, 31, Some(100));
        check(usual, 20, 30, None);
        check(Evictions { rate: 0.0, ..usual }, 3, 1, None);
        check(Evictions { rate: 0.5, ..usual }, 0, 4, Some(2));
        check(Evictions { large_zone: 4, ..usual }, 2, 3, Some(100));
        check(Evictions { unhealthy_part: 0.7, ..usual }, 2, 3, Some(10));
        check(Evictions { secondary_rate: 0.0, ..usual }, 20, 31, None);
    }

    #[test]
    fn zones_have_new_and_old_names() {
        let check = |labels: json::Value, region: &str, zone: &str, counted: bool| {
            let node: Node = json::from_value(json!({"metadata": {"labels": labels}})).unwrap();
            assert_eq!((zone_of(&node), is_counted(&node)), ((region.to_owned(), zone.to_owned()), counted));
        };
        let old = "failure-domain.beta.kubernetes.io/zone";
        check(json!(null), "", "", true);
        check(json!({old: "a"}), "", "a", true);
        check(
            json!({old: "a", "topology.kubernetes.io/zone": "b", "topology.kubernetes.io/region": "r"}),
            "r",
            "b",
            true,
        );
        check(json!({EXCLUDED: ""}), "", "", false);
    }
}
