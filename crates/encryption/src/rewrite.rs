//! Every value that is stored in another form than a write would give it now is written once more, as it is.

use std::sync::Arc;

use store::{Change, Commit, Entry, Expect, Range, Store, StoreError};

use crate::{
    encrypted::{Current, Encrypted},
    provider::ENCRYPTED,
    table::Table,
};

/// Entries that are read at once.
const PAGE: usize = 500;
const REGISTRY: &str = "/registry/";

/// The outcome of the rewriting.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// Values that were written once more.
    pub written: usize,
    /// Values that were in their form already, or that somebody else wrote meanwhile.
    pub right: usize,
    /// Values that nobody here can read, and why; they are left as they are.
    pub unreadable: Vec<String>,
}

/// Goes through the whole store, beside others who write. `lifetime` says how many seconds a key has to live, which no store
/// tells: it begins anew.
pub async fn rewrite(
    below: Arc<dyn Store>,
    table: Arc<Current>,
    lifetime: impl Fn(&str) -> Option<u32>,
) -> Result<Rewritten, StoreError> {
    let above = Encrypted::new(below.clone(), table.clone());
    let mut done = Rewritten::default();
    let mut range = Range { limit: PAGE, ..Range::prefix(REGISTRY) };
    loop {
        let page = below.range(range.clone()).await?;
        for entry in &page.entries {
            if table.get().of(&entry.key).0.is_none() && !entry.value.starts_with(ENCRYPTED) {
                continue;
            }
            match one(&above, &entry.key, &lifetime).await {
                Ok(true) => done.written += 1,
                Ok(false) => done.right += 1,
                Err(unreadable @ StoreError::Unreadable { .. }) => done.unreadable.push(unreadable.to_string()),
                Err(other) => return Err(other),
            }
        }
        // Not the same picture: what is written meanwhile has its form, and history may be forgotten on the way.
        match range.behind(&page) {
            Some(left) => range = Range { revision: None, ..left },
            None => return Ok(done),
        }
    }
}

/// False when there was nothing to do.
async fn one(above: &Encrypted, key: &str, lifetime: impl Fn(&str) -> Option<u32>) -> Result<bool, StoreError> {
    let (Some(Entry { key, value, modified, .. }), _) = above.get(key).await? else { return Ok(false) };
    let entry = Entry { key: key.clone(), value: value.clone(), created: modified, modified };
    if !above.outdated(&entry).await? {
        return Ok(false);
    }
    let change = Change::Put { value, ttl_seconds: lifetime(&key) };
    match above.commit(Commit { key, expect: Expect::Modified(modified), change }).await {
        Ok(_) => Ok(true),
        // Whoever was faster wrote the form of now, or removed it.
        Err(StoreError::Conflict { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Whether the keys of a table are those that a store is encrypted with.
#[derive(Debug, PartialEq, Eq)]
pub enum Known {
    /// They are, or nothing is encrypted.
    Enough,
    /// They open nothing of what is encrypted, such as the value at this key.
    None { key: String },
}

/// Looks at the names of keys that values give, until one is known. A value that was tampered with keeps nobody from starting.
pub async fn known(below: &dyn Store, table: &Table) -> Result<Known, StoreError> {
    let mut range = Range { limit: PAGE, ..Range::prefix(REGISTRY) };
    let mut unknown = None;
    loop {
        let page = below.range(range.clone()).await?;
        for entry in page.entries.iter().filter(|entry| entry.value.starts_with(ENCRYPTED)) {
            if table.of(&entry.key).0.is_some_and(|providers| providers.knows(&entry.value)) {
                return Ok(Known::Enough);
            }
            unknown.get_or_insert_with(|| entry.key.to_string());
        }
        match range.behind(&page) {
            Some(left) => range = left,
            None => return Ok(unknown.map_or(Known::Enough, |key| Known::None { key })),
        }
    }
}
