//! How drivers come to the kubelet: over the plugin registry, as the sort `CSIPlugin`.
//! Upstream counterpart: the registration handler of pkg/volume/csi/csi_plugin.go.

use std::sync::Arc;

use api::validation::names;
use futures::{FutureExt, future::BoxFuture};
use runtime::grpc;

use crate::{
    csi::{
        Csi,
        drivers::{Driver, Version},
        messages::{Empty, GET_INFO, NodeInfo},
    },
    plugins::sort::{Plugin, Sort},
};

/// The longest name of a driver, in bytes.
const NAME_BYTES: usize = 63;

pub struct CsiPlugins(pub Arc<Csi>);

/// The highest version that this kubelet speaks, of those that a driver speaks. All of 1.x are one to it.
fn highest(versions: &[String]) -> Result<Version, String> {
    let (mut highest, mut why): (Option<Version>, _) = (None, "<nil>".to_owned());
    for text in versions.iter().rev() {
        match Version::parse(text) {
            Ok(version) if version.major() > 1 => {}
            Ok(version) => highest = highest.max(Some(version)),
            Err(error) => why = error,
        }
    }
    let highest = highest.ok_or_else(|| {
        let versions = versions.join(" ");
        format!(
            "could not find a highest supported version from versions ([{versions}]) reported by this driver: {why}"
        )
    })?;
    if highest.major() != 1 {
        return Err(format!("highest supported version reported by driver is {highest}, must be v1.x"));
    }
    Ok(highest)
}

impl CsiPlugins {
    /// The version that a plugin is spoken to in.
    fn version(&self, caller: &str, plugin: &Plugin) -> Result<Version, String> {
        let (name, versions) = (&plugin.name, &plugin.versions);
        let failed = |why: String| format!("kubernetes.io/csi: {caller} for CSI driver {name:?} failed. {why}");
        if versions.is_empty() {
            return Err(failed("Plugin returned an empty list for supported versions".to_owned()));
        }
        let version = highest(versions).map_err(|why| {
            let versions: Vec<String> = versions.iter().map(|version| format!("{version:?}")).collect();
            let versions = versions.join(" ");
            failed(format!("None of the versions specified [{versions}] are supported. err={why}"))
        })?;
        if let Some(held) = self.0.drivers.find(name).filter(|held| held.version >= version) {
            let held = &held.version;
            return Err(failed(format!(
                "Another driver with the same name is already registered with a higher supported version: \"{held}\""
            )));
        }
        Ok(version)
    }

    async fn take(&self, plugin: &Plugin) -> Result<(), String> {
        let (csi, name) = (&self.0, &plugin.name);
        if csi.drivers.is_full(name) {
            return Err("this node has as many CSI drivers as it takes".to_owned());
        }
        // It answers already while it is being installed: Pods that wait for it need not wait for the API server too.
        let version = self.version("RegisterPlugin", plugin)?;
        csi.drivers.put(Driver::new(name, &plugin.endpoint, version, csi.figures.clone()));
        let driver = csi.drivers.get(name)?;
        let installed = async {
            let info: NodeInfo = driver.call(GET_INFO, Empty {}).await.map_err(|status| grpc::words(&status))?;
            csi.node_info.install(name, &info).await
        };
        let installed = installed.await;
        if installed.is_err() {
            self.forget(plugin).await;
        }
        installed
    }

    async fn forget(&self, plugin: &Plugin) {
        // Another one may have taken its place meanwhile.
        if self.0.drivers.remove(&plugin.name, &plugin.endpoint)
            && let Err(error) = self.0.node_info.uninstall(&plugin.name).await
        {
            tracing::warn!(driver = plugin.name, error, "a driver that has gone stays in the API");
        }
    }
}

impl Sort for CsiPlugins {
    fn name(&self) -> &'static str {
        "CSIPlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        let (name, endpoint) = (&plugin.name, plugin.endpoint.display());
        let wrong = if name.is_empty() || name.len() > NAME_BYTES {
            Some(format!("a name of a CSI driver has 1 to {NAME_BYTES} bytes"))
        } else {
            names::dns1123_subdomain(&name.to_lowercase()).into_iter().next()
        };
        let version = wrong.map_or(Ok(()), Err).and_then(|()| self.version("ValidatePlugin", plugin));
        version
            .map(drop)
            .map_err(|why| format!("validation failed for CSI Driver {name} at endpoint {endpoint}: {why}"))
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        self.take(plugin).boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        self.forget(plugin).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_versions_the_highest_1_counts() {
        let check = |versions: &[&str], expected: Result<&str, &str>| {
            let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
            let found = highest(&versions).map(|v| v.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{versions:?}");
        };
        check(&["1.0.0"], Ok("1.0.0"));
        check(&["0.3.0", "1.10.0", "1.9.0", "2.0.0", "junk"], Ok("1.10.0"));
        check(&["0.3.0"], Err("highest supported version reported by driver is 0.3.0, must be v1.x"));
        let none = "could not find a highest supported version from versions ([2.0.0]) reported by this driver: <nil>";
        check(&["2.0.0"], Err(none));
    }
}
