//! Changes of a table as commands in an order that the kernel takes. Pure.

use std::{collections::BTreeMap, fmt::Write};

/// Elements in one command. More make nft's parser slow, fewer make many commands.
const BATCH: usize = 500;

/// One transaction in the making. Its parts run in the order in which they depend on each other: elements that go
/// (they name chains), sets and chains that come or change, elements that come, chains and sets that go.
#[derive(Debug)]
pub struct Script {
    /// The table, with its family.
    table: &'static str,
    /// By map or set.
    leaving: BTreeMap<String, Vec<String>>,
    sets: String,
    chains: String,
    rules: String,
    coming: BTreeMap<String, Vec<String>>,
    leaving_chains: String,
    leaving_sets: String,
}

impl Script {
    pub fn new(table: &'static str) -> Self {
        Script {
            table,
            leaving: BTreeMap::new(),
            sets: String::new(),
            chains: String::new(),
            rules: String::new(),
            coming: BTreeMap::new(),
            leaving_chains: String::new(),
            leaving_sets: String::new(),
        }
    }

    /// Leads an element of a map or set from one value to another; `None` is its absence. In plain sets a value is empty.
    pub fn element(&mut self, map: &str, key: &str, before: Option<&str>, now: Option<&str>) {
        if before == now {
            return;
        }
        if before.is_some() {
            self.leaving.entry(map.to_owned()).or_default().push(key.to_owned());
        }
        let coming = match now {
            None => return,
            Some("") => key.to_owned(),
            Some(value) => format!("{key} : {value}"),
        };
        self.coming.entry(map.to_owned()).or_default().push(coming);
    }

    /// Leads a chain from some rules to others, a line each; `None` is its absence.
    pub fn chain(&mut self, name: &str, before: Option<&str>, now: Option<&str>) {
        if before == now {
            return;
        }
        let table = self.table;
        // All chains that go are emptied before any of them is deleted, because they may jump to each other. Writing to a
        // text cannot fail.
        let _ = match before {
            None => writeln!(self.chains, "add chain {table} {name}"),
            Some(_) => writeln!(self.chains, "flush chain {table} {name}"),
        };
        for rule in now.iter().flat_map(|rules| rules.lines()) {
            let _ = writeln!(self.rules, "add rule {table} {name} {rule}");
        }
        if now.is_none() {
            let _ = writeln!(self.leaving_chains, "delete chain {table} {name}");
        }
    }

    /// Makes a set or removes it. Its declaration never changes: who wants another one names another set.
    pub fn set(&mut self, name: &str, before: Option<&str>, now: Option<&str>) {
        let table = self.table;
        let _ = match (before, now) {
            (None, Some(declaration)) => writeln!(self.sets, "add set {table} {name} {{ {declaration} }}"),
            (Some(_), None) => writeln!(self.leaving_sets, "delete set {table} {name}"),
            _ => Ok(()),
        };
    }

    pub fn is_empty(&self) -> bool {
        self.text().is_empty()
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        self.elements(&mut text, "delete", &self.leaving);
        for part in [&self.sets, &self.chains, &self.rules] {
            text.push_str(part);
        }
        self.elements(&mut text, "add", &self.coming);
        text.push_str(&self.leaving_chains);
        text.push_str(&self.leaving_sets);
        text
    }

    fn elements(&self, text: &mut String, verb: &str, by_map: &BTreeMap<String, Vec<String>>) {
        for (map, elements) in by_map {
            for batch in elements.chunks(BATCH) {
                let _ = writeln!(text, "{verb} element {} {map} {{ {} }}", self.table, batch.join(", "));
            }
        }
    }
}
