//! Drivers whose volumes need not be attached, which may turn out after some were, or are waited for: such a volume is no longer one
//! that the node says it uses, so the controller takes its attachment away although Pods have the volume.
//!
//! Upstream counterpart: `MarkVolumeAttachability` of pkg/kubelet/volumemanager.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    path::{Path, PathBuf},
    sync::Arc,
};

use client::{Cache, Caches};
use k8s_openapi::api::storage::v1::CSIDriver;
use tokio::sync::broadcast::error::RecvError;

use crate::{
    csi::{Csi, record::Record},
    volumes::{error::VolumeError, folder::blocking},
};

fn needs_none(driver: &CSIDriver) -> bool {
    driver.spec.attach_required == Some(false)
}

impl Csi {
    /// Waits until a volume is attached, if it has to be. Returns the attacher's message to the driver.
    pub(super) async fn attached(
        &self,
        record: &mut Record,
        folder: &Path,
    ) -> Result<BTreeMap<String, String>, VolumeError> {
        if record.attached_as.is_empty() {
            return Ok(BTreeMap::new());
        }
        match self.attachments.attached(record).await {
            Ok(Some(context)) => Ok(context),
            Ok(None) => {
                self.let_go(folder.to_owned(), record).await;
                record.attached_as.clear();
                Ok(BTreeMap::new())
            }
            Err(VolumeError::Exhausted(_)) if !self.limits_change => Err(VolumeError::Unattached(record.name.clone())),
            Err(error @ VolumeError::Exhausted(_)) => {
                // The scheduler is to know before it sends more here.
                self.ask_for_limit(&record.driver).await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Follows what drivers say of attachments, for ever.
    pub async fn follow_attachability(self: Arc<Self>, caches: Caches) {
        let objects: Arc<Cache<CSIDriver>> = caches.of();
        let mut changes = objects.subscribe();
        loop {
            let drivers = objects.list().into_iter().filter(|driver| needs_none(driver));
            let drivers: BTreeSet<String> = drivers.filter_map(|driver| driver.metadata.name.clone()).collect();
            self.attachments.spare(drivers.clone());
            let places = self.places.clone();
            let mut all = blocking(move || places.all()).await;
            all.retain(|(_, record)| !record.attached_as.is_empty() && drivers.contains(&record.driver));
            // A driver that hangs keeps no other volume.
            futures::future::join_all(all.iter().map(|(folder, record)| self.let_go(folder.clone(), record))).await;
            if let Err(RecvError::Closed) = changes.recv().await {
                // The kubelet ends.
                pending::<()>().await;
            }
        }
    }

    /// Writes down that a volume is not attached, and lets the node's status say so.
    async fn let_go(&self, folder: PathBuf, record: &Record) {
        let _turn = self.turns.take(record).await;
        let (at, wanted) = (folder.clone(), record.clone());
        let written = blocking(move || match Record::read(&folder).filter(|held| held.is_of(&wanted)) {
            Some(held) => Record { attached_as: String::new(), ..held }.write(&folder),
            None => Ok(()),
        });
        if let Err(error) = written.await {
            tracing::warn!(path = %at.display(), %error, "the record of a volume still says that it is attached");
        }
        self.unpublished.notify_one();
    }
}
