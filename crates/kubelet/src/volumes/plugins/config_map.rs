//! configMap: the keys of a ConfigMap as files.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Volume;

use crate::volumes::{
    content::{self, Keys},
    error::VolumeError,
    plugin::{Followed, Mounted, Plugin, Request},
};

pub struct ConfigMap;

impl Plugin for ConfigMap {
    fn name(&self) -> &'static str {
        "configmap"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.config_map.is_some()
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let source = request.volume.config_map.clone().unwrap_or_default();
            let keys = Keys::new(&source.name, &source.items, source.default_mode, source.optional);
            let files = content::config_map(request, keys).await?;
            content::fill(request, self.name(), files, false).await
        })
    }

    fn follows(&self, volume: &Volume) -> Vec<Followed> {
        volume.config_map.iter().map(|source| Followed::ConfigMap(source.name.clone())).collect()
    }
}
