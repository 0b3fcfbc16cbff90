//! A Pod's volumes on the node: made before its containers start, refreshed while it runs, removed after it ended.
//!
//! Each sort of volume is a [`plugin`]. [`mount`] is idempotent: called again it renews the content that has changed
//! (ConfigMaps, Secrets, tokens, labels) and touches nothing else. The record of what is mounted is kept on disk, in
//! [`state`]. How containers see volumes is not here but with their specs.

pub mod atomic;
pub mod content;
pub mod directory;
pub mod error;
pub mod folder;
pub mod group;
pub mod in_memory;
pub mod mounter;
pub mod plugin;
pub mod plugins;
pub mod remote;
pub mod sources;
pub mod state;
pub mod sub_path;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::rules::volume::driver_plugin;
use client::{EventKind, events::reference};
use clock::Instant;
use k8s_openapi::api::core::v1::{Pod, Volume, VolumeDevice, VolumeMount};

use self::{
    error::{MountError, VolumeError},
    folder::{PodFolder, blocking},
    mounter::Mounter,
    plugin::{Followed, Means, Mounted, Persistent, Plugin, Request, Unmount},
    plugins::{PLUGINS, persistent_claim::PersistentClaim},
    remote::{Remote, hold},
    state::{Record, State},
};
use crate::{counted::Figures, csi::Csi};

/// The mounted volumes of a Pod, by name.
pub type MountedVolumes = BTreeMap<String, Mounted>;

/// The volumes that containers of the Pod have, those among them that were added to look into it. Nothing is mounted that none has.
fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let used = used(pod);
    let all = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    all.filter(move |volume| used.contains(volume.name.as_str()))
}

/// The names of volumes that containers mount, have among their devices, or have variables from.
fn used(pod: &Pod) -> BTreeSet<&str> {
    let Some(spec) = pod.spec.as_ref() else { return BTreeSet::new() };
    let plain = spec.init_containers.iter().flatten().chain(&spec.containers);
    let variables = plain.clone().flat_map(|c| c.env.iter().flatten());
    let variables = variables.filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref());
    let plain = plain.map(|c| (&c.volume_mounts, &c.volume_devices));
    let added = spec.ephemeral_containers.iter().flatten().map(|c| (&c.volume_mounts, &c.volume_devices));
    let names = plain.chain(added).flat_map(|(mounts, devices)| names(mounts, devices));
    names.chain(variables.map(|file| file.volume_name.as_str())).collect()
}

fn names<'a>(
    mounts: &'a Option<Vec<VolumeMount>>,
    devices: &'a Option<Vec<VolumeDevice>>,
) -> impl Iterator<Item = &'a str> {
    let mounts = mounts.iter().flatten().map(|mount| mount.name.as_str());
    mounts.chain(devices.iter().flatten().map(|device| device.name.as_str()))
}

fn plugin_of(volume: &Volume) -> Option<&'static dyn Plugin> {
    PLUGINS.iter().copied().find(|plugin| plugin.takes(volume))
}

/// The objects whose changes a Pod's volumes show.
pub fn followed(pod: &Pod) -> Vec<Followed> {
    volumes(pod).filter_map(|volume| Some(plugin_of(volume)?.follows(volume))).flatten().collect()
}

/// Mounts (or refreshes) all volumes of a Pod. One that fails does not keep the others from it.
pub async fn mount(pod: &Pod, folder: &PodFolder, means: &Means) -> Result<MountedVolumes, Vec<MountError>> {
    let (mut mounted, mut failed) = (MountedVolumes::new(), Vec::new());
    let mut state = read(folder).await;
    for volume in volumes(pod) {
        // A volume that is mounted already stays so while it is refreshed.
        let record = state.records().get(&volume.name);
        let known = record.and_then(|record| record.persistent.clone());
        let held = record.and_then(|record| record.mounted.clone());
        let request = Request { held, ..Request::new(pod, volume, folder, means) };
        match held_open(&request, one(&request, known, &mut state).await).await {
            Ok(one) => _ = mounted.insert(volume.name.clone(), one),
            Err(source) => {
                let name = request.persistent.get().map_or(&volume.name, |persistent| &persistent.name);
                failed.push(MountError { volume: name.clone(), source });
            }
        }
    }
    if failed.is_empty() { Ok(mounted) } else { Err(failed) }
}

