//! `local` PersistentVolumes: a folder of the node, as it is or bound with options, or a disk of the node, formatted if it is empty and
//! mounted. Upstream counterpart: pkg/volume/local.

use std::{
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use client::{EventKind, events::reference};
use k8s_openapi::api::core::v1::{LocalVolumeSource, PersistentVolume};

use crate::volumes::{
    directory,
    error::{VolumeError, file_error},
    folder::blocking,
    group,
    plugin::{Mounted, Request},
    remote::{self, disk},
    state,
};

pub(super) const NAME: &str = "local-volume";

fn step(step: &'static str, persistent: &PersistentVolume, why: String) -> VolumeError {
    VolumeError::Step { step, volume: persistent.metadata.name.clone().unwrap_or_default(), why }
}

/// The sorts of things at a volume's path that can be used.
#[derive(Debug, PartialEq)]
enum Place {
    Folder,
    Disk,
}

fn place(path: &Path, persistent: &PersistentVolume) -> Result<Place, VolumeError> {
    let refused = |why: String| Err(step("MountVolume.NewMounter initialization", persistent, why));
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(Place::Folder),
        Ok(meta) if meta.file_type().is_block_device() => Ok(Place::Disk),
        Ok(_) => refused("only directory and block device are supported".to_owned()),
        Err(_) => refused(format!("path {path:?} does not exist")),
    }
}

/// Whether a volume of a Pod that was mounted for it alone still is; `None` for one that was not.
pub(super) fn stays(request: &Request<'_>) -> Option<bool> {
    let held = request.held.as_ref()?;
    (held.path == request.folder.volume(NAME, &request.volume.name)).then(|| super::is_still_mounted(request))
}

/// Brings a local volume to a Pod.
pub(super) async fn mount(
    request: &Request<'_>,
    persistent: PersistentVolume,
    source: LocalVolumeSource,
) -> Result<Mounted, VolumeError> {
    let options = remote::mount_options(&persistent);
    let local = request.means.local.clone();
    let name = persistent.metadata.name.clone().unwrap_or_default();
    let looked_at = blocking(move || {
        local.make(&persistent)?;
        if !options.is_empty() && local.is_own(&persistent) {
            return Err(remote::without_options(&persistent));
        }
        let place = place(Path::new(&source.path), &persistent)?;
        Ok((persistent, source, options, place))
    });
    let (persistent, source, options, place) = looked_at.await?;
    let from = PathBuf::from(&source.path);
    let path = match place {
        Place::Folder if options.is_empty() => from,
        Place::Folder => bound(request, &persistent, &from, &options).await?,
        Place::Disk => of_disk(request, &persistent, &source, &options).await?,
    };
    let (group, by_root) = (request.fs_group().filter(|_| !is_read_only(&options)), group::is_by_root(request.pod));
    let mounted = Mounted { path: path.clone(), relabel: true, ..Mounted::default() };
    if let Some(group) = group {
        let (pods, at) = (request.folder.path().parent().unwrap_or(Path::new("/")).to_owned(), path.clone());
        let given = blocking(move || give(&pods, &at, group, by_root)).await;
        if let Some(held) = given.map_err(file_error(&path))? {
            let text = format!(
                "The requested fsGroup is {group}, but the volume {name} has GID {held}. The volume may not be shareable."
            );
            (request.means.tell)(&reference(request.pod), EventKind::Warning, "AlreadyMountedVolume", &text);
        }
    }
    Ok(mounted)
}

/// Gives a folder to a group, unless a Pod of the node has it already: that one counts on the group that it has. Returns this group
/// where it is another.
fn give(pods: &Path, folder: &Path, group: u32, by_root: bool) -> io::Result<Option<u32>> {
    let others = state::of_all_pods(pods.parent().unwrap_or(pods));
    if others.iter().any(|other| other.mounted.as_ref().is_some_and(|mounted| mounted.path == folder)) {
        return Ok(Some(std::fs::metadata(folder)?.gid()).filter(|held| *held != group));
    }
    group::give(folder, group, by_root).map(|()| None)
}

