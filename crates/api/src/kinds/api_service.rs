//! APIService: a group version of the API, served here or by another server.

use json::{Value, json};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use crate::kind::{Kind, StatusMetadata, age, col, name};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{self, NameRule};

pub const API_SERVICE: Kind<APIService> = Kind {
    unconditional_update: false,
    categories: &["api-extensions"],
    status: true,
    status_metadata: StatusMetadata::Stays,
    storage_prefix: Some("apiregistration.k8s.io/apiservices"),
    name: NameRule::PathSegment,
    default: Some(|api| {
        if let Some(service) = api.spec.as_mut().and_then(|s| s.service.as_mut()) {
            service.port.get_or_insert(443);
        }
    }),
    prepare_create: Some(prepare_create),
    validate: Some(validate),
    validate_status: Some(|new, _| validate_status(new)),
    columns: &[
        name(),
        col("Service", "The reference to the service that hosts this API endpoint.", |a, _| {
            let service = a.spec.as_ref().and_then(|s| s.service.as_ref());
            let part = |p: &Option<String>| p.clone().unwrap_or_default();
            Value::from(
                service.map_or_else(|| "Local".to_owned(), |s| format!("{}/{}", part(&s.namespace), part(&s.name))),
            )
        }),
        col("Available", "Whether this service is available.", |a, _| Value::from(available(a))),
        age(),
    ],
    ..Kind::BASE
};

/// A group version that this server serves itself is available as soon as it is named.
fn prepare_create(object: &mut Value) {
    let local = object.get("spec").and_then(|s| s.get("service")).is_none_or(Value::is_null);
    if local {
        let since = object["metadata"]["creationTimestamp"].clone();
        object["status"] = json!({"conditions": [{"type": "Available", "status": "True", "reason": "Local",
            "message": "Local APIServices are always available", "lastTransitionTime": since}]});
    }
}

fn validate(api: &APIService) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("spec");
    let Some(spec) = &api.spec else {
        return vec![FieldError::required(&path, "")];
    };
    let (group, version) = (spec.group.as_deref().unwrap_or(""), spec.version.as_deref().unwrap_or(""));
    let name = api.metadata.name.as_deref().unwrap_or("");
    let wanted = format!("{version}.{group}");
    if name != wanted {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
        errors.push(FieldError::invalid(&Path::new("metadata").child("name"), name, &detail));
    }
    if group.is_empty() && version != "v1" {
        let detail = "only v1 may have an empty group and it better be legacy kube";
        errors.push(FieldError::required(&path.child("group"), detail));
    }
    let invalid = |field: &str, value: &str, detail: &String| FieldError::invalid(&path.child(field), value, detail);
    if !group.is_empty() {
        errors.extend(names::dns1123_subdomain(group).iter().map(|detail| invalid("group", group, detail)));
    }
    errors.extend(names::dns1035_label(version).iter().map(|detail| invalid("version", version, detail)));
    for (field, value, most) in [
        ("groupPriorityMinimum", spec.group_priority_minimum, 20_000),
        ("versionPriority", spec.version_priority, 1000),
    ] {
        if !(1..=most).contains(&value) {
            let detail = format!("must be positive and less than {most}");
            errors.push(FieldError::invalid(&path.child(field), value, &detail));
        }
    }
    let bundle = spec.ca_bundle.as_ref().map_or(0, |bundle| bundle.0.len());
    let unverified = spec.insecure_skip_tls_verify.unwrap_or(false);
    let Some(service) = &spec.service else {
        if bundle > 0 {
            let shown = format!("{bundle} bytes");
            let detail = "local APIServices may not have a caBundle";
            errors.push(FieldError::invalid(&path.child("caBundle"), shown, detail));
        }
        if unverified {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(FieldError::invalid(&path.child("insecureSkipTLSVerify"), true, detail));
        }
        return errors;
    };
    let of_service = path.child("service");
    for (field, value) in [("namespace", &service.namespace), ("name", &service.name)] {
        if value.as_deref().unwrap_or("").is_empty() {
            errors.push(FieldError::required(&of_service.child(field), ""));
        }
    }
    let port = service.port.unwrap_or(443);
    for why in names::port_number(port) {
        errors.push(FieldError::invalid(&of_service.child("port"), port, &format!("port is not valid: {why}")));
    }
    if unverified && bundle > 0 {
        let detail = "may not be true if caBundle is present";
        errors.push(FieldError::invalid(&path.child("insecureSkipTLSVerify"), true, detail));
    }
    errors
}

