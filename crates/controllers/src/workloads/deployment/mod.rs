//! Deployment: a changing set of identical Pods, realised through ReplicaSets.
//! Reads: Deployment, ReplicaSet, Pod. Writes: ReplicaSet (create, scale, annotate, adopt, release, delete),
//! Deployment/status.
//! Upstream counterpart: pkg/controller/deployment.

mod revision;
mod rollout;
mod scale;
mod sizes;
mod status;

use std::sync::Arc;

use api::rules::{
    pod,
    selector::{self, Selector},
};
use client::Key;
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write, claim, controller_of};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, ReplicaSet},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

pub struct Deployments;

pub struct Observed {
    /// ReplicaSets that the Deployment controls, and free ones that its selector takes.
    sets: Vec<Arc<ReplicaSet>>,
    /// UIDs of those that still have Pods which have not ended.
    with_pods: Vec<String>,
    /// The ReplicaSet that has the name which the next one would get.
    namesake: Option<Arc<ReplicaSet>>,
    /// Why the last attempt to create a ReplicaSet failed.
    create_failed: Option<String>,
}

fn selects(deployment: &Deployment, set: &ReplicaSet) -> bool {
    selector::takes(deployment.spec.as_ref().map(|s| &s.selector), &set.metadata.labels)
}

impl Controller for Deployments {
    const NAME: &'static str = "deployment-controller";
    type Object = Deployment;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<Deployment>) {
        watches.owned::<ReplicaSet>().selected::<ReplicaSet>(selects).indexed::<Pod>();
        // Only a Recreate rollout waits for Pods, and only for their end.
        watches.changed::<Pod>(|change, caches| {
            let ended = change.new.as_ref().is_none_or(|p| pod::is_terminal(p));
            let Some(pod) = change.old.as_ref().filter(|_| ended) else { return Vec::new() };
            let Some(owner) = controller_of(&**pod).filter(|o| o.kind == "ReplicaSet") else { return Vec::new() };
            let namespace = &change.key.namespace;
            let set = caches.of::<ReplicaSet>().get(&Key::new(namespace, &owner.name));
            let name = set.and_then(|s| controller_of(&*s).map(|o| o.name.clone()));
            name.map(|name| Key::new(namespace, name)).into_iter().collect()
        });
    }

    fn observe(&self, deployment: &Deployment, listers: &Listers) -> Observed {
        let sets = listers.owned_or_selected(deployment, |set: &ReplicaSet| selects(deployment, set));
        let lives = |set: &&Arc<ReplicaSet>| listers.owned::<_, Pod>(&***set).iter().any(|p| !pod::is_terminal(p));
        let with_pods = sets.iter().filter(lives).filter_map(|s| s.metadata.uid.clone()).collect();
        let name = revision::set_name(deployment);
        let namespace = deployment.metadata.namespace.clone().unwrap_or_default();
        let failed = listers.failure.filter(|f| f.verb == "create" && f.plural == "replicasets");
        Observed {
            sets,
            with_pods,
            namesake: listers.caches.of::<ReplicaSet>().get(&Key::new(namespace, name)),
            create_failed: failed.filter(|f| f.reason != "AlreadyExists").map(|f| f.message.clone()),
        }
    }

    fn plan(&self, deployment: &Deployment, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let selector = deployment.spec.as_ref().map(|s| Selector::of_object(Some(&s.selector)));
        if matches!(selector, Some(Ok(ref s)) if s.is_everything()) {
            let message = "This deployment is selecting all pods. A non-empty selector is required.";
            plan.tell(Note::warning("SelectingAll", message));
            return plan;
        }
        let mut roll = Rollout::new(deployment, observed, now, &mut plan);
        roll.run(observed);
        roll.finish();
        plan
    }
}

/// A Deployment and its ReplicaSets as they become while the plan is made.
struct Rollout<'a> {
    old: &'a Deployment,
    /// The Deployment as it is to be after this plan: only annotations and status differ from `old`.
    new: Deployment,
    spec: &'a DeploymentSpec,
    /// All ReplicaSets, oldest first, with the sizes that this plan gives them.
    sets: Vec<ReplicaSet>,
    /// The current ReplicaSet was written in this plan already: another write has to wait for the next plan.
    settled_first: bool,
    /// Where in `sets` the one with the current template is.
    current: Option<usize>,
    now: Timestamp,
    plan: &'a mut Plan,
}

