//! Access to objects for the server's own parts (authorizers, admission, bootstrap, special subresources): no
//! authentication, authorization or admission, but the same storage form, defaults, validation and commits.

use std::sync::Arc;

use store::Store;

use crate::kinds::Kinds;

/// The objects of all kinds over the store.
pub struct Core {
    pub store: Arc<dyn Store>,
    pub kinds: Kinds,
}
