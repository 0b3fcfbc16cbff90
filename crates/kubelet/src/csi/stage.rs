//! Staging: what a driver does once for a volume on a node, before the first Pod gets it and after the last one has given it
//! back. The users of a staged volume are found on disk.
//! Upstream counterpart: MountDevice and UnmountDevice of pkg/volume/csi/csi_attacher.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clock::Instant;
use files::modes;
use runtime::grpc;
use tokio::task::JoinSet;

use crate::{
    csi::{
        Csi,
        drivers::is_final,
        messages::{Ability, Empty, STAGE, StageRequest, UNSTAGE, UnstageRequest},
        record::{Place, Progress, Record, remove_empty, remove_target},
        usage::Usage,
    },
    volumes::{
        error::{VolumeError, file_error},
        folder::blocking,
    },
};

/// The first and the longest pause before a volume that could not be unstaged is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));

fn failed(record: &Record, why: impl Into<String>) -> VolumeError {
    let step = if record.is_block() { "MapVolume.SetUpDevice" } else { "MountVolume.MountDevice" };
    VolumeError::Step { step, volume: record.name.clone(), why: why.into() }
}

impl Csi {
    /// Lets the driver stage a volume, unless it has. Where that is, if it stages at all. The caller has its turn.
    pub(super) async fn stage(&self, usage: &Usage<'_>) -> Result<Option<PathBuf>, VolumeError> {
        let (place, stages) = (self.places.staged(&usage.record), usage.can(Ability::StageUnstageVolume));
        let held = self.look(&place).await.filter(|held| held.is_of(&usage.record));
        if let Some(held) = held.as_ref().filter(|held| held.progress != Progress::Nothing) {
            self.same_label(held, &usage.record)?;
        }
        let progress = held.map_or(Progress::Nothing, |held| held.progress);
        let target = stages.then(|| place.target.clone());
        if progress == Progress::Done {
            return Ok(target);
        }
        if !stages {
            let record = Record { progress: Progress::Done, ..usage.record.clone() };
            self.write(&record, &place, &place.folder).await?;
            return Ok(None);
        }
        let volume = &usage.wish.volume;
        let secrets = match &volume.stage_secret {
            Some(name) => {
                let secret = usage.secret(name).await;
                secret.map_err(|why| failed(&usage.record, format!("fetching NodeStageSecretRef {why}")))?
            }
            None => BTreeMap::new(),
        };
        let mut record = Record { progress: Progress::Begun, ..usage.record.clone() };
        self.write(&record, &place, &place.target).await?;
        let request = StageRequest {
            volume_id: volume.handle.clone(),
            publish_context: usage.context.clone(),
            staging_target_path: place.target.display().to_string(),
            volume_capability: Some(usage.capability()),
            secrets,
            volume_context: volume.attributes.clone(),
        };
        if let Err(status) = usage.driver.call::<_, Empty>(STAGE, request).await {
            // A volume that an earlier try may have left is not undone by a refusal of this one.
            if is_final(&status) && progress == Progress::Nothing {
                record.progress = Progress::Nothing;
                self.write(&record, &place, &place.folder).await?;
            }
            return Err(failed(&record, grpc::words(&status)));
        }
        record.progress = Progress::Done;
        self.write(&record, &place, &place.folder).await?;
        Ok(target)
    }

    /// A volume is mounted with one label at a time. One that no Pod uses any more is unstaged soon, and then mounted anew.
    fn same_label(&self, held: &Record, wanted: &Record) -> Result<(), VolumeError> {
        if held.label == wanted.label {
            return Ok(());
        }
        self.unpublished.notify_one();
        let shown = |label: &str| if label.is_empty() { "none".to_owned() } else { format!("{label:?}") };
        let (held, label) = (shown(&held.label), shown(&wanted.label));
        Err(failed(wanted, format!("conflicting SELinux labels: it is mounted with {held}, and the Pod wants {label}")))
    }

    pub(super) async fn look(&self, place: &Place) -> Option<Record> {
        let folder = place.folder.clone();
        blocking(move || Record::read(&folder)).await
    }

    /// Writes a record down, and makes a folder that the driver wants.
    pub(super) async fn write(&self, record: &Record, place: &Place, folder: &Path) -> Result<(), VolumeError> {
        let (record, at, folder) = (record.clone(), place.folder.clone(), folder.to_owned());
        blocking(move || {
            record.write(&at).map_err(file_error(&at))?;
            modes::make(&folder, modes::NODE_FOLDER).map_err(file_error(&folder))
        })
        .await
    }

