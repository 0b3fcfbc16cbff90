//! Where the data of a volume are: on the node, in the network, in a cloud. Pods and PersistentVolumes name these sources
//! alike, in types of their own; what has to be said in each stands here once, over their JSON form.
//! Upstream counterpart: `validate…VolumeSource` in pkg/apis/core/validation.

use json::Value;
use k8s_openapi::api::core::v1::HostPathVolumeSource;

use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::{invalid, invalid_at};
use crate::validation::relative_path::no_backsteps;

const DRIVER_NAME_BYTES: usize = 63;
const FORMAT: &str = "must be valid format";
const REGISTRY: &str = "must be a host:port pair or multiple pairs separated by commas";

/// The object that the source is of.
#[derive(Clone, Copy)]
pub(crate) enum Owner<'a> {
    /// A Pod's volume of this name.
    Pod(&'a str),
    /// The PersistentVolume of this name. Secrets that it refers to can be in any namespace.
    Volume(&'a str),
}

/// Fields that must not be empty, by sort, for those that need nothing else before them.
const NEEDED: &[(&str, &[&str])] = &[
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("nfs", &["server", "path"]),
    ("glusterfs", &["endpoints", "path"]),
    ("rbd", &["monitors", "image"]),
    ("cinder", &["volumeID"]),
    ("cephfs", &["monitors"]),
    ("flexVolume", &["driver"]),
    ("azureFile", &["secretName", "shareName"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
];

/// The defaults of the sources in a Pod's volume or in the spec of a PersistentVolume.
macro_rules! default_sources {
    ($of:expr) => {{
        let of = $of;
        if let Some(path) = &mut of.host_path {
            path.type_.get_or_insert_default();
        }
        if let Some(iscsi) = &mut of.iscsi {
            iscsi.iscsi_interface.get_or_insert_with(|| "default".to_owned());
        }
        if let Some(rbd) = &mut of.rbd {
            rbd.pool.get_or_insert_with(|| "rbd".to_owned());
            rbd.user.get_or_insert_with(|| "admin".to_owned());
            rbd.keyring.get_or_insert_with(|| "/etc/ceph/keyring".to_owned());
        }
        if let Some(disk) = &mut of.azure_disk {
            disk.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
            disk.kind.get_or_insert_with(|| "Shared".to_owned());
            disk.fs_type.get_or_insert_with(|| "ext4".to_owned());
            disk.read_only.get_or_insert(false);
        }
        if let Some(scale) = &mut of.scale_io {
            scale.storage_mode.get_or_insert_with(|| "ThinProvisioned".to_owned());
            scale.fs_type.get_or_insert_with(|| "xfs".to_owned());
        }
    }};
}
pub(crate) use default_sources;

fn text<'a>(source: &'a Value, field: &str) -> &'a str {
    source.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn number(source: &Value, field: &str) -> i64 {
    source.get(field).and_then(Value::as_i64).unwrap_or_default()
}

fn flag(source: &Value, field: &str) -> bool {
    source.get(field).and_then(Value::as_bool).unwrap_or_default()
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(other) => other.is_null(),
        None => true,
    }
}

fn require(source: &Value, field: &str, path: &Path) -> Option<FieldError> {
    is_empty(source.get(field)).then(|| FieldError::required(&path.child(field), ""))
}

/// Checks a source of the sort whose field it stands in; `path` is that of the volume.
pub(crate) fn check(sort: &str, source: &Value, owner: Owner<'_>, path: &Path) -> Errors {
    let path = &path.child(if sort == "gcePersistentDisk" { "persistentDisk" } else { sort });
    let needed = NEEDED.iter().filter(|(of, _)| *of == sort).flat_map(|(_, fields)| fields.iter());
    let mut errors: Errors = needed.filter_map(|field| require(source, field, path)).collect();
    match sort {
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            let number = number(source, "partition");
            let wrong = !(0..=255).contains(&number);
            let detail = "must be between 1 and 255, inclusive";
            errors.extend(wrong.then(|| FieldError::invalid(&path.child("partition"), number, detail)));
        }
        "nfs" if !text(source, "path").starts_with('/') => {
            let detail = "must be an absolute path";
            errors.push(FieldError::invalid(&path.child("path"), text(source, "path"), detail));
        }
        "glusterfs" => errors.extend(endpoints_namespace(source, path)),
        "flocker" => errors.extend(flocker(source, path)),
        "quobyte" => errors.extend(quobyte(source, path)),
        "iscsi" => errors.extend(iscsi(source, owner, path)),
        "fc" => errors.extend(fibre_channel(source, path)),
        "cinder" => errors.extend(secret(source, "secretRef", owner, path)),
        "storageos" => errors.extend(storage_os(source, owner, path)),
        "flexVolume" => errors.extend(options(source, path)),
        "azureFile" if source.get("secretNamespace").is_some() => {
            errors.extend(require(source, "secretNamespace", path));
        }
        "azureDisk" => errors.extend(azure_disk(source, path)),
        "csi" => errors.extend(csi(source, owner, path)),
        _ => {}
    }
    errors
}

