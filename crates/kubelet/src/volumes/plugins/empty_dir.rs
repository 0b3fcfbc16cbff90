//! emptyDir: a folder that lives as long as its Pod, on the node's disk or in memory.

use files::Dir;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Volume;

use crate::volumes::{
    directory,
    error::{VolumeError, file_error},
    folder::blocking,
    plugin::{Mounted, Plugin, Request},
};

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
        Box::pin(blocking(move || {
            directory::make(&path)?;
            let failed = file_error(&path);
            if source.medium.as_deref() == Some("Memory") {
                let limit = source.size_limit.as_ref().map(|q| api::rules::quantity::parse(q).value());
                mounter.in_memory(&path, limit.and_then(|v| u64::try_from(v).ok())).map_err(&failed)?;
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
