//! Brings a set to its ordinals: one Pod after the other, or all at once.

use api::rules::pod;
use controller::{Note, Step, Write};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

use super::{
    Place, Sync,
    claims::{self, Member, Ownership},
    identity, name_of,
};
use crate::workloads::history;

/// At most this many Pods are made in one go.
const BURST: usize = 500;

/// The needs of a place before its Pod can be made.
enum Vacancy {
    /// These claims, and then the Pod.
    Claims(Vec<Write>),
    /// An end that this plan cannot bring about: of a claim, or of a Pod that has the name.
    Waits,
}

impl<'a> Sync<'a> {
    /// Whether the set has to be waited for before it can be updated.
    pub fn scale(&mut self) -> bool {
        if self.is_ordered() {
            return self.one_by_one();
        }
        self.at_once();
        false
    }

    /// Each Pod is made when all before it are available, and deleted when all are available that stay.
    fn one_by_one(&mut self) -> bool {
        for place in self.places.clone() {
            let Some(pod) = place.pod else {
                self.fill(place);
                return true;
            };
            if pod::is_terminal(pod) {
                if !pod::is_deleted(pod) {
                    let write = self.delete(pod);
                    self.plan.step(write);
                }
                return true;
            }
            if pod::phase(pod) == "Pending" {
                self.complete_claims(place.ordinal, pod);
            }
            if self.is_unavailable(Some(pod)) {
                return true;
            }
            self.repair(place.ordinal, pod);
        }
        self.settle_condemned_claims();
        let Some(last) = self.condemned.first().copied() else { return false };
        let first_unavailable = self.condemned.iter().rev().find(|pod| self.is_unavailable(Some(pod)));
        let is_first = first_unavailable.is_some_and(|first| std::ptr::eq(*first, last));
        if !pod::is_deleted(last) && (self.is_available(last) || is_first) {
            let write = self.delete(last);
            self.plan.step(write);
        }
        true
    }

    fn at_once(&mut self) {
        self.fill_all();
        let places = self.places.clone();
        let held: Vec<(i32, &Pod)> = places.iter().filter_map(|p| Some((p.ordinal, p.pod?))).collect();
        let ended = held.iter().filter(|(_, pod)| pod::is_terminal(pod) && !pod::is_deleted(pod));
        let ended: Vec<Write> = ended.map(|(_, pod)| self.delete(pod)).collect();
        self.all(ended);
        for (ordinal, pod) in held.into_iter().filter(|(_, pod)| !pod::is_terminal(pod)) {
            if pod::phase(pod) == "Pending" {
                self.complete_claims(ordinal, pod);
            }
            self.repair(ordinal, pod);
        }
        self.settle_condemned_claims();
        let condemned = self.condemned.iter().filter(|pod| !pod::is_deleted(pod));
        let condemned: Vec<Write> = condemned.map(|pod| self.delete(pod)).collect();
        self.all(condemned);
    }

    /// Makes the Pods that need no claims first: a claim that the server refuses must not keep others from being made.
    fn fill_all(&mut self) {
        let empty: Vec<Place> = self.places.iter().filter(|p| p.pod.is_none()).take(BURST).copied().collect();
        let (mut at_once, mut claims, mut after) = (Vec::new(), Vec::new(), Vec::new());
        for place in empty {
            match self.vacancy(place) {
                Vacancy::Waits => {}
                Vacancy::Claims(needed) if needed.is_empty() => at_once.push(self.creation(place.ordinal)),
                Vacancy::Claims(needed) => {
                    claims.extend(needed);
                    after.push(self.creation(place.ordinal));
                }
            }
        }
        if !at_once.is_empty() {
            self.plan.steps.push(Step::SlowStart(at_once));
        }
        self.all(claims);
        if !after.is_empty() {
            self.plan.steps.push(Step::SlowStart(after));
        }
    }

    /// Makes the Pod of an empty place, and before it the claims that are missing.
    fn fill(&mut self, place: Place) {
        let Vacancy::Claims(claims) = self.vacancy(place) else { return };
        for claim in claims {
            self.plan.step(claim);
        }
        let write = self.creation(place.ordinal);
        self.plan.step(write);
    }

