//! The figures of one kubelet's work, under upstream's names. Series of Pods or containers are not here: there may be any number.
//! Upstream counterpart: pkg/kubelet/metrics.

mod requests;
mod resizes;

use std::{collections::BTreeMap, time::Duration};

use clock::{Instant, Timestamp};
use meter::{Metric, Metrics, STORAGE, USUAL};
use parking_lot::Mutex;
use runtime::grpc::{self, Code};

use crate::pod::desired::DesiredPod;

pub use resizes::Requested;

/// Upstream's bounds of the times until a Pod's status is written.
const STATUSES: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// Upstream's bounds of the times that Pods take to start.
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// Upstream's bounds of calls of the engine: 0.005 s, times 2.5 each.
const CALLS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.023_223_876_953_1,
    745.058_059_692_382_8,
];

static NODE_NAME: Metric = Metric::gauge("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.");
static PROVIDER: Metric = Metric::gauge(
    "kubelet_metrics_provider",
    "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
);
static RUNNING_PODS: Metric =
    Metric::gauge("kubelet_running_pods", "[BETA] Number of pods that have a running pod sandbox");
static RUNNING_CONTAINERS: Metric =
    Metric::gauge("kubelet_running_containers", "[BETA] Number of containers currently running");
static DESIRED_PODS: Metric =
    Metric::gauge("kubelet_desired_pods", "[ALPHA] The number of pods the kubelet is being instructed to run");
static ACTIVE_PODS: Metric = Metric::gauge(
    "kubelet_active_pods",
    "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods.",
);
static WORKING_PODS: Metric = Metric::gauge(
    "kubelet_working_pods",
    "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, \
     or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or \
     force deleted in the API and consumes resources that are not otherwise visible.",
);
static MIRROR_PODS: Metric = Metric::gauge(
    "kubelet_mirror_pods",
    "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)",
);
static VOLUMES: Metric = Metric::gauge("volume_manager_total_volumes", "[ALPHA] Number of volumes in Volume Manager");
static RELIST: Metric = Metric::histogram(
    "kubelet_pleg_relist_duration_seconds",
    "[ALPHA] Duration in seconds for relisting pods in PLEG.",
    USUAL,
);
static RELIST_INTERVAL: Metric = Metric::histogram(
    "kubelet_pleg_relist_interval_seconds",
    "[ALPHA] Interval in seconds between relisting in PLEG.",
    USUAL,
);
static RELIST_SEEN: Metric =
    Metric::gauge("kubelet_pleg_last_seen_seconds", "[ALPHA] Timestamp in seconds when PLEG was last seen active.");
static CALLED: Metric = Metric::counter(
    "kubelet_runtime_operations_total",
    "[ALPHA] Cumulative number of runtime operations by operation type.",
);
static CALL_FAILED: Metric = Metric::counter(
    "kubelet_runtime_operations_errors_total",
    "[ALPHA] Cumulative number of runtime operation errors by operation type.",
);
static CALL_TOOK: Metric = Metric::histogram(
    "kubelet_runtime_operations_duration_seconds",
    "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
    CALLS,
);
static POD_START: Metric = Metric::histogram(
    "kubelet_pod_start_duration_seconds",
    "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
    STARTS,
);
static POD_START_SLI: Metric = Metric::histogram(
    "kubelet_pod_start_sli_duration_seconds",
    "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation \
     timestamp to when all its containers are reported as started and observed via watch",
    STARTS,
);
static POD_START_TOTAL: Metric = Metric::histogram(
    "kubelet_pod_start_total_duration_seconds",
    "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured \
     from pod creation timestamp to when all its containers are reported as started and observed via watch",
    STARTS,
);
static WORKER: Metric = Metric::histogram(
    "kubelet_pod_worker_duration_seconds",
    "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
    USUAL,
);
static CGROUPS: Metric = Metric::histogram(
    "kubelet_cgroup_manager_duration_seconds",
    "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
    USUAL,
);
static SANDBOX: Metric = Metric::histogram(
    "kubelet_run_podsandbox_duration_seconds",
    "[ALPHA] Seconds in which the engine made a sandbox, by the handler of its RuntimeClass",
    USUAL,
);
static SANDBOX_FAILED: Metric = Metric::counter(
    "kubelet_run_podsandbox_errors_total",
    "[ALPHA] Sandboxes that the engine did not make, by the handler of their RuntimeClass",
);
static STATUS: Metric = Metric::histogram(
    "kubelet_pod_status_sync_duration_seconds",
    "[ALPHA] Seconds from a change of a Pod's status until the API shows it, with all that changed in between",
    STATUSES,
);
static ORPHANS: Metric = Metric::gauge(
    "kubelet_orphan_pod_cleaned_volumes",
    "[ALPHA] Pods of an earlier kubelet that are wanted no more, and whose volumes this one has cleared away",
);
static ORPHANS_FAILED: Metric = Metric::gauge(
    "kubelet_orphan_pod_cleaned_volumes_errors",
    "[ALPHA] Pods of an earlier kubelet that are wanted no more, and whose volumes cannot be cleared away",
);
static PLUGINS: Metric = Metric::gauge(
    "plugin_manager_total_plugins",
    "[ALPHA] Sockets of plugins that are there, and those that are in use",
);
static STARTED_PODS: Metric =
    Metric::counter("kubelet_started_pods_total", "[ALPHA] Cumulative number of pods started");
