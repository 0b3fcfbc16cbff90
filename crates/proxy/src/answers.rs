//! Plain HTTP for those who ask how the proxy or a Service is: load balancers, scrapers. Nobody says who they are, so what they
//! hear are numbers and settings and nothing else, and there are bounds on all they can take.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use listener::{Accepted, Bounds, Listener as Connections};
use tokio::net::TcpListener;

pub type Body = Full<Bytes>;

/// The answer to a path.
pub type Answer = Arc<dyn Fn(&str) -> Response<Body> + Send + Sync>;

/// Connections at once to one port; more are closed.
const CONNECTIONS: Bounds = Bounds { remote: 64, each: 16 };
/// A client that does not finish its request in this time is left.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers at an address until cancelled.
pub async fn serve(address: SocketAddr, purpose: &'static str, answer: Answer) {
    let mut wait = Duration::from_secs(1);
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            // Another process that has the port may go.
            Err(error) => tracing::warn!(purpose, %address, %error, "cannot listen, trying again"),
        }
        clock::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(60));
    };
    let mut connections = Connections::new(listener, purpose, CONNECTIONS, Arc::default());
    loop {
        let Accepted { socket, place, .. } = connections.accept().await;
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer(request.uri().path());
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

pub fn json_answer(status: StatusCode, body: String) -> Response<Body> {
    typed(status, "application/json", body)
}

pub fn typed(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert("Content-Type", HeaderValue::from_static(kind));
    headers.insert("X-Content-Type-Options", HeaderValue::from_static("nosniff"));
    response
}

pub fn not_found() -> Response<Body> {
    typed(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned())
}
