//! The parts of the node's disks that Pods take: the layers and the logs of their containers, and their volumes that are none of their own disk.
//! Upstream counterpart: calcEphemeralStorage of pkg/kubelet/stats, and host_stats_provider.go.

use std::{collections::BTreeMap, path::Path};

use clock::Timestamp;
use files::{Dir, beneath::path_of};
use k8s_openapi::api::core::v1::Volume;

use crate::{
    engine::log_folders,
    kubelet::Kubelet,
    node::machine::{self, Disk},
    usage::{NodeUsage, PodUsage},
    volume_room::{Amounts, Room, VolumeUsage, of_folder},
    volumes::folder::blocking,
};

/// Bytes and inodes that something takes, and the file system that they are on, where these are known.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    pub time: Timestamp,
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
    pub disk: Option<Disk>,
}

#[derive(Debug, Default)]
pub struct PodDisks {
    /// The own layer and the logs of each container, by its name.
    pub containers: BTreeMap<String, (Option<Taken>, Taken)>,
    /// All of that, and the volumes on the node's disk.
    pub all: Option<Taken>,
}

#[derive(Debug, Default)]
pub struct Disks {
    /// The disk of the kubelet's folder.
    pub node: Option<Disk>,
    pub images: Option<Taken>,
    /// By uid.
    pub pods: BTreeMap<String, PodDisks>,
}

/// Measures all of it. Volumes were measured before.
pub async fn measure(kubelet: &Kubelet, usage: &NodeUsage, volumes: &BTreeMap<String, Vec<VolumeUsage>>) -> Disks {
    let images = kubelet.config.runtime.image_filesystems().await.unwrap_or_default();
    let node = machine::disk(&kubelet.config.root_dir);
    let images = images.into_iter().next().map(|images| Taken {
        time: Timestamp::from_nanosecond(images.timestamp.into()).unwrap_or_default(),
        bytes: images.used_bytes.map(|bytes| bytes.value),
        inodes: images.inodes_used.map(|inodes| inodes.value),
        disk: images.fs_id.and_then(|id| machine::disk(Path::new(&id.mountpoint))),
    });
    let mut pods = BTreeMap::new();
    for pod in &usage.pods {
        let of_pod = of_pod(kubelet, pod, node, volumes.get(&pod.uid).map(Vec::as_slice).unwrap_or_default()).await;
        pods.insert(pod.uid.clone(), of_pod);
    }
    Disks { node, images, pods }
}

async fn of_pod(kubelet: &Kubelet, pod: &PodUsage, disk: Option<Disk>, volumes: &[VolumeUsage]) -> PodDisks {
    let logs = kubelet.logs.of_pod(&log_folders::name_of(&pod.namespace, &pod.name, &pod.uid));
    let hosts = kubelet.config.pod_dir(&pod.uid).join("etc-hosts");
    let names: Vec<String> = pod.containers.iter().map(|container| container.name.clone()).collect();
    let (mut folders, beside) = blocking(move || {
        let of_logs = |name: &String| taken(&logs, name, disk);
        let in_folders =
            logs.iter().map(|folder| files_in(&path_of(folder))).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let beside = [in_folders, std::fs::metadata(hosts).map_or((0, 0), |meta| (meta.len(), 1))];
        (names.iter().map(of_logs).collect::<Vec<_>>(), beside)
    })
    .await;
    let mut containers = BTreeMap::new();
    for (container, logs) in pod.containers.iter().zip(folders.drain(..)) {
        let layer = container.layer.as_ref().map(|layer| Taken {
            time: container.sample.time,
            bytes: Some(layer.bytes),
            inodes: Some(layer.inodes),
            disk: Some(&*layer.mounted_at)
                .filter(|path| !path.is_empty())
                .and_then(|path| machine::disk(Path::new(path))),
        });
        containers.insert(container.name.clone(), (layer, logs));
    }
    let desired = kubelet.pods.get(&pod.uid).map(|handle| handle.desired());
    let all = desired.iter().flat_map(|desired| desired.spec().volumes.iter().flatten());
    let local: Vec<&str> = all.clone().filter(|volume| is_local(volume)).map(|volume| &*volume.name).collect();
    let volumes = volumes.iter().filter(|usage| local.contains(&&*usage.name));
    let volumes = volumes.map(|usage| (usage.room.bytes.map(|a| a.used), usage.room.inodes.map(|a| a.used)));
    let of_containers = containers.values().flat_map(|(layer, logs)| [layer.as_ref(), Some(logs)]);
    let of_containers = of_containers.flatten().map(|taken| (taken.bytes, taken.inodes));
    let beside = beside.into_iter().map(|(bytes, inodes)| (Some(bytes), Some(inodes)));
    let add = |sum: Option<u64>, part: Option<u64>| sum.map_or(part, |sum| Some(sum + part.unwrap_or(0)));
    let sum =
        |sum: (Option<u64>, Option<u64>), part: (Option<u64>, Option<u64>)| (add(sum.0, part.0), add(sum.1, part.1));
    let (bytes, inodes) = of_containers.chain(volumes).chain(beside).fold((None, None), sum);
    let all = Some(Taken { time: clock::now(), bytes, inodes, disk });
    PodDisks { containers, all }
}

