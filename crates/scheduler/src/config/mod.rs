//! `KubeSchedulerConfiguration` v1: the file by which users set the scheduler up, with defaults and validation in upstream's
//! words. A field that is not known is an error that names it: a setting that nobody follows would only mislead.
//! Upstream counterpart: pkg/scheduler/apis/config.

use std::{sync::Arc, time::Duration};

use api::{
    features::Features,
    validation::field::{FieldError, Path},
};
use json::Value;
use serde::Deserialize;

use crate::{class::DEFAULT_SCHEDULER, engine::Settings, plugins::PLUGINS, profile::Profile};

mod extenders;
mod plugin_args;
mod plugin_sets;
mod shown;

use extenders::ExtenderSpec;
use plugin_sets::PluginSets;
pub use shown::shown;

const VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

/// The file as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    api_version: String,
    kind: String,
    /// How many things upstream does at once. One task decides here, so only the bound is checked.
    parallelism: Option<i32>,
    #[serde(default)]
    leader_election: LeaderElection,
    #[serde(default)]
    client_connection: ClientConnection,
    #[serde(rename = "enableProfiling")]
    _enable_profiling: Option<bool>,
    #[serde(rename = "enableContentionProfiling")]
    _enable_contention_profiling: Option<bool>,
    #[serde(rename = "delayCacheUntilActive")]
    _delay_cache_until_active: Option<bool>,
    percentage_of_nodes_to_score: Option<i32>,
    pod_initial_backoff_seconds: Option<i64>,
    pod_max_backoff_seconds: Option<i64>,
    #[serde(default)]
    profiles: Vec<ProfileSpec>,
    #[serde(default)]
    extenders: Vec<ExtenderSpec>,
}

/// Known, so that upstream's files can be read as they are; one scheduler runs in the server's process.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaderElection {
    leader_elect: Option<bool>,
    resource_lock: Option<String>,
    #[serde(rename = "leaseDuration")]
    _lease_duration: Option<String>,
    #[serde(rename = "renewDeadline")]
    _renew_deadline: Option<String>,
    #[serde(rename = "retryPeriod")]
    _retry_period: Option<String>,
    #[serde(rename = "resourceName")]
    _resource_name: Option<String>,
    #[serde(rename = "resourceNamespace")]
    _resource_namespace: Option<String>,
}

