//! One public key under which tokens of service accounts are believed.

use std::sync::Arc;

/// One key, and whether others are told of it.
pub struct Key {
    pub public: pki::VerifyingKey,
    /// It is for tokens of former times, and others are not told of it.
    pub hidden: bool,
}

/// The keys that the name in a token's header may mean; all, where it names none.
pub(super) fn fitting(keys: &[Arc<Key>], id: Option<&str>) -> Vec<Arc<Key>> {
    keys.iter().filter(|key| id.is_none_or(|id| key.public.id == id)).cloned().collect()
}
