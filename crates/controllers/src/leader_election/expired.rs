//! Candidates that were not heard of for half an hour go.
//! Reads: LeaseCandidate. Writes: LeaseCandidate (delete).
//! Upstream counterpart: pkg/controlplane/controller/leaderelection/leasecandidategc_controller.go.

use client::rest::DeleteOptions;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::coordination::v1beta1::LeaseCandidate;
use std::time::Duration;

use super::{CANDIDACY, answered};

pub struct ExpiredCandidates;

impl Controller for ExpiredCandidates {
    const NAME: &'static str = "leasecandidate-garbage-collector";
    type Object = LeaseCandidate;
    type Observed = ();

    fn watches(&self, _: &mut Watches<LeaseCandidate>) {}

    fn observe(&self, _: &LeaseCandidate, _: &Listers) {}

    fn plan(&self, candidate: &LeaseCandidate, (): &(), now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if candidate.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        // Upstream looks at all of them now and then: who has not said anything yet has as long.
        let last = answered(candidate).map(|time| time.0);
        let last = last.or(candidate.metadata.creation_timestamp.as_ref().map(|time| time.0));
        let silent = last.map(|last| Duration::try_from(now.duration_since(last)).unwrap_or_default());
        if silent.is_none_or(|silent| silent > CANDIDACY) {
            // As it was seen: one that has just spoken stays.
            let resource_version = candidate.metadata.resource_version.clone();
            plan.step(Write::delete_with(candidate, DeleteOptions { resource_version, ..DeleteOptions::default() }));
            return plan;
        }
        plan.again_after(CANDIDACY.saturating_sub(silent.unwrap_or_default()) + Duration::from_secs(1));
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader_election::tests::{NOW, at, candidate};

    #[test]
    fn who_was_not_heard_of_for_long_goes() {
        let check = |text: &str, expected: &str, again: Option<u64>| {
            let plan = ExpiredCandidates.plan(&candidate(text), &(), at(NOW));
            assert_eq!(plan.to_string(), expected, "{text}");
            assert_eq!(plan.requeue_after.map(|after| after.as_secs()), again, "{text}");
        };
        let gone = "delete leasecandidates a";
        check("a 1.0.0 1.0.0 renewed=-1", "", Some(1800));
        check("a 1.0.0 1.0.0 renewed=-1800", "", Some(1));
        check("a 1.0.0 1.0.0 renewed=-1801", gone, None);
        check("a 1.0.0 1.0.0 renewed=-9000 asked=-1", gone, None);
        check("a 1.0.0 1.0.0 renewed=never", gone, None);
        let mut young = candidate("a 1.0.0 1.0.0 renewed=never");
        young.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(NOW)));
        let plan = ExpiredCandidates.plan(&young, &(), at(NOW));
        assert_eq!((plan.to_string(), plan.requeue_after.map(|after| after.as_secs())), (String::new(), Some(1801)));
        let mut going = candidate("a 1.0.0 1.0.0 renewed=never");
        going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(NOW)));
        assert!(ExpiredCandidates.plan(&going, &(), at(NOW)).is_empty());
    }
}
