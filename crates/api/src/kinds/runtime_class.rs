//! RuntimeClass: which container runtime runs a Pod, and what it costs.

use json::Value;
use k8s_openapi::api::node::v1::RuntimeClass;

use crate::kind::{Kind, age, col, name};
use crate::rules::node_label;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

pub const RUNTIME_CLASS: Kind<RuntimeClass> = Kind {
    create_on_update: true,
    unconditional_update: false,
    validate: Some(|class| {
        let handler = &class.handler;
        invalid(&Path::new("handler"), handler, names::dns1123_label(handler)).collect()
    }),
    validate_update: Some(|new, old, _| {
        let fixed = || FieldError::invalid(&Path::new("handler"), &new.handler, "field is immutable");
        if new.handler == old.handler { Errors::new() } else { vec![fixed()] }
    }),
    warnings: Some(|class, _| {
        let labels = class.scheduling.iter().flat_map(|s| s.node_selector.iter().flatten());
        let place = Path::new("scheduling").child("nodeSelector");
        labels.filter_map(|(label, _)| Some(format!("{place}: {}", node_label::deprecated(label)?))).collect()
    }),
    columns: &[
        name(),
        col("Handler", "The name that the container runtime knows it by.", |c, _| Value::from(c.handler.as_str())),
        age(),
    ],
    ..Kind::BASE
};
