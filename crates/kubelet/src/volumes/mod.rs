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
pub mod mounter;
pub mod plugin;
pub mod plugins;
pub mod remote;
pub mod sources;
pub mod state;
pub mod sub_path;

use std::{collections::BTreeMap, sync::Arc};

use clock::Instant;
use k8s_openapi::api::core::v1::{Pod, Volume};

use self::{
    error::{MountError, VolumeError},
    folder::{PodFolder, blocking},
    mounter::Mounter,
    plugin::{Followed, Means, Mounted, Plugin, Request, Unmount},
    plugins::PLUGINS,
    remote::Remote,
    state::{Record, State},
};
use crate::{counted::Figures, csi::Csi};

/// The mounted volumes of a Pod, by name.
pub type MountedVolumes = BTreeMap<String, Mounted>;

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten())
}

fn plugin_of(volume: &Volume) -> Option<&'static dyn Plugin> {
    PLUGINS.iter().copied().find(|plugin| plugin.takes(volume))
}

/// The sorts of a Pod's volumes, one for each, by their plugins' names.
pub fn sorts(pod: &Pod) -> impl Iterator<Item = &'static str> {
    volumes(pod).filter_map(plugin_of).map(Plugin::name)
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
        let held = state.records().get(&volume.name).and_then(|record| record.mounted.clone());
        let request = Request { pod, volume, folder, means, held };
        match held_open(&request, one(&request, &mut state).await).await {
            Ok(one) => _ = mounted.insert(volume.name.clone(), one),
            Err(source) => failed.push(MountError { volume: volume.name.clone(), source }),
        }
    }
    if failed.is_empty() { Ok(mounted) } else { Err(failed) }
}

async fn one(request: &Request<'_>, state: &mut State) -> Result<Mounted, VolumeError> {
    let name = &request.volume.name;
    let Some(plugin) = plugin_of(request.volume) else {
        return Err(VolumeError::Unsupported(format!(
            "{name} is none of emptyDir, configMap, secret, downwardAPI, projected, hostPath, image, nfs, iscsi, persistentVolumeClaim, ephemeral, csi"
        )));
    };
    let held = request.held.clone();
    if let Some(held) = held.as_ref().filter(|_| plugin.stays(request)) {
        return Ok(held.clone());
    }
    note(state, name, Record { plugin: plugin.name().to_owned(), mounted: held }).await?;
    let begun = Instant::now();
    let mounted = plugin.mount(request).await;
    request.means.figures.storage(plugin.name(), "volume_mount", mounted.is_ok(), begun.elapsed());
    let mounted = mounted?;
    note(state, name, Record { plugin: plugin.name().to_owned(), mounted: Some(mounted.clone()) }).await?;
    Ok(mounted)
}

/// A device that a Pod has is kept open meanwhile, also after a start of the machine.
async fn held_open(request: &Request<'_>, mounted: Result<Mounted, VolumeError>) -> Result<Mounted, VolumeError> {
    let mounted = mounted?;
    if mounted.is_device {
        let (remote, mounter) = (&request.means.remote, &request.means.mounter);
        remote.hold(request.folder, &request.volume.name, &mounted.path, mounter).await?;
    }
    Ok(mounted)
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
            figures.storage(plugin.name(), "volume_unmount", unmounted.is_ok(), begun.elapsed());
            unmounted?;
        }
    }
    directory::remove(folder.path().to_owned(), mounter.clone()).await
}
