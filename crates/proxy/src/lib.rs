//! kube-proxy: makes Service addresses reachable on this node by rewriting packets in the kernel, with nftables or iptables.
//!
//! [`endpoints`] chooses a port's endpoints, [`ports`] says how each port is to be reached, [`service_rules`] renders what one
//! Service needs, [`table`] puts all Services together and finds what changed, [`script`] writes it as one nft transaction (all
//! pure), [`apply`] gives it to the kernel. [`iptables`] takes the place of the renderer and of what follows the table in its mode.
//! A change of one Service costs the work for one Service. [`health`] answers load balancers, [`liveness`] and [`metrics`] tell how
//! the proxy itself is.
//! Reads: Service, EndpointSlice, ServiceCIDR where it may, this Node (its zone). Writes: the kernel's tables `ip skiff-proxy` and `ip6 skiff-proxy`, connection tracking.
//! Upstream counterpart: pkg/proxy/nftables, pkg/proxy/iptables.

mod answers;
pub mod apply;
mod arrivals;
mod configz;
pub mod endpoints;
mod family;
pub mod health;
pub mod iptables;
pub mod item;
pub mod liveness;
pub mod metrics;
pub mod node;
pub mod ports;
pub mod script;
pub mod service_rules;
pub mod table;

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use client::{
    Caches, Client, EventKind, Key,
    events::{Act, ActRecorder},
    slices::{Changed, Services},
};
use http::StatusCode;
use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{Node as NodeObject, ObjectReference},
    networking::v1::ServiceCIDR,
};
pub use nft::Family;
use tokio::task::JoinSet;

use crate::{
    answers::Answer,
    apply::limits::Limits,
    arrivals::Arrivals,
    family::{Disturbances, OneFamily},
    health::HealthChecks,
    liveness::Liveness,
    metrics::Metrics,
    node::Node,
    ports::ServiceRules,
    table::Claim,
};
pub use family::Mode;
pub use script::MASQUERADE_BIT;

/// The settings of the proxy.
#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// The families whose Services are served, the first one first.
    pub families: Vec<Node>,
    pub mode: Mode,
    /// How many connections the kernel follows, and for how long.
    pub conntrack: Limits,
    /// Where `/healthz` and `/livez` are answered.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics`, `/proxyMode` and `/configz` are answered.
    pub metrics: Option<SocketAddr>,
}

/// The kernel kept rules.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("cannot remove the Service rules of nftables")]
    Nft(#[from] nft::ApplyError),
    #[error("cannot remove the Service rules of iptables")]
    Iptables(#[from] iptables::run::Error),
}

/// Removes the rules of both modes.
pub async fn remove() -> Result<(), RemoveError> {
    apply::remove().await?;
    Ok(iptables::run::remove().await?)
}

/// Runs until cancelled: brings the tables to what the API says now, then follows every change.
pub async fn run(caches: Caches, config: Config) {
    let nodes = caches.selected::<NodeObject>(&format!("metadata.name={}", config.node_name));
    let mut node_changes = nodes.subscribe();
    // Nobody waits for them: a proxy that may not read them serves Services all the same.
    let ranges = caches.of::<ServiceCIDR>();
    let mut range_changes = ranges.subscribe();
    let (liveness, metrics) = (Liveness::default(), Metrics::default());
    let mut proxy = Proxy {
        services: Services::follow(&caches),
        families: config
            .families
            .iter()
            .map(|node| OneFamily::new(node.clone(), config.mode, &liveness, &metrics))
            .collect(),
        health: HealthChecks::of(config.families.iter().any(|node| node.family == Family::V6), liveness.clone()),
        arrivals: Arrivals::follow(&caches),
        metrics: metrics.clone(),
    };
    birth_cry(caches.client(), &config.node_name);
    apply::limits::set(&config.conntrack);
    let mut pages = JoinSet::new();
    pages.spawn(at(config.healthz, "the proxy's health", health_page(liveness.clone(), metrics.clone())));
    let configz = configz::page(&config).to_string();
    pages.spawn(at(config.metrics, "the proxy's metrics", metrics_page(metrics, config.mode, configz)));
    let mut disturbances = Disturbances::of(config.mode);
    proxy.services.synced().await;
    nodes.synced().await;
    let node = || nodes.get(&Key::new("", &config.node_name));
    liveness.node(node().as_deref());
    proxy.moved(&zone(node().as_deref()));
    proxy.begin().await;
    loop {
        tokio::select! {
            changed = proxy.services.changed() => proxy.sync(changed).await,
            () = disturbances.next() => proxy.heal(&mut disturbances).await,
            // Lost changes only mean another look.
            _ = range_changes.recv() => proxy.ranges(&ranges.list()).await,
            _ = node_changes.recv() => {
                let node = node();
                liveness.node(node.as_deref());
                if proxy.moved(&zone(node.as_deref())) {
                    proxy.sync(Changed::Any).await;
                }
            }
        }
    }
}

/// Tells on the Node that its proxy has started.
fn birth_cry(client: &Client, node: &str) {
    let node = ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        // Kubelets and proxies give the name for the UID, and `kubectl describe node` looks for that.
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    };
    let act = Act { kind: EventKind::Normal, reason: "Starting", action: "StartKubeProxy", related: None };
    ActRecorder::new(client.clone(), "kube-proxy").tell(&node, act, "");
}

