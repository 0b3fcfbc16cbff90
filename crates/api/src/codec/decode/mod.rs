//! From bytes a client sent (JSON, YAML or protobuf) to a value, in one pass along the schema: unknown and duplicate fields are
//! found with their paths, wrong types refused in the words of Go's decoder, quantities and times brought into their
//! canonical form, and zero values dropped or filled in as upstream's encoder would.

use json::{Map, Value};

use crate::{
    codec::{bounds::TOO_DEEP, cbor, problem::Problem, protobuf, syntax},
    schema::{self, Object, Type, Zero},
    status::StatusError,
    validation::field::{FieldError, Path},
};

mod changed;
mod converter;
mod repeated;
mod scalar;
mod type_meta;
mod visit;
mod yaml;

pub use changed::{normalise_changed, normalise_changed_in};
pub use scalar::time;
pub use type_meta::{LEGACY_SCHEME, custom_kind, not_registered};
pub(crate) use visit::Context;

/// The part of Go's libraries in whose words a value of the wrong type is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// The JSON decoder, through which most objects come.
    Json,
    /// The converter from free values to types, which strategic merge patches take.
    Converter,
}

/// `fieldValidation` of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Validation {
    /// Unknown and duplicate fields refuse the request.
    Strict,
    /// They become warnings.
    #[default]
    Warn,
    /// They are dropped silently.
    Ignore,
}

impl Validation {
    /// The query parameter; empty is the default. The error is about the field of that name.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        match text {
            "Strict" => Ok(Validation::Strict),
            "Warn" | "" => Ok(Validation::Warn),
            "Ignore" => Ok(Validation::Ignore),
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                Err(FieldError::not_supported(&Path::new("fieldValidation"), other, &supported))
            }
        }
    }
}

/// Group, version and kind that the path of the request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gvk<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
}

impl Gvk<'_> {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The package of upstream's internal types, by which messages name what a body is converted to.
    fn internal_package(&self) -> &str {
        match self.group.split('.').next() {
            None | Some("" | "events") => "core",
            Some(first) => first,
        }
    }

    /// The name that upstream's internal type has in Go, `*core.PodList`; `kind` is this kind's or its list's.
    pub fn internal_type(&self, kind: &str, custom: bool) -> String {
        match custom {
            true if kind == self.kind => "*unstructured.Unstructured".to_owned(),
            true => "*unstructured.UnstructuredList".to_owned(),
            false => format!("*{}.{kind}", self.internal_package()),
        }
    }

    /// A decoding problem as the client sees it.
    pub fn cannot_handle(&self, why: &str) -> StatusError {
        let Gvk { version, kind, .. } = self;
        StatusError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    }
}

/// A decoded object; `apiVersion` and `kind` are set.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// For `Warning:` headers: `unknown field "spec.foo"`.
    pub warnings: Vec<String>,
}

/// The format that a body is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
    Protobuf,
}

impl Format {
    /// By the `Content-Type` of a request that carries an object of this type; no type at all is JSON. Everything else
    /// is refused (415): guessing would read one document in two ways.
    fn of(media_type: &str, ty: &Type) -> Result<Self, StatusError> {
        let has_protobuf = ty.object().is_some_and(|object| protobuf::has(&object.name));
        match media_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase().as_str() {
            "" | "application/json" => Ok(Format::Json),
            "application/yaml" => Ok(Format::Yaml),
            protobuf::MEDIA_TYPE if has_protobuf => Ok(Format::Protobuf),
            _ => {
                let accepted = "the body of the request was in an unknown format - accepted media types include: \
                                application/json, application/yaml";
                let more = if has_protobuf { format!(", {}", protobuf::MEDIA_TYPE) } else { String::new() };
                Err(StatusError::unsupported_media_type(format!("{accepted}{more}")))
            }
        }
    }
}

