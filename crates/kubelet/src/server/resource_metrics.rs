//! `/metrics/resource`: what the node, its Pods and their containers use, as metrics servers read it.
//! Upstream counterpart: pkg/kubelet/metrics/collectors/resource_metrics.go.

use std::fmt::Write as _;

use api::rules::metrics_text::escaped;
use clock::Timestamp;

use super::answer::{Answer, exposition};
use crate::{
    kubelet::Kubelet,
    usage::{self, Depth, NodeUsage, Sample},
};

pub async fn answer(kubelet: &Kubelet) -> Answer {
    let usage = usage::read(kubelet, Depth::Computing).await;
    if let Err(error) = &usage {
        tracing::warn!(%error, "the engine does not tell what containers use");
    }
    exposition(render(usage.ok().as_ref()))
}

/// Labels between braces or nothing, the value, and when it was read.
type Row = (String, f64, Option<Timestamp>);

/// Writes one metric, if it has rows. The help says how stable it is.
fn metric(out: &mut String, (name, kind, help): (&str, &str, &str), rows: Vec<Row>) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value, time) in rows {
        let time = time.map(|time| format!(" {}", time.as_millisecond())).unwrap_or_default();
        let _ = writeln!(out, "{name}{labels} {value}{time}");
    }
}

/// Without usage only the failure is told.
fn render(usage: Option<&NodeUsage>) -> String {
    let mut out = String::new();
    if let Some(usage) = usage {
        let (mut containers, mut starts, mut pods) = (Vec::new(), Vec::new(), Vec::new());
        for pod in &usage.pods {
            let inner = format!("namespace=\"{}\",pod=\"{}\"", escaped(&pod.namespace), escaped(&pod.name));
            for container in &pod.containers {
                let labels = format!("{{container=\"{}\",{inner}}}", escaped(&container.name));
                starts.push((labels.clone(), container.started.as_millisecond() as f64 / 1e3, None));
                containers.push((labels, container.sample));
            }
            pods.push((format!("{{{inner}}}"), pod.sample));
        }
        both(&mut out, "container", &containers);
        let help = "[STABLE] Start time of the container since unix epoch in seconds";
        metric(&mut out, ("container_start_time_seconds", "gauge", help), starts);
        let most = |sample: &Sample| sample.swap.and_then(|swap| Some(swap.left?.saturating_add(swap.used) as f64));
        metric(&mut out, ("container_swap_limit_bytes", "gauge", SWAP_LIMIT), rows(&containers, most));
        swap(&mut out, "container", "Current amount of the container swap usage", &containers);
        let node = [(String::new(), usage.sample)];
        both(&mut out, "node", &node);
        swap(&mut out, "node", "Current swap usage of the node", &node);
        both(&mut out, "pod", &pods);
        swap(&mut out, "pod", "Current amount of the pod swap usage", &pods);
    }
    let failed = if usage.is_none() { 1.0 } else { 0.0 };
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    metric(&mut out, ("resource_scrape_error", "gauge", help), vec![(String::new(), failed, None)]);
    out
}

const SWAP_LIMIT: &str =
    "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems";

fn rows(of: &[(String, Sample)], value: fn(&Sample) -> Option<f64>) -> Vec<Row> {
    let row = |(labels, sample): &(String, Sample)| Some((labels.clone(), value(sample)?, Some(sample.time)));
    of.iter().filter_map(row).collect()
}

/// Processor time and memory of all that is of one sort, by its labels.
fn both(out: &mut String, what: &str, of: &[(String, Sample)]) {
    let (name, help) = (
        format!("{what}_cpu_usage_seconds_total"),
        format!("[STABLE] Cumulative cpu time consumed by the {what} in core-seconds"),
    );
    metric(out, (&name, "counter", &help), rows(of, |sample| Some(sample.cpu_nanos? as f64 / 1e9)));
    let (name, help) =
        (format!("{what}_memory_working_set_bytes"), format!("[STABLE] Current working set of the {what} in bytes"));
    metric(out, (&name, "gauge", &help), rows(of, |sample| Some(sample.memory.working_set? as f64)));
}

fn swap(out: &mut String, what: &str, help: &str, of: &[(String, Sample)]) {
    let help = format!("[ALPHA] {help} in bytes. Reported only on non-windows systems");
    let used = rows(of, |sample| Some(sample.swap?.used as f64));
    metric(out, (&format!("{what}_swap_usage_bytes"), "gauge", &help), used);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        node::cgroup::{Memory, Swap},
        pod::fixture::at,
        usage::{ContainerUsage, PodUsage, tests::sample},
    };

    #[test]
    fn rows_are_those_that_metrics_servers_read() {
        let swap = Some(Swap { used: 5, left: Some(20) });
        let of_container = Sample { swap, ..sample(2, 1_500_000_000, 4096) };
        let container = ContainerUsage { name: "c".into(), started: at(1), sample: of_container, layer: None };
        let pod = PodUsage {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
            started: None,
            sample: sample(3, 2_000_000_000, 8192),
            network: None,
            processes: None,
            containers: vec![container],
        };
        // A figure that the kernel does not tell has no row.
        let swap = Some(Swap { used: 6, left: None });
        let node = Sample { memory: Memory::default(), swap, ..sample(4, 60_000_000_000, 0) };
        let text = render(Some(&NodeUsage { sample: node, network: None, system: Vec::new(), pods: vec![pod] }));
        let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let (second, of) = (at(0).as_second(), "container=\"c\",namespace=\"n\",pod=\"p\"");
        let expected = [
            format!("container_cpu_usage_seconds_total{{{of}}} 1.5 {}000", second + 2),
            format!("container_memory_working_set_bytes{{{of}}} 4096 {}000", second + 2),
            format!("container_start_time_seconds{{{of}}} {}", second + 1),
            format!("container_swap_limit_bytes{{{of}}} 25 {}000", second + 2),
            format!("container_swap_usage_bytes{{{of}}} 5 {}000", second + 2),
            format!("node_cpu_usage_seconds_total 60 {}000", second + 4),
            format!("node_swap_usage_bytes 6 {}000", second + 4),
            format!("pod_cpu_usage_seconds_total{{namespace=\"n\",pod=\"p\"}} 2 {}000", second + 3),
            format!("pod_memory_working_set_bytes{{namespace=\"n\",pod=\"p\"}} 8192 {}000", second + 3),
            "resource_scrape_error 0".to_owned(),
        ];
        assert_eq!(rows, expected);
        assert!(
            text.starts_with("# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the")
        );
        assert!(render(None).ends_with("\nresource_scrape_error 1\n"));
    }
}
