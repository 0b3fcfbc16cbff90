//! LimitRange and ResourceQuota: what one object of a namespace, and what all of them together, may ask for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use crate::kind::{Kind, age, col, name};

pub const LIMIT_RANGE: Kind<LimitRange> = Kind {
    without_effect: Some("no admission plugin applies limit ranges"),
    create_on_update: true,
    short: &["limits"],
    default: Some(default_limits),
    ..Kind::BASE
};

pub const RESOURCE_QUOTA: Kind<ResourceQuota> = Kind {
    without_effect: Some("no admission plugin holds anybody to a quota"),
    short: &["quota"],
    status: true,
    columns: &[
        name(),
        col("Request", "Request represents a minimum amount of cpu/memory that a container may consume.", |q, _| {
            Value::from(usage(q, false))
        }),
        col(
            "Limit",
            "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
            |q, _| Value::from(usage(q, true)),
        ),
        age(),
    ],
    ..Kind::BASE
};

/// `resource: used/hard` for limits, or for everything else.
fn usage(quota: &ResourceQuota, limits: bool) -> String {
    let Some(status) = &quota.status else { return String::new() };
    let used = |name: &str| status.used.as_ref().and_then(|u| u.get(name)).map_or("0", |q| q.0.as_str());
    let hard = status.hard.iter().flatten().filter(|(name, _)| name.starts_with("limits.") == limits);
    hard.map(|(name, hard)| format!("{name}: {}/{}", used(name), hard.0)).collect::<Vec<_>>().join(", ")
}

/// For containers: a limit follows from the most, a request from the limit, or from the least.
fn default_limits(range: &mut LimitRange) {
    let fill = |into: &mut Option<BTreeMap<String, Quantity>>, from: &Option<BTreeMap<String, Quantity>>| {
        for (name, amount) in from.iter().flatten() {
            into.get_or_insert_default().entry(name.clone()).or_insert_with(|| amount.clone());
        }
    };
    for item in range.spec.iter_mut().flat_map(|s| s.limits.iter_mut()).filter(|l| l.type_ == "Container") {
        fill(&mut item.default, &item.max);
        fill(&mut item.default_request, &item.default);
        fill(&mut item.default_request, &item.min);
    }
}
