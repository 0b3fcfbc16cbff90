//! Local volumes of this node: folders below one folder, made when a Pod mounts such a volume first, and removed when the
//! control plane says so.
//!
//! Whoever writes an object decides by it no more than whether a folder of a volume's name is there: the folder above is
//! the node's own setting, a name is letters and digits, and links are not followed.

pub mod report;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use api::rules::local_volume::{self, Offer};
use files::{Dir, modes};
use k8s_openapi::api::core::v1::PersistentVolume;

use crate::{
    node::machine,
    volumes::error::{VolumeError, file_error},
};

/// Every user of a container may write into its volume; the folder above lets in nobody but the node.
const VOLUME_FOLDER: u32 = 0o777;
/// The part of the disk by which what is free must change before it is said again.
const STEP: u64 = 64;

/// The local volumes of a node, or that it makes none.
#[derive(Debug, Clone)]
pub struct LocalVolumes(Option<PathBuf>);

impl LocalVolumes {
    pub fn new(folder: Option<PathBuf>) -> Self {
        LocalVolumes(folder)
    }

    /// Where the folder of a volume is that is of this node's own.
    fn path_of(&self, volume: &PersistentVolume) -> Option<PathBuf> {
        let source = volume.spec.as_ref()?.local.as_ref()?;
        local_volume::node_of(volume)?;
        let path = self.0.as_ref()?.join(volume.metadata.name.as_deref().unwrap_or_default());
        (Path::new(&source.path) == path).then_some(path)
    }

    /// Whether a volume is of this node's own: it goes once no Pod has its path, so it is never seen by another one.
    pub fn is_own(&self, volume: &PersistentVolume) -> bool {
        self.path_of(volume).is_some()
    }

    /// Makes the folder of a volume that is of this node's own, unless it is there. Other volumes are left as they are.
    pub fn make(&self, volume: &PersistentVolume) -> Result<(), VolumeError> {
        let (Some(folder), Some(path)) = (&self.0, self.path_of(volume)) else { return Ok(()) };
        modes::folder(folder, modes::NODE_FOLDER).map_err(file_error(folder))?;
        let name = path.file_name().map(Path::new).unwrap_or(&path);
        let made = Dir::open(folder).and_then(|above| above.make_folders(name, VOLUME_FOLDER));
        made.map(drop).map_err(file_error(&path))
    }

    /// Removes the folders of volumes but for those that a Pod still has, and says which are gone.
    fn remove<'a>(&self, names: &BTreeSet<&'a str>, in_use: &BTreeSet<PathBuf>) -> BTreeSet<&'a str> {
        let Some(folder) = &self.0 else { return BTreeSet::new() };
        let is_gone = |name: &&&str| {
            let path = folder.join(name);
            // A Pod may have a part of it, whose path is longer.
            if !local_volume::is_name(name) || in_use.iter().any(|used| used.starts_with(&path)) {
                return false;
            }
            let removed = match Dir::open(folder) {
                Ok(above) => above.remove(OsStr::new(name)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = &removed {
                tracing::warn!(path = %path.display(), %error, "the folder of a local volume cannot be removed, trying again");
            }
            removed.is_ok()
        };
        names.iter().filter(is_gone).copied().collect()
    }

    /// The offer of this node. As long as little has changed, it is what was told before: a node is not written for each
    /// file.
    fn offer(&self, told: Option<Offer>) -> Option<Offer> {
        let folder = self.0.as_deref()?;
        let disk = machine::disk(folder)?;
        let fresh = Offer { folder: folder.to_str()?.to_owned(), size: disk.size, free: disk.free };
        Some(told.filter(|told| is_near(told, &fresh)).unwrap_or(fresh))
    }
}

