//! persistentVolumeClaim and ephemeral: the PersistentVolume that a claim is bound to, if it is a path or a device of this node,
//! or a driver's. Its content outlives the Pod.

use std::{
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use api::rules::{
    pod::volume_claims,
    volume::{Offer, plugin_of},
};
use client::events::reference;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Container, NFSVolumeSource, PersistentVolume, Pod, Volume};

use super::{csi, host_path, iscsi, local, nfs};
use crate::{
    csi::volume as driver,
    volumes::{
        directory,
        error::{DEVICE_AFFINITY_STEP, VolumeError},
        folder::blocking,
        plugin::{Mounted, Persistent, Plugin, Request, Unmount},
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
        iscsi::stays(request).or_else(|| local::stays(request)).unwrap_or_else(|| csi::stays(request))
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let (pod, means) = (request.pod, request.means);
            let used = volume_claims(pod).find(|used| used.volume == request.volume.name);
            let used = used.ok_or_else(|| VolumeError::Unsupported("no claim".to_owned()))?;
            let persistent = means.sources.claimed(pod, &used).await?;
            let name = persistent.metadata.name.clone().unwrap_or_default();
            let is_device = persistent.spec.as_ref().is_some_and(|s| s.volume_mode.as_deref() == Some("Block"));
            let known = request.persistent.get_or_init(|| Persistent { name, plugin: plugin_of(&persistent) });
            if !Offer::of(&persistent).reaches(&means.facts.node_name, &means.node_labels) {
                let step = if is_device { DEVICE_AFFINITY_STEP } else { "MountVolume.NodeAffinity check" };
                let why = "no matching NodeSelectorTerms".to_owned();
                return Err(VolumeError::Step { step, volume: known.name.clone(), why });
            }
            wrong_use(pod, &request.volume.name, is_device)
                .map_or(Ok(()), |why| Err(VolumeError::Claim { claim: used.name, why }))?;
            let read_only = used.read_only;
            let (group, exclusive) = (group(&persistent), exclusive(&persistent));
            if let Some(name) = &exclusive {
                take(request, name, is_device).await?;
            }
            let mounted = of_persistent(request, persistent, read_only, is_device).await;
            if let (Some(name), Err(_), None) = (&exclusive, &mounted, &request.held) {
                means.exclusive.give_up(name, request.folder);
            }
            mounted.map(|mounted| Mounted { group, exclusive, ..mounted })
        })
    }

    /// A path is the node's, and nothing was mounted for the Pod alone unless it has options. The work of drivers is undone from their records.
    fn unmount<'a>(&'a self, what: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(async {
            for sort in [nfs::NAME, local::NAME] {
                directory::remove(what.folder.volume(sort, what.volume), what.mounter.clone()).await?;
            }
            iscsi::unmount(what).await
        })
    }
}

async fn of_persistent(
    request: &Request<'_>,
    persistent: PersistentVolume,
    read_only: bool,
    is_device: bool,
) -> Result<Mounted, VolumeError> {
    if let Some(volume) = driver::Volume::persistent(&persistent, read_only) {
        return csi::mount(request, volume).await;
    }
    if let Some(mounted) = from_server(request, &persistent, read_only, is_device).await {
        return mounted;
    }
    let local = persistent.spec.as_ref().and_then(|spec| spec.local.clone()).filter(|_| !is_device);
    let mounted = match local {
        Some(source) => local::mount(request, persistent, source).await,
        None => blocking(move || if is_device { device(&persistent) } else { mount(&persistent) }).await,
    };
    mounted.map(|mounted| Mounted { read_only, relabel: mounted.relabel && !read_only, ..mounted })
}

/// The name of a volume that one Pod alone may have. Of one with several access modes nobody knows which the Pod means.
fn exclusive(persistent: &PersistentVolume) -> Option<String> {
    let modes = persistent.spec.as_ref()?.access_modes.as_deref()?;
    (modes == ["ReadWriteOncePod"]).then(|| persistent.metadata.name.clone())?
}

async fn take(request: &Request<'_>, name: &str, is_device: bool) -> Result<(), VolumeError> {
    let (exclusive, volume, pod) = (request.means.exclusive.clone(), name.to_owned(), request.folder.clone());
    if blocking(move || exclusive.take(&volume, &pod)).await {
        return Ok(());
    }
    let step = if is_device { "MapVolume.SetUp" } else { "MountVolume.SetUp" };
    let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod".to_owned();
    Err(VolumeError::Step { step, volume: name.to_owned(), why })
}

