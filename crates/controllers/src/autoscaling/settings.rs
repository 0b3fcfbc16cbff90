//! How autoscalers are looked at, as the flags `--horizontal-pod-autoscaler-*` say.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The time from one look at an autoscaler's metrics to the next.
    pub sync_period: Duration,
    /// Where an autoscaler says nothing else, a ratio so far from one changes nothing.
    pub tolerance: f64,
    /// A Pod that is younger is measured only when it is ready and was so for a whole interval: starting takes more than serving.
    pub cpu_initialization: Duration,
    /// A Pod that was last ready or unready so soon after its start was never ready.
    pub initial_readiness: Duration,
    /// Where an autoscaler says nothing else, the highest recommendation of this time counts.
    pub downscale_stabilization: Duration,
    /// The number of autoscalers that are looked at together.
    pub concurrent: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sync_period: Duration::from_secs(15),
            tolerance: 0.1,
            cpu_initialization: Duration::from_secs(300),
            initial_readiness: Duration::from_secs(30),
            downscale_stabilization: Duration::from_secs(300),
            concurrent: 5,
        }
    }
}
