//! RuntimeClass: which container runtime runs a Pod, and what it costs.

use k8s_openapi::api::node::v1::RuntimeClass;
use serde_json::Value;

use crate::kind::{Kind, age, col, name};

pub const RUNTIME_CLASS: Kind<RuntimeClass> = Kind {
    columns: &[
        name(),
        col("Handler", "The name that the container runtime knows it by.", |c, _| Value::from(c.handler.as_str())),
        age(),
    ],
    ..Kind::BASE
};
