//! The schemas of a document: a set that grows by what its members refer to.

use std::collections::BTreeMap;
use std::sync::Arc;

use json::{Map, Value, json};

use super::{
    Dialect,
    built_in::{Property, Text, Texts},
};
use crate::{
    features::{Feature, Features},
    kind::Definition,
    schema::{self, Field, ListKind, Object, Type},
};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";

const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// The name of a list, of the kind that is in it, and its name in paths.
struct Listed {
    list: String,
    item: String,
    plural: String,
}

pub(super) struct Schemas {
    pub dialect: Dialect,
    texts: Texts,
    /// The whole schemas of custom resources.
    custom: Map,
    /// Group, version and kind of the schemas that are whole objects.
    kinds: BTreeMap<String, Vec<Value>>,
    /// The fields by which objects of custom kinds are selected, for the schemas of these and of their lists.
    selectable: BTreeMap<String, Value>,
    /// The schemas that are lists of objects.
    lists: BTreeMap<String, Listed>,
    done: Map,
    wanted: Vec<String>,
}

impl Schemas {
    pub fn new(dialect: Dialect, definitions: &[&Arc<Definition>], features: Features) -> Self {
        let mut custom = Map::new();
        let mut kinds: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let (mut selectable, mut lists) = (BTreeMap::new(), BTreeMap::new());
        for definition in definitions {
            custom.extend(definition.open_api.iter().map(|own| (definition.schema.clone(), (own.read)())));
            let Definition { group, version, kind, list_kind, schema, .. } = &***definition;
            kinds.entry(schema.clone()).or_default().push(gvk(group, version, kind));
            kinds.entry(format!("{schema}List")).or_default().push(gvk(group, version, list_kind));
            if let Some(fields) = selectable_fields(definition) {
                selectable.insert(format!("{schema}List"), fields.clone());
                selectable.insert(schema.clone(), fields);
            }
            let listed =
                Listed { list: list_kind.to_string(), item: kind.to_string(), plural: definition.plural.to_string() };
            lists.insert(format!("{schema}List"), listed);
        }
        let texts = Texts::new(features.enabled(Feature::OpenAPIEnums));
        Schemas { dialect, texts, custom, kinds, selectable, lists, done: Map::new(), wanted: Vec::new() }
    }

    /// A reference to a schema, which becomes part of the document.
    pub fn reference(&mut self, name: &str) -> Value {
        if !self.done.contains_key(name) {
            self.done.insert(name.to_owned(), Value::Null);
            self.wanted.push(name.to_owned());
        }
        json!({ "$ref": self.dialect.reference(name) })
    }

    /// The schema of an object that only travels in a subresource: `("autoscaling", "v1", "Scale")`.
    pub fn body(&mut self, (group, version, kind): (&str, &str, &str)) -> Value {
        match schema::of_kind(group, version, kind).name() {
            Some(name) => self.reference(&name),
            None => json!({ "type": "object" }),
        }
    }

    /// All schemas that were asked for and all they refer to.
    pub fn finish(mut self) -> Map {
        while let Some(name) = self.wanted.pop() {
            let mut schema = self.build(&name);
            if let Some(listed) = self.lists.remove(&name) {
                self.describe_list(&mut schema, &listed);
            }
            if let (Some(kinds), Some(map)) = (self.kinds.get(&name), schema.as_object_mut()) {
                map.insert("x-kubernetes-group-version-kind", Value::Array(kinds.clone()));
            }
            if let (Some(fields), Some(map)) = (self.selectable.get(&name), schema.as_object_mut()) {
                map.insert("x-kubernetes-selectable-fields", fields.clone());
            }
            self.done.insert(name, schema);
        }
        self.done
    }

    fn build(&mut self, name: &str) -> Value {
        let texts = self.texts.of(name);
        if let Some(object) = schema::of(name).and_then(Type::object) {
            return self.object(object, texts.as_ref());
        }
        if let Some(custom) = name.strip_suffix("List").filter(|item| self.kinds.contains_key(*item)) {
            return self.custom_list(custom);
        }
        let Some(mut schema) = self.custom.remove(name) else { return self.plain(name, texts) };
        self.adopt(&mut schema);
        if self.kinds.contains_key(name) {
            let open = schema.get("x-kubernetes-preserve-unknown-fields").is_some_and(|open| *open == true);
            if self.dialect == Dialect::V2 && open {
                // With any property declared, old clients take all others for mistakes.
                return json!({ "type": "object" });
            }
            if self.dialect == Dialect::V2 {
                simplify(&mut schema);
            }
            self.complete(&mut schema);
        }
        schema
    }

