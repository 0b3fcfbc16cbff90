//! What the listener tells authenticators, and what they answer. Authorizers are in `auth`.

use std::{net::SocketAddr, sync::Arc};

use api::status::StatusError;
use futures::future::BoxFuture;
use rustls_pki_types::CertificateDer;

use crate::auth::User;

/// What the listener knows about the connection; an extension of every request that came over the network.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: SocketAddr,
    /// The client's certificates, its own first. The listener has not verified them: an authenticator does.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// Finds out who asks.
pub trait Authenticator: Send + Sync {
    /// `Ok(None)` when the request carries nothing that this authenticator understands; the chain then answers 401.
    /// An authenticator that admits anonymous callers returns `system:anonymous` itself.
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<Arc<User>>, StatusError>>;
}
