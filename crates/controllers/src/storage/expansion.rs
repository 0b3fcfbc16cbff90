//! Expansion: says that a claim which asks for more than its volume has waits for its driver's resizer. Nothing in this
//! process can make a volume larger.
//! Reads: PersistentVolumeClaim, PersistentVolume. Writes: events only.
//! Upstream counterpart: pkg/controller/volume/expand.

use std::sync::Arc;

use api::rules::{
    quantity::{self, Quantity},
    volume::{SIZE_BEFORE_RESIZE, annotation, volume_of},
};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

pub struct Expansion;

fn wanted(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
    requests.map(quantity::parse).unwrap_or_default()
}

fn held(claim: &PersistentVolumeClaim) -> Quantity {
    let capacity = claim.status.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage"));
    capacity.map(quantity::parse).unwrap_or_default()
}

impl Controller for Expansion {
    const NAME: &'static str = "persistentvolume-expander-controller";
    type Object = PersistentVolumeClaim;
    /// The volume that the claim is bound to.
    type Observed = Option<Arc<PersistentVolume>>;

    /// The claim is new to this process, asks for more, or has got more.
    fn concerns(change: &Change<PersistentVolumeClaim>) -> bool {
        match (&change.old, &change.new) {
            (Some(old), Some(new)) => wanted(new) > wanted(old) || held(new) > held(old),
            (None, Some(_)) => true,
            (_, None) => false,
        }
    }

    fn watches(&self, watches: &mut Watches<PersistentVolumeClaim>) {
        watches.reads::<PersistentVolume>();
    }

    fn observe(&self, claim: &PersistentVolumeClaim, listers: &Listers) -> Self::Observed {
        let volume = listers.caches.of::<PersistentVolume>().get(&Key::new("", volume_of(claim)))?;
        let owner = volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone();
        (owner == claim.metadata.uid).then_some(volume)
    }

    fn plan(&self, claim: &PersistentVolumeClaim, volume: &Self::Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let Some(volume) = volume.as_ref().filter(|_| bound) else { return plan };
        if wanted(claim) > held(claim) || annotation(&volume.metadata, SIZE_BEFORE_RESIZE).is_some() {
            plan.tell(Note::normal("ExternalExpanding", "waiting for an external controller to expand this PVC"));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller::Step;
    use json::json;

    fn claim(phase: &str, wanted: &str, held: &str) -> PersistentVolumeClaim {
        let claim = json!({"spec": {"volumeName": "v", "resources": {"requests": {"storage": wanted}}},
            "status": {"phase": phase, "capacity": {"storage": held}}});
        json::from_value(claim).unwrap()
    }

    #[test]
    fn a_claim_that_asks_for_more_waits_for_a_resizer() {
        let volume = |annotations| -> PersistentVolume {
            json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
        };
        let check = |claim: PersistentVolumeClaim, volume: Option<PersistentVolume>, expected: usize| {
            let plan = Expansion.plan(&claim, &volume.map(Arc::new), Timestamp::UNIX_EPOCH);
            let told = plan.steps.iter().filter(|step| matches!(step, Step::Tell(_))).count();
            assert_eq!((told, plan.steps.len()), (expected, expected));
        };
        check(claim("Bound", "2Gi", "1Gi"), Some(volume(json!({}))), 1);
        check(claim("Bound", "1Gi", "1024Mi"), Some(volume(json!({}))), 0);
        check(claim("Bound", "1Gi", "2Gi"), Some(volume(json!({}))), 0);
        check(claim("Bound", "1Gi", "1Gi"), Some(volume(json!({SIZE_BEFORE_RESIZE: "1Gi"}))), 1);
        check(claim("Pending", "2Gi", "1Gi"), Some(volume(json!({}))), 0);
        check(claim("Bound", "2Gi", "1Gi"), None, 0);
    }

    #[test]
    fn only_growth_concerns_it() {
        let check = |old: PersistentVolumeClaim, new: PersistentVolumeClaim, expected: bool| {
            let (old, new) = (Some(Arc::new(old)), Some(Arc::new(new)));
            assert_eq!(Expansion::concerns(&Change { key: Key::new("d", "c"), old, new }), expected);
        };
        check(claim("Bound", "1Gi", "1Gi"), claim("Bound", "2Gi", "1Gi"), true);
        check(claim("Bound", "2Gi", "1Gi"), claim("Bound", "2Gi", "2Gi"), true);
        check(claim("Bound", "2Gi", "1Gi"), claim("Bound", "2Gi", "1Gi"), false);
        check(claim("Bound", "2Gi", "1Gi"), claim("Bound", "1Gi", "1Gi"), false);
    }
}
