//! The scale subresource: `autoscaling/v1` Scale as a window on the fields that the kind names.

use api::{
    Value,
    codec::decode::Gvk,
    kind::{Definition, Scale},
    meta,
    rules::selector::Selector,
    status::StatusError,
    write::patch::{Kind, Patch},
};
use http::{StatusCode, header};
use json::json;

use super::{patch::unsupported, request::Request, write::Outcome};
use crate::{
    http::{
        body::Response,
        options::WriteOptions,
        respond,
        view::{self, View},
    },
    storage::object,
};

const SCALE: Gvk<'static> = Gvk { group: "autoscaling", version: "v1", kind: "Scale" };

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    let definition = request.definition.clone();
    let scale = definition.scale.as_ref().ok_or_else(StatusError::no_route)?;
    let view = request.view()?;
    if request.call.info.verb == "get" {
        waypoint::apiserver::get(request.waypoint_name());
        let entry = request.shown(request.entry().await?).await?;
        return answer(&request, view, &object::of_entry(&definition, &entry));
    }
    let agent = request.header(header::USER_AGENT).to_owned();
    let body = request.body().await?;
    let ty =
        api::schema::of("io.k8s.api.autoscaling.v1.Scale").ok_or_else(|| StatusError::internal("no Scale type"))?;
    let media_type = request.header(header::CONTENT_TYPE);
    let written = if request.call.info.verb == "patch" {
        waypoint::apiserver::patch(request.waypoint_name());
        let kind = Kind::of(media_type)
            .filter(|kind| *kind != Kind::Apply)
            .ok_or_else(|| unsupported(definition.is_custom()))?;
        let options = WriteOptions::of_patch(request.query(), &agent, false)?;
        let patch = Patch::read(kind, &body)?;
        let change = |old: &Value| {
            let seen = of(&definition, scale, old)?;
            let wanted = patch.apply(ty, SCALE, &seen, options.validation)?;
            Ok((with_replicas(scale, old, &wanted.value)?, wanted.warnings))
        };
        request.change(&options, true, change).await?
    } else {
        waypoint::apiserver::update(request.waypoint_name());
        let options = WriteOptions::parse(request.query(), "UpdateOptions", &agent)?;
        let wanted = api::codec::decode::decode(ty, SCALE, &body, media_type, options.validation)?;
        let change = |old: &Value| Ok((with_replicas(scale, old, &wanted.value)?, wanted.warnings.clone()));
        request.change(&options, true, change).await?
    };
    let value = match written.outcome {
        Outcome::Stored(entry) => object::of_entry(&definition, &request.shown(entry).await?),
        Outcome::Tried(value) => value,
    };
    answer(&request, view, &value)
}

fn answer(request: &Request, view: View, object: &Value) -> Result<Response, StatusError> {
    let definition = &request.definition;
    let scale = definition.scale.as_ref().ok_or_else(StatusError::no_route)?;
    let shown = of(definition, scale, object)?;
    // In a Table a custom kind shows its own columns, whatever of them a Scale has.
    let table = request.objects().kinds.table();
    let columns = table.by_kind(SCALE.group, SCALE.version, SCALE.kind).filter(|_| !definition.is_custom());
    Ok(respond::value(StatusCode::OK, &view::value(columns.unwrap_or(definition), view, shown)))
}

fn at<'v>(object: &'v Value, path: &str) -> &'v Value {
    path.split('.').filter(|p| !p.is_empty()).fold(object, |value, part| &value[part])
}

/// The Scale of an object.
fn of(definition: &Definition, scale: &Scale, object: &Value) -> Result<Value, StatusError> {
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
fn with_replicas(scale: &Scale, old: &Value, wanted: &Value) -> Result<Value, StatusError> {
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
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
