//! nfs: a folder of an NFS server, of the Pod's own or behind a claim. It is mounted by the program mount.nfs, which knows the
//! versions of the protocol and how servers are asked for them.

use std::path::Path;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{NFSVolumeSource, Volume};

use crate::volumes::{
    directory,
    error::VolumeError,
    folder::blocking,
    plugin::{Mounted, Plugin, Request},
    remote,
};

pub(super) const NAME: &str = "nfs";
const HELPER: &str = "mount.nfs";

pub struct Nfs;

impl Plugin for Nfs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.nfs.is_some()
    }

    fn stays(&self, request: &Request<'_>) -> bool {
        super::is_still_mounted(request)
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let source = request.volume.nfs.clone().unwrap_or_default();
            mount(request, &request.volume.name, &source, &[]).await
        })
    }
}

/// Mounts the folder of a server for one volume of a Pod. Called again, it does nothing.
pub(super) async fn mount(
    request: &Request<'_>,
    name: &str,
    source: &NFSVolumeSource,
    options: &[String],
) -> Result<Mounted, VolumeError> {
    let failed = |why: String| VolumeError::Step { step: "MountVolume.SetUp", volume: name.to_owned(), why };
    let (mounter, programs) = (&request.means.mounter, &request.means.remote.programs);
    let path = request.folder.volume(NAME, &request.volume.name);
    let read_only = source.read_only == Some(true);
    let mounted = Mounted { path: path.clone(), read_only, ..Mounted::default() };
    let from = address(source).map_err(failed)?;
    if mounter.is_mounted(&path) {
        return Ok(mounted);
    }
    if programs.find(HELPER).is_none() {
        return Err(failed(format!(
            "{HELPER} is not on this node, and NFS volumes need it: install nfs-common (Debian, Ubuntu) or nfs-utils \
             (Fedora, Red Hat, SUSE)"
        )));
    }
    let made = path.clone();
    blocking(move || directory::make(&made)).await?;
    let done = remote::mount(programs, (NAME, &from, &path), options, read_only).await;
    if let Err(why) = done {
        // The folder is found again, and goes with the volume.
        directory::remove(path, mounter.clone()).await?;
        return Err(failed(why));
    }
    Ok(mounted)
}

/// The server and its folder as the program takes them. Authors of Pods write both: neither may be taken for an option.
fn address(source: &NFSVolumeSource) -> Result<String, String> {
    let (server, path) = (source.server.as_str(), source.path.as_str());
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.:[]%".contains(c);
    if server.is_empty() || server.starts_with('-') || !server.chars().all(is_name) {
        return Err(format!("{server:?} is no name and no address of an NFS server"));
    }
    if !Path::new(path).is_absolute() || path.chars().any(char::is_control) {
        return Err(format!("{path:?} is no folder of an NFS server: it must be an absolute path"));
    }
    match server.parse::<std::net::Ipv6Addr>() {
        Ok(address) => Ok(format!("[{address}]:{path}")),
        Err(_) => Ok(format!("{server}:{path}")),
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::volumes::{mounter::Mounter, remote::world::World};

    fn world() -> World {
        World::new(json!({"nfs": {"server": "fd00::1", "path": "/a"}, "mountOptions": ["hard", "nfsvers=4.1"]}))
    }

    #[tokio::test]
    async fn a_folder_of_a_server_is_mounted_once_and_again_after_a_start_of_the_machine() {
        let world = world();
        world.fakes.add("mount.nfs", "").add("mount", "");
        let source = || json!({"nfs": {"server": "s", "path": "/a", "readOnly": true}});
        let mounted = world.mount(source()).await.unwrap();
        assert_eq!(mounted, Mounted { path: world.path(NAME), read_only: true, ..Mounted::default() });
        world.mounts.bind(&world.path(NAME), &world.path(NAME)).unwrap();
        world.mount(source()).await.unwrap();
        let call = format!("mount -t nfs -o ro s:/a {}", world.path(NAME).display());
        assert_eq!(world.fakes.calls(), [call.as_str()]);
        world.mounts.unmount(&world.path(NAME)).unwrap();
        world.mount(source()).await.unwrap();
        assert_eq!(world.fakes.calls(), [call.as_str(), &call]);
        world.mounts.bind(&world.path(NAME), &world.path(NAME)).unwrap();
        world.unmount().await;
        assert!(world.mounts.points().is_empty() && !world.folder.path().exists());
    }

    #[tokio::test]
    async fn a_volume_behind_a_claim_is_mounted_with_its_options() {
        let world = world();
        world.fakes.add("mount.nfs", "").add("mount", "");
        let claim = json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}});
        let mounted = world.mount(claim).await.unwrap();
        assert_eq!((mounted.path, mounted.read_only), (world.path(NAME), true));
        let call = format!("mount -t nfs -o hard,nfsvers=4.1,ro [fd00::1]:/a {}", world.path(NAME).display());
        assert_eq!(world.fakes.calls(), [call]);
    }

    #[tokio::test]
    async fn what_keeps_a_pod_from_its_folder_is_said() {
        let world = world();
        let source = || json!({"nfs": {"server": "s", "path": "/a"}});
        let why = world.mount(source()).await.unwrap_err();
        assert!(why.starts_with("MountVolume.SetUp failed for volume \"v\" : mount.nfs is not on this node"), "{why}");
        assert!(why.contains("nfs-common"), "{why}");
        world.fakes.add("mount.nfs", "").add("mount", "echo access denied by server >&2; exit 32");
        let why = world.mount(source()).await.unwrap_err();
        let start =
            "MountVolume.SetUp failed for volume \"v\" : mount failed: exit status 32\nMounting command: mount\n";
        assert!(why.starts_with(start) && why.ends_with("Output: access denied by server"), "{why}");
        assert!(!world.path(NAME).exists(), "nothing is left that a container could write to");
    }

    #[test]
    fn a_server_is_no_option() {
        let check = |server: &str, path: &str, expected: Option<&str>| {
            let source = NFSVolumeSource { server: server.to_owned(), path: path.to_owned(), read_only: None };
            assert_eq!(address(&source).ok().as_deref(), expected, "{server:?} {path:?}");
        };
        check("nfs.example.com", "/exports/a b", Some("nfs.example.com:/exports/a b"));
        check("10.0.0.1", "/", Some("10.0.0.1:/"));
        check("fd00::1", "/a", Some("[fd00::1]:/a"));
        check("[fd00::1]", "/a", Some("[fd00::1]:/a"));
        for server in ["", "-oexec", "--bind", "a b", "a,b", "a/b", "a\nb"] {
            check(server, "/a", None);
        }
        for path in ["", "a", "-o", "/a\nb", "/a\0"] {
            check("s", path, None);
        }
    }
}
