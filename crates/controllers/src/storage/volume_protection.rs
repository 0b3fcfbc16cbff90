//! PV protection: a PersistentVolume that a claim is bound to outlives its deletion.
//! Reads: PersistentVolume. Writes: PersistentVolume (finalizer).
//! Upstream counterpart: pkg/controller/volume/pvprotection.

use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches};
use k8s_openapi::api::core::v1::PersistentVolume;

use super::protect;

const FINALIZER: &str = "kubernetes.io/pv-protection";

pub struct VolumeProtection;

impl Controller for VolumeProtection {
    const NAME: &'static str = "persistentvolume-protection-controller";
    type Object = PersistentVolume;
    type Observed = ();

    fn watches(&self, _: &mut Watches<PersistentVolume>) {}

    fn observe(&self, _: &PersistentVolume, _: &Listers) {}

    fn plan(&self, volume: &PersistentVolume, (): &(), _: Timestamp) -> Plan {
        let bound = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        protect(volume, FINALIZER, bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_volume_goes_when_no_claim_is_bound_to_it() {
        // `deleting` and `protected` in the first, the phase in the second; then the finalizers that are written.
        let check = |words: &str, phase: &str, expected: Option<&[&str]>| {
            let finalizers = if words.contains("protected") { json!(["other", FINALIZER]) } else { json!(["other"]) };
            let deleted = words.contains("deleting").then_some("2026-01-01T00:00:00Z");
            let volume = json!({"metadata": {"name": "v", "finalizers": finalizers, "deletionTimestamp": deleted},
                "status": {"phase": phase}});
            let volume: PersistentVolume = json::from_value(volume).unwrap();
            let plan = VolumeProtection.plan(&volume, &(), Timestamp::UNIX_EPOCH);
            let written = plan.writes().next().map(|write| write.body()["metadata"]["finalizers"].clone());
            assert_eq!(written, expected.map(|list| json!(list)), "{words} {phase}");
        };
        check("", "Available", Some(&["other", FINALIZER]));
        check("protected", "Available", None);
        check("protected", "Bound", None);
        check("protected deleting", "Bound", None);
        check("protected deleting", "Released", Some(&["other"]));
        check("protected deleting", "", Some(&["other"]));
        check("deleting", "Bound", None);
    }
}
