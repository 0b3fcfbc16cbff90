//! Which volume goes where in a container, and the two files that every container gets: `/etc/hosts` and the place for
//! its termination message.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use files::{Dir, modes};
use k8s_cri::v1::{Device, ImageSpec, MountPropagation};
use k8s_openapi::api::core::v1::{Container, VolumeDevice, VolumeMount};
use runtime::container::Mount;

use crate::{
    kubelet::Kubelet,
    pod::{
        desired::{DesiredPod, mount_path},
        spec::{env, hardening},
    },
    volumes::{MountedVolumes, error::VolumeError, sub_path},
};

/// Whether a mount asks for what only some engines can do: to be read-only with all that is mounted below it.
pub fn ask_recursive(container: &Container) -> bool {
    let asks = |m: &VolumeMount| m.recursive_read_only.as_deref().is_some_and(|mode| mode != "Disabled");
    container.volume_mounts.iter().flatten().any(asks)
}

/// Whether a part of an image is mounted, which also only some engines can do.
pub fn ask_part_of_image(desired: &DesiredPod, container: &Container) -> bool {
    let images = desired.image_volumes(container);
    let asks =
        |m: &VolumeMount| [&m.sub_path, &m.sub_path_expr].iter().any(|p| p.as_ref().is_some_and(|p| !p.is_empty()));
    container.volume_mounts.iter().flatten().any(|m| images.contains_key(m.name.as_str()) && asks(m))
}

/// The sources of a container's mounts.
pub struct MountSetting<'a> {
    pub desired: &'a DesiredPod,
    pub container: &'a Container,
    pub volumes: &'a MountedVolumes,
    pub env: &'a [(String, String)],
    pub restarts: i32,
    /// The engine can make a mount read-only with all that is mounted below it.
    pub recursive: bool,
    /// The images of volumes that are one, by name.
    pub images: &'a BTreeMap<String, ImageSpec>,
    /// The engine can mount a part of an image.
    pub parts_of_images: bool,
}

/// The mounts of a container: its volumes, `/etc/hosts`, and the file for its termination message.
pub fn mounts(kubelet: &Kubelet, setting: &MountSetting<'_>) -> Result<Vec<Mount>, String> {
    let &MountSetting { desired, container, volumes, env, restarts, recursive, images, parts_of_images } = setting;
    let known = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let folder = kubelet.pod_folder(desired.uid());
    let selinux = kubelet.host.modules.selinux;
    let file = |at: &str, host: &Path| Mount { selinux_relabel: selinux, ..file(at, host) };
    let mut mounts = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let volume = volumes.get(&mount.name);
        let volume = volume.ok_or_else(|| format!("cannot find volume \"{}\" to mount", mount.name))?;
        let recursive = hardening::recursive_read_only(mount, recursive)?;
        let part = part_of(mount, &known)?;
        if let Some(image) = images.get(&mount.name) {
            if part.is_some() && !parts_of_images {
                let name = &mount.name;
                return Err(format!("volume \"{name}\": the container runtime cannot mount a subPath of an image"));
            }
            let (image, image_sub_path) = (Some(image.clone()), part.unwrap_or_default());
            let rest = to_mount(mount, PathBuf::new());
            mounts.push(Mount { readonly: true, recursive_read_only: recursive, image, image_sub_path, ..rest });
            continue;
        }
        let mut host = volume.path.clone();
        if let Some(part) = part {
            let target = folder.sub_path(&mount.name, &container.name, index);
            let held = sub_path::hold(&host, &part).and_then(|held| held.mount_at(&target, &*kubelet.host.mounter));
            held.map_err(|error| refused(desired, container, mount, &part, &error))?;
            host = target;
        }
        let readonly = volume.read_only || mount.read_only.unwrap_or(false);
        let selinux_relabel = volume.relabel && selinux;
        mounts.push(Mount { readonly, selinux_relabel, recursive_read_only: recursive, ..to_mount(mount, host) });
    }
    let pod_dir = folder.path();
    if !mounts.iter().any(|m| m.container_path == "/etc/hosts") {
        mounts.push(file("/etc/hosts", &pod_dir.join("etc-hosts")));
    }
    let message = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
    if !message.is_empty() {
        let at = message_file(pod_dir, &container.name, restarts);
        prepare_message_file(&at).map_err(|e| format!("cannot make the termination log: {e}"))?;
        mounts.push(file(message, &at));
    }
    Ok(mounts)
}

/// The block devices among a container's volumes.
pub fn devices(container: &Container, volumes: &MountedVolumes) -> Result<Vec<Device>, String> {
    let device = |wanted: &VolumeDevice| {
        let volume = volumes.get(&wanted.name).filter(|volume| volume.is_device);
        let volume = volume.ok_or_else(|| {
            format!("cannot find volume {:?} to pass into container {:?}", wanted.name, container.name)
        })?;
        let permissions = if volume.read_only { "r" } else { "mrw" };
        Ok(Device {
            container_path: wanted.device_path.clone(),
            host_path: volume.path.display().to_string(),
            permissions: permissions.to_owned(),
        })
    };
    container.volume_devices.iter().flatten().map(device).collect()
}

