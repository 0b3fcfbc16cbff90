//! Requests to other servers: over TLS or without, in bounded time, over connections that are kept for the next request.

use std::sync::Arc;

use api::status::StatusError;
use clock::{Duration, Instant};
use http::{Request, Response, Version};
use hyper::{
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use stream::upgrade::{self, strip_hop_by_hop};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::endpoint::Endpoint;
use crate::http::body::Body;

/// Connecting takes no longer, nor does a TLS handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection that had no request for this time takes none any more.
const IDLE: Duration = Duration::from_secs(60);
/// Connections that are kept; one more is closed with its answer.
const IDLE_MAX: usize = 64;

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Reaches servers of one trust: those whose certificates come from the same authorities, or those without TLS.
pub struct Dialer {
    tls: Option<TlsConnector>,
    kept: Mutex<Vec<Kept>>,
}

/// A connection that may take another request.
struct Kept {
    to: Endpoint,
    sender: SendRequest<Body>,
    since: Instant,
}

impl Dialer {
    /// `tls` says which authorities are believed and which certificate is shown. It offers no protocol but HTTP/1.1, or
    /// none: upgrades need it.
    pub fn tls(tls: Arc<rustls::ClientConfig>) -> Self {
        Dialer { tls: Some(TlsConnector::from(tls)), kept: Mutex::default() }
    }

    pub fn plain() -> Self {
        Dialer { tls: None, kept: Mutex::default() }
    }

    async fn dial(&self, to: &Endpoint) -> Result<Box<dyn Io>, StatusError> {
        let failed =
            |why: &dyn std::fmt::Display| bare(format!("error dialing backend: dial tcp {}: {why}", to.authority()));
        let connected = clock::timeout(DIAL_TIMEOUT, TcpStream::connect((to.host.as_str(), to.port))).await;
        let tcp = connected.map_err(|_| failed(&"i/o timeout"))?.map_err(|error| match error.kind() {
            std::io::ErrorKind::ConnectionRefused => failed(&"connect: connection refused"),
            _ => failed(&error),
        })?;
        // Terminals send single bytes.
        let _ = tcp.set_nodelay(true);
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        let name =
            ServerName::try_from(to.server_name.as_ref().unwrap_or(&to.host).clone()).map_err(StatusError::internal)?;
        let done = clock::timeout(DIAL_TIMEOUT, tls.connect(name, tcp)).await;
        let done = done.map_err(|_| bare("error dialing backend: net/http: TLS handshake timeout".to_owned()))?;
        let stream = done.map_err(|error| bare(format!("error dialing backend: tls: {error}")))?;
        Ok(Box::new(stream))
    }

    /// Sends a request of our own over a connection of its own; an upgrade stays with the answer.
    pub async fn open(&self, to: &Endpoint, request: Request<Body>) -> Result<Response<Incoming>, StatusError> {
        upgrade::send(request, self.dial(to).await?).await.map_err(|error| unanswered(&error))
    }

    /// Passes a client's request on. An upgrade joins the two connections.
    pub async fn forward(&self, to: &Endpoint, mut request: Request<Body>) -> Result<Response<Incoming>, StatusError> {
        if upgrade::is_upgrade(request.headers()) {
            return upgrade::forward(request, self.dial(to).await?).await.map_err(|error| unanswered(&error));
        }
        strip_hop_by_hop(request.headers_mut());
        *request.version_mut() = Version::HTTP_11;
        while let Some(mut sender) = self.take(to) {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.keep(to, sender, response)),
                // The other side closed the connection before it saw anything of the request.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(unanswered(&error.into_error())),
                },
            }
        }
        let (mut sender, connection) =
            handshake(TokioIo::new(self.dial(to).await?)).await.map_err(|error| unanswered(&error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to another server ended");
            }
        });
        let response = sender.send_request(request).await.map_err(|error| unanswered(&error))?;
        Ok(self.keep(to, sender, response))
    }

    /// A kept connection whose last answer has been read.
    fn take(&self, to: &Endpoint) -> Option<SendRequest<Body>> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|one| one.to == *to && one.sender.is_ready() && one.since.elapsed() < IDLE)?;
        Some(kept.swap_remove(at).sender)
    }

    fn keep(&self, to: &Endpoint, sender: SendRequest<Body>, mut response: Response<Incoming>) -> Response<Incoming> {
        strip_hop_by_hop(response.headers_mut());
        let mut kept = self.kept.lock();
        kept.retain(|one| !one.sender.is_closed() && one.since.elapsed() < IDLE);
        if kept.len() < IDLE_MAX {
            kept.push(Kept { to: to.clone(), sender, since: Instant::now() });
        }
        response
    }
}

/// An error that upstream gives as a bare message.
pub fn bare(message: String) -> StatusError {
    StatusError::new(500, "", message)
}

fn unanswered(error: &dyn std::fmt::Display) -> StatusError {
    bare(format!("error dialing backend: {error}"))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use hyper::{server::conn::http1, service::service_fn};
    use tokio::{net::TcpListener, sync::oneshot};

    use super::*;

    /// A server that counts its connections. Each one answers two requests; the end of the first is told.
    async fn server(connections: Arc<AtomicUsize>) -> (Endpoint, oneshot::Receiver<()>) {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = tcp.local_addr().unwrap().port();
        let (end, ended) = oneshot::channel();
        let mut end = Some(end);
        tokio::spawn(async move {
            loop {
                let (io, _) = tcp.accept().await.unwrap();
                connections.fetch_add(1, Ordering::Relaxed);
                let answered = AtomicUsize::new(0);
                let service = service_fn(|_: Request<Incoming>| {
                    let mut response = Response::new(Body::from("ok"));
                    if answered.fetch_add(1, Ordering::Relaxed) == 1 {
                        response.headers_mut().insert("connection", http::HeaderValue::from_static("close"));
                    }
                    async move { Ok::<_, Infallible>(response) }
                });
                http1::Builder::new().serve_connection(TokioIo::new(io), service).await.unwrap();
                end.take().map(|end| end.send(()));
            }
        });
        (Endpoint::new("127.0.0.1", port), ended)
    }

    #[tokio::test]
    async fn a_connection_is_kept_for_the_next_request_until_it_ends() {
        let connections = Arc::new(AtomicUsize::new(0));
        let (to, ended) = server(connections.clone()).await;
        let dialer = Dialer::plain();
        let ask = async || {
            let answer = dialer.forward(&to, Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
            assert!(answer.headers().get("connection").is_none(), "that is about one connection only");
            let text = Body::Network(answer.into_body()).collect(100).await.unwrap();
            assert_eq!(text, "ok");
            connections.load(Ordering::Relaxed)
        };
        assert_eq!((ask().await, ask().await), (1, 1));
        ended.await.unwrap();
        assert_eq!(ask().await, 2);
    }
}
