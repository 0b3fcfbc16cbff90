//! The figures that the engine counts of Pods and containers, for `/metrics/cadvisor` where the feature PodAndContainerStatsFromCRI is on: the engine says
//! which metrics there are, and what stands in them. Upstream counterpart: pkg/kubelet/metrics/collectors/cri_metrics.go.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Write as _,
};

use api::rules::metrics_text::escaped;
use runtime::cri_api::{Metric, MetricDescriptor, PodSandboxMetrics};

use crate::kubelet::Kubelet;

/// Nothing is told where the engine fails; its log says so.
pub async fn read(kubelet: &Kubelet) -> String {
    let engine = &kubelet.config.runtime;
    let described = kubelet.engine_metrics.get_or_try_init(|| engine.metric_descriptors()).await;
    let told = match described {
        Ok(described) => engine.sandbox_metrics().await.map(|counted| render(described, counted)),
        Err(error) => Err(error),
    };
    told.unwrap_or_else(|error| {
        tracing::warn!(%error, "the engine does not tell its metrics of Pods");
        String::new()
    })
}

/// The rows of a metric by their labels, each with its value and, if the engine kept it for a while, its time.
struct Rows<'a> {
    described: &'a MetricDescriptor,
    is_gauge: bool,
    rows: BTreeMap<String, (u64, i64)>,
}

fn render(described: &[MetricDescriptor], counted: Vec<PodSandboxMetrics>) -> String {
    let described: BTreeMap<&str, &MetricDescriptor> =
        described.iter().filter(|one| is_valid(one)).map(|one| (&*one.name, one)).collect();
    let mut all: BTreeMap<&str, Rows<'_>> = BTreeMap::new();
    let of_containers = |pod: PodSandboxMetrics| {
        let inner = pod.container_metrics.into_iter().flat_map(|container| container.metrics);
        pod.metrics.into_iter().chain(inner)
    };
    for metric in counted.into_iter().flat_map(of_containers) {
        let Some(described) = described.get(&*metric.name) else { continue };
        if described.label_keys.len() != metric.label_values.len() || !(0..=1).contains(&metric.metric_type) {
            continue;
        }
        put(&mut all, described, &metric);
    }
    let mut out = String::new();
    for (name, Rows { described, is_gauge, rows }) in all {
        let help = described.help.replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", if is_gauge { "gauge" } else { "counter" });
        for (labels, (value, nanos)) in rows {
            let time = if nanos == 0 { String::new() } else { format!(" {}", nanos / 1_000_000) };
            let _ = writeln!(out, "{name}{labels} {value}{time}");
        }
    }
    out
}

/// Adds a row. One that contradicts an earlier one of its metric is left out, as a registry of Prometheus does.
fn put<'a>(all: &mut BTreeMap<&'a str, Rows<'a>>, described: &'a MetricDescriptor, metric: &Metric) {
    let is_gauge = metric.metric_type == 1;
    let of = all.entry(&*described.name).or_insert(Rows { described, is_gauge, rows: BTreeMap::new() });
    let mut labels: Vec<(&String, &String)> = described.label_keys.iter().zip(&metric.label_values).collect();
    labels.sort();
    let texts: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
    let labels = if texts.is_empty() { String::new() } else { format!("{{{}}}", texts.join(",")) };
    if of.is_gauge == is_gauge
        && let Entry::Vacant(row) = of.rows.entry(labels)
    {
        row.insert((metric.value.map_or(0, |value| value.value), metric.timestamp));
    }
}

/// The names are words of the format, and no label stands twice.
fn is_valid(described: &MetricDescriptor) -> bool {
    let is_word = |name: &str, more: &str| {
        let fits = |c: char| c.is_ascii_alphabetic() || more.contains(c);
        name.chars().next().is_some_and(fits) && name.chars().all(|c| fits(c) || c.is_ascii_digit())
    };
    let mut keys: Vec<&String> = described.label_keys.iter().collect();
    keys.sort();
    keys.dedup();
    is_word(&described.name, "_:")
        && keys.len() == described.label_keys.len()
        && keys.iter().all(|key| is_word(key, "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::cri_api::{ContainerMetrics, UInt64Value};

    fn described(name: &str, keys: &[&str]) -> MetricDescriptor {
        let label_keys = keys.iter().map(|key| (*key).to_owned()).collect();
        MetricDescriptor { name: name.into(), help: "All of\nit.".into(), label_keys }
    }

    fn metric(name: &str, kind: i32, values: &[&str], value: u64, timestamp: i64) -> Metric {
        let label_values = values.iter().map(|value| (*value).to_owned()).collect();
        Metric { name: name.into(), timestamp, metric_type: kind, label_values, value: Some(UInt64Value { value }) }
    }

    #[test]
    fn rows_are_those_that_fit_what_the_engine_described() {
        let all = [
            described("container_b", &["pod", "id"]),
            described("container_a", &[]),
            described("container c", &[]),
            described("container_d", &["a", "a"]),
            described("container_e", &["x y"]),
        ];
        let inner = vec![
            metric("container_b", 0, &["p\"\n", "1"], 7, 5_000_000_000),
            metric("container_b", 0, &["q", "2"], 8, 0),
            metric("container_b", 0, &["q", "2"], 9, 0),
            metric("container_b", 1, &["q", "3"], 9, 0),
            metric("container_b", 0, &["q"], 9, 0),
            metric("container_b", 7, &["q", "4"], 9, 0),
        ];
        let outer = ["container_a", "container_none", "container c", "container_d", "container_e"];
        let pod = PodSandboxMetrics {
            pod_sandbox_id: "s".into(),
            metrics: outer.iter().map(|name| metric(name, 1, &[], 3, 0)).collect(),
            container_metrics: vec![ContainerMetrics { container_id: "c".into(), metrics: inner }],
        };
        let expected = "# HELP container_a All of\\nit.\n# TYPE container_a gauge\ncontainer_a 3\n\
            # HELP container_b All of\\nit.\n# TYPE container_b counter\n\
            container_b{id=\"1\",pod=\"p\\\"\\n\"} 7 5000\ncontainer_b{id=\"2\",pod=\"q\"} 8\n";
        assert_eq!(render(&all, vec![pod]), expected);
    }
}
