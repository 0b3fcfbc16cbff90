//! Valid and invalid objects of every kind, made from the server's own OpenAPI documents: each property once has a value of
//! each wrong type, is unknown, is missing, or holds what hardly can be right.

mod owned;
mod schema;

use std::collections::{BTreeMap, HashSet};

use api::codec::protobuf;
use json::{Value, json};

use self::schema::{Created, Documents, Property, Sort, Step, put};
use crate::tests::conversation::{Answer, Conversation};

const PROTOBUF: &str = "content-type: application/vnd.kubernetes.protobuf";
const YAML: &str = "content-type: application/yaml";

/// A server of everything there is.
async fn server() -> (Conversation, Documents) {
    let server = Conversation::serving_with("AllAlpha=true,AllBeta=true", "api/all=true").await;
    let documents = Documents::of(&server).await;
    assert!(documents.created.len() > 80, "{} kinds can be created", documents.created.len());
    (server, documents)
}

async fn create(server: &Conversation, of: &Created, object: &Value) -> Answer {
    let head = format!("POST {}?dryRun=All&fieldValidation=Strict", of.uri);
    server.say(&head, object.to_string()).await
}

/// With every field that its kind has.
fn whole(documents: &Documents, of: &Created) -> Value {
    let mut object = documents.whole(&of.schema).unwrap();
    object["apiVersion"] = json!(of.api_version);
    object["kind"] = json!(of.kind);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        metadata.remove("namespace");
        metadata.remove("managedFields");
    }
    object
}

/// The first lines of a list that would be too long to read.
#[track_caller]
fn nothing(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}

/// Not the time of the answer, nor anything that the server draws.
fn told(answer: &Answer) -> (u16, String) {
    (answer.code, answer.message())
}

#[tokio::test(start_paused = true)]
async fn every_format_of_a_whole_object_is_read_alike() {
    let (server, documents) = server().await;
    let mut wrong = Vec::new();
    for of in &documents.created {
        let object = whole(&documents, of);
        let text = create(&server, of, &object).await;
        if text.code == 400 && text.message().contains("cannot be handled") || text.code >= 500 {
            wrong.push(format!("{} {}: {} {}", of.api_version, of.kind, text.code, text.message()));
        }
        let head = format!("POST {}?dryRun=All&fieldValidation=Strict", of.uri);
        let yaml = serde_saphyr::to_string(&object).unwrap();
        let yaml = server.say(&format!("{head}\n{YAML}"), yaml).await;
        let name = documents.resolve(&of.schema).0;
        let bytes = protobuf::encode(name, &object);
        let binary = match bytes {
            Some(bytes) => told(&server.say(&format!("{head}\n{PROTOBUF}"), bytes).await),
            None => (0, "no message of that name".to_owned()),
        };
        for (format, answer) in [("YAML", told(&yaml)), ("protobuf", binary)] {
            if answer != told(&text) {
                wrong.push(format!("{} {} in {format}: {answer:?}, not {:?}", of.api_version, of.kind, told(&text)));
            }
        }
    }
    nothing(&wrong);
}

/// Values that are right for some sorts, with what Go calls their type.
fn values() -> Vec<(Value, &'static str)> {
    vec![
        (json!(true), "bool"),
        (json!("x"), "string"),
        (json!(7), "number"),
        (json!(1.5), "number 1.5"),
        (json!(-99_999_999_999_i64), "number -99999999999"),
        (json!([[]]), "array"),
        (json!({"x": [[]]}), "object"),
    ]
}

