//! The files of volumes that the kubelet writes: from ConfigMaps, Secrets and the Pod itself.

use files::{Dir, modes};
use k8s_openapi::api::core::v1::{Container, DownwardAPIVolumeFile, KeyToPath, Pod};

use crate::{
    pod::spec::downward,
    volumes::{
        atomic::{self, File, Files},
        directory,
        error::{VolumeError, file_error},
        folder::blocking,
        in_memory::Place,
        plugin::{Mounted, Request},
        sources::Data,
    },
};

const DEFAULT_MODE: i32 = 0o644;

/// Which keys of which object become files.
pub struct Keys<'a> {
    object: &'a str,
    /// All of them when there are none here.
    items: &'a [KeyToPath],
    default_mode: Option<i32>,
    optional: bool,
}

impl<'a> Keys<'a> {
    pub fn new(
        object: &'a str,
        items: &'a Option<Vec<KeyToPath>>,
        default_mode: Option<i32>,
        optional: Option<bool>,
    ) -> Self {
        let items = items.as_deref().unwrap_or_default();
        Keys { object, items, default_mode, optional: optional.unwrap_or(false) }
    }

    /// The files of an object that may be missing, called by these names in what users read.
    fn files(&self, data: Option<Data>, object_kind: &'static str, kind: &'static str) -> Result<Files, VolumeError> {
        let data = match data {
            None if !self.optional => {
                return Err(VolumeError::NotFound { kind: object_kind, name: self.object.to_owned() });
            }
            data => data.unwrap_or_default(),
        };
        let file = |data: &Vec<u8>, own| File::new(data.clone(), mode(own, self.default_mode));
        if self.items.is_empty() {
            return Ok(data.iter().map(|(key, data)| (key.clone(), file(data, None))).collect());
        }
        let mut files = Files::new();
        for item in self.items {
            check_path(&item.path)?;
            match data.get(&item.key) {
                Some(data) => _ = files.insert(item.path.clone(), file(data, item.mode)),
                None if self.optional => {}
                None => return Err(VolumeError::MissingKey { kind, key: item.key.clone() }),
            }
        }
        Ok(files)
    }
}

/// The user that all containers of a Pod run as, if they name one and the same.
pub fn user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let of = |c: &Container| c.security_context.as_ref().and_then(|context| context.run_as_user).or(of_pod);
    let mut users = spec.init_containers.iter().flatten().chain(&spec.containers).map(of);
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

pub fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    own.or(default).unwrap_or(DEFAULT_MODE) as u32
}

/// A path inside a volume: relative, and never upwards.
pub fn check_path(path: &str) -> Result<(), VolumeError> {
    let bad = path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..");
    if bad { Err(VolumeError::Path(path.to_owned())) } else { Ok(()) }
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

pub async fn config_map(request: &Request<'_>, keys: Keys<'_>) -> Result<Files, VolumeError> {
    let data = request.means.sources.config_map(namespace(request.pod), keys.object).await?;
    keys.files(data, "configmap", "config")
}

pub async fn secret(request: &Request<'_>, keys: Keys<'_>) -> Result<Files, VolumeError> {
    let data = request.means.sources.secret(namespace(request.pod), keys.object).await?;
    keys.files(data, "secret", "secret")
}

pub fn downward_api(
    request: &Request<'_>,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
) -> Result<Files, VolumeError> {
    let (pod, facts) = (request.pod, &request.means.facts);
    let mut files = Files::new();
    for item in items {
        check_path(&item.path)?;
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field(pod, &field.field_path, facts)?,
            (None, Some(resource)) => downward::resource(pod, resource, resource.container_name.as_deref(), facts)?,
            (None, None) => String::new(),
        };
        files.insert(item.path.clone(), File::new(text.into_bytes(), mode(item.mode, default_mode)));
    }
    Ok(files)
}

/// Brings the folder of a volume to exactly these files. In memory is what must never reach a disk.
pub async fn fill(request: &Request<'_>, plugin: &str, files: Files, in_memory: bool) -> Result<Mounted, VolumeError> {
    let place = in_memory.then(|| Place::of(request, plugin));
    let on_disk = request.folder.volume(plugin, &request.volume.name);
    let (group, mounter) = (request.fs_group(), request.means.mounter.clone());
    blocking(move || {
        let path = match place {
            Some(place) => place.make(&*mounter)?,
            None => directory::make(&on_disk).map(|()| on_disk)?,
        };
        let folder = Dir::open(&path).map_err(file_error(&path))?;
        folder.set_mode(modes::SEEN_FOLDER).map_err(file_error(&path))?;
        atomic::hand_over(&folder, group).map_err(file_error(&path))?;
        atomic::write(&path, &files, group)?;
        Ok(Mounted { path, read_only: true, relabel: true, ..Mounted::default() })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(items: json::Value, optional: bool, expected: &str) {
        let data = Data::from([("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())]);
        let items: Vec<KeyToPath> = json::from_value(items).unwrap();
        let keys = Keys { object: "m", items: &items, default_mode: Some(0o400), optional };
        let got = match keys.files(Some(data), "configmap", "config") {
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
    fn the_user_of_a_pod_is_the_one_that_all_its_containers_name() {
        let check = |spec: json::Value, expected: Option<u32>| {
            let pod: Pod = json::from_value(json::json!({ "spec": spec })).unwrap();
            assert_eq!(user(&pod), expected, "{spec}");
        };
        let as_user = |user: i64| json::json!({"name": "c", "securityContext": {"runAsUser": user}});
        let plain = json::json!({"name": "c"});
        check(json::json!({"containers": [plain]}), None);
        check(json::json!({"containers": [as_user(5), as_user(5)]}), Some(5));
        check(json::json!({"containers": [as_user(5), as_user(6)]}), None);
        check(json::json!({"containers": [as_user(5), plain]}), None);
        check(json::json!({"containers": [as_user(5)], "initContainers": [plain]}), None);
        let of_pod = json::json!({"runAsUser": 7});
        check(json::json!({"containers": [plain], "initContainers": [plain], "securityContext": of_pod}), Some(7));
        check(json::json!({"containers": [plain, as_user(5)], "securityContext": of_pod}), None);
    }

    #[test]
    fn keys_become_files() {
        check(json::json!([]), false, "a=1:400 b=2:400");
        check(json::json!([{"key": "a", "path": "x/y", "mode": 0o600}]), false, "x/y=1:600");
        check(json::json!([{"key": "z", "path": "x"}]), false, "configmap references non-existent config key: z");
        check(json::json!([{"key": "z", "path": "x"}]), true, "");
        check(json::json!([{"key": "a", "path": "../x"}]), false, "path \"../x\" must stay inside the volume");
        check(json::json!([{"key": "a", "path": "/x"}]), false, "path \"/x\" must stay inside the volume");
    }
}
