//! From one store into another, so that a cluster can change its backend.

use futures::{StreamExt, TryStreamExt, stream};

use crate::{Change, Commit, Entry, Expect, Range, Revision, Store, StoreError};

/// Entries that are read at once, and commits that are under way.
const PAGE: usize = 500;
const IN_FLIGHT: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error(
        "there are keys below {0} already, and what is copied would be mixed with them; choose a place that holds no cluster"
    )]
    NotEmpty(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The extent of a copy.
#[derive(Debug, PartialEq, Eq)]
pub struct Copied {
    pub keys: usize,
    /// The state of the first store that the second one holds.
    pub revision: Revision,
}

/// Copies all keys with the prefix as they are at one revision. Revisions are the new store's own. `lifetime` says how many
/// seconds a key has to live, which no store tells: it begins anew.
pub async fn copy(
    from: &dyn Store,
    to: &dyn Store,
    prefix: &str,
    lifetime: impl Fn(&str) -> Option<u32>,
) -> Result<Copied, TransferError> {
    if !to.range(Range { limit: 1, ..Range::prefix(prefix) }).await?.entries.is_empty() {
        return Err(TransferError::NotEmpty(prefix.to_owned()));
    }
    let mut range = Range { limit: PAGE, ..Range::prefix(prefix) };
    let mut keys = 0;
    loop {
        let page = from.range(range.clone()).await?;
        keys += page.entries.len();
        let (revision, left) = (page.revision, range.behind(&page));
        let commit = |Entry { key, value, .. }: Entry| {
            let change = Change::Put { value, ttl_seconds: lifetime(&key) };
            to.commit(Commit { key, expect: Expect::Absent, change })
        };
        let commits = stream::iter(page.entries).map(commit).buffer_unordered(IN_FLIGHT);
        commits.try_for_each(|_| std::future::ready(Ok(()))).await?;
        match left {
            Some(left) => range = left,
            None => return Ok(Copied { keys, revision }),
        }
    }
}
