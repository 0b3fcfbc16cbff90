//! Claims on devices: made from templates for the Pods that name them, and given back when no Pod uses them any more. Which device
//! a claim gets is the scheduler's.
//! Upstream counterpart: pkg/controller/resourceclaim.

mod make;
mod release;
pub mod taint_eviction;
pub mod taint_rules;

use api::rules::pod;
use client::Key;
use controller::{Setup, run};
use k8s_openapi::api::core::v1::Pod;

use make::ClaimsOfPods;
use release::ClaimRelease;

pub const NAME: &str = "resourceclaim-controller";

/// Says of a claim that it was made for a Pod, and for which of the Pod's claims.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";

/// Both halves.
pub async fn start(setup: Setup) {
    tokio::join!(run(ClaimsOfPods, setup.clone()), run(ClaimRelease::default(), setup));
}

/// The claims that the Pod uses, as far as they have names, and that for its extended resources.
fn keys(pod: &Pod) -> Vec<Key> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let named = pod::device_claims(pod).filter_map(|claim| claim.name);
    let made = pod::extended_claim(pod).map(str::to_owned);
    named.chain(made).map(|name| Key::new(namespace, name)).collect()
}
