//! A Pod's place in its StatefulSet: its ordinal, and the name, labels and volumes that follow from it.

use std::ops::Range;

use controller::owner_reference;
use json::{Value, json};
use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetSpec},
    core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume},
};

use super::{claims, name_of};
use crate::workloads::{history::POD_REVISION, pod_template};

pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

pub fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", name_of(set))
}

/// The ordinals that the set is to have.
pub fn ordinals(spec: &StatefulSetSpec) -> Range<i32> {
    let start = spec.ordinals.as_ref().and_then(|o| o.start).unwrap_or(0);
    start..start.saturating_add(spec.replicas.unwrap_or(1).max(0))
}

/// The ordinal in a Pod's name; `None` for a Pod that is not named like one of the set's.
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let digits = pod.metadata.name.as_deref()?.strip_prefix(name_of(set))?.strip_prefix('-')?;
    let number: i32 = digits.parse().ok()?;
    (number >= 0 && number.to_string() == digits).then_some(number)
}

/// The revision that a Pod was made from.
pub fn revision(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|l| l.get(POD_REVISION)).map_or("", String::as_str)
}

/// The Pod of this ordinal, made from a template of the set's history.
pub fn pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> Pod {
    let mut pod = pod_template::instantiate(template, &set.metadata, owner_reference(set));
    let name = pod_name(set, ordinal);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(POD_REVISION.to_owned(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name.clone());
    spec.subdomain = set.spec.as_ref().and_then(|s| s.service_name.clone()).filter(|name| !name.is_empty());
    let volumes = volumes(set, spec.volumes.take().unwrap_or_default(), ordinal);
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    pod.metadata.name = Some(name);
    pod
}

/// The volumes of the set's claims, which take the place of others with their names.
fn volumes(set: &StatefulSet, others: Vec<Volume>, ordinal: i32) -> Vec<Volume> {
    let claimed = claims::names(set, ordinal);
    let mut volumes: Vec<Volume> = claimed
        .iter()
        .map(|(volume, claim)| Volume {
            name: volume.clone(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.clone(),
                read_only: None,
            }),
            ..Volume::default()
        })
        .collect();
    volumes.extend(others.into_iter().filter(|v| claimed.iter().all(|(name, _)| *name != v.name)));
    volumes
}

/// The patch that gives a Pod the labels and volumes of its place; `None` when it has them.
pub fn repair(set: &StatefulSet, pod: &Pod, ordinal: i32) -> Option<Value> {
    let name = pod.metadata.name.as_ref()?;
    let held = pod.spec.as_ref().and_then(|s| s.volumes.clone()).unwrap_or_default();
    let has_claim = |(volume, claim): &(String, String)| {
        let volume = held.iter().find(|v| v.name == *volume);
        volume.and_then(|v| v.persistent_volume_claim.as_ref()).is_some_and(|c| c.claim_name == *claim)
    };
    let has_claims = claims::names(set, ordinal).iter().all(has_claim);
    let has_label = pod.metadata.labels.as_ref().and_then(|l| l.get(POD_NAME)) == Some(name);
    if has_claims && has_label {
        return None;
    }
    let labels = json!({POD_NAME: name, POD_INDEX: ordinal.to_string()});
    let mut patch = json!({"metadata": {"uid": pod.metadata.uid, "labels": labels}});
    if !has_claims {
        patch["spec"] = json!({"volumes": volumes(set, held, ordinal)});
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: Value) -> StatefulSet {
        let mut set = json!({"metadata": {"name": "web", "namespace": "d", "uid": "s"},
            "spec": {"selector": {}, "serviceName": "peers", "replicas": 3, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]}}}});
        for (name, value) in value.as_object().unwrap() {
            set["spec"][name] = value.clone();
        }
        json::from_value(set).unwrap()
    }

    #[test]
    fn ordinals_are_read_from_names() {
        let set = set(json!({}));
        for (name, expected) in [
            ("web-0", Some(0)),
            ("web-12", Some(12)),
            ("web-012", None),
            ("web-", None),
            ("web", None),
            ("other-1", None),
            ("web-db-1", None),
            ("web--1", None),
            ("web-99999999999", None),
        ] {
            let pod: Pod = json::from_value(json!({"metadata": {"name": name}})).unwrap();
            assert_eq!(ordinal(&set, &pod), expected, "{name}");
        }
    }

    #[test]
    fn a_start_moves_the_ordinals() {
        assert_eq!(ordinals(set(json!({})).spec.as_ref().unwrap()), 0..3);
        assert_eq!(ordinals(set(json!({"ordinals": {"start": 5}})).spec.as_ref().unwrap()), 5..8);
        assert_eq!(ordinals(set(json!({"replicas": 0})).spec.as_ref().unwrap()), 0..0);
    }

    #[test]
    fn a_pod_carries_its_place() {
        let set = set(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}));
        let template = set.spec.as_ref().unwrap().template.clone();
        let made = json::to_value(pod(&set, &template, "web-abc", 2)).unwrap();
        assert_eq!(made["metadata"]["name"], "web-2");
        assert_eq!(made["metadata"]["generateName"], "web-");
        let labels = json!({"app": "web", POD_NAME: "web-2", POD_INDEX: "2", POD_REVISION: "web-abc"});
        assert_eq!(made["metadata"]["labels"], labels);
        assert_eq!((&made["spec"]["hostname"], &made["spec"]["subdomain"]), (&json!("web-2"), &json!("peers")));
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-2"}},
            {"name": "tmp", "emptyDir": {}}]);
        assert_eq!(made["spec"]["volumes"], volumes);
    }

    #[test]
    fn what_a_pod_lacks_is_repaired() {
        let set = set(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}));
        let template = set.spec.as_ref().unwrap().template.clone();
        let whole = pod(&set, &template, "r", 1);
        assert_eq!(repair(&set, &whole, 1), None);
        let mut unlabelled = whole.clone();
        unlabelled.metadata.labels = None;
        let labels = json!({POD_NAME: "web-1", POD_INDEX: "1"});
        assert_eq!(repair(&set, &unlabelled, 1), Some(json!({"metadata": {"uid": null, "labels": labels}})));
        let mut without_claim = whole.clone();
        without_claim.spec.as_mut().unwrap().volumes = None;
        let patch = repair(&set, &without_claim, 1).unwrap();
        assert_eq!(patch["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "data-web-1");
    }
}
