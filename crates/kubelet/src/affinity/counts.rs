//! How often containers were given what they need for themselves, under upstream's names.
//! Upstream counterpart: pkg/kubelet/metrics.

use std::{collections::BTreeMap, time::Duration};

use meter::{Metric, Metrics};

/// Upstream's bounds: 0.05 ms, times 2 each.
const ADMISSIONS: &[f64] = &[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

static CPU_REQUESTS: Metric = Metric::counter(
    "kubelet_cpu_manager_pinning_requests_total",
    "[ALPHA] The number of cpu core allocations which required pinning.",
);
static CPU_ERRORS: Metric = Metric::counter(
    "kubelet_cpu_manager_pinning_errors_total",
    "[ALPHA] The number of cpu core allocations which required pinning failed.",
);
static SHARED: Metric = Metric::gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
);
static EXCLUSIVE: Metric = Metric::gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
);
static ON_NODE: Metric =
    Metric::gauge("kubelet_cpu_manager_allocation_per_numa", "[ALPHA] Number of CPUs allocated per NUMA node");
static ALIGNED: Metric = Metric::counter(
    "kubelet_container_aligned_compute_resources_count",
    "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.",
);
static NOT_ALIGNED: Metric = Metric::counter(
    "kubelet_container_aligned_compute_resources_failure_count",
    "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
);
static MEMORY_REQUESTS: Metric = Metric::counter(
    "kubelet_memory_manager_pinning_requests_total",
    "[ALPHA] The number of memory pages allocations which required pinning.",
);
static MEMORY_ERRORS: Metric = Metric::counter(
    "kubelet_memory_manager_pinning_errors_total",
    "[ALPHA] The number of memory pages allocations which required pinning that failed.",
);
static ADMITTED: Metric = Metric::counter(
    "kubelet_topology_manager_admission_requests_total",
    "[ALPHA] The number of admission requests where resources have to be aligned.",
);
static ADMISSION_ERRORS: Metric = Metric::counter(
    "kubelet_topology_manager_admission_errors_total",
    "[ALPHA] The number of admission request failures where resources could not be aligned.",
);
static ADMISSION_TOOK: Metric = Metric::histogram(
    "kubelet_topology_manager_admission_duration_ms",
    "[ALPHA] Duration in milliseconds to serve a pod admission request.",
    ADMISSIONS,
);

/// The things that are given within a bound of the machine.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    Core,
    Cache,
    Node,
}

impl Bound {
    fn name(self) -> &'static str {
        match self {
            Bound::Core => "physical_cpu",
            Bound::Cache => "uncore_cache",
            Bound::Node => "numa_node",
        }
    }
}

#[derive(Default)]
pub struct Counts(Metrics);

impl Counts {
    pub fn new() -> Self {
        let counts = Counts::default();
        for metric in [
            &CPU_REQUESTS,
            &CPU_ERRORS,
            &MEMORY_REQUESTS,
            &MEMORY_ERRORS,
            &ADMITTED,
            &ADMISSION_ERRORS,
            &SHARED,
            &EXCLUSIVE,
        ] {
            counts.0.series(metric, &[]);
        }
        counts
    }

    /// Processors were to be given.
    pub fn cpus(&self, succeeded: bool) {
        self.0.count(&CPU_REQUESTS, &[]);
        if !succeeded {
            self.0.count(&CPU_ERRORS, &[]);
        }
    }

    /// Memory was to be given.
    pub fn memory(&self, succeeded: bool) {
        self.0.count(&MEMORY_REQUESTS, &[]);
        if !succeeded {
            self.0.count(&MEMORY_ERRORS, &[]);
        }
    }

    /// Something was to be within a bound, for a `container` or a `pod`.
    pub fn aligned(&self, scope: &str, bound: Bound, succeeded: bool) {
        let metric = if succeeded { &ALIGNED } else { &NOT_ALIGNED };
        self.0.count(metric, &[("boundary", bound.name()), ("scope", scope)]);
    }

    /// A Pod was to get what it asks for.
    pub fn admitted(&self, succeeded: bool, took: Duration) {
        self.0.count(&ADMITTED, &[]);
        self.0.observe(&ADMISSION_TOOK, &[], took.as_secs_f64() * 1000.0);
        if !succeeded {
            self.0.count(&ADMISSION_ERRORS, &[]);
        }
    }

    /// How many processors are left to give, how many are given, and on which nodes.
    pub fn pool(&self, left: usize, given: usize, on_nodes: &BTreeMap<u32, usize>) {
        self.0.set(&SHARED, &[], left as f64 * 1000.0);
        self.0.set(&EXCLUSIVE, &[], given as f64);
        for (node, count) in on_nodes {
            self.0.set(&ON_NODE, &[("numa_node", &node.to_string())], *count as f64);
        }
    }

    pub fn render(&self) -> String {
        self.0.render()
    }
}