static EMPTY: std::sync::LazyLock<DeploymentSpec> = std::sync::LazyLock::new(DeploymentSpec::default);

impl<'a> Rollout<'a> {
    fn new(deployment: &'a Deployment, observed: &Observed, now: Timestamp, plan: &'a mut Plan) -> Self {
        let claimed = claim(deployment, &observed.sets, |set| selects(deployment, set), plan);
        let mut sets: Vec<ReplicaSet> = claimed.into_iter().cloned().collect();
        sets.sort_by(|a, b| {
            let age = |s: &ReplicaSet| s.metadata.creation_timestamp.as_ref().map(|t| t.0);
            age(a).cmp(&age(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name))
        });
        let current = revision::current(deployment, &sets);
        let spec = deployment.spec.as_ref().unwrap_or(&EMPTY);
        Rollout { old: deployment, new: deployment.clone(), spec, sets, settled_first: false, current, now, plan }
    }

    fn run(&mut self, observed: &Observed) {
        if self.old.metadata.deletion_timestamp.is_some() {
            return self.sync_status();
        }
        self.note_pause();
        if self.spec.paused == Some(true) {
            self.find_revision();
            self.scale();
            self.clean_up();
            return self.sync_status();
        }
        if self.is_scaling_event() {
            self.find_revision();
            self.scale();
            return self.sync_status();
        }
        match self.is_recreate() {
            true => self.recreate(observed),
            false => self.roll(observed),
        }
    }

    /// Sets the Deployment's status and revision, if they changed. Both travel through the status subresource.
    fn finish(&mut self) {
        let (old, new) = (self.old, &self.new);
        self.plan.set_status(old, new);
        if self.plan.status.is_none() && old.metadata.annotations != new.metadata.annotations {
            self.plan.status = Some(Write::update_part(new, "status"));
        }
    }

    fn name(&self) -> &str {
        self.old.metadata.name.as_deref().unwrap_or("")
    }

    fn is_recreate(&self) -> bool {
        self.spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate")
    }

    /// The rollout's deadline in seconds; absent or the largest number means none.
    fn deadline(&self) -> Option<i64> {
        self.spec.progress_deadline_seconds.filter(|s| *s != i32::MAX).map(i64::from)
    }

    fn condition(&self, kind: &str) -> Option<&DeploymentCondition> {
        condition(self.new.status.as_ref()?.conditions.as_deref()?, kind)
    }

    fn set_condition(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let now = self.now;
        let conditions = self.new.status.get_or_insert_default().conditions.get_or_insert_default();
        set_condition(conditions, kind, status, reason, message, now);
    }

    /// Pausing stops the deadline's clock, resuming starts it anew.
    fn note_pause(&mut self) {
        if self.deadline().is_none() {
            return;
        }
        let reason = self.condition("Progressing").and_then(|c| c.reason.clone()).unwrap_or_default();
        let paused = self.spec.paused == Some(true);
        match (paused, reason.as_str()) {
            (_, "ProgressDeadlineExceeded") | (true, "DeploymentPaused") => {}
            (true, _) => {
                self.set_condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused".to_owned());
            }
            (false, "DeploymentPaused") => {
                self.set_condition("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed".to_owned());
            }
            (false, _) => {}
        }
    }
}

fn condition<'a>(conditions: &'a [DeploymentCondition], kind: &str) -> Option<&'a DeploymentCondition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// Replaces the condition, unless status and reason are the same already.
fn set_condition(
    conditions: &mut Vec<DeploymentCondition>,
    kind: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let held = condition(conditions, kind);
    if held.is_some_and(|c| c.status == status && c.reason.as_deref() == Some(reason)) {
        return;
    }
    let since = held.filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
    conditions.retain(|c| c.type_ != kind);
    conditions.push(DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    });
}

#[cfg(test)]
mod tests;