pub(crate) fn host_path(host: &HostPathVolumeSource, path: &Path) -> Errors {
    if host.path.is_empty() {
        return vec![FieldError::required(&path.child("path"), "")];
    }
    let mut errors: Errors = no_backsteps(&host.path, &path.child("path")).into_iter().collect();
    let known = ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let kind = host.type_.as_deref().unwrap_or_default();
    if !known.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &known));
    }
    errors
}

/// The name of a CSI driver where another object names it.
pub(crate) fn driver_name(name: &str, path: &Path) -> Errors {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut errors = Errors::new();
    if name.len() > DRIVER_NAME_BYTES {
        errors.push(FieldError::too_long(path, DRIVER_NAME_BYTES));
    }
    errors.extend(invalid(path, name, names::dns1123_subdomain(&name.to_lowercase())));
    errors
}

fn endpoints_namespace(source: &Value, path: &Path) -> Errors {
    let Some(namespace) = source.get("endpointsNamespace").and_then(Value::as_str) else { return Errors::new() };
    if namespace.is_empty() {
        let detail = "if the endpointnamespace is set, it must be a valid namespace name";
        return vec![FieldError::invalid(&path.child("endpointsNamespace"), namespace, detail)];
    }
    invalid_at(path, "endpointsNamespace", namespace, names::dns1123_label(namespace))
}

fn flocker(source: &Value, path: &Path) -> Errors {
    let (name, uuid) = (text(source, "datasetName"), text(source, "datasetUUID"));
    let mut errors = Errors::new();
    if name.is_empty() && uuid.is_empty() {
        errors.push(FieldError::required(path, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let detail = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(FieldError::invalid(path, "resource", detail));
    }
    if name.contains('/') {
        errors.push(FieldError::invalid(&path.child("datasetName"), name, "must not contain '/'"));
    }
    errors
}

fn quobyte(source: &Value, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let registry = text(source, "registry");
    if registry.is_empty() {
        errors.push(FieldError::required(&path.child("registry"), REGISTRY));
    } else if text(source, "tenant").len() >= 65 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(FieldError::required(&path.child("tenant"), detail));
    } else {
        let wrong = registry.split(',').filter(|pair| !is_host_and_port(pair));
        errors.extend(wrong.map(|_| FieldError::invalid(&path.child("registry"), registry, REGISTRY)));
    }
    errors.extend(require(source, "volume", path));
    errors
}

/// `host:port`, with an address of IPv6 in brackets.
fn is_host_and_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else { return false };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    !inner.unwrap_or(host).contains(['[', ']'])
        && (inner.is_some() || !host.contains(':'))
        && !port.contains(['[', ']'])
}

