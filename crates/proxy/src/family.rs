//! The rules of one family of addresses, and their way into the kernel in either mode.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};

use crate::{
    apply, iptables,
    liveness::Liveness,
    metrics::{Extent, Metrics},
    node::Node,
    ports::ServiceRules,
    script, service_rules,
    table::Table,
};

/// The rules that lead packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Nftables,
    Iptables(iptables::Settings),
}

impl Mode {
    /// Upstream's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables(_) => "iptables",
        }
    }

    /// Makes sure that the mode's programs are there.
    pub async fn available(self, families: &[Node]) -> Result<(), iptables::run::Error> {
        if let Mode::Iptables(_) = self {
            for node in families {
                iptables::run::available(node.family).await?;
            }
        }
        Ok(())
    }

    /// Removes the rules of the other mode, which an earlier proxy may have written. Whether none of them is left.
    pub async fn remove_other(self) -> bool {
        let removed: Result<(), WriteError> = match self {
            Mode::Nftables => iptables::run::remove().await.map_err(Into::into),
            Mode::Iptables(_) => apply::remove().await.map_err(Into::into),
        };
        if let Err(error) = &removed {
            tracing::warn!(%error, mode = self.name(), "cannot remove the Service rules that an earlier proxy may have written in the other mode");
        }
        removed.is_ok()
    }
}