/// Decodes the body of a create or update: JSON, YAML or, for built-in kinds, protobuf.
pub fn decode(
    ty: &Type,
    gvk: Gvk<'_>,
    bytes: &[u8],
    media_type: &str,
    validation: Validation,
) -> Result<Decoded, StatusError> {
    let mut context = Context::new(validation != Validation::Ignore);
    let format = Format::of(media_type, ty)?;
    let value = read(ty, bytes, format, &mut context).map_err(|problem| {
        let none = if format == Format::Json { no_object(bytes) } else { None };
        match (problem, none) {
            (Problem::Type(_), Some(why)) => unreadable(Problem::Syntax(why), gvk, bytes),
            (problem, _) => unreadable(problem, gvk, bytes),
        }
    })?;
    let custom = ty.object().is_some_and(|object| object.custom);
    let value = if custom { type_meta::custom(value, gvk, bytes)? } else { type_meta::built_in(value, gvk, bytes)? };
    if validation == Validation::Strict && !context.strict.is_empty() {
        return Err(gvk.cannot_handle(&strict_error(&context.strict)));
    }
    Ok(Decoded { value, warnings: warnings(context.strict) })
}

/// Faults as warnings: the keys that stand twice in a YAML document are one fault and a warning each.
pub fn warnings(faults: Vec<String>) -> Vec<String> {
    let each = |fault: String| match fault.split_once(repeated::INTRODUCTION) {
        Some((_, lines)) => lines.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect(),
        None => vec![fault],
    };
    faults.into_iter().flat_map(each).collect()
}

/// Decodes the options that come in the body of a request (`DeleteOptions`). Clients send them under the version of any
/// group, so the kind alone counts; unknown fields are passed over. No body at all is no options.
pub fn options(kind: &str, bytes: &[u8], media_type: &str) -> Result<Value, StatusError> {
    if bytes.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let ty = schema::of(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"))
        .ok_or_else(|| StatusError::internal(format!("no schema of {kind}")))?;
    let format = Format::of(media_type, ty)?;
    let mut context = Context::with_zeros(false);
    let value = read(ty, bytes, format, &mut context).map_err(|problem| match problem {
        Problem::TooLarge(why) => StatusError::too_large(why),
        Problem::Syntax(why) | Problem::Type(why) => StatusError::bad_request(why),
    })?;
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let (version, found) = (text("apiVersion"), text("kind"));
    if type_meta::is_no_version(version) {
        return Err(StatusError::bad_request(type_meta::no_version(version)));
    }
    if !found.is_empty() && found != kind {
        let version = if version.is_empty() { "meta.k8s.io/v1" } else { version };
        let scheme = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27";
        return Err(StatusError::bad_request(not_registered(found, version, scheme)));
    }
    Ok(value)
}

/// The value of a body. A document that is null stands for an object without fields.
fn read(ty: &Type, bytes: &[u8], format: Format, context: &mut Context) -> Result<Value, Problem> {
    let value = match format {
        Format::Json => from_json(ty, bytes, context).map_err(|problem| match problem {
            Problem::Syntax(why) => Problem::Syntax(format!("couldn't get version/kind; json parse error: {why}")),
            other => other,
        })?,
        Format::Yaml => visit::from_yaml(ty, bytes, context)?,
        Format::Protobuf => {
            let schema = ty.object().map(|object| &*object.name).unwrap_or_default();
            let value = protobuf::decode(schema, bytes).map_err(|error| Problem::Type(error.to_string()))?;
            visit::from_value(ty, value, context)?
        }
    };
    match value {
        Value::Null => visit::from_value(ty, Value::Object(Map::new()), context),
        value => Ok(value),
    }
}

fn from_json(ty: &Type, bytes: &[u8], context: &mut Context) -> Result<Value, Problem> {
    visit::from_json(ty, bytes, context).map_err(|problem| match problem {
        Problem::Syntax(why) if why != TOO_DEEP => Problem::Syntax(syntax::in_gos_words(bytes, why)),
        other => other,
    })
}

/// Why no version and kind are found in a document that is no object, in upstream's words.
fn no_object(bytes: &[u8]) -> Option<String> {
    let found = syntax::no_object(bytes)?;
    let wanted =
        r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let step = "couldn't get version/kind; json parse error";
    Some(format!("{step}: json: cannot unmarshal {found} into Go value of type {wanted}"))
}

/// The message about a body that is no object of the kind.
fn unreadable(problem: Problem, gvk: Gvk<'_>, bytes: &[u8]) -> StatusError {
    match problem {
        Problem::TooLarge(why) => StatusError::too_large(why),
        Problem::Syntax(why) => StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {} ({})",
            gvk.kind,
            why,
            summary(bytes)
        )),
        Problem::Type(why) => gvk.cannot_handle(&why),
    }
}

