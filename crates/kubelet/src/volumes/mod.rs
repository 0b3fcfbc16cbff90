//! A Pod's volumes on the node: made before its containers start, refreshed while it runs, removed after it ended.
//!
//! `mount` is idempotent: called again it renews the content that has changed (ConfigMaps, Secrets, tokens, labels) and
//! touches nothing else. What a volume holds is worked out by pure functions in [`content`]; [`atomic`] writes it.

pub mod atomic;
pub mod content;
pub mod directory;
pub mod sources;
pub mod sub_path;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Pod, Volume};

pub use sources::{ApiSources, Sources};

/// A Pod's folder: `<root>/pods/<uid>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFolder(PathBuf);

impl PodFolder {
    pub fn new(kubelet_root: &Path, uid: &str) -> Self {
        PodFolder(kubelet_root.join("pods").join(uid))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where a volume is: upstream's layout, so that tools which know it find it.
    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.0.join("volumes").join(format!("kubernetes.io~{plugin}")).join(name)
    }

    /// Where the part of a volume is that a container's mount of this number shows.
    pub fn sub_path(&self, volume: &str, container: &str, mount: usize) -> PathBuf {
        self.0.join("volume-subpaths").join(volume).join(container).join(mount.to_string())
    }
}

/// Why a volume is not there. The text goes into a `FailedMount` event.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    #[error("references non-existent {kind} key: {key}")]
    MissingKey { kind: &'static str, key: String },
    #[error("path {0:?} must stay inside the volume")]
    Path(String),
    #[error("hostPath type check failed: {path} is not {wanted}")]
    HostPath { path: String, wanted: &'static str },
    #[error("volumes of this kind are not supported: {0}")]
    Unsupported(String),
    #[error("{0}")]
    Downward(#[from] crate::pod::downward::DownwardError),
    #[error("cannot ask the API server: {0}")]
    Api(String),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

pub(crate) fn file_error(path: &Path) -> impl Fn(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::File { path: path.clone(), source }
}

/// A volume that could not be mounted.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume \"{volume}\" : {source}")]
pub struct MountError {
    pub volume: String,
    pub source: VolumeError,
}

/// Mounts (or refreshes) all volumes of a Pod and says where each of them is on the node.
pub async fn mount(
    pod: &Pod,
    folder: &PodFolder,
    facts: &crate::pod::downward::Facts,
    sources: &dyn Sources,
) -> Result<BTreeMap<String, PathBuf>, MountError> {
    let mut mounted = BTreeMap::new();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let path = one(pod, volume, folder, facts, sources)
            .await
            .map_err(|source| MountError { volume: volume.name.clone(), source })?;
        mounted.insert(volume.name.clone(), path);
    }
    Ok(mounted)
}

async fn one(
    pod: &Pod,
    volume: &Volume,
    folder: &PodFolder,
    facts: &crate::pod::downward::Facts,
    sources: &dyn Sources,
) -> Result<PathBuf, VolumeError> {
    let fs_group = fs_group(pod);
    if let Some(host_path) = &volume.host_path {
        let (path, kind) = (host_path.path.clone(), host_path.type_.clone().unwrap_or_default());
        return blocking(move || directory::host_path(Path::new(&path), &kind)).await;
    }
    if let Some(empty) = &volume.empty_dir {
        let path = folder.volume("empty-dir", &volume.name);
        let in_memory = empty.medium.as_deref() == Some("Memory");
        let limit = empty.size_limit.as_ref().map(|q| api::rules::quantity::parse(q).value());
        let limit = limit.and_then(|v| u64::try_from(v).ok());
        return blocking(move || directory::empty(&path, in_memory, limit, fs_group)).await;
    }
    let (plugin, files) = if let Some(source) = &volume.config_map {
        ("configmap", content::config_map(source, pod, sources).await?)
    } else if let Some(source) = &volume.secret {
        ("secret", content::secret(source, pod, sources).await?)
    } else if let Some(source) = &volume.downward_api {
        ("downward-api", content::downward_api(source, pod, facts)?)
    } else if let Some(source) = &volume.projected {
        ("projected", content::projected(source, pod, facts, sources).await?)
    } else {
        return Err(VolumeError::Unsupported(format!(
            "{} is none of emptyDir, configMap, secret, downwardAPI, projected, hostPath",
            volume.name
        )));
    };
    let path = folder.volume(plugin, &volume.name);
    // Secrets and tokens never reach a disk; upstream holds what tells of the Pod in memory, too.
    let in_memory = plugin != "configmap";
    blocking(move || {
        directory::content(&path, in_memory)?;
        atomic::write(&path, &files, fs_group)?;
        Ok(path)
    })
    .await
}

fn fs_group(pod: &Pod) -> Option<u32> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    context.fs_group.and_then(|g| u32::try_from(g).ok())
}

/// Unmounts and removes everything of a Pod's folder. Succeeds when it is gone already.
pub async fn unmount(folder: &PodFolder) -> Result<(), VolumeError> {
    let path = folder.path().to_owned();
    blocking(move || directory::remove(&path)).await
}

/// File system work may wait for a disk, so it does not run on the threads that everything else shares.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
