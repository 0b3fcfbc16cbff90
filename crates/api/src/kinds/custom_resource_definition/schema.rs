//! The checks of a schema, place by place: what it may say at all, list types and map types, and its rules.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use super::costs::{self, Costs};
use super::{defaults, expressions, structural};
use crate::custom::{META, Structural};
use crate::validation::field::{Errors, FieldError, Path};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// The faults that schemas may have because the definition was stored with them.
#[derive(Clone, Copy, Default)]
pub struct Lenience {
    /// Schemas that are not structural.
    structure: bool,
    types: bool,
    /// Defaults with unknown fields.
    defaults: bool,
    /// Items of sets that are not atomic.
    sets: bool,
    /// Keys of items that can be missing or null.
    keys: bool,
}

impl Lenience {
    /// The faults that are there.
    pub fn of<'s>(stored: impl Iterator<Item = &'s JSONSchemaProps>) -> Lenience {
        let mut found = Lenience::default();
        for schema in stored {
            let (shape, path) = (Structural::of(schema), Path::default());
            found.structure |= !structural::validate(schema, &path).is_empty();
            let unknown = |pruned| defaults::validate(&shape, pruned, &path).len();
            found.defaults |= has_defaults(schema) && unknown(true) > unknown(false);
            visit(schema, &mut |part| {
                found.types |= !is_known_type(part);
                found.sets |= !set_items(part, &path).is_empty();
                found.keys |= !key_traits(part, &path).is_empty();
            });
        }
        found
    }

    /// The same for schemas that have to be structural.
    pub fn structural(self) -> Lenience {
        Lenience { structure: false, ..self }
    }
}

/// The traits of a schema that was stored before.
pub struct Kept {
    pub lenience: Lenience,
    /// The schema is as it was: the cost of a rule alone counts for nothing, since other estimates may have accepted it.
    pub unchanged: bool,
}

