//! The facts about a connection that the listener tells authenticators, and their answers. Authorizers are in `auth`.

use std::sync::Arc;

use api::status::StatusError;
use futures::future::BoxFuture;

/// The listener's facts about the connection; an extension of every request that came over the network. The listener
/// has not verified the certificates: an authenticator does.
pub use listener::Peer;

use crate::auth::{User, authn::token::Note};

/// The user who asks, and the notes for the audit about how that was found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub user: Arc<User>,
    pub notes: Arc<[Note]>,
}

impl From<Arc<User>> for Known {
    fn from(user: Arc<User>) -> Self {
        Known { user, notes: Arc::default() }
    }
}

/// Why nobody is known by a request, and the notes for the audit about what it showed.
#[derive(Debug)]
pub struct Stranger {
    pub error: StatusError,
    pub notes: Vec<Note>,
}

impl From<StatusError> for Stranger {
    fn from(error: StatusError) -> Self {
        Stranger { error, notes: Vec::new() }
    }
}

/// Finds out who asks.
pub trait Authenticator: Send + Sync {
    /// `Ok(None)` when the request carries nothing that this authenticator understands; the chain then answers 401.
    /// An authenticator that admits anonymous callers returns `system:anonymous` itself.
    fn authenticate<'a>(&'a self, request: &'a http::request::Parts) -> BoxFuture<'a, Result<Option<Known>, Stranger>>;
}
