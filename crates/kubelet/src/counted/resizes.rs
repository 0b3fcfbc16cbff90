//! The resizes of Pods: what was asked for, what waits, what is impossible, and how long carrying one out takes.
//! Upstream counterpart: the figures of resizes in pkg/kubelet/metrics.

use std::{collections::BTreeMap, time::Duration};

use meter::Metric;

use super::Figures;

/// Upstream's bounds, in milliseconds.
const MILLISECONDS: &[f64] = &[
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0, 300_000.0,
    600_000.0,
];

static REQUESTED: Metric = Metric::counter(
    "kubelet_container_requested_resizes_total",
    "[ALPHA] Changes of amounts that containers were asked to have, each resource, request and limit by itself",
);
static TOOK: Metric = Metric::histogram(
    "kubelet_pod_resize_duration_milliseconds",
    "[ALPHA] Milliseconds of one attempt to give a Pod's containers their new resources",
    MILLISECONDS,
);
static PENDING: Metric =
    Metric::gauge("kubelet_pod_pending_resizes", "[ALPHA] Pods whose new resources are not set aside yet");
static INFEASIBLE: Metric = Metric::counter(
    "kubelet_pod_infeasible_resizes_total",
    "[ALPHA] Resizes that this node found to be impossible for it",
);
static IN_PROGRESS: Metric = Metric::gauge(
    "kubelet_pod_in_progress_resizes",
    "[ALPHA] Pods whose new resources are set aside and not in force yet",
);

/// A change of one amount that a container is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requested<'a> {
    pub resource: &'a str,
    /// `requests` or `limits`.
    pub requirement: &'static str,
    /// `add`, `remove`, `increase` or `decrease`.
    pub operation: &'static str,
}

impl Figures {
    pub fn resize_requested(&self, change: Requested<'_>) {
        let Requested { resource, requirement, operation } = change;
        let of = [("operation", operation), ("requirement", requirement), ("resource", resource)];
        self.metrics.count(&REQUESTED, &of);
    }

    /// A resize was carried out, or that was tried.
    pub fn resized(&self, succeeded: bool, took: Duration) {
        let word = if succeeded { "true" } else { "false" };
        self.metrics.observe(&TOOK, &[("success", word)], (took.as_secs_f64() * 1000.0).floor());
    }

    /// `detail` is upstream's word for the reason.
    pub fn resize_infeasible(&self, detail: &str) {
        self.metrics.count(&INFEASIBLE, &[("reason_detail", detail)]);
    }

    /// The resizes of this moment: those that wait by their reasons, and those under way.
    pub(super) fn resizes(&self, pending: &BTreeMap<String, usize>, in_progress: usize) {
        self.metrics.forget(&PENDING, &[]);
        for (reason, count) in pending {
            self.metrics.set(&PENDING, &[("reason", reason)], *count as f64);
        }
        self.metrics.set(&IN_PROGRESS, &[], in_progress as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resizes_are_told_as_upstream_does() {
        let figures = Figures::default();
        figures.resize_requested(Requested { resource: "cpu", requirement: "limits", operation: "increase" });
        figures.resized(true, Duration::from_micros(10_400));
        figures.resized(false, Duration::from_secs(1));
        figures.resize_infeasible("insufficient_node_allocatable");
        figures.resizes(&[("infeasible".to_owned(), 2)].into(), 1);
        figures.resizes(&[("deferred".to_owned(), 1)].into(), 0);
        let text = figures.render();
        for row in [
            r#"kubelet_container_requested_resizes_total{operation="increase",requirement="limits",resource="cpu"} 1"#,
            r#"kubelet_pod_resize_duration_milliseconds_bucket{success="true",le="10"} 1"#,
            r#"kubelet_pod_resize_duration_milliseconds_bucket{success="false",le="500"} 0"#,
            r#"kubelet_pod_resize_duration_milliseconds_bucket{success="false",le="1000"} 1"#,
            r#"kubelet_pod_infeasible_resizes_total{reason_detail="insufficient_node_allocatable"} 1"#,
            r#"kubelet_pod_pending_resizes{reason="deferred"} 1"#,
            "kubelet_pod_in_progress_resizes 0",
        ] {
            assert!(text.lines().any(|line| line == row), "{row}\n{text}");
        }
        assert!(!text.contains("reason=\"infeasible\""), "{text}");
    }
}