/// The errors of the schema of a version; `status` says whether it has the status subresource.
pub fn validate(schema: &JSONSchemaProps, status: bool, kept: Kept, path: &Path) -> Errors {
    let Kept { lenience, unchanged } = kept;
    let mut errors = if status { at_root(schema, path) } else { Errors::new() };
    if schema.nullable == Some(true) {
        errors.push(FieldError::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut found = if lenience.structure { Errors::new() } else { structural::validate(schema, path) };
    if !lenience.structure && found.is_empty() {
        found = defaults::validate(&Structural::of(schema), !lenience.defaults, path);
    }
    let sound = !lenience.structure && found.is_empty();
    errors.extend(found);
    let (costs, cardinality) = (Costs::new(unchanged), Some(1));
    let mut walk = Walk { errors: Errors::new(), rules: Errors::new(), costs, sound, lenience };
    let place = Place { root: true, defaults: Ok(()), in_metadata: false, lost: None, plain: true, cardinality };
    walk.place(schema, path, &place);
    errors.append(&mut walk.errors);
    errors.append(&mut walk.rules);
    errors.append(&mut walk.costs.of_all(path));
    errors
}

/// Calls `f` with the schema and all schemas in it.
pub fn visit(schema: &JSONSchemaProps, f: &mut impl FnMut(&JSONSchemaProps)) {
    f(schema);
    let alternatives = [&schema.all_of, &schema.any_of, &schema.one_of].into_iter().flatten().flatten();
    let below = schema.properties.iter().flat_map(|p| p.values()).chain(alternatives).chain(schema.not.as_deref());
    below.for_each(|schema| visit(schema, &mut *f));
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        visit(values, f);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        visit(items, f);
    }
}

/// Whether this schema, or one in it, has a trait.
fn has(schema: &JSONSchemaProps, what: impl Fn(&JSONSchemaProps) -> bool) -> bool {
    let mut found = false;
    visit(schema, &mut |part| found |= what(part));
    found
}

pub fn has_defaults(schema: &JSONSchemaProps) -> bool {
    has(schema, |part| part.default.is_some())
}

/// Whether a schema uses words that only structural ones may use.
pub fn needs_structure(schema: &JSONSchemaProps) -> bool {
    has(schema, |part| {
        part.default.is_some()
            || part.x_kubernetes_embedded_resource == Some(true)
            || part.x_kubernetes_preserve_unknown_fields.is_some()
            || part.x_kubernetes_int_or_string == Some(true)
            || part.x_kubernetes_list_map_keys.as_ref().is_some_and(|keys| !keys.is_empty())
            || part.x_kubernetes_list_type.is_some()
            || part.x_kubernetes_validations.as_ref().is_some_and(|rules| !rules.is_empty())
    })
}

fn is_known_type(schema: &JSONSchemaProps) -> bool {
    let ty = schema.type_.as_deref().unwrap_or_default();
    ty.is_empty() || TYPES.contains(&ty)
}

/// The status is checked by a part of the schema, so nothing at the root may be about the whole.
fn at_root(schema: &JSONSchemaProps, path: &Path) -> Errors {
    if schema.type_.as_deref() != Some("object") {
        let detail =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return vec![FieldError::invalid(&path.child("type"), schema.type_.as_deref().unwrap_or_default(), detail)];
    }
    let about_whole = schema.all_of.is_some()
        || schema.any_of.is_some()
        || schema.one_of.is_some()
        || schema.not.is_some()
        || schema.enum_.is_some()
        || schema.max_properties.is_some()
        || schema.min_properties.is_some()
        || schema.additional_properties.is_some()
        || schema.default.is_some()
        || schema.nullable == Some(true)
        || schema.x_kubernetes_embedded_resource == Some(true)
        || schema.x_kubernetes_int_or_string == Some(true)
        || schema.x_kubernetes_list_type.is_some()
        || schema.x_kubernetes_map_type.is_some();
    if !about_whole {
        return Errors::new();
    }
    let detail = "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength \
                  Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example \
                  XPreserveUnknownFields XValidations] fields are allowed at the root of the schema if the status subresource \
                  is enabled";
    vec![FieldError::invalid(path, schema, detail)]
}

/// The traits that a place has by those around it.
#[derive(Clone)]
struct Place {
    root: bool,
    /// Why no default may stand here.
    defaults: Result<(), String>,
    in_metadata: bool,
    /// The innermost place from which on old and new values cannot be told apart.
    lost: Option<Path>,
    /// Objects take their shape from here, so that rules are evaluated.
    plain: bool,
    /// How often this place can be in one object; `None` if nothing limits that.
    cardinality: Option<u64>,
}

struct Walk {
    errors: Errors,
    rules: Errors,
    costs: Costs,
    /// The schema is structural, so that rules can be compiled.
    sound: bool,
    lenience: Lenience,
}

impl Walk {
    fn place(&mut self, schema: &JSONSchemaProps, path: &Path, place: &Place) {
        let before = self.errors.len();
        self.errors.extend(basics(schema, path, place, self.lenience));
        self.errors.extend(extensions(schema, path, self.lenience));
        let (of_place, inside) = (place.cardinality, costs::inside(schema, place.cardinality));
        self.below(schema, path, &Place { root: false, cardinality: inside, ..place.clone() }, place.root);
        let rules = schema.x_kubernetes_validations.as_deref().unwrap_or_default();
        if rules.is_empty() {
            return;
        }
        let shape = Structural::of(schema);
        self.errors.extend(expressions::forms(rules, &shape, &path.child("x-kubernetes-validations")));
        // A mistake here or further in would make complaints that go away with it.
        if self.errors.len() == before && self.sound && place.plain {
            let whole = place.root || shape.embedded;
            let path = path.child("x-kubernetes-validations");
            let place = expressions::Place { schema: &shape, whole, lost: place.lost.as_ref(), path: &path };
            self.rules.extend(expressions::compile(rules, &place, of_place, &mut self.costs));
        }
    }

    fn below(&mut self, schema: &JSONSchemaProps, path: &Path, inside: &Place, root: bool) {
        let declared = schema.properties.as_ref().is_some_and(|properties| !properties.is_empty());
        match &schema.additional_properties {
            Some(given) if declared && !matches!(given, JSONSchemaPropsOrBool::Bool(true)) => {
                let detail = "additionalProperties and properties are mutual exclusive";
                self.errors.push(FieldError::forbidden(&path.child("additionalProperties"), detail));
            }
            Some(JSONSchemaPropsOrBool::Schema(values)) => {
                let mut inside = inside.clone();
                if inside.in_metadata {
                    inside.defaults = Err("inside additionalProperties applying to object metadata".to_owned());
                }
                self.place(values, &path.child("additionalProperties"), &inside);
            }
            _ => {}
        }
        let embedded = schema.x_kubernetes_embedded_resource == Some(true);
        let correlatable = matches!(schema.x_kubernetes_map_type.as_deref(), None | Some("atomic" | "granular"));
        for (name, of) in schema.properties.iter().flatten() {
            let mut inside = inside.clone();
            if !correlatable {
                inside.lost.get_or_insert_with(|| path.clone());
            }
            if (root || embedded) && META.contains(&name.as_str()) {
                inside.in_metadata = true;
                if root {
                    inside.defaults = Err(format!("in top-level {name}"));
                }
            }
            self.place(of, &path.child("properties").key(name), &inside);
        }
        let nested = Place { plain: false, ..inside.clone() };
        if let Some(not) = &schema.not {
            self.place(not, &path.child("not"), &nested);
        }
        for (word, parts) in [("allOf", &schema.all_of), ("oneOf", &schema.one_of), ("anyOf", &schema.any_of)] {
            for (i, part) in parts.iter().flatten().enumerate() {
                self.place(part, &path.child(word).index(i), &nested);
            }
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            let mut inside = inside.clone();
            if schema.x_kubernetes_list_type.as_deref() != Some("map") {
                inside.lost.get_or_insert_with(|| path.clone());
            }
            self.place(items, &path.child("items"), &inside);
        }
    }
}

/// Words that no schema of a kind may use.
fn basics(schema: &JSONSchemaProps, path: &Path, place: &Place, lenience: Lenience) -> Errors {
    let mut errors = Errors::new();
    let ty = schema.type_.as_deref().unwrap_or_default();
    if ty == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(&path.child("type"), detail));
    }
    if !lenience.types && !is_known_type(schema) {
        errors.push(FieldError::not_supported(&path.child("type"), ty, &TYPES));
    }
    if let (Some(_), Err(why)) = (&schema.default, &place.defaults) {
        errors.push(FieldError::forbidden(&path.child("default"), &format!("must not be set {why}")));
    }
    let filled = |map: Option<usize>| map.is_some_and(|len| len > 0);
    for (word, given) in [
        ("id", schema.id.as_ref().is_some_and(|id| !id.is_empty())),
        ("additionalItems", schema.additional_items.is_some()),
        ("patternProperties", filled(schema.pattern_properties.as_ref().map(|m| m.len()))),
        ("definitions", filled(schema.definitions.as_ref().map(|m| m.len()))),
        ("dependencies", filled(schema.dependencies.as_ref().map(|m| m.len()))),
        ("$ref", schema.ref_path.is_some()),
    ] {
        if given {
            errors.push(FieldError::forbidden(&path.child(word), &format!("{word} is not supported")));
        }
    }
    if matches!(schema.items, Some(JSONSchemaPropsOrArray::Schemas(_))) {
        errors.push(FieldError::forbidden(&path.child("items"), "items must be a schema object and not an array"));
    }
    if place.in_metadata && schema.x_kubernetes_embedded_resource == Some(true) {
        let place = path.child("x-kubernetes-embedded-resource");
        errors.push(FieldError::forbidden(&place, "must not be used inside of resource meta"));
    }
    if schema.unique_items == Some(true) {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(&path.child("uniqueItems"), detail));
    }
    errors
}

