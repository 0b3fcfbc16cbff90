//! downwardAPI: what the Pod's own object says, as files. Upstream holds them in memory, too.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Volume;

use crate::volumes::{
    content,
    error::VolumeError,
    in_memory,
    plugin::{Mounted, Plugin, Request, Unmount},
};

pub struct DownwardApi;

impl Plugin for DownwardApi {
    fn name(&self) -> &'static str {
        "downward-api"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.downward_api.is_some()
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let source = request.volume.downward_api.clone().unwrap_or_default();
            let items = source.items.as_deref().unwrap_or_default();
            let files = content::downward_api(request, items, source.default_mode)?;
            content::fill(request, self.name(), files, true).await
        })
    }

    fn unmount<'a>(&'a self, what: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(in_memory::unmount(what, self.name()))
    }
}
