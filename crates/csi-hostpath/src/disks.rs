//! The volumes of a node: a folder each, or an image that is a loop device while it is staged. All that is done may have been done
//! before.

use std::{fs, io, sync::Arc};

use kubelet::csi_messages::{
    AccessType, Empty, ExpandRequest, ExpandResponse, PublishRequest, StageRequest, StatsRequest, StatsResponse, Unit,
    UnpublishRequest, UnstageRequest, VolumeCapability, VolumeUsage,
};
use runtime::grpc::Status;

use crate::{
    images::{Images, failed, part},
    programs::{bind, is_mounted, mount, run, unmount},
};

/// The size of a device.
const DEVICE_BYTES: u64 = 16 << 20;

pub struct Disks {
    images: Arc<Images>,
    node: String,
}

fn is_block(capability: &Option<VolumeCapability>) -> bool {
    matches!(capability.as_ref().and_then(|c| c.access_type.as_ref()), Some(AccessType::Block(_)))
}

impl Disks {
    pub fn new(images: Arc<Images>, node: &str) -> Disks {
        Disks { images, node: node.to_owned() }
    }

    fn folder(&self, volume: &str) -> io::Result<String> {
        let folder = self.images.data().join(part(volume)?);
        fs::create_dir_all(&folder)?;
        Ok(folder.display().to_string())
    }

    pub fn stage(&self, request: &StageRequest) -> Result<Empty, Status> {
        let volume = &request.volume_id;
        let is_made = self.images.is_made(volume).map_err(failed)?;
        if is_made && !self.images.is_published(volume, &self.node).map_err(failed)? {
            return Err(Status::failed_precondition(format!("{volume} is not published to {}", self.node)));
        }
        self.staged(request, is_made).map_err(failed)
    }

    fn staged(&self, request: &StageRequest, is_made: bool) -> io::Result<Empty> {
        let (volume, target) = (&request.volume_id, &request.staging_target_path);
        match (is_block(&request.volume_capability), is_made) {
            (true, true) => drop(self.images.as_device(volume)?),
            (false, true) => mount(&self.images.as_device(volume)?, target)?,
            (true, false) => {
                let image = self.images.path(volume)?;
                let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&image)?;
                if file.metadata()?.len() < DEVICE_BYTES {
                    file.set_len(DEVICE_BYTES)?;
                }
                self.images.as_device(volume)?;
            }
            (false, false) => bind(&self.folder(volume)?, target, false)?,
        }
        Ok(Empty {})
    }

    pub fn unstage(&self, request: &UnstageRequest) -> io::Result<Empty> {
        unmount(&request.staging_target_path)?;
        if let Some(device) = self.images.device(&request.volume_id)? {
            run("losetup", &["--detach", &device])?;
        }
        Ok(Empty {})
    }

    /// Volumes that are folders have all the room of the machine.
    pub fn expand(&self, request: &ExpandRequest) -> Result<ExpandResponse, Status> {
        let (volume, bytes) = (&request.volume_id, request.capacity_range.unwrap_or_default().required_bytes);
        if self.images.is_made(volume).map_err(failed)? {
            let least = u64::try_from(bytes).unwrap_or(0);
            self.images.grow_here(volume, least, is_block(&request.volume_capability))?;
        }
        Ok(ExpandResponse { capacity_bytes: bytes })
    }

    pub fn publish(&self, request: &PublishRequest) -> io::Result<Empty> {
        let (volume, target) = (&request.volume_id, &request.target_path);
        if is_block(&request.volume_capability) {
            let device = self.images.device(volume)?.ok_or_else(|| io::Error::other("the device is not staged"))?;
            fs::OpenOptions::new().create(true).truncate(false).write(true).open(target).map(drop).or_else(
                |error| {
                    // It is the device already.
                    if is_mounted(target) { Ok(()) } else { Err(error) }
                },
            )?;
            bind(&device, target, false)?;
            return Ok(Empty {});
        }
        fs::create_dir_all(target)?;
        let staged = &request.staging_target_path;
        let source = if staged.is_empty() { self.folder(volume)? } else { staged.clone() };
        bind(&source, target, request.readonly).map(|()| Empty {})
    }

    /// A folder has as much room as a device, and uses what its files have.
    pub fn stats(&self, request: &StatsRequest) -> io::Result<StatsResponse> {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let usage = |total: u64, used: u64, available: u64| VolumeUsage {
            total: bytes(total),
            used: bytes(used),
            available: bytes(available),
            unit: Unit::Bytes as i32,
        };
        let told = |usage: VolumeUsage| StatsResponse { usage: vec![usage], ..StatsResponse::default() };
        if self.images.is_made(&request.volume_id)? {
            let said = run("df", &["--block-size=1", "--output=size,used,avail", &request.volume_path])?;
            let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [total, used, available] = numbers[..] else { return Err(io::Error::other(said)) };
            return Ok(told(usage(total, used, available)));
        }
        let files = fs::read_dir(self.images.data().join(part(&request.volume_id)?))?.flatten();
        let used = files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum::<u64>().min(DEVICE_BYTES);
        Ok(told(usage(DEVICE_BYTES, used, DEVICE_BYTES - used)))
    }

    pub fn unpublish(&self, request: &UnpublishRequest) -> io::Result<Empty> {
        let target = &request.target_path;
        unmount(target)?;
        let gone = match fs::metadata(target) {
            Ok(meta) if meta.is_dir() => fs::remove_dir(target),
            Ok(_) => fs::remove_file(target),
            Err(_) => Ok(()),
        };
        gone?;
        // A volume of a Pod's own goes with it.
        let volume = &request.volume_id;
        if volume.starts_with("csi-") && self.images.data().join(part(volume)?).exists() {
            fs::remove_dir_all(self.images.data().join(volume))?;
        }
        Ok(Empty {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_one_folder_of_the_data() {
        let folder = tempfile::tempdir().unwrap();
        let disks = Disks::new(Arc::new(Images::new(&folder.path().join("data")).unwrap()), "n");
        let data = disks.images.data().display().to_string();
        assert_eq!(disks.folder("v").unwrap(), format!("{data}/v"));
        assert!(folder.path().join("data/v").is_dir());
        for wrong in ["", ".", "..", "a/b", "/x"] {
            assert!(disks.folder(wrong).is_err(), "{wrong:?}");
        }
        fs::write(folder.path().join("data/v/file"), "seven b").unwrap();
        let request = StatsRequest { volume_id: "v".into(), ..StatsRequest::default() };
        let [usage] = disks.stats(&request).unwrap().usage[..] else { panic!("one usage") };
        assert_eq!((usage.used, usage.total - usage.available), (7, 7));
    }
}