    /// A custom resource's own schema says nothing of what all objects have.
    fn complete(&mut self, schema: &mut Value) {
        let metadata = self.reference(&format!("{META}ObjectMeta"));
        let Value::Object(map) = schema else { return };
        let properties = map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(properties) = properties {
            properties.insert("apiVersion", json!({ "type": "string" }));
            properties.insert("kind", json!({ "type": "string" }));
            properties.insert("metadata", metadata);
            self.describe_common(properties, &["apiVersion", "kind", "metadata"]);
        }
    }

    /// The texts of what all objects have are those of one that has nothing else.
    fn describe_common(&self, properties: &mut Map, names: &[&str]) {
        let texts = self.texts.of("io.k8s.api.core.v1.Namespace").unwrap_or_default();
        for name in names {
            if let Some(text) = texts.property(name).and_then(|property| property.description.as_deref()) {
                self.describe(properties.get_mut(name), text);
            }
        }
    }

    fn describe_list(&self, schema: &mut Value, of: &Listed) {
        let Some(list) = schema.as_object_mut() else { return };
        list.insert("description", format!("{} is a list of {}", of.list, of.item).into());
        let Some(properties) = list.get_mut("properties").and_then(Value::as_object_mut) else { return };
        self.describe_common(properties, &["apiVersion", "kind"]);
        let items = format!("List of {}. More info: {CONVENTIONS}", of.plural);
        self.describe(properties.get_mut("items"), &items);
        self.describe(
            properties.get_mut("metadata"),
            &format!("Standard list metadata. More info: {CONVENTIONS}#types-kinds"),
        );
    }

    /// Nothing may stand beside a reference in version 3.
    fn describe(&self, schema: Option<&mut Value>, text: &str) {
        let Some(schema) = schema else { return };
        if self.dialect == Dialect::V3 && schema.get("$ref").is_some() {
            *schema = json!({ "allOf": [schema.take()] });
        }
        schema["description"] = text.into();
    }

    /// A type with a form of its own.
    fn plain(&mut self, name: &str, texts: Option<Text>) -> Value {
        let v3 = self.dialect == Dialect::V3;
        let mut schema = match name {
            QUANTITY if v3 => json!({ "oneOf": [{ "type": "string" }, { "type": "number" }] }),
            QUANTITY => json!({ "type": "string" }),
            INT_OR_STRING if v3 => {
                json!({ "format": "int-or-string", "oneOf": [{ "type": "integer" }, { "type": "string" }] })
            }
            INT_OR_STRING => json!({ "format": "int-or-string", "type": "string" }),
            _ if name.starts_with(META) && name.ends_with("Time") => json!({ "type": "string", "format": "date-time" }),
            _ if v3 && (name.contains("JSONSchemaPropsOr") || name.ends_with(".JSON")) => json!({}),
            _ if name.contains("JSONSchemaPropsOr") => {
                let (package, other) = name.split_once("JSONSchemaPropsOr").unwrap_or_default();
                let props = self.reference(&format!("{package}JSONSchemaProps"));
                let other = match other {
                    "Bool" => json!({ "type": "boolean" }),
                    "Array" => json!({ "type": "array", "items": props }),
                    _ => json!({ "type": "array", "items": { "type": "string" } }),
                };
                json!({ "oneOf": [props, other] })
            }
            _ if texts.is_some() || name.starts_with(META) => json!({ "type": "object" }),
            _ => json!({}),
        };
        if let Some(description) = texts.and_then(|texts| texts.description) {
            schema["description"] = description.into();
        }
        schema
    }

    /// Makes the references of a foreign schema this document's own.
    fn adopt(&mut self, schema: &mut Value) {
        match schema {
            Value::Object(map) => {
                let name = map.get("$ref").and_then(Value::as_str).and_then(|r| r.rsplit('/').next());
                if let Some(name) = name.map(str::to_owned) {
                    let reference = self.reference(&name);
                    map.insert("$ref", reference["$ref"].clone());
                }
                map.values_mut().for_each(|child| self.adopt(child));
            }
            Value::Array(list) => list.iter_mut().for_each(|child| self.adopt(child)),
            _ => {}
        }
    }

