//! Passing a request on to another server as it is, with its upgrade: after a 101 the two connections are joined and
//! bytes flow both ways until both sides have ended.

use http::{HeaderMap, HeaderName, Request, Response, StatusCode, Version, header};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Why a request could not be passed on.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("the other server did not answer: {0}")]
    Http(#[from] hyper::Error),
}

/// Headers that speak of one connection only (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Whether the request asks for another protocol (`Connection: Upgrade`, in any case, among other tokens).
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let tokens = headers.get_all(header::CONNECTION).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
    headers.contains_key(header::UPGRADE) && tokens.into_iter().any(|t| t.trim().eq_ignore_ascii_case("upgrade"))
}

/// Whether the request asks for the named protocol.
pub fn asks_for(headers: &HeaderMap, protocol: &str) -> bool {
    let asked = headers.get_all(header::UPGRADE).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
    is_upgrade(headers) && asked.into_iter().any(|p| p.trim().eq_ignore_ascii_case(protocol))
}

/// Removes what speaks of the connection that a message came over.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Sends the request over a connection of its own and gives the answer. The request's URI must be in origin form (path
/// and query), and it must have a `Host`. If both sides agree on an upgrade, the answer is the 101
/// and the connections are joined in the background once the caller has sent it.
pub async fn forward<B, IO>(mut request: Request<B>, io: IO) -> Result<Response<Incoming>, ForwardError>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let upgrade = is_upgrade(request.headers());
    let near = upgrade.then(|| hyper::upgrade::on(&mut request));
    if !upgrade {
        strip_hop_by_hop(request.headers_mut());
    }
    *request.version_mut() = Version::HTTP_11;
    let mut response = send(request, io).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        strip_hop_by_hop(response.headers_mut());
        return Ok(response);
    }
    if let Some(near) = near {
        let far = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            match tokio::try_join!(near, far) {
                Ok((near, far)) => join(TokioIo::new(near), TokioIo::new(far)).await,
                Err(error) => tracing::debug!(%error, "an upgraded connection ended before it began"),
            }
        });
    }
    Ok(response)
}

/// Sends one request over a connection of its own, which lives as long as the answer's body or its upgrade.
pub async fn send<B, IO>(request: Request<B>, io: IO) -> Result<Response<Incoming>, ForwardError>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to another server ended");
        }
    });
    Ok(sender.send_request(request).await?)
}

/// Copies bytes both ways until both sides have ended or one has failed. Never fails: how a joined connection ends is
/// the business of its two ends.
pub async fn join(mut near: impl AsyncRead + AsyncWrite + Unpin, mut far: impl AsyncRead + AsyncWrite + Unpin) {
    const BUFFER: usize = 32 << 10;
    if let Err(error) = tokio::io::copy_bidirectional_with_sizes(&mut near, &mut far, BUFFER, BUFFER).await {
        tracing::debug!(%error, "a joined connection ended");
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http_body_util::{BodyExt, Empty, Full};
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// The far server: upgrades to "echo", else answers with the path and the connection header it saw.
    fn far() -> DuplexStream {
        let (client, server) = duplex(1 << 16);
        let service = service_fn(async |mut request: Request<Incoming>| {
            if !asks_for(request.headers(), "echo") {
                let seen = format!("{} {}", request.uri(), request.headers().contains_key(header::CONNECTION));
                return Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(seen))));
            }
            tokio::spawn(async move {
                let io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
                let (mut from, mut to) = tokio::io::split(io);
                tokio::io::copy(&mut from, &mut to).await.unwrap();
                to.shutdown().await.unwrap();
            });
            let answer = Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "echo");
            Ok(answer.body(Full::default()).unwrap())
        });
        serve(server, service);
        client
    }

    fn serve<S, B>(io: DuplexStream, service: S)
    where
        S: hyper::service::Service<
                Request<Incoming>,
                Response = Response<B>,
                Error: Into<Box<dyn std::error::Error + Send + Sync>>,
            > + Send
            + 'static,
        S::Future: Send,
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service);
        tokio::spawn(connection.with_upgrades());
    }

    #[tokio::test]
    async fn requests_and_upgrades_pass() {
        let proxy = || {
            let (client, server) = duplex(1 << 16);
            serve(server, service_fn(|request: Request<Incoming>| forward(request, far())));
            client
        };
        let request = Request::get("/a?b=c").header("host", "x").header("connection", "keep-alive");
        let plain = send(request.body(Empty::<Bytes>::new()).unwrap(), proxy()).await.unwrap();
        assert_eq!(plain.into_body().collect().await.unwrap().to_bytes(), "/a?b=c false");

        let request = Request::get("/").header("host", "x").header("connection", "Upgrade").header("upgrade", "echo");
        let mut upgraded = send(request.body(Empty::<Bytes>::new()).unwrap(), proxy()).await.unwrap();
        assert_eq!(upgraded.status(), 101);
        let mut io = TokioIo::new(hyper::upgrade::on(&mut upgraded).await.unwrap());
        io.write_all(b"hello").await.unwrap();
        io.shutdown().await.unwrap();
        let mut back = String::new();
        io.read_to_string(&mut back).await.unwrap();
        assert_eq!(back, "hello");
    }
}
