//! Objects made from OpenAPI documents: what a server publishes says what it takes.

use std::collections::{BTreeMap, HashSet};

use json::{Value, json};

use crate::tests::conversation::Conversation;

/// One step into an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Field(String),
    /// The first item of a list.
    First,
}

/// A place of an object, with its schema.
#[derive(Debug, Clone)]
pub struct Property {
    pub path: Vec<Step>,
    pub schema: Value,
}

impl Property {
    /// The path as field errors and strict decoding write it.
    pub fn text(&self) -> String {
        text(&self.path)
    }
}

pub fn text(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::First => text.push_str("[0]"),
            Step::Field(name) if text.is_empty() => text.push_str(name),
            Step::Field(name) => text.push_str(&format!(".{name}")),
        }
    }
    text
}

/// A kind that can be created.
#[derive(Debug, Clone)]
pub struct Created {
    /// Where, for objects of the namespace `default`.
    pub uri: String,
    pub api_version: String,
    pub kind: String,
    pub schema: Value,
}

/// The sorts of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Text,
    Integer,
    Number,
    Bool,
    Bytes,
    Time,
    Quantity,
    IntOrString,
    List,
    Object,
    /// Any JSON, or one of several forms.
    Free,
}

/// All schemas of a server.
pub struct Documents {
    schemas: BTreeMap<String, Value>,
    pub created: Vec<Created>,
}

impl Documents {
    pub async fn of(server: &Conversation) -> Self {
        let mut documents = Documents { schemas: BTreeMap::new(), created: Vec::new() };
        let index = server.say("GET /openapi/v3", "").await.json();
        for (path, entry) in index["paths"].as_object().unwrap() {
            if path.starts_with("api/") || path.starts_with("apis/") && path.matches('/').count() == 2 {
                let url = entry["serverRelativeURL"].as_str().unwrap();
                documents.add(&server.say(&format!("GET {url}"), "").await.json());
            }
        }
        documents
    }

