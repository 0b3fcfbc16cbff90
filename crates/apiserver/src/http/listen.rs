//! Where the server listens. How connections are bounded and HTTP is spoken on them is the crate `listener`'s.

use std::{io, net::SocketAddr, sync::Arc};

use http::Request;
use hyper::body::Incoming;
use listener::{Bounds, Listener, Peer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    http::{body::Body, chain},
    router::Router,
};

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

pub async fn listen(router: Arc<Router>, address: SocketAddr, tls: Arc<rustls::ServerConfig>) -> io::Result<Listening> {
    let tcp = TcpListener::bind(address).await?;
    let address = tcp.local_addr()?;
    let stop = CancellationToken::new();
    let figures = router.state.metrics.connections.clone();
    let limits = &router.state.limits;
    let listener = Listener::new(tcp, "API server", Bounds::of_process(2), figures).streams(limits.streams);
    let listener = listener.drain(listener::DRAIN + limits.watch_grace);
    let service = move |peer: Peer| {
        let router = router.clone();
        move |request: Request<Incoming>| {
            let mut request = request.map(|body| Body::Arriving(body.into()));
            request.extensions_mut().insert(peer.clone());
            chain::handle(router.clone(), request)
        }
    };
    let task = tokio::spawn(listener.serve(with_alpn(tls), stop.clone(), service));
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