fn is_near(told: &Offer, fresh: &Offer) -> bool {
    told.folder == fresh.folder && told.size == fresh.size && told.free.abs_diff(fresh.free) < fresh.size / STEP
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;
    use json::json;

    fn volume(name: &str, by: &str, path: &Path) -> PersistentVolume {
        let annotations = json!({"pv.kubernetes.io/provisioned-by": by, local_volume::NODE: "n"});
        let volume = json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"local": {"path": path}}});
        json::from_value(volume).unwrap()
    }

    const OWN: &str = local_volume::PROVISIONER;

    #[test]
    fn a_folder_is_made_once_and_for_every_user() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("volumes");
        let local = LocalVolumes::new(Some(folder.clone()));
        let path = folder.join("pvc-1");
        local.make(&volume("pvc-1", OWN, &path)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&path)), (modes::NODE_FOLDER, 0o777));
        fs::write(path.join("data"), "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        local.make(&volume("pvc-1", OWN, &path)).unwrap();
        assert!(path.join("data").exists());
        assert_eq!(mode(&path), 0o770, "the mode of a folder that is there is its user's");
    }

    #[test]
    fn no_object_makes_a_folder_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, outside) = (dir.path().join("volumes"), dir.path().join("outside"));
        let local = LocalVolumes::new(Some(folder.clone()));
        let check = |name: &str, by: &str, path: &Path| {
            local.make(&volume(name, by, path)).unwrap();
            assert!(!path.exists() && !folder.exists(), "{name} {}", path.display());
        };
        check("pvc-1", OWN, &outside.join("pvc-1"));
        check("pvc-1", OWN, &folder.join("pvc-2"));
        check("pvc-1", "other.io", &folder.join("pvc-1"));
        check("data", OWN, &folder.join("data"));
        check("..", OWN, &folder.join(".."));
        check("pvc-1", OWN, &folder.join("../outside"));
        LocalVolumes::new(None).make(&volume("pvc-1", OWN, &folder.join("pvc-1"))).unwrap();
        assert!(!folder.exists());
        // Somebody with a Pod on the node has put a link there.
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, folder.join("pvc-1")).unwrap();
        assert!(local.make(&volume("pvc-1", OWN, &folder.join("pvc-1"))).is_err());
    }

    #[test]
    fn what_is_removed_is_a_folder_of_a_volume_and_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, outside) = (dir.path().join("volumes"), dir.path().join("outside"));
        for path in [folder.join("pvc-1/inner"), folder.join("pvc-2"), folder.join("data"), outside.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        for path in [folder.join("pvc-1/inner/file"), folder.join("pvc-1/file"), outside.join("kept")] {
            fs::write(path, "x").unwrap();
        }
        symlink(&outside, folder.join("pvc-1/inner/link")).unwrap();
        symlink(&outside, folder.join("pvc-3")).unwrap();
        let local = LocalVolumes::new(Some(folder.clone()));
        let asked: BTreeSet<&str> =
            ["pvc-1", "pvc-2", "pvc-3", "pvc-4", "data", "..", "../outside", "", "pvc-1/../../outside"].into();
        let in_use = BTreeSet::from([folder.join("pvc-2/part")]);
        let gone = local.remove(&asked, &in_use);
        assert_eq!(gone.into_iter().collect::<Vec<_>>(), ["pvc-1", "pvc-3", "pvc-4"]);
        assert!(!folder.join("pvc-1").exists() && folder.join("pvc-2").exists() && folder.join("data").exists());
        assert!(fs::symlink_metadata(folder.join("pvc-3")).is_err(), "the link goes");
        assert!(outside.join("kept").exists(), "what it points at stays");
        let nowhere = LocalVolumes::new(Some(dir.path().join("none")));
        assert_eq!(nowhere.remove(&["pvc-1"].into(), &BTreeSet::new()).len(), 1);
    }

    #[test]
    fn little_changes_of_a_disk_are_not_told() {
        let offer = |free: u64| Offer { folder: "/v".to_owned(), size: 6400, free };
        assert!(is_near(&offer(1000), &offer(1099)));
        assert!(!is_near(&offer(1000), &offer(1100)));
        assert!(!is_near(&offer(1000), &offer(900)));
        assert!(!is_near(&Offer { size: 1, ..offer(1000) }, &offer(1000)));
        let dir = tempfile::tempdir().unwrap();
        let local = LocalVolumes::new(Some(dir.path().to_owned()));
        let told = local.offer(None).unwrap();
        assert_eq!(Path::new(&told.folder), dir.path());
        assert!(told.size >= told.free && told.size > 0);
        assert_eq!(LocalVolumes::new(None).offer(None), None);
    }
}
