//! Annotations about seccomp and AppArmor, as they were before there were fields: their values, and that they say what the fields say.
//! Upstream counterpart: pkg/apis/core/validation (`ValidateSeccompPodAnnotations`, `ValidateAppArmorPodAnnotations` and the rules of
//! new Pods beside them).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, SecurityContext};

use crate::rules::app_armor;
use crate::validation::field::{Errors, FieldError, Path, quote};
use crate::validation::relative_path::relative_path;

pub(crate) const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// With the name of a container behind it.
pub(crate) const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const LOCALHOST: &str = "localhost/";

type Annotations = BTreeMap<String, String>;

/// The values, wherever a Pod or a template has such annotations.
pub(crate) fn values(annotations: &Annotations, spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let of_containers = annotations.iter().filter(|(key, _)| key.starts_with(SECCOMP_OF_CONTAINER));
    for (key, profile) in annotations.get_key_value(SECCOMP_OF_POD).into_iter().chain(of_containers) {
        errors.extend(seccomp(profile, &path.child(key)));
    }
    for (key, profile) in annotations {
        let Some(container) = key.strip_prefix(app_armor::ANNOTATION) else { continue };
        if !contexts(spec).any(|(_, name, _)| name == container) {
            errors.push(FieldError::invalid(&path.key(key), container, "container not found"));
        }
        let known = ["", app_armor::RUNTIME_DEFAULT, app_armor::UNCONFINED].contains(&profile.as_str());
        if !known && !profile.starts_with(LOCALHOST) {
            let detail = format!("invalid AppArmor profile name: {}", quote(profile));
            errors.push(FieldError::invalid(&path.key(key), profile, &detail));
        }
    }
    errors
}

fn seccomp(profile: &str, path: &Path) -> Errors {
    match profile {
        "runtime/default" | "docker/default" | "unconfined" => Errors::new(),
        other => match other.strip_prefix(LOCALHOST) {
            Some(file) => relative_path(file, path),
            None => vec![FieldError::invalid(path, other, "must be a valid seccomp profile")],
        },
    }
}

/// Each container with its place below the spec, its name and its context.
fn contexts(spec: &PodSpec) -> impl Iterator<Item = (Path, &str, Option<&SecurityContext>)> {
    let place = |list: &str, index: usize| Path::new("spec").child(list).index(index);
    let init = spec.init_containers.iter().flatten().map(|c| (&c.name, &c.security_context)).enumerate();
    let own = spec.containers.iter().map(|c| (&c.name, &c.security_context)).enumerate();
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| (&c.name, &c.security_context)).enumerate();
    let init = init.map(move |(index, one)| (place("initContainers", index), one));
    let own = own.map(move |(index, one)| (place("containers", index), one));
    let ephemeral = ephemeral.map(move |(index, one)| (place("ephemeralContainers", index), one));
    init.chain(own).chain(ephemeral).map(|(path, (name, context))| (path, name.as_str(), context.as_ref()))
}

/// A new Pod whose annotations contradict its fields: nobody could say which of them was meant.
pub(crate) fn contradictions(annotations: &Annotations, spec: &PodSpec) -> Errors {
    let of_pod = spec.security_context.as_ref();
    let mut errors = Errors::new();
    if let Some(text) = annotations.get(SECCOMP_OF_POD)
        && let Some(field) = of_pod.and_then(|context| context.seccomp_profile.as_ref())
    {
        let path = Path::new("spec").child("securityContext").child("seccompProfile");
        let said = (field.type_.as_str(), field.localhost_profile.as_deref());
        errors.extend(contradiction("seccomp", text, said, &path));
    }
    for (path, name, context) in contexts(spec) {
        if let Some(text) = annotations.get(&format!("{SECCOMP_OF_CONTAINER}{name}"))
            && let Some(field) = context.and_then(|context| context.seccomp_profile.as_ref())
        {
            let path = path.child("securityContext").child("seccompProfile");
            let said = (field.type_.as_str(), field.localhost_profile.as_deref());
            errors.extend(contradiction("seccomp", text, said, &path));
        }
    }
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return errors;
    }
    for (path, name, context) in contexts(spec) {
        let own = context.and_then(|context| context.app_armor_profile.as_ref());
        if let Some(text) = annotations.get(&format!("{}{name}", app_armor::ANNOTATION))
            && let Some(field) = own.or_else(|| of_pod.and_then(|context| context.app_armor_profile.as_ref()))
        {
            let path = path.child("securityContext").child("appArmorProfile");
            let said = (field.type_.as_str(), field.localhost_profile.as_deref());
            errors.extend(contradiction("apparmor", text, said, &path));
        }
    }
    errors
}

/// Whether an annotation's text means another profile than a field, which is given as its type and its file.
fn contradiction(what: &str, text: &str, said: (&str, Option<&str>), path: &Path) -> Option<FieldError> {
    let same_type = match said.0 {
        "Unconfined" => text == "unconfined",
        "RuntimeDefault" => text == "runtime/default" || (what == "seccomp" && text == "docker/default"),
        "Localhost" => text.starts_with(LOCALHOST),
        // The field is refused for its type.
        _ => true,
    };
    if !same_type {
        let detail = format!("{what} type in annotation and field must match");
        return Some(FieldError::forbidden(&path.child("type"), &detail));
    }
    let same_file = said.0 != "Localhost" || text.strip_prefix(LOCALHOST) == said.1;
    let detail = || format!("{what} profile in annotation and field must match");
    (!same_file).then(|| FieldError::forbidden(&path.child("localhostProfile"), &detail()))
}

