//! The public keys under which tokens of service accounts are believed.

use std::sync::Arc;

use jsonwebtoken::{Algorithm, DecodingKey};

use super::external::External;

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

/// Where keys come from.
pub enum Keys {
    Own(Arc<[Arc<Key>]>),
    External(Arc<External>),
}

impl Keys {
    pub fn own(keys: Vec<pki::VerifyingKey>) -> Self {
        Keys::Own(keys.into_iter().map(|key| Arc::new(Key::new(key, false))).collect())
    }

    /// The keys that a token's header may mean; all, where it names none.
    pub async fn of_id(&self, id: Option<&str>) -> Vec<Arc<Key>> {
        match self {
            Keys::Own(keys) => fitting(keys, id),
            Keys::External(external) => external.keys(id).await,
        }
    }

    /// The keys that others are told of, and how many seconds they may remember them.
    pub fn published(&self) -> (Vec<pki::VerifyingKey>, u64) {
        const USUAL_SECONDS: u64 = 3600;
        let (keys, seconds) = match self {
            Keys::Own(keys) => (keys.clone(), USUAL_SECONDS),
            Keys::External(external) => external.held(),
        };
        (keys.iter().filter(|key| !key.hidden).map(|key| key.public.clone()).collect(), seconds)
    }
}

pub(super) fn fitting(keys: &[Arc<Key>], id: Option<&str>) -> Vec<Arc<Key>> {
    keys.iter().filter(|key| id.is_none_or(|id| key.public.id == id)).cloned().collect()
}
