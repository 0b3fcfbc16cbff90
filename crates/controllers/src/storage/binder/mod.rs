//! The binder: brings claims and volumes together, and says what becomes of volumes whose claim is gone.
//! Reads: PersistentVolumeClaim, PersistentVolume, StorageClass, Pod. Writes: PersistentVolumeClaim and its status,
//! PersistentVolume and its status, Pod (those that empty volumes).
//! Upstream counterpart: pkg/controller/volume/persistentvolume (pv_controller.go).
//!
//! A claim and its volume point at each other, and the two references are written one after the other. Whatever happens
//! between two writes – the process dies, a cache is late, a second binder runs – no volume gets two claims and no claim
//! two volumes, because
//! 1. every write replaces the version of the object that the plan has seen, so of two claims that choose one volume the
//!    second is refused;
//! 2. the volume's reference, with the claim's UID, comes first: a claim names a volume only after a plan has read that
//!    the volume is reserved for it, and a volume that is reserved for a claim is chosen before any other, so a plan that
//!    follows an interrupted one finishes it;
//! 3. the claim's reference is written once. A volume that was reserved for a claim which names another one by now is
//!    given free (`volumes`), and no Pod has used it: kubelets ask for both references;
//! 4. a claim that the cache does not have is asked for at the server before its volume counts as released.
//!
//! A plan writes each object once at most; what is left follows from what the caches show then, which is what a new
//! process would see as well.

mod claims;
mod provision;
pub mod recycle;
#[cfg(test)]
mod tests;
mod took;
mod volumes;

use client::Key;
use controller::{Controller, Setup};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};

use super::figures;
pub use claims::Claims;
pub use provision::PROVISIONER;
pub use recycle::Settings;
pub(super) use took::render as metrics;
use volumes::Volumes;

/// The name of the index of volumes by the claim that they are reserved for or bound to.
const BY_CLAIM: &str = "volumes by claim";

/// Runs the two halves: one plans claims, the other volumes.
pub async fn run(setup: Setup, settings: Settings) {
    figures::follow(&setup.caches);
    let claims = Claims::new(settings.provision_host_paths);
    tokio::join!(controller::run(claims, setup.clone()), controller::run(Volumes::new(settings), setup));
}

pub const NAME: &str = Claims::NAME;

fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// The key of the claim that a volume is reserved for or bound to.
fn claim_key(volume: &PersistentVolume) -> Option<Key> {
    let claim = claim_ref(volume)?;
    Some(Key::new(claim.namespace.as_deref().unwrap_or(""), claim.name.as_deref().unwrap_or("")))
}

fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

fn by_claim(volume: &PersistentVolume) -> Vec<String> {
    claim_key(volume).iter().map(ToString::to_string).collect()
}
