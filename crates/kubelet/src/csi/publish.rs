//! Publishing: what a driver does to bring a volume into one Pod, and to take it out again.
//! Upstream counterparts: pkg/volume/csi/csi_mounter.go and csi_block.go.

use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use clock::{Instant, Timestamp};
use json::json;
use runtime::grpc;

use crate::{
    csi::{
        Csi,
        drivers::is_final,
        messages::{Ability, Empty, PUBLISH, PublishRequest, UNPUBLISH, UnpublishRequest},
        record::{Progress, Record, remove_empty, remove_target},
        usage::Usage,
        volume,
    },
    volumes::{
        error::VolumeError,
        folder::{PodFolder, blocking},
        group,
    },
};

/// How long a token of a driver lasts that does not say.
const TOKEN_SECONDS: i64 = 3600;
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

pub fn failed(record: &Record, why: impl Into<String>) -> VolumeError {
    let step = if record.is_block() { "MapVolume.SetUpDevice" } else { "MountVolume.SetUp" };
    VolumeError::Step { step, volume: record.name.clone(), why: why.into() }
}

fn is_device(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.file_type().is_block_device())
}

impl Csi {
    /// Lets the driver publish a volume, also once more. Where the Pod finds it.
    pub(super) async fn publish(&self, usage: &Usage<'_>, staged: Option<PathBuf>) -> Result<PathBuf, VolumeError> {
        let (wish, volume) = (usage.wish, &usage.wish.volume);
        let place = self.places.published(wish.folder, &usage.record);
        let held = self.look(&place).await.filter(|held| held.is_of(&usage.record));
        let progress = held.map_or(Progress::Nothing, |held| held.progress);
        let (context, secrets) = self.told(usage).await?;
        let mut record = Record { progress: progress.max(Progress::Begun), ..usage.record.clone() };
        self.write(&record, &place, place.target.parent().unwrap_or(&place.folder)).await?;
        let request = PublishRequest {
            volume_id: volume.handle.clone(),
            publish_context: usage.context.clone(),
            staging_target_path: staged.map(|path| path.display().to_string()).unwrap_or_default(),
            target_path: place.target.display().to_string(),
            volume_capability: Some(usage.capability()),
            readonly: volume.read_only,
            secrets,
            volume_context: context,
        };
        if let Err(status) = usage.driver.call::<_, Empty>(PUBLISH, request).await {
            if is_final(&status) && progress == Progress::Nothing {
                record.progress = Progress::Nothing;
                self.write(&record, &place, &place.folder).await?;
                let target = place.target.clone();
                if let Err(error) = blocking(move || remove_target(&target)).await {
                    tracing::debug!(path = %place.target.display(), %error, "something is left of a refused volume");
                }
            }
            return Err(failed(&record, grpc::words(&status)));
        }
        if progress != Progress::Done {
            self.finish(usage, &place.target).await?;
            record.progress = Progress::Done;
            self.write(&record, &place, &place.folder).await?;
        }
        Ok(place.target)
    }

    /// The kubelet's own work once the driver has published a volume.
    async fn finish(&self, usage: &Usage<'_>, target: &Path) -> Result<(), VolumeError> {
        let (wish, at, record) = (usage.wish, target.to_owned(), &usage.record);
        if record.is_block() {
            let outcome = blocking(move || is_device(&at)).await;
            return match outcome {
                Ok(true) => Ok(()),
                Ok(false) => Err(failed(record, format!("{} is not a block device", target.display()))),
                Err(error) => Err(failed(record, format!("{}: {error}", target.display()))),
            };
        }
        let gives = usage.settings.gives(&wish.volume) && !usage.can(Ability::VolumeMountGroup);
        let Some(group) = wish.group.filter(|_| gives) else { return Ok(()) };
        let only_if_other = group::is_by_root(wish.pod);
        let given = blocking(move || group::give(&at, group, only_if_other)).await;
        given.map_err(|error| failed(record, format!("applyFSGroup failed for vol {}: {error}", record.handle)))
    }

