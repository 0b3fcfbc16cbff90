//! APIService: a group version of the API, served here or by another server.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde_json::{Value, json};

use crate::kind::{Kind, age, col, name};
use crate::validation::names::NameRule;

pub const API_SERVICE: Kind<APIService> = Kind {
    without_effect: Some("requests are not passed on to other API servers"),
    unconditional_update: false,
    categories: &["api-extensions"],
    status: true,
    storage_prefix: Some("apiregistration.k8s.io/apiservices"),
    name: NameRule::PathSegment,
    default: Some(|api| {
        if let Some(service) = api.spec.as_mut().and_then(|s| s.service.as_mut()) {
            service.port.get_or_insert(443);
        }
    }),
    prepare_create: Some(prepare_create),
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
        object["status"] = json!({"conditions": [{"type": "Available", "status": "True", "reason": "Local",
            "message": "Local APIServices are always available"}]});
    }
}

fn available(api: &APIService) -> String {
    let mut conditions = api.status.iter().flat_map(|s| s.conditions.iter().flatten());
    match conditions.find(|c| c.type_ == "Available") {
        None => "Unknown".to_owned(),
        Some(c) if c.status == "True" => c.status.clone(),
        Some(c) => format!("{} ({})", c.status, c.reason.as_deref().unwrap_or_default()),
    }
}
