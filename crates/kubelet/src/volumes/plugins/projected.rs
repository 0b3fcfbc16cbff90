//! projected: files from several sources in one folder, among them tokens of the Pod's service account, its certificates and
//! their keys. They are never on a disk.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PodCertificateProjection, ServiceAccountTokenProjection, Volume, VolumeProjection};

use crate::volumes::{
    atomic::{File, Files},
    content::{self, Keys},
    error::VolumeError,
    in_memory,
    plugin::{Followed, Mounted, Plugin, Request, Unmount},
    sources::certificates::Place,
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
            for (index, part) in source.sources.iter().flatten().enumerate() {
                files.extend(projection(request, index, part, source.default_mode).await?);
            }
            content::fill(request, self.name(), files, true).await
        })
    }

    fn unmount<'a>(&'a self, what: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(in_memory::unmount(what, self.name()))
    }

    fn follows(&self, volume: &Volume) -> Vec<Followed> {
        let parts = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        parts.filter_map(followed).collect()
    }
}

fn followed(part: &VolumeProjection) -> Option<Followed> {
    if let Some(map) = &part.config_map {
        return Some(Followed::ConfigMap(map.name.clone()));
    }
    if let Some(secret) = &part.secret {
        return Some(Followed::Secret(secret.name.clone()));
    }
    if let Some(bundle) = &part.cluster_trust_bundle {
        let name = bundle.name.clone().map(Followed::TrustBundle);
        return name.or_else(|| bundle.signer_name.clone().map(Followed::TrustBundlesOf));
    }
    part.pod_certificate.as_ref().map(|_| Followed::Certificates)
}

async fn projection(
    request: &Request<'_>,
    index: usize,
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
        return token_file(request, token, default_mode).await;
    }
    if let Some(bundle) = &part.cluster_trust_bundle {
        content::check_path(&bundle.path)?;
        let text = request.means.sources.trust_anchors(bundle).await?;
        return Ok(Files::from([(bundle.path.clone(), own_file(request, text, default_mode))]));
    }
    if let Some(certificate) = &part.pod_certificate {
        return certificate_files(request, index, certificate, default_mode).await;
    }
    // The API server has left nothing of a source whose feature is off there.
    Ok(Files::new())
}

/// A file that is for the Pod's user or group alone, where the Pod says which that is.
fn own_file(request: &Request<'_>, text: String, default_mode: Option<i32>) -> File {
    let owner = content::user(request.pod);
    let mode = match owner.is_some() || request.fs_group().is_some() {
        true => 0o600,
        false => content::mode(None, default_mode),
    };
    File { data: text.into_bytes(), mode, owner }
}

async fn token_file(
    request: &Request<'_>,
    token: &ServiceAccountTokenProjection,
    default_mode: Option<i32>,
) -> Result<Files, VolumeError> {
    content::check_path(&token.path)?;
    let seconds = token.expiration_seconds.unwrap_or(TOKEN_SECONDS);
    let audience = token.audience.as_deref().unwrap_or("");
    let issued = request.means.sources.token(request.pod, audience, seconds).await?;
    Ok(Files::from([(token.path.clone(), own_file(request, issued.text.clone(), default_mode))]))
}

async fn certificate_files(
    request: &Request<'_>,
    index: usize,
    wanted: &PodCertificateProjection,
    default_mode: Option<i32>,
) -> Result<Files, VolumeError> {
    let place = Place {
        pod_uid: request.pod.metadata.uid.clone().unwrap_or_default(),
        volume: request.volume.name.clone(),
        source: index,
    };
    let held = request.means.sources.credential(request.pod, &place, wanted).await?;
    let both = format!("{}{}", held.key, held.chain);
    let all = [
        (&wanted.credential_bundle_path, both),
        (&wanted.key_path, held.key),
        (&wanted.certificate_chain_path, held.chain),
    ];
    let mut files = Files::new();
    for (path, text) in all {
        let Some(path) = path.as_ref().filter(|path| !path.is_empty()) else { continue };
        content::check_path(path)?;
        files.insert(path.clone(), own_file(request, text, default_mode));
    }
    Ok(files)
}