#[cfg(test)]
mod tests {
    use json::{Value, json};
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(annotations: Value, spec: Value) -> Pod {
        json::from_value(json!({"metadata": {"annotations": annotations}, "spec": spec})).unwrap()
    }

    fn texts(errors: Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn values_are_checked() {
        let spec = json!({"initContainers": [{"name": "i"}], "containers": [{"name": "c"}]});
        let check = |key: &str, value: &str, expected: &[&str]| {
            let pod = pod(json!({key: value}), spec.clone());
            let path = Path::new("metadata").child("annotations");
            let found = texts(values(pod.metadata.annotations.as_ref().unwrap(), pod.spec.as_ref().unwrap(), &path));
            assert_eq!(found, expected, "{key}: {value}");
        };
        for good in ["runtime/default", "docker/default", "unconfined", "localhost/a/b", "localhost/"] {
            check("seccomp.security.alpha.kubernetes.io/pod", good, &[]);
            check("container.seccomp.security.alpha.kubernetes.io/nobody", good, &[]);
        }
        let of_pod = "metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: Invalid value:";
        for (bad, expected) in [
            ("", "\"\": must be a valid seccomp profile"),
            ("x", "\"x\": must be a valid seccomp profile"),
            ("localhost/../x", "\"../x\": must not contain '..'"),
            ("localhost//x", "\"/x\": must be a relative path"),
        ] {
            check("seccomp.security.alpha.kubernetes.io/pod", bad, &[&format!("{of_pod} {expected}")]);
        }
        let of_container = "metadata.annotations.container.seccomp.security.alpha.kubernetes.io/c: Invalid value: \"x\": must be a valid seccomp profile";
        check("container.seccomp.security.alpha.kubernetes.io/c", "x", &[of_container]);
        for good in ["", "runtime/default", "unconfined", "localhost/", "localhost/x"] {
            check("container.apparmor.security.beta.kubernetes.io/c", good, &[]);
            check("container.apparmor.security.beta.kubernetes.io/i", good, &[]);
        }
        let at = |name: &str| format!("metadata.annotations[container.apparmor.security.beta.kubernetes.io/{name}]");
        let unknown = format!("{}: Invalid value: \"d\": container not found", at("d"));
        check("container.apparmor.security.beta.kubernetes.io/d", "unconfined", &[&unknown]);
        let bad = |name: &str| format!("{}: Invalid value: \"x\": invalid AppArmor profile name: \"x\"", at(name));
        check("container.apparmor.security.beta.kubernetes.io/c", "x", &[&bad("c")]);
        check("container.apparmor.security.beta.kubernetes.io/d", "x", &[&unknown, &bad("d")]);
    }

    #[test]
    fn a_new_pod_does_not_contradict_itself() {
        let seccomp = |type_: &str, file: Value| json!({"seccompProfile": {"type": type_, "localhostProfile": file}});
        let armor = |type_: &str, file: Value| json!({"appArmorProfile": {"type": type_, "localhostProfile": file}});
        let (none, f) = (Value::Null, json!("f"));
        let check = |key: &str, text: &str, of_pod: Value, own: Value, expected: &[&str]| {
            for os in [json!({"name": "linux"}), json!({"name": "windows"})] {
                let spec = json!({"os": os, "securityContext": of_pod,
                    "containers": [{"name": "c", "securityContext": own}]});
                let pod = pod(json!({key: text}), spec);
                let found = contradictions(pod.metadata.annotations.as_ref().unwrap(), pod.spec.as_ref().unwrap());
                let skipped = os["name"] == "windows" && key.contains("apparmor");
                assert_eq!(texts(found), if skipped { &[] } else { expected }, "{key}: {text}");
            }
        };
        let other_type =
            "spec.securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match";
        check(SECCOMP_OF_POD, "unconfined", seccomp("RuntimeDefault", none.clone()), none.clone(), &[other_type]);
        check(SECCOMP_OF_POD, "docker/default", seccomp("RuntimeDefault", none.clone()), none.clone(), &[]);
        let key = format!("{SECCOMP_OF_CONTAINER}c");
        let other_file = "spec.containers[0].securityContext.seccompProfile.localhostProfile: Forbidden: seccomp profile in annotation and field must match";
        check(&key, "localhost/g", none.clone(), seccomp("Localhost", f.clone()), &[other_file]);
        check(&key, "localhost/f", none.clone(), seccomp("Localhost", f.clone()), &[]);
        check(&key, "unconfined", seccomp("RuntimeDefault", none.clone()), none.clone(), &[]);
        let key = format!("{}c", app_armor::ANNOTATION);
        let at = "spec.containers[0].securityContext.appArmorProfile";
        let other_type = format!("{at}.type: Forbidden: apparmor type in annotation and field must match");
        let other_file =
            format!("{at}.localhostProfile: Forbidden: apparmor profile in annotation and field must match");
        check(&key, "unconfined", armor("RuntimeDefault", none.clone()), none.clone(), &[&other_type]);
        check(&key, "unconfined", armor("RuntimeDefault", none.clone()), armor("Unconfined", none.clone()), &[]);
        check(&key, "localhost/g", none.clone(), armor("Localhost", f.clone()), &[&other_file]);
        check(&key, "localhost/f", none.clone(), armor("Localhost", f), &[]);
        check(&key, "docker/default", none.clone(), armor("RuntimeDefault", none.clone()), &[&other_type]);
        check(&key, "unconfined", none.clone(), armor("New", none), &[]);
    }
}
