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
    /// Keys of files; one may be in several.
    pub fn own(keys: Vec<pki::VerifyingKey>) -> Self {
        let mut all: Vec<Arc<Key>> = Vec::new();
        for public in keys {
            if !all.iter().any(|known| known.public.id == public.id) {
                all.push(Arc::new(Key { public, hidden: false }));
            }
        }
        Keys::Own(all.into())
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
