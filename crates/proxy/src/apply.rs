//! What the proxy does to the kernel.

pub use nft::{ApplyError, transaction};

/// Removes everything the proxy ever wrote.
pub async fn remove() -> Result<(), ApplyError> {
    nft::remove_table(crate::script::TABLE).await
}
