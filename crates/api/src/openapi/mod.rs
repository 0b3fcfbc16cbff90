//! The OpenAPI documents: version 3 (an index, and one document per group version) and version 2 (one document for all,
//! as JSON and in gnostic's protobuf form, which is what client-go asks for).
//!
//! Types, list types and merge keys come from the schema table, paths from the definitions, texts from the sources of
//! `k8s-openapi` (`built_in.rs` reads the table that `build.rs` gathers) or from a custom kind's own schema. Nothing is kept: a
//! caller builds a document when it is first asked for and remembers the bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::features::{Feature, Features};
use crate::kind::Definition;

mod built_in;
mod gnostic;
mod gnostic_v3;
mod parameters;
mod paths;
mod schemas;

use schemas::Schemas;

pub use gnostic::encode as v2_protobuf;
pub use gnostic_v3::encode as v3_protobuf;

/// The media types by which version 2 is had in protobuf. The first is the only one that client-go asks for.
pub const V2_PROTOBUF: [&str; 2] = [V2_PROTOBUF_ACCEPTED, V2_PROTOBUF_RETURNED];
const V2_PROTOBUF_ACCEPTED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The media type of the answer: `@` is not allowed in a `Content-Type`, and client-go refuses it there.
pub const V2_PROTOBUF_RETURNED: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The same for version 3.
pub const V3_PROTOBUF: [&str; 2] = ["application/com.github.proto-openapi.spec.v3@v1.0+protobuf", V3_PROTOBUF_RETURNED];
pub const V3_PROTOBUF_RETURNED: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// Where schemas stand in a document, and what differs in how they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, name: &str) -> String {
        match self {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 => format!("#/components/schemas/{name}"),
        }
    }
}

/// `api/v1`, `apis/apps/v1`.
fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// Of each group version its place in `/openapi/v3`. The hash changes with the document.
pub fn v3_index(definitions: &[Arc<Definition>], features: Features) -> Value {
    let mut versions: BTreeMap<String, Vec<&Definition>> = BTreeMap::new();
    for definition in definitions {
        versions.entry(root(&definition.group, &definition.version)).or_default().push(definition);
    }
    let paths = versions.into_iter().map(|(path, definitions)| {
        let url = v3_url(&path, &definitions, features);
        (path, json!({ "serverRelativeURL": url }))
    });
    json!({ "paths": paths.collect::<Map>() })
}

fn v3_url(path: &str, definitions: &[&Definition], features: Features) -> String {
    format!("/openapi/v3/{path}?hash={}", fingerprint(definitions, features))
}

/// The place of a group version's document as it is now; `None` when it serves nothing.
pub fn v3_place(definitions: &[Arc<Definition>], group: &str, version: &str, features: Features) -> Option<String> {
    let own: Vec<&Definition> =
        definitions.iter().filter(|d| d.group == group && d.version == version).map(|d| &**d).collect();
    (!own.is_empty()).then(|| v3_url(&root(group, version), &own, features))
}

/// A hash of all that a group version's document is made from. Built-in kinds change with the program only; custom ones are
/// described in full.
fn fingerprint(definitions: &[&Definition], features: Features) -> String {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    if features.enabled(Feature::OpenAPIEnums) {
        hash.update(built_in::enums_hash());
    }
    for definition in definitions {
        hash.update([&*definition.schema, "/", &definition.plural, "/"].concat());
        hash.update(definition.open_api.as_ref().map(|own| own.fingerprint.clone()).unwrap_or_default());
    }
    base16ct::upper::encode_string(&hash.finalize())
}

/// The document of one group version; `None` when it serves nothing.
pub fn v3(definitions: &[Arc<Definition>], group: &str, version: &str, features: Features) -> Option<Value> {
    let own: Vec<_> = definitions.iter().filter(|d| d.group == group && d.version == version).collect();
    if own.is_empty() {
        return None;
    }
    let mut schemas = Schemas::new(Dialect::V3, &own, features);
    let mut all = Map::new();
    for definition in &own {
        paths::add(&mut all, definition, &mut schemas);
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": all,
        "components": { "schemas": schemas.finish(), "securitySchemes": { "BearerToken": bearer() } },
    }))
}

