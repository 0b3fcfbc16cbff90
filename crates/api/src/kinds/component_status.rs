//! ComponentStatus and Binding: what the server takes or gives without storing it.

use json::Value;
use k8s_openapi::api::core::v1::{Binding, ComponentCondition, ComponentStatus};

use crate::kind::{Column, Kind, col, name};

pub const COMPONENT_STATUS: Kind<ComponentStatus> =
    Kind { short: &["cs"], verbs: &["get", "list"], columns: COLUMNS, ..Kind::BASE };

const COLUMNS: &[Column<ComponentStatus>] = &[
    name(),
    col("Status", "Status of the component conditions", |c, _| {
        let word = healthy(c).map_or("Unknown", |c| if c.status == "True" { "Healthy" } else { "Unhealthy" });
        Value::from(word)
    }),
    col("Message", "Message of the component conditions", |c, _| {
        Value::from(healthy(c).and_then(|c| c.message.as_deref()).unwrap_or_default())
    }),
    col("Error", "Error of the component conditions", |c, _| {
        Value::from(healthy(c).and_then(|c| c.error.as_deref()).unwrap_or_default())
    }),
];

fn healthy(component: &ComponentStatus) -> Option<&ComponentCondition> {
    component.conditions.iter().flatten().find(|c| c.type_ == "Healthy")
}

pub const BINDING: Kind<Binding> = Kind { verbs: &["create"], ..Kind::BASE };