    fn add(&mut self, document: &Value) {
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            self.schemas.insert(name.to_string(), schema.clone());
        }
        for (path, item) in document["paths"].as_object().unwrap() {
            let Some(post) = item.get("post").filter(|post| post.get("requestBody").is_some()) else { continue };
            if path.as_str().contains("{name}") {
                continue;
            }
            let kind = &post["x-kubernetes-group-version-kind"];
            let word = |name: &str| kind[name].as_str().unwrap_or_default().to_owned();
            let group = word("group");
            let slash = if group.is_empty() { "" } else { "/" };
            let content = post["requestBody"]["content"].as_object().unwrap();
            self.created.push(Created {
                uri: path.as_str().replace("{namespace}", "default"),
                api_version: format!("{group}{slash}{}", word("version")),
                kind: word("kind"),
                schema: content.iter().next().unwrap().1["schema"].clone(),
            });
        }
    }

    /// A schema and its name, if it has one of its own.
    pub fn resolve<'a>(&'a self, mut schema: &'a Value) -> (&'a str, &'a Value) {
        let mut name = "";
        loop {
            let one = schema.get("allOf").and_then(Value::as_array).and_then(|all| all.first());
            if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
                name = reference.rsplit('/').next().unwrap();
                schema = &self.schemas[name];
            } else if let Some(one) = one {
                schema = one;
            } else {
                return (name, schema);
            }
        }
    }

    pub fn sort(&self, schema: &Value) -> Sort {
        let (name, schema) = self.resolve(schema);
        let word = |field: &str| schema.get(field).and_then(Value::as_str).unwrap_or_default();
        match (name.rsplit('.').next().unwrap_or_default(), word("type"), word("format")) {
            ("Quantity", ..) => Sort::Quantity,
            ("Time" | "MicroTime", ..) => Sort::Time,
            ("IntOrString", ..) => Sort::IntOrString,
            ("RawExtension" | "FieldsV1" | "JSON", ..) => Sort::Free,
            (name, ..) if name.starts_with("JSONSchemaPropsOr") => Sort::Free,
            (_, "string", "byte") => Sort::Bytes,
            (_, "string", _) => Sort::Text,
            (_, "integer", _) => Sort::Integer,
            (_, "number", _) => Sort::Number,
            (_, "boolean", _) => Sort::Bool,
            (_, "array", _) => Sort::List,
            (_, "", _) if schema.get("properties").is_none() => Sort::Free,
            _ => Sort::Object,
        }
    }

    /// Whether this is a list of any JSON.
    pub fn takes_any_list(&self, schema: &Value) -> bool {
        self.sort(schema) == Sort::List && self.sort(&self.resolve(schema).1["items"]) == Sort::Free
    }

    /// A value of this schema with all fields, as deep as schemas do not contain themselves.
    pub fn whole(&self, schema: &Value) -> Option<Value> {
        self.whole_within(schema, &mut Vec::new())
    }

    fn whole_within(&self, schema: &Value, around: &mut Vec<String>) -> Option<Value> {
        let (name, resolved) = self.resolve(schema);
        Some(match self.sort(schema) {
            Sort::Text => json!("a"),
            Sort::Integer | Sort::IntOrString => json!(1),
            Sort::Number => json!(1.5),
            Sort::Bool => json!(true),
            Sort::Bytes => json!("AAEC"),
            Sort::Time if name.ends_with("MicroTime") => json!("2024-01-01T00:00:00.000000Z"),
            Sort::Time => json!("2024-01-01T00:00:00Z"),
            Sort::Quantity => json!("1"),
            Sort::Free if name.ends_with("StringArray") => json!(["a"]),
            Sort::Free => json!({}),
            Sort::List => Value::from(vec![self.whole_within(&resolved["items"], around)?]),
            Sort::Object => {
                if around.iter().any(|one| one == name) {
                    return None;
                }
                around.push(if name.is_empty() { "-".to_owned() } else { name.to_owned() });
                let fields = resolved.get("properties").and_then(Value::as_object);
                let whole = |(field, schema): (&str, &Value), around: &mut Vec<String>| {
                    Some((field.to_owned(), self.whole_within(schema, around)?))
                };
                let mut object = json!({});
                for (field, schema) in fields.into_iter().flatten() {
                    if let Some((field, value)) = whole((field.as_str(), schema), around) {
                        object[&*field] = value;
                    }
                }
                if let Some(values) = resolved.get("additionalProperties").filter(|_| fields.is_none())
                    && let Some(value) = self.whole_within(values, around)
                {
                    object["a"] = value;
                }
                around.pop();
                object
            }
        })
    }

    /// Every property below a schema, those of each named schema once over all calls with one `seen`.
    pub fn properties(&self, schema: &Value, seen: &mut HashSet<(String, String)>) -> Vec<Property> {
        let mut found = Vec::new();
        self.collect(schema, &mut Vec::new(), &mut Vec::new(), seen, &mut found);
        found
    }

    fn collect(
        &self,
        schema: &Value,
        path: &mut Vec<Step>,
        around: &mut Vec<String>,
        seen: &mut HashSet<(String, String)>,
        found: &mut Vec<Property>,
    ) {
        let (name, resolved) = self.resolve(schema);
        match self.sort(schema) {
            Sort::List => {
                path.push(Step::First);
                self.collect(&resolved["items"], path, around, seen, found);
                path.pop();
            }
            Sort::Object if !name.is_empty() && !around.iter().any(|one| one == name) => {
                around.push(name.to_owned());
                for (field, schema) in resolved.get("properties").and_then(Value::as_object).into_iter().flatten() {
                    path.push(Step::Field(field.to_string()));
                    if seen.insert((name.to_owned(), field.to_string())) {
                        found.push(Property { path: path.clone(), schema: schema.clone() });
                    }
                    self.collect(schema, path, around, seen, found);
                    path.pop();
                }
                around.pop();
            }
            Sort::Object => {
                if let Some(values) = resolved.get("additionalProperties") {
                    path.push(Step::Field("a".to_owned()));
                    self.collect(values, path, around, seen, found);
                    path.pop();
                }
            }
            _ => {}
        }
    }
}

/// Puts a value at a place, with all that it needs around it.
pub fn put(object: &mut Value, path: &[Step], value: Value) {
    let Some((step, rest)) = path.split_first() else {
        *object = value;
        return;
    };
    match step {
        Step::Field(name) => {
            if !object.is_object() {
                *object = json!({});
            }
            put(&mut object[&**name], rest, value);
        }
        Step::First => {
            if !object.is_array() {
                *object = json!([]);
            }
            let list = object.as_array_mut().unwrap();
            if list.is_empty() {
                list.push(Value::Null);
            }
            put(&mut list[0], rest, value);
        }
    }
}
