//! The paths of a definition: what can be done with its objects, and with which parameters.

use json::{Map, Value, json};

use super::{
    Dialect,
    parameters::{parameter, purpose, query},
    root,
    schemas::{META, Schemas, gvk},
};
use crate::{kind::Definition, write::patch::Kind};

/// Adds the collection, the object and its subresources.
pub(super) fn add(paths: &mut Map, definition: &Definition, schemas: &mut Schemas) {
    let base = root(&definition.group, &definition.version);
    let plural = &definition.plural;
    let collection = if definition.namespaced() {
        let own = Route { definition, sub: None, all_namespaces: true };
        put(paths, format!("/{base}/{plural}"), own.item(schemas, &[("list", "get")]));
        format!("/{base}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("/{base}/{plural}")
    };
    let own = Route { definition, sub: None, all_namespaces: false };
    let verbs = [("list", "get"), ("create", "post"), ("deletecollection", "delete")];
    put(paths, collection.clone(), own.item(schemas, &verbs));
    let object = format!("{collection}/{{name}}");
    let verbs = [("get", "get"), ("update", "put"), ("patch", "patch"), ("delete", "delete")];
    put(paths, object.clone(), own.item(schemas, &verbs));
    for sub in subresources(definition) {
        let path = format!("{object}/{}", sub.name);
        let route = Route { definition, sub: Some(sub), all_namespaces: false };
        let all = [("get", "get"), ("create", "post"), ("update", "put"), ("patch", "patch"), ("delete", "delete")];
        put(paths, path, route.item(schemas, &all));
    }
}

fn put(paths: &mut Map, path: String, item: Option<Value>) {
    paths.extend(item.map(|item| (path, item)));
}

/// A subresource with the kind that its bodies have; `None` is the object's own kind.
struct Sub<'a> {
    name: &'a str,
    object: Option<(&'a str, &'a str, &'a str)>,
    verbs: Vec<&'a str>,
}

fn subresources(definition: &Definition) -> Vec<Sub<'_>> {
    let mut all = Vec::new();
    let verbs = vec!["get", "update", "patch"];
    if definition.scale.is_some() {
        all.push(Sub { name: "scale", object: Some(("autoscaling", "v1", "Scale")), verbs: verbs.clone() });
    }
    if definition.status {
        all.push(Sub { name: "status", object: None, verbs });
    }
    for sub in &definition.subresources {
        let own = (&*definition.group, &*definition.version, &*definition.kind);
        let object = (sub.object != own).then_some(sub.object);
        all.push(Sub { name: sub.name, object, verbs: sub.verbs.to_vec() });
    }
    all
}

struct Route<'a> {
    definition: &'a Definition,
    sub: Option<Sub<'a>>,
    /// The list over all namespaces.
    all_namespaces: bool,
}

