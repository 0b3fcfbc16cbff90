//! The drivers of devices: which plugins are registered for each, and which of them is asked.
//! Upstream counterpart: pkg/kubelet/cm/dra/plugin.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use client::Client;
use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use runtime::grpc::{self, Channel};
use tokio::task::AbortHandle;

use crate::{
    claims::{
        health::{self, Health},
        messages::{Claim, Device, PrepareResponse, Request, SERVICES, Service, UnprepareResponse},
        slices,
    },
    plugins::sort::{Plugin, Sort},
};

/// A driver may take this long for an answer.
const ANSWER: Duration = Duration::from_secs(45);
/// A driver whose last plugin has gone may come back within this time before its devices are withdrawn.
const GRACE: Duration = Duration::from_secs(30);
/// The first and the longest pause before a plugin that is not there is looked for again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(120));

/// A plugin of a driver, as it is called.
#[derive(Clone)]
pub struct Driver {
    channel: Channel,
    service: &'static Service,
}

impl Driver {
    pub async fn prepare(&self, claims: Vec<Claim>) -> Result<PrepareResponse, String> {
        let answer = grpc::unary(&self.channel, self.service.prepare, Request { claims }, ANSWER).await;
        answer.map_err(|status| format!("NodePrepareResources: {}", grpc::words(&status)))
    }

    pub async fn unprepare(&self, claims: Vec<Claim>) -> Result<UnprepareResponse, String> {
        let answer = grpc::unary(&self.channel, self.service.unprepare, Request { claims }, ANSWER).await;
        answer.map_err(|status| format!("NodeUnprepareResources: {}", grpc::words(&status)))
    }
}

/// A plugin that is registered, with the tasks that see whether it is there and what it reports, which end with it.
struct Held {
    driver: String,
    /// The socket that it registered by.
    registered_by: PathBuf,
    endpoint: PathBuf,
    called: Driver,
    is_there: bool,
    watchers: Vec<AbortHandle>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.watchers.iter().for_each(AbortHandle::abort);
    }
}

/// All plugins, the newest last, and the drivers whose devices are about to be withdrawn.
#[derive(Default)]
struct State {
    plugins: Vec<Held>,
    withdrawals: BTreeMap<String, AbortHandle>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.withdrawals.values().for_each(AbortHandle::abort);
    }
}

pub struct Drivers {
    state: Mutex<State>,
    client: Client,
    node_name: String,
    health: Arc<Health>,
    /// Whether drivers are asked for the health of their devices.
    asks_health: bool,
}

/// The newest version that both sides speak. The words are upstream's.
fn service(plugin: &Plugin) -> Result<&'static Service, String> {
    let words = |why: String| {
        let (name, endpoint) = (&plugin.name, plugin.endpoint.display());
        format!("invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: {why}")
    };
    if plugin.versions.is_empty() {
        return Err(words("empty list of supported gRPC services (aka supported versions)".to_owned()));
    }
    let found = SERVICES.iter().find(|service| plugin.versions.iter().any(|version| version == service.name));
    found.ok_or_else(|| {
        let quoted = |name: &str| format!("{name:?}");
        let theirs: Vec<String> = plugin.versions.iter().map(|name| quoted(name)).collect();
        let ours: Vec<String> = SERVICES.iter().map(|service| quoted(service.name)).collect();
        let (theirs, ours) = (theirs.join(" "), ours.join(" "));
        words(format!("none of services supported by the plugin ([{theirs}]) are supported by the kubelet ([{ours}])"))
    })
}

impl Drivers {
    pub fn new(client: Client, node_name: &str, asks_health: bool) -> Arc<Drivers> {
        let (state, health) = (Mutex::default(), Arc::default());
        Arc::new(Drivers { state, client, node_name: node_name.to_owned(), health, asks_health })
    }

