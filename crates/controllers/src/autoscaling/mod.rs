//! HorizontalPodAutoscaler: sets the number of Pods of whatever has a scale, so that measurements come near to what is
//! aimed at.
//! Reads: HorizontalPodAutoscaler, Pod, scales, metrics. Writes: scales, HorizontalPodAutoscaler/status.
//! Upstream counterpart: pkg/controller/podautoscaler.

mod ask;
mod limits;
mod propose;
mod replicas;
pub mod settings;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::rules::selector::Selector;
use ask::Target;
use client::{Change, Client, Key, rest::Verb};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use json::json;
use k8s_openapi::{
    api::{
        autoscaling::v2::{
            HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec,
            HorizontalPodAutoscalerStatus,
        },
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use limits::{Limits, Memory};
use parking_lot::Mutex;
use propose::Proposed;
use replicas::Scene;
use settings::Settings;

/// An error names this many autoscalers at most.
const NAMED_RIVALS: usize = 10;

const ABLE_TO_SCALE: &str = "AbleToScale";
const SCALING_ACTIVE: &str = "ScalingActive";
const SCALING_LIMITED: &str = "ScalingLimited";

/// The state of an autoscaler besides its object.
#[derive(Default)]
struct Known {
    memory: Memory,
    /// The rescaling that was noted last.
    rescaled: Option<Timestamp>,
    /// Of its target, as it was last seen.
    selector: Option<Selector>,
}

#[derive(Default)]
pub struct HorizontalPodAutoscalers {
    settings: Settings,
    known: Mutex<HashMap<Key, Known>>,
}

pub struct Observed {
    settings: Settings,
    /// Why the last attempt to rescale failed.
    failure: Option<String>,
    /// The Pods of the namespace, and then those that the target selects.
    pods: Vec<Arc<Pod>>,
    target: Result<Target, String>,
    /// The proposal of the metrics; `None` where they are not asked.
    proposed: Option<Proposed>,
    /// Without what is proposed now.
    memory: Memory,
}

fn bounds(spec: &HorizontalPodAutoscalerSpec) -> (i32, i32) {
    (spec.min_replicas.unwrap_or(1), spec.max_replicas)
}

/// Whether the number of Pods is one that metrics may change.
fn is_measured(spec: &HorizontalPodAutoscalerSpec, current: i32) -> bool {
    let (min, max) = bounds(spec);
    current != 0 && (min..=max).contains(&current)
}

impl HorizontalPodAutoscalers {
    pub fn new(settings: Settings) -> Self {
        HorizontalPodAutoscalers { settings, known: Mutex::default() }
    }

    fn with<T>(&self, key: &Key, change: impl FnOnce(&mut Known) -> T) -> T {
        change(self.known.lock().entry(key.clone()).or_default())
    }

    /// The autoscalers of this namespace whose targets select one of these Pods.
    fn selecting(&self, namespace: &str, pods: &[Arc<Pod>]) -> Vec<String> {
        let all = self.known.lock();
        let selects = |known: &Known| {
            let matches = |selector: &Selector, pod: &Arc<Pod>| {
                pod.metadata.labels.as_ref().is_some_and(|labels| selector.matches(labels))
            };
            known.selector.as_ref().is_some_and(|selector| pods.iter().any(|pod| matches(selector, pod)))
        };
        let found = all.iter().filter(|(key, known)| key.namespace == namespace && selects(known));
        let mut names: Vec<String> = found.map(|(key, _)| format!("{}/{}", key.namespace, key.name)).collect();
        names.sort();
        names
    }

    async fn propose(
        &self,
        key: &Key,
        spec: &HorizontalPodAutoscalerSpec,
        target: &Target,
        pods: &mut Vec<Arc<Pod>>,
        client: &Client,
    ) -> Proposed {
        let text = target.selector();
        if text.is_empty() {
            let message = "the HPA target's scale is missing a selector";
            return propose::refused("InvalidSelector", "SelectorRequired", message, "selector is required");
        }
        let selector = match Selector::parse(text) {
            Ok(selector) => selector,
            Err(error) => {
                let why = format!("couldn't convert selector into a corresponding internal selector object: {error}");
                return propose::refused("InvalidSelector", "InvalidSelector", &why, &why);
            }
        };
        pods.retain(|pod| selector.matches(&pod.metadata.labels.clone().unwrap_or_default()));
        self.with(key, |known| known.selector = Some(selector));
        let rivals = self.selecting(&key.namespace, pods);
        if rivals.len() > 1 {
            let shown = rivals[..rivals.len().min(NAMED_RIVALS)].join(" ");
            let why = format!("pods by selector {text} are controlled by multiple HPAs: [{shown}]");
            return propose::refused("AmbiguousSelector", "AmbiguousSelector", &why, &why);
        }
        let metrics = spec.metrics.as_deref().unwrap_or_default();
        let mut measured = Vec::with_capacity(metrics.len());
        for metric in metrics {
            measured.push(ask::measure(client, &key.namespace, metric, text).await);
        }
        let scene = Scene {
            pods,
            current: target.current(),
            present: target.present(),
            settings: self.settings,
            tolerance: propose::tolerance(spec, self.settings.tolerance),
            now: clock::now_seconds(),
        };
        propose::propose(metrics, &measured, &scene)
    }
}

impl Controller for HorizontalPodAutoscalers {
    const NAME: &'static str = "horizontal-pod-autoscaler-controller";
    type Object = HorizontalPodAutoscaler;
    type Observed = Observed;

    fn concurrency(&self) -> usize {
        self.settings.concurrent
    }

    fn longest_delay(&self) -> Duration {
        self.settings.sync_period
    }

    /// Its own status changes nothing: what it says is looked at again after a period.
    fn concerns(change: &Change<HorizontalPodAutoscaler>) -> bool {
        let spec = |object: &Option<Arc<HorizontalPodAutoscaler>>| object.as_ref().map(|a| a.spec.clone());
        spec(&change.old) != spec(&change.new)
    }

    fn watches(&self, watches: &mut Watches<HorizontalPodAutoscaler>) {
        watches.reads::<Pod>();
    }

    fn observe(&self, autoscaler: &HorizontalPodAutoscaler, listers: &Listers) -> Observed {
        let key = Key::of(autoscaler);
        let memory = self.with(&key, |known| {
            if let Some((at, change)) = rescaling(autoscaler).filter(|(at, _)| known.rescaled != Some(*at)) {
                known.rescaled = Some(at);
                known.memory.rescaled(change, at);
            }
            known.memory.clone()
        });
        // That somebody else was faster is no news: the next attempt sees it.
        let own = |f: &&controller::Failure| {
            f.verb == "update" && f.plural != "horizontalpodautoscalers" && f.reason != "Conflict"
        };
        Observed {
            settings: self.settings,
            failure: listers.failure.filter(own).map(|f| f.message.clone()),
            pods: listers.caches.of::<Pod>().list_in(&key.namespace),
            target: Err(String::new()),
            proposed: None,
            memory,
        }
    }

    async fn ask(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        observed: &mut Observed,
        client: &Client,
    ) -> Result<(), client::Error> {
        let key = Key::of(autoscaler);
        let Some(spec) = &autoscaler.spec else { return Ok(()) };
        observed.target = ask::target(client, &key.namespace, &spec.scale_target_ref).await;
        let Ok(target) = &observed.target else { return Ok(()) };
        let (current, now) = (target.current(), clock::now_seconds());
        observed.memory = self.with(&key, |known| {
            known.memory.begin(current, now);
            known.memory.clone()
        });
        if is_measured(spec, current) {
            let proposed = self.propose(&key, spec, target, &mut observed.pods, client).await;
            if let Ok((replicas, _)) = &proposed.outcome {
                self.with(&key, |known| known.memory.recommended(*replicas, now));
            }
            observed.proposed = Some(proposed);
        }
        Ok(())
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.known.lock().remove(key);
        Plan::default()
    }

    fn plan(&self, autoscaler: &HorizontalPodAutoscaler, observed: &Observed, now: Timestamp) -> Plan {
        plan(autoscaler, observed, now)
    }
}

/// When the number of Pods was last changed, and by how many, as the status tells.
fn rescaling(autoscaler: &HorizontalPodAutoscaler) -> Option<(Timestamp, i32)> {
    let status = autoscaler.status.as_ref()?;
    let change = status.desired_replicas.saturating_sub(status.current_replicas.unwrap_or(0));
    Some((status.last_scale_time.as_ref()?.0, change))
}

fn plan(autoscaler: &HorizontalPodAutoscaler, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = &autoscaler.spec else { return plan };
    plan.again_after(observed.settings.sync_period);
    let mut new = autoscaler.clone();
    let mut status = Status { status: new.status.get_or_insert_default(), now };
    match &observed.target {
        Err(why) => {
            plan.tell(Note::warning("FailedGetScale", why.as_str()));
            let message = format!("the HPA controller was unable to get the target's current scale: {why}");
            status.set(ABLE_TO_SCALE, false, "FailedGetScale", &message);
            plan.set_status(autoscaler, &new);
        }
        Ok(target) => {
            let message = "the HPA controller was able to get the target's current scale";
            status.set(ABLE_TO_SCALE, true, "SucceededGetScale", message);
            if let Some(decision) = decide(spec, target, observed, &mut status, &mut plan) {
                follow(autoscaler, new, target, decision, observed.failure.as_deref(), now, &mut plan);
            } else {
                plan.set_status(autoscaler, &new);
            }
        }
    }
    plan
}

/// The number of Pods to set, and why; the reason is empty when nothing is changed.
struct Decision {
    replicas: i32,
    reason: String,
}

/// `None` when no number follows from the metrics.
fn decide(
    spec: &HorizontalPodAutoscalerSpec,
    target: &Target,
    observed: &Observed,
    status: &mut Status<'_>,
    plan: &mut Plan,
) -> Option<Decision> {
    let (current, (min, max)) = (target.current(), bounds(spec));
    let statuses = observed.proposed.as_ref().map(|p| p.statuses.clone()).unwrap_or_default();
    status.status.current_replicas = Some(current);
    status.status.current_metrics = Some(statuses).filter(|list| !list.is_empty());
    let Some(proposed) = &observed.proposed else {
        let (replicas, reason) = if current == 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            status.set(SCALING_ACTIVE, false, "ScalingDisabled", message);
            (0, "")
        } else if current > max {
            (max, "Current number of replicas above Spec.MaxReplicas")
        } else {
            (min, "Current number of replicas below Spec.MinReplicas")
        };
        return Some(Decision { replicas, reason: reason.to_owned() });
    };
    for (reason, why) in &proposed.events {
        plan.tell(Note::warning(reason, why.as_str()));
    }
    let (recommended, metric) = match &proposed.outcome {
        Ok(outcome) => outcome,
        Err(refused) => {
            status.set(SCALING_ACTIVE, false, refused.reason, &refused.message);
            plan.tell(Note::warning("FailedComputeMetricsReplicas", refused.error.as_str()));
            return None;
        }
    };
    let message = format!("the HPA was able to successfully calculate a replica count from {metric}");
    status.set(SCALING_ACTIVE, true, "ValidMetricFound", &message);
    let stabilization_seconds = i32::try_from(observed.settings.downscale_stabilization.as_secs()).unwrap_or(i32::MAX);
    let limits = Limits { min, max, current, behavior: spec.behavior.as_ref(), stabilization_seconds };
    let limited = limits.apply(*recommended, &observed.memory, status.now);
    status.set(ABLE_TO_SCALE, true, limited.able.0, limited.able.1);
    status.set(SCALING_LIMITED, limited.is_limited, limited.limit.0, limited.limit.1);
    let reason = match recommended.cmp(&current) {
        std::cmp::Ordering::Greater => format!("{metric} above target"),
        std::cmp::Ordering::Less => "All metrics below target".to_owned(),
        std::cmp::Ordering::Equal => String::new(),
    };
    Some(Decision { replicas: limited.replicas, reason })
}

/// Sets the number of Pods, then tells of it. A failure ends the plan before it tells; the next plan says why, once, and
/// then tries again.
fn follow(
    old: &HorizontalPodAutoscaler,
    mut new: HorizontalPodAutoscaler,
    target: &Target,
    Decision { replicas, reason }: Decision,
    failure: Option<&str>,
    now: Timestamp,
    plan: &mut Plan,
) {
    if replicas == target.current() {
        new.status.get_or_insert_default().desired_replicas = replicas;
        plan.set_status(old, &new);
        return;
    }
    if let Some(why) = failure {
        let mut failed = new.clone();
        let mut status = Status { status: failed.status.get_or_insert_default(), now };
        let message = format!("the HPA controller was unable to update the target scale: {why}");
        status.set(ABLE_TO_SCALE, false, "FailedUpdateScale", &message);
        let told = |a: &HorizontalPodAutoscaler| {
            let conditions = a.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
            conditions.into_iter().find(|c| c.type_ == ABLE_TO_SCALE).map(|c| (c.reason, c.message))
        };
        if told(old) != told(&failed) {
            plan.set_status(old, &failed).retry();
            return;
        }
    }
    let mut scale = target.scale.clone();
    scale["spec"]["replicas"] = json!(replicas);
    let metadata = &target.scale["metadata"];
    let (namespace, name) = (metadata["namespace"].as_str().unwrap_or(""), metadata["name"].as_str().unwrap_or(""));
    let message = format!("New size: {replicas}; reason: {reason}");
    let write = Write::dynamic(&target.resource, namespace, name, Verb::Update(scale));
    let write = Write { subresource: "scale", ..write }
        .on_failure(Note::warning("FailedRescale", format!("{message}; error: {{error}}")))
        .on_success(Note::normal("SuccessfulRescale", message));
    let status = new.status.get_or_insert_default();
    status.desired_replicas = replicas;
    status.last_scale_time = Some(Time(now));
    let message = format!("the HPA controller was able to update the target scale to {replicas}");
    Status { status, now }.set(ABLE_TO_SCALE, true, "SucceededRescale", &message);
    plan.step(write).step(Write::update_part(&new, "status"));
}

/// A status that is being made.
struct Status<'a> {
    status: &'a mut HorizontalPodAutoscalerStatus,
    now: Timestamp,
}

impl Status<'_> {
    fn set(&mut self, kind: &str, holds: bool, reason: &str, message: &str) {
        let conditions = self.status.conditions.get_or_insert_default();
        let status = if holds { "True" } else { "False" }.to_owned();
        let (reason, message) = (Some(reason.to_owned()), Some(message.to_owned()));
        match conditions.iter_mut().find(|c| c.type_ == kind) {
            Some(condition) => {
                if condition.status != status {
                    condition.last_transition_time = Some(Time(self.now));
                }
                (condition.status, condition.reason, condition.message) = (status, reason, message);
            }
            None => conditions.push(HorizontalPodAutoscalerCondition {
                type_: kind.to_owned(),
                status,
                last_transition_time: Some(Time(self.now)),
                reason,
                message,
            }),
        }
    }
}
