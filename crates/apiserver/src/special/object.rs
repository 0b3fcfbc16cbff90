//! The object that a special request carries: read, named as the path says, admitted, and answered.

use api::{Value, codec::decode::Gvk, kind::Definition, meta, schema::Type, status::StatusError};
use http::{StatusCode, header};
use json::json;

use crate::{
    admission::attributes::{Attributes, Operation},
    call::Call,
    http::{body::Response, options::WriteOptions, respond, view::View},
};

/// Reads the body as a built-in kind, with its defaults, and the options of the write. The client is warned of what is odd in it.
pub async fn body(
    call: &mut Call,
    group: &str,
    version: &str,
    kind: &str,
) -> Result<(Value, WriteOptions), StatusError> {
    body_in(call, group, (version, &[]), kind).await
}

/// The same where clients may send older versions with the same fields. The object is of the newest one then.
pub async fn body_in(
    call: &mut Call,
    group: &str,
    (version, older): (&str, &[&str]),
    kind: &str,
) -> Result<(Value, WriteOptions), StatusError> {
    let options = WriteOptions::parse(&call.query, "CreateOptions", call.header(header::USER_AGENT))?;
    // An object that is not stored has no other form, such as a Table.
    View::negotiate(call.state.encodings, &call.headers, "", None)?;
    let media_type = call.header(header::CONTENT_TYPE).to_owned();
    let bytes = call.read_body().await?;
    let definition = api::kinds::built_in().by_kind(group, version, kind);
    let ty = definition.map_or(&Type::Any, |d| &d.ty);
    let decode = |version: &str| {
        api::codec::decode::decode(ty, Gvk { group, version, kind }, &bytes, &media_type, options.validation)
    };
    let decoded = decode(version).or_else(|error| older.iter().find_map(|older| decode(older).ok()).ok_or(error))?;
    call.warnings.add(decoded.warnings);
    let mut value = decoded.value;
    value["apiVersion"] = Gvk { group, version, kind }.api_version().into();
    if let Some(definition) = definition {
        definition.strategy.default(&mut value);
    }
    call.trail.requested(&value);
    Ok((value, options))
}

/// Sets a condition in the object's status; one that was in the same state before keeps the time since when.
pub fn set_condition(object: &mut Value, mut condition: Value) {
    if !object["status"]["conditions"].is_array() {
        object["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = object["status"]["conditions"].as_array_mut() else { return };
    match conditions.iter_mut().find(|present| present["type"] == condition["type"]) {
        Some(present) => {
            if present["status"] == condition["status"] {
                condition["lastTransitionTime"] = present["lastTransitionTime"].take();
            }
            *present = condition;
        }
        None => conditions.push(condition),
    }
}

/// Sends the object of a subresource through admission, as a create. A change by plugins is checked before others see it.
pub async fn admitted(
    call: &Call,
    (definition, name): (&Definition, &str),
    object: Value,
    options: &WriteOptions,
    check: impl FnOnce(&Value) -> Result<(), StatusError>,
) -> Result<Value, StatusError> {
    let mut attributes = Attributes {
        definition,
        operation: Operation::Create,
        subresource: call.info.subresource,
        namespace: &call.info.namespace,
        name,
        user: &call.user,
        dry_run: options.dry_run,
        object: Some(object),
        old: None,
        options: options.object("CreateOptions"),
        warnings: Vec::new(),
        trail: &call.trail,
        charged: false,
        reinvocation: Default::default(),
        collection: false,
    };
    call.state.admission.admit(&mut attributes).await?;
    attributes.object.as_ref().map_or(Ok(()), check)?;
    call.state.admission.validate(&mut attributes).await?;
    call.warnings.add(attributes.warnings);
    Ok(attributes.object.unwrap_or_default())
}

/// Sends the options of a connection through admission.
pub async fn connecting(call: &Call, options: Value) -> Result<Value, StatusError> {
    let Some(definition) = &call.info.definition else { return Ok(options) };
    let mut attributes = Attributes {
        definition,
        operation: Operation::Connect,
        subresource: call.info.subresource,
        namespace: &call.info.namespace,
        name: &call.info.name,
        user: &call.user,
        dry_run: false,
        object: Some(options),
        old: None,
        options: Value::Null,
        warnings: Vec::new(),
        trail: &call.trail,
        charged: false,
        reinvocation: Default::default(),
        collection: false,
    };
    call.state.admission.admit(&mut attributes).await?;
    call.state.admission.validate(&mut attributes).await?;
    Ok(attributes.object.unwrap_or_default())
}

/// The name in the body is the one in the path, or absent.
pub fn same_name(call: &Call, object: &Value, what: &str) -> Result<(), StatusError> {
    let name = meta::name(object);
    if !name.is_empty() && name != call.info.name {
        let path = &call.info.name;
        return Err(StatusError::bad_request(format!(
            "name in URL does not match name in {what} object: {path} != {name}"
        )));
    }
    same_namespace(call, object)
}

/// The namespace in the body is the one in the path, or absent.
pub fn same_namespace(call: &Call, object: &Value) -> Result<(), StatusError> {
    let namespace = meta::namespace(object);
    if namespace.is_empty() || namespace == call.info.namespace {
        return Ok(());
    }
    Err(StatusError::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    ))
}

pub fn created(value: &Value) -> Response {
    respond::value(StatusCode::CREATED, value)
}

pub fn success() -> Response {
    created(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
}

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}
