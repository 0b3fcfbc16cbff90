//! The rules that every source file must keep to.

use std::{fs, path::Path};

use crate::repository::{Source, is_test, product, root, sources};

fn offenders(rule: &str, broken: impl Fn(&Source) -> Option<String>) {
    let found: Vec<String> =
        sources().iter().filter_map(|s| broken(s).map(|why| format!("{}: {why}", s.path))).collect();
    assert!(found.is_empty(), "{rule}\n{}", found.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    offenders("each file opens with //!", |s| (!s.text.starts_with("//!")).then(|| "no //! at the top".to_owned()));
}

#[test]
fn files_say_one_thing() {
    offenders("a file past 800 lines is split by concept", |s| {
        let lines = s.text.lines().count();
        (lines > 800).then(|| format!("{lines} lines"))
    });
}

#[test]
fn names_say_a_concept() {
    let banned = ["utils", "util", "helpers", "helper", "common", "types", "handlers", "manager", "misc"];
    offenders("files are named after a concept", |s| {
        let stem = Path::new(&s.path).file_stem()?.to_str()?;
        banned.contains(&stem).then(|| format!("{stem} says nothing"))
    });
}

#[test]
fn time_and_randomness_come_in_through_clock() {
    let words =
        ["SystemTime::now", "std::time::Instant", "Timestamp::now(", "rand::rng(", "thread_rng(", "Uuid::new_v4"];
    offenders("time and randomness enter through the crate clock alone", |s| {
        let free = ["crates/clock/", "crates/tidy/", "crates/bench/", "crates/skiff/src/commands/up.rs"];
        if is_test(&s.path) || free.iter().any(|f| s.path.starts_with(f)) {
            return None;
        }
        words.iter().find(|w| product(&s.text).contains(**w)).map(|w| (*w).to_owned())
    });
}

#[test]
fn only_the_apiserver_opens_the_store() {
    let allowed = ["apiserver", "encryption", "sim", "skiff", "bench"];
    let root = root();
    for entry in fs::read_dir(root.join("crates")).expect("crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
        // Tests may put the real server on a store of their own.
        let product = manifest.split("[dev-dependencies]").next().unwrap_or(&manifest);
        let uses = product.lines().any(|l| l.starts_with("store.") || l.starts_with("store ="));
        assert!(!uses || allowed.contains(&name.as_str()), "{name} depends on the store");
    }
}

#[test]
fn the_api_crate_is_pure() {
    let words =
        ["std::fs", "TcpStream", "TcpListener", "UdpSocket", "tokio", "std::thread", "std::process", "std::env"];
    offenders("api knows no clock, task, socket or file", |s| {
        if !s.path.starts_with("crates/api/src") {
            return None;
        }
        words.iter().find(|w| product(&s.text).contains(**w)).map(|w| (*w).to_owned())
    });
}

#[test]
fn there_is_one_tree_for_json() {
    let names = ["Value", "Map", "json", "to_value", "from_value"];
    offenders("values are those of the crate json; serde_json reads and writes text", |s| {
        let free = ["crates/json/", "crates/api/src/write/patch/json.rs", "crates/tidy/"];
        if free.iter().any(|f| s.path.starts_with(f)) {
            return None;
        }
        let of = |line: &str| {
            let path = line.split("serde_json::").nth(1)?;
            let end = |c: char| !c.is_alphanumeric() && c != '_';
            let named = match path.strip_prefix('{') {
                Some(list) => list.split('}').next()?.split(", ").collect(),
                None => vec![path.split(end).next()?],
            };
            named.into_iter().find(|name| names.contains(name)).map(str::to_owned)
        };
        s.text.lines().filter(|line| !line.trim_start().starts_with("//")).find_map(of)
    });
}

#[test]
fn modes_of_files_are_said_in_one_place() {
    let words = [
        "create_dir",
        "fs::write(",
        "File::create(",
        "OpenOptions::new(",
        "DirBuilder::new(",
        "set_permissions(",
        "remove_dir_all(",
    ];
    // The kernel's own files have no mode to choose, and an archive that a user asks for is the user's.
    let free = [
        "crates/kubelet/src/node/cgroup/mod.rs",
        "crates/network/src/settings.rs",
        "crates/runtime/src/images.rs",
        "crates/skiff/src/node/oom.rs",
    ];
    let bound = ["kubelet", "network", "pki", "runtime", "skiff"].map(|name| format!("crates/{name}/src/"));
    offenders("what a node writes and removes goes through the crate files", |s| {
        if !bound.iter().any(|b| s.path.starts_with(b)) || is_test(&s.path) || free.contains(&s.path.as_str()) {
            return None;
        }
        words.iter().find(|w| product(&s.text).contains(**w)).map(|w| (*w).to_owned())
    });
}

#[test]
fn no_test_is_switched_off() {
    let attribute = concat!("#[", "ignore");
    offenders("no test is ignored", |s| s.text.contains(attribute).then(|| "an ignored test".to_owned()));
}

#[test]
fn unsafe_has_a_reason() {
    let word = concat!("unsafe", " ");
    offenders("unsafe code stands in a named file with its reason", |s| {
        let uses = s
            .text
            .lines()
            .map(str::trim)
            .filter(|l| !l.starts_with("//"))
            .any(|l| l.contains(&format!("{word}{{")) || l.contains(&format!("{word}fn")));
        (uses && !s.text.contains("SAFETY:")).then(|| "unsafe without a SAFETY comment".to_owned())
    });
}

/// The crates that a manifest names, with the section that does.
fn dependencies(manifest: &str) -> Vec<(&str, &str)> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]")
            && let Some(end) = line.find(['.', ' ', '='])
            && !line.starts_with('#')
        {
            found.push((section, &line[..end]));
        }
    }
    found
}