    /// The attributes and secrets of the volume and of the Pod that the driver is told.
    async fn told(
        &self,
        usage: &Usage<'_>,
    ) -> Result<(BTreeMap<String, String>, BTreeMap<String, String>), VolumeError> {
        let (wish, settings, record) = (usage.wish, &usage.settings, &usage.record);
        let mut secrets = match &wish.volume.publish_secret {
            Some(name) => {
                let secret = usage.secret(name).await;
                secret.map_err(|why| failed(record, format!("fetching NodePublishSecretRef {why}")))?
            }
            None => BTreeMap::new(),
        };
        let mut context = wish.volume.attributes.clone();
        // Upstream tells drivers of devices nothing of the Pod.
        if record.is_block() {
            return Ok((context, secrets));
        }
        if settings.wants_pod {
            context.extend(volume::pod_attributes(wish.pod, wish.volume.is_inline));
        }
        if !settings.tokens.is_empty() {
            let mut tokens = json!({});
            for request in &settings.tokens {
                let seconds = request.expiration_seconds.unwrap_or(TOKEN_SECONDS);
                let token = wish.sources.token(wish.pod, &request.audience, seconds).await.map_err(|error| {
                    let words = "mounter.SetUpAt failed to get service account token attributes";
                    failed(record, format!("kubernetes.io/csi: {words}: {error}"))
                })?;
                let until = Timestamp::from_second(token.expires_at).unwrap_or_default().to_string();
                tokens[request.audience.as_str()] = json!({"token": token.text, "expirationTimestamp": until});
            }
            let list = if settings.tokens_in_secrets { &mut secrets } else { &mut context };
            list.insert(TOKENS.to_owned(), tokens.to_string());
        }
        Ok((context, secrets))
    }

    /// Takes all volumes of drivers out of a Pod. One that fails does not keep the others from it; it is tried again by
    /// calling this again.
    pub async fn unpublish_all(&self, pod: &PodFolder) -> Result<(), VolumeError> {
        let (places, folder) = (self.places.clone(), pod.clone());
        let all = blocking(move || places.of_pod(&folder)).await;
        if all.is_empty() {
            return Ok(());
        }
        // A mount without a record was not asked for by this kubelet: it goes with the Pod's folder.
        let each = all.into_iter().filter_map(|(folder, record)| Some(self.unpublish(pod, folder, record?)));
        let outcomes = futures::future::join_all(each).await;
        self.unpublished.notify_one();
        self.forget_pod(pod);
        outcomes.into_iter().collect()
    }

    async fn unpublish(&self, pod: &PodFolder, folder: PathBuf, record: Record) -> Result<(), VolumeError> {
        let _turn = self.turns.take(&record).await;
        let begun = Instant::now();
        let operation = if record.is_block() { "unmap_volume" } else { "volume_unmount" };
        let driver = record.driver.clone();
        let gone = self.try_unpublish(pod, folder, record).await;
        self.count(&driver, operation, gone.is_ok(), begun);
        gone
    }

    async fn try_unpublish(&self, pod: &PodFolder, folder: PathBuf, record: Record) -> Result<(), VolumeError> {
        let place = self.places.published(pod, &record);
        let failed =
            |why: String| VolumeError::Step { step: "UnmountVolume.TearDown", volume: record.name.clone(), why };
        if record.progress != Progress::Nothing {
            let driver = self.drivers.get(&record.driver).map_err(|why| {
                failed(format!("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: {why}"))
            })?;
            let target_path = place.target.display().to_string();
            let request = UnpublishRequest { volume_id: record.handle.clone(), target_path };
            driver.call::<_, Empty>(UNPUBLISH, request).await.map_err(|status| {
                failed(format!("kubernetes.io/csi: Unmounter.TearDownAt failed: {}", grpc::words(&status)))
            })?;
        }
        let (mounter, is_block) = (self.mounter.clone(), record.is_block());
        let gone = blocking(move || {
            // The driver may have said so and not done it.
            mounter.unmount(&place.target)?;
            remove_target(&place.target)?;
            if is_block {
                // Other Pods may have the device.
                let _ = place.target.parent().map(remove_empty);
            }
            Record::remove(&folder)
        });
        gone.await.map_err(|error: io::Error| failed(error.to_string()))
    }
}
