//! The kinds that are served: the built-in ones and, at run time, custom ones.

use std::sync::Arc;

use api::{
    kind::{Definition, KindTable},
    kinds::built_in,
};
use parking_lot::RwLock;

/// Every kind in every version, replaceable as a whole.
pub struct Kinds {
    built_in: Arc<KindTable>,
    table: RwLock<Arc<KindTable>>,
}

impl Default for Kinds {
    fn default() -> Self {
        Kinds::new(built_in().clone())
    }
}

impl Kinds {
    /// With these built-in kinds.
    pub fn new(built_in: Arc<KindTable>) -> Self {
        Kinds { table: RwLock::new(built_in.clone()), built_in }
    }

    pub fn table(&self) -> Arc<KindTable> {
        self.table.read().clone()
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Definition>> {
        self.table.read().find(group, version, plural).cloned()
    }

    /// Any version of a resource, preferring the one it is stored as.
    pub fn any_version(&self, group: &str, plural: &str) -> Option<Arc<Definition>> {
        self.table.read().any_version(group, plural).cloned()
    }

    /// The version that a resource is stored as, served or not.
    pub fn stored(&self, group: &str, plural: &str) -> Option<Arc<Definition>> {
        self.table.read().stored(group, plural).cloned()
    }

    /// Whether built-in objects, served or not, have the storage prefix of a custom kind, or built-in kinds its group version: what
    /// is below that is theirs.
    pub fn hide(&self, custom: &Definition) -> bool {
        self.built_in.of_key(&format!("/registry/{}/", custom.storage_prefix)).is_some()
            || self.built_in.serves(&custom.group, &custom.version)
    }

    /// Replaces what is served besides the built-in kinds.
    pub fn replace(&self, custom: Vec<Arc<Definition>>) {
        *self.table.write() = Arc::new(self.built_in.with(custom));
    }
}
