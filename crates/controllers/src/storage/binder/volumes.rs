//! The binder's half for volumes: says who has each, and what becomes of one whose claim is gone.

use std::{sync::Arc, time::Duration};

use api::rules::volume::{BOUND_BY_CONTROLLER, Offer, PROVISIONED_BY, Wish, annotation, volume_of};
use client::{Api, Client, Key, events};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    BY_CLAIM, by_claim, claim_key, claim_ref, phase,
    provision::HOST_PATH,
    recycle::{self, Own, Progress, Settings},
    took::Took,
};
use crate::storage::claim_protection::{BY_CLAIM as PODS_BY_CLAIM, by_claim as pods_by_claim};

/// On a volume of a plugin that has become a CSI driver: the driver, which looks after it alone.
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// How soon a released volume is tried again that could not be deleted or emptied.
const AGAIN: Duration = Duration::from_secs(15);

pub struct Volumes {
    settings: Settings,
    own: Own,
    /// How long volumes take to be deleted.
    took: Took,
}

#[derive(Default)]
pub struct Observed {
    /// The claim that the volume refers to, if there is one with its UID.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// Pods that still use the claim that is gone.
    pub users: Vec<String>,
    /// How far deleting or emptying it is, where the binder does that.
    pub progress: Option<Progress>,
}

impl Volumes {
    pub fn new(settings: Settings) -> Self {
        Volumes { settings, own: Own::default(), took: Took::new("delete") }
    }
}

impl Controller for Volumes {
    const NAME: &'static str = super::NAME;
    type Object = PersistentVolume;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<PersistentVolume>) {
        watches.caches().of::<PersistentVolume>().add_index(BY_CLAIM, by_claim);
        watches.caches().of::<Pod>().add_index(PODS_BY_CLAIM, pods_by_claim);
        watches.changed::<Pod>(|change, _| {
            let pod = change.new.as_ref().or(change.old.as_ref());
            pod.and_then(|pod| recycle::volume_of_pod(pod)).into_iter().collect()
        });
        watches.changed::<PersistentVolumeClaim>(|change, caches| {
            let held = caches.of::<PersistentVolume>().by_index(BY_CLAIM, &change.key.to_string());
            let named = [&change.old, &change.new].into_iter().flatten().map(|claim| Key::new("", volume_of(claim)));
            named.chain(held.iter().map(|volume| Key::of(&**volume))).collect()
        });
    }

    fn observe(&self, volume: &PersistentVolume, listers: &Listers) -> Observed {
        let mut observed = Observed::default();
        let key = Key::of(volume);
        if !is_given_up(volume) {
            self.own.forget(volume);
            self.took.forget(&key);
        } else if policy(volume) == "Delete" {
            let provisioner = annotation(&volume.metadata, PROVISIONED_BY).unwrap_or("N/A");
            self.took.begin(key, provisioner, clock::now());
        }
        let (Some(key), Some(held)) = (claim_key(volume), claim_ref(volume)) else { return observed };
        match listers.caches.of::<PersistentVolumeClaim>().get(&key) {
            Some(claim) if claim.metadata.uid == held.uid => observed.claim = Some(claim),
            // Another claim of the name has a volume of its own, and so have its Pods.
            Some(_) => {}
            None => {
                let pods = listers.caches.of::<Pod>().by_index(PODS_BY_CLAIM, &key.to_string());
                let here = pods.iter().filter(|pod| !api::rules::pod::is_terminal(pod));
                observed.users = here.map(|pod| Key::of(&**pod).to_string()).collect();
            }
        }
        observed
    }

    /// A volume of a claim that is not in the cache must not be given up because the cache is late. One that is given up and
    /// that the binder looks after is deleted or emptied: which Pod does that, only the server's answer says.
    async fn ask(
        &self,
        volume: &PersistentVolume,
        observed: &mut Observed,
        client: &Client,
    ) -> Result<(), client::Error> {
        let is_bound = claim_ref(volume).is_some_and(|held| held.uid.as_deref().is_some_and(|uid| !uid.is_empty()));
        let needless = observed.claim.as_deref().is_none_or(|claim| is_spare(volume, claim));
        let Some(key) = claim_key(volume).filter(|_| is_bound && needless) else { return Ok(()) };
        if !is_given_up(volume) && observed.claim.is_none() {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &key.namespace);
            let found = claims.find(&key.name).await?;
            let same = |c: &PersistentVolumeClaim| Some(&c.metadata.uid) == claim_ref(volume).map(|held| &held.uid);
            observed.claim = found.filter(same).map(Arc::new);
        } else if is_given_up(volume) && volume.metadata.deletion_timestamp.is_none() && !is_migrated(volume) {
            observed.progress = self.reclaim(volume, &observed.users, client).await?;
        }
        Ok(())
    }

    fn plan(&self, volume: &PersistentVolume, observed: &Observed, now: Timestamp) -> Plan {
        let Some(held) = claim_ref(volume) else { return to_phase(volume, "Available", now) };
        if held.uid.as_deref().unwrap_or("").is_empty() {
            // Reserved for a claim that may come some day.
            return to_phase(volume, "Available", now);
        }
        let Some(claim) = &observed.claim else { return release(volume, observed.progress.as_ref(), now) };
        let name = volume.metadata.name.as_deref().unwrap_or("");
        match volume_of(claim) {
            "" => waiting(volume, claim),
            named if named == name => to_phase(volume, "Bound", now),
            _ if is_spare(volume, claim) => release(volume, observed.progress.as_ref(), now),
            _ => free(volume),
        }
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.took.end(key, clock::now());
        Plan::default()
    }
}

