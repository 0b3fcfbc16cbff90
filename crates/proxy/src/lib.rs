//! kube-proxy: makes Service addresses reachable on this node by rewriting packets in the kernel with nftables.
//!
//! [`endpoints`] chooses a port's endpoints, [`service_rules`] renders what one Service needs, [`table`] puts all Services
//! together and finds what changed, [`script`] writes it as one nft transaction (all pure), [`apply`] gives it to the
//! kernel. A change of one Service costs the work for one Service. [`health`] answers load balancers.
//! Reads: Service, EndpointSlice, this Node (its zone). Writes: the kernel's table `ip skiff-proxy`, connection tracking.
//! Upstream counterpart: pkg/proxy/nftables.

pub mod apply;
pub mod endpoints;
pub mod health;
pub mod item;
pub mod node;
pub mod script;
pub mod service_rules;
pub mod table;

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc, time::Duration};

use client::{
    Cache, Caches, Key,
    slices::{Changed, Services},
};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node as NodeObject;

use crate::{
    health::HealthChecks,
    node::Node,
    service_rules::ServiceRules,
    table::{Claim, Table},
};

/// The settings of the proxy.
#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    pub node_ip: Option<Ipv4Addr>,
    /// Addresses of all Pods.
    pub cluster_cidr: Option<Ipv4Net>,
}

/// Runs until cancelled: brings the table to what the API says now, then follows every change.
pub async fn run(caches: Caches, config: Config) {
    let nodes = caches.selected::<NodeObject>(&format!("metadata.name={}", config.node_name));
    let mut node_changes = nodes.subscribe();
    let mut proxy = Proxy {
        services: Services::follow(&caches),
        node: Node { name: config.node_name, zone: String::new(), ip: config.node_ip, pods: config.cluster_cidr },
        table: Table::default(),
        health: HealthChecks::default(),
    };
    let mut watch = nft::Watch::default();
    proxy.services.synced().await;
    nodes.synced().await;
    proxy.node.zone = zone(&nodes, &proxy.node.name);
    proxy.render(Changed::Any);
    proxy.rebuild().await;
    loop {
        tokio::select! {
            changed = proxy.services.changed() => proxy.sync(changed).await,
            () = watch.others() => proxy.heal(&mut watch).await,
            // Lost changes only mean another look.
            _ = node_changes.recv() => {
                let zone = zone(&nodes, &proxy.node.name);
                if zone != proxy.node.zone {
                    proxy.node.zone = zone;
                    proxy.sync(Changed::Any).await;
                }
            }
        }
    }
}

/// Where the node is; empty when nobody says.
fn zone(nodes: &Cache<NodeObject>, name: &str) -> String {
    let node: Option<Arc<NodeObject>> = nodes.get(&Key::new("", name));
    let labels = node.as_ref().and_then(|n| n.metadata.labels.as_ref());
    labels.and_then(|l| l.get("topology.kubernetes.io/zone")).cloned().unwrap_or_default()
}

struct Proxy {
    services: Services,
    node: Node,
    /// The state of the kernel, but for the changes since the last transaction.
    table: Table,
    health: HealthChecks,
}

impl Proxy {
    fn render(&mut self, changed: Changed) {
        let keys: BTreeSet<Key> = match changed {
            Changed::These(keys) => keys,
            Changed::Any => self.services.keys().into_iter().chain(self.table.keys()).collect(),
        };
        for key in keys {
            let rules = match self.services.get(&key) {
                Some((service, slices)) => service_rules::render(&service, &slices, &self.node),
                None => ServiceRules::default(),
            };
            self.health.set(&key, rules.health);
            if self.table.set(&key, rules) == Claim::Contested {
                tracing::warn!(service = %key, "an address and port of this Service is another Service's already");
            }
        }
    }

    async fn sync(&mut self, changed: Changed) {
        waypoint::proxy::sync("services");
        self.render(changed);
        let script = self.table.changes();
        if !script.is_empty()
            && let Err(error) = apply::transaction(&script.text()).await
        {
            tracing::warn!(%error, "the kernel refused a change of Service rules, rebuilding all of them");
            self.rebuild().await;
        }
        self.forget().await;
    }

    /// Forgets UDP flows to endpoints that are gone: after the rules, so that no new flow can take the old way.
    async fn forget(&mut self) {
        let doors = self.table.changed_flows();
        if doors.is_empty() {
            return;
        }
        match apply::conntrack::forget(&doors).await {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "UDP flows to endpoints that are gone were forgotten"),
            Err(error) => tracing::warn!(%error, "cannot forget UDP flows to endpoints that are gone"),
        }
    }

    /// Somebody changed rules: writes all of them again when some of ours are missing.
    async fn heal(&mut self, watch: &mut nft::Watch) {
        let everything = self.everything();
        if let Some(missing) = watch.missing(script::TABLE, &everything).await {
            tracing::warn!(missing, "somebody changed the Service rules, writing them again");
            self.rebuild().await;
        }
    }

    /// The script that makes the whole table.
    fn everything(&mut self) -> String {
        format!("{}{}", script::fresh_table(self.node.pods), self.table.everything().text())
    }

    /// Replaces the whole table in one transaction, trying until the kernel takes it.
    async fn rebuild(&mut self) {
        let mut wait = Duration::from_secs(1);
        loop {
            match apply::transaction(&self.everything()).await {
                Ok(()) => return self.forget().await,
                Err(error) => tracing::error!(%error, "cannot write the Service rules, trying again"),
            }
            clock::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(30));
        }
    }
}
