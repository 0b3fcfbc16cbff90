//! The `autoscaling/v1` Scale of an object, made from the fields that its kind names, and back.

use api::{
    Value,
    kind::{Definition, Scale},
    meta,
    rules::selector::Selector,
    status::StatusError,
};
use json::json;

fn at<'v>(object: &'v Value, path: &str) -> &'v Value {
    path.split('.').filter(|p| !p.is_empty()).fold(object, |value, part| &value[part])
}

/// The Scale of an object.
pub(super) fn of(definition: &Definition, scale: &Scale, object: &Value) -> Result<Value, StatusError> {
    let mut metadata = json!({"name": meta::name(object), "uid": meta::uid(object)});
    for field in ["namespace", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let mut status = json!({"replicas": at(object, &scale.current).as_i64().unwrap_or(0)});
    let selector = scale.selector.as_ref().map_or(&Value::Null, |path| at(object, path));
    let selector = selector_text(selector).map_err(|why| {
        StatusError::internal(format!("failed to convert the selector of {}: {why}", definition.kind))
    })?;
    if !selector.is_empty() {
        status["selector"] = json!(selector);
    }
    let wanted = at(object, &scale.wanted).as_i64().unwrap_or(0);
    let mut spec = json!({});
    if wanted != 0 {
        spec["replicas"] = json!(wanted);
    }
    Ok(json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status}))
}

/// A selector in text form: given as text, as a map of labels, or as a `LabelSelector`.
fn selector_text(selector: &Value) -> Result<String, String> {
    match selector {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        object if object.get("matchLabels").is_some() || object.get("matchExpressions").is_some() => {
            let typed = json::from_value(object.clone()).map_err(|e| e.to_string())?;
            Selector::of_object(Some(&typed)).map(|s| s.to_string()).map_err(|e| e.to_string())
        }
        labels => {
            let typed = json::from_value(labels.clone()).map_err(|e| e.to_string())?;
            Ok(Selector::of_labels(&typed).to_string())
        }
    }
}

/// The object with the replicas that a Scale wants.
pub(super) fn with_replicas(
    definition: &Definition,
    scale: &Scale,
    old: &Value,
    wanted: &Value,
) -> Result<Value, StatusError> {
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
    // A custom kind refuses them itself.
    if replicas < 0 && !definition.is_custom() {
        let path = api::validation::field::Path::new("spec").child("replicas");
        let error = api::validation::field::FieldError::invalid(&path, replicas, "must be greater than or equal to 0");
        return Err(StatusError::invalid("autoscaling", "Scale", meta::name(old), &[error]));
    }
    let mut new = old.clone();
    let path: Vec<&str> = scale.wanted.split('.').collect();
    let mut place = &mut new;
    for part in path {
        place = &mut place[part];
    }
    *place = json!(replicas);
    let version = meta::resource_version(wanted).to_owned();
    if let Some(metadata) = meta::metadata_mut(&mut new) {
        match version.as_str() {
            "" => metadata.remove("resourceVersion"),
            _ => metadata.insert("resourceVersion", Value::from(version)),
        };
    }
    Ok(new)
}
