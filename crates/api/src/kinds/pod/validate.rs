//! Validation of Pods and templates: what is not about one container, volume or place.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use json::Value;
use k8s_openapi::api::core::v1::{
    Pod, PodResourceClaim, PodSpec, PodTemplateSpec, Toleration, Volume, WorkloadReference,
};

use crate::codec::syntax;
use crate::kinds::pod::{container, placement, resources, security, volume};
use crate::rules::ip;
use crate::rules::pod::{self, MIRROR_ANNOTATION};
use crate::validation::field::{Errors, FieldError, Path, one_of};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta::{self, invalid, invalid_at};

type Annotations = BTreeMap<String, String>;

pub(crate) fn validate(pod: &Pod) -> Errors {
    let path = Path::new("spec");
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    let annotations = Path::new("metadata").child("annotations");
    let mut errors = validate_annotations(pod.metadata.annotations.as_ref(), spec, &annotations);
    errors.extend(validate_spec(spec, Some(pod), &path));
    if spec.service_account_name.as_deref().unwrap_or_default().is_empty() {
        errors.extend(tokens_without_account(spec, &path.child("volumes")));
    }
    errors.extend(container::trimmed_images(&spec.containers, &path.child("containers")));
    let init = spec.init_containers.as_deref().unwrap_or_default();
    errors.extend(container::trimmed_images(init, &path.child("initContainers")));
    errors
}

/// Rules that only a new Pod must keep.
pub(crate) fn validate_create(pod: &Pod) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    let Some(spec) = &pod.spec else { return errors };
    if let Some(annotations) = &pod.metadata.annotations {
        errors.extend(security::annotations::contradictions(annotations, spec));
    }
    if spec.ephemeral_containers.as_ref().is_some_and(|l| !l.is_empty()) {
        errors.push(FieldError::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
    }
    let gated = spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty());
    if gated && spec.node_name.as_deref().is_some_and(|n| !n.is_empty()) {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(&path.child("nodeName"), detail));
    }
    errors
}

/// A template anywhere; its labels and annotations too.
pub(crate) fn validate_template(template: &PodTemplateSpec, path: &Path) -> Errors {
    let place = path.child("spec");
    let meta = template.metadata.as_ref();
    let none = PodSpec::default();
    let spec = template.spec.as_ref().unwrap_or(&none);
    let annotations = meta.and_then(|m| m.annotations.as_ref());
    let mut errors = object_meta::labels(meta.and_then(|m| m.labels.as_ref()), &path.child("labels"));
    errors.extend(object_meta::annotations(annotations, &path.child("annotations")));
    errors.extend(validate_annotations(annotations, spec, &path.child("annotations")));
    errors.extend(validate_spec(spec, None, &place));
    if spec.ephemeral_containers.as_ref().is_some_and(|l| !l.is_empty()) {
        let detail = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(&place.child("ephemeralContainers"), detail));
    }
    errors
}

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Annotations that mean something to the server.
fn validate_annotations(annotations: Option<&Annotations>, spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let Some(annotations) = annotations else { return errors };
    if let Some(hash) = annotations.get(MIRROR_ANNOTATION)
        && spec.node_name.as_deref().unwrap_or_default().is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid(&path.key(MIRROR_ANNOTATION), hash, detail));
    }
    if let Some(text) = annotations.get(TOLERATIONS).filter(|text| !text.is_empty()) {
        match annotated_tolerations(text) {
            Ok(list) => errors.extend(placement::tolerations(&list, &path.child(TOLERATIONS))),
            Err(why) => errors.push(FieldError::invalid(path, TOLERATIONS, &why)),
        }
    }
    if let Some(cost) = annotations.get(DELETION_COST).filter(|cost| !is_cost(cost)) {
        errors.push(FieldError::invalid(&path.key(DELETION_COST), cost, "must be a 32bit integer"));
    }
    errors.extend(security::annotations::values(annotations, spec, path));
    errors
}

