//! Where volumes are whose files must never reach a disk: Secrets, tokens, what is projected, what a Pod says of itself.
//!
//! Every mount of a node is a line of the table that runc and others read again and again for each container that they start: with
//! hundreds of Pods that is most of what a start costs. So these volumes share one file system in memory, each as a folder that its
//! containers see by itself and read-only; a link stands where upstream mounts one. It is as large as the machine's memory: as with
//! one for each, memory ends before it does. A Pod that could put much there has file systems of its own, half as large.

use std::path::{Path, PathBuf};

use files::{Dir, folder_of, modes};
use k8s_openapi::api::core::v1::{Pod, Volume, VolumeProjection};
use parking_lot::Mutex;

use crate::volumes::{
    directory,
    error::{VolumeError, file_error},
    folder::{PodFolder, blocking},
    mounter::Mounter,
    plugin::{Request, Unmount},
};

/// The most objects, or fields, that the volumes of a Pod show which shares the file system. None is larger than what an API server
/// takes at once, 3 MiB; a ConfigMap or a Secret has 1 MiB.
const MOST_PIECES: usize = 16;

/// Two Pods at once would mount two of them, one over the other. Nobody waits here for more than a mount.
static MOUNTING: Mutex<()> = Mutex::new(());

/// The place of one volume.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// A file system of its own, where upstream has it.
    Own(PathBuf),
    /// A folder of the one that is shared, and the link to it.
    Shared { root: PathBuf, folder: PathBuf, link: PathBuf },
}

impl Place {
    /// A volume stays where it was made, also by an older kubelet: containers see that very place.
    pub fn of(request: &Request<'_>, plugin: &str) -> Place {
        let upstreams = request.folder.volume(plugin, &request.volume.name);
        let was_alone = request.held.as_ref().is_some_and(|held| held.path == upstreams);
        if was_alone || !is_small(request.pod) {
            return Place::Own(upstreams);
        }
        let folder = request.folder.in_memory().join(&request.volume.name);
        Place::Shared { root: request.folder.all_in_memory().to_owned(), folder, link: upstreams }
    }

    /// Makes it, where it is not there yet, and says where files go.
    pub fn make(self, mounter: &dyn Mounter) -> Result<PathBuf, VolumeError> {
        match self {
            Place::Own(path) => {
                directory::make(&path)?;
                mounter.in_memory(&path, None).map_err(file_error(&path))?;
                Ok(path)
            }
            Place::Shared { root, folder, link } => {
                {
                    let _one_at_a_time = MOUNTING.lock();
                    modes::folder(&root, modes::NODE_FOLDER).map_err(file_error(&root))?;
                    mounter.in_all_memory(&root).map_err(file_error(&root))?;
                }
                directory::make(&folder)?;
                lead(&link, &folder, &root, mounter)?;
                Ok(folder)
            }
        }
    }
}

/// Has the link lead to the folder. A kubelet that ended while it mounted may have left something in its place.
fn lead(link: &Path, folder: &Path, root: &Path, mounter: &dyn Mounter) -> Result<(), VolumeError> {
    // From `pods/UID/volumes/PLUGIN` to what stands beside `pods`: it leads there for those as well who see the kubelet's folder
    // elsewhere.
    let inside = root.parent().and_then(|above| folder.strip_prefix(above).ok()).unwrap_or(folder);
    let target = Path::new("../../../..").join(inside);
    let (parent, name) = (folder_of(link), link.file_name().unwrap_or_default());
    modes::folder(parent, modes::NODE_FOLDER).map_err(file_error(parent))?;
    let made = Dir::open(parent).and_then(|parent| {
        if parent.link_target(name).is_ok_and(|leads| Path::new(&leads) == target) {
            return Ok(());
        }
        if parent.meta_of(name).is_ok() {
            mounter.unmount(link)?;
            parent.remove(name)?;
        }
        parent.link(&target, name)
    });
    made.map_err(file_error(link))
}

/// Undoes what [`Place::make`] did for one volume. At a link nothing is mounted: the table of mounts, which is long, is not read. The
/// folder that it leads to goes with those of the Pod's other volumes.
pub async fn unmount(what: &Unmount<'_>, plugin: &str) -> Result<(), VolumeError> {
    let path = what.folder.volume(plugin, what.volume);
    let is_shared = what.mounted.is_some_and(|mounted| mounted.path.starts_with(what.folder.in_memory()));
    if !is_shared {
        return directory::remove(path, what.mounter.clone()).await;
    }
    blocking(move || files::remove(&path).map_err(file_error(&path))).await
}

/// Removes what a Pod has in the file system that is shared.
pub fn remove(folder: &PodFolder) -> Result<(), VolumeError> {
    files::remove(folder.in_memory()).map_err(file_error(folder.in_memory()))
}

/// Whether all that a Pod's volumes can come to have in memory has a small bound, whatever becomes of the objects that they show.
fn is_small(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.map(pieces).try_fold(0, |sum, pieces| Some(sum + pieces?)).is_some_and(|sum| sum <= MOST_PIECES)
}