fn available(api: &APIService) -> String {
    let mut conditions = api.status.iter().flat_map(|s| s.conditions.iter().flatten());
    match conditions.find(|c| c.type_ == "Available") {
        None => "Unknown".to_owned(),
        Some(c) if c.status == "True" => c.status.clone(),
        Some(c) => format!("{} ({})", c.status, c.reason.as_deref().unwrap_or_default()),
    }
}

fn validate_status(new: &Value) -> Errors {
    let path = Path::new("status").child("conditions");
    let list = new.get("status").and_then(|status| status.get("conditions")).and_then(Value::as_array);
    let known = &["True", "False", "Unknown"];
    let said = |condition: &'_ Value| condition.get("status").and_then(Value::as_str).unwrap_or_default().to_owned();
    let all = list.into_iter().flatten().map(said).enumerate();
    let wrong = all.filter(|(_, status)| !known.contains(&status.as_str()));
    wrong.map(|(i, status)| FieldError::not_supported(&path.index(i).child("status"), status, known)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::rollout;

    #[test]
    fn a_condition_holds_or_does_not_or_nobody_knows() {
        let check = |statuses: &[&str], expected: &[&str]| {
            let conditions: Vec<Value> = statuses.iter().map(|s| json!({"type": "Available", "status": s})).collect();
            let new = json!({"conditions": conditions});
            rollout::check_status(API_SERVICE.validate_status, &new, &Value::Null, expected);
        };
        check(&["True", "False", "Unknown"], &[]);
        let supported = "supported values: \"True\", \"False\", \"Unknown\"";
        check(&["True", "Yes"], &[&format!("status.conditions[1].status: Unsupported value: \"Yes\": {supported}")]);
    }

    fn check(name: &str, spec: Value, expected: &[&str]) {
        let api: APIService = json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        let got: Vec<String> = validate(&api).iter().map(|e| format!("{}: {}", e.path, e.detail)).collect();
        assert_eq!(got, expected, "{spec}");
    }

    #[test]
    fn names_groups_and_priorities() {
        let spec = |group: &str, version: &str, (of_group, of_version): (i32, i32)| json!({"group": group, "version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version});
        check("v1.a.b", spec("a.b", "v1", (20_000, 1000)), &[]);
        check("v1.", spec("", "v1", (1, 1)), &[]);
        let name = "metadata.name: Invalid value: \"v1\": must be `spec.version+\".\"+spec.group`: \"v1.a.b\"";
        check("v1", spec("a.b", "v1", (1, 1)), &[name]);
        let group = "spec.group: Required value: only v1 may have an empty group and it better be legacy kube";
        check("v2.", spec("", "v2", (1, 1)), &[group]);
        let low = [
            "spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000",
            "spec.versionPriority: Invalid value: 1001: must be positive and less than 1000",
        ];
        check("v1.a", spec("a", "v1", (0, 1001)), &low);
    }

    #[test]
    fn trust_goes_with_a_service() {
        let spec = |more: Value| {
            let mut spec = json!({"group": "a", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let local = [
            "spec.caBundle: Invalid value: \"3 bytes\": local APIServices may not have a caBundle",
            "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify",
        ];
        check("v1.a", spec(json!({"caBundle": "YWJj", "insecureSkipTLSVerify": true})), &local);
        let both = "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present";
        let service = json!({"namespace": "n", "name": "s", "port": 443});
        let trust = json!({"caBundle": "YWJj", "insecureSkipTLSVerify": true, "service": service});
        check("v1.a", spec(trust), &[both]);
        let unnamed = [
            "spec.service.namespace: Required value",
            "spec.service.name: Required value",
            "spec.service.port: Invalid value: 70000: port is not valid: must be between 1 and 65535, inclusive",
        ];
        check("v1.a", spec(json!({"service": {"port": 70000}})), &unnamed);
    }
}