/// The tolerations in an annotation, which nobody follows any more. Names of fields are read in any case, as Go's decoder reads them.
fn annotated_tolerations(text: &str) -> Result<Vec<Toleration>, String> {
    let list = json::parse(text).map_err(|why| syntax::in_gos_words(text.as_bytes(), why.to_string()))?;
    let wrong = |value: &Value, wanted: &str| {
        let found = match value {
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::String(_) => "string",
            Value::Bool(_) => "bool",
            _ => "number",
        };
        format!("json: cannot unmarshal {found} into Go {wanted}")
    };
    let items = match &list {
        Value::Null => &[],
        Value::Array(items) => items.as_slice(),
        other => return Err(wrong(other, "value of type []core.Toleration")),
    };
    let mut tolerations = Vec::new();
    for item in items {
        let mut one = Toleration::default();
        match item {
            Value::Null => {}
            Value::Object(fields) => {
                for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                    let (name, type_, place) = match key.to_ascii_lowercase().as_str() {
                        "key" => ("Key", "string", &mut one.key),
                        "operator" => ("Operator", "core.TolerationOperator", &mut one.operator),
                        "value" => ("Value", "string", &mut one.value),
                        "effect" => ("Effect", "core.TaintEffect", &mut one.effect),
                        "tolerationseconds" => {
                            let wanted = "struct field Toleration.TolerationSeconds of type int64";
                            let seconds = value.as_i64().ok_or_else(|| wrong(value, wanted))?;
                            one.toleration_seconds = Some(seconds);
                            continue;
                        }
                        _ => continue,
                    };
                    let wanted = || format!("struct field Toleration.{name} of type {type_}");
                    *place = Some(value.as_str().ok_or_else(|| wrong(value, &wanted()))?.to_owned());
                }
            }
            other => return Err(wrong(other, "value of type core.Toleration")),
        }
        tolerations.push(one);
    }
    Ok(tolerations)
}

/// Neither a plus sign nor a leading zero.
fn is_cost(text: &str) -> bool {
    let plain = !text.starts_with('+') && (!text.starts_with('0') || text == "0");
    plain && text.parse::<i32>().is_ok()
}

fn tokens_without_account(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        for (j, _) in sources.enumerate().filter(|(_, s)| s.service_account_token.is_some()) {
            let path = path.index(i).child("projected").child("sources").index(j).child("serviceAccountToken");
            errors.push(FieldError::forbidden(&path, "must not be specified when serviceAccountName is not set"));
        }
    }
    errors
}

/// The spec of a Pod or, without one, of a template.
/// The group of Pods that a Pod is scheduled with.
fn workload_reference(reference: &WorkloadReference, path: &Path) -> Errors {
    let mut errors = invalid_at(path, "name", &reference.name, names::dns1123_subdomain(&reference.name));
    errors.extend(invalid_at(path, "podGroup", &reference.pod_group, names::dns1123_label(&reference.pod_group)));
    if let Some(key) = reference.pod_group_replica_key.as_deref().filter(|key| !key.is_empty()) {
        errors.extend(invalid_at(path, "podGroupReplicaKey", key, names::dns1123_label(key)));
    }
    errors
}

fn validate_spec(spec: &PodSpec, pod: Option<&Pod>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if spec.termination_grace_period_seconds.is_none() {
        errors.push(FieldError::required(&path.child("terminationGracePeriodSeconds"), ""));
    }
    if let Some(reference) = &spec.workload_ref {
        errors.extend(workload_reference(reference, &path.child("workloadRef")));
    }
    let name = pod.and_then(|p| p.metadata.name.as_deref()).unwrap_or_default();
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let volumes = volume::validate(volumes, name, &path.child("volumes"), &mut errors);
    let claims = spec.resource_claims.as_deref().unwrap_or_default();
    errors.extend(resource_claims(claims, pod, &path.child("resourceClaims")));
    let claims = claims.iter().map(|c| c.name.as_str()).filter(|n| !n.is_empty()).collect();
    let around = container::Around { volumes, claims, spec };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let ephemeral = spec.ephemeral_containers.as_deref().unwrap_or_default();
    errors.extend(container::validate_main(&spec.containers, &around, &path.child("containers")));
    errors.extend(container::validate_init(init, &around, &path.child("initContainers")));
    errors.extend(container::validate_ephemeral(ephemeral, &around, &path.child("ephemeralContainers")));
    errors.extend(resources::of_pod(spec, &around.claims, &path.child("resources")));
    if spec.host_network == Some(true) {
        errors.extend(ports_of_host(spec, pod.is_some(), &path.child("containers")));
    }
    let word = |text: &'_ Option<String>| text.clone().unwrap_or_default();
    errors.extend(one_of(&word(&spec.restart_policy), &["Always", "OnFailure", "Never"], path, "restartPolicy"));
    let policies = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.extend(one_of(&word(&spec.dns_policy), policies, path, "dnsPolicy"));
    errors.extend(object_meta::labels(spec.node_selector.as_ref(), &path.child("nodeSelector")));
    if let Some(context) = &spec.security_context {
        errors.extend(security::of_pod(context, spec, &path.child("securityContext")));
    }
    errors.extend(spec.affinity.iter().flat_map(|a| placement::affinity(a, &path.child("affinity"))));
    errors.extend(dns_config(spec, &path.child("dnsConfig")));
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let wrong = names::qualified_name(&gate.condition_type);
        errors.extend(invalid_at(&path.child("readinessGates").index(i), "conditionType", &gate.condition_type, wrong));
    }
    errors.extend(scheduling_gates(spec, &path.child("schedulingGates")));
    let spread = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    errors.extend(placement::spread(spread, &path.child("topologySpreadConstraints")));
    errors.extend(security::own_users(spec, path));
    errors.extend(hostname_override(spec, path));
    errors.extend(plain_fields(spec, path));
    errors.extend(security::host_process(spec, path));
    errors.extend(security::os(spec, path));
    errors.extend(variable_files(spec, path));
    errors
}

