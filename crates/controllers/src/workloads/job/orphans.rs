//! Pods that carry the Job's finalizer though no Job will count them: it is taken off, or they could never go.
//! Reads: Pod, Job. Writes: Pod (finalizers).
//! Upstream counterpart: pkg/controller/job (its queue of orphan Pods).

use client::{Api, Change, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, controller_of};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};

use super::{finished, is_managed_elsewhere, tracking};

pub struct OrphanedPods;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A Job will count the Pod, or the Pod belongs to something else.
    There,
    /// The cache has no such Job. It may only be behind, so the server is asked.
    NotSeen,
    /// No Job will count the Pod.
    Gone,
}

impl Controller for OrphanedPods {
    const NAME: &'static str = "job-controller";
    type Object = Pod;
    type Observed = Owner;

    fn concerns(change: &Change<Pod>) -> bool {
        change.new.as_ref().is_some_and(|pod| tracking::is_tracked(pod))
    }

    fn watches(&self, watches: &mut Watches<Pod>) {
        watches.indexed::<Pod>().changed::<Job>(|change, caches| {
            let over = change.new.as_ref().is_none_or(|job| finished(job).is_some());
            let Some(uid) =
                change.old.as_ref().or(change.new.as_ref()).filter(|_| over).and_then(|j| j.metadata.uid.clone())
            else {
                return Vec::new();
            };
            let pods = Listers { caches, failure: None }.owned_by::<Pod>(&uid);
            pods.iter().filter(|pod| tracking::is_tracked(pod)).map(|pod| Key::of(&**pod)).collect()
        });
    }

    fn observe(&self, pod: &Pod, listers: &Listers) -> Owner {
        let Some(owner) = controller_of(pod).filter(|_| tracking::is_tracked(pod)) else { return Owner::Gone };
        if owner.kind != "Job" || owner.api_version != "batch/v1" {
            return Owner::There;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        match listers.caches.of::<Job>().get(&Key::new(namespace, &owner.name)) {
            Some(job) if job.metadata.uid.as_ref() == Some(&owner.uid) => state_of(&job),
            _ => Owner::NotSeen,
        }
    }

    async fn ask(&self, pod: &Pod, owner: &mut Owner, client: &Client) -> Result<(), client::Error> {
        let Some(reference) = controller_of(pod).filter(|_| *owner == Owner::NotSeen) else { return Ok(()) };
        let jobs: Api<Job> = Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or(""));
        let found = jobs.find(&reference.name).await?.filter(|job| job.metadata.uid.as_ref() == Some(&reference.uid));
        *owner = found.map_or(Owner::Gone, |job| state_of(&job));
        Ok(())
    }

    fn plan(&self, pod: &Pod, owner: &Owner, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        // A Pod that was adopted meanwhile has changed, and keeps the finalizer.
        if *owner == Owner::Gone && tracking::is_tracked(pod) {
            plan.step(tracking::untrack_unchanged(pod));
        }
        plan
    }
}

/// A Job that is over counts nothing any more.
fn state_of(job: &Job) -> Owner {
    if is_managed_elsewhere(job) || finished(job).is_none() { Owner::There } else { Owner::Gone }
}
