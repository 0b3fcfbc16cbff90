//! The resources that must stay free on a node, and how Pods go where they do not: upstream's flags of the kubelet.

use std::time::Duration;

use clap::Args;
use kubelet::eviction::{
    limits::{Limits, Texts},
    pressure,
};

use crate::flags::value;

#[derive(Args, Clone, Debug)]
pub struct Evictions {
    /// The resources that must stay free on the node, as `signal<amount` or `signal<percentage`; below it Pods are
    /// evicted
    #[arg(long, default_value = pressure::DEFAULT, value_name = "THRESHOLDS", value_parser = value::thresholds)]
    eviction_hard: String,
    /// The resources that should stay free; Pods are evicted when they have not for the threshold's grace period
    #[arg(long, default_value = "", value_name = "THRESHOLDS", value_parser = value::thresholds)]
    eviction_soft: String,
    /// How long a soft threshold may be missed, as `signal=duration`
    #[arg(long, default_value = "", value_name = "DURATIONS")]
    eviction_soft_grace_period: String,
    /// The longest grace period, in seconds, of a Pod that is evicted at a soft threshold
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    eviction_max_pod_grace_period: u32,
    /// How much more than the threshold must be free again once a Pod was evicted, as `signal=amount`
    #[arg(long, default_value = "", value_name = "AMOUNTS")]
    eviction_minimum_reclaim: String,
    /// How long the node says that it is short of something after it last was
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = value::duration)]
    eviction_pressure_transition_period: Duration,
}

impl Evictions {
    /// The flags as they were given, for another node.
    pub fn texts(&self) -> [(&'static str, String); 6] {
        let transition = self.eviction_pressure_transition_period.as_millis();
        [
            ("eviction-hard", self.eviction_hard.clone()),
            ("eviction-soft", self.eviction_soft.clone()),
            ("eviction-soft-grace-period", self.eviction_soft_grace_period.clone()),
            ("eviction-max-pod-grace-period", self.eviction_max_pod_grace_period.to_string()),
            ("eviction-minimum-reclaim", self.eviction_minimum_reclaim.clone()),
            ("eviction-pressure-transition-period", format!("{transition}ms")),
        ]
    }

    pub fn limits(&self) -> Result<Limits, String> {
        let texts = Texts {
            hard: &self.eviction_hard,
            soft: &self.eviction_soft,
            soft_grace: &self.eviction_soft_grace_period,
            reclaim: &self.eviction_minimum_reclaim,
        };
        let most = self.eviction_max_pod_grace_period;
        Limits::read(texts, most, self.eviction_pressure_transition_period, value::duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        evictions: Evictions,
    }

    #[test]
    fn flags_are_read_as_upstream_writes_them() {
        let limits = |flags: &[&str]| Flags::parse_from([&["test"][..], flags].concat()).evictions.limits();
        assert!(limits(&[]).is_ok_and(|limits| limits.transition == Duration::from_secs(300)));
        let soft = ["--eviction-soft=memory.available<1Gi", "--eviction-soft-grace-period=memory.available=1m30s"];
        assert!(limits(&soft).is_ok());
        let given = Flags::parse_from([&["test", "--eviction-pressure-transition-period=90s"][..], &soft].concat());
        let again: Vec<String> = given.evictions.texts().map(|(name, value)| format!("--{name}={value}")).into();
        let again = Flags::parse_from([vec!["test".to_owned()], again].concat());
        assert_eq!(again.evictions.limits(), given.evictions.limits());
        assert!(limits(&soft[..1]).is_err_and(|why| why.starts_with("--eviction-soft-grace-period is not usable: ")));
    }
}