    fn vacancy(&mut self, place: Place) -> Vacancy {
        let name = identity::pod_name(self.set, place.ordinal);
        if self.observed.taken.contains(&name) {
            // Nothing tells us when the other Pod is gone.
            self.plan.retry();
            return Vacancy::Waits;
        }
        let member = Member { name: &name, uid: None, stays: true };
        let held = self.claims(place.ordinal);
        if held.iter().any(|claim| Ownership { claim, set: self.set, member }.is_stale()) {
            return Vacancy::Waits;
        }
        if let Some(ending) = held.iter().find(|claim| claim.metadata.deletion_timestamp.is_some()) {
            let claim = ending.metadata.name.as_deref().unwrap_or("");
            let set = name_of(self.set);
            let message = format!("create Pod {name} in StatefulSet {set} failed error: pvc {claim} is being deleted");
            self.plan.tell(Note::warning("FailedCreate", message)).retry();
            return Vacancy::Waits;
        }
        Vacancy::Claims(self.missing_claims(place.ordinal))
    }

    /// The claims of an ordinal that there are.
    fn claims(&self, ordinal: i32) -> Vec<&'a PersistentVolumeClaim> {
        let names = claims::names(self.set, ordinal);
        names.iter().filter_map(|(_, name)| self.observed.claims.get(name).map(|c| &**c)).collect()
    }

    fn missing_claims(&self, ordinal: i32) -> Vec<Write> {
        let pod = identity::pod_name(self.set, ordinal);
        let set = name_of(self.set);
        let missing = claims::wanted(self.set, ordinal).into_iter().filter(|claim| {
            let name = claim.metadata.name.as_deref().unwrap_or("");
            !self.observed.claims.contains_key(name)
        });
        let create = |claim: PersistentVolumeClaim| {
            let name = claim.metadata.name.as_deref().unwrap_or("");
            let done = format!("create Claim {name} Pod {pod} in StatefulSet {set} success");
            let failed = format!("create Claim {name} for Pod {pod} in StatefulSet {set} failed error: {{error}}");
            Write::create(&claim)
                .tolerate(&["AlreadyExists"])
                .on_success(Note::normal("SuccessfulCreate", done))
                .on_failure(Note::warning("FailedCreate", failed))
        };
        missing.map(create).collect()
    }

    /// The Pod of an ordinal. Below the partition, a Pod that is made again is what it was.
    fn creation(&self, ordinal: i32) -> Write {
        let revision = if self.keeps_current(ordinal) { self.current } else { self.history.present() };
        let template = history::template_of(revision).unwrap_or_else(|| self.spec.template.clone());
        let pod = identity::pod(self.set, &template, history::name(revision), ordinal);
        let name = identity::pod_name(self.set, ordinal);
        self.told(Write::create(&pod), "Create", &name)
    }

    /// Makes the claims that a Pod waits for, and gives them their owners.
    fn complete_claims(&mut self, ordinal: i32, pod: &Pod) {
        for claim in self.missing_claims(ordinal) {
            self.plan.step(claim);
        }
        let owners = self.claim_owners(ordinal, pod, true);
        self.all(owners);
    }

    /// Gives a Pod the labels of its place, and its claims the owners that the retention policy asks for.
    fn repair(&mut self, ordinal: i32, pod: &Pod) {
        // The claims of a Pod that waits were looked at already.
        if pod::phase(pod) != "Pending" {
            let owners = self.claim_owners(ordinal, pod, true);
            self.all(owners);
        }
        if let Some(patch) = identity::repair(self.set, pod, ordinal) {
            let name = pod.metadata.name.as_deref().unwrap_or("");
            let write = self.told(Write::merge_patch(pod, "", patch), "Update", name);
            self.plan.step(write);
        }
    }

    /// Before a Pod goes for good its claims learn whether they go with it.
    fn settle_condemned_claims(&mut self) {
        let mut writes = Vec::new();
        for pod in self.condemned.clone() {
            let Some(ordinal) = identity::ordinal(self.set, pod) else { continue };
            writes.extend(self.claim_owners(ordinal, pod, false));
        }
        self.all(writes);
    }

    fn claim_owners(&mut self, ordinal: i32, pod: &Pod, stays: bool) -> Vec<Write> {
        let (mut writes, mut contested) = (Vec::new(), Vec::new());
        for claim in self.claims(ordinal) {
            let ownership = Ownership { claim, set: self.set, member: Member::of(pod, stays) };
            if !ownership.is_right() {
                if ownership.is_contested() {
                    contested.push(claim.metadata.name.clone().unwrap_or_default());
                }
                writes.push(Write::update(&ownership.corrected()).tolerate(&["NotFound"]));
            }
        }
        for claim in contested {
            // The words are upstream's, as they are.
            let message = format!(
                "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a manging controller, \
                 the retention policy is ignored for this claim"
            );
            self.plan.tell(Note::warning("ConflictingController", message));
        }
        writes
    }
}
