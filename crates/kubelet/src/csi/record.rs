//! The records of volumes on disk: which of them a Pod wants, which of them are staged, and how far that came. A kubelet that
//! starts again knows all from there. Places and files are upstream's (`vol_data.json`), with a few more keys in them.
//!
//! A record is written before the driver is asked for anything, and goes after it has undone everything: no driver holds a volume
//! that no record names.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use files::modes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::volumes::folder::PodFolder;

const FILE: &str = "vol_data.json";
/// The folder of block devices, among those of drivers.
const DEVICES: &str = "volumeDevices";
/// Longer files are no records.
const BYTES: u64 = 64 << 10;

/// How far the driver was asked to go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// It was asked for nothing, or has refused.
    Nothing,
    /// It may have done anything from nothing to all.
    #[default]
    Begun,
    Done,
}

/// All values are text: upstream reads the file as a map of texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The name of the PersistentVolume, or of the Pod's volume where that is one of its own.
    #[serde(rename = "specVolID")]
    pub name: String,
    #[serde(rename = "volumeHandle")]
    pub handle: String,
    #[serde(rename = "driverName")]
    pub driver: String,
    pub node_name: String,
    #[serde(rename = "attachmentID")]
    pub attachment: String,
    #[serde(rename = "volumeLifecycleMode")]
    pub lifecycle: String,
    /// `Block`, or empty.
    pub volume_mode: String,
    pub progress: Progress,
    /// Its name in the node's status, where it had to be attached.
    pub attached_as: String,
    /// The SELinux label that it is mounted with, if it is.
    #[serde(rename = "selinuxMountContext")]
    pub label: String,
}

impl Record {
    pub fn is_inline(&self) -> bool {
        self.lifecycle == "Ephemeral"
    }

    pub fn is_block(&self) -> bool {
        self.volume_mode == "Block"
    }

    /// Whether its names can be parts of paths. Nobody stores others; this is where it would matter.
    pub fn is_sound(&self) -> bool {
        let is_part = |text: &str| !matches!(text, "" | "." | "..") && !text.contains(['/', '\0']);
        is_part(&self.driver) && is_part(&self.name) && self.driver != DEVICES
    }

    /// Whether both are about one volume on this node.
    pub fn is_of(&self, other: &Record) -> bool {
        (&self.driver, &self.handle, self.is_block()) == (&other.driver, &other.handle, other.is_block())
    }

    /// Whether a Pod that wants this one uses another, which is staged, or will. One with another label has to go first.
    pub fn uses(&self, staged: &Record) -> bool {
        self.is_of(staged) && self.label == staged.label
    }

    /// The record in a folder. One that cannot be read is told of, and counts as none.
    pub fn read(folder: &Path) -> Option<Record> {
        let at = folder.join(FILE);
        let read = || {
            if fs::metadata(&at)?.len() > BYTES {
                return Err(io::Error::other("too long"));
            }
            serde_json::from_slice(&fs::read(&at)?).map_err(io::Error::from)
        };
        read()
            .inspect_err(|error: &io::Error| {
                if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
                    tracing::warn!(path = %at.display(), %error, "the record of a volume cannot be read");
                }
            })
            .ok()
    }

    /// Replaces the record in a folder, which is made.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        modes::folder(folder, modes::NODE_FOLDER)?;
        let text = serde_json::to_vec(self).map_err(io::Error::from)?;
        modes::replace(&folder.join(FILE), modes::PRIVATE_FILE, text)
    }

    /// Removes the record and its folder, in which nothing else may be any more.
    pub fn remove(folder: &Path) -> io::Result<()> {
        gone(fs::remove_file(folder.join(FILE)))?;
        remove_empty(folder)
    }
}

fn gone(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Removes a folder in which nothing is, so that nothing of a volume is ever lost here.
pub fn remove_empty(folder: &Path) -> io::Result<()> {
    gone(fs::remove_dir(folder))
}

/// Removes what a driver has left at a place of its own: an empty file or an empty folder.
pub fn remove_target(target: &Path) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Err(error) => gone(Err(error)),
        Ok(meta) if meta.is_dir() => remove_empty(target),
        Ok(meta) if meta.is_file() && meta.len() > 0 => Err(io::Error::other("a file that is not empty is left there")),
        Ok(_) => gone(fs::remove_file(target)),
    }
}

/// The folders in a folder.
fn below(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Where a record is, and the place that its driver was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub folder: PathBuf,
    pub target: PathBuf,
}

/// Where the volumes of a node are, below the kubelet's folder.
pub struct Places {
    root: PathBuf,
}

impl Places {
    pub fn new(root: &Path) -> Places {
        Places { root: root.to_owned() }
    }

