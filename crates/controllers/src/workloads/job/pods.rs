//! Which Pods of a Job are created and which are deleted while it is not over.

use std::{collections::BTreeMap, time::Duration};

use api::rules::{indexes::Indexes, pod};
use client::rest::DeleteOptions;
use controller::{Plan, Step, owner_reference};
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};

use super::{
    Run,
    backoff::{self, Failures, finished_at},
    is_indexed, policy, replaces_only_failed,
    tracking::{TRACKING, is_tracked, untrack_unchanged},
};
use crate::workloads::{pod_rank, pod_template};

/// At most this many Pods are created or deleted in one plan.
const BURST: usize = 500;

/// Creation that waits for a failure to be forgiven is looked at again after this time at the soonest.
const SOONEST: Duration = Duration::from_secs(1);

/// How often the Pods of an index failed before this one, and how often in a way that does not count.
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// The annotation and the label of a Pod that hold its completion index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The environment variable in which containers find their index.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// The longest prefix to which the server adds the random part of a name.
const LONGEST_PREFIX: usize = 58;

/// The completion index that a Pod says it has.
pub fn index_of(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(COMPLETION_INDEX)?.parse().ok().filter(|index| *index >= 0)
}

fn number(pod: &Pod, annotation: &str) -> i32 {
    let text = pod.metadata.annotations.as_ref().and_then(|a| a.get(annotation));
    text.and_then(|t| t.parse().ok()).filter(|n| *n >= 0).unwrap_or(0)
}

fn all_failures(pod: &Pod) -> i32 {
    number(pod, FAILURES).saturating_add(number(pod, IGNORED_FAILURES))
}