    /// The health that a driver reports of a device.
    pub fn health(&self, driver: &str, device: &Device) -> &'static str {
        self.health.of(driver, &device.pool_name, &device.device_name)
    }

    /// Told whenever [`Drivers::health`] may have changed.
    pub fn health_changes(&self) -> tokio::sync::watch::Receiver<()> {
        self.health.changes()
    }

    /// The plugin to ask: the newest of those that are there, or the newest.
    pub fn get(&self, driver: &str) -> Result<Driver, String> {
        let state = self.state.lock();
        let all = || state.plugins.iter().rev().filter(|held| held.driver == driver);
        let found = all().find(|held| held.is_there).or_else(|| all().next());
        found.map(|held| held.called.clone()).ok_or_else(|| format!("DRA driver {driver} is not registered"))
    }

    /// A kubelet that starts knows no driver yet, and some may never come back: no device is offered before its driver says so
    /// again. Runs for ever.
    pub async fn run(&self) {
        slices::remove(&self.client, &self.node_name, None).await;
        std::future::pending().await
    }

    fn add(self: &Arc<Self>, plugin: &Plugin) -> Result<(), String> {
        let service = service(plugin)?;
        let mut state = self.state.lock();
        if state.plugins.iter().any(|held| held.driver == plugin.name && held.endpoint == plugin.endpoint) {
            let (name, endpoint) = (&plugin.name, plugin.endpoint.display());
            return Err(format!("endpoint {endpoint} already registered for DRA driver plugin {name}"));
        }
        let called = Driver { channel: grpc::channel(&plugin.endpoint), service };
        let mut watchers = vec![tokio::spawn(watch(Arc::downgrade(self), plugin.clone())).abort_handle()];
        if self.asks_health {
            let follow = health::follow(self.health.clone(), plugin.name.clone(), called.channel.clone());
            watchers.push(tokio::spawn(follow).abort_handle());
        }
        state.plugins.push(Held {
            driver: plugin.name.clone(),
            registered_by: plugin.socket.clone(),
            endpoint: plugin.endpoint.clone(),
            called,
            is_there: false,
            watchers,
        });
        Ok(())
    }

    fn remove(&self, socket: &Path, driver: &str) {
        let mut state = self.state.lock();
        let before = state.plugins.len();
        state.plugins.retain(|held| held.registered_by != socket);
        if state.plugins.len() < before {
            self.follow(&mut state, driver);
        }
    }

    fn found(&self, plugin: &Plugin, is_there: bool) {
        let mut state = self.state.lock();
        if let Some(held) = state.plugins.iter_mut().find(|held| held.registered_by == plugin.socket) {
            held.is_there = is_there;
        }
        self.follow(&mut state, &plugin.name);
    }

    /// Withdraws the devices of a driver that is away for too long.
    fn follow(&self, state: &mut State, driver: &str) {
        let is_there = state.plugins.iter().any(|held| held.driver == driver && held.is_there);
        if is_there {
            if let Some(withdrawal) = state.withdrawals.remove(driver) {
                withdrawal.abort();
            }
        } else if state.withdrawals.get(driver).is_none_or(AbortHandle::is_finished) {
            let (client, node_name, name) = (self.client.clone(), self.node_name.clone(), driver.to_owned());
            let task = tokio::spawn(async move {
                clock::sleep(GRACE).await;
                tracing::info!(driver = name, "a driver has gone, and its devices are withdrawn");
                slices::remove(&client, &node_name, Some(&name)).await;
            });
            state.withdrawals.insert(driver.to_owned(), task.abort_handle());
        }
    }
}

/// Sees whether a plugin is there, for as long as it is registered.
async fn watch(drivers: Weak<Drivers>, plugin: Plugin) {
    let tell = |is_there: bool| {
        if let Some(drivers) = drivers.upgrade() {
            drivers.found(&plugin, is_there);
        }
    };
    let mut pause = RETRY.0;
    loop {
        let mut was_there = false;
        let ended = grpc::hold(&plugin.endpoint, || {
            was_there = true;
            tell(true);
        });
        if let Err(error) = ended.await {
            tracing::debug!(driver = plugin.name, %error, "a driver is not there");
        }
        tell(false);
        pause = if was_there { RETRY.0 } else { (pause * 2).min(RETRY.1) };
        clock::sleep(pause).await;
    }
}

/// Drivers of the plugin registry. The name of a plugin is that of its driver.
pub struct DraPlugins(pub Arc<Drivers>);

impl Sort for DraPlugins {
    fn name(&self) -> &'static str {
        "DRAPlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        service(plugin).map(drop)
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        std::future::ready(self.0.add(plugin)).boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        self.0.remove(&plugin.socket, &plugin.name);
        std::future::ready(()).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_that_both_speak_is_spoken() {
        let check = |versions: &[&str], expected: Result<&str, &str>| {
            let plugin = Plugin {
                socket: "/r.sock".into(),
                name: "d.io".to_owned(),
                endpoint: "/e.sock".into(),
                versions: versions.iter().map(|version| (*version).to_owned()).collect(),
            };
            let words = "invalid supported gRPC versions of DRA driver plugin d.io at endpoint /e.sock: ";
            let expected = expected.map_err(|why| format!("{words}{why}"));
            assert_eq!(service(&plugin).map(|service| service.name), expected);
        };
        check(&["v1beta1.DRAPlugin", "v1.DRAPlugin"], Ok("v1.DRAPlugin"));
        check(&["v2.DRAPlugin", "v1beta1.DRAPlugin"], Ok("v1beta1.DRAPlugin"));
        check(&[], Err("empty list of supported gRPC services (aka supported versions)"));
        let none = "none of services supported by the plugin ([\"v1\" \"1.0.0\"]) are supported by the kubelet \
                    ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])";
        check(&["v1", "1.0.0"], Err(none));
    }
}
