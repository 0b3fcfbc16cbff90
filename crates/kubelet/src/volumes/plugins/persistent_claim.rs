//! persistentVolumeClaim and ephemeral: the PersistentVolume that a claim is bound to, if it is a path of this node. What
//! is in it outlives the Pod.

use std::{io, path::Path};

use api::rules::{pod::volume_claims, volume::Offer};
use files::{Dir, beneath};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, Volume};

use super::host_path;
use crate::volumes::{
    error::{VolumeError, file_error},
    folder::blocking,
    plugin::{Mounted, Plugin, Request, Unmount},
};

pub struct PersistentClaim;

impl Plugin for PersistentClaim {
    fn name(&self) -> &'static str {
        "persistent-claim"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    }

    fn is_mounted_once(&self) -> bool {
        true
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
            let group = request.fs_group();
            let read_only = used.read_only;
            blocking(move || mount(&persistent, group)).await.map(|mounted| Mounted { read_only, ..mounted })
        })
    }

    /// The path is the node's: nothing was mounted for the Pod alone.
    fn unmount<'a>(&'a self, _: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(async { Ok(()) })
    }
}

fn mount(persistent: &PersistentVolume, group: Option<u32>) -> Result<Mounted, VolumeError> {
    let spec = persistent.spec.clone().unwrap_or_default();
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(VolumeError::Unsupported("volumeMode Block".to_owned()));
    }
    if let Some(source) = spec.host_path {
        return host_path::mount(&source);
    }
    let Some(source) = spec.local else {
        let name = persistent.metadata.name.as_deref().unwrap_or("");
        return Err(VolumeError::Unsupported(format!("PersistentVolume {name} is neither hostPath nor local")));
    };
    let path = Path::new(&source.path);
    if !path.exists() {
        return Err(VolumeError::Missing(source.path));
    }
    if let Some(group) = group {
        Dir::open(path).and_then(|folder| give(&folder, group)).map_err(file_error(path))?;
    }
    Ok(Mounted { path: path.to_owned(), read_only: false })
}

/// Everything in the folder becomes the group's to read and write; what is made there later is the group's as well. Another
/// Pod may be changing it: no link is followed, and what goes away meanwhile is passed over.
fn give(folder: &Dir, group: u32) -> io::Result<()> {
    let own = |folder: &Dir| {
        folder.set_group(group)?;
        folder.set_mode((folder.meta()?.st_mode & 0o7777) | 0o2770)
    };
    own(folder)?;
    folder.walk(|path, meta| {
        let given = if beneath::is_folder(meta) {
            folder.folder(path).and_then(|inner| own(&inner))
        } else if beneath::is_file(meta) {
            folder.share(path, group)
        } else {
            Ok(())
        };
        if let Err(error) = given {
            tracing::debug!(path = %path.display(), %error, "not given to the Pod's group");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;
    use std::{
        fs::{self, Permissions, set_permissions},
        os::unix::fs::PermissionsExt,
    };

    fn volume(spec: json::Value) -> PersistentVolume {
        json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_volume_is_a_path_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let (there, not) = (dir.path().to_str().unwrap().to_owned(), dir.path().join("not").display().to_string());
        let mounted = |spec| mount(&volume(spec), None).map(|m| m.path.display().to_string());
        assert_eq!(mounted(json!({"local": {"path": there}})).unwrap(), there);
        let missing = mounted(json!({"local": {"path": not}})).unwrap_err().to_string();
        assert_eq!(missing, format!("path {not:?} does not exist"));
        assert_eq!(mounted(json!({"hostPath": {"path": there, "type": "Directory"}})).unwrap(), there);
        assert!(mounted(json!({"hostPath": {"path": not, "type": "Directory"}})).is_err());
        assert_eq!(mounted(json!({"hostPath": {"path": not, "type": "DirectoryOrCreate"}})).unwrap(), not);
        assert!(mounted(json!({"csi": {"driver": "d", "volumeHandle": "h"}})).is_err());
        assert!(mounted(json!({"local": {"path": there}, "volumeMode": "Block"})).is_err());
    }

    #[test]
    fn the_group_of_a_pod_gets_what_is_in_the_volume_and_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(root.join("inner")).unwrap();
        for file in [&root.join("inner/file"), &outside] {
            fs::write(file, "x").unwrap();
            set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let group = nix::unistd::getgid().as_raw();
        give(&Dir::open(&root).unwrap(), group).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&root) & 0o2770, 0o2770);
        assert_eq!(mode(&root.join("inner")) & 0o2770, 0o2770);
        assert_eq!(mode(&root.join("inner/file")), 0o660);
        assert_eq!(mode(&outside), 0o600, "a link is not followed");
    }
}
