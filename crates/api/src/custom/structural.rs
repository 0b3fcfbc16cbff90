//! The structural schema of one version, as objects are defaulted, pruned and checked by it. Fields of the schema that are
//! only text are left out.

use std::ops::Deref;
use std::sync::LazyLock;

use cel::escaped;
use json::{Key, Value};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};

use super::formats;
use super::pattern::Pattern;
use crate::validation::field::Path;

/// One place of a schema. In the parts of `all`, `any`, `one` and `not` only what says something about values is set.
///
/// There are hundreds of places in a schema, and of most only the type and the fields are said: the rest ([`More`]) stands
/// apart, and takes no memory where there is none.
#[derive(Debug, Clone, Default)]
pub struct Structural {
    /// Empty where any type will do.
    pub ty: Box<str>,
    pub nullable: bool,
    /// `x-kubernetes-preserve-unknown-fields`
    pub open: bool,
    /// `x-kubernetes-embedded-resource`
    pub embedded: bool,
    pub int_or_string: bool,
    /// Expressions see its values as the JSON that they are.
    pub plain: bool,
    pub properties: Properties,
    pub additional: Option<Additional>,
    pub items: Option<Box<Structural>>,
    pub(super) more: Option<Box<More>>,
}

/// The keywords that few places of a schema have.
#[derive(Debug, Clone, Default)]
pub struct More {
    pub default: Option<Value>,
    /// `atomic`, `set`, `map` or nothing.
    pub list_type: Box<str>,
    pub list_keys: Box<[Box<str>]>,
    pub limits: Limits,
    pub required: Box<[Box<str>]>,
    pub allowed: Box<[Value]>,
    pub pattern: Option<Pattern>,
    /// Only a format that is checked.
    pub format: Option<Box<str>>,
    /// The format as it is written, by which expressions see a text as something else.
    pub shown_format: Box<str>,
    pub all: Box<[Structural]>,
    pub any: Box<[Structural]>,
    pub one: Box<[Structural]>,
    pub not: Option<Box<Structural>>,
    pub rules: Box<[ValidationRule]>,
}

/// The rest of a place reads as if it stood in it.
impl Deref for Structural {
    type Target = More;

    fn deref(&self) -> &More {
        static NONE: LazyLock<More> = LazyLock::new(More::default);
        self.more.as_deref().unwrap_or_else(|| &NONE)
    }
}

/// The fields that a schema declares, by name. They are made once: a list takes a fraction of the memory of a map.
#[derive(Debug, Clone, Default)]
pub struct Properties(Box<[(Key, Structural)]>);

