//! Which volumes of a Pod are mounted, and by which plugin, kept in the Pod's folder: a kubelet that starts again knows what
//! to unmount and where containers find their volumes.
//!
//! A volume is written down before its plugin begins to mount it, and the record goes with the Pod's folder, after all of its
//! volumes were unmounted: there is never more mounted than the record says.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use files::modes;
use serde::{Deserialize, Serialize};

use crate::volumes::{
    error::{VolumeError, file_error},
    folder::PodFolder,
    plugin::{Mounted, Persistent},
};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub plugin: String,
    /// `None` as long as mounting is not over.
    pub mounted: Option<Mounted>,
    /// The PersistentVolume behind a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<Persistent>,
}

#[derive(Clone)]
pub struct State {
    at: PathBuf,
    records: BTreeMap<String, Record>,
}

impl State {
    /// The records in a Pod's folder. A record that cannot be read counts as none: what lies below the folder is
    /// unmounted all the same.
    pub fn read(folder: &PodFolder) -> State {
        let at = folder.path().join("volumes.json");
        let read = fs::read(&at).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from));
        let records = read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %at.display(), %error, "the record of a Pod's volumes cannot be read");
            }
            BTreeMap::new()
        });
        State { at, records }
    }

    /// By the volumes' names.
    pub fn records(&self) -> &BTreeMap<String, Record> {
        &self.records
    }

    pub fn set(&mut self, volume: &str, record: Record) -> Result<(), VolumeError> {
        self.records.insert(volume.to_owned(), record);
        self.write()
    }

    /// The file is replaced as a whole: a reader never finds a part of it.
    fn write(&self) -> Result<(), VolumeError> {
        let text = serde_json::to_vec(&self.records).map_err(io::Error::from);
        text.and_then(|text| modes::replace(&self.at, modes::PRIVATE_FILE, text)).map_err(file_error(&self.at))
    }
}

/// The records of all volumes of all Pods whose folders are there.
pub fn of_all_pods(kubelet_root: &Path) -> Vec<Record> {
    let pods = fs::read_dir(kubelet_root.join("pods")).into_iter().flatten().flatten();
    let uids = pods.filter_map(|entry| entry.file_name().into_string().ok());
    uids.flat_map(|uid| State::read(&PodFolder::new(kubelet_root, &uid)).records.into_values()).collect()
}

/// The folders of the Pods that have volumes which one Pod alone may have, by the volumes' names.
pub fn held_alone(kubelet_root: &Path) -> BTreeMap<String, PathBuf> {
    let pods = fs::read_dir(kubelet_root.join("pods")).into_iter().flatten().flatten();
    let uids = pods.filter_map(|entry| entry.file_name().into_string().ok());
    let folders = uids.map(|uid| PodFolder::new(kubelet_root, &uid));
    let of_pod = |folder: PodFolder| {
        let records = State::read(&folder).records.into_values();
        let names = records.filter_map(|record| record.mounted?.exclusive);
        names.map(|name| (name, folder.path().to_owned())).collect::<Vec<_>>()
    };
    folders.flat_map(of_pod).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_is_read_by_the_next_kubelet_and_a_broken_record_counts_as_none() {
        let root = tempfile::tempdir().unwrap();
        let folder = PodFolder::new(root.path(), "u");
        assert!(State::read(&folder).records().is_empty());
        fs::create_dir_all(folder.path()).unwrap();
        let mounted = Some(Mounted { path: "/v".into(), read_only: true, relabel: true, ..Mounted::default() });
        let record = Record { plugin: "secret".into(), ..Record::default() };
        let records = [record.clone(), Record { mounted, ..record }];
        for record in &records {
            State::read(&folder).set("v", record.clone()).unwrap();
            assert_eq!(State::read(&folder).records().get("v"), Some(record));
        }
        fs::write(folder.path().join("volumes.json"), "{\"v\": {\"plug").unwrap();
        assert!(State::read(&folder).records().is_empty());
    }

    #[test]
    fn the_next_kubelet_knows_which_pod_has_a_volume_alone() {
        let root = tempfile::tempdir().unwrap();
        for (uid, exclusive) in [("a", Some("v".to_owned())), ("b", None)] {
            let folder = PodFolder::new(root.path(), uid);
            fs::create_dir_all(folder.path()).unwrap();
            let mounted = Some(Mounted { exclusive, ..Mounted::default() });
            State::read(&folder)
                .set("x", Record { plugin: "persistent-claim".into(), mounted, ..Record::default() })
                .unwrap();
        }
        assert_eq!(held_alone(root.path()), [("v".to_owned(), root.path().join("pods/a"))].into());
    }
}
