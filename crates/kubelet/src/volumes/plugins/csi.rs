//! csi: a volume of a CSI driver, which is a part of the Pod and lives as long as the Pod does. Those that claims are bound to
//! are mounted here too.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;

use crate::{
    csi::{usage::Wish, volume::Volume},
    volumes::{
        error::VolumeError,
        plugin::{Mounted, Plugin, Request, Unmount},
    },
};

pub struct Csi;

impl Plugin for Csi {
    fn name(&self) -> &'static str {
        "csi"
    }

    fn takes(&self, volume: &v1::Volume) -> bool {
        volume.csi.is_some()
    }

    fn stays(&self, request: &Request<'_>) -> bool {
        stays(request)
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let source = request.volume.csi.clone().unwrap_or_default();
            mount(request, Volume::inline(request.pod, &request.volume.name, &source)).await
        })
    }

    /// Drivers have undone it: they have records of their own.
    fn unmount<'a>(&'a self, _: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Whether a volume that is mounted need not be published again now.
pub fn stays(request: &Request<'_>) -> bool {
    let Some(held) = &request.held else { return false };
    let csi = &request.means.csi;
    !csi.has(&held.path, request.folder) || !csi.take_due(request.pod_uid(), &request.volume.name)
}

/// Brings a driver's volume into the Pod that asks for it.
pub async fn mount(request: &Request<'_>, volume: Volume) -> Result<Mounted, VolumeError> {
    let means = request.means;
    let (read_only, is_device) = (volume.read_only, volume.is_block);
    let label = match volume.is_inline {
        true => Ok(None),
        false => means.labels.mount(request.pod, &request.volume.name, &volume.access_modes),
    };
    let wish = Wish {
        pod: request.pod,
        name: &request.volume.name,
        folder: request.folder,
        sources: &*means.sources,
        volume,
        group: request.fs_group(),
        label,
        is_mounted: request.held.is_some(),
    };
    let (path, is_labelled) = means.csi.mount(&wish).await?;
    Ok(Mounted { path, read_only, is_device, relabel: !read_only && !is_device && !is_labelled, ..Mounted::default() })
}
