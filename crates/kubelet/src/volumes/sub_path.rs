//! A part of a volume, mounted for one container. The containers of a Pod can change the content of its volumes at any
//! moment, so what was looked at is held open and that very thing is mounted: a link put in its place afterwards changes
//! nothing.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use files::{Dir, beneath, modes};
use nix::{errno::Errno, sys::stat::fstat};

use crate::volumes::{
    content,
    error::{VolumeError, file_error},
    mounter::Mounter,
};

/// Something in a volume, held open.
#[derive(Debug)]
pub struct Held {
    fd: OwnedFd,
    is_folder: bool,
}

/// Holds `sub_path` of a volume; what is missing of it is made, as folders with the volume's own mode. Links in it may not lead
/// out of the volume.
pub fn hold(volume: &Path, sub_path: &str) -> Result<Held, VolumeError> {
    content::check_path(sub_path)?;
    let root = Dir::open(volume).map_err(file_error(volume))?;
    let wanted = Path::new(sub_path);
    let held = match look(&root, volume, wanted) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&root, volume, wanted),
        found => found,
    };
    let fd = held.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EXDEV | Errno::ELOOP) => VolumeError::Path(sub_path.to_owned()),
        _ => file_error(&volume.join(sub_path))(error),
    })?;
    let meta = fstat(&fd).map_err(|e| file_error(volume)(e.into()))?;
    Ok(Held { fd, is_folder: beneath::is_folder(&meta) })
}

fn look(root: &Dir, volume: &Path, wanted: &Path) -> io::Result<OwnedFd> {
    match root.hold(wanted) {
        // A link with a whole path may lead back into the volume, as the node sees it. Where it leads is only a guess: what is
        // held is asked for anew, without any link.
        Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => {
            let real = fs::canonicalize(volume.join(wanted))?;
            match real.strip_prefix(fs::canonicalize(volume)?) {
                Ok(inside) if !inside.as_os_str().is_empty() => root.hold_plain(inside),
                _ => Err(error),
            }
        }
        held => held,
    }
}