    /// The volumes that Pods want, without those that are theirs alone.
    async fn wanted(&self) -> Vec<Record> {
        let places = self.places.clone();
        let mut wanted = blocking(move || places.of_pods()).await;
        wanted.retain(|record| !record.is_inline());
        wanted
    }

    /// Undoes the staging of a volume, unless a Pod wants it by now.
    async fn unstage(&self, record: &Record) -> Result<(), String> {
        let _turn = self.turns.take(record).await;
        let place = self.places.staged(record);
        let Some(held) = self.look(&place).await else { return Ok(()) };
        if self.wanted().await.iter().any(|wanted| wanted.uses(&held)) {
            return Ok(());
        }
        let begun = Instant::now();
        let operation = if held.is_block() { "unmap_device" } else { "unmount_device" };
        let driver = held.driver.clone();
        let gone = self.try_unstage(held, place).await;
        self.count(&driver, operation, gone.is_ok(), begun);
        gone
    }

    async fn try_unstage(&self, held: Record, place: Place) -> Result<(), String> {
        if held.progress != Progress::Nothing {
            let driver = self.drivers.get(&held.driver)?;
            let abilities = driver.abilities().await.map_err(|status| grpc::words(&status))?;
            if abilities.contains(&Ability::StageUnstageVolume) {
                // If this fails half of it may be undone: the next Pod that wants the volume has it staged again.
                let record = Record { progress: Progress::Begun, ..held.clone() };
                self.write(&record, &place, &place.folder).await.map_err(|error| error.to_string())?;
                let staging_target_path = place.target.display().to_string();
                let request = UnstageRequest { volume_id: held.handle.clone(), staging_target_path };
                driver.call::<_, Empty>(UNSTAGE, request).await.map_err(|status| grpc::words(&status))?;
            }
        }
        let mounter = self.mounter.clone();
        let gone = blocking(move || {
            // The driver may have said so and not done it.
            mounter.unmount(&place.target)?;
            remove_target(&place.target)?;
            Record::remove(&place.folder)?;
            // The folder of the driver, or of the volume, stays as long as it holds others.
            let _ = place.folder.parent().map(remove_empty);
            Ok::<_, std::io::Error>(())
        });
        gone.await.map_err(|error| error.to_string())
    }

    /// Unstages what no Pod wants any more, for ever. A driver that hangs keeps no other volume.
    pub async fn sweep(self: Arc<Self>) {
        let (mut busy, mut work) = (BTreeSet::new(), JoinSet::new());
        let mut waits: BTreeMap<String, (Duration, Instant)> = BTreeMap::new();
        loop {
            // Those that come into use from here on are not looked for.
            let mut unused = self.attachments.in_use().borrow().clone();
            let (places, wanted) = (self.places.clone(), self.wanted().await);
            let staged = blocking(move || places.all_staged()).await;
            unused.retain(|name| !wanted.iter().chain(&staged).any(|record| record.attached_as == *name));
            self.attachments.forget(&unused);
            let over: Vec<Record> = staged.into_iter().filter(|held| !wanted.iter().any(|w| w.uses(held))).collect();
            let key = |record: &Record| self.places.staged(record).folder.display().to_string();
            waits.retain(|held, _| over.iter().any(|record| key(record) == *held));
            for record in over {
                let key = key(&record);
                let is_due = waits.get(&key).is_none_or(|(_, at)| *at <= Instant::now());
                if is_due && busy.insert(key.clone()) {
                    let csi = self.clone();
                    work.spawn(async move { (key, csi.unstage(&record).await) });
                }
            }
            let next = waits.iter().filter(|(key, _)| !busy.contains(*key)).map(|(_, (_, at))| *at).min();
            tokio::select! {
                () = self.unpublished.notified() => {}
                Some(Ok((key, outcome))) = work.join_next() => {
                    busy.remove(&key);
                    if let Err(error) = outcome {
                        tracing::warn!(volume = key, error, "a volume stays staged");
                        let pause = waits.get(&key).map_or(RETRY.0, |(pause, _)| (*pause * 2).min(RETRY.1));
                        waits.insert(key, (pause, Instant::now() + pause));
                    }
                }
                () = clock::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }
}
