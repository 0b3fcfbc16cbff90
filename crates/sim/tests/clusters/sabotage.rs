//! Checkers that can fail: each promise is broken on purpose, and a story says so.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::{
    cluster::simulate,
    sabotage::{self, Sabotage},
    stories::{Sort, tell},
};

/// How many stories may end without anybody noticing, because what is broken did not come up in them.
const TRIES: u64 = 12;

#[track_caller]
fn noticed(sabotage: Sabotage, sort: Sort, words: &str) {
    let mut said = Vec::new();
    for seed in 1..=TRIES {
        let story = || {
            simulate(seed, async |seed| {
                sabotage::begin(sabotage);
                tell(sort, seed).await
            })
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(story)) {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            if text.contains(words) {
                return;
            }
            said.push(text.lines().next().unwrap_or_default().to_owned());
        }
    }
    panic!("{sabotage:?} in {sort:?} is not noticed: {said:#?}");
}

#[test]
fn more_pods_than_allowed() {
    noticed(Sabotage::PodsTwice, Sort::Deployments, "Pods and wants");
    noticed(Sabotage::MoreReplicas(3), Sort::Deployments, "replicas, at most");
    noticed(Sabotage::PodsTwice, Sort::Workloads, "active Pods, at most");
    noticed(Sabotage::HighScale, Sort::Autoscalers, "out of the bounds of its autoscaler");
    noticed(Sabotage::OneNode, Sort::Deployments, "holds more than it has");
    noticed(Sabotage::Forgetful, Sort::Quotas, "beyond the quota");
}

#[test]
fn fewer_pods_than_promised() {
    noticed(Sabotage::MoreReplicas(-2), Sort::Deployments, "not everything is rolled out");
    noticed(Sabotage::Evictions, Sort::Evictions, "Pods serve, the budget");
}

#[test]
fn a_member_alive_twice() {
    noticed(Sabotage::HastyDeletions, Sort::Workloads, "may still run on");
    noticed(Sabotage::StrangeNumbers, Sort::Workloads, "a member of a set of");
}

#[test]
fn jobs_counted_wrongly() {
    noticed(Sabotage::Successes(1), Sort::Workloads, "successes are counted");
    noticed(Sabotage::Successes(-1), Sort::Workloads, "the Job is complete with");
    noticed(Sabotage::Failures, Sort::Workloads, "failures are counted");
}

#[test]
fn times_with_two_jobs() {
    noticed(Sabotage::SameTime, Sort::Schedules, "there was a Job for");
    noticed(Sabotage::Beside, Sort::Schedules, "it runs beside");
}

#[test]
fn claims_bound_wrongly() {
    noticed(Sabotage::WrongClaim, Sort::Claims, "loses it to another");
    noticed(Sabotage::WrongVolume, Sort::Claims, "it is bound to a volume of");
}

#[test]
fn volumes_attached_wrongly() {
    noticed(Sabotage::TwoNodes, Sort::Attachments, "is asked for on");
    noticed(Sabotage::HastyDetaching, Sort::Attachments, "is detached from");
}
