//! The claims that drivers were asked to prepare, in a file: a kubelet that starts again goes on with them, and takes back
//! those whose Pods have gone. The names are those of upstream's `dra_manager_state`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use client::Key;
use files::modes;
use serde::{Deserialize, Serialize};

use crate::claims::{
    messages::Device,
    state::{Held, State},
};

const NAME: &str = "dra_manager_state";

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    entries: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "ClaimUID")]
    claim_uid: String,
    claim_name: String,
    namespace: String,
    #[serde(rename = "PodUIDs")]
    pod_uids: BTreeSet<String>,
    driver_state: BTreeMap<String, DriverState>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverState {
    devices: Vec<Named>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Named {
    pool_name: String,
    device_name: String,
    request_names: Vec<String>,
    #[serde(rename = "CDIDeviceIDs")]
    cdi_device_ids: Vec<String>,
}

pub struct Checkpoint(PathBuf);

impl Checkpoint {
    pub fn new(kubelet_root: &Path) -> Checkpoint {
        Checkpoint(kubelet_root.join(NAME))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The claims that were kept. Without it nobody knows what drivers have to take back, so a file that cannot be understood
    /// is an error.
    pub fn read(&self) -> io::Result<BTreeMap<Key, Held>> {
        match fs::read(&self.0) {
            Ok(bytes) => Ok(parse(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }

    /// Replaces what is kept. It is on the disk afterwards. One writer at a time.
    pub fn write(&self, text: &[u8]) -> io::Result<()> {
        modes::replace_durably(&self.0, modes::PRIVATE_FILE, text)
    }
}

/// Drivers may have gone through a restart of the node meanwhile, so nothing counts as prepared.
fn parse(document: Document) -> BTreeMap<Key, Held> {
    let device = |named: Named| Device {
        request_names: named.request_names,
        pool_name: named.pool_name,
        device_name: named.device_name,
        cdi_device_ids: named.cdi_device_ids,
    };
    let held = |entry: Entry| {
        let devices = |state: DriverState| state.devices.into_iter().map(device).collect();
        let drivers = entry.driver_state.into_iter().map(|(driver, state)| (driver, devices(state))).collect();
        let held = Held { uid: entry.claim_uid, pods: entry.pod_uids, drivers, prepared: false };
        (Key::new(entry.namespace, entry.claim_name), held)
    };
    document.entries.into_iter().map(held).collect()
}

/// The content of the file.
pub fn render(state: &State) -> Vec<u8> {
    let named = |device: &Device| Named {
        pool_name: device.pool_name.clone(),
        device_name: device.device_name.clone(),
        request_names: device.request_names.clone(),
        cdi_device_ids: device.cdi_device_ids.clone(),
    };
    let entry = |(key, held): (&Key, &Held)| {
        let devices = |devices: &Vec<Device>| DriverState { devices: devices.iter().map(named).collect() };
        Entry {
            claim_uid: held.uid.clone(),
            claim_name: key.name.clone(),
            namespace: key.namespace.clone(),
            pod_uids: held.pods.clone(),
            driver_state: held.drivers.iter().map(|(driver, all)| (driver.clone(), devices(all))).collect(),
        }
    };
    let document = Document { entries: state.claims.iter().map(entry).collect() };
    serde_json::to_vec(&document).expect("texts and lists are always JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_of_drivers_is_kept_and_a_broken_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(folder.path());
        assert_eq!(checkpoint.read().unwrap(), BTreeMap::new());
        let device = Device {
            request_names: vec!["r".into()],
            pool_name: "p".into(),
            device_name: "n".into(),
            cdi_device_ids: vec!["v/c=1".into()],
        };
        let drivers = [("x".to_owned(), vec![device]), ("y".to_owned(), Vec::new())].into();
        let held = Held { uid: "1".into(), pods: ["u".to_owned()].into(), drivers, prepared: true };
        let mut state = State { claims: [(Key::new("d", "a"), held)].into(), changes: 1 };
        checkpoint.write(&render(&state)).unwrap();
        state.doubt(&[Key::new("d", "a")]);
        assert_eq!(checkpoint.read().unwrap(), state.claims);
        for broken in ["", "{}", "{\"Entries\": [{\"ClaimUID\": \"u\"}]}", "[]"] {
            fs::write(folder.path().join(NAME), broken).unwrap();
            assert!(checkpoint.read().is_err(), "{broken}");
        }
    }
}
