//! The largest cluster that the project means to hold: 15,000 nodes with 300,000 Pods.

use client::Key;
use k8s_openapi::api::core::v1::Pod;

use super::{
    cluster::{Churn, Cluster, MEASURED, cpu_seconds},
    objects,
};
use crate::{report::Report, subject};

const NODES: usize = 15_000;
const PODS: usize = 300_000;
/// The Pods belong to workloads of this many replicas.
const REPLICAS: usize = 500;
const MORE: usize = 10_000;

/// A Pod of the `i`th place; each workload has its own name and its own spreading.
fn pod(i: usize) -> Pod {
    let mut pod = objects::pod("pod-with-preferred-topology-spreading", "large");
    let labels = [("app".to_owned(), format!("app-{}", i / REPLICAS)), ("color".to_owned(), "blue".to_owned())];
    pod.metadata.labels = Some(labels.into());
    objects::named(&pod, format!("pod-{i}"))
}

pub fn measure(filter: &str, report: &mut Report) {
    let what = "15000 nodes x 300000 Pods";
    if !what.contains(filter) {
        return;
    }
    let before = subject::resident_mb(std::process::id());
    let (mut cluster, begun) = (Cluster::new(), cpu_seconds());
    for i in 0..NODES {
        cluster.set_node(&objects::node(&format!("node-{i}"), Some(["a", "b", "c"][i % 3])));
    }
    for i in 0..PODS {
        let mut pod = pod(i);
        pod.spec.get_or_insert_default().node_name = Some(format!("node-{}", i % NODES));
        cluster.engine.set_pod(&pod, cluster.now);
    }
    let note = format!("taken in within {:.1} s", cpu_seconds() - begun);
    report.add(
        &format!("{what}: resident memory"),
        subject::resident_mb(std::process::id()) - before,
        "MB",
        None,
        note,
    );
    let more =
        |from: usize| -> Vec<Pod> { (0..MORE).map(|i| Pod { metadata: measured(from + i), ..pod(i * 29) }).collect() };
    let run = cluster.run(more(0), None);
    report.add(&format!("{what}: {MORE} more"), run.placed as f64 / run.seconds, "Pods/s", None, "of 580 workloads");
    // Each millisecond a Pod ends, and every tenth a node changes its labels.
    let churn = Churn {
        every: std::time::Duration::from_millis(1),
        happens: Box::new(|cluster, i| {
            cluster.remove(&Key::new("large", format!("pod-{i}")));
            if i % 10 == 0 {
                let mut node = objects::node(&format!("node-{}", i % NODES), Some(["a", "b", "c"][i % 3]));
                objects::offer(&mut node, "memory", if i % 20 == 0 { "31Gi" } else { "32Gi" });
                cluster.set_node(&node);
            }
        }),
    };
    let run = cluster.run(more(MORE), Some(churn));
    let note = "a Pod ends with each, and a tenth as many nodes change";
    report.add(&format!("{what}: {MORE} more in churn"), run.placed as f64 / run.seconds, "Pods/s", None, note);
}

fn measured(i: usize) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    let named = objects::named(&pod(i * 29 % PODS), format!("{MEASURED}-{i}"));
    named.metadata
}
