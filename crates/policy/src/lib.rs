//! NetworkPolicy, and the policies of administrators: which connections the Pods of this node take and open, enforced in the
//! kernel with nftables.
//!
//! [`rule`] and [`admin`] read a policy, [`group`] says which Pods or nodes a rule means, [`world`] follows policies, namespaces,
//! Pods and nodes and plans the [`chain`]s and groups that this node needs, [`tables`] finds what changed, [`text`] writes it for
//! nft (all pure), and [`follow`] brings it to the kernel. [`gate`] is where Pods wait for it, and [`names`] where answers of DNS do,
//! from which the addresses of domains are learned; [`status`] tells in the policies of administrators whether they are enforced. The
//! table outlives the process, so
//! a restart leaves no gap; the first transaction replaces it as a whole.
//! A connection meets the [`kind`]s of policies in tiers, in each direction: those of administrators in the order of their
//! priorities, the NetworkPolicies that select the Pod, and where none does, what administrators say last.
//! Where there is no policy there is no table, and nobody follows the cluster's Pods. The kinds of administrators are there when a
//! user installs them: [`admin::served`] follows their definitions.
//! Reads: NetworkPolicy, AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy, their CustomResourceDefinitions,
//! Namespace, Pod, Node. Writes: the kernel's table `inet skiff-policy`, Event.
//! Upstream counterpart: none in Kubernetes itself; the semantics are those of the API and of test/e2e/network/netpol, and of
//! kubernetes-sigs/network-policy-api and its conformance tests.

pub mod admin;
pub mod chain;
pub mod domain;
mod follow;
pub mod gate;
pub mod group;
pub mod kind;
pub mod names;
pub mod node;
pub mod pod;
pub mod ports;
pub mod rule;
pub mod status;
pub mod tables;
pub mod text;
pub mod traffic;
pub mod world;

use std::time::Duration;

use client::{Client, Error, EventRecorder, rest};
use k8s_openapi::api::{core::v1::Namespace, networking::v1::NetworkPolicy};

use crate::{
    follow::{Follower, Sources},
    gate::{Arrival, Arrivals},
    names::Heard,
    pod::Pod,
};

pub use gate::{Gate, gate};
pub use names::{Names, names};

/// The settings of a node's enforcement.
#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// The beginning of the names of the links to this node's Pods.
    pub pod_links: &'static str,
}

/// Runs until cancelled. `heard` is there where cluster DNS runs beside it.
pub async fn run(client: Client, config: Config, arrivals: Arrivals, heard: Option<Heard>) {
    let mut arrivals = arrivals.0;
    permitted(&client, &mut arrivals).await;
    let sources = Sources::follow(&client, heard.is_some());
    sources.synced().await;
    let events = EventRecorder::new(client.clone(), "kube-network-policies", Some(&config.node_name));
    let mut follower = Follower::new(config, sources, events, heard);
    loop {
        follower.idle(&mut arrivals).await;
        // The other caches go when the last policy does.
        follower.enforce(&client, &mut arrivals).await;
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
