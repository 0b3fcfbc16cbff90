//! The facts about a connection that the listener tells authenticators, and their answers. Authorizers are in `auth`.

use std::sync::Arc;

use api::status::StatusError;
use futures::future::BoxFuture;

/// The listener's facts about the connection; an extension of every request that came over the network. The listener
/// has not verified the certificates: an authenticator does.
pub use listener::Peer;

use crate::auth::User;

/// Finds out who asks.
pub trait Authenticator: Send + Sync {
    /// `Ok(None)` when the request carries nothing that this authenticator understands; the chain then answers 401.
    /// An authenticator that admits anonymous callers returns `system:anonymous` itself.
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<Arc<User>>, StatusError>>;
}