async fn one(request: &Request<'_>, known: Option<Persistent>, state: &mut State) -> Result<Mounted, VolumeError> {
    let name = &request.volume.name;
    let Some(plugin) = plugin_of(request.volume) else {
        return Err(VolumeError::Unsupported(format!(
            "{name} is none of emptyDir, configMap, secret, downwardAPI, projected, hostPath, image, nfs, iscsi, persistentVolumeClaim, ephemeral, csi"
        )));
    };
    let held = request.held.clone();
    if let Some(held) = held.as_ref().filter(|_| plugin.stays(request)) {
        known.into_iter().for_each(|known| _ = request.persistent.set(known));
        return Ok(held.clone());
    }
    let record = Record { plugin: plugin.name().to_owned(), mounted: held, persistent: known };
    note(state, name, record.clone()).await?;
    let begun = Instant::now();
    let mounted = plugin.mount(request).await;
    let persistent = request.persistent.get().cloned().or(record.persistent.clone());
    if let Some(counted_as) = counted_as(request, plugin, persistent.as_ref()) {
        let is_device = mounted.as_ref().map_or_else(VolumeError::is_of_device, |mounted| mounted.is_device);
        let operation = if is_device { "map_volume" } else { "volume_mount" };
        request.means.figures.storage(&counted_as, operation, mounted.is_ok(), begun.elapsed());
    }
    let mounted = mounted?;
    note(state, name, Record { mounted: Some(mounted.clone()), persistent, ..record }).await?;
    Ok(mounted)
}

/// The name of a volume's plugin in metrics. Nobody knows it of a claim without a volume. Authors of Pods name drivers: only one that is
/// here has a name of its own.
fn counted_as(request: &Request<'_>, plugin: &dyn Plugin, persistent: Option<&Persistent>) -> Option<String> {
    let driver = request.volume.csi.as_ref().map(|source| source.driver.as_str());
    if let Some(driver) = driver.filter(|driver| request.means.csi.knows(driver)) {
        return Some(driver_plugin(driver));
    }
    name_of(plugin.name(), persistent)
}

fn name_of(plugin: &str, persistent: Option<&Persistent>) -> Option<String> {
    match persistent {
        Some(persistent) => Some(persistent.plugin.clone()),
        None => (plugin != PersistentClaim.name()).then(|| format!("kubernetes.io/{plugin}")),
    }
}

/// A Pod's volumes by the names of their plugins in metrics, and whether each is mounted.
pub async fn counts(pod: &Pod, folder: &PodFolder) -> Vec<(String, bool)> {
    let state = read(folder).await;
    let one = |volume: &Volume| {
        let record = state.records().get(&volume.name);
        let persistent = record.and_then(|record| record.persistent.as_ref());
        let name = match &volume.csi {
            Some(source) => driver_plugin(&source.driver),
            None => name_of(plugin_of(volume)?.name(), persistent)?,
        };
        Some((name, record.is_some_and(|record| record.mounted.is_some())))
    };
    volumes(pod).filter_map(one).collect()
}

/// A device that a Pod has is kept open meanwhile, also after a start of the machine.
async fn held_open(request: &Request<'_>, mounted: Result<Mounted, VolumeError>) -> Result<Mounted, VolumeError> {
    let mounted = mounted?;
    if mounted.is_device {
        let (remote, mounter) = (&request.means.remote, &request.means.mounter);
        if remote.hold(request.folder, &request.volume.name, &mounted.path, mounter).await? {
            tell_mapped(request, &mounted);
        }
    }
    Ok(mounted)
}