    fn own(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    fn devices(&self) -> PathBuf {
        self.own().join(DEVICES)
    }

    /// Where a volume is staged for all of its Pods.
    pub fn staged(&self, record: &Record) -> Place {
        if record.is_block() {
            let folder = self.devices().join(&record.name).join("data");
            return Place { folder, target: self.devices().join("staging").join(&record.name) };
        }
        let folder = self.own().join(&record.driver).join(hex(&record.handle));
        Place { target: folder.join("globalmount"), folder }
    }

    /// Where a volume is published for one Pod.
    pub fn published(&self, pod: &PodFolder, record: &Record) -> Place {
        let folder = pod.volume("csi", &record.name);
        let uid = pod.path().file_name().unwrap_or_default();
        let target = match record.is_block() {
            true => self.devices().join("publish").join(&record.name).join(uid),
            false => folder.join("mount"),
        };
        Place { folder, target }
    }

    /// Whether a path is where a volume is published for a Pod.
    pub fn has(&self, path: &Path, pod: &PodFolder) -> bool {
        path.starts_with(pod.volume("csi", "")) || path.starts_with(self.devices().join("publish"))
    }

    /// All that is staged, or was to be.
    pub fn all_staged(&self) -> Vec<Record> {
        let devices = self.devices();
        let volumes = below(&self.own()).filter(|driver| *driver != devices).flat_map(|driver| below(&driver));
        let devices = below(&devices).map(|volume| volume.join("data"));
        volumes.chain(devices).filter_map(|folder| Record::read(&folder)).collect()
    }

    /// The volumes that a Pod wants, by its folder: a record that cannot be read is `None`.
    pub fn of_pod(&self, pod: &PodFolder) -> Vec<(PathBuf, Option<Record>)> {
        let folder = pod.volume("csi", "");
        below(&folder).map(|folder| (folder.clone(), Record::read(&folder))).collect()
    }

    /// All records, with their folders.
    pub fn all(&self) -> Vec<(PathBuf, Record)> {
        let staged = self.all_staged().into_iter().map(|record| (self.staged(&record).folder, record));
        let uids = below(&self.root.join("pods")).filter_map(|p| p.file_name()?.to_str().map(str::to_owned));
        let pods = uids.map(|uid| PodFolder::new(&self.root, &uid));
        let published = pods.flat_map(|pod| self.of_pod(&pod)).filter_map(|(folder, record)| Some((folder, record?)));
        staged.chain(published).collect()
    }

    /// The volumes that all Pods want.
    pub fn of_pods(&self) -> Vec<Record> {
        let uids = below(&self.root.join("pods")).filter_map(|p| p.file_name()?.to_str().map(str::to_owned));
        let pods = uids.map(|uid| PodFolder::new(&self.root, &uid));
        pods.flat_map(|pod| self.of_pod(&pod)).filter_map(|(_, record)| record).collect()
    }
}

pub fn hex(text: &str) -> String {
    base16ct::lower::encode_string(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(handle: &str, mode: &str) -> Record {
        Record {
            name: "pv".into(),
            handle: handle.into(),
            driver: "d".into(),
            volume_mode: mode.into(),
            ..Record::default()
        }
    }

    #[test]
    fn volumes_are_where_upstream_has_them_and_are_found_again() {
        let root = tempfile::tempdir().unwrap();
        let (places, pod) = (Places::new(root.path()), PodFolder::new(root.path(), "u"));
        let below = |path: PathBuf| path.strip_prefix(root.path()).unwrap().display().to_string();
        let (files, block) = (record("h", ""), record("b", "Block"));
        let staged = places.staged(&files);
        let hash = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        assert_eq!(below(staged.target.clone()), format!("plugins/kubernetes.io/csi/d/{hash}/globalmount"));
        let own = "plugins/kubernetes.io/csi/volumeDevices";
        assert_eq!(below(places.staged(&block).target), format!("{own}/staging/pv"));
        assert_eq!(below(places.published(&pod, &block).target), format!("{own}/publish/pv/u"));
        assert_eq!(below(places.published(&pod, &files).target), "pods/u/volumes/kubernetes.io~csi/pv/mount");
        files.write(&staged.folder).unwrap();
        block.write(&places.staged(&block).folder).unwrap();
        modes::folder(&places.devices().join("staging/pv"), modes::NODE_FOLDER).unwrap();
        assert_eq!(places.all_staged(), [files.clone(), block]);
        let published = places.published(&pod, &files);
        files.write(&published.folder).unwrap();
        assert_eq!(places.of_pods(), std::slice::from_ref(&files));
        // A record that is broken, or endless, is none.
        fs::write(published.folder.join(FILE), "{\"driverName\": 1}").unwrap();
        assert_eq!(places.of_pod(&pod), [(published.folder.clone(), None)]);
        fs::File::create(published.folder.join(FILE)).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(places.of_pod(&pod), [(published.folder.clone(), None)]);
        Record::remove(&published.folder).unwrap();
        Record::remove(&published.folder).unwrap();
        assert_eq!(places.of_pod(&pod), []);
    }

    #[test]
    fn what_an_older_kubelet_wrote_may_have_gone_any_way() {
        let text = r#"{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pv","volumeHandle":"h",
            "volumeLifecycleMode":"Persistent"}"#;
        let read: Record = serde_json::from_str(text).unwrap();
        assert_eq!((read.handle.as_str(), read.progress, read.is_inline()), ("h", Progress::Begun, false));
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        let sound = |driver: &str, name: &str| {
            Record { driver: driver.into(), name: name.into(), ..Record::default() }.is_sound()
        };
        assert!(sound("d.example.com", "pvc-1"));
        for wrong in ["", ".", "..", "../x", "a/b", "a\0b"] {
            assert!(!sound("d", wrong) && !sound(wrong, "v"), "{wrong:?}");
        }
        assert!(!sound("volumeDevices", "v"));
    }

    #[test]
    fn nothing_of_a_volume_is_removed_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        let (folder, file) = (root.path().join("folder"), root.path().join("file"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("data"), "x").unwrap();
        fs::write(&file, "x").unwrap();
        assert!(remove_target(&folder).is_err() && remove_target(&file).is_err());
        fs::remove_file(folder.join("data")).unwrap();
        fs::write(&file, "").unwrap();
        for target in [&folder, &file, &root.path().join("none")] {
            remove_target(target).unwrap();
            assert!(!target.exists());
        }
    }
}
