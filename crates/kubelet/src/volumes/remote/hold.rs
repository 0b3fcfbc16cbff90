//! Disks that Pods have as devices are kept open, by a loop device each: the kernel does not give the number of such a disk to another one
//! that comes after it is gone, which the Pod would find in its place. Upstream counterpart: pkg/volume/util/volumepathhandler.

use std::{
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use files::modes;

use crate::volumes::{
    error::VolumeError,
    folder::{PodFolder, blocking},
    mounter::Mounter,
    remote::Remote,
};

const PROGRAM: &str = "losetup";

/// Where the devices of a Pod's volumes are held. Each is mounted there once more, and by that path its loop device is found again.
pub fn places(folder: &PodFolder) -> PathBuf {
    folder.path().join("devices")
}

fn wrong(step: &'static str, volume: &str, why: String) -> VolumeError {
    VolumeError::Step { step, volume: volume.to_owned(), why }
}

impl Remote {
    /// Keeps the device of a volume open. False when it is already, or is no device.
    pub async fn hold(
        &self,
        folder: &PodFolder,
        volume: &str,
        device: &Path,
        mounter: &Arc<dyn Mounter>,
    ) -> Result<bool, VolumeError> {
        let failed = |why| wrong("MapVolume.AttachFileDevice", volume, why);
        let (at, device, mounter) = (places(folder).join(volume), device.to_owned(), mounter.clone());
        if !self.loops(&at).is_empty() {
            return Ok(false);
        }
        let made = at.clone();
        let shown = blocking(move || show(&device, &made, &*mounter)).await;
        let is_device = shown.map_err(|error| failed(error.to_string()))?;
        if is_device {
            let done = self.programs.run(PROGRAM, &["--find", &at.display().to_string()]).await;
            done.map_err(|error| failed(format!("{PROGRAM}: {error}")))?;
        }
        Ok(is_device)
    }

    /// Lets go of the devices of all volumes of a Pod.
    pub async fn release(&self, folder: &PodFolder, mounter: &Arc<dyn Mounter>) -> Result<(), VolumeError> {
        const STEP: &str = "UnmapVolume.DetachFileDevice";
        for (device, held) in self.loops(&places(folder)) {
            let volume = held.file_name().unwrap_or_default().to_string_lossy();
            let done = self.programs.run(PROGRAM, &["--detach", &device.display().to_string()]).await;
            done.map_err(|why| wrong(STEP, &volume, format!("{PROGRAM}: {why}")))?;
        }
        let (at, mounter) = (places(folder), mounter.clone());
        let done = blocking(move || mounter.unmount(&at)).await;
        done.map_err(|error| wrong(STEP, "", error.to_string()))
    }

    /// The loop devices that keep open what is at this path or below it, each with what that is.
    fn loops(&self, path: &Path) -> Vec<(PathBuf, PathBuf)> {
        // The kernel tells paths without symbolic links.
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
        let Ok(path) = fs::canonicalize(parent).map(|parent| parent.join(name)) else { return Vec::new() };
        let entries = fs::read_dir(&self.disks.blocks).into_iter().flatten().flatten();
        let held = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            let text = text.trim_end_matches('\n');
            let held = PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(text));
            held.starts_with(&path).then(|| (Path::new("/dev").join(entry.file_name()), held))
        };
        entries.filter_map(held).collect()
    }
}

/// Lets go of all devices that are held below a folder, whichever Pods had them.
pub fn release_below(folder: &Path) -> io::Result<()> {
    let remote = Remote::of_this_machine();
    for (device, _) in remote.loops(folder) {
        let program = remote.programs.find(PROGRAM).unwrap_or_else(|| PROGRAM.into());
        let done = Command::new(program).arg("--detach").arg(&device).output()?;
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr);
            return Err(io::Error::other(format!("{PROGRAM} --detach {}: {}", device.display(), why.trim())));
        }
    }
    Ok(())
}

