//! The Leases and versions that each API server tells of itself in the cluster: that it is there ([`identity`]), and as which
//! versions it writes and reads objects ([`storage_versions`]). None of it belongs to the controller manager but the collector of
//! what servers that are gone have said.

pub mod collector;
pub mod identity;
pub mod storage_versions;

use api::features::{Feature, Features, RuntimeConfig};
use client::Client;

/// An API server.
pub struct Server {
    /// The name of its machine.
    pub host: String,
    pub features: Features,
    pub served: RuntimeConfig,
}

impl Server {
    /// Says what there is to say, as far as the features for it are on. Never returns.
    pub async fn tell(&self, client: &Client) {
        if !self.features.enabled(Feature::APIServerIdentity) {
            return std::future::pending().await;
        }
        let id = identity::name(&self.host);
        let versions = async {
            if storage_versions::is_on(&self.features, &self.served) {
                storage_versions::keep(client, &id, storage_versions::of(&self.features, &self.served)).await;
            }
        };
        tokio::join!(identity::keep(client, &id, &self.host), identity::collect(client), versions);
    }
}
