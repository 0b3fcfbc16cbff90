//! The `autoscaling/v1` Scale of an object, made from the fields that its kind names, and back.

use api::{
    Value,
    k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    kind::{Definition, Scale, Scope},
    meta,
    rules::selector::Selector,
    status::StatusError,
    validation::{
        field::{FieldError, Path},
        names::NameRule,
        object_meta::{self, Finalizers},
    },
};
use json::json;

/// The replicas in the Scale of a custom object that says nothing of any, as writers see it.
const UNSAID: i64 = i32::MIN as i64;

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

/// The Scale of an object for those who read it: a custom one that says nothing of replicas has none.
pub(super) fn seen_by_readers(definition: &Definition, scale: &Scale, object: &Value) -> Result<Value, StatusError> {
    let seen = of(definition, scale, object)?;
    if definition.is_custom() && at(object, &scale.wanted).is_null() {
        let path = format!(".{}", scale.wanted);
        return Err(StatusError::internal(format!("the spec replicas field {path:?} does not exist")));
    }
    Ok(seen)
}

/// The Scale of an object as patches find it: that of a custom one tells whether the object says anything of replicas.
pub(super) fn seen_by_writers(definition: &Definition, scale: &Scale, object: &Value) -> Result<Value, StatusError> {
    let mut seen = of(definition, scale, object)?;
    if definition.is_custom() && at(object, &scale.wanted).is_null() {
        seen["spec"]["replicas"] = json!(UNSAID);
    }
    Ok(seen)
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
    if !definition.is_custom() {
        check(definition, wanted, replicas, old)?;
    } else if replicas == UNSAID {
        let path = format!(".{}", scale.wanted);
        return Err(StatusError::bad_request(format!("the spec replicas field {path:?} cannot be empty")));
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

/// Checks the Scale of a built-in kind, and that it is of this object. A custom kind checks its own objects, and no Scale.
fn check(definition: &Definition, wanted: &Value, replicas: i64, old: &Value) -> Result<(), StatusError> {
    let metadata: ObjectMeta = json::from_value(wanted["metadata"].clone()).map_err(StatusError::internal)?;
    let mut errors =
        object_meta::validate(&metadata, Scope::Namespaced, NameRule::Subdomain, Finalizers::of_group("autoscaling"));
    if replicas < 0 {
        let path = Path::new("spec").child("replicas");
        errors.push(FieldError::invalid(&path, replicas, "must be greater than or equal to 0"));
    }
    let name = meta::name(old);
    if !errors.is_empty() {
        return Err(StatusError::invalid("autoscaling", "Scale", name, &errors));
    }
    let (uid, found) = (meta::uid(wanted), meta::uid(old));
    if uid.is_empty() || uid == found {
        return Ok(());
    }
    let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
    Err(StatusError::conflict(&definition.group, &format!("{}/scale", definition.plural), name, &why))
}
