//! A set of kinds, found by path, by kind and by storage key. It never changes: a server that serves other kinds than before
//! takes another table.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::definition::Definition;

#[derive(Default)]
pub struct KindTable {
    all: Vec<Arc<Definition>>,
    bodies: Vec<Arc<Definition>>,
    /// Not served here, but there may be objects.
    unserved: Vec<Arc<Definition>>,
    /// The versions of each resource by plural and group.
    by_plural: HashMap<String, HashMap<String, Vec<Arc<Definition>>>>,
    by_kind: HashMap<String, Vec<Arc<Definition>>>,
    by_prefix: HashMap<String, Arc<Definition>>,
    /// The versions of each group.
    versions: HashMap<String, HashSet<String>>,
}

impl KindTable {
    /// `bodies` are kinds that exist only as the body of a subresource (`Scale`, `Eviction`, `TokenRequest`): they have a
    /// name, no path.
    pub fn new(resources: Vec<Arc<Definition>>, bodies: Vec<Arc<Definition>>) -> Self {
        let mut table = KindTable::default();
        for definition in &resources {
            let groups = table.by_plural.entry(definition.plural.clone()).or_default();
            groups.entry(definition.group.clone()).or_default().push(definition.clone());
            table.versions.entry(definition.group.clone()).or_default().insert(definition.version.clone());
            if !definition.is_converted() {
                table.by_prefix.insert(definition.storage_prefix.clone(), definition.clone());
            } else if definition.is_custom() {
                // Where the version that is stored is not served, any other stands for it.
                table.by_prefix.entry(definition.storage_prefix.clone()).or_insert_with(|| definition.clone());
            }
        }
        for definition in resources.iter().chain(&bodies) {
            table.by_kind.entry(definition.kind.clone()).or_default().push(definition.clone());
        }
        KindTable { all: resources, bodies, ..table }
    }

    /// Knows these kinds by what is stored of them, though they are not served: an older start may have served them, and some
    /// are stored in a version that is not.
    #[must_use]
    pub fn keeping(mut self, unserved: Vec<Arc<Definition>>) -> Self {
        for definition in unserved.iter().filter(|d| !d.is_converted()) {
            self.by_prefix.entry(definition.storage_prefix.clone()).or_insert_with(|| definition.clone());
        }
        self.unserved = unserved;
        self
    }

    /// These kinds and more of them.
    #[must_use]
    pub fn with(&self, more: Vec<Arc<Definition>>) -> Self {
        let table = KindTable::new(self.all.iter().cloned().chain(more).collect(), self.bodies.clone());
        table.keeping(self.unserved.clone())
    }

    /// Every resource that is served, in the order of discovery within each group.
    pub fn all(&self) -> &[Arc<Definition>] {
        &self.all
    }

    /// Whether anything is served in this version of a group.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.versions.get(group).is_some_and(|versions| versions.contains(version))
    }

    /// By the names in a URL: `("apps", "v1", "deployments")`.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Definition>> {
        self.by_plural.get(plural)?.get(group)?.iter().find(|d| d.version == version)
    }

    /// Any version of a resource, preferring the one it is stored as.
    pub fn any_version(&self, group: &str, plural: &str) -> Option<&Arc<Definition>> {
        let versions = self.by_plural.get(plural)?.get(group)?;
        versions.iter().find(|d| d.storage.1 == d.version).or(versions.first())
    }

    /// The version that a resource is stored as, served or not.
    pub fn stored(&self, group: &str, plural: &str) -> Option<&Arc<Definition>> {
        let named = |d: &&Arc<Definition>| d.group == group && d.plural == plural && !d.is_converted();
        self.any_version(group, plural).filter(|d| !d.is_converted()).or_else(|| self.unserved.iter().find(named))
    }

    /// By the names in an object: `("apps", "v1", "Deployment")`; finds bodies of subresources too.
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Definition>> {
        self.by_kind.get(kind)?.iter().find(|d| d.group == group && d.version == version)
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
