//! The proxy's effects on the kernel: transactions of rules, and connections that are forgotten.

pub mod conntrack;
pub mod limits;

use nft::Family;
pub use nft::{ApplyError, transaction};

/// Removes everything that the proxy ever wrote with nft.
pub async fn remove() -> Result<(), ApplyError> {
    for family in Family::ALL {
        nft::remove_table(crate::script::table(family)).await?;
    }
    Ok(())
}
