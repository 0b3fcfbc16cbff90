//! projected: files from several sources in one folder, among them tokens of the Pod's service account. They are never on a
//! disk.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ServiceAccountTokenProjection, Volume, VolumeProjection};

use crate::volumes::{
    atomic::{File, Files},
    content::{self, Keys},
    error::VolumeError,
    plugin::{Followed, Mounted, Plugin, Request},
};

/// How long a projected token lasts when the Pod does not say.
const TOKEN_SECONDS: i64 = 3600;

pub struct Projected;

impl Plugin for Projected {
    fn name(&self) -> &'static str {
        "projected"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.projected.is_some()
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let source = request.volume.projected.clone().unwrap_or_default();
            let mut files = Files::new();
            for part in source.sources.iter().flatten() {
                files.extend(projection(request, part, source.default_mode).await?);
            }
            content::fill(request, self.name(), files, true).await
        })
    }

    fn follows(&self, volume: &Volume) -> Vec<Followed> {
        let parts = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        let of = |part: &VolumeProjection| {
            let map = part.config_map.as_ref().map(|m| Followed::ConfigMap(m.name.clone()));
            map.or_else(|| part.secret.as_ref().map(|s| Followed::Secret(s.name.clone())))
        };
        parts.filter_map(of).collect()
    }
}

async fn projection(
    request: &Request<'_>,
    part: &VolumeProjection,
    default_mode: Option<i32>,
) -> Result<Files, VolumeError> {
    if let Some(map) = &part.config_map {
        return content::config_map(request, Keys::new(&map.name, &map.items, default_mode, map.optional)).await;
    }
    if let Some(secret) = &part.secret {
        return content::secret(request, Keys::new(&secret.name, &secret.items, default_mode, secret.optional)).await;
    }
    if let Some(downward) = &part.downward_api {
        return content::downward_api(request, downward.items.as_deref().unwrap_or_default(), default_mode);
    }
    if let Some(token) = &part.service_account_token {
        return token_file(request, token).await;
    }
    Err(VolumeError::Unsupported("this projected source".to_owned()))
}

async fn token_file(request: &Request<'_>, token: &ServiceAccountTokenProjection) -> Result<Files, VolumeError> {
    content::check_path(&token.path)?;
    let seconds = token.expiration_seconds.unwrap_or(TOKEN_SECONDS);
    let audience = token.audience.as_deref().unwrap_or("");
    let text = request.means.sources.token(request.pod, audience, seconds).await?;
    // Only the Pod's user reads it: the group when there is one, everybody in the Pod otherwise.
    let mode = if request.fs_group().is_some() { 0o600 } else { 0o644 };
    Ok(Files::from([(token.path.clone(), File { data: text.into_bytes(), mode })]))
}
