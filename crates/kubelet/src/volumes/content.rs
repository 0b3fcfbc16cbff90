//! What the files of a volume are: from ConfigMaps, Secrets, tokens and the Pod itself.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{
        ConfigMapVolumeSource, DownwardAPIVolumeFile, DownwardAPIVolumeSource, KeyToPath, Pod, ProjectedVolumeSource,
        SecretVolumeSource, ServiceAccountTokenProjection, VolumeProjection,
    },
};

use crate::{
    pod::downward::{self, Facts},
    volumes::{
        Sources, VolumeError,
        atomic::{File, Files},
    },
};

const DEFAULT_MODE: i32 = 0o644;
/// How long a projected token lasts when the Pod does not say.
const TOKEN_SECONDS: i64 = 3600;

/// The content of an object, by key.
pub type Data = BTreeMap<String, Vec<u8>>;

fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    own.or(default).unwrap_or(DEFAULT_MODE) as u32
}

/// A path inside a volume: relative, and never upwards.
pub fn check_path(path: &str) -> Result<(), VolumeError> {
    let bad = path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..");
    if bad { Err(VolumeError::Path(path.to_owned())) } else { Ok(()) }
}

/// Puts the keys into files: all of them, or those that `items` names.
fn keyed(
    data: &Data,
    items: Option<&Vec<KeyToPath>>,
    default_mode: Option<i32>,
    kind: &'static str,
    optional: bool,
) -> Result<Files, VolumeError> {
    let file = |data: &Vec<u8>, own| File { data: data.clone(), mode: mode(own, default_mode) };
    let Some(items) = items.filter(|i| !i.is_empty()) else {
        return Ok(data.iter().map(|(key, data)| (key.clone(), file(data, None))).collect());
    };
    let mut files = Files::new();
    for item in items {
        check_path(&item.path)?;
        match data.get(&item.key) {
            Some(data) => _ = files.insert(item.path.clone(), file(data, item.mode)),
            None if optional => {}
            None => return Err(VolumeError::MissingKey { kind, key: item.key.clone() }),
        }
    }
    Ok(files)
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// An object's data, or nothing when it is missing but optional.
fn or_empty(data: Option<Data>, optional: bool, kind: &'static str, name: &str) -> Result<Data, VolumeError> {
    match data {
        Some(data) => Ok(data),
        None if optional => Ok(Data::new()),
        None => Err(VolumeError::NotFound { kind, name: name.to_owned() }),
    }
}

pub async fn config_map(
    source: &ConfigMapVolumeSource,
    pod: &Pod,
    sources: &dyn Sources,
) -> Result<Files, VolumeError> {
    let optional = source.optional.unwrap_or(false);
    let data = sources.config_map(namespace(pod), &source.name).await?;
    let data = or_empty(data, optional, "configmap", &source.name)?;
    keyed(&data, source.items.as_ref(), source.default_mode, "config", optional)
}

pub async fn secret(source: &SecretVolumeSource, pod: &Pod, sources: &dyn Sources) -> Result<Files, VolumeError> {
    let (name, optional) = (source.secret_name.as_deref().unwrap_or(""), source.optional.unwrap_or(false));
    let data = or_empty(sources.secret(namespace(pod), name).await?, optional, "secret", name)?;
    keyed(&data, source.items.as_ref(), source.default_mode, "secret", optional)
}

pub fn downward_api(source: &DownwardAPIVolumeSource, pod: &Pod, facts: &Facts) -> Result<Files, VolumeError> {
    downward_files(source.items.as_deref().unwrap_or_default(), source.default_mode, pod, facts)
}

fn downward_files(
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    pod: &Pod,
    facts: &Facts,
) -> Result<Files, VolumeError> {
    let mut files = Files::new();
    for item in items {
        check_path(&item.path)?;
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field(pod, &field.field_path, facts)?,
            (None, Some(resource)) => downward::resource(pod, resource, resource.container_name.as_deref(), facts)?,
            (None, None) => String::new(),
        };
        files.insert(item.path.clone(), File { data: text.into_bytes(), mode: mode(item.mode, default_mode) });
    }
    Ok(files)
}