impl Run<'_> {
    /// Deletes what still runs of a Job that is over. The finalizers stay until the Pods are counted. A Pod that changed
    /// meanwhile may have ended by itself, which counts in another way, so it is looked at again.
    pub fn delete_active(&self, plan: &mut Plan) {
        let unchanged = |pod: &&Pod| {
            let resource_version = pod.metadata.resource_version.clone();
            pod_template::delete_with(pod, DeleteOptions { resource_version, ..DeleteOptions::default() })
        };
        if !self.active.is_empty() {
            plan.steps.push(Step::All(self.active.iter().map(unchanged).collect()));
        }
    }

    /// Deletes the Pods that are too many, or else creates those that are missing.
    pub fn manage(&self, failures: &Failures, plan: &mut Plan) {
        let (active, wanted) = (self.active.len() as i32, self.wanted());
        let mut surplus = self.surplus((active - wanted).max(0) as usize);
        surplus.truncate(BURST);
        self.track_survivors(&surplus, plan);
        if !surplus.is_empty() {
            // Without the finalizer their end does not count.
            let tracked = surplus.iter().filter(|pod| is_tracked(pod));
            plan.steps.push(Step::All(tracked.map(|pod| untrack_unchanged(pod)).collect()));
            plan.steps.push(Step::All(surplus.into_iter().map(pod_template::delete).collect()));
            return;
        }
        let awaited = if replaces_only_failed(self.spec) { self.terminating } else { 0 };
        let missing = (wanted - awaited - active).max(0) as usize;
        self.create(missing.min(BURST), failures, plan);
    }

    /// How many Pods should run.
    fn wanted(&self) -> i32 {
        if self.is_suspended() {
            return 0;
        }
        let parallelism = self.spec.parallelism.unwrap_or(1);
        match self.spec.completions {
            Some(completions) => (completions - self.succeeded).min(parallelism).max(0),
            // The first success of a work queue means that no further Pods are needed; those that run end by themselves.
            None if self.succeeded > 0 => self.active.len() as i32,
            None => parallelism,
        }
    }

    /// The active Pods to be deleted: those without an index of the Job, all but one of each index, and then those that have
    /// got least far until there are this many.
    fn surplus(&self, at_least: usize) -> Vec<&Pod> {
        let (mut surplus, mut rest) = (Vec::new(), Vec::new());
        if is_indexed(self.spec) {
            let mut by_index: BTreeMap<Option<i32>, Vec<&Pod>> = BTreeMap::new();
            for pod in &self.active {
                by_index.entry(self.index(pod)).or_default().push(pod);
            }
            for (index, pods) in by_index {
                let mut pods = pod_rank::least_advanced_first(&pods);
                rest.extend(index.and_then(|_| pods.pop()));
                surplus.extend(pods);
            }
        } else {
            rest.extend(&self.active);
        }
        let more = at_least.saturating_sub(surplus.len());
        surplus.extend(pod_rank::least_advanced_first(&rest).into_iter().take(more));
        surplus
    }

    fn create(&self, missing: usize, failures: &Failures, plan: &mut Plan) {
        if missing == 0 {
            return;
        }
        let waits = failures.wait(self.now).filter(|_| self.limit_per_index().is_none());
        if let Some(wait) = waits {
            plan.again_after(wait.max(SOONEST));
            return;
        }
        let pods: Vec<Pod> = match is_indexed(self.spec) {
            true => self.indexes_to_create(missing, plan).into_iter().map(|index| self.indexed_pod(index)).collect(),
            false => vec![self.pod(); missing],
        };
        if !pods.is_empty() {
            plan.steps.push(Step::SlowStart(pods.iter().map(pod_template::create).collect()));
        }
    }

    /// The lowest indexes that have neither ended nor a Pod, without those that have to wait after a failure.
    fn indexes_to_create(&self, missing: usize, plan: &mut Plan) -> Vec<i32> {
        let waits_for =
            |pod: &&&Pod| pod::is_active(pod) || (pod::is_terminating(pod) && replaces_only_failed(self.spec));
        let has_pod: Indexes = self.pods.iter().filter(waits_for).filter_map(|pod| index_of(pod)).collect();
        let mut settled = self.completed.union(&has_pod);
        if let Some(failed) = &self.failed_indexes {
            settled = settled.union(failed);
        }
        let wait = |index: &i32| {
            let last = self.awaiting.get(index)?;
            backoff::wait(all_failures(last).saturating_add(1) as u32, finished_at(last)?, self.now)
        };
        let missing = settled.lowest_missing(self.completions(), missing);
        let (now, later): (Vec<i32>, Vec<i32>) = missing.into_iter().partition(|index| wait(index).is_none());
        if let Some(soonest) = later.iter().filter_map(wait).min() {
            plan.again_after(soonest.max(SOONEST));
        }
        now
    }

    fn pod(&self) -> Pod {
        let mut pod = pod_template::instantiate(&self.spec.template, &self.job.metadata, owner_reference(self.job));
        if !is_tracked(&pod) {
            pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
        }
        pod
    }

    fn indexed_pod(&self, index: i32) -> Pod {
        let mut pod = self.pod();
        let job = self.job.metadata.name.as_deref().unwrap_or("");
        let (number, ending) = (index.to_string(), format!("-{index}-"));
        let room = LONGEST_PREFIX - ending.len();
        pod.metadata.generate_name = Some(job.chars().take(room).collect::<String>() + &ending);
        pod.metadata.labels.get_or_insert_default().insert(COMPLETION_INDEX.to_owned(), number.clone());
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(COMPLETION_INDEX.to_owned(), number);
        if self.limit_per_index().is_some() {
            let (failures, ignored) = self.failures_before(index);
            annotations.insert(FAILURES.to_owned(), failures.to_string());
            if ignored > 0 {
                annotations.insert(IGNORED_FAILURES.to_owned(), ignored.to_string());
            }
        }
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(format!("{job}-{index}"));
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            tell_index(container);
        }
        pod
    }

    /// The numbers of failures of an index, those that count and those that do not, that its next Pod is told.
    fn failures_before(&self, index: i32) -> (i32, i32) {
        let Some(last) = self.awaiting.get(&index) else { return (0, 0) };
        let (failures, ignored) = (number(last, FAILURES), number(last, IGNORED_FAILURES));
        match policy::consequence(self.spec.pod_failure_policy.as_ref(), last).counts() {
            true => (failures.saturating_add(1), ignored),
            false => (failures, ignored.saturating_add(1)),
        }
    }

    /// Whether this Pod's failure is the one too many of its index.
    pub fn gives_up_index(&self, pod: &Pod, limit: i32) -> bool {
        self.has_failed(pod)
            && match policy::consequence(self.spec.pod_failure_policy.as_ref(), pod) {
                policy::Consequence::FailIndex => true,
                consequence => consequence.counts() && number(pod, FAILURES) >= limit,
            }
    }

    /// The restarts of all containers, if failures show in restarts.
    pub fn restarts(&self) -> Option<i32> {
        let template = self.spec.template.spec.as_ref()?;
        if template.restart_policy.as_deref() != Some("OnFailure") {
            return None;
        }
        let statuses = self
            .pods
            .iter()
            .filter(|p| matches!(pod::phase(p), "Running" | "Pending"))
            .filter_map(|p| p.status.as_ref());
        let containers = statuses
            .flat_map(|s| s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()));
        Some(containers.map(|c| c.restart_count).sum())
    }
}

impl<'a> Run<'a> {
    /// The last failed Pod of each index that is to be tried again. It keeps its finalizer, and so its annotations can be
    /// read, until its replacement is there.
    pub fn awaiting_replacement(&self, failed: &Indexes) -> BTreeMap<i32, &'a Pod> {
        let active: Indexes = self.active.iter().filter_map(|pod| index_of(pod)).collect();
        let mut last: BTreeMap<i32, &'a Pod> = BTreeMap::new();
        for pod in self.pods.iter().copied().filter(|pod| is_tracked(pod) && self.has_failed(pod)) {
            let Some(index) = self.index(pod) else { continue };
            if [&self.completed, failed, &active].iter().any(|settled| settled.contains(index)) {
                continue;
            }
            let rank = |pod: &Pod| (all_failures(pod), finished_at(pod));
            if last.get(&index).is_none_or(|held| rank(held) <= rank(pod)) {
                last.insert(index, pod);
            }
        }
        last
    }
}

/// Tells a container its index, unless the template has a variable of that name.
fn tell_index(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    let field = ObjectFieldSelector { api_version: None, field_path: format!("metadata.labels['{COMPLETION_INDEX}']") };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    env.push(EnvVar { name: INDEX_VARIABLE.to_owned(), value_from: Some(source), value: None });
}
