//! The TLS listener: HTTP/2 and HTTP/1.1 by ALPN, client certificates handed on to the authenticator.

use std::{future::poll_fn, io, net::SocketAddr, pin::Pin, sync::Arc, task::Context, time::Duration};

use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    Server,
    access::Peer,
    body::Body,
    gather::{Gathered, Turns},
};

/// A connection that has not finished its TLS handshake by then is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open requests may take to end once the listener stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const STREAMS_PER_CONNECTION: u32 = 1000;

/// A listener at work. Dropping it closes the listener; [`Listening::stop`] also waits for open requests.
pub struct Listening {
    pub address: SocketAddr,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Listening {
    /// Takes no more connections and waits, up to a bound, until those that are open are done.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub async fn listen(server: Server, address: SocketAddr, tls: Arc<rustls::ServerConfig>) -> io::Result<Listening> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let task = tokio::spawn(accept(listener, server, with_alpn(tls), stop.clone()));
    Ok(Listening { address, stop, task: Some(task) })
}

fn with_alpn(tls: Arc<rustls::ServerConfig>) -> TlsAcceptor {
    if !tls.alpn_protocols.is_empty() {
        return TlsAcceptor::from(tls);
    }
    let mut tls = (*tls).clone();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(tls))
}

async fn accept(listener: TcpListener, server: Server, tls: TlsAcceptor, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, address)) => {
                    connections.spawn(serve(socket, address, server.clone(), tls.clone(), stop.clone()));
                }
                // Out of file descriptors or the like: others must finish first.
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    clock::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
    drop(listener);
    let _ = clock::timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

async fn serve(socket: TcpStream, address: SocketAddr, server: Server, tls: TlsAcceptor, stop: CancellationToken) {
    let _ = socket.set_nodelay(true);
    let stream = match clock::timeout(HANDSHAKE_TIMEOUT, tls.accept(socket)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%address, %error, "TLS handshake failed"),
        Err(_) => return tracing::debug!(%address, "TLS handshake timed out"),
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = Peer { address, certificates: certificates.iter().map(|c| c.clone().into_owned()).collect() };
    let turns = Turns::default();
    // Upgraded connections are HTTP/1.1, and whoever writes to those expects his bytes to leave at once.
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        converse(Gathered::new(stream, turns.clone()), turns, peer, server, stop).await;
    } else {
        converse(stream, turns, peer, server, stop).await;
    }
}

/// Answers the requests of one connection until it ends, or until those that are open are done once the listener stops.
async fn converse<S>(stream: S, turns: Turns, peer: Peer, server: Server, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let address = peer.address;
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::Network);
        request.extensions_mut().insert(peer.clone());
        let server = server.clone();
        async move { Ok::<_, std::convert::Infallible>(server.handle(request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(32));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .initial_stream_window_size(256 * 1024)
        .initial_connection_window_size(4 * 1024 * 1024)
        .max_send_buf_size(1024 * 1024)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(15));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let poll = |connection: Pin<&mut _>, cx: &mut Context<'_>| {
        turns.next();
        Future::poll(connection, cx)
    };
    let ended = tokio::select! {
        ended = poll_fn(|cx| poll(connection.as_mut(), cx)) => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            poll_fn(|cx| poll(connection.as_mut(), cx)).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%address, %error, "connection ended");
    }
}