fn is_read_only(options: &[String]) -> bool {
    options.iter().any(|option| option == "ro")
}

/// A new place of the Pod's own to mount at. Whatever a kubelet that was killed has mounted there half goes first.
async fn new_place(request: &Request<'_>) -> Result<PathBuf, VolumeError> {
    let (path, mounter) = (request.folder.volume(NAME, &request.volume.name), request.means.mounter.clone());
    let made = path.clone();
    blocking(move || {
        directory::make(&made)?;
        mounter.unmount(&made).map_err(file_error(&made))
    })
    .await?;
    Ok(path)
}

/// Binds a folder with options. The kernel takes them only for what is bound already.
async fn bound(
    request: &Request<'_>,
    persistent: &PersistentVolume,
    from: &Path,
    options: &[String],
) -> Result<PathBuf, VolumeError> {
    let (path, mounter) = (new_place(request).await?, &request.means.mounter);
    if let Err(why) = remote::bind(&request.means.remote.programs, from, &path, options).await {
        // Without its options nobody has asked for it.
        directory::remove(path, mounter.clone()).await?;
        return Err(step("MountVolume.SetUp", persistent, why));
    }
    Ok(path)
}

async fn of_disk(
    request: &Request<'_>,
    persistent: &PersistentVolume,
    source: &LocalVolumeSource,
    options: &[String],
) -> Result<PathBuf, VolumeError> {
    let path = new_place(request).await?;
    let wish = disk::Wish {
        file_system: source.fs_type.as_deref().unwrap_or_default(),
        options,
        read_only: is_read_only(options),
        ..disk::Wish::default()
    };
    if let Err(failure) = disk::share(&request.means.remote, Path::new(&source.path), &path, wish).await {
        failure.tell(&reference(persistent), &request.means.tell);
        directory::remove(path, request.means.mounter.clone()).await?;
        return Err(step("MountVolume.MountDevice", persistent, failure.to_string()));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use json::{Value, json};

    use super::*;
    use crate::{
        pod::fixture,
        volumes::{folder::PodFolder, mounter::Mounter, remote::world::World, state::State},
    };

    fn claim() -> Value {
        json!({"persistentVolumeClaim": {"claimName": "c"}})
    }

    fn world(path: &Path, options: &[&str]) -> World {
        let world = World::new(json!({"local": {"path": path}, "mountOptions": options}));
        world.fakes.add("mount", "case \"$*\" in *wrong*) echo no; exit 32 ;; esac");
        world
    }

    #[tokio::test]
    async fn a_folder_is_used_where_it_is_or_bound_with_its_options() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, at) = (world(folder.path(), &[]), folder.path().display());
        assert_eq!(plain.mount(claim()).await.unwrap().path, folder.path());
        assert_eq!(plain.fakes.calls(), [""; 0]);
        let world = world(folder.path(), &["noatime", "ro"]);
        let mounted = world.mount(claim()).await.unwrap();
        assert_eq!(mounted, Mounted { path: world.path(NAME), relabel: true, ..Mounted::default() });
        let target = mounted.path.display();
        let expected =
            [format!("mount -o bind {at} {target}"), format!("mount -o bind,remount,noatime,ro {at} {target}")];
        assert_eq!(world.fakes.calls(), expected);
        world.mounts.bind(folder.path(), &mounted.path).unwrap();
        world.mount(claim()).await.unwrap();
        assert_eq!(world.fakes.calls().len(), 2, "what is mounted stays");
        // After a start of the machine only the record is left.
        world.mounts.unmount(&mounted.path).unwrap();
        world.mount(claim()).await.unwrap();
        assert_eq!(world.fakes.calls().len(), 4);
        world.mounts.bind(folder.path(), &mounted.path).unwrap();
        fs::write(folder.path().join("kept"), "").unwrap();
        world.unmount().await;
        assert!(world.mounts.points().is_empty() && folder.path().join("kept").exists());
    }

    #[tokio::test]
    async fn options_that_the_kernel_does_not_take_leave_nothing_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path(), &["wrong"]);
        let why = world.mount(claim()).await.unwrap_err();
        assert!(why.starts_with("MountVolume.SetUp failed for volume \"pv\" : mount failed: exit status 32"), "{why}");
        assert!(!world.path(NAME).exists());
    }

    #[test]
    fn a_folder_that_another_pod_has_keeps_its_group() {
        let (root, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (pods, at) = (root.path().join("pods"), volume.path());
        fs::set_permissions(at, fs::Permissions::from_mode(0o700)).unwrap();
        let mode = || fs::metadata(at).unwrap().mode() & 0o7777;
        let own = fs::metadata(at).unwrap().gid();
        let other = PodFolder::new(root.path(), "other");
        files::modes::folder(other.path(), files::modes::NODE_FOLDER).unwrap();
        let mounted = Some(Mounted { path: at.to_owned(), ..Mounted::default() });
        State::read(&other)
            .set("v", state::Record { plugin: "persistent-claim".into(), mounted, persistent: None })
            .unwrap();
        assert_eq!(give(&pods, at, own, false).unwrap(), None);
        assert_eq!(give(&pods, at, own + 1, false).unwrap(), Some(own));
        assert_eq!(mode(), 0o700, "nothing was given");
        fs::remove_dir_all(other.path()).unwrap();
        assert_eq!(give(&pods, at, own, false).unwrap(), None);
        assert_eq!(mode(), 0o2770);
    }

    #[tokio::test]
    async fn what_is_neither_a_folder_nor_a_disk_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let missing = world(&file, &[]).mount(claim()).await.unwrap_err();
        let words = "MountVolume.NewMounter initialization failed for volume \"pv\" : ";
        assert_eq!(missing, format!("{words}path {file:?} does not exist"));
        fs::write(&file, "").unwrap();
        let why = world(&file, &[]).mount(claim()).await.unwrap_err();
        assert_eq!(why, format!("{words}only directory and block device are supported"));
    }

    #[tokio::test]
    async fn a_disk_is_formatted_by_the_first_and_mounted_for_each() {
        let world = world(Path::new("/none"), &[]);
        world.fakes.add("blkid", "[ -e made ] && echo TYPE=xfs || exit 2").add("mkfs.xfs", ": >made");
        world.fakes.add("fsck", "");
        let disk = |world: &World| world.fakes.folder.path().join("disk").display().to_string();
        let source = LocalVolumeSource { path: disk(&world), fs_type: Some("xfs".to_owned()) };
        let persistent: PersistentVolume = json::from_value(json!({"metadata": {"name": "pv"}})).unwrap();
        let pod = fixture::pod_of(json!({"spec": {"containers": []}})).pod;
        let volume =
            |name: &str| -> k8s_openapi::api::core::v1::Volume { json::from_value(json!({"name": name})).unwrap() };
        let (one, two, options) = (volume("v"), volume("w"), vec!["noatime".to_owned()]);
        files::modes::folder(world.folder.path(), files::modes::NODE_FOLDER).unwrap();
        let request = |volume| Request::new(&pod, volume, &world.folder, &world.means);
        let (first, second) = (request(&one), request(&two));
        let (first, second) = tokio::join!(
            of_disk(&first, &persistent, &source, &options),
            of_disk(&second, &persistent, &source, &options)
        );
        let (first, second) = (first.unwrap(), second.unwrap());
        let calls: Vec<String> = world.fakes.calls().into_iter().filter(|call| !call.starts_with("blkid")).collect();
        let disk = disk(&world);
        let mounted = |path: PathBuf| format!("mount -t xfs -o noatime {disk} {}", path.display());
        // Either is the first.
        let made = calls.get(1).cloned();
        let (first, second) = (mounted(first), mounted(second));
        let (first, second) = if made.as_ref() == Some(&first) { (first, second) } else { (second, first) };
        assert_eq!(calls, [format!("mkfs.xfs {disk}"), first, format!("fsck -a {disk}"), second]);
    }
}
