//! Many Services of two endpoints each: what it takes to render and write them all, and then a change of one endpoint of one of
//! them, in both modes of the proxy.

use std::{sync::Arc, time::Instant};

use client::Key;
use json::json;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use proxy::{
    Mode, apply,
    iptables::{self, rules, run, text},
    node::Node,
    script, service_rules,
    table::Table,
};

use super::{ROUNDS, Times};
use crate::report::{Goal::AtMost, Report};

/// The time in milliseconds within which one change is to be in the kernel.
const MOST: f64 = 50.0;

pub async fn measure(report: &mut Report) -> anyhow::Result<()> {
    let nftables = Mode::Nftables;
    Rules::new(nftables).row(10_000, None, Some(MOST), report).await?;
    Rules::new(nftables).row(44_000, Some(5.0), Some(MOST), report).await?;
    let iptables = Mode::Iptables(iptables::Settings::default());
    if let Err(error) = iptables.available(&[Node::default()]).await {
        eprintln!("SKIPPED: the mode iptables: {error}");
        return Ok(());
    }
    Rules::new(iptables).row(10_000, None, Some(MOST), report).await
}

/// The rules of one family of addresses, as the proxy keeps them.
struct Rules {
    mode: Mode,
    node: Node,
    table: Table,
}

impl Rules {
    fn new(mode: Mode) -> Self {
        Rules { mode, node: Node::default(), table: Table::default() }
    }

    /// The goals are in seconds for all Services and in milliseconds for a change.
    async fn row(
        mut self,
        services: usize,
        all: Option<f64>,
        change: Option<f64>,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        for number in 0..services {
            self.set(number, 0);
        }
        let rendered = begun.elapsed().as_secs_f64();
        let bytes = self.write_all().await?;
        let what = format!("proxy, {}: {services} Services rendered and written", self.mode.name());
        let note = format!("rendering {rendered:.2} s, {:.1} MB of rules", bytes as f64 / 1e6);
        report.add(&what, begun.elapsed().as_secs_f64(), "s", all.map(AtMost), note);
        let mut times = Times::default();
        for round in 0..ROUNDS {
            let begun = Instant::now();
            self.set(7, (round + 1) % 2);
            self.write_changes().await?;
            times.push(begun.elapsed());
        }
        times.report("the same: one endpoint changes, until it is in the kernel", change, "", report);
        Ok(())
    }

    /// Sets a Service, whose endpoints are moved by `shift`.
    fn set(&mut self, number: usize, shift: usize) {
        let name = format!("service-{number}");
        let address = |base: usize, n: usize| format!("10.{}.{}.{}", base + n / 65536, n / 256 % 256, n % 256);
        let ip = address(96, number + 1);
        let service: Service = json::from_value(json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"name": "http", "port": 80}]}
        }))
        .expect("a Service");
        let endpoints: Vec<_> = (0..2).map(|n| json!({"addresses": [address(200, number * 2 + n + shift)]})).collect();
        let slice: EndpointSlice = json::from_value(json!({
            "metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080}]
        }))
        .expect("a slice");
        let render = match self.mode {
            Mode::Nftables => service_rules::render,
            Mode::Iptables(_) => rules::render,
        };
        self.table.set(&Key::new("default", name), render(&service, &[Arc::new(slice)], &self.node));
    }

    /// The length of what was written.
    async fn write_all(&mut self) -> anyhow::Result<usize> {
        let family = self.node.family;
        let text = match self.mode {
            Mode::Nftables => format!("{}{}", script::fresh_table(&self.node), self.table.everything().text()),
            Mode::Iptables(settings) => {
                let (saved, all) = (run::saved(family).await?, self.table.all());
                text::everything(&saved, &all, &self.table, &self.node, settings)
            }
        };
        match self.mode {
            Mode::Nftables => apply::transaction(&text).await?,
            Mode::Iptables(_) => run::restore(family, &text).await?,
        }
        Ok(text.len())
    }

    async fn write_changes(&mut self) -> anyhow::Result<()> {
        match self.mode {
            Mode::Nftables => apply::transaction(&self.table.changes().text()).await?,
            Mode::Iptables(settings) => {
                let text = text::partial(&self.table.changed(), &self.table, &self.node, settings);
                run::restore(self.node.family, &text).await?;
            }
        }
        Ok(())
    }
}
