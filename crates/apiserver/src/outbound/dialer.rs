//! Requests to other servers; what goes wrong is said as upstream says it.

use std::sync::Arc;

use api::status::StatusError;
use dialer::{DialError, Endpoint};
use http::{Request, Response};
use hyper::body::Incoming;

use crate::http::body::Body;

/// Reaches servers of one trust: those whose certificates come from the same authorities, or those without TLS.
pub struct Dialer(dialer::Dialer<Body>);

impl Dialer {
    /// `tls` says which authorities are believed and which certificate is shown.
    pub fn tls(tls: Arc<rustls::ClientConfig>) -> Self {
        Dialer(dialer::Dialer::tls(tls))
    }

    pub fn plain() -> Self {
        Dialer(dialer::Dialer::plain())
    }

    /// Sends a request of our own over a connection of its own; an upgrade stays with the answer.
    pub async fn open(&self, to: &Endpoint, request: Request<Body>) -> Result<Response<Incoming>, StatusError> {
        self.0.open(to, request).await.map_err(unanswered)
    }

    /// Passes a client's request on. An upgrade joins the two connections.
    pub async fn forward(&self, to: &Endpoint, request: Request<Body>) -> Result<Response<Incoming>, StatusError> {
        self.0.forward(to, request).await.map_err(unanswered)
    }
}

/// An error that upstream gives as a bare message.
pub fn bare(message: String) -> StatusError {
    StatusError::new(500, "", message)
}

/// The reason why a server was not reached, without the dialer's words before it.
pub fn why(error: &StatusError) -> &str {
    error.message.strip_prefix("error dialing backend: ").unwrap_or(&error.message)
}

fn unanswered(error: DialError) -> StatusError {
    match error {
        DialError::Name(error) => StatusError::internal(error),
        error => bare(format!("error dialing backend: {error}")),
    }
}