/// A body in CBOR as the JSON that it stands for. It is for an object of this kind, or a patch of one. When the type does not
/// know a field, that is refused or warned of as the validation says, in the second part; JSON has no such field.
pub fn cbor_as_json(
    ty: &Type,
    gvk: Gvk<'_>,
    bytes: &[u8],
    validation: Validation,
) -> Result<(Vec<u8>, Option<String>), StatusError> {
    let (value, unknown) = cbor::read_as(ty, bytes).map_err(|problem| match problem {
        Problem::TooLarge(why) => StatusError::too_large(why),
        Problem::Syntax(why) | Problem::Type(why) => StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): unable to determine group/version/kind: {why} ({})",
            gvk.kind,
            summary(bytes)
        )),
    })?;
    let unknown = unknown.map(|at| format!("cbor: found unknown field at map element index {at}"));
    match (unknown, validation) {
        (Some(unknown), Validation::Strict) => Err(gvk.cannot_handle(&strict_error(&[unknown]))),
        (unknown, validation) => {
            Ok((value.to_string().into_bytes(), unknown.filter(|_| validation == Validation::Warn)))
        }
    }
}

/// The beginning of a body that is no object, for the client: text if it looks like JSON, hexadecimal otherwise.
fn summary(bytes: &[u8]) -> String {
    const MOST: usize = 30;
    let start = &bytes[..bytes.len().min(MOST)];
    let more = if bytes.len() > MOST { " ..." } else { "" };
    match bytes.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => format!("{}{more}", base16ct::lower::encode_string(start)),
    }
}

/// Upstream's message for a list of unknown and duplicate fields.
pub fn strict_error(fields: &[String]) -> String {
    format!("strict decoding error: {}", fields.join(", "))
}

/// Reads any JSON or YAML without a schema (patches). The second part names duplicate fields.
pub fn raw(bytes: &[u8], format: Format) -> Result<(Value, Vec<String>), Problem> {
    let mut context = Context::new(true);
    let value = match format {
        Format::Json => from_json(&Type::Any, bytes, &mut context),
        Format::Yaml => visit::from_yaml(&Type::Any, bytes, &mut context),
        Format::Protobuf => Err(Problem::Syntax("a patch has no protobuf form".to_owned())),
    };
    value.map(|v| (v, context.strict))
}

/// Runs a value (the result of a patch) through the schema: what [`decode`] does to bytes. The second part names unknown
/// fields, which are dropped; a wrong type is an error.
pub fn normalise(ty: &Type, value: Value) -> Result<(Value, Vec<String>), String> {
    normalise_in(Words::Json, ty, value)
}

fn normalise_in(words: Words, ty: &Type, value: Value) -> Result<(Value, Vec<String>), String> {
    let mut context = Context::in_words(words);
    match visit::from_value(ty, value, &mut context) {
        Ok(value) => Ok((value, context.strict)),
        Err(Problem::Syntax(why) | Problem::Type(why) | Problem::TooLarge(why)) => Err(why),
    }
}

/// Like [`normalise`], but zero values are neither dropped nor filled in: what an apply request says is kept as it is.
pub fn typed(ty: &Type, value: Value) -> Result<(Value, Vec<String>), String> {
    let mut context = Context::with_zeros(true);
    match visit::from_value(ty, value, &mut context) {
        Ok(value) => Ok((value, context.strict)),
        Err(Problem::Syntax(why) | Problem::Type(why) | Problem::TooLarge(why)) => Err(why),
    }
}

/// The value that Go writes where none was ever set; `None` where it writes nothing, or null for a list or a map.
pub(crate) fn zero(ty: &Type) -> Option<Value> {
    Some(match ty.resolve() {
        Type::String | Type::Bytes => Value::String(String::new()),
        Type::Int32 | Type::Int64 | Type::Number | Type::IntOrString => 0.into(),
        Type::Bool => false.into(),
        Type::Quantity => "0".into(),
        Type::Time | Type::MicroTime => Value::Null,
        Type::Object(object) => {
            let mut map = Map::new();
            fill(object, &mut map);
            Value::Object(map)
        }
        _ => return None,
    })
}