static STARTED_PODS_ERRORS: Metric =
    Metric::counter("kubelet_started_pods_errors_total", "[ALPHA] Cumulative number of errors when starting pods");
static STARTED_CONTAINERS: Metric =
    Metric::counter("kubelet_started_containers_total", "[ALPHA] Cumulative number of containers started");
static STARTED_CONTAINERS_ERRORS: Metric = Metric::counter(
    "kubelet_started_containers_errors_total",
    "[ALPHA] Cumulative number of errors when starting containers",
);
static EVICTIONS: Metric =
    Metric::counter("kubelet_evictions", "[ALPHA] Cumulative number of pod evictions by eviction signal");
static HOOK_FELL_BACK: Metric = Metric::counter(
    "kubelet_lifecycle_handler_http_fallbacks_total",
    "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.",
);
static SHUTDOWN_BEGAN: Metric = Metric::gauge(
    "kubelet_graceful_shutdown_start_time_seconds",
    "[ALPHA] Last graceful shutdown start time since unix epoch in seconds",
);
static SHUTDOWN_ENDED: Metric = Metric::gauge(
    "kubelet_graceful_shutdown_end_time_seconds",
    "[ALPHA] Last graceful shutdown end time since unix epoch in seconds",
);
static DRIVER_TOOK: Metric = Metric::histogram(
    "csi_operations_seconds",
    "[ALPHA] Container Storage Interface operation duration with gRPC error code status total",
    STORAGE,
);
static STORAGE_TOOK: Metric =
    Metric::histogram("storage_operation_duration_seconds", "[ALPHA] Storage operation duration", STORAGE);

/// The source that wants a Pod, and whether it is static, as far as that is known. Each number of working Pods is told, also where it is 0.
const WANTED: [(&str, &str); 5] =
    [("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true"), ("runtime_only", "unknown")];

