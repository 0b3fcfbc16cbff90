//! Where the server listens. How connections are bounded and HTTP is spoken on them is the crate `listener`'s.

use std::{io, net::SocketAddr, sync::Arc};

use clock::Duration;
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
    /// Behind the last request that has an end of its own, connections are open no longer than this.
    drain: Duration,
}

impl Listening {
    /// Takes no more connections and waits until those that are open are done. `answered` ends with the last request that has an end
    /// of its own; what is open long behind it, such as the log of a container that is followed, is broken off.
    pub async fn stop(mut self, answered: impl Future<Output = ()>) {
        self.stop.cancel();
        let Some(mut task) = self.task.take() else { return };
        let late = async {
            answered.await;
            clock::sleep(self.drain).await;
        };
        tokio::select! {
            biased;
            _ = &mut task => return,
            () = late => task.abort(),
        }
        let _ = task.await;
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
    let drain = listener::DRAIN + limits.watch_grace;
    // Requests are bounded by the time that each of them has.
    let listener = listener.drain(limits.request_timeout + drain);
    let service = move |peer: Peer| {
        let router = router.clone();
        move |request: Request<Incoming>| {
            let mut request = request.map(|body| Body::Arriving(body.into()));
            request.extensions_mut().insert(peer.clone());
            chain::handle(router.clone(), request)
        }
    };
    let task = tokio::spawn(listener.serve(with_alpn(tls), stop.clone(), service));
    Ok(Listening { address, stop, task: Some(task), drain })
}

fn with_alpn(tls: Arc<rustls::ServerConfig>) -> TlsAcceptor {
    if !tls.alpn_protocols.is_empty() {
        return TlsAcceptor::from(tls);
    }
    let mut tls = (*tls).clone();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(task: tokio::task::JoinHandle<()>) -> Listening {
        let (stop, drain) = (CancellationToken::new(), Duration::from_secs(10));
        Listening { address: ([127, 0, 0, 1], 0).into(), stop, task: Some(task), drain }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_answered_in_their_own_time_and_what_has_no_end_is_broken_off() {
        let (open, broken_off) = tokio::sync::oneshot::channel::<()>();
        let streams = tokio::spawn(async move {
            let _open = open;
            std::future::pending().await
        });
        let stopping = listening(streams).stop(clock::sleep(Duration::from_secs(45)));
        tokio::pin!(stopping);
        assert!(clock::timeout(Duration::from_secs(54), &mut stopping).await.is_err(), "a request is open");
        stopping.await;
        assert!(broken_off.await.is_err());
        let done = tokio::spawn(async {});
        listening(done).stop(std::future::pending()).await;
    }
}
