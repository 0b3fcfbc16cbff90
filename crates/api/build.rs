//! Gathers the texts for people of the built-in types, for OpenAPI documents: they stand in the sources of `k8s-openapi`,
//! which are on this machine because they are compiled. As a table they cost no code; as `schemars` implementations they
//! cost a quarter of that crate's compile time and megabytes of the program.
//!
//! The table, `texts.tsv`: a type starts with `=NAME` and its description; its properties follow, one a line: name, the
//! type that it refers to directly, description. NAME is without the prefix `io.k8s.`. A part that is not known is
//! empty; backslashes, tabs and line ends within a text are escaped.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The folder of the version that is compiled, see the features in the workspace's manifest.
const VERSION: &str = "src/v1_35";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let mut types = BTreeMap::new();
    let sources = source_of("k8s-openapi").join(VERSION);
    visit(&sources, &mut types);
    assert!(types.len() > 600, "{} has only {} types: are they written another way?", sources.display(), types.len());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("texts.tsv");
    fs::write(&out, types.into_values().collect::<String>()).expect("OUT_DIR can be written");
}

/// Where the sources of a dependency are: where cargo unpacks what it downloads, or else where cargo says. It is asked last,
/// because it looks for the sources of everything then, also of what is compiled for tests and other systems only.
fn source_of(package: &str) -> PathBuf {
    unpacked(package).unwrap_or_else(|| asked_for(package))
}

fn unpacked(package: &str) -> Option<PathBuf> {
    let locked = fs::read_to_string("../../Cargo.lock").ok()?;
    let version = locked.split(&format!("name = \"{package}\"\nversion = \"")).nth(1)?.split('"').next()?;
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    let sources = fs::read_dir(home.join("registry/src")).ok()?.flatten();
    sources.map(|source| source.path().join(format!("{package}-{version}"))).find(|folder| folder.is_dir())
}

fn asked_for(package: &str) -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo sets it");
    let asked = Command::new(cargo).args(["metadata", "--format-version=1"]).output();
    let said = asked.expect("cargo runs");
    assert!(said.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8(said.stdout).expect("JSON");
    let package = format!("{{\"name\":\"{package}\",\"version\":");
    let path = said.split(&package).nth(1).and_then(|rest| rest.split("\"manifest_path\":\"").nth(1));
    let path = path.and_then(|rest| rest.split('"').next()).expect("the package has a manifest");
    Path::new(path).parent().expect("a folder").to_owned()
}

fn visit(folder: &Path, types: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a folder that can be read").path();
        if path.is_dir() {
            visit(&path, types);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).expect("a source that can be read");
            read(&text, types);
        }
    }
}

/// A file has one implementation of `JsonSchema` at most, and one form: each word stands on a line, indented by its depth.
fn read(text: &str, types: &mut BTreeMap<String, String>) {
    let Some((_, schema)) = text.split_once("fn schema_name() ") else { return };
    let Some(name) = schema.lines().nth(1).and_then(quoted) else { return };
    let (mut described, mut properties) = (String::new(), Vec::new());
    let mut in_properties = false;
    for line in schema.lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim_start();
        match depth {
            12 => {
                in_properties = line == "\"properties\": {";
                if let Some(text) = line.strip_prefix("\"description\": ") {
                    described = escaped(text);
                }
            }
            16 if in_properties => {
                if let Some(name) = line.strip_prefix('"').and_then(|rest| rest.split_once("\": ")) {
                    let refers = reference(name.1);
                    properties.push((name.0, refers, String::new()));
                }
            }
            20 if in_properties => {
                let Some(property) = properties.last_mut() else { continue };
                if let Some(text) = line.strip_prefix("\"description\": ") {
                    property.2 = escaped(text);
                } else if let Some((_, text)) = line.split_once(".insert(\"description\".into(), ") {
                    property.2 = escaped(text);
                } else if line.starts_with("let mut schema_obj") {
                    property.1 = reference(line);
                }
            }
            _ => {}
        }
    }
    let name = name.trim_start_matches("io.k8s.");
    let mut entry = format!("={name}\t{described}\n");
    for (name, refers, described) in properties {
        entry.push_str(&format!("{name}\t{refers}\t{described}\n"));
    }
    types.insert(name.to_owned(), entry);
}

/// The text between the first quotes of a line, in which nothing is escaped.
fn quoted(line: &str) -> Option<&str> {
    line.split('"').nth(1)
}

/// `…subschema_for::<crate::a_b::v1::C>()…` is `a-b.v1.C`.
fn reference(line: &str) -> String {
    let path = line.split_once("subschema_for::<crate::").and_then(|(_, rest)| rest.split_once(">()"));
    path.map(|(path, _)| path.replace("::", ".").replace('_', "-")).unwrap_or_default()
}

/// A Rust literal at the beginning of `text` as it stands in the table.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    let mut letters = text.trim_start_matches('"').chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return out,
            '\\' => match letters.next() {
                Some(plain @ ('"' | '\'')) => out.push(plain),
                Some(kept @ ('n' | 't' | '\\')) => out.extend(['\\', kept]),
                other => panic!("an escape that this does not know: {other:?} in {text}"),
            },
            letter => out.push(letter),
        }
    }
    panic!("a text without end: {text}");
}
