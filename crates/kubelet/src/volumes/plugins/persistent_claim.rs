//! persistentVolumeClaim and ephemeral: the PersistentVolume that a claim is bound to, if it is a path or a device of this node,
//! or a driver's. Its content outlives the Pod.

use std::{
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use api::rules::{pod::volume_claims, volume::Offer};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Container, NFSVolumeSource, PersistentVolume, Pod, Volume};

use super::{csi, host_path, iscsi, nfs};
use crate::{
    csi::volume as driver,
    volumes::{
        directory,
        error::{VolumeError, file_error},
        folder::blocking,
        group,
        plugin::{Mounted, Plugin, Request, Unmount},
        remote,
    },
};

pub struct PersistentClaim;

impl Plugin for PersistentClaim {
    fn name(&self) -> &'static str {
        "persistent-claim"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    }

    fn stays(&self, request: &Request<'_>) -> bool {
        let held_at = request.held.as_ref().map(|held| &held.path);
        if held_at == Some(&request.folder.volume(nfs::NAME, &request.volume.name)) {
            return super::is_still_mounted(request);
        }
        iscsi::stays(request).unwrap_or_else(|| csi::stays(request))
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let (pod, means) = (request.pod, request.means);
            let used = volume_claims(pod).find(|used| used.volume == request.volume.name);
            let used = used.ok_or_else(|| VolumeError::Unsupported("no claim".to_owned()))?;
            let persistent = means.sources.claimed(pod, &used).await?;
            if !Offer::of(&persistent).reaches(&means.facts.node_name, &means.node_labels) {
                return Err(VolumeError::Elsewhere);
            }
            let is_device = persistent.spec.as_ref().is_some_and(|s| s.volume_mode.as_deref() == Some("Block"));
            wrong_use(pod, &request.volume.name, is_device)
                .map_or(Ok(()), |why| Err(VolumeError::Claim { claim: used.name, why }))?;
            let read_only = used.read_only;
            if let Some(volume) = driver::Volume::persistent(&persistent, read_only) {
                return csi::mount(request, volume).await;
            }
            if let Some(mounted) = from_server(request, &persistent, read_only, is_device).await {
                return mounted;
            }
            let (group, by_root) = (request.fs_group(), group::is_by_root(pod));
            let local = means.local.clone();
            let mounted = blocking(move || {
                if is_device {
                    return device(&persistent);
                }
                local.make(&persistent)?;
                mount(&persistent, group, by_root)
            });
            mounted.await.map(|mounted| Mounted { read_only, ..mounted })
        })
    }

    /// A path is the node's: nothing was mounted for the Pod alone. The work of drivers is undone from their records.
    fn unmount<'a>(&'a self, what: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(async {
            directory::remove(what.folder.volume(nfs::NAME, what.volume), what.mounter.clone()).await?;
            iscsi::unmount(what).await
        })
    }
}

/// Mounts a volume that is on a server, if it is.
async fn from_server(
    request: &Request<'_>,
    persistent: &PersistentVolume,
    read_only: bool,
    is_device: bool,
) -> Option<Result<Mounted, VolumeError>> {
    let spec = persistent.spec.as_ref()?;
    let (name, options) = (persistent.metadata.name.as_deref().unwrap_or(""), remote::mount_options(persistent));
    if let Some(source) = spec.nfs.as_ref().filter(|_| !is_device) {
        let read_only = read_only || source.read_only == Some(true);
        let source = NFSVolumeSource { read_only: Some(read_only), ..source.clone() };
        return Some(nfs::mount(request, name, &source, &options).await);
    }
    let source = spec.iscsi.clone()?;
    let mut wish = iscsi::Wish::persistent(name, source, read_only);
    (wish.options, wish.is_device) = (options, is_device);
    Some(iscsi::mount(request, wish).await)
}

/// Options of a volume that is not mounted, but is a path of the node, would be options of nothing.
fn without_options(persistent: &PersistentVolume) -> Result<(), VolumeError> {
    if remote::mount_options(persistent).is_empty() {
        return Ok(());
    }
    let why = "Mount options are not supported for this volume type".to_owned();
    let volume = persistent.metadata.name.clone().unwrap_or_default();
    Err(VolumeError::Step { step: "MountVolume.MountOptionSupport check", volume, why })
}

/// Why a volume cannot be used as a container wants it.
fn wrong_use(pod: &Pod, volume: &str, is_device: bool) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mounts = |c: &Container| c.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
    let devices = |c: &Container| c.volume_devices.iter().flatten().any(|device| device.name == volume);
    match is_device {
        true if containers.any(mounts) => {
            Some(format!("volume {volume} has volumeMode Block, but is specified in volumeMounts"))
        }
        false if containers.any(devices) => {
            Some(format!("volume {volume} has volumeMode Filesystem, but is specified in volumeDevices"))
        }
        _ => None,
    }
}

