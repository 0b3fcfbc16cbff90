//! image: the files of an image, read-only. The engine mounts them into each container; nothing of it is in the Pod's folder.
//! Upstream counterpart: pkg/volume/image. The image itself is fetched by [`crate::engine::image`].

use std::path::PathBuf;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Volume;

use crate::volumes::{
    error::VolumeError,
    plugin::{Mounted, Plugin, Request, Unmount},
};

pub struct Image;

impl Plugin for Image {
    fn name(&self) -> &'static str {
        "image"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.image.is_some()
    }

    fn mount<'a>(&'a self, _: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async { Ok(Mounted { path: PathBuf::new(), read_only: true, relabel: true, ..Mounted::default() }) })
    }

    fn unmount<'a>(&'a self, _: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(async { Ok(()) })
    }
}
