//! emptyDir: a folder that lives as long as its Pod, on the node's disk or in memory.

use files::Dir;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Volume;

use crate::{
    pod::spec::resources,
    volumes::{
        directory,
        error::{VolumeError, file_error},
        folder::blocking,
        plugin::{Mounted, Plugin, Request},
    },
};

/// How much a volume in memory holds: what its Pod may take, if that is limited, and never more than the node has for Pods; less
/// where the volume says so. `None` is the kernel's own limit.
fn most(allocatable: i64, of_pod: Option<i64>, of_volume: Option<i64>) -> Option<u64> {
    let limits = [Some(allocatable), of_pod, of_volume].into_iter().flatten().filter(|bytes| *bytes > 0);
    limits.min().and_then(|bytes| u64::try_from(bytes).ok())
}

pub struct EmptyDir;

impl Plugin for EmptyDir {
    fn name(&self) -> &'static str {
        "empty-dir"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.empty_dir.is_some()
    }

    /// Files that are in it already stay.
    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        let path = request.folder.volume(self.name(), &request.volume.name);
        let source = request.volume.empty_dir.clone().unwrap_or_default();
        let (group, mounter) = (request.fs_group(), request.means.mounter.clone());
        let limit = source.size_limit.as_ref().map(|q| api::rules::quantity::parse(q).value());
        let of_pod = request.pod.spec.as_ref().and_then(|spec| resources::of_pod(spec).memory);
        let size = most(request.means.facts.memory_bytes, of_pod, limit);
        Box::pin(blocking(move || {
            directory::make(&path)?;
            let failed = file_error(&path);
            if source.medium.as_deref() == Some("Memory") {
                mounter.in_memory(&path, size).map_err(&failed)?;
            }
            let folder = Dir::open(&path).map_err(&failed)?;
            if let Some(group) = group {
                folder.set_group(group).map_err(&failed)?;
            }
            folder.set_mode(if group.is_some() { 0o2777 } else { 0o777 }).map_err(&failed)?;
            Ok(Mounted { path, read_only: false, is_device: false })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_limited_by_volume_pod_and_node() {
        for (limits, expected) in [
            ((100, None, None), Some(100)),
            ((100, Some(50), None), Some(50)),
            ((100, Some(50), Some(70)), Some(50)),
            ((100, Some(50), Some(20)), Some(20)),
            ((100, Some(150), Some(120)), Some(100)),
            ((100, None, Some(0)), Some(100)),
            ((0, None, None), None),
        ] {
            assert_eq!(most(limits.0, limits.1, limits.2), expected, "{limits:?}");
        }
    }
}