impl Volumes {
    /// Does what the policy says, as far as the binder does it.
    async fn reclaim(
        &self,
        volume: &PersistentVolume,
        users: &[String],
        client: &Client,
    ) -> Result<Option<Progress>, client::Error> {
        match policy(volume) {
            "Delete" => {
                let Some(path) = removable(volume).map(str::to_owned) else { return Ok(None) };
                let remove = self.settings.remove_folder.clone();
                let done = tokio::task::spawn_blocking(move || remove(&path)).await;
                let done = done.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
                Ok(Some(Progress::Removed(done.map_err(|error| error.to_string()))))
            }
            "Recycle" => {
                let Some(pod) = recycle::pod_for(volume, &self.settings) else { return Ok(None) };
                if !users.is_empty() {
                    return Ok(Some(Progress::Used(users.to_vec())));
                }
                self.own.empty(volume, &pod, client).await.map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Whether a volume was made for a claim that took another.
fn is_spare(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (named, name) = (volume_of(claim), volume.metadata.name.as_deref().unwrap_or(""));
    let made = annotation(&volume.metadata, PROVISIONED_BY).is_some();
    !named.is_empty() && named != name && made && policy(volume) == "Delete"
}

/// The folder of a volume that the binder deletes with it.
fn removable(volume: &PersistentVolume) -> Option<&str> {
    let ours = matches!(annotation(&volume.metadata, PROVISIONED_BY).unwrap_or(""), "" | HOST_PATH);
    let path = volume.spec.as_ref()?.host_path.as_ref()?.path.as_str();
    let below = path.strip_prefix("/tmp/").is_some_and(|rest| !rest.trim_matches('/').is_empty());
    (ours && below && path.split('/').all(|part| !matches!(part, "." | ".."))).then_some(path)
}

fn is_migrated(volume: &PersistentVolume) -> bool {
    annotation(&volume.metadata, MIGRATED_TO).is_some_and(|driver| !driver.is_empty())
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

/// The claim has another volume. A volume that the binder reserved is anybody's again; one that a user reserved is still
/// for the claim.
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
fn release(volume: &PersistentVolume, progress: Option<&Progress>, now: Timestamp) -> Plan {
    if !is_given_up(volume) {
        return to_phase(volume, "Released", now);
    }
    if let Some(progress) = progress {
        return follow(volume, progress, now);
    }
    reclaim(volume).map(|why| fail(volume, why, now)).unwrap_or_default()
}

/// A volume is not done away with: once in its phase, it says so no more.
fn fail(volume: &PersistentVolume, failed: Note, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if phase(volume) != "Failed" {
        let write = Write::update_part(&with_phase(volume, "Failed", &failed.message, now), "status");
        plan.step(write.on_success(failed));
    }
    plan
}

/// The plan that follows from how far the binder itself has come.
fn follow(volume: &PersistentVolume, progress: &Progress, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    match progress {
        Progress::Removed(Ok(())) => {
            plan.step(Write::delete(volume));
        }
        Progress::Removed(Err(why)) => {
            plan = fail(volume, Note::warning("VolumeFailedDelete", why), now);
            plan.again_after(AGAIN);
        }
        Progress::Used(pods) => {
            plan.tell(Note::normal("VolumeFailedRecycle", format!("Volume is used by pods: {}", pods.join(","))));
            plan.again_after(AGAIN);
        }
        // The Pod's changes are watched.
        Progress::Emptying => {}
        Progress::Empty(pod) => {
            // The Pod goes first: whoever goes on from here empties the volume once more rather than not at all.
            plan.step(Write::delete(&**pod));
            let mut freed = free(volume);
            if let Some(controller::Step::One(write)) = freed.steps.pop() {
                plan.step(write.on_success(Note::normal("VolumeRecycled", "Volume recycled")));
            }
        }
        Progress::NotEmpty(pod, why) => {
            plan = fail(volume, Note::warning("VolumeFailedRecycle", format!("Recycle failed: {why}")), now);
            if let Some(pod) = pod {
                plan.step(Write::delete(&**pod));
            }
            plan.again_after(AGAIN);
        }
    }
    plan
}

/// Why a released volume stays as it is although its policy says otherwise, where nobody does what it says.
fn reclaim(volume: &PersistentVolume) -> Option<Note> {
    if is_migrated(volume) {
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
        "" | HOST_PATH => {}
        internal if internal.starts_with("kubernetes.io/") => {
            return Some(format!("no volume plugin matched name: {internal}"));
        }
        _external => return None,
    }
    if removable(volume).is_some() {
        return None;
    }
    match spec.host_path.as_ref().map(|source| source.path.as_str()) {
        Some(path) => Some(format!("host_path deleter only supports /tmp/.+ but received provided {path}")),
        None => {
            Some(format!("error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"))
        }
    }
}
