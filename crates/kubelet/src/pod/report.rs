//! Writes a Pod's status to the API: only what has changed, only when something has.

use api::object::Object;
use client::{Api, rest::DeleteOptions};
use json::{Value, json};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::{
    kubelet::Kubelet,
    pod::{
        desired::DesiredPod,
        status::conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING},
    },
};

/// The conditions that are there only as long as they hold, and hold no longer. Those that others set are theirs.
fn taken_back(before: &json::Map, after: &json::Map) -> impl Iterator<Item = &'static str> + use<> {
    let has = |status: &json::Map, kind: &str| {
        let conditions = status.get("conditions").and_then(Value::as_array);
        conditions.is_some_and(|list| list.iter().any(|c| c["type"] == kind))
    };
    let gone =
        [RESIZE_PENDING, RESIZE_IN_PROGRESS].map(|kind| (has(before, kind) && !has(after, kind)).then_some(kind));
    gone.into_iter().flatten()
}

/// The fields of `after` that differ, with `null` for those that are gone.
fn difference(before: &PodStatus, after: &PodStatus) -> Value {
    let fields = |s: &PodStatus| match s.to_value() {
        Value::Object(map) => map,
        _ => json::Map::new(),
    };
    let (before, mut after) = (fields(before), fields(after));
    let gone: Vec<String> = before.keys().filter(|k| !after.contains_key(k)).map(ToString::to_string).collect();
    let taken_back = taken_back(&before, &after);
    after.retain(|key, value| before.get(key) != Some(value));
    if let Some(Value::Array(conditions)) = after.get_mut("conditions") {
        conditions.extend(taken_back.map(|kind| json!({"type": kind, "$patch": "delete"})));
    }
    if let Some(Value::Array(conditions)) = after.get_mut("conditions") {
        // Conditions are merged by their type: what is no longer said has to be taken back.
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            for field in ["reason", "message"] {
                if !condition.contains_key("$patch") {
                    condition.entry(field).or_insert(Value::Null);
                }
            }
        }
    }
    for list in ["podIPs", "hostIPs"] {
        if let Some(Value::Array(addresses)) = after.get_mut(list) {
            // Addresses are merged by themselves: those of a sandbox that is gone would stay beside the new ones.
            addresses.insert(0, json!({"$patch": "replace"}));
        }
    }
    after.extend(gone.into_iter().filter(|k| k == "reason" || k == "message").map(|k| (k, Value::Null)));
    Value::Object(after)
}

/// Reports `status`, having reported `before`. The Pod as the server has it goes by `uid`: a namesake is left alone.
/// Returns false when it should be tried again.
pub async fn write(kubelet: &Kubelet, desired: &DesiredPod, uid: &str, before: &PodStatus, status: &PodStatus) -> bool {
    let changed = difference(before, status);
    if changed.as_object().is_none_or(json::Map::is_empty) {
        return true;
    }
    waypoint::kubelet::status_update(&desired.full_name());
    let api: Api<Pod> = Api::namespaced(kubelet.config.client.clone(), desired.namespace());
    let patch = json!({ "metadata": { "uid": uid }, "status": changed });
    match api.strategic_patch(desired.name(), "status", patch).await {
        Ok(_) => true,
        // Gone, or another Pod of that name by now.
        Err(client::Error::Api(s)) if s.code == 404 || s.code == 409 => true,
        Err(error) => {
            tracing::warn!(pod = desired.full_name(), %error, "the status could not be written");
            false
        }
    }
}

/// The last act of a deletion: the object goes, if it still is this one.
pub async fn delete(kubelet: &Kubelet, desired: &DesiredPod) -> bool {
    let api: Api<Pod> = Api::namespaced(kubelet.config.client.clone(), desired.namespace());
    let options =
        DeleteOptions { uid: Some(desired.uid().to_owned()), grace_seconds: Some(0), ..DeleteOptions::default() };
    match api.delete(desired.name(), options).await {
        Ok(_) => true,
        Err(client::Error::Api(s)) if s.code == 404 || s.code == 409 => true,
        Err(error) => {
            tracing::warn!(pod = desired.full_name(), %error, "the Pod could not be deleted finally");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(json: Value) -> PodStatus {
        json::from_value(json).unwrap()
    }

    #[test]
    fn only_what_changed_is_written_and_what_is_gone_is_taken_back() {
        let unready = json!({"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "why"});
        let before = status(json!({"phase": "Pending", "podIP": "10.0.0.1", "reason": "Old", "conditions": [unready]}));
        let ready = json!({"type": "Ready", "status": "True"});
        let after = status(json!({"phase": "Running", "podIP": "10.0.0.1", "conditions": [ready]}));
        let expected = json!({
            "phase": "Running", "reason": null,
            "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}],
        });
        assert_eq!(difference(&before, &after), expected);
        assert_eq!(difference(&after, &after), json!({}));
        let pending = json!({"type": "PodResizePending", "status": "True"});
        let others = json!({"type": "example.com/other", "status": "True"});
        let waits = status(json!({"conditions": [pending, others]}));
        let expected = json!({"conditions": [
            {"type": "Ready", "status": "True", "reason": null, "message": null},
            {"type": "PodResizePending", "$patch": "delete"},
        ]});
        assert_eq!(difference(&waits, &status(json!({"conditions": [{"type": "Ready", "status": "True"}]}))), expected);
        let at = |ip: &str| status(json!({"podIP": ip, "podIPs": [{"ip": ip}]}));
        let expected = json!({"podIP": "10.0.0.2", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]});
        assert_eq!(difference(&at("10.0.0.1"), &at("10.0.0.2")), expected);
    }
}