/// The events of a device that a Pod has got: where the node has it, and where it is for this Pod.
fn tell_mapped(request: &Request<'_>, mounted: &Mounted) {
    let name = request.persistent.get().map_or(&request.volume.name, |persistent| &persistent.name);
    let of_pod = hold::places(request.folder);
    for (which, path) in [("globalMapPath", mounted.path.as_path()), ("volumeMapPath", of_pod.as_path())] {
        let text = format!("MapVolume.MapPodDevice succeeded for volume \"{name}\" {which} \"{}\"", path.display());
        (request.means.tell)(&reference(request.pod), EventKind::Normal, "SuccessfulMountVolume", &text);
    }
}

async fn read(folder: &PodFolder) -> State {
    let folder = folder.clone();
    blocking(move || State::read(&folder)).await
}

/// Writes down what is known of a volume, if that is new.
async fn note(state: &mut State, volume: &str, record: Record) -> Result<(), VolumeError> {
    if state.records().get(volume) == Some(&record) {
        return Ok(());
    }
    let (mut next, volume) = (state.clone(), volume.to_owned());
    *state = blocking(move || next.set(&volume, record).map(|()| next)).await?;
    Ok(())
}

/// The volumes of a Pod as an earlier kubelet mounted them, if it mounted all of them.
pub async fn mounted(pod: &Pod, folder: &PodFolder) -> Option<MountedVolumes> {
    let state = read(folder).await;
    let of = |volume: &Volume| Some((volume.name.clone(), state.records().get(&volume.name)?.mounted.clone()?));
    volumes(pod).map(of).collect()
}

fn is_of_driver(plugin: &str) -> bool {
    plugin.starts_with("kubernetes.io/csi")
}

/// Unmounts the volumes of a Pod and removes its folder. Succeeds when it is gone already.
pub async fn unmount(
    folder: &PodFolder,
    mounter: &Arc<dyn Mounter>,
    (csi, remote): (&Csi, &Remote),
    figures: &Figures,
) -> Result<(), VolumeError> {
    directory::remove(folder.sub_paths(), mounter.clone()).await?;
    // Nobody can take back a disk that is open.
    remote.release(folder, mounter).await?;
    // Drivers have records of their own, which name more than those that are mounted.
    csi.unpublish_all(folder).await?;
    let state = read(folder).await;
    for (volume, record) in state.records() {
        // A plugin that this kubelet does not have was a newer one's. All that lies below the folder goes all the same.
        if let Some(plugin) = PLUGINS.iter().find(|plugin| plugin.name() == record.plugin) {
            let mounted = record.mounted.as_ref();
            let begun = Instant::now();
            let unmounted = plugin.unmount(&Unmount { folder, volume, mounted, mounter, remote }).await;
            // Volumes of drivers were given back above, and counted there.
            let counted = name_of(plugin.name(), record.persistent.as_ref()).filter(|name| !is_of_driver(name));
            if let Some(name) = counted {
                let is_device = mounted.is_some_and(|mounted| mounted.is_device);
                let operation = if is_device { "unmap_volume" } else { "volume_unmount" };
                figures.storage(&name, operation, unmounted.is_ok(), begun.elapsed());
            }
            unmounted?;
        }
    }
    let of_pod = folder.clone();
    blocking(move || in_memory::remove(&of_pod)).await?;
    directory::remove(folder.path().to_owned(), mounter.clone()).await
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn volumes_that_no_container_has_are_not_mounted() {
        let mount = |name: &str| json!([{"name": name, "mountPath": "/v"}]);
        let all: Vec<_> = "abcdefg".chars().map(|name| json!({"name": name.to_string(), "emptyDir": {}})).collect();
        let pod = json!({"spec": {"volumes": all,
            "containers": [{"name": "c", "volumeMounts": mount("c")},
                {"name": "d", "volumeDevices": [{"name": "d", "devicePath": "/dev/d"}]}],
            "initContainers": [{"name": "i", "volumeMounts": mount("a")}],
            "ephemeralContainers": [{"name": "e", "volumeMounts": mount("f")}]}});
        let pod: Pod = json::from_value(pod).unwrap();
        assert_eq!(volumes(&pod).map(|volume| volume.name.as_str()).collect::<String>(), "acdf");
    }
}
