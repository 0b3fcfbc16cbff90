//! Controllers of bootstrap tokens, with which new nodes join. A node's certificates are in `certificates`.

pub mod signer;
pub mod token_cleaner;
