//! The binder's half for volumes: says who has each, and what becomes of one whose claim is gone.

use std::sync::Arc;

use api::rules::volume::{BOUND_BY_CONTROLLER, Offer, PROVISIONED_BY, Wish, annotation, volume_of};
use client::{Api, Client, Key, events};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{BY_CLAIM, by_claim, claim_key, claim_ref, phase};

/// On a volume of a plugin that has become a CSI driver: the driver, which looks after it alone.
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

pub struct Volumes;

impl Controller for Volumes {
    const NAME: &'static str = super::NAME;
    type Object = PersistentVolume;
    /// The claim that the volume refers to, if there is one with its UID.
    type Observed = Option<Arc<PersistentVolumeClaim>>;

    fn watches(&self, watches: &mut Watches<PersistentVolume>) {
        watches.caches().of::<PersistentVolume>().add_index(BY_CLAIM, by_claim);
        watches.changed::<PersistentVolumeClaim>(|change, caches| {
            let held = caches.of::<PersistentVolume>().by_index(BY_CLAIM, &change.key.to_string());
            let named = [&change.old, &change.new].into_iter().flatten().map(|claim| Key::new("", volume_of(claim)));
            named.chain(held.iter().map(|volume| Key::of(&**volume))).collect()
        });
    }

    fn observe(&self, volume: &PersistentVolume, listers: &Listers) -> Self::Observed {
        let claim = listers.caches.of::<PersistentVolumeClaim>().get(&claim_key(volume)?)?;
        (claim.metadata.uid == claim_ref(volume)?.uid).then_some(claim)
    }

    /// A volume of a claim that is not in the cache must not be given up because the cache is late.
    async fn ask(
        &self,
        volume: &PersistentVolume,
        claim: &mut Self::Observed,
        client: &Client,
    ) -> Result<(), kube::Error> {
        let is_bound = claim_ref(volume).is_some_and(|held| held.uid.is_some());
        if let Some(key) = claim_key(volume).filter(|_| is_bound && claim.is_none() && !is_given_up(volume)) {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &key.namespace);
            let found = claims.find(&key.name).await?;
            *claim = found.filter(|c| Some(&c.metadata.uid) == claim_ref(volume).map(|held| &held.uid)).map(Arc::new);
        }
        Ok(())
    }

    fn plan(&self, volume: &PersistentVolume, claim: &Self::Observed, now: Timestamp) -> Plan {
        let Some(held) = claim_ref(volume) else { return to_phase(volume, "Available", now) };
        if held.uid.as_deref().unwrap_or("").is_empty() {
            // Reserved for a claim that may come some day.
            return to_phase(volume, "Available", now);
        }
        let Some(claim) = claim else { return release(volume, now) };
        let name = volume.metadata.name.as_deref().unwrap_or("");
        match volume_of(claim) {
            "" => waiting(volume, claim),
            named if named == name => to_phase(volume, "Bound", now),
            _ if annotation(&volume.metadata, PROVISIONED_BY).is_some() && policy(volume) == "Delete" => {
                release(volume, now)
            }
            _ => free(volume),
        }
    }
}

fn is_given_up(volume: &PersistentVolume) -> bool {
    matches!(phase(volume), "Released" | "Failed")
}

fn policy(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("")
}

/// The volume in this phase, with a message about it.
pub(super) fn with_phase(volume: &PersistentVolume, phase: &str, message: &str, now: Timestamp) -> PersistentVolume {
    let mut changed = volume.clone();
    let status = changed.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.message = Some(message.to_owned()).filter(|m| !m.is_empty());
    status.last_phase_transition_time = Some(Time(now));
    changed
}

fn to_phase(volume: &PersistentVolume, to: &str, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if phase(volume) != to {
        plan.step(Write::update_part(&with_phase(volume, to, "", now), "status"));
    }
    plan
}

/// The volume is reserved for a claim that does not name it yet. The other half goes on, unless the two do not fit.
fn waiting(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Plan {
    let mut plan = Plan::default();
    if !Offer::of(volume).has_mode_of(&Wish::of(claim)) {
        let (name, claim_name) = (&volume.metadata.name, &claim.metadata.name);
        let (name, claim_name) = (name.as_deref().unwrap_or(""), claim_name.as_deref().unwrap_or(""));
        plan.tell(Note::warning(
            "VolumeMismatch",
            format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim_name:?} due to incompatible \
                 volumeMode."
            ),
        ));
        let why = format!(
            "Cannot bind PersistentVolume {name:?} to requested PersistentVolumeClaim due to incompatible volumeMode."
        );
        plan.tell(Note::warning("VolumeMismatch", why).about(events::reference(claim)));
    }
    plan
}

/// The claim has another volume. What the binder reserved is anybody's again; what a user reserved is still for the claim.
fn free(volume: &PersistentVolume) -> Plan {
    let mut freed = volume.clone();
    let spec = freed.spec.get_or_insert_default();
    if annotation(&volume.metadata, BOUND_BY_CONTROLLER).is_some() {
        spec.claim_ref = None;
        let annotations = freed.metadata.annotations.get_or_insert_default();
        annotations.remove(BOUND_BY_CONTROLLER);
        if annotations.is_empty() {
            freed.metadata.annotations = None;
        }
    } else if let Some(held) = &mut spec.claim_ref {
        held.uid = None;
    }
    let mut plan = Plan::default();
    plan.step(Write::update(&freed));
    plan
}

/// The claim is gone: the volume is released first, and then what its policy says is done.
fn release(volume: &PersistentVolume, now: Timestamp) -> Plan {
    if !is_given_up(volume) {
        return to_phase(volume, "Released", now);
    }
    match reclaim(volume) {
        Some(failed) if phase(volume) != "Failed" => {
            let write = Write::update_part(&with_phase(volume, "Failed", &failed.message, now), "status");
            let mut plan = Plan::default();
            plan.step(write.on_success(failed));
            plan
        }
        _ => Plan::default(),
    }
}

/// Why a released volume stays as it is although its policy says otherwise. Nothing in this process deletes or empties
/// volumes, so that is left to what made them; a volume that nobody made has nobody to do it.
fn reclaim(volume: &PersistentVolume) -> Option<Note> {
    if annotation(&volume.metadata, MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
        return None;
    }
    match policy(volume) {
        "Recycle" => Some(Note::warning("VolumeFailedRecycle", "No recycler plugin found for the volume!")),
        "Delete" => cannot_delete(volume).map(|why| Note::warning("VolumeFailedDelete", why)),
        _ => None,
    }
}

fn cannot_delete(volume: &PersistentVolume) -> Option<String> {
    let name = volume.metadata.name.as_deref().unwrap_or("");
    let spec = volume.spec.as_ref()?;
    match annotation(&volume.metadata, PROVISIONED_BY).unwrap_or("") {
        "" if spec.csi.is_some() => return None,
        "" => {}
        internal if internal.starts_with("kubernetes.io/") => {
            return Some(format!("no volume plugin matched name: {internal}"));
        }
        _external => return None,
    }
    match spec.host_path.as_ref().map(|source| source.path.as_str()) {
        // Upstream's controller manager deletes such a folder on its own machine, in clusters for tests.
        Some(path) if !path.contains("/tmp/") => {
            Some(format!("host_path deleter only supports /tmp/.+ but received provided {path}"))
        }
        _ => {
            Some(format!("error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"))
        }
    }
}