/// Where the node is; empty when nobody says.
fn zone(node: Option<&NodeObject>) -> String {
    let labels = node.and_then(|n| n.metadata.labels.as_ref());
    labels.and_then(|l| l.get("topology.kubernetes.io/zone")).cloned().unwrap_or_default()
}

struct Proxy {
    services: Services,
    /// In the order of the cluster's ranges.
    families: Vec<OneFamily>,
    health: HealthChecks,
    arrivals: Arrivals,
    metrics: Metrics,
}

/// Answers at an address, if there is one.
async fn at(address: Option<SocketAddr>, purpose: &'static str, answer: Answer) {
    if let Some(address) = address {
        answers::serve(address, purpose, answer).await;
    }
}

fn health_page(liveness: Liveness, metrics: Metrics) -> Answer {
    Arc::new(move |path| {
        let with_node = match path {
            "/healthz" => true,
            "/livez" => false,
            _ => return answers::not_found(),
        };
        let answer = liveness.answer(with_node);
        metrics.answered(with_node, answer.status().as_u16());
        answer
    })
}

fn metrics_page(metrics: Metrics, mode: Mode, configz: String) -> Answer {
    Arc::new(move |path| match path {
        "/metrics" => answers::typed(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            metrics.render(mode.name()) + &meter::build::page(),
        ),
        "/configz" => answers::json_answer(StatusCode::OK, configz.clone()),
        "/proxyMode" => answers::typed(StatusCode::OK, "text/plain; charset=utf-8", mode.name().to_owned()),
        "/healthz" => answers::typed(StatusCode::OK, "text/plain; charset=utf-8", "ok".to_owned()),
        _ => answers::not_found(),
    })
}

impl Proxy {
    /// Writes all rules for the first time.
    async fn begin(&mut self) {
        // The objects that the caches began with are no change that somebody waits for.
        self.arrivals.take();
        self.render(Changed::Any);
        for family in &mut self.families {
            family.rebuild().await;
        }
    }

    /// The zone in which the node is now; whether it was in another.
    fn moved(&mut self, zone: &str) -> bool {
        let mut moved = false;
        for family in self.families.iter_mut().filter(|family| family.node.zone != zone) {
            zone.clone_into(&mut family.node.zone);
            moved = true;
        }
        moved
    }

    async fn ranges(&mut self, all: &[Arc<ServiceCIDR>]) {
        let texts = all.iter().filter_map(|range| range.spec.as_ref()).flat_map(|spec| spec.cidrs.iter().flatten());
        let ranges: Vec<IpNet> = texts.filter_map(|text| text.parse().ok()).collect();
        for family in &mut self.families {
            family.ranges(&ranges).await;
        }
    }

    fn render(&mut self, changed: Changed) {
        let keys: BTreeSet<Key> = match changed {
            Changed::These(keys) => keys,
            Changed::Any => {
                let known = self.families.iter().flat_map(|family| family.table.keys());
                self.services.keys().into_iter().chain(known).collect()
            }
        };
        for key in keys {
            let found = self.services.get(&key);
            let mut health = None;
            for family in &mut self.families {
                let rules = match &found {
                    Some((service, slices)) => family.render(service, slices),
                    None => ServiceRules::default(),
                };
                health = health.or(rules.health);
                if family.table.set(&key, rules) == Claim::Contested {
                    tracing::warn!(service = %key, "an address and port of this Service is another Service's already");
                }
            }
            self.health.set(&key, health);
        }
    }

    async fn sync(&mut self, changed: Changed) {
        waypoint::proxy::sync("services");
        let arrived = self.arrivals.take();
        self.metrics.changed(arrived.services, arrived.slices);
        for family in &self.families {
            family.queued();
        }
        let begun = clock::Instant::now();
        self.render(changed);
        let rendered = begun.elapsed();
        for family in &mut self.families {
            family.sync(rendered).await;
        }
        self.metrics.done();
        for (family, caused) in arrived.causes {
            let after = clock::now().duration_since(caused);
            self.metrics.programmed(family, Duration::try_from(after).unwrap_or_default());
        }
    }

    /// Somebody changed rules: writes all of them again when some of ours are missing.
    async fn heal(&mut self, disturbances: &mut Disturbances) {
        for family in &mut self.families {
            if let Some(missing) = disturbances.missing(family).await {
                tracing::warn!(missing, "somebody changed the Service rules, writing them again");
                family.rebuild().await;
            }
        }
    }
}
