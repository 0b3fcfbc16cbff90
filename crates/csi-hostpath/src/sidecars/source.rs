//! The first content of a volume: whether a claim may have what it names, in the words of upstream's provisioner.
//! Upstream counterpart: `getVolumeContentSource` of external-provisioner.

use client::{Error, rest};
use json::Value;

use super::cluster::{
    Cluster, SNAPSHOT_GROUP, bytes, claims, contents, is_deleted, kind, name, namespace, snapshots, text, uid, volumes,
};
use crate::images::Source;

/// The object that a claim names as its source.
pub struct Named {
    pub group: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
}

pub const REQUEST: &str = "/spec/resources/requests/storage";

/// The source that a claim names, whichever of its two fields does.
pub fn named(claim: &Value) -> Option<Named> {
    let (source, elsewhere) = match (&claim["spec"]["dataSource"], &claim["spec"]["dataSourceRef"]) {
        (Value::Null, Value::Null) => return None,
        (Value::Null, source) => (source, text(source, "/namespace")),
        (source, _) => (source, ""),
    };
    let place = if elsewhere.is_empty() { namespace(claim) } else { elsewhere };
    Some(Named {
        group: text(source, "/apiGroup").to_owned(),
        kind: text(source, "/kind").to_owned(),
        name: text(source, "/name").to_owned(),
        namespace: place.to_owned(),
    })
}

/// Whether a ReferenceGrant in the source's namespace lets the claim have it.
fn is_granted(grant: &Value, claim: &Value, named: &Named) -> bool {
    let all = |place: &str| grant["spec"][place].as_array().cloned().unwrap_or_default();
    let from = |from: &Value| {
        (text(from, "/group"), text(from, "/kind"), text(from, "/namespace"))
            == ("", "PersistentVolumeClaim", namespace(claim))
    };
    let to = |to: &Value| {
        (text(to, "/group"), text(to, "/kind")) == (&*named.group, &*named.kind)
            && matches!(text(to, "/name"), wanted if wanted.is_empty() || wanted == named.name)
    };
    namespace(grant) == named.namespace && all("from").iter().any(from) && all("to").iter().any(to)
}

/// An error of the API, or a reason in words for which the claim gets nothing.
pub type Answer<T> = Result<Result<T, String>, Error>;

/// Whether the claim may name what is in another namespace.
pub async fn allowed(cluster: &Cluster, claim: &Value, named: &Named) -> Answer<()> {
    if named.namespace == namespace(claim) {
        return Ok(Ok(()));
    }
    let grants = kind("gateway.networking.k8s.io", "v1beta1", "ReferenceGrant", "referencegrants");
    let grants = cluster.list_custom(&grants).await?;
    let Named { namespace: place, name: source, kind, .. } = named;
    let refusal = || {
        format!(
            "accessing {place}/{source} of {kind} dataSource from {}/{} isn't allowed",
            namespace(claim),
            name(claim)
        )
    };
    Ok(grants.iter().any(|grant| is_granted(grant, claim, named)).then_some(()).ok_or_else(refusal))
}

/// The content of another claim's volume.
pub async fn of_claim(cluster: &Cluster, claim: &Value, class: &Value, named: &Named) -> Answer<(Value, Source)> {
    let source = match cluster.get(&claims(), &named.namespace, &named.name).await {
        Ok(source) => source,
        Err(error @ Error::Api(_)) => {
            let (source, place, why) = (&named.name, namespace(claim), rest::message(&error));
            return Ok(Err(format!("error getting PVC {source} (namespace {place:?}) from api server: {why}")));
        }
        Err(error) => return Err(error),
    };
    let phase = text(&source, "/status/phase");
    if phase != "Bound" {
        return Ok(Err(format!("the PVC DataSource {} must have a status of Bound.  Got {phase}", named.name)));
    }
    if is_deleted(&source) {
        return Ok(Err(format!("the PVC DataSource {} is currently being deleted", named.name)));
    }
    let (wanted, held) = (bytes(claim, REQUEST), bytes(&source, REQUEST));
    if wanted < held {
        let rule = "new PVC request must be greater than or equal in size to the specified PVC data source";
        return Ok(Err(format!("error, {rule}, requested {wanted} but source is {held}")));
    }
    let volume = rest::found(cluster.get(&volumes(), "", text(&source, "/spec/volumeName")).await)?;
    let is_right = |volume: &Value| {
        text(volume, "/spec/csi/driver") == text(class, "/provisioner")
            && text(volume, "/spec/claimRef/uid") == uid(&source)
            && text(volume, "/status/phase") == "Bound"
    };
    let Some(volume) = volume.filter(is_right) else {
        return Ok(Err("claim in dataSource not bound or invalid".to_owned()));
    };
    let mode = |object: &Value| match text(object, "/spec/volumeMode") {
        "Block" => "Block",
        _ => "Filesystem",
    };
    if mode(claim) != mode(&volume) {
        let rule = "the source PVC and destination PVCs must have the same volume mode for cloning.";
        return Ok(Err(format!("{rule}  Source is {}, but new PVC requested {}", mode(&volume), mode(claim))));
    }
    let handle = text(&volume, "/spec/csi/volumeHandle").to_owned();
    Ok(Ok((source, Source::Volume(handle))))
}