impl Properties {
    pub fn get(&self, name: &str) -> Option<&Structural> {
        let at = self.0.binary_search_by(|(own, _)| own.as_str().cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Structural)> {
        self.0.iter().map(|(name, of)| (name, of))
    }

    pub fn values(&self) -> impl Iterator<Item = &Structural> {
        self.0.iter().map(|(_, of)| of)
    }
}

impl FromIterator<(Key, Structural)> for Properties {
    fn from_iter<I: IntoIterator<Item = (Key, Structural)>>(fields: I) -> Self {
        let mut fields: Vec<_> = fields.into_iter().collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Properties(fields.into())
    }
}

/// The rule for fields that have no schema of their own.
#[derive(Debug, Clone)]
pub enum Additional {
    Allowed(bool),
    Of(Box<Structural>),
}

impl Additional {
    fn schema(&self) -> Option<&Structural> {
        match self {
            Additional::Of(values) => Some(values),
            Additional::Allowed(_) => None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    pub maximum: Option<f64>,
    pub minimum: Option<f64>,
    pub exclusive_maximum: bool,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub unique_items: bool,
}

fn text(value: Option<&String>) -> Box<str> {
    value.map(String::as_str).unwrap_or_default().into()
}

fn texts(list: Option<&Vec<String>>) -> Box<[Box<str>]> {
    list.into_iter().flatten().map(|s| s.as_str().into()).collect()
}

fn parts(list: Option<&Vec<JSONSchemaProps>>) -> Box<[Structural]> {
    list.into_iter().flatten().map(Structural::of).collect()
}

impl Structural {
    pub fn of(schema: &JSONSchemaProps) -> Structural {
        let additional = schema.additional_properties.as_ref().map(|additional| match additional {
            JSONSchemaPropsOrBool::Bool(allowed) => Additional::Allowed(*allowed),
            JSONSchemaPropsOrBool::Schema(values) => Additional::Of(Box::new(Structural::of(values))),
        });
        let items = match &schema.items {
            Some(JSONSchemaPropsOrArray::Schema(items)) => Some(Box::new(Structural::of(items))),
            _ => None,
        };
        let properties = schema.properties.iter().flatten();
        let mut structural = Structural {
            ty: text(schema.type_.as_ref()),
            nullable: schema.nullable == Some(true),
            open: schema.x_kubernetes_preserve_unknown_fields == Some(true),
            embedded: schema.x_kubernetes_embedded_resource == Some(true),
            int_or_string: schema.x_kubernetes_int_or_string == Some(true),
            plain: false,
            properties: properties.map(|(name, of)| (Key::of(name), Structural::of(of))).collect(),
            additional,
            items,
            more: More::of(schema),
        };
        structural.plain = structural.is_plain();
        structural
    }

    fn is_plain(&self) -> bool {
        let formatted =
            &*self.ty == "string" && matches!(&*self.shown_format, "byte" | "date" | "date-time" | "duration");
        let named = |name: &str| escaped(name).is_none_or(|spelled| spelled == name);
        !formatted
            && !self.is_associative()
            && (&*self.ty != "number" || self.int_or_string)
            && self.properties.iter().all(|(name, of)| named(name) && of.plain && !of.nullable)
            && self
                .items
                .as_deref()
                .into_iter()
                .chain(self.additional.iter().filter_map(Additional::schema))
                .all(|of| of.plain)
    }

    /// Whether the order of its items counts for nothing: it is a list that is a set or a map.
    pub fn is_associative(&self) -> bool {
        &*self.ty == "array" && matches!(&*self.list_type, "set" | "map")
    }

    /// The schema of the values of a field.
    pub fn field(&self, name: &str) -> Option<&Structural> {
        self.properties.get(name).or_else(|| self.values())
    }

    /// The schema of fields that are not declared.
    pub fn values(&self) -> Option<&Structural> {
        self.additional.as_ref().and_then(Additional::schema)
    }

    /// Calls `f` with each object and list directly within `value`, its schema and its place.
    pub fn below(&self, value: &Value, path: &Path, f: &mut impl FnMut(&Value, &Structural, &Path)) {
        match value {
            Value::Object(map) => {
                for (name, value) in map.iter().filter(|(_, value)| value.is_object() || value.is_array()) {
                    if let Some(of) = self.properties.get(name.as_str()) {
                        f(value, of, &path.child(name));
                    } else if let Some(of) = self.values() {
                        f(value, of, &path.key(name));
                    }
                }
            }
            Value::Array(list) => {
                if let Some(items) = &self.items {
                    list.iter().enumerate().for_each(|(i, item)| f(item, items, &path.index(i)));
                }
            }
            _ => {}
        }
    }

    /// Calls `f` with this and all schemas in it that objects take their shape from.
    pub fn visit(&self, f: &mut impl FnMut(&Structural)) {
        f(self);
        let below = self.properties.values().chain(self.items.as_deref()).chain(self.values());
        below.for_each(|part| part.visit(f));
    }
}

impl More {
    /// `None` where the schema says nothing of this.
    fn of(schema: &JSONSchemaProps) -> Option<Box<More>> {
        let more = More {
            default: schema.default.as_ref().map(|json| Value::from(&json.0)),
            list_type: text(schema.x_kubernetes_list_type.as_ref()),
            list_keys: texts(schema.x_kubernetes_list_map_keys.as_ref()),
            limits: limits(schema),
            required: texts(schema.required.as_ref()),
            allowed: schema.enum_.iter().flatten().map(|json| Value::from(&json.0)).collect(),
            pattern: schema.pattern.as_deref().filter(|p| !p.is_empty()).map(Pattern::new),
            format: schema.format.as_deref().filter(|f| formats::is_known(f)).map(Into::into),
            shown_format: text(schema.format.as_ref()),
            all: parts(schema.all_of.as_ref()),
            any: parts(schema.any_of.as_ref()),
            one: parts(schema.one_of.as_ref()),
            not: schema.not.as_ref().map(|not| Box::new(Structural::of(not))),
            rules: schema.x_kubernetes_validations.iter().flatten().cloned().collect(),
        };
        (!more.is_none()).then(|| Box::new(more))
    }

    fn is_none(&self) -> bool {
        let More { default, list_type, list_keys, limits, required, allowed, .. } = self;
        let More { pattern, format, shown_format, all, any, one, not, rules, .. } = self;
        let parts = [all, any, one].into_iter().all(|parts| parts.is_empty());
        let words = list_type.is_empty() && shown_format.is_empty() && list_keys.is_empty() && required.is_empty();
        let checks = pattern.is_none() && format.is_none() && not.is_none() && allowed.is_empty() && rules.is_empty();
        parts && words && checks && default.is_none() && *limits == Limits::default()
    }
}

fn limits(schema: &JSONSchemaProps) -> Limits {
    Limits {
        maximum: schema.maximum,
        minimum: schema.minimum,
        exclusive_maximum: schema.exclusive_maximum == Some(true),
        exclusive_minimum: schema.exclusive_minimum == Some(true),
        multiple_of: schema.multiple_of,
        max_length: schema.max_length,
        min_length: schema.min_length,
        max_items: schema.max_items,
        min_items: schema.min_items,
        max_properties: schema.max_properties,
        min_properties: schema.min_properties,
        unique_items: schema.unique_items == Some(true),
    }
}
