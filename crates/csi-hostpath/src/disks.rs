//! The volumes: a folder each, or a file that is a loop device while it is staged. All that is done may have been done before.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use kubelet::csi_messages::{
    AccessType, Empty, PublishRequest, StageRequest, StatsRequest, StatsResponse, Unit, UnpublishRequest,
    UnstageRequest, VolumeCapability, VolumeUsage,
};

/// The size of a device.
const DEVICE_BYTES: u64 = 16 << 20;

pub struct Disks {
    data: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(io::Error::other(format!("{program} {}: {}", arguments.join(" "), text(&output.stderr))))
}

fn is_mounted(path: &str) -> bool {
    run("mountpoint", &["-q", path]).is_ok()
        || fs::read_to_string("/proc/self/mountinfo")
            .is_ok_and(|table| table.lines().any(|line| line.split(' ').nth(4) == Some(path)))
}

fn bind(source: &str, target: &str, read_only: bool) -> io::Result<()> {
    if !is_mounted(target) {
        run("mount", &["--bind", source, target])?;
    }
    if read_only {
        run("mount", &["-o", "remount,bind,ro", target])?;
    }
    Ok(())
}

fn unmount(target: &str) -> io::Result<()> {
    while is_mounted(target) {
        run("umount", &[target])?;
    }
    Ok(())
}

fn is_block(capability: &Option<VolumeCapability>) -> bool {
    matches!(capability.as_ref().and_then(|c| c.access_type.as_ref()), Some(AccessType::Block(_)))
}

/// A name that is one part of a path.
fn part(name: &str) -> io::Result<&str> {
    let is_part = !matches!(name, "" | "." | "..") && !name.contains('/');
    is_part.then_some(name).ok_or_else(|| io::Error::other(format!("{name:?} is no volume")))
}

impl Disks {
    pub fn new(data: &Path) -> io::Result<Disks> {
        fs::create_dir_all(data)?;
        Ok(Disks { data: data.canonicalize()? })
    }

    fn folder(&self, volume: &str) -> io::Result<String> {
        let folder = self.data.join(part(volume)?);
        fs::create_dir_all(&folder)?;
        Ok(folder.display().to_string())
    }

    fn image(&self, volume: &str) -> io::Result<String> {
        Ok(self.data.join(format!("{}.img", part(volume)?)).display().to_string())
    }

    /// The device that a volume is, if it is one by now.
    fn device(&self, volume: &str) -> io::Result<Option<String>> {
        let devices = run("losetup", &["--noheadings", "--output", "NAME", "--associated", &self.image(volume)?])?;
        Ok(devices.lines().next().map(|name| name.trim().to_owned()))
    }

    pub fn stage(&self, request: &StageRequest) -> io::Result<Empty> {
        let volume = &request.volume_id;
        if is_block(&request.volume_capability) {
            let image = self.image(volume)?;
            let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&image)?;
            if file.metadata()?.len() < DEVICE_BYTES {
                file.set_len(DEVICE_BYTES)?;
            }
            if self.device(volume)?.is_none() {
                run("losetup", &["--find", &image])?;
            }
        } else {
            bind(&self.folder(volume)?, &request.staging_target_path, false)?;
        }
        Ok(Empty {})
    }

    pub fn unstage(&self, request: &UnstageRequest) -> io::Result<Empty> {
        if let Some(device) = self.device(&request.volume_id)? {
            run("losetup", &["--detach", &device])?;
        }
        unmount(&request.staging_target_path).map(|()| Empty {})
    }

    pub fn publish(&self, request: &PublishRequest) -> io::Result<Empty> {
        let (volume, target) = (&request.volume_id, &request.target_path);
        if is_block(&request.volume_capability) {
            let device = self.device(volume)?.ok_or_else(|| io::Error::other("the device is not staged"))?;
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

    /// A volume has as much room as a device, and uses what its files have.
    pub fn stats(&self, request: &StatsRequest) -> io::Result<StatsResponse> {
        let files = fs::read_dir(self.data.join(part(&request.volume_id)?))?.flatten();
        let used = files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum::<u64>().min(DEVICE_BYTES);
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let usage = VolumeUsage {
            total: bytes(DEVICE_BYTES),
            used: bytes(used),
            available: bytes(DEVICE_BYTES - used),
            unit: Unit::Bytes as i32,
        };
        Ok(StatsResponse { usage: vec![usage], ..StatsResponse::default() })
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
        if volume.starts_with("csi-") && self.data.join(part(volume)?).exists() {
            fs::remove_dir_all(self.data.join(volume))?;
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
        let disks = Disks::new(&folder.path().join("data")).unwrap();
        let data = disks.data.display().to_string();
        assert_eq!(disks.folder("v").unwrap(), format!("{data}/v"));
        assert!(folder.path().join("data/v").is_dir());
        for wrong in ["", ".", "..", "a/b", "/x"] {
            assert!(disks.folder(wrong).is_err() && disks.image(wrong).is_err(), "{wrong:?}");
        }
        fs::write(folder.path().join("data/v/file"), "seven b").unwrap();
        let request = StatsRequest { volume_id: "v".into(), ..StatsRequest::default() };
        let [usage] = disks.stats(&request).unwrap().usage[..] else { panic!("one usage") };
        assert_eq!((usage.used, usage.total - usage.available), (7, 7));
    }
}
