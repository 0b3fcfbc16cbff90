//! Servers of tests that others reach over TLS.

use std::{net::SocketAddr, sync::Arc};

use pki::Serving;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Listens with a certificate, and `authorities` for those of clients; every connection is served in a task of its own.
pub async fn listen<F: Future<Output = ()> + Send + 'static>(
    serving: Arc<Serving>,
    authorities: Option<&str>,
    serve: impl Fn(TlsStream<TcpStream>) -> F + Clone + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let acceptor = TlsAcceptor::from(Arc::new(pki::server_config(serving, authorities, &["http/1.1"]).unwrap()));
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (io, _) = tcp.accept().await.unwrap();
            let (acceptor, serve) = (acceptor.clone(), serve.clone());
            tokio::spawn(async move {
                if let Ok(io) = acceptor.accept(io).await {
                    serve(io).await;
                }
            });
        }
    });
    (address, task)
}
