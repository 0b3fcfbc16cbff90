//! Which providers the values below a storage key have.

use std::sync::Arc;

use api::kinds::built_in;

use crate::{
    kms::Plugin,
    provider::{ENCRYPTED, NOT_PLAIN, Providers},
};

/// A resource as a configuration names it: `secrets`, `deployments.apps`, and with wildcards `*.`, `*.apps`, `*.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub group: String,
    pub plural: String,
}

impl Resource {
    pub fn parse(text: &str) -> Self {
        let (plural, group) = text.split_once('.').unwrap_or((text, ""));
        Resource { group: group.to_owned(), plural: plural.to_owned() }
    }

    fn covers(&self, group: &str, plural: &str) -> bool {
        (self.group == "*" || self.group == group) && (self.plural == "*" || self.plural == plural)
    }

    /// Whether an entry for this one, standing earlier, leaves nothing to an entry for the other.
    pub fn masks(&self, later: &Resource) -> bool {
        self.plural == "*" && self != later && self.covers(&later.group, &later.plural)
    }

    /// As the configuration has it.
    pub fn text(&self) -> String {
        match (self.group.as_str(), self.plural.as_str()) {
            ("", "*") => "*.".to_owned(),
            ("", plural) => plural.to_owned(),
            (group, plural) => format!("{plural}.{group}"),
        }
    }
}

/// The providers of every resource that has some.
#[derive(Debug, Default)]
pub struct Table {
    /// Those that name a resource first, then wildcards, the most general last.
    rules: Vec<(Resource, Arc<Providers>)>,
    plugins: Vec<Arc<Plugin>>,
}

impl Table {
    /// A name counts before `*.group`, and that before `*.*`, in whatever order they stand.
    pub fn new(mut rules: Vec<(Resource, Arc<Providers>)>, plugins: Vec<Arc<Plugin>>) -> Self {
        rules.sort_by_key(|(resource, _)| (resource.group == "*", resource.plural == "*"));
        Table { rules, plugins }
    }

    /// The plugins that its providers ask.
    pub fn plugins(&self) -> &[Arc<Plugin>] {
        &self.plugins
    }

    /// The providers of the value at a key (`None` where it is stored as it is), and the length of the beginning that other
    /// keys with the same answer share.
    pub fn of(&self, key: &str) -> (Option<&Arc<Providers>>, usize) {
        const ROOT: usize = "/registry/".len();
        if let Some((prefix, definition)) = built_in().of_key(key) {
            return (self.find(&definition.storage.0, &definition.plural), ROOT + prefix.len() + 1);
        }
        // Custom kinds are stored below their group, which has a dot; what is neither has no REST API.
        let mut steps = key.get(ROOT..).unwrap_or("").splitn(3, '/');
        match (steps.next(), steps.next(), steps.next()) {
            (Some(group), Some(plural), Some(_)) if group.contains('.') => {
                (self.find(group, plural), ROOT + group.len() + plural.len() + 2)
            }
            _ => (None, key.len()),
        }
    }

    fn find(&self, group: &str, plural: &str) -> Option<&Arc<Providers>> {
        self.rules.iter().find(|(resource, _)| resource.covers(group, plural)).map(|(_, providers)| providers)
    }
}

/// The resource of the value at a key that has providers, `deployments.apps`.
pub fn resource(key: &str) -> String {
    let of = |group: &str, plural: &str| Resource { group: group.to_owned(), plural: plural.to_owned() }.text();
    if let Some((_, definition)) = built_in().of_key(key) {
        return of(&definition.storage.0, &definition.plural);
    }
    let mut steps = key.get("/registry/".len()..).unwrap_or("").split('/');
    of(steps.next().unwrap_or(""), steps.next().unwrap_or(""))
}

/// Reads a value that has no providers: it is not encrypted.
pub fn plain(stored: &[u8]) -> Result<(), String> {
    if stored.starts_with(ENCRYPTED) { Err(NOT_PLAIN.to_owned()) } else { Ok(()) }
}