/// Each one costs every build its time, and comes with all that it needs itself.
#[test]
fn no_crate_is_compiled_for_nothing() {
    let (root, sources) = (root(), sources());
    let mut unused = Vec::new();
    for entry in fs::read_dir(root.join("crates")).expect("crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
        let folder = format!("crates/{name}/");
        for (section, dependency) in dependencies(&manifest) {
            let word = dependency.replace('-', "_");
            // The binary's tests stand beside the other tests that need a machine.
            let elsewhere = name == "skiff" && section.contains("dev-");
            let tests = section.contains("dev-");
            let says = |s: &Source| {
                let text = if tests { &s.text } else { product(&s.text) };
                s.path.starts_with(&folder) && (tests || !is_test(&s.path)) && text.contains(&word)
            };
            if !elsewhere && !sources.iter().any(says) {
                unused.push(format!("crates/{name}/Cargo.toml {section} {dependency}"));
            }
        }
    }
    assert!(unused.is_empty(), "nothing in the crate names these:\n{}", unused.join("\n"));
}

/// A gate that says it acts would otherwise be accepted in silence.
#[test]
fn what_acts_on_a_feature_asks_for_it() {
    const TABLE: &str = "crates/api/src/features/table.rs";
    let sources = sources();
    let table = sources.iter().find(|s| s.path == TABLE).expect("the table of features");
    let acting = table.text.lines().filter(|line| line.contains(" = ") && line.contains(".acts()"));
    let names = acting.filter_map(|line| line.trim().split_once(" = ")).map(|(name, _)| name);
    let unasked = |name: &&str| {
        let word = format!("Feature::{name}");
        let elsewhere = |s: &&Source| !s.path.starts_with("crates/api/src/features/") && !is_test(&s.path);
        // Tests may also be named before the product's code goes on.
        let asked =
            |s: &Source| s.text.split("#[cfg(test)]\nmod tests {").next().is_some_and(|text| text.contains(&word));
        !name.starts_with("All") && !sources.iter().filter(elsewhere).any(asked)
    };
    assert_eq!(names.filter(unasked).collect::<Vec<_>>(), [""; 0]);
}