fn plain_fields(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut named = |field: &str, name: &Option<String>, rule: fn(&str) -> Vec<String>| {
        if let Some(name) = name.as_deref().filter(|n| !n.is_empty()) {
            errors.extend(invalid_at(path, field, name, rule(name)));
        }
    };
    named("serviceAccountName", &spec.service_account_name, names::dns1123_subdomain);
    named("nodeName", &spec.node_name, names::dns1123_subdomain);
    if let Some(seconds) = spec.active_deadline_seconds.filter(|s| !(1..=i64::from(i32::MAX)).contains(s)) {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(&path.child("activeDeadlineSeconds"), seconds, detail));
    }
    let mut named = |field: &str, name: &Option<String>, rule: fn(&str) -> Vec<String>| {
        if let Some(name) = name.as_deref().filter(|n| !n.is_empty()) {
            errors.extend(invalid_at(path, field, name, rule(name)));
        }
    };
    named("hostname", &spec.hostname, names::dns1123_label);
    named("subdomain", &spec.subdomain, names::dns1123_label);
    errors.extend(placement::tolerations(spec.tolerations.as_deref().unwrap_or_default(), &path.child("tolerations")));
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = path.child("hostAliases").index(i);
        errors.extend(ip::errors(&alias.ip, &path.child("ip")));
        for (i, name) in alias.hostnames.iter().flatten().enumerate() {
            errors.extend(invalid(&path.child("hostnames").index(i), name, names::dns1123_subdomain(name)));
        }
    }
    if let Some(name) = spec.priority_class_name.as_deref().filter(|n| !n.is_empty()) {
        errors.extend(invalid_at(path, "priorityClassName", name, names::dns1123_subdomain(name)));
    }
    if let Some(name) = &spec.runtime_class_name {
        errors.extend(invalid_at(path, "runtimeClassName", name, names::dns1123_subdomain(name)));
    }
    if let Some(policy) = &spec.preemption_policy {
        errors.extend(one_of(policy, &["PreemptLowerPriority", "Never"], path, "preemptionPolicy"));
    }
    errors.extend(spec.overhead.iter().flat_map(|amounts| resources::overhead(amounts, &path.child("overhead"))));
    errors
}

/// On the host's network a port is the same inside and outside; a template may leave the outside to its Pods.
fn ports_of_host(spec: &PodSpec, is_pod: bool, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, container) in spec.containers.iter().enumerate() {
        for (j, port) in container.ports.iter().flatten().enumerate() {
            let host = port.host_port.unwrap_or(0);
            if (is_pod || host != 0) && host != port.container_port {
                let path = path.index(i).child("ports").index(j).child("hostPort");
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(&path, host, detail));
            }
        }
    }
    errors
}