/// Which part of the volume is mounted; all of it when `None`.
fn part_of(mount: &VolumeMount, known: &HashMap<&str, &str>) -> Result<Option<String>, String> {
    let part = match mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => env::expand_path(text, known)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if part.starts_with('/') {
        return Err(format!("error SubPath `{part}` must not be an absolute path"));
    }
    if part.split('/').any(|p| p == "..") {
        return Err(format!("unable to provision SubPath `{part}`: must not contain '..'"));
    }
    Ok(Some(part).filter(|part| !part.is_empty()))
}

/// The user reads no more than that it failed: nobody finds out by it what exists outside the volume.
fn refused(
    desired: &DesiredPod,
    container: &Container,
    mount: &VolumeMount,
    part: &str,
    error: &VolumeError,
) -> String {
    let (pod, name) = (desired.full_name(), &container.name);
    tracing::warn!(pod, container = name, volume = mount.name, part, %error, "a part of a volume cannot be mounted");
    format!("failed to prepare subPath for volumeMount \"{}\" of container \"{name}\"", mount.name)
}

fn to_mount(mount: &VolumeMount, host: PathBuf) -> Mount {
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    };
    Mount {
        container_path: mount_path(mount).into_owned(),
        host_path: host.display().to_string(),
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
        modes::folder(parent, modes::NODE_FOLDER)?;
    }
    modes::write(at, modes::SHARED_FILE, "")
}

/// The end of what a container left in its message file, which may have any length.
pub fn message(pod_dir: &Path, container: &str, restarts: i32, most: u64) -> io::Result<Vec<u8>> {
    let file = Dir::open(&pod_dir.join("containers"))?.file(&Path::new(container).join(restarts.to_string()))?;
    last_bytes(file, most)
}

/// The last bytes of a file.
pub fn last_bytes(mut file: std::fs::File, most: u64) -> io::Result<Vec<u8>> {
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::plugin::Mounted;

    #[test]
    fn a_part_is_named_whole_or_refused() {
        let known = HashMap::from([("UP", ".."), ("ROOT", "/etc"), ("POD", "p"), ("EMPTY", "")]);
        let check = |mount: json::Value, expected: Result<Option<&str>, &str>| {
            let mut mount = mount;
            (mount["name"], mount["mountPath"]) = ("v".into(), "/v".into());
            let got = part_of(&json::from_value(mount.clone()).unwrap(), &known);
            assert_eq!(got, expected.map(|p| p.map(str::to_owned)).map_err(str::to_owned), "{mount}");
        };
        let expression = |text: &str| json::json!({"subPathExpr": text});
        check(json::json!({}), Ok(None));
        check(json::json!({"subPath": "a/b"}), Ok(Some("a/b")));
        check(expression("logs/$(POD)"), Ok(Some("logs/p")));
        // Not the whole volume in place of a part of it.
        check(expression("$(EMPTY)"), Err("missing value for EMPTY"));
        check(expression("$(NO)"), Err("missing value for NO"));
        check(expression("a/$(UP)/$(UP)"), Err("unable to provision SubPath `a/../..`: must not contain '..'"));
        check(expression("$(ROOT)"), Err("error SubPath `/etc` must not be an absolute path"));
    }

    #[test]
    fn a_container_gets_the_devices_that_it_names() {
        let mounted =
            |read_only, is_device| Mounted { path: "/dev/sdx".into(), read_only, is_device, ..Mounted::default() };
        let volumes = [("d", mounted(false, true)), ("r", mounted(true, true)), ("f", mounted(false, false))];
        let volumes = volumes.map(|(name, volume)| (name.to_owned(), volume)).into();
        let check = |name: &str, expected: Result<&str, &str>| {
            let container = json::json!({"name": "c", "volumeDevices": [{"name": name, "devicePath": "/dev/mine"}]});
            let got = devices(&json::from_value(container).unwrap(), &volumes);
            let words = |d: &Device| format!("{} {} {}", d.host_path, d.container_path, d.permissions);
            let got = got.map(|list| list.iter().map(words).collect::<String>());
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{name}");
        };
        check("d", Ok("/dev/sdx /dev/mine mrw"));
        check("r", Ok("/dev/sdx /dev/mine r"));
        check("f", Err("cannot find volume \"f\" to pass into container \"c\""));
        check("none", Err("cannot find volume \"none\" to pass into container \"c\""));
    }

    #[test]
    fn last_words_are_read_from_their_end_and_never_whole() {
        let folder = tempfile::tempdir().unwrap();
        let at = message_file(folder.path(), "c", 0);
        prepare_message_file(&at).unwrap();
        std::fs::write(&at, "first words, last words").unwrap();
        assert_eq!(message(folder.path(), "c", 0, 10).unwrap(), b"last words");
        // A sparse file of a terabyte costs nothing to make.
        std::fs::File::options().write(true).open(&at).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(message(folder.path(), "c", 0, 4096).unwrap().len(), 4096);
        std::fs::remove_file(&at).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &at).unwrap();
        assert!(message(folder.path(), "c", 0, 4096).is_err());
    }
}