pub async fn projected(
    source: &ProjectedVolumeSource,
    pod: &Pod,
    facts: &Facts,
    sources: &dyn Sources,
) -> Result<Files, VolumeError> {
    let mut files = Files::new();
    for part in source.sources.iter().flatten() {
        files.extend(projection(part, source.default_mode, pod, facts, sources).await?);
    }
    Ok(files)
}

async fn projection(
    part: &VolumeProjection,
    default_mode: Option<i32>,
    pod: &Pod,
    facts: &Facts,
    sources: &dyn Sources,
) -> Result<Files, VolumeError> {
    if let Some(map) = &part.config_map {
        let optional = map.optional.unwrap_or(false);
        let data = sources.config_map(namespace(pod), &map.name).await?;
        let data = or_empty(data, optional, "configmap", &map.name)?;
        return keyed(&data, map.items.as_ref(), default_mode, "config", optional);
    }
    if let Some(secret) = &part.secret {
        let optional = secret.optional.unwrap_or(false);
        let data = sources.secret(namespace(pod), &secret.name).await?;
        let data = or_empty(data, optional, "secret", &secret.name)?;
        return keyed(&data, secret.items.as_ref(), default_mode, "secret", optional);
    }
    if let Some(downward) = &part.downward_api {
        return downward_files(downward.items.as_deref().unwrap_or_default(), default_mode, pod, facts);
    }
    if let Some(token) = &part.service_account_token {
        return token_file(token, pod, sources).await;
    }
    Err(VolumeError::Unsupported("this projected source".to_owned()))
}

async fn token_file(
    token: &ServiceAccountTokenProjection,
    pod: &Pod,
    sources: &dyn Sources,
) -> Result<Files, VolumeError> {
    check_path(&token.path)?;
    let seconds = token.expiration_seconds.unwrap_or(TOKEN_SECONDS);
    let text = sources.token(pod, token.audience.as_deref().unwrap_or(""), seconds).await?;
    // Only the Pod's user reads it: the group when there is one, everybody in the Pod otherwise.
    let spec = pod.spec.as_ref();
    let context = spec.and_then(|s| s.security_context.as_ref());
    let alone = context.is_some_and(|c| c.fs_group.is_some());
    let mode = if alone { 0o600 } else { 0o644 };
    Ok(Files::from([(token.path.clone(), File { data: text.into_bytes(), mode })]))
}

/// The data of a ConfigMap: text and binary keys together.
pub fn of_config_map(map: k8s_openapi::api::core::v1::ConfigMap) -> Data {
    let text = map.data.into_iter().flatten().map(|(k, v)| (k, v.into_bytes()));
    text.chain(map.binary_data.into_iter().flatten().map(|(k, ByteString(v))| (k, v))).collect()
}

/// The data of a Secret.
pub fn of_secret(secret: k8s_openapi::api::core::v1::Secret) -> Data {
    secret.data.into_iter().flatten().map(|(k, ByteString(v))| (k, v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(items: serde_json::Value, optional: bool, expected: &str) {
        let data = Data::from([("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())]);
        let items: Vec<KeyToPath> = serde_json::from_value(items).unwrap();
        let got = match keyed(&data, Some(&items), Some(0o400), "config", optional) {
            Ok(files) => files
                .iter()
                .map(|(p, f)| format!("{p}={}:{:o}", String::from_utf8_lossy(&f.data), f.mode))
                .collect::<Vec<_>>()
                .join(" "),
            Err(e) => e.to_string(),
        };
        assert_eq!(got, expected);
    }

    #[test]
    fn keys_become_files() {
        check(serde_json::json!([]), false, "a=1:400 b=2:400");
        check(serde_json::json!([{"key": "a", "path": "x/y", "mode": 0o600}]), false, "x/y=1:600");
        check(serde_json::json!([{"key": "z", "path": "x"}]), false, "references non-existent config key: z");
        check(serde_json::json!([{"key": "z", "path": "x"}]), true, "");
        check(serde_json::json!([{"key": "a", "path": "../x"}]), false, "path \"../x\" must stay inside the volume");
        check(serde_json::json!([{"key": "a", "path": "/x"}]), false, "path \"/x\" must stay inside the volume");
    }
}
