//! Stories made from the seed: objects of some sort come, change and go on a cluster of any size, while everything goes
//! wrong that can. The model checks the promises that must hold all the time; each story ends with good weather, in
//! which all that was asked for comes true, and then nothing is left.

mod attachments;
mod autoscalers;
mod claims;
mod deployments;
mod evictions;
mod quotas;
mod schedules;
mod workloads;

use std::{fmt, ops::AddAssign};

use crate::Chaos;

/// The sorts of stories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Deployments,
    /// StatefulSets, DaemonSets and Jobs.
    Workloads,
    /// Claims, volumes, and Pods that wait for them.
    Claims,
    /// Volumes that are attached to nodes, and nodes that die.
    Attachments,
    Autoscalers,
    Quotas,
    /// CronJobs.
    Schedules,
    /// Pods with budgets, and those who evict them.
    Evictions,
}

pub const ALL: [Sort; 8] = [
    Sort::Deployments,
    Sort::Workloads,
    Sort::Claims,
    Sort::Attachments,
    Sort::Autoscalers,
    Sort::Quotas,
    Sort::Schedules,
    Sort::Evictions,
];

/// The events of stories, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    /// Changes in the store.
    pub changes: u64,
    pub kills: usize,
    pub power_cuts: usize,
    pub jobs: usize,
    pub claims: usize,
    /// Volumes attached, and those that were taken from a node by force.
    pub attached: usize,
    pub forced: usize,
    pub scalings: usize,
    pub within_quotas: usize,
    pub scheduled: usize,
    pub evictions: usize,
}

impl Told {
    fn of(chaos: &Chaos) -> Self {
        let model = chaos.cluster.model.lock();
        Told {
            changes: model.revision,
            kills: chaos.kills,
            power_cuts: chaos.power_cuts,
            jobs: model.workloads.ended_jobs,
            claims: model.claims.bound,
            attached: model.attachments.attached,
            forced: model.attachments.forced,
            scalings: model.autoscalers.scaled,
            within_quotas: model.quotas.counted,
            scheduled: model.schedules.started,
            evictions: model.budgets.evicted,
        }
    }
}

impl AddAssign for Told {
    fn add_assign(&mut self, other: Told) {
        self.changes += other.changes;
        self.kills += other.kills;
        self.power_cuts += other.power_cuts;
        self.jobs += other.jobs;
        self.claims += other.claims;
        self.attached += other.attached;
        self.forced += other.forced;
        self.scalings += other.scalings;
        self.within_quotas += other.within_quotas;
        self.scheduled += other.scheduled;
        self.evictions += other.evictions;
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes, {} parts killed, {} power cuts", self.changes, self.kills, self.power_cuts)?;
        write!(f, ", {} Jobs ended, {} claims bound", self.jobs, self.claims)?;
        write!(f, ", {} volumes attached, {} detached by force", self.attached, self.forced)?;
        write!(f, ", {} scalings by autoscalers", self.scalings)?;
        write!(f, ", {} objects made within quotas", self.within_quotas)?;
        write!(f, ", {} Jobs made by schedules, {} Pods evicted", self.scheduled, self.evictions)
    }
}

/// How a story goes.
trait Course: Sized {
    /// How much happens in it.
    const STEPS: usize;

    async fn begin(chaos: Chaos) -> Self;
    async fn step(&mut self);
    /// In good weather all that was asked for comes true; then it is deleted.
    async fn end(&mut self);
    fn chaos(&self) -> &Chaos;
}

async fn told<C: Course>(seed: u64) -> Told {
    let mut story = C::begin(Chaos::begin(seed).await).await;
    for _ in 0..C::STEPS {
        story.step().await;
        story.chaos().pause().await;
    }
    story.end().await;
    story.chaos().nothing_is_left().await;
    Told::of(story.chaos())
}

/// Tells one story, to be run by [`simulate`](crate::cluster::simulate).
pub async fn tell(sort: Sort, seed: u64) -> Told {
    match sort {
        Sort::Deployments => told::<deployments::Story>(seed).await,
        Sort::Workloads => told::<workloads::Story>(seed).await,
        Sort::Claims => told::<claims::Story>(seed).await,
        Sort::Attachments => told::<attachments::Story>(seed).await,
        Sort::Autoscalers => told::<autoscalers::Story>(seed).await,
        Sort::Quotas => told::<quotas::Story>(seed).await,
        Sort::Schedules => told::<schedules::Story>(seed).await,
        Sort::Evictions => told::<evictions::Story>(seed).await,
    }
}