/// The kernel did not take the rules.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum WriteError {
    Nft(#[from] nft::ApplyError),
    Iptables(#[from] iptables::run::Error),
}

/// How often it is looked whether somebody emptied the tables of iptables, which tell nobody; upstream's default.
const LOOK: Duration = Duration::from_secs(30);

/// The ways to learn that somebody else may have changed rules.
pub enum Disturbances {
    Told(nft::Watch),
    /// Nobody tells; the next look is then.
    Looked(clock::Instant),
}

impl Disturbances {
    pub fn of(mode: Mode) -> Self {
        match mode {
            Mode::Nftables => Disturbances::Told(nft::Watch::default()),
            Mode::Iptables(_) => Disturbances::Looked(clock::Instant::now() + LOOK),
        }
    }

    pub async fn next(&mut self) {
        match self {
            Disturbances::Told(watch) => watch.others().await,
            Disturbances::Looked(at) => {
                clock::sleep(at.saturating_duration_since(clock::Instant::now())).await;
                *at = clock::Instant::now() + LOOK;
            }
        }
    }

    /// The part of a family's rules that is missing, if one is.
    pub async fn missing(&mut self, family: &mut OneFamily) -> Option<String> {
        match self {
            Disturbances::Told(watch) => {
                let everything = family.nft_text();
                watch.missing(script::table(family.node.family), &everything).await
            }
            Disturbances::Looked(_) => match iptables::run::emptied(family.node.family).await {
                Ok(emptied) => emptied.then(|| format!("chain {}", iptables::text::CANARY)),
                Err(error) => {
                    tracing::warn!(%error, "cannot see whether the Service rules are there");
                    None
                }
            },
        }
    }
}

/// The rules of one family of addresses.
pub struct OneFamily {
    pub node: Node,
    mode: Mode,
    /// The state of the kernel, but for the changes since the last transaction.
    pub table: Table,
    liveness: Liveness,
    metrics: Metrics,
}

impl OneFamily {
    pub fn new(node: Node, mode: Mode, liveness: &Liveness, metrics: &Metrics) -> Self {
        OneFamily { table: Table::new(node.family), node, mode, liveness: liveness.clone(), metrics: metrics.clone() }
    }

    /// Takes the ranges of the cluster's addresses as they are now. Addresses of theirs that no Service has lead nowhere with
    /// nftables; as with upstream, iptables leaves them alone.
    pub async fn ranges(&mut self, ranges: &[IpNet]) {
        let node = self.node.knowing(ranges);
        let before = std::mem::replace(&mut self.node, node);
        let script = script::ranges(&before, &self.node);
        if self.mode != Mode::Nftables || script.is_empty() {
            return;
        }
        if let Err(error) = apply::transaction(&script.text()).await {
            tracing::warn!(%error, "the kernel refused a change of the cluster's ranges, rebuilding all rules");
            self.metrics.failed(self.node.family);
            self.rebuild().await;
        }
    }

    pub fn render(&self, service: &Service, slices: &[Arc<EndpointSlice>]) -> ServiceRules {
        match self.mode {
            Mode::Nftables => service_rules::render(service, slices, &self.node),
            Mode::Iptables(_) => iptables::rules::render(service, slices, &self.node),
        }
    }

    /// Changes wait to be written.
    pub fn queued(&self) {
        self.liveness.queued(self.node.family);
        self.metrics.queued(self.node.family);
    }

    /// Writes what changed; deciding what it is took so long.
    pub async fn sync(&mut self, rendered: Duration) {
        let begun = clock::Instant::now();
        if let Err(error) = self.write_changes().await {
            tracing::warn!(%error, "the kernel refused a change of Service rules, rebuilding all of them");
            self.metrics.failed(self.node.family);
            return self.rebuild().await;
        }
        self.written(Extent::Partial, rendered + begun.elapsed());
        self.forget().await;
    }

    /// The kernel has everything, after so long.
    fn written(&self, extent: Extent, took: Duration) {
        self.metrics.synced(self.node.family, extent, took, self.table.without_local());
        self.liveness.updated(self.node.family);
    }

    /// Forgets UDP flows to endpoints that are gone: after the rules, so that no new flow can take the old way.
    async fn forget(&mut self) {
        let doors = self.table.changed_flows();
        if doors.is_empty() {
            return;
        }
        let begun = clock::Instant::now();
        match apply::conntrack::forget(self.node.family, &doors).await {
            Ok(count) => {
                self.metrics.forgot(self.node.family, count, begun.elapsed());
                tracing::debug!(count, "UDP flows to endpoints that are gone were forgotten");
            }
            Err(error) => tracing::warn!(%error, "cannot forget UDP flows to endpoints that are gone"),
        }
    }

    async fn write_changes(&mut self) -> Result<(), WriteError> {
        match self.mode {
            Mode::Nftables => {
                let script = self.table.changes();
                if !script.is_empty() {
                    apply::transaction(&script.text()).await?;
                }
            }
            Mode::Iptables(settings) => {
                let changes = self.table.changed();
                let text = iptables::text::partial(&changes, &self.table, &self.node, settings);
                iptables::run::restore(self.node.family, &text).await?;
            }
        }
        Ok(())
    }

    async fn write_everything(&mut self) -> Result<(), WriteError> {
        let family = self.node.family;
        match self.mode {
            Mode::Nftables => apply::transaction(&self.nft_text()).await?,
            Mode::Iptables(settings) => {
                let saved = iptables::run::saved(family).await?;
                let all = self.table.all();
                let text = iptables::text::everything(&saved, &all, &self.table, &self.node, settings);
                iptables::run::restore(family, &text).await?;
                if settings.at_loopback(&self.node) {
                    iptables::run::route_localnet()?;
                }
            }
        }
        Ok(())
    }

    /// The script that makes the whole table of nft.
    fn nft_text(&mut self) -> String {
        format!("{}{}", script::fresh_table(&self.node), self.table.everything().text())
    }

    /// Replaces the whole table in one transaction, trying until the kernel takes it.
    pub async fn rebuild(&mut self) {
        let mut wait = Duration::from_secs(1);
        self.queued();
        loop {
            let begun = clock::Instant::now();
            match self.write_everything().await {
                Ok(()) => {
                    self.written(Extent::Full, begun.elapsed());
                    return self.forget().await;
                }
                Err(error) => tracing::error!(%error, "cannot write the Service rules, trying again"),
            }
            self.metrics.failed(self.node.family);
            clock::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(30));
        }
    }
}