/// A word about lists or maps stands where the type is that.
fn wants_type(schema: &JSONSchemaProps, wanted: &str, word: &str, path: &Path) -> Option<FieldError> {
    let detail = format!("must be {wanted} if {word} is specified");
    match schema.type_.as_deref().unwrap_or_default() {
        "" => Some(FieldError::required(&path.child("type"), &detail)),
        ty if ty == wanted => None,
        ty => Some(FieldError::invalid(&path.child("type"), ty, &detail)),
    }
}

fn extensions(schema: &JSONSchemaProps, path: &Path, lenience: Lenience) -> Errors {
    let mut errors = Errors::new();
    if schema.x_kubernetes_preserve_unknown_fields == Some(false) {
        let place = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(&place, false, "must be true or undefined"));
    }
    if let Some(map_type) = &schema.x_kubernetes_map_type {
        const WORD: &str = "x-kubernetes-map-type";
        errors.extend(wants_type(schema, "object", WORD, path));
        if !matches!(map_type.as_str(), "atomic" | "granular") {
            errors.push(FieldError::not_supported(&path.child(WORD), map_type, &["atomic", "granular"]));
        }
    }
    errors.extend(list_type(schema, path, lenience));
    errors
}

fn list_type(schema: &JSONSchemaProps, path: &Path, lenience: Lenience) -> Errors {
    const WORD: &str = "x-kubernetes-list-type";
    let mut errors = Errors::new();
    let keys = schema.x_kubernetes_list_map_keys.as_deref().unwrap_or_default();
    let Some(list_type) = &schema.x_kubernetes_list_type else {
        if !keys.is_empty() {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            errors.push(FieldError::required(&path.child(WORD), detail));
        }
        return errors;
    };
    let wrong = wants_type(schema, "array", WORD, path);
    if wrong.is_none() && !lenience.sets {
        errors.extend(set_items(schema, path));
    }
    errors.extend(wrong);
    if !matches!(list_type.as_str(), "atomic" | "set" | "map") {
        errors.push(FieldError::not_supported(&path.child(WORD), list_type, &["atomic", "set", "map"]));
    }
    if list_type != "map" && !keys.is_empty() {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(FieldError::invalid(&path.child(WORD), list_type, detail));
    }
    if list_type == "map" {
        errors.extend(map_keys(keys, items_of(schema), path));
    }
    if !lenience.keys {
        errors.extend(key_traits(schema, path));
    }
    errors
}

