//! VolumeAttributesClass protection: a class that a claim or a volume names outlives its deletion.
//! Reads: VolumeAttributesClass, PersistentVolumeClaim, PersistentVolume. Writes: VolumeAttributesClass (finalizer).
//! Upstream counterpart: pkg/controller/volume/vacprotection.

use client::{Api, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};

use super::{is_leaving, protect};

const FINALIZER: &str = "kubernetes.io/vac-protection";

/// The names of the indexes of claims and of volumes by the classes that they name.
const CLAIMS: &str = "claims by attributes class";
const VOLUMES: &str = "volumes by attributes class";

pub struct AttributesClassProtection;

/// The class that a claim asks for, the one that it has, and the one that it is on its way to.
fn of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let asked = claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone());
    let status = claim.status.as_ref();
    let current = status.and_then(|s| s.current_volume_attributes_class_name.clone());
    let target = status.and_then(|s| s.modify_volume_status.as_ref()?.target_volume_attributes_class_name.clone());
    let mut names: Vec<String> =
        [asked, current, target].into_iter().flatten().filter(|name| !name.is_empty()).collect();
    names.sort();
    names.dedup();
    names
}

fn of_volume(volume: &PersistentVolume) -> Vec<String> {
    let name = volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone());
    name.filter(|name| !name.is_empty()).into_iter().collect()
}

/// The classes that an object names no more.
fn left(old: Vec<String>, new: Vec<String>) -> Vec<Key> {
    old.into_iter().filter(|name| !new.contains(name)).map(|name| Key::new("", name)).collect()
}

impl Controller for AttributesClassProtection {
    const NAME: &'static str = "volumeattributesclass-protection-controller";
    type Object = VolumeAttributesClass;
    /// Whether anything names the class.
    type Observed = bool;

    fn watches(&self, watches: &mut Watches<VolumeAttributesClass>) {
        watches.caches().of::<PersistentVolumeClaim>().add_index(CLAIMS, of_claim);
        watches.caches().of::<PersistentVolume>().add_index(VOLUMES, of_volume);
        watches.changed::<PersistentVolumeClaim>(|change, _| {
            let names = |claim: &Option<std::sync::Arc<PersistentVolumeClaim>>| {
                claim.as_ref().map(|claim| of_claim(claim)).unwrap_or_default()
            };
            left(names(&change.old), names(&change.new))
        });
        watches.changed::<PersistentVolume>(|change, _| {
            let names = |volume: &Option<std::sync::Arc<PersistentVolume>>| {
                volume.as_ref().map(|volume| of_volume(volume)).unwrap_or_default()
            };
            left(names(&change.old), names(&change.new))
        });
    }

    fn observe(&self, class: &VolumeAttributesClass, listers: &Listers) -> bool {
        let name = class.metadata.name.as_deref().unwrap_or("");
        let (claims, volumes) = (listers.caches.of::<PersistentVolumeClaim>(), listers.caches.of::<PersistentVolume>());
        is_leaving(class, FINALIZER)
            && !(claims.by_index(CLAIMS, name).is_empty() && volumes.by_index(VOLUMES, name).is_empty())
    }

    /// A claim or volume that the caches do not have yet may name it.
    async fn ask(&self, class: &VolumeAttributesClass, used: &mut bool, client: &Client) -> Result<(), client::Error> {
        if is_leaving(class, FINALIZER) && !*used {
            let name = class.metadata.name.clone().unwrap_or_default();
            let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
            let volumes: Api<PersistentVolume> = Api::all(client.clone());
            *used = claims.list(&[]).await?.iter().any(|claim| of_claim(claim).contains(&name))
                || volumes.list(&[]).await?.iter().any(|volume| of_volume(volume).contains(&name));
        }
        Ok(())
    }

    fn plan(&self, class: &VolumeAttributesClass, used: &bool, _: Timestamp) -> Plan {
        protect(class, FINALIZER, *used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_claim_names_the_class_that_it_asks_for_has_and_gets() {
        let claim = json!({"spec": {"volumeAttributesClassName": "gold"}, "status": {
            "currentVolumeAttributesClassName": "silver",
            "modifyVolumeStatus": {"status": "InProgress", "targetVolumeAttributesClassName": "gold"}}});
        let claim: PersistentVolumeClaim = json::from_value(claim).unwrap();
        assert_eq!(of_claim(&claim), ["gold", "silver"]);
        assert_eq!(left(of_claim(&claim), vec!["gold".to_owned()]), [Key::new("", "silver")]);
    }

    #[test]
    fn a_class_goes_when_nothing_names_it() {
        let check = |words: &str, used: bool, expected: Option<&[&str]>| {
            let finalizers = if words.contains("protected") { json!([FINALIZER]) } else { json!([]) };
            let deleted = words.contains("deleting").then_some("2026-01-01T00:00:00Z");
            let class = json!({"driverName": "d", "metadata": {"name": "c", "finalizers": finalizers,
                "deletionTimestamp": deleted}});
            let class = json::from_value(class).unwrap();
            let plan = AttributesClassProtection.plan(&class, &used, Timestamp::UNIX_EPOCH);
            let written = plan.writes().next().map(|write| write.body()["metadata"]["finalizers"].clone());
            assert_eq!(written, expected.map(|list| json!(list)), "{words} {used}");
        };
        check("", false, Some(&[FINALIZER]));
        check("protected", false, None);
        check("protected deleting", true, None);
        check("protected deleting", false, Some(&[]));
    }
}
