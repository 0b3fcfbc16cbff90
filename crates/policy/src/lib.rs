//! NetworkPolicy: which connections the Pods of this node take and open, enforced in the kernel with nftables.
//!
//! [`rule`] reads a policy, [`group`] says which Pods a rule means, [`world`] follows policies, namespaces and Pods and plans
//! the [`chain`]s and groups that this node needs, [`tables`] finds what changed, [`text`] writes it for nft (all pure), and
//! [`follow`] brings it to the kernel. [`gate`] is where Pods wait for it. The table outlives the process, so a restart leaves
//! no gap; the first transaction replaces it as a whole.
//! Where there is no policy there is no table, and nobody follows the cluster's Pods.
//! Reads: NetworkPolicy, Namespace, Pod. Writes: the kernel's table `inet skiff-policy`.
//! Upstream counterpart: none in Kubernetes itself; the semantics are those of the API and of test/e2e/network/netpol.

pub mod chain;
mod follow;
pub mod gate;
pub mod group;
pub mod pod;
pub mod rule;
pub mod tables;
pub mod text;
pub mod traffic;
pub mod world;

use std::time::Duration;

use client::{Caches, Client, Error, rest};
use k8s_openapi::api::{core::v1::Namespace, networking::v1::NetworkPolicy};

use crate::{
    follow::Follower,
    gate::{Arrival, Arrivals},
    pod::Pod,
};

pub use gate::{Gate, gate};

/// The settings of a node's enforcement.
#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// The beginning of the names of the links to this node's Pods.
    pub pod_links: &'static str,
}

/// Runs until cancelled.
pub async fn run(client: Client, config: Config, arrivals: Arrivals) {
    let mut arrivals = arrivals.0;
    permitted(&client, &mut arrivals).await;
    let caches = Caches::new(client.clone());
    let policies = caches.of::<NetworkPolicy>();
    let mut follower = Follower::new(config, policies.clone());
    policies.synced().await;
    loop {
        follower.idle(&mut arrivals).await;
        // These go when the last policy does.
        let caches = Caches::new(client.clone());
        follower.enforce(&caches, &mut arrivals).await;
    }
}

/// Waits until this node may read what policies are made of. A control plane that does not say so leaves its policies to
/// somebody else, so meanwhile nobody waits.
async fn permitted(client: &Client, arrivals: &mut tokio::sync::mpsc::Receiver<Arrival>) {
    let mut wait = Duration::from_millis(200);
    while let Err(error) = readable(client).await {
        let is_forbidden = matches!(&error, Error::Api(status) if status.code == 403);
        if is_forbidden && wait > Duration::from_secs(5) {
            let error = rest::message(&error);
            tracing::warn!(error, "NetworkPolicies are not enforced: this node may not read what they need");
        }
        let pause = clock::sleep(wait);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                // The one who asked may have given up.
                Some(arrival) = arrivals.recv(), if is_forbidden => { let _ = arrival.done.send(()); }
            }
        }
        wait = (wait * 2).min(Duration::from_secs(30));
    }
}

async fn readable(client: &Client) -> Result<(), Error> {
    let kinds = [rest::Resource::of::<NetworkPolicy>(), rest::Resource::of::<Namespace>(), rest::Resource::of::<Pod>()];
    for resource in kinds {
        let collection = rest::Collection::all(resource, rest::Form::Metadata);
        rest::read(client, &collection.path(&[("limit", "1")]), collection.form).await?;
    }
    Ok(())
}

/// Removes everything that enforcing ever wrote.
pub async fn remove() -> Result<(), nft::ApplyError> {
    nft::remove_table(text::TABLE).await
}
