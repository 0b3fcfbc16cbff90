//! secret: the keys of a Secret as files. They are never on a disk.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Volume;

use crate::volumes::{
    content::{self, Keys},
    error::VolumeError,
    in_memory,
    plugin::{Followed, Mounted, Plugin, Request, Unmount},
};

pub struct Secret;

impl Plugin for Secret {
    fn name(&self) -> &'static str {
        "secret"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.secret.is_some()
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let source = request.volume.secret.clone().unwrap_or_default();
            let name = source.secret_name.unwrap_or_default();
            let keys = Keys::new(&name, &source.items, source.default_mode, source.optional);
            let files = content::secret(request, keys).await?;
            content::fill(request, self.name(), files, true).await
        })
    }

    fn unmount<'a>(&'a self, what: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(in_memory::unmount(what, self.name()))
    }

    fn follows(&self, volume: &Volume) -> Vec<Followed> {
        volume.secret.iter().filter_map(|source| source.secret_name.clone().map(Followed::Secret)).collect()
    }
}