/// A volume that is a part of the node's disk and goes with its Pod.
fn is_local(volume: &Volume) -> bool {
    let on_disk = |medium: Option<&str>| medium.unwrap_or_default().is_empty();
    volume.config_map.is_some()
        || volume.git_repo.is_some()
        || volume.empty_dir.as_ref().is_some_and(|dir| on_disk(dir.medium.as_deref()))
}

/// A container's folder in each of its Pod's, with all that is below it. One that is not there takes nothing.
fn taken(pod: &[Dir], container: &str, disk: Option<Disk>) -> Taken {
    let folders = pod.iter().filter_map(|folder| folder.folder(Path::new(container)).ok());
    let rooms: Vec<_> = folders.filter_map(|folder| of_folder(&path_of(&folder)).ok().flatten()).collect();
    let used = |of: fn(&Room) -> Option<Amounts>| Some(rooms.iter().filter_map(of).map(|amounts| amounts.used).sum());
    Taken { time: clock::now(), bytes: used(|room| room.bytes), inodes: used(|room| room.inodes), disk }
}

/// The bytes of the files in a folder, without the folders below it, and how many they are.
fn files_in(folder: &Path) -> (u64, u64) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| entry.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len()));
    sizes.fold((0, 0), |(bytes, files), size| (bytes + size, files + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn volumes_of_the_nodes_disk() {
        let check = |volume: json::Value, expected| {
            assert_eq!(is_local(&json::from_value(volume.clone()).unwrap()), expected, "{volume}");
        };
        check(json!({"name": "v", "emptyDir": {}}), true);
        check(json!({"name": "v", "emptyDir": {"medium": "Memory"}}), false);
        check(json!({"name": "v", "configMap": {"name": "c"}}), true);
        check(json!({"name": "v", "secret": {"secretName": "s"}}), false);
        check(json!({"name": "v", "hostPath": {"path": "/"}}), false);
        check(json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}), false);
    }

    #[test]
    fn folders_that_are_not_there_take_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "12345").unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/g"), "1").unwrap();
        assert_eq!(files_in(folder.path()), (5, 1));
        let pod = [Dir::open(folder.path()).unwrap()];
        let none = taken(&pod, "none", None);
        assert_eq!((none.bytes, none.inodes), (Some(0), Some(0)));
        assert!(taken(&pod, "inner", None).inodes >= Some(2));
        std::os::unix::fs::symlink("/etc", folder.path().join("planted")).unwrap();
        assert_eq!(taken(&pod, "planted", None).inodes, Some(0), "a link is no folder of logs");
    }
}
