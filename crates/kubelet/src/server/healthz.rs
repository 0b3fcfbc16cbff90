//! `/healthz` without TLS or credentials, for programs of this machine: it says that the kubelet answers, and nothing else.
//! Upstream counterpart: the healthz server of cmd/kubelet.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use listener::{Accepted, Bounds, Listener};
use tokio::net::TcpListener;

use super::answer::{Answer, text};
use crate::kubelet::Kubelet;

const CONNECTIONS: Bounds = Bounds { remote: 32, each: 16 };
/// A client that does not finish its request in this time is left.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves until the future is dropped; never where it is turned off.
pub async fn serve(kubelet: Arc<Kubelet>) {
    let (address, port) = kubelet.config.settings.healthz;
    if port == 0 || kubelet.config.serving.is_none() {
        return std::future::pending().await;
    }
    let address = SocketAddr::new(address, port);
    let mut told = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            // Another kubelet of this machine may have it, and may go.
            Err(error) if !std::mem::replace(&mut told, true) => {
                tracing::warn!(%address, %error, "the kubelet's health cannot be asked for here, trying again");
            }
            Err(_) => {}
        }
        clock::sleep(Duration::from_secs(5)).await;
    };
    listen(listener).await;
}

async fn listen(listener: TcpListener) {
    let mut connections = Listener::new(listener, "kubelet's health", CONNECTIONS, Arc::default());
    loop {
        let Accepted { socket, place, .. } = connections.accept().await;
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let answer = respond(request.method(), request.uri().path());
                async move { Ok::<_, http::Error>(answer) }
            });
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
            // A client that goes away in the middle or takes too long gets nothing more.
            let _ = clock::timeout(2 * PATIENCE, server.serve_connection(TokioIo::new(socket), service)).await;
            drop(place);
        });
    }
}

fn respond(method: &Method, path: &str) -> Answer {
    let known = ["/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"];
    match known.contains(&path.trim_end_matches('/')) && matches!(*method, Method::GET | Method::HEAD) {
        true => text(StatusCode::OK, "ok".to_owned()),
        false => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn health_is_told_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(listen(listener));
        let ask = async |path: &str| {
            let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
            client.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            text
        };
        let well = ask("/healthz").await;
        assert!(well.starts_with("HTTP/1.1 200 ") && well.ends_with("\r\n\r\nok"), "{well}");
        for path in ["/metrics", "/pods", "/", "/healthz/../pods"] {
            assert!(ask(path).await.starts_with("HTTP/1.1 404 "), "{path}");
        }
        server.abort();
    }
}
