//! The configurations in force of the components in a server's process, by the names under which upstream's show theirs.
//! Upstream counterpart: k8s.io/component-base/configz.

use clock::go_time;
use json::{Value, json};

use crate::flags::options::ControlPlane;

/// `/configz` of a server; parts that do not run are not in it.
pub fn of(options: &ControlPlane, scheduler: &scheduler::Settings) -> Value {
    let mut page = json!({});
    if options.runs("scheduler") {
        page["componentconfig"] = scheduler::config::shown(scheduler);
    }
    if options.runs("controllers") {
        page["kubecontrollermanager.config.k8s.io"] = controllers(options);
    }
    page
}

/// Upstream's type has no other names for its fields than those of Go.
fn controllers(options: &ControlPlane) -> Value {
    let (scaling, nodes, masks) = (options.autoscaling(), options.lost_nodes.limits(), &options.node_ranges);
    let ranges = |all: &[ipnet::IpNet]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    json!({
        "Generic": {
            "Controllers": options.controllers,
            "LeaderElection": {
                "LeaderElect": options.leads(),
                "LeaseDuration": go_time(options.leader_elect_lease_duration),
                "RenewDeadline": go_time(options.leader_elect_renew_deadline),
                "RetryPeriod": go_time(options.leader_elect_retry_period),
            },
            "Debugging": {"EnableProfiling": options.profiling},
        },
        "KubeCloudShared": {"ClusterCIDR": ranges(options.cluster_cidr.all()), "AllocateNodeCIDRs": true},
        "HPAController": {
            "ConcurrentHorizontalPodAutoscalerSyncs": scaling.concurrent,
            "HorizontalPodAutoscalerSyncPeriod": go_time(scaling.sync_period),
            "HorizontalPodAutoscalerDownscaleStabilizationWindow": go_time(scaling.downscale_stabilization),
            "HorizontalPodAutoscalerTolerance": scaling.tolerance,
            "HorizontalPodAutoscalerCPUInitializationPeriod": go_time(scaling.cpu_initialization),
            "HorizontalPodAutoscalerInitialReadinessDelay": go_time(scaling.initial_readiness),
        },
        "NodeLifecycleController": {
            "NodeMonitorGracePeriod": go_time(nodes.grace),
            "NodeStartupGracePeriod": go_time(nodes.startup_grace),
            "NodeEvictionRate": nodes.evictions.rate,
            "SecondaryNodeEvictionRate": nodes.evictions.secondary_rate,
            "LargeClusterSizeThreshold": nodes.evictions.large_zone,
            "UnhealthyZoneThreshold": nodes.evictions.unhealthy_part,
        },
        "NodeIPAMController": {
            "ServiceCIDR": ranges(options.service_cluster_ip_range.all()),
            "NodeCIDRMaskSize": masks.node_cidr_mask_size,
            "NodeCIDRMaskSizeIPv4": masks.node_cidr_mask_size_ipv4,
            "NodeCIDRMaskSizeIPv6": masks.node_cidr_mask_size_ipv6,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_shown_as_they_count() {
        let mut options = ControlPlane::usual();
        let shown = |options: &ControlPlane| of(options, &options.scheduler().unwrap());
        let page = shown(&options);
        let controllers = &page["kubecontrollermanager.config.k8s.io"];
        assert_eq!(controllers["HPAController"]["HorizontalPodAutoscalerSyncPeriod"], "15s");
        assert_eq!(controllers["Generic"]["LeaderElection"]["LeaderElect"], false);
        assert_eq!(page["componentconfig"]["kind"], "KubeSchedulerConfiguration");
        options.disable = vec!["scheduler".to_owned()];
        options.leader_elect = Some(true);
        let page = shown(&options);
        assert!(page["componentconfig"].is_null());
        assert_eq!(page["kubecontrollermanager.config.k8s.io"]["Generic"]["LeaderElection"]["LeaderElect"], true);
    }
}
