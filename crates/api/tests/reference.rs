//! Every built-in kind against the reference tables of Kubernetes v1.35 where `shared/reference` is there, and against the
//! table `kinds.tsv`, which holds what was true there, everywhere.

mod shared_reference;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use api::codec::encode;
use api::features::{self, Features, RuntimeConfig};
use api::kind::group::GROUPS;
use api::kind::{Definition, KindTable, Scope};
use api::kinds::built_in;
use api::schema::{self, Type};
use serde_json::value::RawValue;

fn reference(file: &str) -> Option<Vec<BTreeMap<String, String>>> {
    let path = shared_reference::path(file)?;
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let row = |line: &str| header.iter().map(|h| (*h).to_owned()).zip(line.split('\t').map(str::to_owned)).collect();
    Some(lines.map(row).collect())
}

/// All kinds there are, with everything switched on.
fn everything() -> &'static KindTable {
    static ALL: LazyLock<KindTable> = LazyLock::new(|| {
        let settings = features::settings("AllAlpha=true,AllBeta=true").unwrap();
        let (table, warnings) = api::kinds::table(
            Features::set(&settings).unwrap(),
            &RuntimeConfig::parse(&["api/all=true".to_owned()]).unwrap(),
        );
        assert_eq!(warnings, [""; 0]);
        table
    });
    &ALL
}

/// The kinds that Kubernetes itself has. Those of metrics come from the metrics server there.
fn upstreams() -> impl Iterator<Item = &'static std::sync::Arc<Definition>> {
    everything().all().iter().filter(|d| d.group != api::kinds::metrics::GROUP)
}

fn find<'a>(row: &BTreeMap<String, String>) -> Option<&'a Definition> {
    everything().by_kind(&row["group"], &row["version"], &row["kind"]).map(AsRef::as_ref)
}

/// One line for each kind: its names, verbs, subresources, columns and selectable fields.
#[test]
fn kinds_are_as_committed() {
    let rows = everything().all().iter().map(|d| {
        let subresources = d.subresources.iter().map(|s| format!("{}({})", s.name, s.verbs.join(" ")));
        let usual = [("status", d.status), ("scale", d.scale.is_some())].into_iter().filter(|(_, has)| *has);
        let subresources: Vec<String> = usual.map(|(name, _)| name.to_owned()).chain(subresources).collect();
        let columns = d.columns.iter().map(|c| if c.priority > 0 { format!("({})", c.name) } else { c.name.clone() });
        let columns: Vec<String> = columns.collect();
        let labels: Vec<&str> = d.selectable.iter().map(|field| &*field.label).collect();
        let (names, verbs) = ([std::slice::from_ref(&d.plural), &*d.short_names].concat(), d.verbs.join(" "));
        let parts = [names.join(","), format!("{:?}", d.scope), verbs, subresources.join(","), columns.join(",")];
        format!("{}\t{}\t{}\t{}\n", d.api_version(), d.kind, parts.join("\t"), labels.join(","))
    });
    let rows: String = rows.collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kinds.tsv"), &rows).unwrap();
    }
    for (row, committed) in rows.lines().zip(include_str!("kinds.tsv").lines()) {
        assert_eq!(row, committed, "UPDATE=1 writes tests/kinds.tsv anew");
    }
    assert_eq!(rows.lines().count(), include_str!("kinds.tsv").lines().count());
}

#[test]
fn kinds_have_upstreams_names_verbs_and_subresources() {
    let Some(rows) = reference("resources.tsv") else { return };
    let by_default = |d: &Definition| built_in().find(&d.group, &d.version, &d.plural).is_some();
    let on = rows.iter().filter(|r| r["default_served"] == "on").count();
    assert_eq!(upstreams().filter(|d| by_default(d)).count(), on);
    for row in &rows {
        let Some(d) = everything().find(&row["group"], &row["version"], &row["plural"]) else {
            assert_eq!(row["default_served"], "off", "{row:?}");
            continue;
        };
        assert_eq!(by_default(d), row["default_served"] == "on", "{row:?}");
        let list =
            |column: &str| row[column].split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!((&d.kind, &d.singular), (&row["kind"], &row["singular"]));
        assert_eq!(d.short_names, list("shortNames"), "{}", d.kind);
        assert_eq!(d.categories, list("categories"), "{}", d.kind);
        assert_eq!(d.verbs, list("verbs"), "{}", d.kind);
        assert_eq!(d.scope == Scope::Namespaced, row["namespaced"] == "true", "{}", d.kind);
        let mut subresources: Vec<String> = d.subresources.iter().map(|s| s.name.to_owned()).collect();
        subresources.extend(d.status.then(|| "status".to_owned()));
        subresources.extend(d.scale.as_ref().map(|_| "scale".to_owned()));
        subresources.sort_unstable();
        assert_eq!(subresources, list("subresources"), "{}", d.kind);
        let group = GROUPS.iter().find(|g| g.name == d.group).unwrap();
        assert!(group.versions.iter().any(|(v, _)| *v == d.version), "{}", d.kind);
    }
}

