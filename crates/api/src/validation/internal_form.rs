//! Objects as upstream's messages show them: in the API server's internal types, whose fields have Go's names and are
//! written also when nobody set them. `tables/internal.tsv` has the types that messages show.
//!
//! A line of the table is a type and its fields, each `Name:form`. Forms: a zero value (`""`, `0`, `false`, `"0"`, `?` for
//! null) for what is written as it is, `*Type` (null when absent), `[]Type`, `Type` (written whole when absent) and
//! `+Type` or `+Type@field` for a type whose fields stand among the others. `Name=field` names the API's field where more
//! than letter case differs; `-name` is left out when absent.

use std::collections::HashMap;
use std::sync::LazyLock;

use json::{Key, Map, Value};

use crate::validation::line_diff;

static TABLE: &str = include_str!("../../tables/internal.tsv");

enum Form {
    /// As in the API; this text when absent.
    Plain(&'static str),
    Pointer(&'static str),
    List(&'static str),
    Whole(&'static str),
    /// The fields of that type are fields of this one; in the API perhaps those of an object of their own.
    Among(&'static str, Option<&'static str>),
}

struct Field {
    name: &'static str,
    /// The API's name, in lower case.
    key: String,
    optional: bool,
    form: Form,
}

fn parse_field(text: &'static str) -> Field {
    if let Some(text) = text.strip_prefix('+') {
        let (ty, field) = text.split_once('@').map_or((text, None), |(ty, field)| (ty, Some(field)));
        return Field { name: "", key: String::new(), optional: false, form: Form::Among(ty, field) };
    }
    let (names, form) = text.split_once(':').unwrap_or((text, "?"));
    let (optional, names) = names.strip_prefix('-').map_or((false, names), |n| (true, n));
    let (name, key) = names.split_once('=').unwrap_or((names, names));
    let form = match form {
        "?" => Form::Plain("null"),
        zero if zero.starts_with(['"', '0', 'f']) => Form::Plain(zero),
        other => match (other.strip_prefix('*'), other.strip_prefix("[]")) {
            (Some(ty), _) => Form::Pointer(ty),
            (_, Some(ty)) => Form::List(ty),
            _ => Form::Whole(other),
        },
    };
    Field { name, key: key.to_ascii_lowercase(), optional, form }
}

static TYPES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let parse = |line: &'static str| {
        let (ty, fields) = line.split_once('\t').unwrap_or((line, ""));
        (ty, fields.split(' ').filter(|f| !f.is_empty()).map(parse_field).collect())
    };
    TABLE.lines().map(parse).collect()
});

/// An object of the API of this type in one line.
pub(crate) fn compact(ty: &str, value: impl serde::Serialize) -> String {
    text(ty, &json::to_value(value).unwrap_or_default(), false)
}

/// How two objects of one type differ: a unified diff of their indented forms.
pub(crate) fn diff(ty: &str, old: impl serde::Serialize, new: impl serde::Serialize) -> String {
    let form = |value: Result<Value, _>| text(ty, &value.unwrap_or_default(), true);
    line_diff::unified(&form(json::to_value(old)), &form(json::to_value(new)), 3)
}

fn text(ty: &str, value: &Value, indented: bool) -> String {
    let mut writer = Writer { out: String::new(), indented, depth: 0 };
    writer.whole(ty, value.as_object());
    writer.out
}

/// A value as JSON, as Go's encoder writes it.
pub(crate) fn json_text(value: &Value) -> String {
    let mut out = Vec::new();
    value.append_to(&mut out);
    String::from_utf8(out).unwrap_or_default()
}

struct Writer {
    out: String,
    indented: bool,
    depth: usize,
}

impl Writer {
    fn line(&mut self) {
        if self.indented {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', self.depth));
        }
    }

    /// Writes the parts of an object or list, each by `part`, between its brackets.
    fn list<T>(&mut self, brackets: [char; 2], parts: Vec<T>, mut part: impl FnMut(&mut Self, T)) {
        self.out.push(brackets[0]);
        self.depth += 1;
        let empty = parts.is_empty();
        for (i, one) in parts.into_iter().enumerate() {
            if i > 0 {
                self.out.push(',');
            }
            self.line();
            part(self, one);
        }
        self.depth -= 1;
        if !empty {
            self.line();
        }
        self.out.push(brackets[1]);
    }

    fn name(&mut self, name: &str) {
        self.out.push_str(&json_text(&Value::from(name)));
        self.out.push_str(if self.indented { ": " } else { ":" });
    }

    fn whole(&mut self, ty: &str, object: Option<&Map>) {
        let fields = present(ty, object);
        self.list(['{', '}'], fields, |writer, (field, value)| {
            writer.name(field.name);
            writer.field(&field.form, value);
        });
    }

    fn field(&mut self, form: &Form, value: Option<&Value>) {
        match (form, value.filter(|v| !v.is_null())) {
            (Form::Plain(_), Some(value)) => self.plain(value),
            (Form::Plain(zero), None) => self.out.push_str(zero),
            (Form::Pointer(_) | Form::List(_), None) => self.out.push_str("null"),
            (Form::Pointer(ty) | Form::Whole(ty) | Form::Among(ty, _), value) => {
                self.whole(ty, value.and_then(Value::as_object));
            }
            (Form::List(ty), Some(value)) => {
                let items: Vec<_> = value.as_array().into_iter().flatten().collect();
                self.list(['[', ']'], items, |writer, item| writer.whole(ty, item.as_object()));
            }
        }
    }

