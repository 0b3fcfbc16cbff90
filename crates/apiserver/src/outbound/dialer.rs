//! Requests to other servers; what goes wrong is said as upstream says it.

use std::sync::Arc;

use api::status::StatusError;
use dialer::{DialError, Endpoint};
use http::{Request, Response};
use hyper::body::Incoming;

use super::handshake;
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

    /// Takes the end of a TLS connection for one, also where the other side has not announced it.
    #[must_use]
    pub fn taking_unannounced_ends(self) -> Self {
        Dialer(self.0.taking_unannounced_ends())
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
        DialError::Tls(error) => bare(format!("error dialing backend: {}", handshake::words(&error))),
        DialError::Refused { to, source } => {
            let words = lookup(&to, &source).unwrap_or_else(|| DialError::Refused { to, source }.to_string());
            bare(format!("error dialing backend: {words}"))
        }
        error => bare(format!("error dialing backend: {error}")),
    }
}

/// Go's words for a name that stands for no address.
fn lookup(to: &str, error: &std::io::Error) -> Option<String> {
    let text = error.to_string();
    let why = match text.strip_prefix("failed to lookup address information: ")? {
        "Name or service not known" | "No address associated with hostname" => "no such host",
        why => why,
    };
    let host = to.rsplit_once(':').map_or(to, |(host, _)| host);
    Some(format!("dial tcp: lookup {host}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_not_reached_have_gos_words() {
        let check = |source: std::io::Error, expected: &str| {
            let error = unanswered(DialError::Refused { to: "a.b:443".to_owned(), source });
            assert_eq!(why(&error), expected);
        };
        let resolved = |why: &str| std::io::Error::other(format!("failed to lookup address information: {why}"));
        check(resolved("Name or service not known"), "dial tcp: lookup a.b: no such host");
        check(
            resolved("Temporary failure in name resolution"),
            "dial tcp: lookup a.b: Temporary failure in name resolution",
        );
        check(std::io::ErrorKind::ConnectionRefused.into(), "dial tcp a.b:443: connect: connection refused");
    }
}