#[test]
fn subresources_have_upstreams_objects_and_verbs() {
    let Some(rows) = reference("subresources.tsv") else { return };
    let served = rows.iter().filter(|r| r["default_served"] == "on");
    for row in served.filter(|r| !matches!(r["subresource"].as_str(), "status" | "scale")) {
        let d = built_in().find(&row["group"], &row["version"], &row["plural"]).unwrap();
        let sub = d.subresources.iter().find(|s| s.name == row["subresource"]).unwrap();
        assert_eq!(sub.object, (row["kind_group"].as_str(), row["kind_version"].as_str(), row["kind"].as_str()));
        assert_eq!(sub.verbs.join(","), row["verbs"], "{} {}", d.kind, sub.name);
    }
}

#[test]
fn field_labels_are_upstreams() {
    let Some(rows) = reference("selectable-fields.tsv") else { return };
    let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows.iter().filter(|r| find(r).is_some()) {
        let d = find(row).unwrap();
        assert_eq!(d.check_field_label(&row["label"]), Ok(()), "{}", d.kind);
        assert_eq!(d.check_field_label("LABEL"), Err(row["error_for_other_labels"].clone()), "{}", d.kind);
        known.entry(format!("{} {}", d.api_version(), d.kind)).or_default().push(row["label"].clone());
    }
    for d in everything().all().iter().filter(|d| d.verbs.iter().any(|v| v == "list")) {
        let labels = known.get(&format!("{} {}", d.api_version(), d.kind)).cloned().unwrap_or_default();
        for label in d.selectable.iter().map(|field| &field.label) {
            assert!(labels.contains(label), "{} has {label}", d.kind);
        }
    }
}

#[test]
fn columns_are_upstreams() {
    let Some(rows) = reference("printer-columns.tsv") else { return };
    let of = |group: &str, kind: &str| -> Vec<_> {
        let all = rows.iter().filter(|r| r["group"] == group && r["kind"] == kind);
        all.map(|r| (r["column"].clone(), r["type"].clone(), r["format"].clone(), r["priority"].clone())).collect()
    };
    let default = of("*", "(default: any kind without own columns)");
    for d in upstreams() {
        let mut expected = of(&d.group, &d.kind);
        if expected.is_empty() {
            expected.clone_from(&default);
        }
        let columns = &d.columns;
        let shown: Vec<_> = columns
            .iter()
            .map(|c| (c.name.clone(), c.kind.clone(), c.format.clone(), c.priority.to_string()))
            .collect();
        assert_eq!(shown, expected, "{}", d.kind);
        assert!(columns.iter().all(|c| !c.description.is_empty()), "{}", d.kind);
    }
}

/// The fields that `before` has and `after` has not, or has differently.
fn lost(before: &json::Value, after: &json::Value, path: &str, list: &mut Vec<String>) {
    use json::Value;
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (field, value) in before {
                lost(value, after.get(field).unwrap_or(&Value::Null), &format!("{path}.{field}"), list);
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (i, (before, after)) in before.iter().zip(after).enumerate() {
                lost(before, after, &format!("{path}[{i}]"), list);
            }
        }
        _ if before != after => list.push(format!("{path}: {before} became {after}")),
        _ => {}
    }
}

/// Unpacks upstream's fixtures, one object of each kind with every field set, as text.
fn fixture_texts() -> Option<Vec<Box<RawValue>>> {
    let archive = shared_reference::path("api-fixtures/json.tar.gz")?;
    let output = std::process::Command::new("tar").args(["-xzO", "-f"]).arg(archive).output().unwrap();
    assert!(output.status.success());
    let objects = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Box<RawValue>>();
    Some(objects.map(Result::unwrap).collect())
}

fn fixtures() -> Option<BTreeMap<String, json::Value>> {
    let objects = fixture_texts()?.into_iter().map(|text| serde_json::from_str::<json::Value>(text.get()).unwrap());
    Some(objects.map(|o| (format!("{} {}", o["apiVersion"], o["kind"]), o)).collect())
}

/// JSON without the white space between its tokens.
fn compact(text: &str) -> String {
    let mut in_string = false;
    let kept = text.chars().filter(|c| {
        in_string ^= *c == '"';
        in_string || !c.is_whitespace()
    });
    kept.collect()
}

#[test]
fn fields_are_written_in_upstreams_order() {
    let Some(texts) = fixture_texts() else { return };
    let mut written = BTreeSet::new();
    for text in texts {
        let object: json::Value = serde_json::from_str(text.get()).unwrap();
        let api_version = object["apiVersion"].as_str().unwrap_or("");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = object["kind"].as_str().unwrap_or("");
        if let Type::Any = schema::of_kind(group, version, kind) {
            continue;
        }
        let ours = String::from_utf8(encode::described(&object)).unwrap();
        assert_eq!(ours, compact(text.get()), "{api_version} {kind}");
        written.insert(format!("{api_version} {kind}"));
    }
    for d in upstreams().filter(|d| d.kind != "APIService") {
        assert!(written.contains(&format!("{} {}", d.api_version(), d.kind)), "{}", d.kind);
    }
}

