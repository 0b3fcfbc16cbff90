//! Gives claims back: takes the Pods off that are done, deallocates a claim that nobody uses any more, lets go of one that is being
//! deleted, and deletes one whose Pod is done.
//! Reads: ResourceClaim, Pod. Writes: ResourceClaim (update, delete), ResourceClaim/status.

use std::{collections::HashSet, sync::Arc};

use api::rules::pod;
use client::{Api, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write, controller_of};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceClaimConsumerReference},
};
use parking_lot::Mutex;

use super::{NAME, keys};
use crate::node::on_node::node_of;

/// Keeps a claim while it has devices.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

#[derive(Default)]
pub struct ClaimRelease {
    /// The claims that were seen in use and have had the finalizer ever since. The scheduler sets it before it allocates: a claim
    /// without devices that is not among these may be just about to get some.
    used: Mutex<HashSet<String>>,
}

pub struct Observed {
    /// Those that still use the claim.
    consumers: Vec<ResourceClaimConsumerReference>,
    /// Those of whose Pods the cache knows nothing.
    unknown: Vec<ResourceClaimConsumerReference>,
    /// The Pod for which the claim was made will not run any more.
    owner_done: bool,
    /// If it has a finalizer and no devices now, it was deallocated.
    was_used: bool,
}

/// None of its containers runs or will run.
fn is_done(pod: &Pod) -> bool {
    pod::is_terminal(pod) || (pod.metadata.deletion_timestamp.is_some() && node_of(pod).is_empty())
}

fn is_pod(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.resource == "pods" && consumer.api_group.as_deref().unwrap_or("").is_empty()
}

fn reserved_for(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default()
}

fn uid(claim: &ResourceClaim) -> String {
    claim.metadata.uid.clone().unwrap_or_default()
}

