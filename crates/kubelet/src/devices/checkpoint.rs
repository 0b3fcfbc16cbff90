//! The owners of devices, in a file: a kubelet that starts again gives none of them to another Pod. The layout is that of
//! upstream's `kubelet_internal_checkpoint`, which tools read, without its checksum: the file is replaced as a whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use files::modes;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::devices::{
    messages::ContainerAllocateResponse,
    state::{Allocation, Allocations},
};

const NAME: &str = "kubelet_internal_checkpoint";
/// The key for devices whose NUMA node is not known.
const NO_NODE: &str = "-1";

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    data: Data,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Data {
    pod_device_entries: Vec<Entry>,
    registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<String, BTreeSet<String>>,
    alloc_resp: String,
}

/// The knowledge that outlives a kubelet: which devices each container has, and for which resources there were plugins.
#[derive(Debug, Default, PartialEq)]
pub struct Kept {
    pub allocations: Allocations,
    pub resources: BTreeSet<String>,
}

pub struct Checkpoint(PathBuf);

impl Checkpoint {
    pub fn new(folder: &Path) -> Checkpoint {
        Checkpoint(folder.join(NAME))
    }

    /// The content of the file. A file that cannot be read counts as none, as upstream: no Pod is held up by it. It stays
    /// beside the next one, for people to look at.
    pub fn read(&self) -> Kept {
        let read = fs::read(&self.0).and_then(|bytes| Ok(serde_json::from_slice::<Document>(&bytes)?));
        let read = read.and_then(|document| parse(document.data));
        read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                let beside = self.0.with_extension("unreadable");
                // The next one takes its place all the same.
                let _ = fs::rename(&self.0, &beside);
                tracing::error!(
                    path = %beside.display(),
                    %error,
                    "Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date"
                );
            }
            Kept::default()
        })
    }

    /// Replaces what is kept. It is on the disk afterwards. One writer at a time.
    pub fn write(&self, kept: &Kept) -> io::Result<()> {
        let text = serde_json::to_vec(&Document { data: render(kept) })?;
        modes::replace(&self.0, modes::PRIVATE_FILE, text)?;
        File::open(&self.0)?.sync_all()
    }

    /// The words of a failed write, as upstream has them.
    pub fn failure(error: &io::Error) -> String {
        format!("failed to write checkpoint file {NAME:?}: {error}")
    }
}

fn parse(data: Data) -> io::Result<Kept> {
    let mut kept = Kept { resources: data.registered_devices.into_keys().collect(), ..Default::default() };
    for entry in data.pod_device_entries {
        let answer = STANDARD.decode(&entry.alloc_resp).map_err(io::Error::other)?;
        let answer = ContainerAllocateResponse::decode(answer.as_slice()).map_err(io::Error::other)?;
        let devices = entry.device_ids.into_values().flatten().collect();
        let of_pod = kept.allocations.entry(entry.pod_uid).or_default();
        let of_container = of_pod.entry(entry.container_name).or_default();
        of_container.insert(entry.resource_name, Allocation { devices, answer: Some(answer) });
    }
    Ok(kept)
}

/// Devices whose plugin has not answered yet are nobody's after a restart: their container has never run.
fn render(kept: &Kept) -> Data {
    let mut entries = Vec::new();
    for (pod, containers) in &kept.allocations {
        for (container, resources) in containers {
            for (resource, allocation) in resources {
                let Some(answer) = &allocation.answer else { continue };
                entries.push(Entry {
                    pod_uid: pod.clone(),
                    container_name: container.clone(),
                    resource_name: resource.clone(),
                    device_ids: [(NO_NODE.to_owned(), allocation.devices.clone())].into(),
                    alloc_resp: STANDARD.encode(answer.encode_to_vec()),
                });
            }
        }
    }
    let registered_devices = kept.resources.iter().map(|name| (name.clone(), Vec::new())).collect();
    Data { pod_device_entries: entries, registered_devices }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_kept_and_a_broken_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(folder.path());
        assert_eq!(checkpoint.read(), Kept::default());
        let answer = ContainerAllocateResponse { envs: [("A".into(), "b".into())].into(), ..Default::default() };
        let allocation = |answer| Allocation { devices: ["d1".to_owned(), "d2".to_owned()].into(), answer };
        let of_pod = |answer| [("c".to_owned(), [("a.io/x".to_owned(), allocation(answer))].into())].into();
        let resources = BTreeSet::from(["a.io/x".to_owned()]);
        let allocations = [("answered".to_owned(), of_pod(Some(answer))), ("asked".to_owned(), of_pod(None))];
        let mut kept = Kept { allocations: allocations.into(), resources };
        checkpoint.write(&kept).unwrap();
        kept.allocations.remove("asked");
        assert_eq!(checkpoint.read(), kept);
        for broken in ["{\"Data\": {\"PodDev", "{\"Data\": {\"PodDeviceEntries\": [{\"PodUID\": \"u\"}]}}", "[]"] {
            fs::write(folder.path().join(NAME), broken).unwrap();
            assert_eq!(checkpoint.read(), Kept::default(), "{broken}");
            let beside = folder.path().join(format!("{NAME}.unreadable"));
            assert_eq!(fs::read_to_string(beside).unwrap(), broken);
            assert!(!folder.path().join(NAME).exists());
        }
    }
}