/// A block device of the node.
fn device(persistent: &PersistentVolume) -> Result<Mounted, VolumeError> {
    let spec = persistent.spec.clone().unwrap_or_default();
    let name = persistent.metadata.name.clone().unwrap_or_default();
    let Some(source) = spec.local else {
        let why = format!("PersistentVolume {name} with volumeMode Block is neither csi, iscsi nor local");
        return Err(VolumeError::Unsupported(why));
    };
    let path = PathBuf::from(&source.path);
    match std::fs::metadata(&path) {
        Ok(meta) if meta.file_type().is_block_device() => Ok(Mounted { path, read_only: false, is_device: true }),
        Ok(_) => {
            let why = format!("{} is not a block device", source.path);
            Err(VolumeError::Step { step: "MapVolume.SetUpDevice", volume: name, why })
        }
        Err(_) => Err(VolumeError::Missing(source.path)),
    }
}

fn mount(persistent: &PersistentVolume, group: Option<u32>, by_root: bool) -> Result<Mounted, VolumeError> {
    without_options(persistent)?;
    let spec = persistent.spec.clone().unwrap_or_default();
    if let Some(source) = spec.host_path {
        return host_path::mount(&source);
    }
    let Some(source) = spec.local else {
        let name = persistent.metadata.name.as_deref().unwrap_or("");
        return Err(VolumeError::Unsupported(format!(
            "PersistentVolume {name} is neither csi, nfs, iscsi, hostPath nor local"
        )));
    };
    let path = Path::new(&source.path);
    if !path.exists() {
        return Err(VolumeError::Missing(source.path));
    }
    if let Some(group) = group {
        group::give(path, group, by_root).map_err(file_error(path))?;
    }
    Ok(Mounted { path: path.to_owned(), read_only: false, is_device: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn volume(spec: json::Value) -> PersistentVolume {
        json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_volume_is_a_path_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let (there, not) = (dir.path().to_str().unwrap().to_owned(), dir.path().join("not").display().to_string());
        let mounted = |spec| mount(&volume(spec), None, false).map(|m| m.path.display().to_string());
        assert_eq!(mounted(json!({"local": {"path": there}})).unwrap(), there);
        let missing = mounted(json!({"local": {"path": not}})).unwrap_err().to_string();
        assert_eq!(missing, format!("path {not:?} does not exist"));
        assert_eq!(mounted(json!({"hostPath": {"path": there, "type": "Directory"}})).unwrap(), there);
        assert!(mounted(json!({"hostPath": {"path": not, "type": "Directory"}})).is_err());
        assert_eq!(mounted(json!({"hostPath": {"path": not, "type": "DirectoryOrCreate"}})).unwrap(), not);
        assert!(mounted(json!({"rbd": {"image": "i", "monitors": []}})).is_err());
        let why = mounted(json!({"hostPath": {"path": there}, "mountOptions": ["ro"]})).unwrap_err().to_string();
        assert_eq!(why, "Mount options are not supported for this volume type");
    }

    #[test]
    fn a_block_volume_is_a_block_device_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().to_str().unwrap().to_owned();
        let refused = |spec| device(&volume(spec)).unwrap_err();
        let VolumeError::Step { why, .. } = refused(json!({"local": {"path": there}})) else { panic!("{there}") };
        assert_eq!(why, format!("{there} is not a block device"));
        let missing = format!("{there}/none");
        let words = refused(json!({"local": {"path": missing}})).to_string();
        assert_eq!(words, format!("path {missing:?} does not exist"));
        assert!(refused(json!({"hostPath": {"path": there}})).to_string().contains("neither csi, iscsi nor local"));
    }

    #[test]
    fn a_volume_is_used_as_what_it_is() {
        let check = |container: json::Value, is_device: bool, expected: Option<&str>| {
            let pod: Pod =
                json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [container]}})).unwrap();
            assert_eq!(wrong_use(&pod, "v", is_device).as_deref(), expected);
        };
        let device = || json!({"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]});
        let mount = || json!({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/x"}]});
        check(device(), true, None);
        check(mount(), false, None);
        check(mount(), true, Some("volume v has volumeMode Block, but is specified in volumeMounts"));
        check(device(), false, Some("volume v has volumeMode Filesystem, but is specified in volumeDevices"));
        check(json!({"name": "c"}), true, None);
    }
}