fn items_of(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(items),
        _ => None,
    }
}

/// The items of a set cannot be written in parts.
fn set_items(schema: &JSONSchemaProps, path: &Path) -> Errors {
    let is_set = schema.x_kubernetes_list_type.as_deref() == Some("set");
    let Some(items) = items_of(schema).filter(|_| is_set) else { return Errors::new() };
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let (inner, map) = (items.x_kubernetes_list_type.as_deref(), items.x_kubernetes_map_type.as_deref());
    let word = match items.type_.as_deref() {
        Some("array") if inner.is_some_and(|inner| inner != "atomic") => "x-kubernetes-list-type",
        Some("object") if map != Some("atomic") => "x-kubernetes-map-type",
        _ => return Errors::new(),
    };
    vec![FieldError::invalid(&path.child("items").child(word), inner, detail)]
}

/// Items, and the keys by which they are told apart, are always there and never null.
fn key_traits(schema: &JSONSchemaProps, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let Some(list_type @ ("set" | "map")) = schema.x_kubernetes_list_type.as_deref() else { return errors };
    let (Some(items), of_items) = (items_of(schema), path.child("items")) else { return errors };
    if items.nullable == Some(true) {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(&of_items.child("nullable"), &detail));
    }
    let keys = schema.x_kubernetes_list_map_keys.iter().flatten().filter(|_| list_type == "map");
    for key in keys {
        let place = of_items.child("properties").key(key);
        let Some(of) = items.properties.as_ref().and_then(|properties| properties.get(key)) else { continue };
        let required = items.required.as_ref().is_some_and(|required| required.contains(key));
        if !required && of.default.is_none() {
            let detail =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(&place.child("default"), detail));
        }
        if of.nullable == Some(true) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(&place.child("nullable"), detail));
        }
    }
    errors
}

/// The keys by which items are told apart are names of scalar fields.
fn map_keys(keys: &[String], items: Option<&JSONSchemaProps>, path: &Path) -> Errors {
    let (mut errors, of_keys, of_items) =
        (Errors::new(), path.child("x-kubernetes-list-map-keys"), path.child("items"));
    if keys.is_empty() {
        errors.push(FieldError::required(&of_keys, "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = items else {
        errors.push(FieldError::required(&of_items, "must have a schema if x-kubernetes-list-type is map"));
        return errors;
    };
    let ty = items.type_.as_deref().unwrap_or_default();
    if ty != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(&of_items.child("type"), ty, detail));
        return errors;
    }
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for key in keys {
        let place = of_items.child("properties").key(key);
        match items.properties.as_ref().and_then(|properties| properties.get(key)) {
            None => errors.push(FieldError::invalid(&of_keys, keys, "entries must all be names of item properties")),
            Some(of) => {
                if matches!(of.type_.as_deref(), Some("array" | "object")) {
                    let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    errors.push(FieldError::invalid(&place.child("type"), ty, detail));
                }
            }
        }
        if !seen.insert(key) {
            errors.push(FieldError::invalid(&of_keys, keys, "must not contain duplicate entries"));
        }
    }
    errors
}
