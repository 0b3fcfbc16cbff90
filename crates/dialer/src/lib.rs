//! Requests to other servers: over TLS or without, in bounded time, over connections that are kept for the next request.
//! The meaning of a request, and whether it may go there, are not known here.

mod endpoint;
mod unannounced;

use std::sync::Arc;

use clock::{Duration, Instant};
use http::{Request, Response, Version};
use hyper::{
    body::{Body, Incoming},
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

pub use endpoint::Endpoint;
use unannounced::Unannounced;

/// Connecting takes no longer, nor does a TLS handshake.
const PATIENCE: Duration = Duration::from_secs(30);
/// A connection that had no request for this time takes none any more.
const IDLE: Duration = Duration::from_secs(60);
/// Connections that are kept; one more is closed with its answer.
const IDLE_MAX: usize = 64;

/// Why there is no answer, in the words that Go has for it.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("dial tcp {to}: i/o timeout")]
    Late { to: String },
    #[error("dial tcp {to}: {}", connecting(.source))]
    Refused { to: String, source: std::io::Error },
    #[error("the server has no name that a certificate can have")]
    Name(#[source] rustls_pki_types::InvalidDnsNameError),
    #[error("net/http: TLS handshake timeout")]
    LateTls,
    #[error("tls: {0}")]
    Tls(#[source] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Forward(#[from] upgrade::ForwardError),
}

fn connecting(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        _ => error.to_string(),
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Reaches servers of one trust: those whose certificates come from the same authorities, or those without TLS. `B` is the
/// body of its requests.
pub struct Dialer<B> {
    tls: Option<TlsConnector>,
    /// The other side may close a TLS connection without a word.
    unannounced_ends: bool,
    patience: Duration,
    kept: Mutex<Vec<Kept<B>>>,
}

/// A connection that may take another request.
struct Kept<B> {
    to: Endpoint,
    sender: SendRequest<B>,
    since: Instant,
}

impl<B> Dialer<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
{
    /// `tls` says which authorities are believed and which certificate is shown. It offers no protocol but HTTP/1.1, or
    /// none: upgrades need it.
    pub fn tls(tls: Arc<rustls::ClientConfig>) -> Self {
        Dialer { tls: Some(TlsConnector::from(tls)), ..Self::plain() }
    }

    pub fn plain() -> Self {
        Dialer { tls: None, unannounced_ends: false, patience: PATIENCE, kept: Mutex::default() }
    }

    /// Gives connecting, and a TLS handshake, another time than half a minute.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Dialer { patience, ..self }
    }

    /// Takes the end of a TLS connection for one, also where the other side has not announced it.
    #[must_use]
    pub fn taking_unannounced_ends(self) -> Self {
        Dialer { unannounced_ends: true, ..self }
    }

    async fn dial(&self, to: &Endpoint) -> Result<Box<dyn Io>, DialError> {
        let connected = clock::timeout(self.patience, TcpStream::connect((to.host.as_str(), to.port))).await;
        let tcp = connected
            .map_err(|_| DialError::Late { to: to.authority() })?
            .map_err(|source| DialError::Refused { to: to.authority(), source })?;
        listener::attend(&tcp);
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        let name = to.server_name.as_ref().unwrap_or(&to.host).clone();
        let name = ServerName::try_from(name).map_err(DialError::Name)?;
        let done = clock::timeout(self.patience, tls.connect(name, tcp)).await;
        let io = done.map_err(|_| DialError::LateTls)?.map_err(DialError::Tls)?;
        Ok(if self.unannounced_ends { Box::new(Unannounced(io)) } else { Box::new(io) })
    }

    /// Sends a request of our own over a connection of its own; an upgrade stays with the answer.
    pub async fn open(&self, to: &Endpoint, request: Request<B>) -> Result<Response<Incoming>, DialError> {
        Ok(upgrade::send(request, self.dial(to).await?).await?)
    }

    /// Passes a client's request on. An upgrade joins the two connections.
    pub async fn forward(&self, to: &Endpoint, mut request: Request<B>) -> Result<Response<Incoming>, DialError> {
        if upgrade::is_upgrade(request.headers()) {
            return Ok(upgrade::forward(request, self.dial(to).await?).await?);
        }
        strip_hop_by_hop(request.headers_mut());
        let mut response = self.send(to, request).await?;
        strip_hop_by_hop(response.headers_mut());
        Ok(response)
    }

    /// Sends a request that asks for no upgrade. Its URI is in origin form (path and query), and it has a `Host`.
    pub async fn send(&self, to: &Endpoint, mut request: Request<B>) -> Result<Response<Incoming>, DialError> {
        *request.version_mut() = Version::HTTP_11;
        while let Some(mut sender) = self.take(to) {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.keep(to, sender, response)),
                // The other side closed the connection before it saw anything of the request.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let (mut sender, connection) = handshake(TokioIo::new(self.dial(to).await?)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to another server ended");
            }
        });
        let response = sender.send_request(request).await?;
        Ok(self.keep(to, sender, response))
    }

    /// A kept connection whose last answer has been read.
    fn take(&self, to: &Endpoint) -> Option<SendRequest<B>> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|one| one.to == *to && one.sender.is_ready() && one.since.elapsed() < IDLE)?;
        Some(kept.swap_remove(at).sender)
    }

    fn keep(&self, to: &Endpoint, sender: SendRequest<B>, response: Response<Incoming>) -> Response<Incoming> {
        let mut kept = self.kept.lock();
        kept.retain(|one| !one.sender.is_closed() && one.since.elapsed() < IDLE);
        if kept.len() < IDLE_MAX {
            kept.push(Kept { to: to.clone(), sender, since: Instant::now() });
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use bytes::Bytes;
    use http_body_util::{BodyExt, Empty, Full};
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
                    let mut response = Response::new(Full::new(Bytes::from("ok")));
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
            let request = Request::get("/").body(Empty::<Bytes>::new()).unwrap();
            let answer = dialer.forward(&to, request).await.unwrap();
            assert!(answer.headers().get("connection").is_none(), "that is about one connection only");
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
            connections.load(Ordering::Relaxed)
        };
        assert_eq!((ask().await, ask().await), (1, 1));
        ended.await.unwrap();
        assert_eq!(ask().await, 2);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_refuses() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = tcp.local_addr().unwrap().port();
        drop(tcp);
        let request = Request::get("/").body(Empty::<Bytes>::new()).unwrap();
        let said = Dialer::plain().send(&Endpoint::new("127.0.0.1", port), request).await.unwrap_err().to_string();
        assert_eq!(said, format!("dial tcp 127.0.0.1:{port}: connect: connection refused"));
    }
}
