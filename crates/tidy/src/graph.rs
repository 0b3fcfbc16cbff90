//! Which file of a crate uses which other one, read off its text: the paths in `use` trees and in code.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::slice::Iter;

/// A module by its names from the crate's root.
type Module = Vec<String>;

/// The files of one crate, by module, as they are without their tests.
pub struct Crate {
    files: BTreeMap<Module, File>,
}

struct File {
    path: String,
    tokens: Vec<String>,
    /// Names that the file hands on from elsewhere (`pub use`), with the path that each stands for.
    handed_on: BTreeMap<String, Vec<String>>,
}

impl Crate {
    /// `files` are paths below the crate's `src` with their texts.
    pub fn new<'t>(files: impl Iterator<Item = (&'t str, &'t str)>) -> Self {
        let files = files.map(|(path, text)| {
            let tokens = tokens(&without_tests(text));
            let handed_on = uses(&tokens).filter(|(public, _)| *public).flat_map(|(_, tree)| leaves(tree)).collect();
            (module(path), File { path: path.to_owned(), tokens, handed_on })
        });
        Crate { files: files.collect() }
    }

    /// The circles: sets of files each of which leads to all others of the set.
    pub fn circles(&self) -> Vec<BTreeSet<String>> {
        let arrows: BTreeMap<&Module, BTreeSet<&Module>> = self.files.keys().map(|m| (m, self.used_by(m))).collect();
        let reach: BTreeMap<&Module, BTreeSet<&Module>> = arrows.keys().map(|m| (*m, reached(m, &arrows))).collect();
        let circles: BTreeSet<BTreeSet<String>> = reach
            .iter()
            .filter(|(module, all)| all.contains(**module))
            .map(|(module, all)| all.iter().filter(|other| reach[**other].contains(*module)))
            .map(|circle| circle.map(|m| self.files[*m].path.clone()).collect())
            .collect();
        circles.into_iter().collect()
    }

    /// The files that a file uses. Its own `mod.rs` does not count: a `mod.rs` holds what the files of its folder share, and
    /// hands work down to them.
    fn used_by<'c>(&'c self, module: &'c Module) -> BTreeSet<&'c Module> {
        let file = &self.files[module];
        let plain = uses(&file.tokens).filter(|(public, _)| !*public).flat_map(|(_, tree)| leaves(tree));
        let paths = plain.map(|(_, path)| path).chain(inline(&file.tokens));
        let own = |other: &Module| other == module || module.split_last().is_some_and(|(_, parent)| other == parent);
        paths.filter_map(|path| self.resolve(module, &path, 0)).filter(|other| !own(other)).collect()
    }

    /// The file in which the thing at the end of a path stands, seen from a module; `None` outside of the crate.
    fn resolve<'c>(&'c self, from: &Module, path: &[String], depth: usize) -> Option<&'c Module> {
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => (from.split_last()?.1.to_vec(), &path[1..]),
            child => {
                let child: Module = from.iter().cloned().chain([child.to_owned()]).collect();
                self.files.contains_key(&child).then(|| (child, &path[1..]))?
            }
        };
        while let Some((next, after)) = rest.split_first() {
            let child: Module = at.iter().cloned().chain([next.clone()]).collect();
            match next.as_str() {
                "super" => drop(at.pop()),
                _ if self.files.contains_key(&child) => at = child,
                _ => break,
            }
            rest = after;
        }
        let (module, file) = self.files.get_key_value(&at)?;
        let origin = rest.first().filter(|_| depth < 8).and_then(|name| file.handed_on.get(name));
        origin.and_then(|path| self.resolve(module, path, depth + 1)).or(Some(module))
    }
}

fn reached<'c>(from: &Module, arrows: &BTreeMap<&'c Module, BTreeSet<&'c Module>>) -> BTreeSet<&'c Module> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&Module> = arrows[from].iter().copied().collect();
    while let Some(module) = open.pop() {
        if let Some((key, next)) = arrows.get_key_value(module)
            && found.insert(*key)
        {
            open.extend(next.iter().copied());
        }
    }
    found
}

/// `a/mod.rs` and `a.rs` are the module `a`; `lib.rs` and `main.rs` are the root.
fn module(path: &str) -> Module {
    let path = path.trim_end_matches(".rs");
    let names = path.split('/').filter(|name| !matches!(*name, "mod" | "lib" | "main"));
    names.map(str::to_owned).collect()
}

/// The text without what is compiled for tests only: an item after `#[cfg(test)]` ends at a `;` or with its block.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[cfg(test)]") {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let ends = |l: &str| l.len() > indent && l.is_char_boundary(indent) && l[indent..].starts_with('}');
        let mut inside = lines.by_ref().skip_while(|l| l.trim_start().starts_with("#["));
        if inside.next().is_some_and(|first| !first.ends_with(';') && !first.ends_with('}')) {
            inside.find(|l| ends(l));
        }
    }
    kept
}

