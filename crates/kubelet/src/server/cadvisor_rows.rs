//! The things that `/metrics/cadvisor` is about, with the labels that all of their rows have.

use std::{collections::BTreeMap, fmt::Write as _};

use api::rules::metrics_text::escaped;

use crate::node::{
    counters::{Carried, Counters},
    open_files::OpenFiles,
};

pub const COUNTER: &str = "counter";
pub const GAUGE: &str = "gauge";

/// One thing that is counted.
#[derive(Debug, Default)]
pub struct Counted {
    /// Its cgroup.
    pub id: String,
    pub container: String,
    pub image: String,
    pub name: String,
    pub namespace: String,
    pub pod: String,
    pub started: Option<i64>,
    /// How often it ran out of memory.
    pub ooms: u64,
    pub counters: Counters,
    pub open: OpenFiles,
    pub network: BTreeMap<String, Carried>,
}

impl Counted {
    /// The labels that all metrics have, with others in their place of the alphabet.
    pub fn labels(&self, more: &[(&str, &str)]) -> String {
        let own = [
            ("container", &*self.container),
            ("id", &*self.id),
            ("image", &*self.image),
            ("name", &*self.name),
            ("namespace", &*self.namespace),
            ("pod", &*self.pod),
        ];
        let mut all = [&own[..], more].concat();
        all.sort_unstable();
        let texts: Vec<_> = all.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        format!("{{{}}}", texts.join(","))
    }
}

pub fn head(out: &mut String, name: &str, sort: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {sort}");
}
