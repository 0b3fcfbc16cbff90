//! Schemas are structural: what an object looks like is said once, outside of all alternatives.
//! Upstream counterpart: apiextensions-apiserver/pkg/apiserver/schema/validation.go.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use crate::custom::Pattern;
use crate::validation::field::{Errors, FieldError, Path};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The reasons why a schema is not structural, in the order of the messages.
pub fn validate(schema: &JSONSchemaProps, path: &Path) -> Errors {
    let mut errors = Errors::new();
    place(schema, Level::Root, path, &mut errors);
    complete(schema, path, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

fn is(flag: Option<bool>) -> bool {
    flag == Some(true)
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(items),
        _ => None,
    }
}

fn values(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(values)) => Some(values),
        _ => None,
    }
}

fn ty(schema: &JSONSchemaProps) -> &str {
    schema.type_.as_deref().unwrap_or_default()
}

fn place(schema: &JSONSchemaProps, level: Level, path: &Path, errors: &mut Errors) {
    if ty(schema) == "array" && schema.items.is_none() {
        errors.push(FieldError::required(&path.child("items"), "must be specified"));
    }
    if let Some(items) = items(schema) {
        place(items, Level::Item, &path.child("items"), errors);
    }
    let of_properties = path.child("properties");
    for (name, of) in schema.properties.iter().flatten() {
        place(of, Level::Field, &of_properties.key(name), errors);
    }
    let additional = path.child("additionalProperties");
    if schema.additional_properties.is_some() && level == Level::Root {
        errors.push(FieldError::forbidden(&additional, "must not be used at the root"));
    }
    if let Some(values) = values(schema) {
        place(values, Level::Field, &additional, errors);
    }
    let embedded = is(schema.x_kubernetes_embedded_resource);
    let open = is(schema.x_kubernetes_preserve_unknown_fields);
    if is(schema.x_kubernetes_int_or_string) {
        for (word, given) in
            [("x-kubernetes-preserve-unknown-fields", open), ("x-kubernetes-embedded-resource", embedded)]
        {
            if given {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.push(FieldError::invalid(&path.child(word), true, detail));
            }
        }
    }
    let in_all = schema.all_of.as_ref().and_then(|all| all.first()).is_some_and(is_int_or_string);
    alternatives(schema, is_int_or_string(schema), in_all, path, errors);
    types(schema, level, embedded, open, path, errors);
    if embedded && schema.additional_properties.is_some() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(&additional, detail));
    }
    let none = schema.properties.as_ref().is_none_or(|properties| properties.is_empty());
    if embedded && !open && none {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                      x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(&of_properties, detail));
    }
    metadata(schema, level, &of_properties, errors);
}

fn types(schema: &JSONSchemaProps, level: Level, embedded: bool, open: bool, path: &Path, errors: &mut Errors) {
    let (place, ty) = (path.child("type"), ty(schema));
    if embedded && ty != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match ty {
            "" => FieldError::required(&place, detail),
            ty => FieldError::invalid(&place, ty, detail),
        });
    } else if ty.is_empty() && !is(schema.x_kubernetes_int_or_string) && !open {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&place, detail));
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        errors.push(FieldError::invalid(&place, ty, "must be object at the root"));
    }
}

/// The errors of the parts that every object has.
fn metadata(schema: &JSONSchemaProps, level: Level, path: &Path, errors: &mut Errors) {
    let whole = level == Level::Root || is(schema.x_kubernetes_embedded_resource);
    let property = |name: &str| schema.properties.as_ref().and_then(|properties| properties.get(name));
    for name in ["kind", "apiVersion"] {
        if let Some(of) = property(name).filter(|of| whole && ty(of) != "string") {
            errors.push(FieldError::invalid(&path.key(name).child("type"), ty(of), "must be string"));
        }
    }
    let Some(of) = property("metadata").filter(|_| whole) else { return };
    let place = path.key("metadata");
    if ty(of) != "object" {
        errors.push(FieldError::invalid(&place.child("type"), ty(of), "must be object"));
    }
    if level == Level::Root {
        let only_names = |name: &String| matches!(name.as_str(), "name" | "generateName");
        let mut rest = JSONSchemaProps { type_: None, default: None, description: None, ..of.clone() };
        if rest.properties.as_ref().is_some_and(|properties| properties.keys().all(only_names)) {
            rest.properties = None;
        }
        if rest != JSONSchemaProps::default() {
            let detail =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(&place, detail));
        }
    }
}

/// `anyOf: [{type: integer}, {type: string}]`, by which schemas say that a field is either.
fn is_int_or_string(schema: &JSONSchemaProps) -> bool {
    let only = |part: &JSONSchemaProps, ty: &str| {
        *part == JSONSchemaProps { type_: Some(ty.to_owned()), ..Default::default() }
    };
    match schema.any_of.as_deref() {
        Some([a, b]) => only(a, "integer") && only(b, "string"),
        _ => false,
    }
}

