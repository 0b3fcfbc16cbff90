//! The programs beside a driver that follow the API for it: they do here, in one process, what the project kubernetes-csi has a sidecar
//! for each. They look at the objects again and again instead of watching them, as there are few in a test.
//! Upstream counterparts: external-provisioner, external-attacher, external-resizer, external-snapshotter.

mod attacher;
mod cluster;
mod provisioner;
mod resizer;
mod snapshotter;
mod source;

use std::{path::Path, sync::Arc};

use client::{EventRecorder, Kubeconfig};
use clock::Duration;

use self::cluster::{Cluster, Retries};
use crate::{images::Images, moods::Moods};

const LOOK: Duration = Duration::from_millis(250);

/// Runs them all, for ever.
pub async fn run(kubeconfig: &Path, driver: &str, images: Arc<Images>, moods: Arc<Moods>) -> anyhow::Result<()> {
    let client = client::from_config(&Kubeconfig::current_of(kubeconfig)?)?;
    let events = EventRecorder::new(client.clone(), driver, None);
    let retries = Retries::default();
    let cluster = Cluster { client, events, driver: driver.to_owned(), images, moods, retries };
    let (cluster, name) = (&cluster, driver);
    // One that waits for the driver keeps no other one waiting.
    tokio::join!(
        repeated(name, "provisioner", async || provisioner::step(cluster).await),
        repeated(name, "attacher", async || attacher::step(cluster).await),
        repeated(name, "resizer", async || resizer::step(cluster).await),
        repeated(name, "snapshotter", async || snapshotter::step(cluster).await),
    );
    Ok(())
}

async fn repeated(driver: &str, name: &str, step: impl AsyncFn() -> Result<(), client::Error>) {
    loop {
        if let Err(error) = step().await {
            eprintln!("{driver}: {name}: {}", client::rest::message(&error));
        }
        clock::sleep(LOOK).await;
    }
}