/// Names, `::` and single signs. Comments, strings and characters are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut list = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            list.push("::".to_owned());
            2
        } else if let Some(length) = literal(rest) {
            length
        } else if c.is_alphabetic() || c == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            list.push(rest[..length].to_owned());
            length
        } else {
            list.extend((!c.is_whitespace()).then(|| c.to_string()));
            c.len_utf8()
        };
        rest = &rest[length..];
    }
    list
}

/// The length of the string, raw string or character that the text begins with.
fn literal(text: &str) -> Option<usize> {
    let body = text.strip_prefix('b').unwrap_or(text);
    let before = text.len() - body.len();
    if let Some(raw) = body.strip_prefix('r') {
        let inner = raw.trim_start_matches('#');
        let marks = &raw[..raw.len() - inner.len()];
        let inner = inner.strip_prefix('"')?;
        let end = format!("\"{marks}");
        return Some(text.len() - inner.len() + inner.find(&end)? + end.len());
    }
    let quote = body.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = &body[1..];
    if quote == '\'' && !inner.starts_with('\\') {
        // A lifetime has no second quote behind its first character.
        let first = inner.chars().next()?.len_utf8();
        return inner[first..].starts_with('\'').then_some(before + first + 2);
    }
    let mut escaped = false;
    let end = inner.char_indices().find(|(_, c)| {
        let end = *c == quote && !escaped;
        escaped = *c == '\\' && !escaped;
        end
    });
    end.map(|(at, _)| before + at + 2)
}

/// The trees of the `use` declarations, with whether they hand names on.
fn uses(tokens: &[String]) -> impl Iterator<Item = (bool, &[String])> {
    let starts = (0..tokens.len()).filter(|i| tokens[*i] == "use");
    starts.map(|at| {
        let public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
        let length = tokens[at..].iter().position(|t| t == ";").unwrap_or(tokens.len() - at);
        (public, &tokens[at + 1..at + length])
    })
}

/// Each name that a `use` tree brings in, with its whole path.
fn leaves(tree: &[String]) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    branch(&mut tree.iter().peekable(), &[], &mut found);
    found
}

/// Reads one branch of a `use` tree, up to the comma or brace behind it.
fn branch(tokens: &mut Peekable<Iter<'_, String>>, before: &[String], found: &mut Vec<(String, Vec<String>)>) {
    let (mut path, mut name, mut empty) = (before.to_vec(), None, true);
    while let Some(token) = tokens.next_if(|t| *t != "," && *t != "}") {
        empty = false;
        match token.as_str() {
            "::" => {}
            "as" => name = tokens.next().cloned(),
            "self" if !path.is_empty() => {}
            "{" => {
                while tokens.peek().is_some() {
                    branch(tokens, &path, found);
                    if tokens.next().is_none_or(|t| t == "}") {
                        break;
                    }
                }
                return;
            }
            part => path.push(part.to_owned()),
        }
    }
    if let Some(name) = name.or_else(|| path.last().cloned()).filter(|_| !empty) {
        found.push((name, path));
    }
}

/// The paths in code: `crate::a::b`, `super::a`, `a::b`.
fn inline(tokens: &[String]) -> Vec<Vec<String>> {
    let is_name = |t: &String| t.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "use" => at += tokens[at..].iter().position(|t| t == ";").unwrap_or(1),
            "::" => at += 1,
            _ if is_name(&tokens[at]) && tokens.get(at + 1).is_some_and(|t| t == "::") => {
                let mut path = vec![tokens[at].clone()];
                while tokens.get(at + 1).is_some_and(|t| t == "::") && tokens.get(at + 2).is_some_and(is_name) {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                found.push(path);
                at += 1;
            }
            _ => at += 1,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&'static str, &'static str)]) -> Vec<String> {
        let circles = Crate::new(files.iter().copied()).circles();
        circles.into_iter().map(|c| c.into_iter().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let b = ("b/mod.rs", "pub use c::{D, self as e};\nmod c;");
        let found = circles(&[("a.rs", "use crate::{x, b::{D, y}};"), b, ("b/c.rs", "fn f() { crate::a::g('\\'') }")]);
        assert_eq!(found, ["a.rs b/c.rs"]);
        let a = ("a/mod.rs", "mod b; fn f() { b::c::g(\"use\") }");
        let found = circles(&[a, ("a/b/mod.rs", "mod c;"), ("a/b/c.rs", "use super::super::F as G; // b")]);
        assert_eq!(found, ["a/b/c.rs a/mod.rs"]);
    }

    #[test]
    fn handing_on_and_tests_make_no_circle() {
        let face = ("b/mod.rs", "//! crate::a\npub mod c;\npub use c::D;");
        assert_eq!(circles(&[face, ("b/c.rs", "use super::e::F;"), ("b/e.rs", "struct F;")]), [""; 0]);
        assert_eq!(circles(&[("a/mod.rs", "mod b; fn f() { b::g() }"), ("a/b.rs", "use super::f;")]), [""; 0]);
        let tested = "struct A;\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n#[cfg(test)]\nmod fake;\n";
        assert_eq!(circles(&[("a.rs", tested), ("b.rs", "use crate::a::A;")]), [""; 0]);
    }
}
