//! What is served: the built-in kinds and, at run time, custom ones. Looked up by path, by kind and by storage key.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use api::kind::Definition;
use parking_lot::RwLock;

/// Every kind in every version, replaceable as a whole.
pub struct Kinds {
    table: RwLock<Arc<Table>>,
}

/// One picture of what is served.
#[derive(Default)]
pub struct Table {
    pub all: Vec<Arc<Definition>>,
    by_plural: HashMap<String, HashMap<String, Vec<Arc<Definition>>>>,
    by_prefix: HashMap<String, Arc<Definition>>,
    /// The versions of each group.
    versions: HashMap<String, HashSet<String>>,
}

impl Table {
    fn new(all: Vec<Arc<Definition>>) -> Self {
        let mut table = Table::default();
        for definition in &all {
            let groups = table.by_plural.entry(definition.plural.clone()).or_default();
            groups.entry(definition.group.clone()).or_default().push(definition.clone());
            table.versions.entry(definition.group.clone()).or_default().insert(definition.version.clone());
            let stored = definition.storage == (definition.group.clone(), definition.version.clone());
            if stored {
                table.by_prefix.insert(definition.storage_prefix.clone(), definition.clone());
            }
        }
        table.all = all;
        table
    }

    /// Whether anything is served in this version of a group.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.versions.get(group).is_some_and(|versions| versions.contains(version))
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Definition>> {
        self.by_plural.get(plural)?.get(group)?.iter().find(|d| d.version == version)
    }

    /// The storage prefix that a key begins with, and the definition its objects are stored as.
    pub fn of_key<'k>(&self, key: &'k str) -> Option<(&'k str, &Arc<Definition>)> {
        let rest = key.strip_prefix("/registry/")?;
        let first = rest.find('/')?;
        if let Some(found) = self.by_prefix.get(&rest[..first]) {
            return Some((&rest[..first], found));
        }
        let second = first + 1 + rest[first + 1..].find('/')?;
        self.by_prefix.get(&rest[..second]).map(|found| (&rest[..second], found))
    }
}

impl Kinds {
    pub fn new(all: Vec<Arc<Definition>>) -> Self {
        Kinds { table: RwLock::new(Arc::new(Table::new(all))) }
    }

    pub fn builtin() -> Self {
        Self::new(api::kind::registry::builtin().all().to_vec())
    }

    pub fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Definition>> {
        self.table.read().find(group, version, plural).cloned()
    }

    /// Any version of a resource, preferring the one it is stored as.
    pub fn any_version(&self, group: &str, plural: &str) -> Option<Arc<Definition>> {
        let table = self.table();
        let versions = table.by_plural.get(plural)?.get(group)?;
        let stored = versions.iter().find(|d| d.storage.1 == d.version);
        stored.or(versions.first()).cloned()
    }

    /// Replaces what is served.
    pub fn replace(&self, all: Vec<Arc<Definition>>) {
        *self.table.write() = Arc::new(Table::new(all));
    }
}
