//! When a node counts as lost, and how fast the Pods of lost nodes are evicted: upstream's flags.

use std::time::Duration;

use clap::Args;
use controllers::node::{lifecycle::Limits, zones::Evictions};

use crate::flags::value;

#[derive(Args, Clone, Debug)]
pub struct LostNodes {
    /// How long a node may say nothing before it counts as lost
    #[arg(long, default_value = "50s", value_name = "DURATION", value_parser = value::duration)]
    node_monitor_grace_period: Duration,
    /// How long a node that has just started may say nothing before it counts as lost
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = value::duration)]
    node_startup_grace_period: Duration,
    /// How many lost nodes of a zone per second get the taint that evicts their Pods
    #[arg(long, default_value = "0.1", value_name = "RATE", value_parser = value::tolerance)]
    node_eviction_rate: f64,
    /// That rate while much of a large zone is lost; in a small zone it is 0 then
    #[arg(long, default_value = "0.01", value_name = "RATE", value_parser = value::tolerance)]
    secondary_node_eviction_rate: f64,
    /// A zone with more nodes is large
    #[arg(long, default_value = "50", value_name = "NODES")]
    large_cluster_size_threshold: usize,
    /// Which part of a zone, at least three nodes, is much of it
    #[arg(long, default_value = "0.55", value_name = "PART", value_parser = value::tolerance)]
    unhealthy_zone_threshold: f64,
}

impl LostNodes {
    pub fn limits(&self) -> Limits {
        Limits {
            grace: self.node_monitor_grace_period,
            startup_grace: self.node_startup_grace_period,
            evictions: Evictions {
                rate: self.node_eviction_rate,
                secondary_rate: self.secondary_node_eviction_rate,
                large_zone: self.large_cluster_size_threshold,
                unhealthy_part: self.unhealthy_zone_threshold,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        nodes: LostNodes,
    }

    #[test]
    fn the_usual_limits_are_the_controllers_own() {
        let limits = |flags: &[&str]| Flags::parse_from([&["test"][..], flags].concat()).nodes.limits();
        assert_eq!(limits(&[]), Limits::default());
        let other =
            limits(&["--node-eviction-rate=0", "--large-cluster-size-threshold=0", "--node-monitor-grace-period=5s"]);
        assert_eq!((other.evictions.rate, other.evictions.large_zone, other.grace), (0.0, 0, Duration::from_secs(5)));
    }
}
