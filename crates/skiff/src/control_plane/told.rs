//! The object by which extension servers learn whom to believe, kept as the files have it that have a part in it.

use std::sync::Arc;

use apiserver::{Server, bootstrap::Cluster};

/// The facts that they are told. One change comes after another: none undoes what another one told.
pub struct Told {
    server: Server,
    cluster: tokio::sync::Mutex<Cluster>,
}

impl Told {
    pub fn new(server: Server, cluster: Cluster) -> Arc<Self> {
        Arc::new(Told { server, cluster: tokio::sync::Mutex::new(cluster) })
    }

    /// Tells them what changes; nothing does where that fails.
    pub async fn change(&self, change: impl FnOnce(&mut Cluster) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut cluster = self.cluster.lock().await;
        let mut next = cluster.clone();
        change(&mut next)?;
        *cluster = next;
        let told = self.server.tell_authorities(&cluster).await;
        told.map_err(|error| anyhow::anyhow!("extension servers cannot be told: {}", error.message))
    }
}
