//! The statements of `ARCHITECTURE.md` about the crates, their folders and the circles of files in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::graph::Crate;
use crate::repository::{Source, is_test, root, sources};

/// More files than this in one folder do not say where a new line goes.
const SIBLINGS_MAX: usize = 16;

fn map() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md")
}

/// The lines of a list in `ARCHITECTURE.md`: the names in backticks in front of the colon, and what stands behind it.
fn entries(section: &str) -> Vec<(Vec<String>, String)> {
    let map = map();
    let part = map.split("\n## ").find(|part| part.starts_with(section)).unwrap_or_else(|| panic!("no ## {section}"));
    let items = part.split("\n- ").skip(1).map(|item| {
        let (names, said) = item.split_once(':').unwrap_or_else(|| panic!("{item:?} says nothing behind a colon"));
        let said = said.split("\n\n").next().unwrap_or(said);
        (names.split('`').skip(1).step_by(2).map(str::to_owned).collect(), said.trim().to_owned())
    });
    items.collect()
}

/// Source files by folder, without those that are tests.
fn folders() -> BTreeMap<String, Vec<Source>> {
    let mut folders: BTreeMap<String, Vec<Source>> = BTreeMap::new();
    for source in sources().into_iter().filter(|s| !is_test(&s.path) && s.path.contains("/src/")) {
        let folder = source.path.rsplit_once('/').expect("below a folder").0.to_owned();
        folders.entry(folder).or_default().push(source);
    }
    folders
}

#[test]
fn the_map_names_every_crate() {
    let (root, map) = (root(), map());
    for entry in fs::read_dir(root.join("crates")).expect("crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(map.contains(&format!("`{name}`")), "ARCHITECTURE.md does not name the crate {name}");
    }
    let named = map.split('`').filter(|w| w.starts_with("crates/") && !w.contains(' '));
    let missing: Vec<&str> = named.filter(|word| !root.join(word).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that are not there: {missing:?}");
}

#[test]
fn the_map_says_what_each_folder_is_for() {
    let listed: BTreeSet<String> = entries("Folders").into_iter().flat_map(|(names, _)| names).collect();
    let folders = folders();
    let is_below = |path: &str| path.split_once("/src/").is_some();
    let missing: Vec<&String> = folders.keys().filter(|path| is_below(path) && !listed.contains(*path)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md, Folders, does not name {missing:?}");
    let gone: Vec<&String> = listed.iter().filter(|path| !folders.contains_key(*path)).collect();
    assert!(gone.is_empty(), "ARCHITECTURE.md, Folders, names what is no folder: {gone:?}");
    for (names, said) in entries("Folders") {
        assert!(said.matches('.').count() >= 2, "{names:?}: its purpose, and a sentence about what belongs elsewhere");
    }
}

#[test]
fn folders_stay_small() {
    let reasons: BTreeSet<String> = entries("Large folders").into_iter().flat_map(|(names, _)| names).collect();
    let mut large = folders();
    large.retain(|_, files| files.len() > SIBLINGS_MAX);
    let unexplained = large.iter().filter(|(path, _)| !reasons.contains(*path));
    let unexplained: Vec<String> = unexplained.map(|(path, files)| format!("{path}: {} files", files.len())).collect();
    assert!(
        unexplained.is_empty(),
        "a folder with more files than {SIBLINGS_MAX} is split, or listed with its reason\n{unexplained:?}"
    );
    let small: Vec<&String> = reasons.iter().filter(|path| !large.contains_key(*path)).collect();
    assert!(small.is_empty(), "ARCHITECTURE.md, Large folders, names what is not large: {small:?}");
}

#[test]
fn no_circle_of_files_is_unexplained() {
    let explained: Vec<BTreeSet<String>> =
        entries("Circles").into_iter().map(|(names, _)| names.into_iter().collect()).collect();
    let mut crates: BTreeMap<String, Vec<Source>> = BTreeMap::new();
    for source in folders().into_values().flatten() {
        let name = source.path.split("/src/").next().expect("below src").to_owned();
        crates.entry(name).or_default().push(source);
    }
    let circles = crates.iter().flat_map(|(name, sources)| {
        let below = |path: &'_ str| path.len().min(name.len() + "/src/".len());
        let files = sources.iter().map(|s| (&s.path[below(&s.path)..], &*s.text));
        let circles = Crate::new(files).circles();
        circles
            .into_iter()
            .map(move |c| c.into_iter().map(|path| format!("{name}/src/{path}")).collect::<BTreeSet<String>>())
    });
    let circles: Vec<BTreeSet<String>> = circles.collect();
    let gone: Vec<_> = explained.iter().filter(|known| !circles.iter().any(|circle| circle.is_subset(known))).collect();
    assert!(gone.is_empty(), "ARCHITECTURE.md, Circles, explains what is no circle: {gone:?}");
    let unexplained: Vec<String> = circles
        .into_iter()
        .filter(|circle| !explained.iter().any(|known| circle.is_subset(known)))
        .map(|circle| circle.into_iter().collect::<Vec<_>>().join("\n  "))
        .collect();
    assert!(
        unexplained.is_empty(),
        "{} circles of files, which ARCHITECTURE.md, Circles, does not explain:\n  {}",
        unexplained.len(),
        unexplained.join("\n\n  ")
    );
}
