//! The records of this node's iSCSI volumes, one file each in the folder of its Pod.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::Disk;

/// The facts about a volume that outlive the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub disk: Disk,
    /// The session was begun for a volume.
    pub begun: bool,
}

/// The folder of the records of a Pod's volumes.
pub fn folder(pod: &Path) -> PathBuf {
    pod.join("iscsi")
}

pub fn file(pod: &Path, volume: &str) -> PathBuf {
    folder(pod).join(format!("{volume}.json"))
}

/// Whether a volume of a Pod is one of these.
pub fn is_known(pod: &Path, volume: &str) -> bool {
    file(pod, volume).exists()
}

pub fn read(file: &Path) -> io::Result<Option<Record>> {
    match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The records of all volumes of this node but for one.
pub fn others(pods: &Path, mine: &Path) -> Vec<Record> {
    let entries = |at: &Path| fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries(pods).flat_map(|pod| entries(&folder(&pod)).collect::<Vec<_>>());
    files.filter(|file| file != mine).filter_map(|file| read(&file).ok().flatten()).collect()
}