    fn custom_list(&mut self, item: &str) -> Value {
        let (item, metadata) = (self.reference(item), self.reference(&format!("{META}ListMeta")));
        json!({
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": { "type": "string" }, "kind": { "type": "string" }, "metadata": metadata,
                "items": { "type": "array", "items": item },
            },
        })
    }

    fn object(&mut self, object: &Object, texts: Option<&Text>) -> Value {
        let mut schema = Map::new();
        let description = texts.and_then(|texts| texts.description.clone());
        schema.extend(description.map(|text| ("description".to_owned(), text.into())));
        schema.insert("type".to_owned(), "object".into());
        let properties = object.fields.iter().map(|field| {
            let texts = texts.and_then(|texts| texts.property(&field.name));
            (field.name.to_string(), self.property(field, texts))
        });
        let mut properties: Map = properties.collect();
        // How lists of objects are merged is not asked: nobody writes them.
        if object.field("metadata").is_some_and(|field| field.ty.name().is_some_and(|name| name.ends_with("ListMeta")))
            && let Some(items) = properties.get_mut("items").and_then(Value::as_object_mut)
        {
            items.remove("x-kubernetes-list-type");
        }
        if !properties.is_empty() {
            schema.insert("properties", Value::Object(properties));
        }
        let required = object.fields.iter().filter(|field| field.published.starts_with('r'));
        let mut required: Vec<(u16, &str)> = required.map(|field| (field.place, field.name.as_str())).collect();
        required.sort_unstable();
        let required: Vec<&str> = required.into_iter().map(|(_, name)| name).collect();
        if !required.is_empty() {
            schema.insert("required", json!(required));
        }
        if object.atomic {
            schema.insert("x-kubernetes-map-type", "atomic".into());
        }
        Value::Object(schema)
    }

    fn property(&mut self, field: &Field, texts: Option<&Property>) -> Value {
        let mut schema = match (&field.ty, texts.and_then(|texts| texts.refers_to.as_ref())) {
            // The table knows these types only as JSON of some sort; their names are the types' own.
            (Type::Raw | Type::Any, Some(name)) => self.reference(name),
            (ty, _) => self.ty(ty),
        };
        if let Some(values) = texts.map(|texts| &texts.values).filter(|values| !values.is_empty()) {
            let of = match &field.ty {
                Type::List(_) => &mut schema["items"],
                Type::Map(_) => &mut schema["additionalProperties"],
                _ => &mut schema,
            };
            of["enum"] = json!(values);
        }
        let description = texts.and_then(|texts| texts.description.as_ref());
        let default = default_of(field).filter(|_| self.dialect == Dialect::V3);
        // Nothing may stand beside a reference in version 3.
        let alone = description.is_none() && default.is_none();
        if self.dialect == Dialect::V3 && schema.get("$ref").is_some() && !alone {
            schema = json!({ "allOf": [schema] });
        }
        let Value::Object(map) = &mut schema else { return schema };
        if let Some(description) = description {
            map.insert("description".to_owned(), description.as_str().into());
        }
        if let Some(default) = default {
            map.insert("default", default);
        }
        let mut strategies = Vec::new();
        strategies.extend(field.replace.then_some("replace"));
        strategies.extend(field.merge.then_some("merge"));
        strategies.extend(field.retain_keys.then_some("retainKeys"));
        if !strategies.is_empty() {
            map.insert("x-kubernetes-patch-strategy", strategies.join(",").into());
        }
        if !field.merge_key.is_empty() {
            map.insert("x-kubernetes-patch-merge-key", (&*field.merge_key).into());
        }
        schema
    }

    /// An item of a list, or a value of a map.
    fn element(&mut self, ty: &Type) -> Value {
        let mut schema = self.ty(ty);
        if self.dialect == Dialect::V2 {
            return schema;
        }
        match ty {
            Type::Ref(_) => schema = json!({ "allOf": [schema], "default": {} }),
            Type::String | Type::Int32 | Type::Int64 | Type::Bool => schema["default"] = zero(ty),
            _ => {}
        }
        schema
    }

    fn ty(&mut self, ty: &Type) -> Value {
        match ty {
            Type::String | Type::Scalar => json!({ "type": "string" }),
            Type::Bytes => json!({ "type": "string", "format": "byte" }),
            Type::Int32 => json!({ "type": "integer", "format": "int32" }),
            Type::Int64 => json!({ "type": "integer", "format": "int64" }),
            Type::Number => json!({ "type": "number", "format": "double" }),
            Type::Bool => json!({ "type": "boolean" }),
            Type::Quantity => self.reference(QUANTITY),
            Type::IntOrString => self.reference(INT_OR_STRING),
            Type::Time => self.reference(&format!("{META}Time")),
            Type::MicroTime => self.reference(&format!("{META}MicroTime")),
            Type::Any => json!({}),
            Type::Raw => json!({ "type": "object" }),
            Type::Map(map) => {
                let mut schema = json!({ "type": "object", "additionalProperties": self.element(&map.values) });
                if map.atomic {
                    schema["x-kubernetes-map-type"] = "atomic".into();
                }
                schema
            }
            Type::List(list) => {
                let mut schema = json!({ "type": "array", "items": self.element(&list.items) });
                schema["x-kubernetes-list-type"] = match &list.kind {
                    ListKind::Atomic => "atomic".into(),
                    ListKind::Set => "set".into(),
                    ListKind::Map(keys) => {
                        let names: Vec<&str> = keys.iter().map(|k| &*k.name).collect();
                        schema["x-kubernetes-list-map-keys"] = names.into();
                        "map".into()
                    }
                };
                schema
            }
            Type::Object(object) => self.object(object, None),
            Type::Ref(_) => self.reference(&ty.name().unwrap_or_default()),
            Type::Later(_) => self.ty(ty.resolve()),
        }
    }
}

