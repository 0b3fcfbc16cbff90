//! How often probes were answered and how long they took, as `/metrics/probes` shows it.
//! Upstream counterpart: the metrics of pkg/kubelet/prober.

use std::time::Duration;

use meter::{Metric, Metrics, USUAL};

use crate::pod::desired::DesiredPod;

static ANSWERS: Metric = Metric::counter(
    "prober_probe_total",
    "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
);
static TOOK: Metric =
    Metric::histogram("prober_probe_duration_seconds", "[ALPHA] Duration in seconds for a probe response.", USUAL);

/// The series of all Pods that have a worker.
#[derive(Default)]
pub struct ProbeCounts(Metrics);

impl ProbeCounts {
    /// Counts one answer: `successful`, `failed` or `unknown`.
    pub fn note(&self, desired: &DesiredPod, container: &str, kind: &str, outcome: &str, took: Duration) {
        let (namespace, pod, uid) = (desired.namespace(), desired.name(), desired.uid());
        let of = [("container", container), ("namespace", namespace), ("pod", pod), ("pod_uid", uid)];
        self.0.count(&ANSWERS, &[&of[..], &[("probe_type", kind), ("result", outcome)]].concat());
        self.0.observe(&TOOK, &[&of[..3], &[("probe_type", kind)]].concat(), took.as_secs_f64());
    }

    /// The Pod has gone.
    pub fn forget(&self, desired: &DesiredPod) {
        self.0.forget(&ANSWERS, &[("pod_uid", desired.uid())]);
        self.0.forget(&TOOK, &[("namespace", desired.namespace()), ("pod", desired.name())]);
    }

    pub fn render(&self) -> String {
        self.0.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    #[test]
    fn a_pod_that_has_gone_leaves_no_series() {
        let (counts, desired) = (ProbeCounts::default(), pod(r#"{"containers": []}"#));
        counts.note(&desired, "c", "Liveness", "failed", Duration::from_millis(20));
        let text = counts.render();
        let row = "prober_probe_total{container=\"c\",namespace=\"d\",pod=\"p\",pod_uid=\"u\",\
                   probe_type=\"Liveness\",result=\"failed\"} 1\n";
        assert!(text.contains(row), "{text}");
        let took = "prober_probe_duration_seconds_bucket{container=\"c\",namespace=\"d\",pod=\"p\",\
                    probe_type=\"Liveness\",le=\"0.025\"} 1\n";
        assert!(text.contains(took), "{text}");
        counts.forget(&desired);
        assert!(!counts.render().contains('{'));
    }
}