fn is_held(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

impl ClaimRelease {
    /// Notes whether the claim is in use, and says whether it was.
    fn was_used(&self, claim: &ResourceClaim) -> bool {
        let mut used = self.used.lock();
        if !is_held(claim) {
            used.remove(&uid(claim));
        } else if is_allocated(claim) && !reserved_for(claim).is_empty() {
            used.insert(uid(claim));
        }
        used.contains(&uid(claim))
    }
}

impl Controller for ClaimRelease {
    const NAME: &'static str = NAME;
    type Object = ResourceClaim;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<ResourceClaim>) {
        watches.changed::<Pod>(|change, _| {
            let done = |pod: &Option<Arc<Pod>>| pod.as_ref().is_none_or(|pod| is_done(pod));
            let replaced = matches!((&change.old, &change.new), (Some(a), Some(b)) if a.metadata.uid != b.metadata.uid);
            let counts = replaced || (done(&change.new) && (change.new.is_none() || !done(&change.old)));
            change.old.iter().chain(&change.new).filter(|_| counts).flat_map(|pod| keys(pod)).collect()
        });
    }

    fn observe(&self, claim: &ResourceClaim, listers: &Listers) -> Observed {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or("");
        let pod = |name: &str| listers.caches.of::<Pod>().get(&Key::new(namespace, name));
        let (mut consumers, mut unknown) = (Vec::new(), Vec::new());
        for consumer in reserved_for(claim) {
            match pod(&consumer.name).filter(|_| is_pod(consumer)) {
                Some(pod) if pod.metadata.uid.as_ref() != Some(&consumer.uid) || is_done(&pod) => {}
                None if is_pod(consumer) => unknown.push(consumer.clone()),
                _ => consumers.push(consumer.clone()),
            }
        }
        let owner = controller_of(claim).filter(|owner| owner.kind == "Pod" && owner.api_version == "v1");
        // A Pod that is not known may be new; if it is gone, the garbage collector takes the claim.
        let owner_done = owner
            .and_then(|owner| Some((pod(&owner.name)?, owner)))
            .is_some_and(|(pod, owner)| pod.metadata.uid.as_ref() != Some(&owner.uid) || is_done(&pod));
        Observed { consumers, unknown, owner_done, was_used: self.was_used(claim) }
    }

    /// The cache may not have a Pod yet that the scheduler is about to start.
    async fn ask(&self, claim: &ResourceClaim, observed: &mut Observed, client: &Client) -> Result<(), client::Error> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or("");
        for consumer in std::mem::take(&mut observed.unknown) {
            let pod = Api::<Pod>::namespaced(client.clone(), namespace).find(&consumer.name).await?;
            if pod.is_some_and(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid)) {
                observed.consumers.push(consumer);
            }
        }
        Ok(())
    }

    fn plan_gone(&self, _: &Key, listers: &Listers, _: Timestamp) -> Plan {
        let there: HashSet<String> =
            listers.caches.of::<ResourceClaim>().list().iter().map(|claim| uid(claim)).collect();
        self.used.lock().retain(|uid| there.contains(uid));
        Plan::default()
    }

    fn plan(&self, claim: &ResourceClaim, observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let allocated = is_allocated(claim);
        let held = is_held(claim);
        let (unused, deleting) = (observed.consumers.is_empty(), claim.metadata.deletion_timestamp.is_some());
        let released = observed.consumers.len() < reserved_for(claim).len();
        if released || (deleting && unused && held && allocated) {
            let mut new = claim.clone();
            let status = new.status.get_or_insert_default();
            status.reserved_for = (!unused).then(|| observed.consumers.clone());
            if unused && held {
                // The status that drivers tell of devices goes with the devices.
                (status.allocation, status.devices) = (None, None);
            }
            plan.set_status(claim, &new);
        } else if unused && held && !allocated && (deleting || observed.was_used) {
            let mut new = claim.clone();
            new.metadata.finalizers.get_or_insert_default().retain(|f| f != FINALIZER);
            plan.step(Write::update(&new).tolerate(&["NotFound"]));
        }
        if unused && observed.owner_done && !deleting {
            plan.step(Write::delete(claim));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_claim_is_given_back_when_nobody_uses_it() {
        // Words about the claim; how many of its two consumers still use it; what is done.
        let check = |words: &str, consumers: usize, expected: &str| {
            let has = |word: &str| words.split(' ').any(|w| w == word);
            let consumer = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
            let all = if has("reserved") { vec![consumer("a"), consumer("b")] } else { Vec::new() };
            let claim: ResourceClaim = json::from_value(json!({
                "metadata": {"name": "c", "uid": "c", "deletionTimestamp": has("deleting").then_some("2026-01-01T00:00:00Z"),
                    "finalizers": if has("held") { json!([FINALIZER]) } else { json!([]) }},
                "spec": {},
                "status": {"reservedFor": all, "allocation": has("allocated").then(|| json!({}))},
            }))
            .unwrap();
            let observed = Observed {
                consumers: reserved_for(&claim).iter().take(consumers).cloned().collect(),
                unknown: Vec::new(),
                owner_done: has("done"),
                was_used: has("used"),
            };
            let plan = ClaimRelease::default().plan(&claim, &observed, Timestamp::UNIX_EPOCH);
            let allocated = plan.status.as_ref().map(|write| write.body()["status"].get("allocation").is_some());
            let words = plan.to_string() + allocated.map_or("", |still| if still { " allocated" } else { " free" });
            assert_eq!(words, expected, "{words} {consumers}");
        };
        check("held allocated reserved", 2, "");
        check("held allocated reserved", 1, "update resourceclaims/status c allocated");
        check("held allocated reserved", 0, "update resourceclaims/status c free");
        check("allocated reserved", 0, "update resourceclaims/status c allocated");
        // Its finalizer goes with its devices, but not while the scheduler may be about to allocate it.
        check("held", 0, "");
        check("held used", 0, "update resourceclaims c");
        check("held deleting", 0, "update resourceclaims c");
        check("held deleting allocated", 0, "update resourceclaims/status c free");
        check("held deleting allocated reserved", 2, "");
        check("done", 0, "delete resourceclaims c");
        check("done reserved", 2, "");
        check("done held allocated reserved", 0, "delete resourceclaims c, update resourceclaims/status c free");
    }
}