fn resource_claims(list: &[PodResourceClaim], pod: Option<&Pod>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, claim) in list.iter().enumerate() {
        if pod.is_some_and(pod::is_mirror) {
            return vec![FieldError::forbidden(&Path::default(), "static pods do not support resource claims")];
        }
        let path = path.index(i);
        if claim.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !seen.insert(&claim.name) {
            errors.push(FieldError::duplicate(&path.child("name"), &claim.name));
        } else {
            errors.extend(invalid_at(&path, "name", &claim.name, names::dns1123_label(&claim.name)));
        }
        let (own, template) = (&claim.resource_claim_name, &claim.resource_claim_template_name);
        let shown = || internal_form::compact("PodResourceClaim", claim);
        if own.is_some() && template.is_some() {
            let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
            errors.push(FieldError::invalid_shown(&path, &shown(), detail));
        }
        if own.is_none() && template.is_none() {
            let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
            errors.push(FieldError::invalid_shown(&path, &shown(), detail));
        }
        for (field, name) in [("resourceClaimName", own), ("resourceClaimTemplateName", template)] {
            if let Some(name) = name {
                errors.extend(invalid_at(&path, field, name, names::dns1123_subdomain(name)));
            }
        }
    }
    errors
}

const SERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARACTERS_MAX: usize = 2048;

fn dns_config(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let none = spec.dns_policy.as_deref() == Some("None");
    let Some(config) = &spec.dns_config else {
        if none {
            errors.push(FieldError::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
        }
        return errors;
    };
    let servers = config.nameservers.as_deref().unwrap_or_default();
    let place = path.child("nameservers");
    if none && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return vec![FieldError::required(&place, detail)];
    }
    if servers.len() > SERVERS_MAX {
        let detail = format!("must not have more than {SERVERS_MAX} nameservers");
        errors.push(FieldError::invalid(&place, servers, &detail));
    }
    for (i, server) in servers.iter().enumerate() {
        errors.extend(ip::errors(server, &place.index(i)));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let place = path.child("searches");
    if searches.len() > SEARCHES_MAX {
        let detail = format!("must not have more than {SEARCHES_MAX} search paths");
        errors.push(FieldError::invalid(&place, searches, &detail));
    }
    if searches.join(" ").len() > SEARCH_CHARACTERS_MAX {
        let detail =
            format!("must not have more than {SEARCH_CHARACTERS_MAX} characters (including spaces) in the search list");
        errors.push(FieldError::invalid(&place, searches, &detail));
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, s)| *s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        errors.extend(invalid(&place.index(i), search, names::dns1123_subdomain_with_underscore(search)));
    }
    for (i, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(&path.child("options").index(i), "must not be empty"));
        }
    }
    errors
}

fn scheduling_gates(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let path = path.index(i);
        errors.extend(invalid(&path, &gate.name, names::qualified_name(&gate.name)));
        if !seen.insert(&gate.name) {
            errors.push(FieldError::duplicate(&path, &gate.name));
        }
    }
    errors
}

/// The longest host name that Linux takes.
const HOSTNAME_MAX: usize = 64;

fn hostname_override(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let Some(name) = &spec.hostname_override else { return errors };
    for (field, set) in [("setHostnameAsFQDN", spec.set_hostname_as_fqdn), ("hostNetwork", spec.host_network)] {
        if set == Some(true) {
            let detail = format!("may not be specified when {field} is true");
            errors.push(FieldError::forbidden(&path.child("hostnameOverride"), &detail));
        }
    }
    if name.len() > HOSTNAME_MAX {
        errors.push(FieldError::too_long(&path.child("hostnameOverride"), HOSTNAME_MAX));
    }
    errors.extend(invalid_at(path, "hostnameOverride", name, names::dns1123_subdomain(name)));
    errors
}

