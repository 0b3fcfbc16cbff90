//! NodeMetrics and PodMetrics: what nodes and Pods use, measured when somebody asks. Nothing of them is stored.
//! Upstream counterpart: k8s.io/metrics and kubernetes-sigs/metrics-server.

use std::collections::BTreeMap;
use std::time::Duration;

use json::Value;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{ClusterResourceScope, Metadata, NamespaceResourceScope, Resource};
use serde::{Deserialize, Serialize};

use crate::kind::{Column, Kind, col, name};
use crate::rules::quantity::{self, Quantity};

pub const GROUP: &str = "metrics.k8s.io";

/// Amounts by resource: `cpu` in processors, `memory` in bytes.
pub type Usage = BTreeMap<String, Text>;

/// NodeMetrics sets resource usage metrics of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeMetrics {
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The end of the interval that is measured.
    pub timestamp: Option<Time>,
    /// The length of the interval.
    #[serde(default)]
    pub window: String,
    /// The memory usage is the memory working set.
    #[serde(default)]
    pub usage: Usage,
}

/// PodMetrics sets resource usage metrics of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodMetrics {
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The end of the interval that is measured.
    pub timestamp: Option<Time>,
    /// The length of the interval.
    #[serde(default)]
    pub window: String,
    /// Metrics for all containers are collected within the same time window.
    #[serde(default)]
    pub containers: Vec<ContainerMetrics>,
}

/// ContainerMetrics sets resource usage metrics of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerMetrics {
    pub name: String,
    /// The memory usage is the memory working set.
    #[serde(default)]
    pub usage: Usage,
}

macro_rules! resource {
    ($kind:ty, $name:literal, $plural:literal, $scope:ty) => {
        impl Resource for $kind {
            const API_VERSION: &'static str = "metrics.k8s.io/v1beta1";
            const GROUP: &'static str = GROUP;
            const KIND: &'static str = $name;
            const VERSION: &'static str = "v1beta1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(NodeMetrics, "NodeMetrics", "nodes", ClusterResourceScope);
resource!(PodMetrics, "PodMetrics", "pods", NamespaceResourceScope);

pub const NODE_METRICS: Kind<NodeMetrics> = Kind {
    verbs: &["get", "list"],
    storage_prefix: Some("metrics.k8s.io/nodes"),
    columns: &[
        name(),
        amount("cpu", CPU, |n, _| cell([&n.usage], "cpu")),
        amount("memory", MEMORY, |n, _| cell([&n.usage], "memory")),
        window(|n, _| Value::from(n.window.as_str())),
    ],
    ..Kind::BASE
};

pub const POD_METRICS: Kind<PodMetrics> = Kind {
    verbs: &["get", "list"],
    storage_prefix: Some("metrics.k8s.io/pods"),
    columns: &[
        name(),
        amount("cpu", CPU, |p, _| cell(p.containers.iter().map(|c| &c.usage), "cpu")),
        amount("memory", MEMORY, |p, _| cell(p.containers.iter().map(|c| &c.usage), "memory")),
        window(|p, _| Value::from(p.window.as_str())),
    ],
    ..Kind::BASE
};

const CPU: &str = "The processors in use, on average over the window.";
const MEMORY: &str = "The bytes in use that cannot be taken back at once.";

const fn amount<T>(name: &'static str, about: &'static str, cell: fn(&T, jiff::Timestamp) -> Value) -> Column<T> {
    col(name, about, cell).format("quantity")
}

const fn window<T>(cell: fn(&T, jiff::Timestamp) -> Value) -> Column<T> {
    col("Window", "The length of the interval that is measured.", cell).format("duration")
}

fn cell<'a>(usages: impl IntoIterator<Item = &'a Usage>, resource: &str) -> Value {
    let mut sum = Quantity::ZERO;
    usages.into_iter().filter_map(|usage| usage.get(resource)).for_each(|q| sum += quantity::parse(q));
    Value::from(sum.to_string())
}

/// A duration of whole milliseconds as Go prints it: `900ms`, `15.2s`, `1m0s`.
pub fn duration_text(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 && millis > 0 {
        return format!("{millis}ms");
    }
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}").trim_end_matches('0').to_owned() };
    match seconds {
        0..60 => format!("{seconds}{fraction}s"),
        60..3600 => format!("{}m{}{fraction}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m{}{fraction}s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        let cases = [
            (0, "0s"),
            (7, "7ms"),
            (1000, "1s"),
            (15_200, "15.2s"),
            (15_004, "15.004s"),
            (60_000, "1m0s"),
            (61_050, "1m1.05s"),
            (3_600_000, "1h0m0s"),
        ];
        for (millis, text) in cases {
            assert_eq!(duration_text(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_row_sums_up_the_containers() {
        let usage = |cpu: &str, memory: &str| {
            Usage::from([("cpu".to_owned(), Text(cpu.to_owned())), ("memory".to_owned(), Text(memory.to_owned()))])
        };
        let containers = [("a", usage("1500u", "512Ki")), ("b", usage("1m", "512Ki"))];
        let containers = containers.map(|(name, usage)| ContainerMetrics { name: name.into(), usage }).to_vec();
        let pod = PodMetrics { containers, window: "15s".into(), ..Default::default() };
        let row: Vec<Value> =
            POD_METRICS.columns[1..].iter().map(|c| (c.cell)(&pod, jiff::Timestamp::UNIX_EPOCH)).collect();
        assert_eq!(row, ["2500u", "1Mi", "15s"]);
    }
}