/// Makes what is missing below the longest part that is there.
fn make(root: &Dir, volume: &Path, wanted: &Path) -> io::Result<OwnedFd> {
    let mode = root.meta()?.st_mode & 0o7777;
    for part in wanted.ancestors().skip(1) {
        let start = if part.as_os_str().is_empty() {
            root.folder(Path::new("."))?
        } else {
            match look(root, volume, part) {
                Ok(fd) => Dir::open(&beneath::path_of(&fd))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        };
        let missing = wanted.strip_prefix(part).unwrap_or(wanted);
        let made = start.make_folders(missing, mode)?;
        return made.hold_plain(Path::new("."));
    }
    Err(Errno::ENOENT.into())
}

impl Held {
    /// Mounts it at a place in a folder of the kubelet's own.
    pub fn mount_at(&self, target: &Path, mounter: &dyn Mounter) -> Result<(), VolumeError> {
        let failed = file_error(target);
        // An earlier start of the container has left its mount.
        mounter.unmount(target).and_then(|()| files::remove(target)).map_err(&failed)?;
        if self.is_folder {
            modes::folder(target, modes::NODE_FOLDER).map_err(&failed)?;
        } else {
            modes::folder(target.parent().unwrap_or(target), modes::NODE_FOLDER).map_err(&failed)?;
            modes::create_new(target, modes::PRIVATE_FILE).map_err(&failed)?;
        }
        mounter.bind(&beneath::path_of(&self.fd), target).map_err(failed)
    }

    /// Where it lies now.
    pub fn place(&self) -> io::Result<PathBuf> {
        beneath::place(&self.fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::mounter::Kernel;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn world() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let world = tempfile::tempdir().unwrap();
        let root = world.path().canonicalize().unwrap();
        let (volume, outside) = (root.join("volume"), root.join("outside"));
        fs::create_dir_all(volume.join("data/deep")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "s3cret").unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o2777)).unwrap();
        (world, volume, outside)
    }

    #[test]
    fn links_inside_are_followed_and_links_out_are_refused() {
        let (_world, volume, outside) = world();
        symlink("data/deep", volume.join("inside")).unwrap();
        symlink(volume.join("data"), volume.join("whole")).unwrap();
        symlink("..", volume.join("data/up")).unwrap();
        symlink(&outside, volume.join("out")).unwrap();
        symlink("../outside", volume.join("relative")).unwrap();
        symlink("/", volume.join("data/root")).unwrap();
        symlink("loop", volume.join("loop")).unwrap();
        symlink(outside.join("new"), volume.join("dangling")).unwrap();
        let check = |path: &str, expected: Option<&str>| {
            let got = hold(&volume, path).ok().map(|held| held.place().unwrap());
            assert_eq!(got, expected.map(|place| volume.join(place)), "{path}");
        };
        check("data", Some("data"));
        check("inside", Some("data/deep"));
        check("whole", Some("data"));
        check("whole/deep", Some("data/deep"));
        check("data/up/data", Some("data"));
        check("whole/new/er", Some("data/new/er"));
        for refused in [
            "out",
            "out/secret",
            "relative",
            "relative/new",
            "data/root",
            "data/root/etc",
            "loop",
            "dangling",
            "out/new",
        ] {
            check(refused, None);
        }
        for refused in ["../outside", "/etc", "data/../../outside", ""] {
            assert!(hold(&volume, refused).unwrap_err().to_string().contains("must stay inside"), "{refused}");
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was made outside");
    }

    #[test]
    fn what_is_missing_is_made_with_the_mode_of_the_volume() {
        let (_world, volume, _) = world();
        let held = hold(&volume, "new/er").unwrap();
        assert!(held.is_folder);
        for made in ["new", "new/er"] {
            assert_eq!(fs::metadata(volume.join(made)).unwrap().mode() & 0o7777, 0o2777, "{made}");
        }
        fs::write(volume.join("file"), "").unwrap();
        assert!(!hold(&volume, "file").unwrap().is_folder);
        assert!(hold(&volume, "file/x").is_err());
    }

    #[test]
    fn a_link_put_in_its_place_after_the_look_changes_nothing() {
        let (_world, volume, outside) = world();
        let held = hold(&volume, "data/deep").unwrap();
        fs::rename(volume.join("data"), volume.join("moved")).unwrap();
        symlink(&outside, volume.join("data")).unwrap();
        fs::create_dir(outside.join("deep")).unwrap();
        assert_eq!(held.place().unwrap(), volume.join("moved/deep"));
        assert!(hold(&volume, "data/deep").is_err());
    }

    #[test]
    fn what_was_looked_at_is_what_is_mounted() {
        let (world, volume, outside) = world();
        fs::write(volume.join("data/mine"), "mine").unwrap();
        fs::write(outside.join("mine"), "stolen").unwrap();
        let target = world.path().join("volume-subpaths/v/c/0");
        let (folder, file) = (hold(&volume, "data").unwrap(), hold(&volume, "data/mine").unwrap());
        // The swap between check and mount.
        fs::rename(volume.join("data"), volume.join("moved")).unwrap();
        symlink(&outside, volume.join("data")).unwrap();
        if let Err(error) = folder.mount_at(&target, &Kernel) {
            eprintln!("SKIPPED: needs root and the right to mount: {error}");
            return;
        }
        let seen = fs::read_to_string(target.join("mine")).unwrap();
        // The same place again, as for the next start of the container, now with a file.
        file.mount_at(&target, &Kernel).unwrap();
        let seen_file = fs::read_to_string(&target).unwrap();
        // A volume that is mounted there is left alone by the removal.
        Kernel.unmount(&world.path().join("volume-subpaths")).unwrap();
        files::remove(&world.path().join("volume-subpaths")).unwrap();
        assert_eq!((seen.as_str(), seen_file.as_str()), ("mine", "mine"));
        assert_eq!(fs::read_to_string(volume.join("moved/mine")).unwrap(), "mine");
        assert!(!target.exists());
    }
}