/// The fields that a custom kind names itself. Those of built-in kinds are not published.
fn selectable_fields(definition: &Definition) -> Option<Value> {
    let named = definition.open_api.is_some() && !definition.selectable.is_empty();
    let fields = definition.selectable.iter().map(|field| json!({ "fieldPath": field.label }));
    named.then(|| fields.collect())
}

/// The default that is published for a field.
fn default_of(field: &Field) -> Option<Value> {
    let said = field.published.trim_start_matches('r').strip_prefix('d')?;
    match said.strip_prefix('=') {
        Some(text) => serde_json::from_str(text).ok(),
        None => Some(zero(&field.ty)),
    }
}

/// The value that Go has where nothing is said.
fn zero(ty: &Type) -> Value {
    match ty {
        Type::String => json!(""),
        Type::Int32 | Type::Int64 => json!(0),
        Type::Bool => json!(false),
        _ => json!({}),
    }
}

/// Takes out of a custom kind's schema what version 2 has no words for, and what old clients would misunderstand.
fn simplify(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    for word in ["allOf", "anyOf", "oneOf", "not"] {
        map.remove(word);
    }
    let nullable = map.remove("nullable").is_some_and(|nullable| nullable == true);
    let open = map.get("x-kubernetes-preserve-unknown-fields").is_some_and(|open| *open == true);
    if nullable || open {
        for word in ["type", "items", "properties"] {
            map.remove(word);
        }
    }
    if map.get("type").is_some_and(|ty| ty == "array") && !map.contains_key("items") {
        map.remove("type");
    }
    let optional: Vec<String> = match map.get_mut("properties") {
        Some(Value::Object(properties)) => {
            let nullable =
                properties.iter().filter(|(_, of)| of.get("nullable").is_some_and(|nullable| *nullable == true));
            let names = nullable.map(|(name, _)| name.to_string()).collect();
            properties.values_mut().for_each(simplify);
            names
        }
        _ => Vec::new(),
    };
    if let Some(Value::Array(required)) = map.get_mut("required") {
        required.retain(|name| !optional.iter().any(|optional| name == optional));
    }
    for word in ["items", "additionalProperties"] {
        map.get_mut(word).into_iter().for_each(simplify);
    }
}

pub(super) fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({ "group": group, "version": version, "kind": kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custom::{Head, Stored, definitions};

    #[test]
    fn selectable_fields_are_published() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "color": {"type": "string"}, "size": {"type": "integer"}}}}});
        let crd = json!({"metadata": {"name": "dogs.a.io", "uid": "u"}, "spec": {"group": "a.io", "scope": "Namespaced",
            "names": {"plural": "dogs", "kind": "Dog", "listKind": "DogList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}]}]},
            "status": {"acceptedNames": {"plural": "dogs", "kind": "Dog", "listKind": "DogList"}}});
        let bytes = crd.to_string().into_bytes();
        let head = Head::read(&bytes).expect("a definition");
        let stored: Stored = Arc::new(bytes);
        let own = definitions(&head, &stored, 0);
        for dialect in [Dialect::V2, Dialect::V3] {
            let mut schemas = Schemas::new(dialect, &own.iter().collect::<Vec<_>>(), Features::default());
            schemas.reference("io.a.v1.DogList");
            let done = schemas.finish();
            for name in ["io.a.v1.Dog", "io.a.v1.DogList"] {
                let fields = &done[name]["x-kubernetes-selectable-fields"];
                assert_eq!(*fields, json!([{"fieldPath": "spec.color"}, {"fieldPath": "spec.size"}]), "{name}");
            }
        }
    }
}