/// Adds the fields that are always written.
fn fill(object: &Object, map: &mut Map) {
    for field in object.fields.iter().filter(|f| f.zero == Zero::Fill) {
        if !map.contains_key(&field.name)
            && let Some(value) = zero(&field.ty)
        {
            map.insert(&field.name, value);
        }
    }
}

/// Adds the fields that are always written to a value that has been through its type in Rust, which leaves out times that nobody has set.
pub(crate) fn complete(ty: &Type, value: &mut Value) {
    match (ty.resolve(), value) {
        (Type::Object(object), Value::Object(map)) => {
            fill(object, map);
            for (name, value) in map.iter_mut() {
                if let Some(field) = object.field(name) {
                    complete(&field.ty, value);
                }
            }
        }
        (Type::List(list), Value::Array(items)) => items.iter_mut().for_each(|item| complete(&list.items, item)),
        (Type::Map(map), Value::Object(values)) => values.values_mut().for_each(|value| complete(&map.values, value)),
        _ => {}
    }
}

/// Whether Go's `omitempty` leaves it out.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::codec::bounds;

    const DEPLOYMENT: Gvk<'static> = Gvk { group: "apps", version: "v1", kind: "Deployment" };

    fn deployment(body: &str, validation: Validation) -> Result<Decoded, String> {
        let ty = schema::of("io.k8s.api.apps.v1.Deployment").expect("known");
        decode(ty, DEPLOYMENT, body.as_bytes(), "application/json", validation).map_err(|e| e.message)
    }

    #[test]
    fn unknown_and_duplicate_fields_are_found_with_their_paths() {
        let body = r#"{"spec": {"replicas": 1, "replicas": 2, "foo": 1,
            "template": {"spec": {"containers": [{"name": "a", "imag": "x"}]}}}, "metadata": {"labels": {"a": "1", "a": "2"}}}"#;
        let fields = [
            "duplicate field \"spec.replicas\"",
            "unknown field \"spec.foo\"",
            "unknown field \"spec.template.spec.containers[0].imag\"",
            "duplicate field \"metadata.labels.a\"",
        ];
        let decoded = deployment(body, Validation::Warn).expect("warnings only");
        assert_eq!(decoded.warnings, fields);
        assert_eq!(decoded.value["spec"]["replicas"], 2);
        assert_eq!(decoded.value["spec"]["foo"], Value::Null);
        let strict = deployment(body, Validation::Strict).expect_err("refused");
        let words = "Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: ";
        assert_eq!(strict, format!("{words}{}", fields.join(", ")));
        assert_eq!(deployment(body, Validation::Ignore).map(|d| d.warnings), Ok(vec![]));
    }

    #[test]
    fn a_body_that_cannot_be_read_is_told_as_the_libraries_of_go_do() {
        let ty = schema::of("io.k8s.api.apps.v1.Deployment").expect("known");
        let told = |body: &str, media_type: &str| {
            let refused = decode(ty, DEPLOYMENT, body.as_bytes(), media_type, Validation::Warn).expect_err("refused");
            refused.message.replace("the object provided is unrecognized (must be of type Deployment): ", "")
        };
        let word = "couldn't get version/kind; json parse error: invalid character 'k' looking for beginning of value";
        assert_eq!(told("kind: x", "application/json"), format!("{word} (6b696e643a2078)"));
        let line = "yaml: line 2: mapping values are not allowed in this context";
        assert_eq!(told("a: b\nc: d: e", "application/yaml"), format!("{line} (613a20620a633a20643a2065)"));
        let each = |at: u8| {
            format!("{0}: &{0} [{1}]\n", char::from(at + 1), vec![format!("*{}", char::from(at)); 9].join(","))
        };
        let bomb: String =
            ["a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned()].into_iter().chain((b'a'..b'i').map(each)).collect();
        for (text, why) in [
            (bomb, "yaml: document contains excessive aliasing ("),
            ("[".repeat(1000), "yaml: exceeded max depth of 64 ("),
        ] {
            let told = told(&text, "application/yaml");
            assert!(told.starts_with(why), "{told}");
        }
        let twice = "{\"spec\": {\"paused\": true,\n\"paused\": false}}";
        let decoded =
            decode(ty, DEPLOYMENT, twice.as_bytes(), "application/yaml", Validation::Warn).expect("an object");
        assert_eq!(decoded.warnings, ["line 2: key \"paused\" already set in map"]);
    }

    #[test]
    fn wrong_types_are_refused_in_gos_words() {
        let check = |body: &str, expected: &str| {
            let words = "Deployment in version \"v1\" cannot be handled as a Deployment: ";
            assert_eq!(deployment(body, Validation::Warn), Err(format!("{words}{expected}")), "{body}");
        };
        check(
            r#"{"spec": {"replicas": "x"}}"#,
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        );
        check(
            r#"{"spec": {"template": {"spec": {"containers": [{"env": [{"name": "a", "value": 1}]}]}}}}"#,
            "json: cannot unmarshal number into Go struct field EnvVar.spec.template.spec.containers.env.value of type string",
        );
        check(
            r#"{"spec": {"replicas": 3000000000}}"#,
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        );
        check(
            r#"{"metadata": {"labels": {"a": true}}}"#,
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string",
        );
        check(
            r#"{"spec": {"template": {"spec": {"containers": {}}}}}"#,
            "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
        );
        check(
            r#"{"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}}}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        );
    }

    #[test]
    fn values_become_what_gos_encoder_would_write() {
        let body = r#"{"metadata": {"creationTimestamp": null, "labels": {}, "name": "a"}, "spec": {"paused": false, "replicas": 0,
            "template": {"spec": {"containers": [{"name": "a", "image": "", "resources": {"limits": {"cpu": "0.5", "memory": 1024}}}]}}}}"#;
        let expected = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "status": {},
            "spec": {"replicas": 0, "strategy": {}, "template": {"metadata": {}, "spec": {"containers": [
                {"name": "a", "resources": {"limits": {"cpu": "500m", "memory": "1024"}}}]}}},
        });
        assert_eq!(deployment(body, Validation::Strict).map(|d| d.value), Ok(expected));
    }

    #[test]
    fn times_that_go_keeps_as_values_are_null_where_nobody_has_set_them() {
        let ty = schema::of("io.k8s.api.core.v1.PodStatus").expect("known");
        let status = |conditions: Value, ended: Value| {
            json!({"conditions": conditions, "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "lastState": {}, "state": {"terminated": ended}}]})
        };
        let expected = status(
            json!([{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}]),
            json!({"exitCode": 1, "startedAt": null, "finishedAt": null}),
        );
        for probed in [json!({}), json!({"lastProbeTime": null}), json!({"lastProbeTime": ""})] {
            let mut condition =
                json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            condition.as_object_mut().expect("an object").extend(probed.as_object().expect("an object").clone());
            let said = status(json!([condition]), json!({"exitCode": 1}));
            assert_eq!(normalise(ty, said), Ok((expected.clone(), vec![])), "{probed}");
        }
    }

    #[test]
    fn the_body_must_be_of_the_kind_in_the_path() {
        let check =
            |body: &str, expected: &str| assert_eq!(deployment(body, Validation::Warn), Err(expected.to_owned()));
        check(
            r#"{"apiVersion": "v1", "kind": "Deployment"}"#,
            "Deployment in version \"v1\" cannot be handled as a Deployment: no kind \"Deployment\" is registered for version \"v1\" \
             in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
        );
        for (body, found, shown) in [("[]", "array", "5b5d"), ("\"x\"", "string", "227822"), ("5", "number", "35")] {
            let wanted = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
            let step = "couldn't get version/kind; json parse error: json: cannot unmarshal";
            let about = "the object provided is unrecognized (must be of type Deployment)";
            check(body, &format!("{about}: {step} {found} into Go value of type {wanted} ({shown})"));
        }
    }

    #[test]
    fn protobuf_bodies_decode_like_json() {
        let value = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "status": {},
            "spec": {"replicas": 2, "strategy": {}, "template": {"metadata": {}, "spec": {"containers": [
                {"name": "a", "resources": {"limits": {"cpu": "1500m"}}, "ports": [{"containerPort": 80}]}]}}}});
        let bytes = protobuf::encode("io.k8s.api.apps.v1.Deployment", &value).expect("has a message");
        let ty = schema::of("io.k8s.api.apps.v1.Deployment").expect("known");
        let decoded = decode(ty, DEPLOYMENT, &bytes, protobuf::MEDIA_TYPE, Validation::Strict).map(|d| d.value);
        assert_eq!(decoded, Ok(value));
        let garbage = decode(ty, DEPLOYMENT, b"k8s\0\xff", protobuf::MEDIA_TYPE, Validation::Strict);
        assert_eq!(garbage.map_err(|e| e.code), Err(400));
    }

    #[test]
    fn yaml_reads_like_json() {
        let ty = schema::of("io.k8s.api.apps.v1.Deployment").expect("known");
        let yaml = |body: &str, validation| {
            decode(ty, DEPLOYMENT, body.as_bytes(), "application/yaml", validation).map_err(|e| e.message)
        };
        let value = yaml("spec:\n  replicas: 3\n  foo: 1\n", Validation::Warn).expect("reads");
        assert_eq!(
            (&value.value["spec"]["replicas"], value.warnings),
            (&json!(3), vec!["unknown field \"spec.foo\"".into()])
        );
        let twice = "spec:\n  replicas: 3\n  replicas: 4\n";
        let value = yaml(twice, Validation::Warn).expect("reads");
        assert_eq!((&value.value["spec"]["replicas"], value.warnings.len()), (&json!(4), 1));
        assert!(yaml(twice, Validation::Strict).is_err());
        assert!(yaml("spec: [", Validation::Warn).is_err());
    }

    /// A value that consists of lists or objects inside one another.
    fn nested(open: &str, close: &str, depth: usize) -> String {
        format!("{}1{}", open.repeat(depth), close.repeat(depth))
    }

    #[test]
    fn depth_has_a_bound() {
        for (open, close, format, most) in [
            ("[", "]", Format::Json, bounds::DEPTH_MAX),
            ("{\"a\":", "}", Format::Json, bounds::DEPTH_MAX),
            ("[", "]", Format::Yaml, bounds::YAML_DEPTH_MAX),
            ("- ", "", Format::Yaml, bounds::YAML_DEPTH_MAX),
            // JSON is read as such.
            ("{\"a\":", "}", Format::Yaml, bounds::DEPTH_MAX),
        ] {
            let read = |depth| raw(nested(open, close, depth).as_bytes(), format);
            assert!(read(most).is_ok(), "{open} {format:?}");
            for depth in [most + 1, 127, 100_000] {
                assert!(read(depth).is_err(), "{open} {format:?} {depth}");
            }
        }
        let body = format!("{{\"spec\": {}}}", nested("[", "]", bounds::DEPTH_MAX));
        assert_eq!(
            raw(body.as_bytes(), Format::Json),
            Err(Problem::Syntax("exceeded max depth".to_owned())),
            "in Go's words"
        );
    }

    /// A document that was read must still be read when it comes back from the store with its managed fields.
    #[test]
    fn what_is_as_deep_as_may_be_survives_the_store() {
        let ty = schema::of("io.k8s.api.apps.v1.ControllerRevision").expect("known");
        let gvk = Gvk { group: "apps", version: "v1", kind: "ControllerRevision" };
        let body = format!(
            "{{\"metadata\": {{\"name\": \"a\"}}, \"data\": {}}}",
            nested("{\"a\":", "}", bounds::DEPTH_MAX - 1)
        );
        let mut value = decode(ty, gvk, body.as_bytes(), "application/json", Validation::Strict).expect("reads").value;
        let now = jiff::Timestamp::UNIX_EPOCH;
        let by = crate::write::entries::Writer {
            manager: "m",
            api_version: "apps/v1",
            subresource: "",
            now,
            resets: crate::write::resets::Resets::NONE,
            versions: None,
        };
        crate::write::managed_fields::update(ty, None, &mut value, &by);
        assert!(value["metadata"]["managedFields"][0]["fieldsV1"]["f:data"].is_object());
        assert_eq!(serde_json::from_str::<Value>(&value.to_string()).expect("reads again"), value);
    }

    /// Three bytes of text each, a hundred times that in memory.
    #[test]
    fn the_number_of_values_has_a_bound() {
        let body =
            format!("{{\"spec\":{{\"template\":{{\"spec\":{{\"containers\":[{}{{}}]}}}}}}}}", "{},".repeat(100_000));
        let ty = schema::of("io.k8s.api.apps.v1.Deployment").expect("known");
        for media_type in ["application/json", "application/yaml"] {
            let error = decode(ty, DEPLOYMENT, body.as_bytes(), media_type, Validation::Warn).expect_err("too much");
            assert_eq!(error.code, 413, "{media_type}");
        }
        let error = deployment(&body, Validation::Warn).expect_err("too much");
        assert!(error.contains("the document has too many values"), "{error}");
        let maps = format!("[{}{{}}]", "{\"a\":1},".repeat(100_000));
        assert!(matches!(raw(maps.as_bytes(), Format::Json), Err(Problem::TooLarge(_))));
        let numbers = format!("[{}0]", "0,".repeat(300_000));
        assert!(raw(numbers.as_bytes(), Format::Json).is_ok());
    }

    /// Nine levels of nine aliases each stand for hundreds of millions of values.
    #[test]
    fn anchors_do_not_multiply() {
        let mut yaml = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..=9 {
            let aliases = vec![format!("*a{}", level - 1); 9].join(",");
            yaml.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert!(matches!(raw(yaml.as_bytes(), Format::Yaml), Err(Problem::Syntax(_))));
        let wide = format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000_000), vec!["*a"; 5000].join(","));
        assert!(matches!(raw(wide.as_bytes(), Format::Yaml), Err(Problem::Syntax(_))));
        assert_eq!(raw(b"a: &a {x: 1}\nb: *a\n", Format::Yaml).map(|r| r.0), Ok(json!({"a": {"x": 1}, "b": {"x": 1}})));
    }

    /// A quarter of a million duplicates below a name of a megabyte.
    #[test]
    fn warnings_are_few_and_short() {
        let name = "n".repeat(1_000_000);
        let body = format!("{{\"{name}\":{{{}\"a\":1}}}}", "\"a\":1,".repeat(250_000));
        let (value, warnings) = raw(body.as_bytes(), Format::Json).expect("reads");
        assert_eq!(value[&name], json!({"a": 1}));
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].len() < 1000, "{}", warnings[0].len());
        let unknown: String = (0..200_000).map(|i| format!("\"x{i}\":1,")).collect();
        let decoded = deployment(&format!("{{{unknown}\"spec\":{{}}}}"), Validation::Warn).expect("reads");
        assert_eq!(decoded.warnings.len(), 100);
    }

    #[test]
    fn options_are_read_under_any_version() {
        let body = br#"{"apiVersion": "policy/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "x": 1}"#;
        let options = options("DeleteOptions", body, "application/json").expect("reads");
        assert_eq!(options["gracePeriodSeconds"], 0);
        assert_eq!(options.get("x"), None);
    }

    #[test]
    fn options_read_alike_in_every_format() {
        let schema = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
        let wanted = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "dryRun": ["All"],
            "preconditions": {"uid": "u", "resourceVersion": "7"}, "orphanDependents": false, "propagationPolicy": "Orphan"});
        let binary = protobuf::encode(schema, &wanted).expect("has a message");
        let yaml = b"kind: DeleteOptions\napiVersion: v1\ngracePeriodSeconds: 0\ndryRun: [All]\n\
                     preconditions: {uid: u, resourceVersion: '7'}\norphanDependents: false\npropagationPolicy: Orphan\n";
        let json = wanted.to_string();
        for (bytes, media_type) in [
            (json.as_bytes(), ""),
            (json.as_bytes(), "Application/JSON; charset=utf-8"),
            (yaml, "application/yaml"),
            (json.as_bytes(), "application/yaml"),
            (&binary[..], protobuf::MEDIA_TYPE),
        ] {
            assert_eq!(options("DeleteOptions", bytes, media_type).as_ref(), Ok(&wanted), "{media_type}");
        }
        // The bytes that client-go 1.35 sends for `metav1.DeleteOptions{}`.
        let empty = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x00\x1a\x00\x22\x00";
        let read = options("DeleteOptions", empty, protobuf::MEDIA_TYPE);
        assert_eq!(read, Ok(json!({"apiVersion": "v1", "kind": "DeleteOptions"})));
    }

    #[test]
    fn what_is_no_options_is_refused() {
        let check = |body: &[u8], media_type: &str, code: u16, message: &str| {
            let error = options("DeleteOptions", body, media_type).expect_err("refused");
            assert_eq!((error.code, error.message.as_str()), (code, message), "{}", String::from_utf8_lossy(body));
        };
        let other = "no kind \"Pod\" is registered for version \"v1\" in scheme \
                     \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\"";
        check(br#"{"kind": "Pod", "apiVersion": "v1"}"#, "", 400, other);
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}});
        let pod = protobuf::encode("io.k8s.api.core.v1.Pod", &pod).expect("has a message");
        check(&pod, protobuf::MEDIA_TYPE, 400, other);
        check(br#"{"apiVersion": "a/b/c"}"#, "", 400, "unexpected GroupVersion string: a/b/c");
        let wrong = "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64";
        check(br#"{"gracePeriodSeconds": "5"}"#, "application/json", 400, wrong);
        check(b"gracePeriodSeconds: five", "application/yaml", 400, wrong);
        let wrong = "json: cannot unmarshal string into Go struct field DeleteOptions.orphanDependents of type bool";
        check(br#"{"orphanDependents": "no"}"#, "application/json", 400, wrong);
        let cut = "couldn't get version/kind; json parse error: unexpected end of JSON input";
        check(br#"{"gracePeriodSeconds": 0"#, "application/json", 400, cut);
        let prefix = "provided data does not appear to be a protobuf message";
        check(b"{}", protobuf::MEDIA_TYPE, 400, prefix);
        check(b"k8s\0\x12\x05abc", protobuf::MEDIA_TYPE, 400, prefix);
        let unknown = "the body of the request was in an unknown format - accepted media types include: \
                       application/json, application/yaml, application/vnd.kubernetes.protobuf";
        for media_type in ["text/plain", "application/x-www-form-urlencoded", "*/*", "application/merge-patch+json"] {
            check(b"{}", media_type, 415, unknown);
        }
        assert_eq!(options("DeleteOptions", b"", "text/plain"), Ok(json!({})), "no body has no type");
    }

    #[test]
    fn a_null_document_is_an_object_without_fields() {
        for (body, media_type) in
            [("null", "application/json"), ("", "application/yaml"), ("---\n", "application/yaml")]
        {
            let ty = schema::of("io.k8s.api.apps.v1.Deployment").expect("known");
            let value = decode(ty, DEPLOYMENT, body.as_bytes(), media_type, Validation::Strict).map(|d| d.value);
            let empty = decode(ty, DEPLOYMENT, b"{}", "", Validation::Strict).map(|d| d.value);
            assert!(value.is_ok() && value == empty, "{body:?}: {value:?}");
        }
    }

    /// Every field of every kind survives. The fixtures are outside the repository.
    #[test]
    fn fixtures_survive_decoding() {
        let Some(archive) = crate::shared_reference::path("api-fixtures/json.tar.gz") else { return };
        let listing = std::process::Command::new("tar").arg("xzOf").arg(archive).output().expect("tar runs");
        let mut checked = 0;
        for object in serde_json::Deserializer::from_slice(&listing.stdout).into_iter::<Value>() {
            let object = object.expect("a fixture is JSON");
            let (version, kind) = (object["apiVersion"].as_str().unwrap_or(""), object["kind"].as_str().unwrap_or(""));
            let Some(name) = schema_name(version, kind) else { continue };
            let ty = schema::of(&name).expect("listed");
            let (decoded, unknown) = typed(ty, object.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(unknown, Vec::<String>::new(), "{name}");
            assert_eq!(decoded, object, "{name}");
            checked += 1;
        }
        assert!(checked > 80, "{checked}");
    }

    fn schema_name(version: &str, kind: &str) -> Option<String> {
        let (group, version) = version.split_once('/').unwrap_or(("core", version));
        let group = group.split('.').next()?;
        let wanted = [format!("io.k8s.api.{group}.{version}.{kind}"), format!(".{group}.{version}.{kind}")];
        schema::names().find(|n| *n == wanted[0] || n.ends_with(&wanted[1]))
    }
}