/// Known for the same reason; the scheduler reaches its server without a network.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClientConnection {
    #[serde(rename = "kubeconfig")]
    _kubeconfig: Option<String>,
    #[serde(rename = "acceptContentTypes")]
    _accept_content_types: Option<String>,
    #[serde(rename = "contentType")]
    _content_type: Option<String>,
    #[serde(rename = "qps")]
    _qps: Option<f32>,
    burst: Option<i32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProfileSpec {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<i32>,
    #[serde(default)]
    plugins: PluginSets,
    #[serde(default)]
    plugin_config: Vec<PluginConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginConfig {
    name: String,
    #[serde(default)]
    args: Value,
}

/// Reads the configuration. The error says everything that is wrong, one thing in each line.
pub fn parse(value: Value, features: Features) -> Result<Settings, String> {
    let configuration = Configuration::deserialize(&value).map_err(|error| error.to_string())?;
    let mut errors = Errors::default();
    let settings = configuration.settings(features, &mut errors);
    if errors.0.is_empty() { Ok(settings.switched()) } else { Err(errors.0.join("\n")) }
}

/// The mistakes in a file, as users read them.
#[derive(Default)]
pub(crate) struct Errors(Vec<String>);

impl Errors {
    pub fn add(&mut self, error: FieldError) {
        self.0.push(error.to_string());
    }

    /// Something about this place that is no field error.
    pub fn say(&mut self, path: &Path, what: &str) {
        self.0.push(format!("{path}: {what}"));
    }
}

impl Configuration {
    fn settings(mut self, features: Features, errors: &mut Errors) -> Settings {
        if self.api_version != VERSION || self.kind != KIND {
            let (version, kind) = (&self.api_version, &self.kind);
            errors.0.push(format!("it is of kind {kind:?} in {version:?}; expected {KIND:?} in {VERSION:?}"));
        }
        self.check(errors);
        if self.profiles.is_empty() {
            self.profiles.push(ProfileSpec::default());
        }
        // Only a single profile may go without a name.
        if let [only] = &mut *self.profiles {
            only.scheduler_name.get_or_insert_with(|| DEFAULT_SCHEDULER.to_owned());
        }
        let percentage = self.percentage_of_nodes_to_score.unwrap_or(0);
        let profiles = Path::new("profiles");
        for (index, profile) in self.profiles.iter().enumerate() {
            let same = self.profiles[..index].iter().position(|other| other.scheduler_name == profile.scheduler_name);
            if let Some(same) = same.filter(|_| profile.scheduler_name.is_some()) {
                let (path, other) = (profiles.index(index), profiles.index(same));
                let other = other.child("schedulerName").to_string();
                errors.add(FieldError::duplicate(&path.child("schedulerName"), other));
            }
        }
        let (extenders, ignored) = extenders::read(std::mem::take(&mut self.extenders), errors);
        let read = |(index, profile): (usize, ProfileSpec)| {
            profile.read(&profiles.index(index), percentage, (&ignored, features), errors)
        };
        let seconds = |given: Option<i64>, default: u64| {
            Duration::from_secs(given.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(default))
        };
        Settings {
            backoff: (seconds(self.pod_initial_backoff_seconds, 1), seconds(self.pod_max_backoff_seconds, 10)),
            profiles: std::mem::take(&mut self.profiles).into_iter().enumerate().map(read).collect(),
            plugins: PLUGINS,
            extenders,
            features,
        }
    }

    fn check(&self, errors: &mut Errors) {
        if let Some(parallelism) = self.parallelism.filter(|p| *p <= 0) {
            let detail = "should be an integer value greater than zero";
            errors.add(FieldError::invalid(&Path::new("parallelism"), parallelism, detail));
        }
        percentage(&Path::new("percentageOfNodesToScore"), self.percentage_of_nodes_to_score, errors);
        let (initial, longest) =
            (self.pod_initial_backoff_seconds.unwrap_or(1), self.pod_max_backoff_seconds.unwrap_or(10));
        if initial <= 0 {
            errors.add(FieldError::invalid(&Path::new("podInitialBackoffSeconds"), initial, "must be greater than 0"));
        }
        if longest < initial {
            let detail = "must be greater than or equal to PodInitialBackoffSeconds";
            errors.add(FieldError::invalid(&Path::new("podMaxBackoffSeconds"), longest, detail));
        }
        let lock = self.leader_election.resource_lock.as_deref().unwrap_or("leases");
        if self.leader_election.leader_elect != Some(false) && lock != "leases" {
            let path = Path::new("leaderElection").child("resourceLock");
            errors.add(FieldError::invalid(&path, lock, "resourceLock value must be \"leases\""));
        }
        if let Some(burst) = self.client_connection.burst.filter(|burst| *burst < 0) {
            errors.add(FieldError::invalid(
                &Path::new("clientConnection").child("burst"),
                burst,
                "must be non-negative",
            ));
        }
    }
}

fn percentage(path: &Path, given: Option<i32>, errors: &mut Errors) {
    if let Some(given) = given.filter(|given| !(0..=100).contains(given)) {
        errors.add(FieldError::invalid(path, given, "not in valid range [0-100]"));
    }
}

impl ProfileSpec {
    fn read(
        self,
        path: &Path,
        of_all: i32,
        (ignored, features): (&[String], Features),
        errors: &mut Errors,
    ) -> Profile {
        let scheduler_name = self.scheduler_name.unwrap_or_default();
        if scheduler_name.is_empty() {
            errors.add(FieldError::required(&path.child("schedulerName"), ""));
        }
        percentage(&path.child("percentageOfNodesToScore"), self.percentage_of_nodes_to_score, errors);
        let percentage = self.percentage_of_nodes_to_score.unwrap_or(of_all);
        let mut args = crate::args::Args::default();
        for (index, config) in self.plugin_config.iter().enumerate() {
            let path = path.child("pluginConfig").index(index);
            if self.plugin_config[..index].iter().any(|other| other.name == config.name) {
                errors.add(FieldError::duplicate(&path, &config.name));
            }
            let (given, path) = ((&*config.name, config.args.clone()), path.child("args"));
            plugin_args::read(given, &path, features, &mut args, errors);
        }
        args.ignored_resources.extend_from_slice(ignored);
        Profile {
            plugins: plugin_sets::enabled(&self.plugins, &path.child("plugins"), errors),
            percentage_of_nodes_to_score: usize::try_from(percentage).unwrap_or(0),
            args: Arc::new(args),
            scheduler_name,
        }
    }
}