fn iscsi(source: &Value, owner: Owner<'_>, path: &Path) -> Errors {
    let (portal, iqn) = (text(source, "targetPortal"), text(source, "iqn"));
    let initiator = source.get("initiatorName").and_then(Value::as_str);
    let (Owner::Pod(name) | Owner::Volume(name)) = owner;
    let mut errors: Errors = require(source, "targetPortal", path).into_iter().collect();
    if initiator.is_some() && name.len() + 1 + portal.len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.push(FieldError::invalid(&path.child("targetportal"), portal, detail));
    }
    if iqn.is_empty() {
        errors.push(FieldError::required(&path.child("iqn"), ""));
    } else if !is_iscsi_name(iqn) {
        errors.push(FieldError::invalid(&path.child("iqn"), iqn, FORMAT));
    }
    let lun = number(source, "lun");
    if !(0..=255).contains(&lun) {
        errors.push(FieldError::invalid(&path.child("lun"), lun, "must be between 0 and 255, inclusive"));
    }
    let chap = flag(source, "chapAuthDiscovery") || flag(source, "chapAuthSession");
    if chap && source.get("secretRef").is_none() {
        errors.push(FieldError::required(&path.child("secretRef"), ""));
    }
    if let (Owner::Volume(_), Some(secret)) = (owner, source.get("secretRef")) {
        errors.extend(require(secret, "name", &path.child("secretRef")));
    }
    if let Some(initiator) = initiator.filter(|name| !is_iscsi_name(name)) {
        let known = ["iqn", "eui", "naa"].iter().any(|start| initiator.starts_with(start));
        let detail = match owner {
            Owner::Pod(_) if !known => "must be valid format starting with iqn, eui, or naa",
            _ => FORMAT,
        };
        errors.push(FieldError::invalid(&path.child("initiatorname"), initiator, detail));
    }
    errors
}

/// `iqn.2001-04.com.example:name`, or `eui.` and `naa.` with as many letters and digits as they have.
fn is_iscsi_name(name: &str) -> bool {
    let digits = |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let letters = |text: &str, count: usize| {
        let mut rest = text.chars();
        rest.next().is_some() && rest.as_str().len() == count && rest.all(|c| c.is_ascii_alphanumeric())
    };
    if let Some(rest) = name.strip_prefix("iqn.") {
        let Some((date, rest)) = rest.split_once('.') else { return false };
        let Some((authority, unique)) = rest.split_once(':') else { return false };
        return date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2))
            && !authority.is_empty()
            && authority.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
            && !unique.is_empty()
            && !unique.contains(|c: char| matches!(c, ',' | ';' | '*' | '&' | '$' | '|') || c.is_ascii_whitespace());
    }
    name.strip_prefix("eui").is_some_and(|rest| letters(rest, 16))
        || name.strip_prefix("naa").is_some_and(|rest| letters(rest, 32))
}

fn fibre_channel(source: &Value, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let place = path.child("targetWWNs");
    let (targets, ids) = (source.get("targetWWNs"), source.get("wwids"));
    if is_empty(targets) && is_empty(ids) {
        errors.push(FieldError::required(&place, "must specify either targetWWNs or wwids, but not both"));
    }
    if is_empty(targets) {
        return errors;
    }
    if !is_empty(ids) {
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        errors.push(FieldError::invalid(&place, targets, detail));
    }
    match source.get("lun").and_then(Value::as_i64) {
        None => errors.push(FieldError::required(&path.child("lun"), "lun is required if targetWWNs is specified")),
        Some(lun) if !(0..=255).contains(&lun) => {
            errors.push(FieldError::invalid(&path.child("lun"), lun, "must be between 0 and 255, inclusive"));
        }
        Some(_) => {}
    }
    errors
}

/// A reference to a secret, where there is one.
fn secret(source: &Value, field: &str, owner: Owner<'_>, path: &Path) -> Errors {
    let Some(secret) = source.get(field) else { return Errors::new() };
    let path = path.child(field);
    let mut errors: Errors = require(secret, "name", &path).into_iter().collect();
    if matches!(owner, Owner::Volume(_)) {
        errors.extend(require(secret, "namespace", &path));
    }
    errors
}

fn storage_os(source: &Value, owner: Owner<'_>, path: &Path) -> Errors {
    let mut errors: Errors = require(source, "volumeName", path).into_iter().collect();
    for field in ["volumeName", "volumeNamespace"] {
        let name = text(source, field);
        if !name.is_empty() {
            errors.extend(invalid_at(path, field, name, names::dns1123_label(name)));
        }
    }
    errors.extend(secret(source, "secretRef", owner, path));
    errors
}