    fn plain(&mut self, value: &Value) {
        match value {
            Value::Array(items) => self.list(['[', ']'], items.iter().collect(), Self::plain),
            Value::Object(map) => self.list(['{', '}'], map.iter().collect(), |writer, (name, value)| {
                writer.name(name);
                writer.plain(value);
            }),
            other => self.out.push_str(&json_text(other)),
        }
    }
}

/// The fields that are written of an object of this type, each with its value if it has one.
fn present<'a>(ty: &str, object: Option<&'a Map>) -> Vec<(&'static Field, Option<&'a Value>)> {
    let mut list = Vec::new();
    for field in TYPES.get(ty).into_iter().flatten() {
        if let Form::Among(ty, own) = field.form {
            let inner = own.map_or(object, |own| object.and_then(|o| o.get(own)).and_then(Value::as_object));
            list.extend(present(ty, inner));
            continue;
        }
        let named = |(key, _): &(&Key, &Value)| key.eq_ignore_ascii_case(&field.key);
        let value = object.and_then(|o| o.iter().find(named)).map(|(_, value)| value);
        if value.is_some() || !field.optional {
            list.push((field, value));
        }
    }
    list
}

/// The spec of a Pod with what the internal type keeps in the security context.
pub(crate) fn pod_spec(spec: &k8s_openapi::api::core::v1::PodSpec) -> Value {
    let mut value = json::to_value(spec).unwrap_or_default();
    let Some(map) = value.as_object_mut() else { return value };
    let moved: Vec<(String, Value)> = ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"]
        .into_iter()
        .filter_map(|field| map.remove(field).map(|value| (field.to_owned(), value)))
        .collect();
    let security = map.entry("securityContext").or_insert_with(|| Value::Object(Map::new()));
    if let Some(security) = security.as_object_mut() {
        security.extend(moved);
    }
    value
}

/// A template, with its spec in that form.
pub(crate) fn pod_template(template: &k8s_openapi::api::core::v1::PodTemplateSpec) -> Value {
    let mut value = json::to_value(template).unwrap_or_default();
    if let (Some(map), Some(spec)) = (value.as_object_mut(), &template.spec) {
        map.insert("spec", pod_spec(spec));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn unset_fields_are_written_and_names_are_go_s() {
        for (ty, value, expected) in [
            (
                "Taint",
                json!({"key": "a", "effect": "NoSchedule"}),
                r#"{"Key":"a","Value":"","Effect":"NoSchedule","TimeAdded":null}"#,
            ),
            (
                "ServicePort",
                json!({"protocol": "TCP", "port": 80}),
                r#"{"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}"#,
            ),
            (
                "SecretKeySelector",
                json!({"name": "s", "key": "<k>"}),
                r#"{"Name":"s","Key":"\u003ck\u003e","Optional":null}"#,
            ),
            (
                "ResourceRequirements",
                json!({"limits": {"cpu": "1"}}),
                r#"{"Limits":{"cpu":"1"},"Requests":null,"Claims":null}"#,
            ),
            (
                "WeightedPodAffinityTerm",
                json!({"weight": 1, "podAffinityTerm": {"labelSelector": {"matchLabels": {"a": "b"}}}}),
                r#"{"Weight":1,"PodAffinityTerm":{"LabelSelector":{"matchLabels":{"a":"b"}},"Namespaces":null,"TopologyKey":"","NamespaceSelector":null,"MatchLabelKeys":null,"MismatchLabelKeys":null}}"#,
            ),
            (
                "PersistentVolumeClaimTemplate",
                json!({"metadata": {"labels": {"a": "b"}}, "spec": {}}),
                r#"{"labels":{"a":"b"},"Spec":{"AccessModes":null,"Selector":null,"Resources":{"Limits":null,"Requests":null},"VolumeName":"","StorageClassName":null,"VolumeMode":null,"DataSource":null,"DataSourceRef":null,"VolumeAttributesClassName":null}}"#,
            ),
        ] {
            assert_eq!(compact(ty, value), expected, "{ty}");
        }
    }

    #[test]
    fn a_diff_names_what_changed() {
        let toleration = |key: &str| json!({"key": key, "operator": "Exists"});
        let expected = "@@ -1,5 +1,5 @@\n {\n- \"Key\": \"a\",\n+ \"Key\": \"b\",\n  \"Operator\": \"Exists\",\n  \"Value\": \"\",\n  \"Effect\": \"\",\n";
        assert_eq!(diff("Toleration", toleration("a"), toleration("b")), expected);
    }

    #[test]
    fn every_type_of_the_table_is_in_it() {
        for (ty, fields) in &*TYPES {
            for field in fields {
                if let Form::Pointer(other) | Form::List(other) | Form::Whole(other) | Form::Among(other, _) =
                    field.form
                {
                    assert!(TYPES.contains_key(other), "{ty} refers to {other}");
                }
            }
        }
    }
}
