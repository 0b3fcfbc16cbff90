//! A new Pod's annotations about AppArmor become fields, so that whoever reads the Pod later needs to know of the fields alone.

use k8s_openapi::api::core::v1::AppArmorProfile;
use serde::Deserialize;

use super::Path;
use crate::{
    Value,
    rules::app_armor::{ANNOTATION, WARNING, of_annotation},
};

/// Writes the profiles of annotations into the containers without one, but for those that the whole Pod has anyway. Returns the
/// warnings about annotations that became fields or mean nothing.
pub(crate) fn from_annotations(pod: &mut Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(annotations) = pod.pointer("/metadata/annotations").and_then(Value::as_object) else { return warnings };
    if !annotations.keys().any(|key| key.starts_with(ANNOTATION)) {
        return warnings;
    }
    let annotations = annotations.clone();
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec["os"]["name"] != "windows") else { return warnings };
    let of_pod = AppArmorProfile::deserialize(&spec["securityContext"]["appArmorProfile"]).ok();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let key = format!("{ANNOTATION}{}", container["name"].as_str().unwrap_or_default());
            let Some(text) = annotations.get(&key).and_then(Value::as_str) else { continue };
            if !container["securityContext"]["appArmorProfile"].is_null() {
                continue;
            }
            let profile = of_annotation(text).filter(|profile| super::app_armor(profile, &Path::new("")).is_empty());
            if profile.is_some() && profile == of_pod {
                continue;
            }
            if let Some(profile) = profile {
                container["securityContext"]["appArmorProfile"] = json::to_value(profile).unwrap_or_default();
            }
            warnings.push(format!("{}: {WARNING}", Path::new("metadata").child("annotations").key(&key)));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn annotations_become_fields() {
        let check = |pod: Value, expected: Value, warned: bool| {
            let mut made = json!({"metadata": {"annotations": {format!("{ANNOTATION}c"): pod["annotation"]}},
                "spec": {"containers": [{"name": "c"}, {"name": "d"}]}});
            for field in ["os", "securityContext"] {
                if !pod[field].is_null() {
                    made["spec"][field] = pod[field].clone();
                }
            }
            if !pod["own"].is_null() {
                made["spec"]["containers"][0]["securityContext"] = json!({"appArmorProfile": pod["own"]});
            }
            let warnings = from_annotations(&mut made);
            let found = &made["spec"]["containers"][0]["securityContext"]["appArmorProfile"];
            assert_eq!(*found, expected, "{pod}");
            let told = format!("metadata.annotations[{ANNOTATION}c]: {WARNING}");
            assert_eq!(warnings, Vec::from_iter(warned.then_some(told)), "{pod}");
            assert!(made["spec"]["containers"][1].get("securityContext").is_none(), "{made}");
        };
        let of = |type_: &str| json!({"type": type_});
        let local = json!({"type": "Localhost", "localhostProfile": "x"});
        check(json!({"annotation": "unconfined"}), of("Unconfined"), true);
        check(json!({"annotation": "runtime/default"}), of("RuntimeDefault"), true);
        check(json!({"annotation": "localhost/x"}), local.clone(), true);
        for nothing in ["localhost/", "localhost/ x", "x", "", "Unconfined"] {
            check(json!({"annotation": nothing}), Value::Null, true);
        }
        check(json!({"annotation": "localhost/x", "own": of("Unconfined")}), of("Unconfined"), false);
        check(json!({"annotation": "unconfined", "own": of("Unconfined")}), of("Unconfined"), false);
        check(json!({"annotation": "localhost/x", "os": {"name": "windows"}}), Value::Null, false);
        check(json!({"annotation": "localhost/x", "os": {"name": "linux"}}), local.clone(), true);
        check(json!({"annotation": "localhost/x", "securityContext": {"appArmorProfile": local}}), Value::Null, false);
        let other = json!({"appArmorProfile": of("RuntimeDefault")});
        check(json!({"annotation": "unconfined", "securityContext": other}), of("Unconfined"), true);
    }
}