fn alternatives(schema: &JSONSchemaProps, skip_any: bool, skip_first: bool, path: &Path, errors: &mut Errors) {
    for (i, part) in schema.any_of.iter().flatten().enumerate().filter(|_| !skip_any) {
        nested(part, false, &path.child("anyOf").index(i), errors);
    }
    for (i, part) in schema.all_of.iter().flatten().enumerate() {
        nested(part, skip_first && i == 0, &path.child("allOf").index(i), errors);
    }
    for (i, part) in schema.one_of.iter().flatten().enumerate() {
        nested(part, false, &path.child("oneOf").index(i), errors);
    }
    if let Some(not) = &schema.not {
        nested(not, false, &path.child("not"), errors);
    }
    if let Some(pattern) = schema.pattern.as_deref().filter(|pattern| !pattern.is_empty())
        && let Err(why) = Pattern::check(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(FieldError::invalid(&path.child("pattern"), pattern, &detail));
    }
}

/// A part of an alternative says something about values, nothing about shapes.
fn nested(schema: &JSONSchemaProps, skip_any: bool, path: &Path, errors: &mut Errors) {
    alternatives(schema, skip_any, false, path, errors);
    if let Some(items) = items(schema) {
        nested(items, false, &path.child("items"), errors);
    }
    for (name, of) in schema.properties.iter().flatten() {
        nested(of, false, &path.child("properties").key(name), errors);
    }
    let text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    const EMPTY: &str = "must be empty to be structural";
    const UNDEFINED: &str = "must be undefined to be structural";
    const FALSE: &str = "must be false to be structural";
    let keys = schema.x_kubernetes_list_map_keys.as_ref().is_some_and(|keys| !keys.is_empty());
    for (word, given, detail) in [
        ("type", text(&schema.type_), EMPTY),
        ("additionalProperties", schema.additional_properties.is_some(), UNDEFINED),
        ("default", schema.default.is_some(), UNDEFINED),
        ("title", text(&schema.title), EMPTY),
        ("description", text(&schema.description), EMPTY),
        ("nullable", is(schema.nullable), FALSE),
        ("x-kubernetes-preserve-unknown-fields", is(schema.x_kubernetes_preserve_unknown_fields), FALSE),
        ("x-kubernetes-embedded-resource", is(schema.x_kubernetes_embedded_resource), FALSE),
        ("x-kubernetes-int-or-string", is(schema.x_kubernetes_int_or_string), FALSE),
        ("x-kubernetes-list-map-keys", keys, EMPTY),
        ("x-kubernetes-list-type", schema.x_kubernetes_list_type.is_some(), UNDEFINED),
        ("x-kubernetes-map-type", schema.x_kubernetes_map_type.is_some(), UNDEFINED),
        ("x-kubernetes-validations", schema.x_kubernetes_validations.as_ref().is_some_and(|r| !r.is_empty()), EMPTY),
    ] {
        if given {
            errors.push(FieldError::forbidden(&path.child(word), detail));
        }
    }
    if schema.properties.as_ref().is_some_and(|properties| properties.contains_key("metadata")) {
        let place = path.child("properties").key("metadata");
        errors.push(FieldError::forbidden(&place, "must not be specified in a nested context"));
    }
}

/// Every field that an alternative speaks of is declared outside of it.
fn complete(schema: &JSONSchemaProps, path: &Path, errors: &mut Errors) {
    for (word, parts) in [("anyOf", &schema.any_of), ("allOf", &schema.all_of), ("oneOf", &schema.one_of)] {
        for (i, part) in parts.iter().flatten().enumerate() {
            declared(part, Some(schema), &path.child(word).index(i), path, errors);
        }
    }
    if let Some(not) = &schema.not {
        declared(not, Some(schema), &path.child("not"), path, errors);
    }
    if let Some(items) = items(schema) {
        complete(items, &path.child("items"), errors);
    }
    for (name, of) in schema.properties.iter().flatten() {
        complete(of, &path.child("properties").key(name), errors);
    }
    if let Some(values) = values(schema) {
        complete(values, &path.child("additionalProperties"), errors);
    }
}

/// `here` is where the part stands, `there` the place that it speaks of, `of` what is declared there.
fn declared(part: &JSONSchemaProps, of: Option<&JSONSchemaProps>, here: &Path, there: &Path, errors: &mut Errors) {
    let Some(of) = of else {
        let detail = format!("because it is defined in {here}");
        errors.push(FieldError::required(there, &detail));
        return;
    };
    for (word, parts) in [("anyOf", &part.any_of), ("allOf", &part.all_of), ("oneOf", &part.one_of)] {
        for (i, inner) in parts.iter().flatten().enumerate() {
            declared(inner, Some(of), &here.child(word).index(i), there, errors);
        }
    }
    if let Some(not) = &part.not {
        declared(not, Some(of), &here.child("not"), there, errors);
    }
    if let Some(inner) = items(part) {
        declared(inner, items(of), &here.child("items"), &there.child("items"), errors);
    }
    for (name, inner) in part.properties.iter().flatten() {
        let (here, place) = (here.child("properties").key(name), there.child("properties").key(name));
        match of.properties.as_ref().and_then(|properties| properties.get(name)) {
            Some(found) => declared(inner, Some(found), &here, &place, errors),
            None if values(of).is_some() => {
                declared(inner, values(of), &here, &there.child("additionalProperties"), errors)
            }
            None => declared(inner, None, &here, &place, errors),
        }
    }
}
