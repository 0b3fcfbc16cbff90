//! Which volume goes where in a container, and the two files that every container gets: `/etc/hosts` and the place for
//! its last words.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use k8s_cri::v1::{Mount, MountPropagation};
use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};

use crate::{
    node::Node,
    volumes::{self, PodFolder},
    wanted::Wanted,
};

/// Where a volume lies on this machine, as [`volumes::mount`] has put it there.
fn path(folder: &PodFolder, volume: &Volume) -> PathBuf {
    if let Some(host) = &volume.host_path {
        return PathBuf::from(&host.path);
    }
    let plugin = if volume.config_map.is_some() {
        "configmap"
    } else if volume.secret.is_some() {
        "secret"
    } else if volume.projected.is_some() {
        "projected"
    } else if volume.downward_api.is_some() {
        "downward-api"
    } else {
        "empty-dir"
    };
    folder.volume(plugin, &volume.name)
}

/// The names of the ConfigMaps and Secrets whose changes the volumes must follow.
pub fn followed(wanted: &Wanted) -> (Vec<String>, Vec<String>) {
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    for volume in wanted.spec().volumes.iter().flatten() {
        maps.extend(volume.config_map.iter().map(|m| m.name.clone()));
        secrets.extend(volume.secret.iter().filter_map(|s| s.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            maps.extend(source.config_map.iter().map(|m| m.name.clone()));
            secrets.extend(source.secret.iter().map(|s| s.name.clone()));
        }
    }
    (maps, secrets)
}

/// The mounts of a container: its volumes, `/etc/hosts`, and the file for its last words.
pub fn mounts(
    node: &Node,
    wanted: &Wanted,
    container: &Container,
    env: &[(String, String)],
    restarts: i32,
) -> Result<Vec<Mount>, String> {
    let known = env.iter().cloned().collect();
    let folder = PodFolder::new(&node.config.root_dir, wanted.uid());
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = wanted.spec().volumes.iter().flatten().find(|v| v.name == mount.name);
        let volume = volume.ok_or_else(|| format!("cannot find volume \"{}\" to mount", mount.name))?;
        let sub = match &mount.sub_path_expr {
            Some(text) => Some(crate::env::expand(text, &known)),
            None => mount.sub_path.clone(),
        };
        let mut host = path(&folder, volume);
        if let Some(sub) = sub.filter(|s| !s.is_empty()) {
            host = volumes::sub_path(&host, &sub).map_err(|e| e.to_string())?;
        }
        mounts.push(to_mount(mount, host));
    }
    let pod_dir = node.config.pod_dir(wanted.uid());
    if !mounts.iter().any(|m| m.container_path == "/etc/hosts") {
        mounts.push(file("/etc/hosts", &pod_dir.join("etc-hosts")));
    }
    let message = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
    if !message.is_empty() {
        let at = message_file(&pod_dir, &container.name, restarts);
        prepare_message_file(&at).map_err(|e| format!("cannot make the termination log: {e}"))?;
        mounts.push(file(message, &at));
    }
    Ok(mounts)
}

fn to_mount(mount: &VolumeMount, host: PathBuf) -> Mount {
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    };
    let path = &mount.mount_path;
    Mount {
        container_path: if path.starts_with('/') { path.clone() } else { format!("/{path}") },
        host_path: host.display().to_string(),
        readonly: mount.read_only.unwrap_or(false),
        propagation: propagation as i32,
        ..Default::default()
    }
}

fn file(container_path: &str, host: &Path) -> Mount {
    Mount { container_path: container_path.to_owned(), host_path: host.display().to_string(), ..Default::default() }
}

/// Where a container writes its termination message.
pub fn message_file(pod_dir: &Path, container: &str, restarts: i32) -> PathBuf {
    pod_dir.join("containers").join(container).join(restarts.to_string())
}

fn prepare_message_file(at: &Path) -> io::Result<()> {
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(at, "")?;
    fs::set_permissions(at, fs::Permissions::from_mode(0o666))
}