/// How much there is of what comes and goes.
#[derive(Debug, Default)]
pub struct Moment {
    pub node_name: String,
    /// The counter of containers: the kernel or the engine, in upstream's words.
    pub provider: &'static str,
    /// Pods that have a sandbox which is ready.
    pub running_pods: usize,
    /// Containers by their states.
    pub containers: BTreeMap<&'static str, usize>,
    /// Pods of the API server, and static ones: that are wanted, and those of them that are not over.
    pub pods: [(usize, usize); 2],
    /// Pods that have a worker, by who wants them, by how far the worker is, and by whether they are static, in upstream's words.
    pub working_pods: BTreeMap<[&'static str; 3], usize>,
    /// Mirrors of static Pods that the API server has.
    pub mirror_pods: usize,
    /// Volumes by the names of their plugins and by whether they are wanted or mounted.
    pub volumes: BTreeMap<(String, &'static str), usize>,
    /// Resizes of Pods that wait, by upstream's words for why, and those that are under way.
    pub pending_resizes: BTreeMap<String, usize>,
    pub resizes: usize,
}

/// See the module.
#[derive(Default)]
pub struct Figures {
    metrics: Metrics,
    relisted: Mutex<Option<Instant>>,
    /// The time that pulls of images took, by the uids of Pods that have not started yet.
    pulls: Mutex<BTreeMap<String, Duration>>,
}

impl Figures {
    /// Counts a call of the engine with the time that it took.
    pub async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = runtime::Result<T>>,
    ) -> runtime::Result<T> {
        let begun = Instant::now();
        let outcome = call.await;
        let of = [("operation_type", operation)];
        self.metrics.count(&CALLED, &of);
        self.metrics.observe(&CALL_TOOK, &of, begun.elapsed().as_secs_f64());
        if outcome.is_err() {
            self.metrics.count(&CALL_FAILED, &of);
        }
        outcome
    }

    /// All containers were listed anew, which began then.
    pub fn relisted(&self, begun: Instant) {
        self.metrics.observe(&RELIST, &[], begun.elapsed().as_secs_f64());
        if let Some(before) = self.relisted.lock().replace(begun) {
            self.metrics.observe(&RELIST_INTERVAL, &[], begun.saturating_duration_since(before).as_secs_f64());
        }
        self.metrics.set(&RELIST_SEEN, &[], clock::now().as_second() as f64);
    }

    /// An image was pulled for a Pod.
    pub fn pulled(&self, uid: &str, took: Duration) {
        *self.pulls.lock().entry(uid.to_owned()).or_default() += took;
    }

    /// A Pod that this kubelet saw first then runs now.
    pub fn runs(&self, desired: &DesiredPod, seen: Instant) {
        let pulls = self.pulls.lock().remove(desired.uid()).unwrap_or_default().as_secs_f64();
        self.metrics.observe(&POD_START, &[], seen.elapsed().as_secs_f64());
        let created: Option<Timestamp> = desired.pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let Some(created) = created.filter(|_| !desired.is_static) else { return };
        let total = clock::now().duration_since(created).as_secs_f64().max(0.0);
        self.metrics.observe(&POD_START_TOTAL, &[], total);
        self.metrics.observe(&POD_START_SLI, &[], (total - pulls).max(0.0));
    }

    pub fn forget(&self, uid: &str) {
        self.pulls.lock().remove(uid);
    }

    /// A worker has done its steps: `create` the first time, `sync` later.
    pub fn worked(&self, operation: &'static str, took: Duration) {
        self.metrics.observe(&WORKER, &[("operation_type", operation)], took.as_secs_f64());
    }

    pub fn cgroup(&self, operation: &'static str, took: Duration) {
        self.metrics.observe(&CGROUPS, &[("operation_type", operation)], took.as_secs_f64());
    }

    /// The engine has made a sandbox for a handler, or was asked to.
    pub fn sandbox(&self, handler: &str, succeeded: bool, took: Duration) {
        let of = [("runtime_handler", handler)];
        self.metrics.observe(&SANDBOX, &of, took.as_secs_f64());
        if !succeeded {
            self.metrics.count(&SANDBOX_FAILED, &of);
        }
    }

    /// The API shows a status that changed so long ago.
    pub fn wrote_status(&self, took: Duration) {
        self.metrics.observe(&STATUS, &[], took.as_secs_f64());
    }

    /// Adds to the Pods of an earlier kubelet whose volumes are cleared away, and to those whose volumes cannot be.
    pub fn orphans(&self, cleaned: f64, failed: f64) {
        self.metrics.series(&ORPHANS, &[]).shift(cleaned);
        self.metrics.series(&ORPHANS_FAILED, &[]).shift(failed);
    }

    /// A plugin's socket is there, and whether the plugin is in use.
    pub fn plugin(&self, socket: &str, is_registered: bool) {
        let set = |state, count| self.metrics.set(&PLUGINS, &[("socket_path", socket), ("state", state)], count);
        set("desired_state_of_world", 1.0);
        if is_registered {
            set("actual_state_of_world", 1.0);
        }
    }

    pub fn plugin_gone(&self, socket: &str) {
        self.metrics.forget(&PLUGINS, &[("socket_path", socket)]);
    }

    /// A sandbox was to be made.
    pub fn started_pod(&self, succeeded: bool) {
        self.metrics.count(&STARTED_PODS, &[]);
        if !succeeded {
            self.metrics.count(&STARTED_PODS_ERRORS, &[]);
        }
    }

    /// A container of that sort was to be started; why it was not is a reason such as `CreateContainerError`.
    pub fn started_container(&self, sort: &'static str, failure: Option<&str>) {
        self.metrics.count(&STARTED_CONTAINERS, &[("container_type", sort)]);
        if let Some(code) = failure {
            self.metrics.count(&STARTED_CONTAINERS_ERRORS, &[("code", code), ("container_type", sort)]);
        }
    }

    pub fn evicted(&self, signal: &str) {
        self.metrics.count(&EVICTIONS, &[("eviction_signal", signal)]);
    }

    /// A hook that should have spoken TLS was answered without it.
    pub fn hook_fell_back(&self) {
        self.metrics.count(&HOOK_FELL_BACK, &[]);
    }

    /// The machine's graceful end began, and was over.
    pub fn shut_down(&self, began: Option<Timestamp>, ended: Option<Timestamp>) {
        for (metric, time) in [(&SHUTDOWN_BEGAN, began), (&SHUTDOWN_ENDED, ended)] {
            self.metrics.set(metric, &[], time.map_or(0.0, |time| time.as_second() as f64));
        }
    }

    /// A volume was mounted, refreshed or unmounted. `plugin` is upstream's name of its plugin.
    pub fn storage(&self, plugin: &str, operation: &'static str, succeeded: bool, took: Duration) {
        let status = if succeeded { "success" } else { "fail-unknown" };
        let of = [("migrated", "false"), ("operation_name", operation), ("status", status), ("volume_plugin", plugin)];
        self.metrics.observe(&STORAGE_TOOK, &of, took.as_secs_f64());
    }

    /// A CSI driver has answered a call, or not.
    pub fn called_driver(&self, driver: &str, method: &'static str, code: Code, took: Duration) {
        let code = grpc::code_name(code);
        let of = [("driver_name", driver), ("grpc_status_code", code), ("method_name", method), ("migrated", "false")];
        self.metrics.observe(&DRIVER_TOOK, &of, took.as_secs_f64());
    }

    /// Takes in the counts of this moment.
    pub fn now(&self, moment: &Moment) {
        let set = |metric, of: &[(&str, &str)], value: usize| self.metrics.set(metric, of, value as f64);
        set(&NODE_NAME, &[("node", &moment.node_name)], 1);
        set(&PROVIDER, &[("provider", moment.provider)], 1);
        set(&RUNNING_PODS, &[], moment.running_pods);
        for (state, count) in &moment.containers {
            set(&RUNNING_CONTAINERS, &[("container_state", state)], *count);
        }
        for (word, (desired, active)) in ["", "true"].into_iter().zip(moment.pods) {
            set(&DESIRED_PODS, &[("static", word)], desired);
            set(&ACTIVE_PODS, &[("static", word)], active);
        }
        set(&MIRROR_PODS, &[], moment.mirror_pods);
        for (config, is_static) in WANTED {
            for lifecycle in ["sync", "terminating", "terminated"] {
                let count = moment.working_pods.get(&[config, lifecycle, is_static]).copied().unwrap_or_default();
                set(&WORKING_PODS, &[("config", config), ("lifecycle", lifecycle), ("static", is_static)], count);
            }
        }
        self.metrics.forget(&VOLUMES, &[]);
        for ((plugin, state), count) in &moment.volumes {
            set(&VOLUMES, &[("plugin_name", plugin), ("state", state)], *count);
        }
        self.resizes(&moment.pending_resizes, moment.resizes);
        // They are told also while there were none.
        self.orphans(0.0, 0.0);
    }

    pub fn render(&self) -> String {
        self.metrics.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture;
    use json::json;

    #[tokio::test]
    async fn the_names_are_those_that_dashboards_ask_for() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, _| None);
        let (figures, begun) = (Figures::default(), Instant::now());
        kubelet.config.runtime.version().await.unwrap();
        figures.relisted(begun);
        figures.relisted(begun);
        let created = clock::now().checked_sub(Duration::from_secs(7)).unwrap();
        let desired = fixture::pod_of(
            json!({"metadata": {"creationTimestamp": created.to_string()}, "spec": {"containers": []}}),
        );
        figures.pulled("u", Duration::from_secs(4));
        figures.runs(&desired, begun);
        figures.called_driver("d.io", "/csi.v1.Node/NodePublishVolume", Code::Cancelled, Duration::from_secs(3));
        figures.storage("kubernetes.io/empty-dir", "volume_mount", true, Duration::from_millis(200));
        figures.started_container("container", Some("RunContainerError"));
        figures.shut_down(Some(Timestamp::from_second(1_700_000_000).unwrap()), None);
        let moment = Moment {
            node_name: "n1".into(),
            provider: "cri",
            running_pods: 3,
            containers: [("running", 5)].into(),
            pods: [(4, 2), (1, 1)],
            working_pods: [(["orphan", "terminating", "true"], 1)].into(),
            mirror_pods: 2,
            volumes: [(("kubernetes.io/secret".to_owned(), "desired_state_of_world"), 2)].into(),
            pending_resizes: [("deferred".to_owned(), 3)].into(),
            resizes: 4,
        };
        figures.sandbox("gvisor", false, Duration::from_secs(2));
        figures.wrote_status(Duration::from_millis(60));
        figures.orphans(0.0, 1.0);
        figures.orphans(1.0, -1.0);
        for (socket, is_registered) in [("/r/a.sock", true), ("/r/b.sock", false), ("/r/c.sock", true)] {
            figures.plugin(socket, is_registered);
        }
        figures.plugin_gone("/r/c.sock");
        figures.now(&moment);
        let text = figures.render();
        for row in [
            "kubelet_node_name{node=\"n1\"} 1",
            "kubelet_metrics_provider{provider=\"cri\"} 1",
            "kubelet_graceful_shutdown_start_time_seconds 1.7e+09",
            "kubelet_graceful_shutdown_end_time_seconds 0",
            "kubelet_running_pods 3",
            "kubelet_running_containers{container_state=\"running\"} 5",
            "kubelet_desired_pods{static=\"\"} 4",
            "kubelet_active_pods{static=\"true\"} 1",
            "kubelet_mirror_pods 2",
            "kubelet_working_pods{config=\"orphan\",lifecycle=\"terminating\",static=\"true\"} 1",
            "kubelet_working_pods{config=\"runtime_only\",lifecycle=\"sync\",static=\"unknown\"} 0",
            "volume_manager_total_volumes{plugin_name=\"kubernetes.io/secret\",state=\"desired_state_of_world\"} 2",
            "kubelet_pod_pending_resizes{reason=\"deferred\"} 3",
            "kubelet_pod_in_progress_resizes 4",
            "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"gvisor\"} 1",
            "kubelet_run_podsandbox_errors_total{runtime_handler=\"gvisor\"} 1",
            "kubelet_pod_status_sync_duration_seconds_bucket{le=\"0.05\"} 0",
            "kubelet_pod_status_sync_duration_seconds_bucket{le=\"0.1\"} 1",
            "kubelet_orphan_pod_cleaned_volumes 1",
            "kubelet_orphan_pod_cleaned_volumes_errors 0",
            "plugin_manager_total_plugins{socket_path=\"/r/a.sock\",state=\"actual_state_of_world\"} 1",
            "plugin_manager_total_plugins{socket_path=\"/r/b.sock\",state=\"desired_state_of_world\"} 1",
            "kubelet_pleg_relist_duration_seconds_count 2",
            "kubelet_pleg_relist_interval_seconds_count 1",
            "kubelet_pod_start_sli_duration_seconds_bucket{le=\"3\"} 0",
            "kubelet_pod_start_sli_duration_seconds_bucket{le=\"4\"} 1",
            "kubelet_pod_start_total_duration_seconds_bucket{le=\"6\"} 0",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.5\"} 1",
            "kubelet_started_containers_errors_total{code=\"RunContainerError\",container_type=\"container\"} 1",
            "csi_operations_seconds_bucket{driver_name=\"d.io\",grpc_status_code=\"Canceled\",\
             method_name=\"/csi.v1.Node/NodePublishVolume\",migrated=\"false\",le=\"5\"} 1",
            "storage_operation_duration_seconds_bucket{migrated=\"false\",operation_name=\"volume_mount\",status=\"success\",\
             volume_plugin=\"kubernetes.io/empty-dir\",le=\"0.25\"} 1",
        ] {
            assert!(text.lines().any(|line| line == row), "{row}\n{text}");
        }
        let plugins = text.lines().filter(|line| line.starts_with("plugin_manager_total_plugins"));
        assert_eq!(plugins.count(), 3, "{text}");
        let calls = kubelet.figures.render();
        assert!(calls.contains("kubelet_runtime_operations_total{operation_type=\"version\"} 1\n"), "{calls}");
    }
}