/// Files that variables come from are in volumes that containers share and nobody else writes.
fn variable_files(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let init = spec.init_containers.as_deref().unwrap_or_default();
    // The first volume of each name.
    let by_name = || spec.volumes.iter().flatten().rev().map(|v| (v.name.as_str(), v)).collect();
    let volumes: LazyCell<BTreeMap<&str, &Volume>, _> = LazyCell::new(by_name);
    for (field, list) in [("initContainers", init), ("containers", spec.containers.as_slice())] {
        for (i, container) in list.iter().enumerate() {
            for (j, variable) in container.env.iter().flatten().enumerate() {
                let Some(file) = variable.value_from.as_ref().and_then(|v| v.file_key_ref.as_ref()) else { continue };
                let path = path.child(field).index(i).child("env").index(j);
                let path = path.child("valueFrom").child("fileKeyRef").child("volumeName");
                match volumes.get(file.volume_name.as_str()) {
                    None => errors.push(FieldError::not_found(&path, &file.volume_name)),
                    Some(volume) if volume.empty_dir.is_none() => {
                        let detail = "referenced volume must be of type emptyDir";
                        errors.push(FieldError::invalid(&path, &file.volume_name, detail));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pod::defaults;
    use json::{Value, json};

    #[track_caller]
    fn check(spec: Value, expected: &[&str]) {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
        defaults::pod(&mut pod);
        let pod: Pod = json::from_value(pod).unwrap();
        let errors: Vec<String> = validate(&pod).iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), expected.len(), "{errors:#?}");
        for (error, start) in errors.iter().zip(expected) {
            assert!(error.starts_with(start), "{error:?} does not start with {start:?}");
        }
    }

    #[test]
    fn tolerations_in_an_annotation() {
        let check = |text: &str, expected: &[&str]| {
            let annotations = Annotations::from([(TOLERATIONS.to_owned(), text.to_owned())]);
            let path = Path::new("metadata").child("annotations");
            let errors = validate_annotations(Some(&annotations), &PodSpec::default(), &path);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{text}");
        };
        for good in ["", "null", "[]", "[null]", r#"[{"Key": "a", "operator": "Exists", "more": 1}]"#] {
            check(good, if good == "[null]" { &[ALL_KEYS] } else { &[] });
        }
        const ALL_KEYS: &str = "metadata.annotations.scheduler.alpha.kubernetes.io/tolerations[0].operator: Invalid value: \"\": \
            operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        let at = "metadata.annotations: Invalid value: \"scheduler.alpha.kubernetes.io/tolerations\": ";
        for (bad, why) in [
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{}", "json: cannot unmarshal object into Go value of type []core.Toleration"),
            ("[1]", "json: cannot unmarshal number into Go value of type core.Toleration"),
            (r#"[{"key": 1}]"#, "json: cannot unmarshal number into Go struct field Toleration.Key of type string"),
            (
                r#"[{"tolerationSeconds": "1"}]"#,
                "json: cannot unmarshal string into Go struct field Toleration.TolerationSeconds of type int64",
            ),
        ] {
            check(bad, &[&format!("{at}{why}")]);
        }
    }

    #[test]
    fn specs() {
        let one = |fields: Value| {
            let mut container = json!({"name": "c", "image": "i"});
            container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({"containers": [container]})
        };
        check(one(json!({})), &[]);
        check(json!({"containers": []}), &["spec.containers: Required value"]);
        check(
            one(json!({"name": "A"})),
            &["spec.containers[0].name: Invalid value: \"A\": a lowercase RFC 1123 label"],
        );
        check(one(json!({"image": ""})), &["spec.containers[0].image: Required value"]);
        check(
            json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]}),
            &["spec.containers[1].name: Duplicate value: \"c\""],
        );
        check(
            one(json!({"volumeMounts": [{"name": "v", "mountPath": "/x"}]})),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"v\""],
        );
        check(
            one(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            &[
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        );
        check(
            one(json!({"resources": {"limits": {"gpu": "1"}}})),
            &[
                "spec.containers[0].resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
                "spec.containers[0].resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource for containers",
                "spec.containers[0].resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource type",
                "spec.containers[0].resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource for",
            ],
        );
        check(
            one(json!({"imagePullPolicy": "x"})),
            &[
                "spec.containers[0].imagePullPolicy: Unsupported value: \"x\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        );
        check(
            one(json!({"ports": [{"containerPort": 0}]})),
            &["spec.containers[0].ports[0].containerPort: Required value"],
        );
        check(
            one(json!({"livenessProbe": {}})),
            &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        );
        let mut odd = one(json!({}));
        odd["restartPolicy"] = json!("Sometimes");
        odd["tolerations"] = json!([{"key": "a", "operator": "Exists", "value": "b"}]);
        check(
            odd,
            &["spec.restartPolicy: Unsupported value: \"Sometimes\"", "spec.tolerations[0].operator: Invalid value"],
        );
    }
}