/// The group that a volume says may use it. What is no group is passed over, as upstream.
fn group(persistent: &PersistentVolume) -> Option<i64> {
    let text = persistent.metadata.annotations.as_ref()?.get("pv.beta.kubernetes.io/gid")?;
    text.parse().ok().filter(|group| (0..=i64::from(i32::MAX)).contains(group))
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
    (wish.options, wish.is_device, wish.persistent) = (options, is_device, Some(reference(persistent)));
    wish.access_modes = spec.access_modes.clone().unwrap_or_default();
    Some(iscsi::mount(request, wish).await)
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
        Ok(meta) if meta.file_type().is_block_device() => Ok(Mounted { path, is_device: true, ..Mounted::default() }),
        Ok(_) => {
            let why = format!("{} is not a block device", source.path);
            Err(VolumeError::Step { step: "MapVolume.SetUpDevice", volume: name, why })
        }
        Err(_) => {
            let missing = Path::new(&source.path).ancestors().take_while(|part| !part.exists()).last();
            let why = format!("lstat {}: no such file or directory", missing.unwrap_or(&path).display());
            Err(VolumeError::Step { step: "MapVolume.EvalHostSymlinks", volume: name, why })
        }
    }
}

/// A path of the node, as it is.
fn mount(persistent: &PersistentVolume) -> Result<Mounted, VolumeError> {
    if !remote::mount_options(persistent).is_empty() {
        return Err(remote::without_options(persistent));
    }
    match persistent.spec.as_ref().and_then(|spec| spec.host_path.as_ref()) {
        Some(source) => host_path::mount(source),
        None => {
            let name = persistent.metadata.name.as_deref().unwrap_or("");
            let why = format!("PersistentVolume {name} is neither csi, nfs, iscsi, hostPath nor local");
            Err(VolumeError::Unsupported(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::remote::world::World;
    use json::json;

    fn volume(spec: json::Value) -> PersistentVolume {
        json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_volume_is_a_path_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let (there, not) = (dir.path().to_str().unwrap().to_owned(), dir.path().join("not").display().to_string());
        let mounted = |spec| mount(&volume(spec)).map(|m| m.path.display().to_string());
        assert_eq!(mounted(json!({"hostPath": {"path": there, "type": "Directory"}})).unwrap(), there);
        assert!(mounted(json!({"hostPath": {"path": not, "type": "Directory"}})).is_err());
        assert_eq!(mounted(json!({"hostPath": {"path": not, "type": "DirectoryOrCreate"}})).unwrap(), not);
        assert!(mounted(json!({"rbd": {"image": "i", "monitors": []}})).is_err());
        let why = mounted(json!({"hostPath": {"path": there}, "mountOptions": ["ro"]})).unwrap_err().to_string();
        assert_eq!(why, "Mount options are not supported for this volume type");
    }

    #[tokio::test]
    async fn a_refusal_names_the_persistent_volume() {
        let check = async |spec: json::Value, expected: &str| {
            let why = World::new(spec).mount(json!({"persistentVolumeClaim": {"claimName": "c"}})).await.unwrap_err();
            assert_eq!(why, expected);
        };
        let other = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": ["another"]}]);
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": other}]}});
        let of = |mode: &str| json!({"local": {"path": "/"}, "volumeMode": mode, "nodeAffinity": affinity.clone()});
        let words = "NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms";
        check(of("Filesystem"), &format!("MountVolume.{words}")).await;
        check(of("Block"), &format!("MapVolume.{words}")).await;
        let words = "MountVolume.SetUp failed for volume \"pv\" : hostPath type check failed: /none is not a directory";
        check(json!({"hostPath": {"path": "/none", "type": "Directory"}}), words).await;
    }

    #[tokio::test]
    async fn a_volume_of_one_pod_alone_is_no_other_pods() {
        let world = World::new(json!({"hostPath": {"path": "/"}, "accessModes": ["ReadWriteOncePod"]}));
        let (claim, other) = (json!({"persistentVolumeClaim": {"claimName": "c"}}), world.other());
        world.mount(claim.clone()).await.unwrap();
        world.mount(claim.clone()).await.unwrap();
        let why = world.mount_for(&other, claim.clone()).await.unwrap_err();
        let expected = "MountVolume.SetUp failed for volume \"pv\" : volume uses the ReadWriteOncePod access mode and is \
                        already in use by another pod";
        assert_eq!(why, expected);
        world.unmount().await;
        world.mount_for(&other, claim.clone()).await.unwrap();
        assert!(world.mount(claim).await.is_err());
    }

    #[tokio::test]
    async fn a_pod_that_did_not_get_its_volume_keeps_it_from_nobody() {
        let source = json!({"path": "/none", "type": "Directory"});
        let world = World::new(json!({"hostPath": source, "accessModes": ["ReadWriteOncePod"]}));
        let claim = json!({"persistentVolumeClaim": {"claimName": "c"}});
        for folder in [&world.folder, &world.other()] {
            let why = world.mount_for(folder, claim.clone()).await.unwrap_err();
            assert!(why.contains("hostPath type check failed"), "{why}");
        }
    }

    #[tokio::test]
    async fn a_volume_of_several_modes_is_not_one_pods_alone() {
        let modes = ["ReadWriteOncePod", "ReadWriteOnce"];
        let world = World::new(json!({"hostPath": {"path": "/"}, "accessModes": modes}));
        let claim = json!({"persistentVolumeClaim": {"claimName": "c"}});
        world.mount(claim.clone()).await.unwrap();
        world.mount_for(&world.other(), claim).await.unwrap();
    }

    #[test]
    fn a_volume_may_have_a_group() {
        for (text, expected) in [("7000", Some(7000)), ("0", Some(0)), ("-1", None), ("2147483648", None), ("x", None)]
        {
            let mut volume = volume(json!({}));
            volume.metadata.annotations = Some([("pv.beta.kubernetes.io/gid".to_owned(), text.to_owned())].into());
            assert_eq!(group(&volume), expected, "{text}");
        }
        assert_eq!(group(&volume(json!({}))), None);
    }

    #[test]
    fn a_block_volume_is_a_block_device_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().to_str().unwrap().to_owned();
        let refused = |spec| device(&volume(spec)).unwrap_err();
        let VolumeError::Step { why, .. } = refused(json!({"local": {"path": there}})) else { panic!("{there}") };
        assert_eq!(why, format!("{there} is not a block device"));
        let VolumeError::Step { step, why, .. } = refused(json!({"local": {"path": format!("{there}/none/below")}}))
        else {
            panic!("{there}")
        };
        assert_eq!(
            (step, why),
            ("MapVolume.EvalHostSymlinks", format!("lstat {there}/none: no such file or directory"))
        );
        assert!(refused(json!({"hostPath": {"path": there}})).to_string().contains("neither csi, iscsi nor local"));
    }

    #[tokio::test]
    async fn a_device_is_told_of_when_its_pod_gets_it() {
        if !nix::unistd::Uid::effective().is_root() {
            return eprintln!("SKIPPED: not root");
        }
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("device");
        let mode = nix::sys::stat::Mode::S_IRUSR;
        nix::sys::stat::mknod(&device, nix::sys::stat::SFlag::S_IFBLK, mode, nix::sys::stat::makedev(7, 254)).unwrap();
        let world = World::new(json!({"local": {"path": device}, "volumeMode": "Block"}));
        let held = world.fakes.folder.path().join("block/loop3/loop");
        let losetup = "PATH=/usr/bin:/bin\nmkdir -p HELD && echo \"$2\" >HELD/backing_file";
        world.fakes.add("losetup", &losetup.replace("HELD", &held.display().to_string()));
        let claim = || json!({"persistentVolumeClaim": {"claimName": "c"}});
        let mounted = world.mount(claim()).await.unwrap();
        assert!(mounted.is_device);
        let places = [("globalMapPath", device), ("volumeMapPath", world.folder.path().join("devices"))];
        let event = "Pod p SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume \"pv\"";
        let told = places.map(|(which, path)| format!("{event} {which} \"{}\"", path.display()));
        assert_eq!(world.told(), told);
        world.mount(claim()).await.unwrap();
        assert_eq!(world.told().len(), 2, "what it has is no news");
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