impl Route<'_> {
    /// The operations of a path; `None` when there are none. Each verb comes with its HTTP method.
    fn item(&self, schemas: &mut Schemas, verbs: &[(&str, &str)]) -> Option<Value> {
        let served = |verb: &str| match &self.sub {
            Some(sub) => sub.verbs.contains(&verb),
            None => self.definition.verbs.iter().any(|v| v == verb),
        };
        let mut item = Map::new();
        for (verb, method) in verbs.iter().filter(|(verb, _)| served(verb)) {
            item.insert((*method).to_owned(), self.operation(schemas, verb));
        }
        if item.is_empty() {
            return None;
        }
        let mut parameters = Vec::new();
        let one = verbs.iter().any(|(verb, _)| *verb == "get");
        if one {
            let text = format!("name of the {}", self.definition.kind);
            parameters.push(parameter(schemas.dialect, "path", "name", "string", &text));
        }
        if self.definition.namespaced() && !self.all_namespaces {
            let text = "object name and auth scope, such as for teams and projects";
            parameters.push(parameter(schemas.dialect, "path", "namespace", "string", text));
        }
        parameters.push(parameter(schemas.dialect, "query", "pretty", "string", purpose("pretty")));
        item.insert("parameters", parameters.into());
        Some(Value::Object(item))
    }

    fn schema(&self, schemas: &mut Schemas) -> Value {
        match self.sub.as_ref().and_then(|s| s.object) {
            Some(object) => schemas.body(object),
            None => schemas.reference(&self.definition.schema),
        }
    }

    fn operation(&self, schemas: &mut Schemas, verb: &str) -> Value {
        let definition = self.definition;
        let meta = |name: &str| format!("{META}{name}");
        let result = match verb {
            "list" => schemas.reference(&format!("{}List", definition.schema)),
            "delete" | "deletecollection" => schemas.reference(&meta("Status")),
            _ => self.schema(schemas),
        };
        let body = match verb {
            "create" | "update" => Some((self.schema(schemas), true)),
            "patch" => Some((schemas.reference(&meta("Patch")), true)),
            "delete" | "deletecollection" => Some((schemas.reference(&meta("DeleteOptions")), false)),
            _ => None,
        };
        let statuses: &[&str] = match verb {
            "create" => &["200", "201", "202"],
            "update" | "patch" => &["200", "201"],
            "delete" => &["200", "202"],
            _ => &["200"],
        };
        let dialect = schemas.dialect;
        let mut responses: Map = statuses
            .iter()
            .map(|s| ((*s).to_owned(), response(dialect, &produces(definition, verb), s, &result)))
            .collect();
        responses.insert("401", json!({ "description": "Unauthorized" }));
        let mut parameters: Vec<Value> =
            query(verb).iter().map(|(name, ty)| parameter(dialect, "query", name, ty, purpose(name))).collect();
        let (group, version, kind) = self.sub.as_ref().and_then(|s| s.object).unwrap_or((
            &definition.group,
            &definition.version,
            &definition.kind,
        ));
        let mut operation = json!({
            "description": self.description(verb),
            "operationId": self.operation_id(verb),
            "tags": [format!("{}_{}", lower_first(&camel(&definition.group)), definition.version)],
            "responses": responses,
            "x-kubernetes-action": action(verb),
            "x-kubernetes-group-version-kind": gvk(group, version, kind),
        });
        if let Some((schema, required)) = body {
            let types: Vec<&str> = match verb {
                // By these clients choose how they write a change.
                "patch" => Kind::media_types(definition.is_custom()).collect(),
                "create" | "update" if definition.is_custom() => CUSTOM.to_vec(),
                _ => vec!["*/*"],
            };
            match dialect {
                Dialect::V3 => operation["requestBody"] = request(&types, &schema, required),
                Dialect::V2 => {
                    operation["consumes"] = types.into();
                    let mut body = json!({ "in": "body", "name": "body", "schema": schema });
                    if required {
                        body["required"] = true.into();
                    }
                    parameters.insert(0, body);
                }
            }
        } else if dialect == Dialect::V2 {
            operation["consumes"] = json!(["*/*"]);
        }
        if dialect == Dialect::V2 {
            operation["produces"] = produces(definition, verb).into();
            operation["schemes"] = json!(["https"]);
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    }

    fn description(&self, verb: &str) -> String {
        let kind = &self.definition.kind;
        let of = self.sub.as_ref().map(|s| format!("{} of ", s.name)).unwrap_or_default();
        match verb {
            "list" => format!("list or watch objects of kind {kind}"),
            "create" => format!("create {of}a {kind}"),
            "get" => format!("read {of}the specified {kind}"),
            "update" => format!("replace {of}the specified {kind}"),
            "patch" => format!("partially update {of}the specified {kind}"),
            "deletecollection" => format!("delete collection of {kind}"),
            _ => format!("delete {of}a {kind}"),
        }
    }

    /// `createAppsV1NamespacedDeployment`.
    fn operation_id(&self, verb: &str) -> String {
        let Definition { group, version, kind, .. } = self.definition;
        let word = match verb {
            "get" => "read",
            "update" => "replace",
            "deletecollection" => "delete",
            other => other,
        };
        let collection = if verb == "deletecollection" { "Collection" } else { "" };
        let (namespaced, tail) = match (self.definition.namespaced(), self.all_namespaces) {
            (true, true) => ("", "ForAllNamespaces"),
            (true, false) => ("Namespaced", ""),
            (false, _) => ("", ""),
        };
        let sub = self.sub.as_ref().map(|s| camel(s.name)).unwrap_or_default();
        format!("{word}{}{}{collection}{namespaced}{kind}{sub}{tail}", camel(group), camel(version))
    }
}

fn action(verb: &str) -> &str {
    match verb {
        "create" => "post",
        "update" => "put",
        other => other,
    }
}

/// `RbacAuthorization` of `rbac.authorization.k8s.io`, `Core` of nothing.
fn camel(name: &str) -> String {
    let name = if name.is_empty() { "core" } else { name.trim_end_matches(".k8s.io") };
    let upper = |part: &str| {
        let mut chars = part.chars();
        chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
    };
    name.split(['.', '-']).map(upper).collect()
}

fn lower_first(name: &str) -> String {
    let mut chars = name.chars();
    chars.next().map(|first| first.to_ascii_lowercase().to_string() + chars.as_str()).unwrap_or_default()
}

/// Custom kinds have no protobuf.
const CUSTOM: [&str; 2] = ["application/json", "application/yaml"];

fn produces(definition: &Definition, verb: &str) -> Vec<&'static str> {
    if definition.is_custom() {
        return CUSTOM.to_vec();
    }
    let mut types = vec!["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
    if verb == "list" {
        types.extend(["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"]);
    }
    types
}

fn response(dialect: Dialect, types: &[&str], status: &str, schema: &Value) -> Value {
    let description = match status {
        "201" => "Created",
        "202" => "Accepted",
        _ => "OK",
    };
    match dialect {
        Dialect::V2 => json!({ "description": description, "schema": schema }),
        Dialect::V3 => {
            json!({ "description": description, "content": content(types, schema) })
        }
    }
}

fn request(types: &[&str], schema: &Value, required: bool) -> Value {
    let mut body = json!({ "content": content(types, schema) });
    if required {
        body["required"] = true.into();
    }
    body
}

fn content(types: &[&str], schema: &Value) -> Map {
    types.iter().map(|ty| ((*ty).to_owned(), json!({ "schema": schema }))).collect()
}
