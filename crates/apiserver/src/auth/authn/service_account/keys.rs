//! The public keys under which tokens of service accounts are believed.

use std::sync::Arc;

use super::{
    external::External,
    key::{Key, fitting},
};

/// Where keys come from.
pub enum Keys {
    Own(Arc<[Arc<Key>]>),
    External(Arc<External>),
}

impl Keys {
    pub fn own(keys: Vec<pki::VerifyingKey>) -> Self {
        Keys::Own(keys.into_iter().map(|key| Arc::new(Key { public: key, hidden: false })).collect())
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