/// Whether a value may be right for the sort.
fn fits(sort: Sort, value: &Value) -> bool {
    let whole = value.as_i64().is_some();
    match sort {
        Sort::Text => value.is_string(),
        // Of others it depends on the number of bits.
        Sort::Integer => value.as_i64() == Some(7),
        Sort::Number | Sort::Quantity => value.is_number(),
        Sort::Bool => value.as_bool().is_some(),
        Sort::IntOrString => whole || value.is_string(),
        Sort::Free => true,
        Sort::Object => value.is_object(),
        Sort::Bytes | Sort::Time | Sort::List => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_of_the_wrong_type_is_refused_by_the_name_of_its_field() {
    let (server, documents) = server().await;
    let mut seen = HashSet::new();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for of in &documents.created {
        let object = whole(&documents, of);
        for property in documents.properties(&of.schema, &mut seen) {
            let top = property.path.len() == 1;
            if top && matches!(property.text().as_str(), "apiVersion" | "kind") {
                continue;
            }
            let sort = documents.sort(&property.schema);
            for (value, go) in values() {
                if fits(sort, &value) {
                    continue;
                }
                if value.is_array() && documents.takes_any_list(&property.schema) {
                    continue;
                }
                let mut spoiled = object.clone();
                put(&mut spoiled, &property.path, value.clone());
                let answer = create(&server, of, &spoiled).await;
                count += 1;
                if let Some(why) = misread(&answer, &property, sort, &value, go) {
                    wrong.push(format!("{} {} {} = {value}: {why}", of.api_version, of.kind, property.text()));
                }
            }
        }
    }
    assert!(count > 10_000, "{count} values");
    nothing(&wrong);
}

/// Why an answer does not say what is wrong with a value.
fn misread(answer: &Answer, property: &Property, sort: Sort, value: &Value, go: &str) -> Option<String> {
    let message = answer.message();
    let own_words = match sort {
        Sort::Time => message.contains("parsing time"),
        Sort::Quantity => message.contains("quantities must match the regular expression"),
        Sort::Bytes => message.contains("illegal base64 data"),
        _ => false,
    };
    // A 64-bit number is in range.
    if sort == Sort::Integer && answer.code != 400 && value.as_i64().is_some_and(|n| n < 0) {
        return None;
    }
    let names: Vec<&str> = property
        .path
        .iter()
        .filter_map(|step| if let Step::Field(name) = step { Some(&**name) } else { None })
        .collect();
    let field = names.last().copied().unwrap_or_default();
    let go = if sort == Sort::Integer { go } else { go.split(' ').next().unwrap_or_default() };
    let by_name =
        message.contains(&format!("json: cannot unmarshal {go}")) && message.contains(&format!("{field} of type"));
    let told = answer.code == 400
        && answer.at("/reason") == json!("BadRequest")
        && (own_words && value.is_string() || by_name);
    (!told).then(|| format!("{} {}", answer.code, message.chars().take(200).collect::<String>()))
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_named_by_their_paths() {
    let (server, documents) = server().await;
    let mut seen = HashSet::new();
    let mut wrong = Vec::new();
    for of in &documents.created {
        let object = whole(&documents, of);
        let mut objects = vec![Vec::new()];
        for property in documents.properties(&of.schema, &mut seen) {
            let closed = documents.resolve(&property.schema).1.get("properties").is_some();
            if documents.sort(&property.schema) == Sort::Object && closed {
                objects.push(property.path);
            }
        }
        for mut path in objects {
            path.push(Step::Field("nonsense".to_owned()));
            let mut spoiled = object.clone();
            put(&mut spoiled, &path, json!(1));
            let answer = create(&server, of, &spoiled).await;
            let expected = format!("strict decoding error: unknown field \"{}\"", schema::text(&path));
            if answer.code != 400 || !answer.message().ends_with(&expected) {
                wrong.push(format!("{} {}: {} {}", of.api_version, of.kind, answer.code, answer.message()));
            }
        }
    }
    nothing(&wrong);
}

/// The smallest objects, by their kinds; `None` for kinds that have none here.
fn smallest() -> BTreeMap<String, Option<Value>> {
    let rows: Value = serde_saphyr::from_str(include_str!("smallest.yaml")).unwrap();
    let mut found = BTreeMap::new();
    for row in rows.as_array().unwrap() {
        for kind in row["kinds"].as_array().unwrap().iter().filter_map(Value::as_str) {
            let (api_version, name) = kind.split_once(' ').unwrap();
            let object = row.get("not").is_none().then(|| {
                let mut object = row.get("object").cloned().unwrap_or_else(|| json!({}));
                object["apiVersion"] = json!(api_version);
                object["kind"] = json!(name);
                object["metadata"] = json!({"name": row.get("name").cloned().unwrap_or_else(|| json!("a"))});
                object
            });
            assert!(found.insert(kind.to_owned(), object).is_none(), "{kind} stands there twice");
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn the_smallest_object_of_each_kind_is_created() {
    let (server, documents) = server().await;
    let mut smallest = smallest();
    let mut wrong = Vec::new();
    for of in &documents.created {
        match smallest.remove(&format!("{} {}", of.api_version, of.kind)) {
            None => wrong.push(format!("{} {} has no object in smallest.yaml", of.api_version, of.kind)),
            Some(None) => {}
            Some(Some(object)) => {
                let answer = create(&server, of, &object).await;
                if answer.code != 201 {
                    wrong.push(format!("{} {}: {}", of.api_version, of.kind, answer.text));
                }
            }
        }
    }
    wrong.extend(smallest.into_keys().map(|kind| format!("{kind} cannot be created")));
    nothing(&wrong);
}

/// Of the other kinds there has to be an object that is replaced.
#[tokio::test(start_paused = true)]
async fn some_kinds_are_created_by_a_put() {
    let (server, documents) = server().await;
    let (smallest, mut created) = (smallest(), Vec::new());
    for of in &documents.created {
        let kind = format!("{} {}", of.api_version, of.kind);
        let Some(object) = &smallest[&kind] else { continue };
        let name = object["metadata"]["name"].as_str().unwrap();
        let answer = server.say(&format!("PUT {}/{name}?dryRun=All", of.uri), object.to_string()).await;
        match answer.code {
            201 => created.push(kind),
            404 | 405 => {}
            _ => panic!("{kind}: {}", answer.text),
        }
    }
    created.sort_unstable();
    let expected = [
        "coordination.k8s.io/v1 Lease",
        "coordination.k8s.io/v1alpha2 LeaseCandidate",
        "coordination.k8s.io/v1beta1 LeaseCandidate",
        "events.k8s.io/v1 Event",
        "node.k8s.io/v1 RuntimeClass",
        "rbac.authorization.k8s.io/v1 ClusterRole",
        "rbac.authorization.k8s.io/v1 ClusterRoleBinding",
        "rbac.authorization.k8s.io/v1 Role",
        "rbac.authorization.k8s.io/v1 RoleBinding",
        "v1 Endpoints",
        "v1 Event",
        "v1 LimitRange",
        "v1 Service",
    ];
    assert_eq!(created, expected);
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_filled_in_or_told() {
    let (server, documents) = server().await;
    let (smallest, mut wrong) = (smallest(), Vec::new());
    for of in &documents.created {
        let kind = format!("{} {}", of.api_version, of.kind);
        let Some(object) = &smallest[&kind] else { continue };
        let mut places = Vec::new();
        fields_of(object, "", &mut places);
        for place in places {
            let (around, name) = place.rsplit_once('/').unwrap();
            let mut lacking = object.clone();
            lacking.pointer_mut(around).unwrap().as_object_mut().unwrap().remove(name);
            let answer = create(&server, of, &lacking).await;
            if !(answer.code == 201 || answer.code == 422 && tells(&answer)) {
                wrong.push(format!("{kind} without {place}: {}", answer.text));
            }
        }
    }
    nothing(&wrong);
}

/// The pointers of all fields that stand in a value.
fn fields_of(value: &Value, around: &str, found: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let place = format!("{around}/{}", name.as_str().replace('/', "~1"));
        if !matches!(place.as_str(), "/apiVersion" | "/kind") {
            found.push(place.clone());
            fields_of(value, &place, found);
        }
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        fields_of(item, &format!("{around}/{i}"), found);
    }
}

/// The values that hardly can be right.
fn doubtful(sort: Sort) -> Vec<(Value, &'static str)> {
    match sort {
        Sort::Text => vec![(json!("a b\n"), "space"), (json!("a".repeat(300)), "long")],
        Sort::Integer => vec![(json!(-1), "-1"), (json!(i32::MAX), "max")],
        Sort::Quantity => vec![(json!("-1"), "-1"), (json!("1.0000000001"), "fine"), (json!("1e30"), "large")],
        Sort::IntOrString => vec![(json!(-1), "-1"), (json!("150%"), "150%"), (json!("a b"), "space")],
        _ => Vec::new(),
    }
}

/// Of each property it is written down which doubtful values it takes. A line that appears is a check that was lost.
#[tokio::test(start_paused = true)]
async fn doubtful_values_are_refused_where_they_stand() {
    let (server, documents) = server().await;
    let (smallest, mut seen) = (smallest(), HashSet::new());
    let (mut wrong, mut accepted) = (Vec::new(), Vec::new());
    for of in &documents.created {
        let kind = format!("{} {}", of.api_version, of.kind);
        let Some(object) = &smallest[&kind] else { continue };
        for property in documents.properties(&of.schema, &mut seen) {
            let path = property.text();
            let server_owned = path.starts_with("metadata.") && path != "metadata.name" || path.starts_with("status.");
            if server_owned || matches!(path.as_str(), "apiVersion" | "kind") {
                continue;
            }
            for (value, name) in doubtful(documents.sort(&property.schema)) {
                let mut spoiled = object.clone();
                put(&mut spoiled, &property.path, value);
                let answer = create(&server, of, &spoiled).await;
                match answer.code {
                    201 => accepted.push(format!("{kind}\t{path}\t{name}\n")),
                    422 if tells(&answer) => {}
                    _ => wrong.push(format!("{kind} {path} = {name}: {}", answer.text)),
                }
            }
        }
    }
    nothing(&wrong);
    let accepted = accepted.concat();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/generated/accepted.tsv"), &accepted).unwrap();
    }
    for (line, committed) in accepted.lines().zip(include_str!("accepted.tsv").lines()) {
        assert_eq!(line, committed, "UPDATE=1 writes generated/accepted.tsv anew");
    }
    assert_eq!(accepted.lines().count(), include_str!("accepted.tsv").lines().count());
}

/// Whether a refusal names a field for each cause, and its message says all of them.
fn tells(answer: &Answer) -> bool {
    let causes = answer.at("/details/causes");
    let Some(causes) = causes.as_array().filter(|causes| !causes.is_empty()) else { return false };
    let message = answer.message();
    causes.iter().all(|cause| {
        let text = |name: &str| cause[name].as_str().unwrap_or_default();
        !text("field").is_empty() && message.contains(&format!("{}: {}", text("field"), text("message")))
    })
}
