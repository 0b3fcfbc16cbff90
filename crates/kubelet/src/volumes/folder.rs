//! Where the volumes of a Pod are, and work on files that does not hold up anybody else.

use std::path::{Path, PathBuf};

/// The folder beside `pods` for volumes whose files are never on a disk.
const IN_MEMORY: &str = "volumes-in-memory";

/// A Pod's folder: `<root>/pods/<uid>`, and the one for what it has in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFolder {
    path: PathBuf,
    in_memory: PathBuf,
}

impl PodFolder {
    pub fn new(kubelet_root: &Path, uid: &str) -> Self {
        PodFolder { path: kubelet_root.join("pods").join(uid), in_memory: kubelet_root.join(IN_MEMORY).join(uid) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its volumes are that share the node's file system in memory.
    pub fn in_memory(&self) -> &Path {
        &self.in_memory
    }

    /// Where that file system is.
    pub fn all_in_memory(&self) -> &Path {
        self.in_memory.parent().unwrap_or(&self.in_memory)
    }

    /// Where a volume is: upstream's layout, so that tools which know it find it.
    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.path.join("volumes").join(format!("kubernetes.io~{plugin}")).join(name)
    }

    /// Where the parts of volumes are that containers see by a `subPath`.
    pub fn sub_paths(&self) -> PathBuf {
        self.path.join("volume-subpaths")
    }

    /// Where the part of a volume is that a container's mount of this number shows.
    pub fn sub_path(&self, volume: &str, container: &str, mount: usize) -> PathBuf {
        self.sub_paths().join(volume).join(container).join(mount.to_string())
    }
}

/// File system work may wait for a disk, so it does not run on the threads that everything else shares.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