/// The document of everything, version 2.
pub fn v2(definitions: &[Arc<Definition>], features: Features) -> Value {
    let own: Vec<_> = definitions.iter().collect();
    let mut schemas = Schemas::new(Dialect::V2, &own, features);
    let mut all = Map::new();
    for definition in definitions {
        paths::add(&mut all, definition, &mut schemas);
    }
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": all,
        "definitions": schemas.finish(),
        "securityDefinitions": { "BearerToken": bearer() },
        "security": [{ "BearerToken": [] }],
    })
}

fn info() -> Value {
    json!({ "title": "Kubernetes", "version": crate::KUBERNETES_VERSION })
}

fn bearer() -> Value {
    json!({ "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::CustomSchema;
    use crate::kinds::built_in;
    use crate::schema;

    fn core() -> Value {
        v3(built_in().all(), "", "v1", Features::default()).expect("served")
    }

    fn at<'v>(value: &'v Value, path: &[&str]) -> &'v Value {
        path.iter().fold(value, |v, name| &v[*name])
    }

    #[test]
    fn schemas_carry_texts_and_merge_rules() {
        let document = core();
        let schemas = &document["components"]["schemas"];
        let pod = &schemas["io.k8s.api.core.v1.Pod"];
        assert!(pod["description"].as_str().is_some_and(|d| d.starts_with("Pod is a collection")));
        assert_eq!(pod["x-kubernetes-group-version-kind"], json!([{ "group": "", "version": "v1", "kind": "Pod" }]));
        let volumes = at(schemas, &["io.k8s.api.core.v1.PodSpec", "properties", "volumes"]);
        assert_eq!(volumes["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
        assert_eq!(volumes["x-kubernetes-patch-merge-key"], "name");
        assert!(volumes["description"].as_str().is_some_and(|d| !d.is_empty()));
        let spec = at(pod, &["properties", "spec"]);
        assert_eq!(spec["allOf"][0]["$ref"], "#/components/schemas/io.k8s.api.core.v1.PodSpec");
        let fields =
            at(schemas, &["io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry", "properties", "fieldsV1"]);
        assert_eq!(fields["allOf"][0]["$ref"], "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1");
    }

    /// Upstream's TestEnablingOpenAPIEnumTypes.
    #[test]
    fn values_that_a_field_may_have_are_published() {
        let without = Features::default().with(Feature::OpenAPIEnums, false);
        let kinds = built_in().all();
        let field = |document: &Value, path: &[&str], schema: &str, name: &str| {
            let schemas = at(document, path);
            schemas[format!("io.k8s.api.core.v1.{schema}").as_str()]["properties"][name].clone()
        };
        let text = |schema: &Value| schema["description"].as_str().unwrap_or_default().to_owned();
        let v3_at = ["components", "schemas"];
        for (on, off, path) in [
            (v2(kinds, Features::default()), v2(kinds, without), &["definitions"][..]),
            (core(), v3(kinds, "", "v1", without).expect("served"), &v3_at[..]),
        ] {
            let protocol = field(&on, path, "ContainerPort", "protocol");
            assert_eq!(protocol["enum"], json!(["SCTP", "TCP", "UDP"]));
            let told = "Protocol for port. Must be UDP, TCP, or SCTP. Defaults to \"TCP\".\n\nPossible enum values:\n - `\"SCTP\"` \
                        is the SCTP protocol.\n - `\"TCP\"` is the TCP protocol.\n - `\"UDP\"` is the UDP protocol.";
            assert_eq!(text(&protocol), told);
            let plain = field(&off, path, "ContainerPort", "protocol");
            assert!(plain.get("enum").is_none() && told.starts_with(&text(&plain)), "{plain}");
            // Those of a list are those of its items, and a value may have no text.
            let modes = field(&on, path, "PersistentVolumeClaimSpec", "accessModes");
            assert_eq!(
                modes["items"]["enum"],
                json!(["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"])
            );
            assert!(modes.get("enum").is_none() && !text(&modes).contains("Possible"), "{modes}");
            assert!(
                text(&field(&on, path, "PodSpec", "restartPolicy"))
                    .ends_with("\n\nPossible enum values:\n - `\"Always\"`\n - `\"Never\"`\n - `\"OnFailure\"`")
            );
        }
        let url = |features: Features| v3_place(kinds, "", "v1", features).expect("served");
        assert_ne!(url(Features::default()), url(without), "clients keep documents by this");
        // Each field of the table is one of the API.
        for entry in include_str!("../../tables/enums.tsv").lines().filter(|line| line.starts_with("api")) {
            let mut words = entry.split('\t');
            let (Some(of), Some(name)) = (words.next(), words.next()) else { panic!("{entry}") };
            let object = schema::of(&format!("io.k8s.{of}")).and_then(schema::Type::object);
            assert!(object.is_some_and(|object| object.field(name).is_some()), "{entry}");
        }
    }

    #[test]
    fn every_built_in_kind_is_described() {
        let documents =
            built_in().all().iter().map(|d| (d, v3(built_in().all(), &d.group, &d.version, Features::default())));
        for (definition, document) in documents {
            let document = document.expect("served");
            let schema = at(&document, &["components", "schemas", &definition.schema]);
            assert!(schema["description"].is_string() && schema["properties"].is_object(), "{}", definition.schema);
        }
    }

    #[test]
    fn every_reference_has_its_schema() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(name)) = map.get("$ref") {
                        found.extend(name.rsplit('/').next().map(str::to_owned));
                    }
                    map.values().for_each(|v| references(v, found));
                }
                Value::Array(list) => list.iter().for_each(|v| references(v, found)),
                _ => {}
            }
        }
        for (document, at) in [
            (core()["components"]["schemas"].take(), core()),
            (
                v2(built_in().all(), Features::default())["definitions"].take(),
                v2(built_in().all(), Features::default()),
            ),
        ] {
            let mut found = Vec::new();
            references(&at, &mut found);
            assert!(found.len() > 100);
            for name in found {
                let schema = document.get(&name).unwrap_or(&Value::Null);
                let known = schema.as_object().is_some_and(|s| !s.is_empty());
                assert!(known || name.contains("JSON"), "{name} is missing");
            }
        }
    }

    #[test]
    fn operations_tell_what_a_server_supports() {
        let document = core();
        let patch = at(&document, &["paths", "/api/v1/namespaces/{namespace}/pods/{name}", "patch"]);
        assert_eq!(patch["operationId"], "patchCoreV1NamespacedPod");
        assert_eq!(patch["x-kubernetes-action"], "patch");
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
        let names: Vec<&str> =
            patch["parameters"].as_array().into_iter().flatten().filter_map(|p| p["name"].as_str()).collect();
        assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
        let list = at(&document, &["paths", "/api/v1/pods", "get"]);
        assert_eq!(list["operationId"], "listCoreV1PodForAllNamespaces");
    }

    #[test]
    fn parameters_and_lists_are_described_in_both_versions() {
        for document in [core(), v2(built_in().all(), Features::default())] {
            for (path, item) in document["paths"].as_object().into_iter().flatten() {
                let operations = item.as_object().into_iter().flatten().map(|(_, operation)| &operation["parameters"]);
                let parameters = operations.chain([&item["parameters"]]).filter_map(Value::as_array).flatten();
                for parameter in parameters.filter(|parameter| parameter["in"] != "body") {
                    assert!(parameter["description"].is_string(), "{path}: {parameter}");
                }
            }
        }
        let document = v2(built_in().all(), Features::default());
        let list = at(&document, &["definitions", "io.k8s.api.core.v1.ServiceList"]);
        assert_eq!(list["description"], "ServiceList is a list of Service");
        for name in ["apiVersion", "items", "kind", "metadata"] {
            assert!(at(list, &["properties", name])["description"].is_string(), "{name}");
        }
    }

    #[test]
    fn custom_kinds_get_what_all_objects_have() {
        let map = built_in().find("", "v1", "configmaps").expect("built in");
        let own = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
            "size": { "type": "integer", "description": "How large it is." } } } } });
        let widget = Definition {
            group: "example.com".to_owned(),
            kind: "Widget".to_owned(),
            list_kind: "WidgetList".to_owned(),
            plural: "widgets".to_owned(),
            ty: schema::custom("Widget", &own),
            schema: "com.example.v1.Widget".to_owned(),
            open_api: Some(Arc::new(CustomSchema { fingerprint: String::new(), read: Box::new(move || own.clone()) })),
            ..Definition::clone(map)
        };
        let document = v3(&[Arc::new(widget)], "example.com", "v1", Features::default()).expect("served");
        let schemas = &document["components"]["schemas"];
        let properties = &schemas["com.example.v1.Widget"]["properties"];
        let meta = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        assert_eq!(properties["metadata"]["allOf"][0]["$ref"], meta);
        for name in ["apiVersion", "kind", "metadata"] {
            assert!(properties[name]["description"].as_str().is_some_and(|text| text.len() > 20), "{name}");
        }
        assert_eq!(at(properties, &["spec", "properties", "size", "description"]), "How large it is.");
        let list = &schemas["com.example.v1.WidgetList"];
        assert_eq!(list["x-kubernetes-group-version-kind"][0]["kind"], "WidgetList");
        assert_eq!(at(list, &["properties", "items", "items"])["$ref"], "#/components/schemas/com.example.v1.Widget");
        assert_eq!(list["description"], "WidgetList is a list of Widget");
        let items = at(list, &["properties", "items", "description"]).as_str().unwrap_or_default();
        assert!(items.starts_with("List of widgets. More info: https://"), "{items}");
        let path = at(&document, &["paths", "/apis/example.com/v1/namespaces/{namespace}/widgets", "post"]);
        assert_eq!(path["operationId"], "createExampleComV1NamespacedWidget");
    }

    #[test]
    fn the_index_points_to_every_group_version() {
        let index = v3_index(built_in().all(), Features::default());
        let url = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap_or("");
        assert!(url.starts_with("/openapi/v3/api/v1?hash="), "{url}");
        assert_eq!(v3(built_in().all(), "nobody.example", "v1", Features::default()), None);
    }

    #[test]
    fn protobuf_is_framed_as_gnostics() {
        let bytes = v2_protobuf(&json!({ "swagger": "2.0", "info": { "title": "K", "version": "v1" }, "definitions": {
            "a": { "type": "string", "enum": ["U"], "x-y": 1 } } }));
        let expected = b"\x0a\x032.0\x12\x07\x0a\x01K\x12\x02v1\x42\x00\x4a\x27\x0a\x25\x0a\x01a\x12\x20\xa2\x01\x05\x12\x03\"U\"\xb2\x01\x08\x0a\x06string\
                         \xfa\x01\x0a\x0a\x03x-y\x12\x03\x12\x011\x6a\x00";
        assert_eq!(bytes, expected);
        assert!(v2_protobuf(&v2(built_in().all(), Features::default())).len() > 100_000);
        let bytes = v3_protobuf(&json!({ "openapi": "3.0.0", "info": { "title": "K", "version": "v1" }, "paths": {},
            "components": { "schemas": { "a": { "type": "string", "default": 1.5, "minLength": 2, "x-y": 1 },
                "b": { "$ref": "#/a" } } } }));
        let schemas =
            b"\x0a\x2c\x0a\x01a\x12\x27\x0a\x25\x80\x01\x02\xca\x01\x06string\x8a\x02\x09\x09\0\0\0\0\0\0\xf8\x3f\
                        \xa2\x02\x0a\x0a\x03x-y\x12\x03\x12\x011\x0a\x0c\x0a\x01b\x12\x07\x12\x05\x0a\x03#/a";
        let mut expected = b"\x0a\x053.0.0\x12\x07\x0a\x01K\x32\x02v1\x22\x00\x2a".to_vec();
        expected.extend([schemas.len() as u8 + 4, 0x0a, schemas.len() as u8]);
        expected.extend_from_slice(schemas);
        expected.extend_from_slice(b"\x3a\x00");
        assert_eq!(bytes, expected);
        assert!(v3_protobuf(&core()).len() > 100_000);
    }
}
