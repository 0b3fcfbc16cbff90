//! The proxy's effects on the kernel: transactions of rules, and connections that are forgotten.

pub mod conntrack;

pub use nft::{ApplyError, transaction};

/// Removes everything the proxy ever wrote.
pub async fn remove() -> Result<(), ApplyError> {
    nft::remove_table(crate::script::TABLE).await
}