#[test]
fn defaults_lose_nothing_of_an_object_that_has_every_field() {
    let Some(objects) = fixtures() else { return };
    let mut list = Vec::new();
    for d in upstreams() {
        let key = format!("{:?} {:?}", d.api_version(), d.kind);
        let Some(before) = objects.get(&key) else {
            assert_eq!(d.kind, "APIService");
            continue;
        };
        let mut after = before.clone();
        d.strategy.default(&mut after);
        lost(before, &after, &d.kind, &mut list);
    }
    // The old name follows the new one, text becomes data, and a list begins with what stands alone beside it.
    let follows = [".serviceAccount: ", "Secret.stringData: ", "Node.spec.podCIDRs[0]: ", "Pod.status.podIPs[0].ip: "];
    list.retain(|l| !follows.iter().any(|field| l.contains(field)));
    assert!(list.is_empty(), "{list:#?}");
}

#[test]
fn every_kind_takes_an_empty_object_without_a_panic() {
    for d in everything().all() {
        let mut object = json::json!({"apiVersion": d.api_version(), "kind": d.kind, "metadata": {"name": "a"}});
        d.strategy.default(&mut object);
        d.strategy.prepare_create(&mut object);
        d.strategy.validate(&object);
        let old = object.clone();
        d.strategy.prepare_update(&mut object, &old, api::kind::Target::Object);
        d.strategy.validate_update(&object, &old, api::kind::Target::Object);
        assert_eq!(object, old, "{}: an update that changes nothing", d.kind);
        assert_eq!(d.strategy.row(&object, jiff::Timestamp::UNIX_EPOCH).len(), d.columns.len());
        let mut stored = object.clone();
        d.strategy.to_storage(&mut stored);
        assert_eq!(stored["apiVersion"] == object["apiVersion"], d.storage.1 == d.version && d.storage.0 == d.group);
    }
}

/// The published traits of each field: its type, whether it is required, its default, how it is merged.
#[test]
fn schemas_are_published_as_upstream_publishes_them() {
    let Some(index) = shared_reference::path("openapi-v3/api__v1_openapi.json") else { return };
    let mut wrong = Vec::new();
    // Upstream's documents in its repository are made without them.
    let features = api::features::Features::default().with(api::features::Feature::OpenAPIEnums, false);
    for file in std::fs::read_dir(index.parent().unwrap()).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().trim_end_matches("_openapi.json").replace("__", "/");
        let parts: Vec<&str> = name.split('/').collect();
        let (group, version) = if let ["apis", group, version] = parts[..] { (group, version) } else { ("", parts[1]) };
        let theirs: json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let ours = api::openapi::v3(everything().all(), group, version, features);
        let ours = ours.unwrap_or_else(|| panic!("{name} is not served"));
        let ours: json::Value = serde_json::from_str(&ours.to_string()).unwrap();
        let schemas = theirs["components"]["schemas"].as_object().unwrap();
        for (name, theirs) in schemas {
            if let Some(ours) = ours["components"]["schemas"].get(name) {
                published(name, theirs, ours, &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
}

/// Words that are not compared: texts, which kinds a schema is of, and what no client asks about.
const UNCOMPARED: &[&str] = &["description", "x-kubernetes-group-version-kind", "x-kubernetes-unions"];
/// Lists inside of maps, list types of bytes, the order of keys, and types that the tables know as any JSON.
const OTHERWISE: &[&str] = &[
    ".extra.",
    ".caBundle",
    ".enum.items",
    ".dependencies.",
    ".claimRef",
    ".allocatedResourceStatuses",
    "ClaimStatus.properties.devices",
];

fn published(at: &str, theirs: &json::Value, ours: &json::Value, wrong: &mut Vec<String>) {
    if OTHERWISE.iter().any(|place| at.contains(place)) {
        return;
    }
    let (Some(theirs), Some(ours)) = (theirs.as_object(), ours.as_object()) else {
        if theirs != ours {
            wrong.push(format!("{at}: {ours}, not {theirs}"));
        }
        return;
    };
    let names: BTreeSet<&json::Key> = theirs.keys().chain(ours.keys()).collect();
    for name in names.into_iter().filter(|name| !UNCOMPARED.contains(&name.as_str())) {
        match (theirs.get(name), ours.get(name)) {
            (Some(theirs), Some(ours)) => published(&format!("{at}.{name}"), theirs, ours, wrong),
            (theirs, ours) => wrong.push(format!("{at}.{name}: {ours:?}, not {theirs:?}")),
        }
    }
}
