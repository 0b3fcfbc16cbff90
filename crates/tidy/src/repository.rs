//! The repository's files, as the rules read them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A source file, relative to the repository's root.
pub struct Source {
    pub path: String,
    pub text: String,
}

/// The checkout in which the tests run, and not the one in which they were built: a build that is kept may be of another.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&package).join("../..").canonicalize().expect("the repository is there")
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

pub fn sources() -> Vec<Source> {
    let root = root();
    let mut paths = Vec::new();
    walk(&root.join("crates"), &mut paths);
    paths.sort();
    let rust = paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == "rs"));
    let sources: Vec<Source> = rust
        .map(|p| Source {
            path: p.strip_prefix(&root).expect("below the root").display().to_string(),
            text: fs::read_to_string(&p).expect("readable"),
        })
        .collect();
    assert!(sources.len() > 100, "the walk found only {} files", sources.len());
    sources
}

/// The part of a file before its unit tests.
pub fn product(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

pub fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs") || path.contains("/benches/") || path.contains("/examples/")
}