/// Shows a device at a path of the Pod's own, in place of one that is there. Whether it is a device: nothing else can be exchanged.
fn show(device: &Path, at: &Path, mounter: &dyn Mounter) -> io::Result<bool> {
    if !fs::metadata(device)?.file_type().is_block_device() {
        return Ok(false);
    }
    if let Some(folder) = at.parent() {
        modes::folder(folder, modes::PRIVATE_FOLDER)?;
    }
    mounter.unmount(at)?;
    modes::write(at, modes::PRIVATE_FILE, "")?;
    mounter.bind(device, at)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;
    use crate::volumes::{
        mounter::{Kernel, Recorded},
        remote::{Disks, programs::Fakes},
    };

    fn is_root() -> bool {
        let is_root = nix::unistd::Uid::effective().is_root();
        if !is_root {
            eprintln!("SKIPPED: not root");
        }
        is_root
    }

    #[tokio::test]
    async fn a_device_is_held_once_until_its_pod_lets_go() {
        if !is_root() {
            return;
        }
        let fakes = Fakes::in_a_new_folder();
        let folder = PodFolder::new(fakes.folder.path(), "u");
        let remote = Remote::new(fakes.programs(), Disks::below(fakes.folder.path()));
        let blocks = fakes.folder.path().join("block/loop3/loop");
        let held = folder.path().join("devices/v");
        fakes.add(
            "losetup",
            &format!(
                "PATH=/usr/bin:/bin\ncase $1 in --find) mkdir -p {0} && echo \"$2\" >{0}/backing_file ;; *) rm {0}/* ;; esac",
                blocks.display()
            ),
        );
        let device = fakes.folder.path().join("device");
        mknod(&device, SFlag::S_IFBLK, Mode::S_IRUSR, makedev(7, 255)).unwrap();
        fs::write(fakes.folder.path().join("file"), "").unwrap();
        let recorded = Arc::<Recorded>::default();
        let mounter: Arc<dyn Mounter> = recorded.clone();
        let file = fakes.folder.path().join("file");
        assert!(!remote.hold(&folder, "v", &file, &mounter).await.unwrap());
        assert_eq!(fakes.calls(), [""; 0], "a file is no device");
        assert!(remote.hold(&folder, "v", &device, &mounter).await.unwrap());
        assert!(!remote.hold(&folder, "v", &device, &mounter).await.unwrap(), "it is held already");
        assert_eq!(recorded.points(), std::slice::from_ref(&held));
        let other = PodFolder::new(fakes.folder.path(), "u2");
        remote.release(&other, &mounter).await.unwrap();
        assert_eq!(recorded.points().len(), 1);
        remote.release(&folder, &mounter).await.unwrap();
        remote.release(&folder, &mounter).await.unwrap();
        assert!(recorded.points().is_empty());
        assert_eq!(fakes.calls(), [format!("losetup --find {}", held.display()), "losetup --detach /dev/loop3".into()]);
        fakes.add("losetup", "echo no; exit 1");
        let why = remote.hold(&folder, "v", &device, &mounter).await.unwrap_err();
        let VolumeError::Step { step, why, .. } = why else { panic!("{why}") };
        assert_eq!((step, why.as_str()), ("MapVolume.AttachFileDevice", "losetup: exit status 1, output: no"));
    }

    /// A loop device over an image, which goes with the test, as does what may be mounted of it.
    struct Image {
        device: String,
        mounted: PathBuf,
    }

    impl Drop for Image {
        fn drop(&mut self) {
            Kernel.unmount(&self.mounted).unwrap();
            Command::new("losetup").args(["--detach", &self.device]).status().unwrap();
        }
    }

    #[tokio::test]
    async fn the_kernel_keeps_a_device_open() {
        let (temporary, remote) = (tempfile::tempdir().unwrap(), Remote::of_this_machine());
        if !is_root() || !Path::new("/dev/loop-control").exists() || remote.programs.find(PROGRAM).is_none() {
            eprintln!("SKIPPED: there are no loop devices");
            return;
        }
        let image = temporary.path().join("image");
        fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().unwrap();
        let (folder, mounter) = (PodFolder::new(temporary.path(), "u"), Arc::new(Kernel) as Arc<dyn Mounter>);
        let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let disk = Image { device, mounted: places(&folder) };
        let hold = || remote.hold(&folder, "v", Path::new(&disk.device), &mounter);
        hold().await.unwrap();
        hold().await.unwrap();
        let held = remote.loops(&places(&folder));
        assert_eq!(held.len(), 1, "{held:?}");
        let holders = remote.loops(&folder.path().join("devices/v"));
        assert_eq!(held, holders);
        remote.release(&folder, &mounter).await.unwrap();
        assert_eq!(remote.loops(&places(&folder)), []);
        hold().await.unwrap();
        release_below(temporary.path()).unwrap();
        assert_eq!(remote.loops(&places(&folder)), []);
        remote.release(&folder, &mounter).await.unwrap();
        assert!(!mounter.is_mounted(&places(&folder).join("v")));
    }
}