/// The content of a snapshot.
pub async fn of_snapshot(cluster: &Cluster, claim: &Value, class: &Value, named: &Named) -> Answer<(Value, Source)> {
    let source = &named.name;
    let snapshot = match cluster.get(&snapshots(), &named.namespace, source).await {
        Ok(snapshot) => snapshot,
        Err(error @ Error::Api(_)) => {
            return Ok(Err(format!("error getting snapshot {source} from api server: {}", rest::message(&error))));
        }
        Err(error) => return Err(error),
    };
    if is_deleted(&snapshot) {
        return Ok(Err(format!("snapshot {source} is being deleted")));
    }
    let bound = text(&snapshot, "/status/boundVolumeSnapshotContentName");
    if bound.is_empty() {
        return Ok(Err(format!("snapshot {source} not bound")));
    }
    let Some(content) = rest::found(cluster.get(&contents(), "", bound).await)? else {
        return Ok(Err(format!("error getting snapshotcontent {bound} for snapshot {source}")));
    };
    if text(&content, "/spec/volumeSnapshotRef/uid") != uid(&snapshot) {
        return Ok(Err(format!("snapshotcontent {bound} for snapshot {source} is bound to a different snapshot")));
    }
    if text(&content, "/spec/driver") != text(class, "/provisioner") {
        let class = name(class);
        return Ok(Err(format!(
            "snapshotcontent {bound} for snapshot {source} is not handled by CSI driver of StorageClass {class}"
        )));
    }
    if snapshot["status"]["readyToUse"].as_bool() != Some(true) {
        return Ok(Err(format!("snapshot {source} is not Ready")));
    }
    let (wanted, held) = (bytes(claim, REQUEST), bytes(&snapshot, "/status/restoreSize"));
    if wanted < held {
        return Ok(Err(format!(
            "requested volume size {wanted} is less than the size {held} for the source snapshot {source}"
        )));
    }
    let handle = text(&content, "/status/snapshotHandle").to_owned();
    Ok(Ok((snapshot, Source::Snapshot(handle))))
}

impl Named {
    pub fn is(&self, object: &Value) -> bool {
        (&*self.namespace, &*self.name) == (namespace(object), name(object))
    }

    pub fn is_snapshot(&self) -> bool {
        (&*self.group, &*self.kind) == (SNAPSHOT_GROUP, "VolumeSnapshot")
    }

    pub fn is_claim(&self) -> bool {
        (&*self.group, &*self.kind) == ("", "PersistentVolumeClaim")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn either_field_names_the_source_and_only_one_names_another_namespace() {
        let check = |spec: Value, expected: Option<(&str, &str)>| {
            let claim = json!({"metadata": {"namespace": "d"}, "spec": spec});
            let named = named(&claim);
            assert_eq!(named.as_ref().map(|named| (&*named.namespace, &*named.name)), expected, "{claim}");
        };
        let source = |place: &str| json!({"apiGroup": SNAPSHOT_GROUP, "kind": "VolumeSnapshot", "name": "s", "namespace": place});
        check(json!({}), None);
        check(json!({"dataSource": source("")}), Some(("d", "s")));
        check(json!({"dataSource": source(""), "dataSourceRef": source("")}), Some(("d", "s")));
        check(json!({"dataSourceRef": source("")}), Some(("d", "s")));
        check(json!({"dataSourceRef": source("e")}), Some(("e", "s")));
    }

    #[test]
    fn a_grant_is_for_one_namespace_and_kind_and_perhaps_for_one_object() {
        let named = Named {
            group: SNAPSHOT_GROUP.to_owned(),
            kind: "VolumeSnapshot".to_owned(),
            name: "s".to_owned(),
            namespace: "e".to_owned(),
        };
        let claim = json!({"metadata": {"namespace": "d"}});
        let check = |place: &str, from: Value, to: Value, expected: bool| {
            let grant = json!({"metadata": {"namespace": place}, "spec": {"from": [from], "to": [to]}});
            assert_eq!(is_granted(&grant, &claim, &named), expected, "{grant}");
        };
        let from = |place: &str| json!({"group": "", "kind": "PersistentVolumeClaim", "namespace": place});
        let to = |name: &str| json!({"group": SNAPSHOT_GROUP, "kind": "VolumeSnapshot", "name": name});
        check("e", from("d"), to(""), true);
        check("e", from("d"), to("s"), true);
        check("e", from("d"), to("t"), false);
        check("e", from("f"), to("s"), false);
        check("d", from("d"), to("s"), false);
        check("e", from("d"), json!({"group": "", "kind": "PersistentVolumeClaim"}), false);
    }
}
