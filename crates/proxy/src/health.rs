//! Answers load balancers that ask, at a Service's `healthCheckNodePort`, whether this node has endpoints of it.
//! Plain HTTP without authentication, as load balancers expect; it says a number and nothing else.
//! Upstream counterpart: pkg/proxy/healthcheck/service_health.go.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use client::Key;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Bytes, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use listener::{Accepted, Bounds, Listener as Connections};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::service_rules::HealthCheck;

/// Connections at once to one port; more are closed.
const CONNECTIONS: Bounds = Bounds { remote: 64, each: 16 };
/// A client that does not finish its request in this time is left.
const PATIENCE: Duration = Duration::from_secs(10);

/// The listeners of this node, by Service.
#[derive(Default)]
pub struct HealthChecks(BTreeMap<Key, Listener>);

struct Listener {
    port: u16,
    count: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HealthChecks {
    /// Brings a Service's listener to what is wanted.
    pub fn set(&mut self, key: &Key, wanted: Option<HealthCheck>) {
        let Some(HealthCheck { port, local_endpoints }) = wanted else {
            self.0.remove(key);
            return;
        };
        if let Some(held) = self.0.get(key).filter(|l| l.port == port) {
            held.count.store(local_endpoints, Ordering::Relaxed);
            return;
        }
        let count = Arc::new(AtomicUsize::new(local_endpoints));
        let task = tokio::spawn(listen(key.clone(), port, count.clone()));
        self.0.insert(key.clone(), Listener { port, count, task });
    }
}

async fn listen(key: Key, port: u16, count: Arc<AtomicUsize>) {
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let mut wait = Duration::from_secs(1);
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            // The port is the Service's, so another process that has it will have to go.
            Err(error) => tracing::warn!(service = %key, port, %error, "cannot listen for health checks, trying again"),
        }
        clock::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(60));
    };
    let mut connections = Connections::new(listener, "health checks of Services", CONNECTIONS, Arc::default());
    loop {
        let Accepted { socket, place, .. } = connections.accept().await;
        let (key, count) = (key.clone(), count.clone());
        tokio::spawn(async move {
            let service = service_fn(move |_| {
                let answer = answer(&key, count.load(Ordering::Relaxed));
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

fn answer(key: &Key, count: usize) -> Response<Full<Bytes>> {
    let body = json::json!({
        "service": {"namespace": key.namespace, "name": key.name},
        "localEndpoints": count,
        "serviceProxyHealthy": true,
    });
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = if count == 0 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let headers = response.headers_mut();
    headers.insert("Content-Type", http::HeaderValue::from_static("application/json"));
    headers.insert("X-Content-Type-Options", http::HeaderValue::from_static("nosniff"));
    headers.insert("X-Load-Balancing-Endpoint-Weight", count.into());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_endpoints_is_not_to_be_used() {
        let key = Key::new("d", "web");
        let (none, two) = (answer(&key, 0), answer(&key, 2));
        assert_eq!((none.status().as_u16(), two.status().as_u16()), (503, 200));
        assert_eq!(two.headers()["X-Load-Balancing-Endpoint-Weight"], "2");
    }
}
