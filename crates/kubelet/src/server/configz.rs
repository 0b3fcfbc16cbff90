//! The configuration that is in force, as `/configz` shows it: what was written, with what counts where nothing was.

use api::write::patch;
use clock::go_time as time;
use json::{Value, json};

use super::answer::{Answer, document};
use crate::{config::Config, kubelet::Kubelet};

pub fn answer(kubelet: &Kubelet) -> Answer {
    document(&json!({ "kubeletconfig": config(&kubelet.config) }))
}

fn config(config: &Config) -> Value {
    let settings = &config.settings;
    let (logs, images, pulls) = (&settings.logs, &settings.images, &settings.pulls);
    let managers = &settings.managers;
    let period = time(std::time::Duration::from_micros(settings.cfs.period.unsigned_abs()));
    let mut in_force = json!({
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "enableServer": true,
        "port": config.serving.as_ref().map(|serving| serving.port),
        "clusterDNS": config.cluster_dns, "clusterDomain": config.cluster_domain, "maxPods": config.max_pods,
        "podsPerCore": settings.pods_per_core,
        "podPidsLimit": settings.pod_pids.unwrap_or(-1),
        "resolvConf": config.resolv_conf.display().to_string(),
        "cgroupDriver": settings.cgroup_driver.name(), "cgroupsPerQOS": true, "cgroupRoot": config.cgroup_root,
        "staticPodPath": config.manifest_dir.as_ref().map(|p| p.display().to_string()).unwrap_or_default(),
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}},
        "authorization": {"mode": "Webhook"},
        "healthzPort": settings.healthz.1, "healthzBindAddress": settings.healthz.0.to_string(),
        "oomScoreAdj": settings.oom_score,
        "nodeStatusReportFrequency": time(settings.status_report),
        "nodeStatusUpdateFrequency": time(settings.status_update),
        "nodeStatusMaxImages": settings.status_images.map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX)),
        "nodeLeaseDurationSeconds": settings.lease_seconds,
        "imageMinimumGCAge": time(images.min_age), "imageMaximumGCAge": time(images.max_age.unwrap_or_default()),
        "imageGCHighThresholdPercent": images.high, "imageGCLowThresholdPercent": images.low,
        "registryPullQPS": pulls.per_second, "registryBurst": pulls.burst,
        "serializeImagePulls": pulls.is_serial(), "maxParallelImagePulls": pulls.at_once,
        "imagePullCredentialsVerificationPolicy": pulls.verification.name(),
        "enableProfilingHandler": settings.profiling,
        "containerLogMaxSize": logs.max_bytes.to_string(), "containerLogMaxFiles": logs.max_files,
        "containerLogMaxWorkers": logs.workers, "containerLogMonitorInterval": time(logs.interval),
        "cpuManagerPolicy": managers.cpu_policy(), "cpuManagerReconcilePeriod": time(managers.period),
        "memoryManagerPolicy": managers.memory_policy(), "topologyManagerPolicy": managers.topology.name(),
        "topologyManagerScope": managers.scope(), "cpuCFSQuota": settings.cfs.enforced,
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "enforceNodeAllocatable": if settings.reserved.enforced.pods { vec!["pods"] } else { vec!["none"] },
        "enableDebuggingHandlers": settings.debugging_handlers, "enableSystemLogHandler": settings.system_logs,
        "enableDebugFlagsHandler": settings.debug_flags,
        "logging": {"verbosity": logs::verbosity(), "flushFrequency": 0},
        "seccompDefault": settings.seccomp_default, "registerNode": settings.registers,
        "memoryThrottlingFactor": settings.memory_throttling,
        "memorySwap": {"swapBehavior": if settings.limited_swap { "LimitedSwap" } else { "NoSwap" }},
        "localStorageCapacityIsolation": settings.local_storage,
        "failSwapOn": settings.fail_swap_on, "failCgroupV1": settings.fail_cgroup_v1,
        "protectKernelDefaults": settings.protect_kernel,
        "shutdownGracePeriod": time(settings.shutdown.all),
        "shutdownGracePeriodCriticalPods": time(settings.shutdown.critical),
        "userNamespaces": {"idsPerPod": settings.users_per_pod},
    });
    in_force["enableSystemLogQuery"] = settings.log_query.into();
    in_force["cpuCFSQuotaPeriod"] = period.into();
    in_force["podLogsDir"] = config.log_folder().display().to_string().into();
    match &config.document {
        // A field that a flag overrules stands as the flag has it.
        Some(document) => patch::merge::apply(document.value().clone(), &in_force_over(document.value(), in_force)),
        None => in_force,
    }
}

/// The values in force, but as the document writes it where both mean the same amount.
fn in_force_over(written: &Value, in_force: Value) -> Value {
    const AS_WRITTEN: [&str; 2] = ["containerLogMaxSize", "enforceNodeAllocatable"];
    let mut shown = in_force;
    for name in AS_WRITTEN.iter().filter(|name| !written[**name].is_null()) {
        shown[*name] = written[*name].clone();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        configuration::{Document, settings::Settings},
        pod::fixture,
    };

    #[tokio::test]
    async fn what_was_written_is_shown_with_what_counts_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, _| None);
        assert_eq!(config(&kubelet.config)["containerLogMaxFiles"], 5);
        let written = json!({"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "containerLogMaxSize": "256Ki", "kubeReserved": {"cpu": "1"}, "maxPods": 7});
        let document = Document::new(written).unwrap();
        let settings = Settings::of(document.value()).unwrap();
        let mut given = std::sync::Arc::into_inner(kubelet).unwrap().config;
        (given.settings, given.document) = (settings, Some(document));
        let shown = config(&given);
        assert_eq!((&shown["containerLogMaxSize"], &shown["kubeReserved"]["cpu"]), (&json!("256Ki"), &json!("1")));
        assert_eq!((&shown["maxPods"], &shown["nodeStatusReportFrequency"]), (&json!(110), &json!("5m0s")));
    }
}
