//! The figures of images, under upstream's names.
//! Upstream counterparts: the files `metrics.go` of pkg/credentialprovider/plugin, pkg/kubelet/images and its pullmanager.

use std::time::Duration;

use meter::{Metric, Metrics, USUAL};

/// Upstream's bounds of the times that pulls take.
const PULLS: &[f64] = &[1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0];

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Upstream's names of sizes: each begins above its number of bytes.
const SIZES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10 * MIB, "10MB-100MB"),
    (100 * MIB, "100MB-500MB"),
    (500 * MIB, "500MB-1GB"),
    (GIB, "1GB-5GB"),
    (5 * GIB, "5GB-10GB"),
    (10 * GIB, "10GB-20GB"),
    (20 * GIB, "20GB-30GB"),
    (30 * GIB, "30GB-40GB"),
    (40 * GIB, "40GB-60GB"),
    (60 * GIB, "60GB-100GB"),
    (100 * GIB, "GT100GB"),
];

static PULL_TOOK: Metric =
    Metric::histogram("kubelet_image_pull_duration_seconds", "[ALPHA] Duration in seconds to pull an image.", PULLS);
static ENSURED: Metric = Metric::counter(
    "kubelet_image_manager_ensure_image_requests_total",
    "[ALPHA] Number of ensure-image requests processed by the kubelet.",
);
static MUST_PULL: Metric = Metric::counter(
    "kubelet_imagemanager_image_mustpull_checks_total",
    "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
);
static INTENTS: Metric =
    Metric::gauge("kubelet_imagemanager_ondisk_pullintents", "[ALPHA] Number of ImagePullIntents stored on disk.");
static RECORDS: Metric =
    Metric::gauge("kubelet_imagemanager_ondisk_pulledrecords", "[ALPHA] Number of ImagePulledRecords stored on disk.");
static PLUGIN_FAILED: Metric = Metric::counter(
    "kubelet_credential_provider_plugin_errors_total",
    "[ALPHA] Number of errors from credential provider plugin",
);
static PLUGIN_TOOK: Metric = Metric::histogram(
    "kubelet_credential_provider_plugin_duration",
    "[ALPHA] Duration of execution in seconds for credential provider plugin",
    USUAL,
);

/// See the module.
#[derive(Default)]
pub struct Counts(Metrics);

fn size_name(bytes: u64) -> &'static str {
    SIZES.iter().rev().find(|(above, _)| bytes > *above).map_or("N/A", |(_, name)| name)
}

fn word(known: Option<bool>) -> &'static str {
    match known {
        Some(true) => "true",
        Some(false) => "false",
        None => "unknown",
    }
}

impl Counts {
    pub fn pulled(&self, bytes: u64, took: Duration) {
        self.0.observe(&PULL_TOOK, &[("image_size_in_bytes", size_name(bytes))], took.as_secs_f64());
    }

    /// A container needed its image; what is not known was not looked for.
    pub fn ensured(&self, policy: &str, is_present: Option<bool>, is_pulled: Option<bool>) {
        let policy = policy.to_ascii_lowercase();
        let of = [("present_locally", word(is_present)), ("pull_policy", &*policy), ("pull_required", word(is_pulled))];
        self.0.count(&ENSURED, &of);
    }

    /// Whether a Pod may use an image without pulling it was looked up, with that result.
    pub fn checked(&self, result: &'static str) {
        self.0.count(&MUST_PULL, &[("result", result)]);
    }

    pub fn asked(&self, provider: &str, took: Duration, succeeded: bool) {
        let of = [("plugin_name", provider)];
        self.0.observe(&PLUGIN_TOOK, &of, took.as_secs_f64());
        if !succeeded {
            self.0.count(&PLUGIN_FAILED, &of);
        }
    }

    /// The page, with the numbers of intents and records that are on disk now.
    pub fn render(&self, (intents, records): (usize, usize)) -> String {
        self.0.set(&INTENTS, &[], intents as f64);
        self.0.set(&RECORDS, &[], records as f64);
        self.0.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_those_of_upstream() {
        let counts = Counts::default();
        for bytes in [0, 1, 11 << 20, 200 << 30] {
            counts.pulled(bytes, Duration::from_secs(2));
        }
        counts.ensured("IfNotPresent", Some(true), Some(false));
        counts.ensured("Always", None, Some(true));
        counts.checked("mustAuthenticate");
        counts.asked("ecr", Duration::from_millis(7), false);
        let page = counts.render((1, 2));
        for line in [
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"N/A\"} 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"0-10MB\"} 1",
            "kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes=\"10MB-100MB\",le=\"1\"} 0",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"GT100GB\"} 1",
            "kubelet_image_manager_ensure_image_requests_total{present_locally=\"true\",pull_policy=\"ifnotpresent\",pull_required=\"false\"} 1",
            "kubelet_image_manager_ensure_image_requests_total{present_locally=\"unknown\",pull_policy=\"always\",pull_required=\"true\"} 1",
            "kubelet_imagemanager_image_mustpull_checks_total{result=\"mustAuthenticate\"} 1",
            "kubelet_imagemanager_ondisk_pullintents 1",
            "kubelet_imagemanager_ondisk_pulledrecords 2",
            "kubelet_credential_provider_plugin_errors_total{plugin_name=\"ecr\"} 1",
            "kubelet_credential_provider_plugin_duration_count{plugin_name=\"ecr\"} 1",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
    }
}