/// Options whose names are Kubernetes' own.
fn options(source: &Value, path: &Path) -> Errors {
    let keys = source.get("options").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key);
    let reserved = keys.filter(|key| {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io")
    });
    let detail = "kubernetes.io and k8s.io namespaces are reserved";
    reserved.map(|key| FieldError::invalid(&path.child("options").key(key), key, detail)).collect()
}

fn azure_disk(source: &Value, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, known) in
        [("cachingMode", &["None", "ReadOnly", "ReadWrite"]), ("kind", &["Dedicated", "Managed", "Shared"])]
    {
        if let Some(word) = source.get(field).and_then(Value::as_str).filter(|word| !known.contains(word)) {
            errors.push(FieldError::not_supported(&path.child(field), word, known));
        }
    }
    let uri = text(source, "diskURI");
    let (start, form) = match source.get("kind").and_then(Value::as_str) {
        None => return errors,
        Some("Managed") => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        Some(_) => ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"),
    };
    if !uri.starts_with(start) {
        errors.push(FieldError::not_supported(&path.child("diskURI"), uri, &[form]));
    }
    errors
}

fn csi(source: &Value, owner: Owner<'_>, path: &Path) -> Errors {
    let mut errors = driver_name(text(source, "driver"), &path.child("driver"));
    if matches!(owner, Owner::Pod(_)) {
        if let Some(secret) = source.get("nodePublishSecretRef") {
            match text(secret, "name") {
                "" => errors.push(FieldError::required(&path.child("nodePublishSecretRef").child("name"), "")),
                name => errors.extend(invalid_at(path, "name", name, names::dns1123_subdomain(name))),
            }
        }
        return errors;
    }
    errors.extend(require(source, "volumeHandle", path));
    let fields =
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];
    for field in fields {
        let Some(secret) = source.get(field) else { continue };
        let path = path.child(field);
        match text(secret, "name") {
            "" => errors.push(FieldError::required(&path.child("name"), "")),
            name => errors.extend(invalid_at(&path, "name", name, names::dns1123_subdomain(name))),
        }
        match text(secret, "namespace") {
            "" => errors.push(FieldError::required(&path.child("namespace"), "")),
            name => errors.extend(invalid_at(&path, "namespace", name, names::dns1123_label(name))),
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn texts(sort: &str, source: &Value, owner: Owner<'_>) -> Vec<String> {
        check(sort, source, owner, &Path::new("v")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_each_source_has_to_say() {
        let wrong = |sort: &str, source: Value, expected: &[&str]| {
            assert_eq!(texts(sort, &source, Owner::Volume("pv")), expected, "{sort} {source}");
        };
        wrong("gcePersistentDisk", json!({"pdName": "d", "partition": 0}), &[]);
        wrong(
            "gcePersistentDisk",
            json!({"pdName": "", "partition": 256}),
            &[
                "v.persistentDisk.pdName: Required value",
                "v.persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive",
            ],
        );
        wrong("nfs", json!({"server": "s", "path": "/a"}), &[]);
        wrong(
            "nfs",
            json!({"server": "", "path": "a"}),
            &["v.nfs.server: Required value", "v.nfs.path: Invalid value: \"a\": must be an absolute path"],
        );
        wrong("glusterfs", json!({"endpoints": "e", "path": "p", "endpointsNamespace": "n"}), &[]);
        let namespace = "v.glusterfs.endpointsNamespace: Invalid value: \"\": if the endpointnamespace is set, it must be a valid namespace name";
        wrong("glusterfs", json!({"endpoints": "e", "path": "p", "endpointsNamespace": ""}), &[namespace]);
        wrong("flocker", json!({}), &["v.flocker: Required value: one of datasetName and datasetUUID is required"]);
        wrong(
            "flocker",
            json!({"datasetName": "a/b", "datasetUUID": "u"}),
            &[
                "v.flocker: Invalid value: \"resource\": datasetName and datasetUUID can not be specified simultaneously",
                "v.flocker.datasetName: Invalid value: \"a/b\": must not contain '/'",
            ],
        );
        wrong(
            "rbd",
            json!({"monitors": [], "image": ""}),
            &["v.rbd.monitors: Required value", "v.rbd.image: Required value"],
        );
        wrong("quobyte", json!({"registry": "a:1,[::1]:2", "volume": "v", "tenant": "t"}), &[]);
        let registry = format!("v.quobyte.registry: Invalid value: \"a\": {REGISTRY}");
        wrong("quobyte", json!({"registry": "a", "volume": ""}), &[&registry, "v.quobyte.volume: Required value"]);
        wrong(
            "fc",
            json!({}),
            &["v.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"],
        );
        wrong("fc", json!({"wwids": ["w"]}), &[]);
        wrong(
            "fc",
            json!({"targetWWNs": ["t"]}),
            &["v.fc.lun: Required value: lun is required if targetWWNs is specified"],
        );
        wrong(
            "cinder",
            json!({"volumeID": "v", "secretRef": {"name": "s"}}),
            &["v.cinder.secretRef.namespace: Required value"],
        );
        let reserved = "v.flexVolume.options[x.k8s.io/a]: Invalid value: \"x.k8s.io/a\": kubernetes.io and k8s.io namespaces are reserved";
        wrong("flexVolume", json!({"driver": "d", "options": {"x.k8s.io/a": "b", "xk8s.io/a": "b"}}), &[reserved]);
        wrong(
            "azureFile",
            json!({"secretName": "s", "shareName": "n", "secretNamespace": ""}),
            &["v.azureFile.secretNamespace: Required value"],
        );
        wrong(
            "azureDisk",
            json!({"diskName": "d", "diskURI": "https://x", "kind": "Shared", "cachingMode": "None"}),
            &[],
        );
        wrong(
            "azureDisk",
            json!({"diskName": "d", "diskURI": "https://x", "kind": "Managed", "cachingMode": "all"}),
            &[
                "v.azureDisk.cachingMode: Unsupported value: \"all\": supported values: \"None\", \"ReadOnly\", \"ReadWrite\"",
                "v.azureDisk.diskURI: Unsupported value: \"https://x\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
            ],
        );
        wrong(
            "csi",
            json!({"driver": "", "volumeHandle": "", "nodeExpandSecretRef": {"name": "s"}}),
            &[
                "v.csi.driver: Required value",
                "v.csi.volumeHandle: Required value",
                "v.csi.nodeExpandSecretRef.namespace: Required value",
            ],
        );
    }

    #[test]
    fn iscsi_names() {
        let iscsi = |iqn: &str| json!({"targetPortal": "127.0.0.1", "iqn": iqn, "lun": 1});
        for good in [
            "iqn.2015-02.example.com:test",
            "iqn.2015-02.example.com:storage.kube:sys1.xyz",
            "eui.0123456789ABCDEF",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            assert_eq!(texts("iscsi", &iscsi(good), Owner::Volume("pv")), [""; 0], "{good}");
        }
        for bad in [
            "iqn.2015-02.example.com:test;ls;",
            "iqn.2015.example.com:a",
            "eui.0123456789ABCDEFGH",
            "naa.62004567BA",
            "x",
        ] {
            let expected = format!("v.iscsi.iqn: Invalid value: {bad:?}: must be valid format");
            assert_eq!(texts("iscsi", &iscsi(bad), Owner::Volume("pv")), [expected]);
        }
        let mut source = iscsi("eui.0123456789ABCDEF");
        source["lun"] = json!(256);
        source["chapAuthSession"] = json!(true);
        source["initiatorName"] = json!("2015-02.example.com:init");
        let common = [
            "v.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            "v.iscsi.secretRef: Required value",
        ];
        let initiator = "v.iscsi.initiatorname: Invalid value: \"2015-02.example.com:init\": must be valid format";
        assert_eq!(texts("iscsi", &source, Owner::Volume("pv")), [common[0], common[1], initiator]);
        let longer = format!("{initiator} starting with iqn, eui, or naa");
        assert_eq!(texts("iscsi", &source, Owner::Pod("v")), [common[0], common[1], &longer]);
    }
}
