//! One public key under which tokens of service accounts are believed.

use std::sync::Arc;

use jsonwebtoken::{Algorithm, DecodingKey};

/// One key, ready for use.
pub struct Key {
    pub public: pki::VerifyingKey,
    pub algorithm: Algorithm,
    pub key: DecodingKey,
    /// It is for tokens of former times, and others are not told of it.
    pub hidden: bool,
}

impl Key {
    pub fn new(public: pki::VerifyingKey, hidden: bool) -> Self {
        Key { algorithm: public.jwt_algorithm(), key: public.for_jwt(), public, hidden }
    }
}

/// The keys that the name in a token's header may mean; all, where it names none.
pub(super) fn fitting(keys: &[Arc<Key>], id: Option<&str>) -> Vec<Arc<Key>> {
    keys.iter().filter(|key| id.is_none_or(|id| key.public.id == id)).cloned().collect()
}