/// The objects and fields that a volume shows; `None` where nothing but the number of them bounds these.
fn pieces(volume: &Volume) -> Option<usize> {
    if let Some(secret) = &volume.secret {
        return Some(parts(secret.items.as_deref()));
    }
    if let Some(downward) = &volume.downward_api {
        return Some(parts(downward.items.as_deref()));
    }
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    sources.map(projected).try_fold(0, |sum, pieces| Some(sum + pieces?))
}

fn projected(source: &VolumeProjection) -> Option<usize> {
    if let Some(map) = &source.config_map {
        return Some(parts(map.items.as_deref()));
    }
    if let Some(secret) = &source.secret {
        return Some(parts(secret.items.as_deref()));
    }
    if let Some(downward) = &source.downward_api {
        return Some(parts(downward.items.as_deref()));
    }
    // The bundles of a signer are as large as administrators made them.
    let of_signer = source.cluster_trust_bundle.as_ref().is_some_and(|bundle| bundle.name.is_none());
    (!of_signer).then_some(1)
}

/// An object as a whole is one; of those that are named each can be the largest.
fn parts<T>(items: Option<&[T]>) -> usize {
    items.map_or(1, |items| items.len().max(1))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::Arc};

    use json::json;

    use super::*;
    use crate::volumes::mounter::{Kernel, Recorded};

    fn pod(volumes: &json::Value) -> Pod {
        json::from_value(json!({"spec": {"containers": [], "volumes": volumes}})).unwrap()
    }

    #[test]
    fn a_pod_that_could_have_much_in_memory_has_it_for_itself() {
        let check = |volumes: json::Value, expected: bool| assert_eq!(is_small(&pod(&volumes)), expected, "{volumes}");
        let token = json!({"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": "ca", "items": [{"key": "a", "path": "a"}]}},
            {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}});
        let secret = json!({"name": "s", "secret": {"secretName": "s"}});
        let items = |many: usize| {
            let one = |n: usize| json!({"key": "k", "path": n.to_string()});
            let all: Vec<_> = (0..many).map(one).collect();
            json!({"name": "i", "secret": {"secretName": "s", "items": all}})
        };
        check(json!([token, secret]), true);
        check(json!([token, items(13)]), true);
        check(json!([token, items(14)]), false);
        check(json!([items(10), secret, items(6)]), false);
        check(
            json!([{"name": "e", "emptyDir": {"medium": "Memory"}}, {"name": "c", "configMap": {"name": "c"}}]),
            true,
        );
        let bundle = |which: &str| json!([{"name": "b", "projected": {"sources": [{"clusterTrustBundle": {which: "x", "path": "p"}}]}}]);
        check(bundle("name"), true);
        check(bundle("signerName"), false);
    }

    fn shared(kubelet: &Path, uid: &str) -> (PodFolder, Place) {
        let pod = PodFolder::new(kubelet, uid);
        let (folder, link) = (pod.in_memory().join("v"), pod.volume("secret", "v"));
        let place = Place::Shared { root: pod.all_in_memory().to_owned(), folder, link };
        (pod, place)
    }

    #[test]
    fn the_link_leads_there_whatever_stood_in_its_place() {
        let kubelet = tempfile::tempdir().unwrap();
        let mounter = Recorded::default();
        for before in ["", "folder", "link", "same"] {
            let (pod, place) = shared(kubelet.path(), "u");
            let link = pod.volume("secret", "v");
            match before {
                "folder" => {
                    fs::remove_file(&link).unwrap();
                    fs::create_dir_all(link.join("x")).unwrap();
                    mounter.in_memory(&link, None).unwrap();
                }
                "link" => {
                    fs::remove_file(&link).unwrap();
                    std::os::unix::fs::symlink("elsewhere", &link).unwrap();
                }
                _ => {}
            }
            let folder = place.make(&mounter).unwrap();
            fs::write(folder.join("f"), before).unwrap();
            assert_eq!(fs::read_to_string(link.join("f")).unwrap(), before);
            assert_eq!(mounter.points(), [kubelet.path().join("volumes-in-memory")], "after {before}");
            remove(&pod).unwrap();
            assert!(!folder.exists() && !pod.in_memory().exists() && pod.all_in_memory().exists());
        }
    }

    #[test]
    fn pods_that_start_at_once_mount_one() {
        let kubelet = tempfile::tempdir().unwrap();
        let mounter: Arc<dyn Mounter> = Arc::new(Kernel);
        let root = PodFolder::new(kubelet.path(), "u").all_in_memory().to_owned();
        let make = |uid: usize| {
            let ((pod, place), mounter) = (shared(kubelet.path(), &uid.to_string()), mounter.clone());
            move || {
                let made = place.make(&*mounter).map(|folder| fs::write(folder.join("f"), "1").unwrap());
                made.map(|()| pod)
            }
        };
        let all: Vec<_> = (0..8).map(|uid| std::thread::spawn(make(uid))).collect();
        let made: Vec<_> = all.into_iter().map(|thread| thread.join().unwrap()).collect();
        if made.iter().any(Result::is_err) {
            eprintln!("SKIPPED: nothing can be mounted here (no root?)");
            return;
        }
        let points = files::mounts::at_and_below(kubelet.path());
        let seen = made.iter().flatten().all(|pod| pod.in_memory().join("v/f").exists());
        mounter.unmount(&root).unwrap();
        assert_eq!(points, [root.canonicalize().unwrap()]);
        assert!(seen, "none was mounted over");
    }
}
