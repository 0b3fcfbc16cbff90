//! The way to another API server: where it is, how its certificate is checked, and requests of our own to it.

use std::sync::Arc;

use api::status::StatusError;
use bytes::Bytes;
use clock::Duration;
use dialer::Endpoint;
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use pki::Serving;

use super::{identity, registrations::Trust};
use crate::{auth::User, http::body::Body, outbound::dialer::Dialer};

/// An answer to a request of our own is there by then.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Connections to servers of this trust, on which `shown` is the front proxy's certificate. The error is a setting's.
pub fn dialer(trust: &Trust, shown: Option<&Arc<Serving>>) -> Result<Dialer, String> {
    let shown = shown.ok_or("this server has no certificate to show to other API servers")?.clone();
    let tls = match trust {
        Trust::Anybody => pki::client_config_believing_all(Some(shown), &["http/1.1"]),
        Trust::Authorities(none) if none.is_empty() => pki::client_config_of_machine(Some(shown), &["http/1.1"]),
        Trust::Authorities(pem) => pki::client_config_of_bundle(pem, Some(shown), &["http/1.1"]),
    };
    Ok(Dialer::tls(Arc::new(tls.map_err(|error| format!("unable to load root certificates: {error}"))?)))
}

/// Asks for a page in the name of a user. Nothing that it redirects to is followed.
pub async fn get(
    dialer: &Dialer,
    to: &Endpoint,
    path: &str,
    user: &User,
    headers: &[(header::HeaderName, &str)],
) -> Result<Response<Incoming>, StatusError> {
    let mut request = Request::get(path).header(header::HOST, to.authority());
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    let mut request = request.body(Body::empty()).map_err(StatusError::internal)?;
    identity::name(request.headers_mut(), user)?;
    let late = |_| StatusError::timeout("context deadline exceeded");
    clock::timeout(PATIENCE, dialer.forward(to, request)).await.map_err(late)?
}

/// A page, read whole within a bound.
pub struct Page {
    pub status: StatusCode,
    pub media_type: String,
    pub etag: String,
    pub bytes: Bytes,
}

/// Reads the answer in the same time again, at most `limit` bytes of it.
pub async fn read(answer: Response<Incoming>, limit: usize) -> Result<Page, StatusError> {
    let (parts, body) = answer.into_parts();
    let text = |name| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let (media_type, etag) = (text(header::CONTENT_TYPE), text(header::ETAG));
    let late = |_| StatusError::timeout("context deadline exceeded");
    let reading = Body::Network(body).read(limit, |_| Ok(()));
    let bytes = clock::timeout(PATIENCE, reading).await.map_err(late)??;
    Ok(Page { status: parts.status, media_type, etag, bytes })
}
