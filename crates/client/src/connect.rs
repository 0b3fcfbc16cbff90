//! Ways to reach the API server: over TLS as a kubeconfig says, or by a function call into the same process.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use clock::{Duration, Instant};
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderValue, Request, Response, header};
use parking_lot::RwLock;
use tower::{Service, ServiceExt};

use crate::{
    body::Body,
    config::Config,
    error::{BoxError, ConfigError, Error},
    kubeconfig::{Kubeconfig, in_file},
    metrics,
};

/// A way to the API server. Clones go the same way.
#[derive(Clone)]
pub struct Client {
    way: Way,
    in_process: bool,
}

/// Where it leads and who goes it is not told: configurations that hold one may be.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// How long the beginning of an answer is waited for. A server ends a request after a minute by itself.
const PATIENCE: Duration = Duration::from_secs(65);

/// Another such time, for one request.
#[derive(Clone, Copy)]
struct Patience(Duration);

/// How long this request waits for the beginning of its answer.
pub(crate) fn patience(request: &Request<Body>) -> Duration {
    request.extensions().get::<Patience>().map_or(PATIENCE, |patience| patience.0)
}

type Way = Arc<dyn Fn(Request<Body>) -> Sending + Send + Sync>;
type Sending = BoxFuture<'static, Result<Response<Body>, Error>>;

impl Client {
    /// Sends a request as it is, with a path and a query for its URI. An answer of any code is an answer.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, Error> {
        (self.way)(request).await
    }

    /// Whether the server is in this process, so that nothing between can fall silent.
    pub(crate) fn is_in_process(&self) -> bool {
        self.in_process
    }

    /// This client in the name of a program: `User-Agent` says it, and the fields that it writes are managed by it.
    #[must_use]
    pub fn named(self, program: &'static str) -> Client {
        let agent =
            HeaderValue::try_from(format!("{program}/{}", env!("CARGO_PKG_VERSION"))).expect("a word of letters");
        let way: Way = Arc::new(move |mut request| {
            request.headers_mut().entry(header::USER_AGENT).or_insert_with(|| agent.clone());
            (self.way)(request)
        });
        Client { way, ..self }
    }

    /// This client for requests that wait no longer than this for the beginning of an answer: a server that has stopped, or that
    /// the network no longer reaches, closes no connection.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Client {
        let way: Way = Arc::new(move |mut request| {
            request.extensions_mut().insert(Patience(patience));
            (self.way)(request)
        });
        Client { way, ..self }
    }
}

/// A client as the current context of a kubeconfig file says. Relative paths in it are taken from its folder.
pub fn from_kubeconfig(path: &Path) -> Result<Client, ConfigError> {
    from_config(&Kubeconfig::current_of(path)?).map_err(|error| in_file(path, error))
}

/// A client from a configuration made in memory. Whoever calls retries with backoff of its own; nothing is retried here.
pub fn from_config(config: &Config) -> Result<Client, ConfigError> {
    let remote = Arc::new(config.connect()?);
    let host: Arc<str> = config.server.authority().map_or("", |authority| authority.as_str()).into();
    let way: Way = Arc::new(move |request| {
        let (remote, host) = (remote.clone(), host.clone());
        async move {
            let method = request.method().clone();
            counted(&host, method, remote.send(request)).await
        }
        .boxed()
    });
    Ok(Client { way, in_process: false })
}

/// Sends a request, and counts how it ended.
async fn counted<B>(
    host: &str,
    method: http::Method,
    sending: impl Future<Output = Result<Response<B>, Error>>,
) -> Result<Response<B>, Error> {
    let began = Instant::now();
    let answer = sending.await;
    metrics::asked(host, &method, answer.as_ref().ok().map(|answer| answer.status().as_u16()), began.elapsed());
    answer
}

/// A client for several API servers of one cluster. Requests go to one of them as long as it answers; then to the
/// next. Only reads are tried again at once: a write that failed on the way may have been carried out.
pub fn server_list(servers: Vec<Client>) -> Client {
    assert!(!servers.is_empty(), "a cluster has at least one API server");
    let list = ServerList { servers: servers.into(), current: Arc::default() };
    through(tower::service_fn(move |request| list.clone().send(request)))
}

#[derive(Clone)]
struct ServerList {
    servers: Arc<[Client]>,
    current: Arc<AtomicUsize>,
}

impl ServerList {
    async fn send(self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        let mut tries_left = self.servers.len();
        loop {
            let at = self.current.load(Ordering::Relaxed) % self.servers.len();
            tries_left -= 1;
            let again = if request.method().is_safe() && tries_left > 0 { copy(&request) } else { None };
            match self.servers[at].send(request).await {
                Err(error) => {
                    // Whoever else noticed first has moved on already.
                    let _ = self.current.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
                    let Some(again) = again else { return Err(error) };
                    tracing::debug!(server = at, %error, "an API server does not answer, trying the next");
                    request = again;
                }
                answered => return answered,
            }
        }
    }
}

fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().copy()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// A client whose way to the server can be changed while it is in use, as when its certificate is renewed.
pub fn replaceable(client: Client) -> (Client, Replaceable) {
    let current = Arc::new(RwLock::new(client));
    let way = Replaceable(current.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = current.read().clone();
        async move { client.send(request).await }
    });
    (through(service), way)
}

/// The way that a replaceable client goes now.
pub struct Replaceable(Arc<RwLock<Client>>);

impl Replaceable {
    /// New requests go through `client`; those under way end as they began.
    pub fn replace(&self, client: Client) {
        *self.0.write() = client;
    }
}

/// A client that calls `service`, usually the API server's pipeline in the same process.
pub fn in_process<S, B>(service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Future: Send, Error: Into<BoxError>>
        + Clone
        + Send
        + Sync
        + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let way: Way = Arc::new(move |request| {
        let method = request.method().clone();
        let answer = service.clone().oneshot(request);
        let answer = async move { Ok(answer.await.map_err(Error::transport)?.map(Body::wrap)) };
        counted(metrics::OWN, method, answer).boxed()
    });
    Client { way, in_process: true }
}

/// A client that goes the way of another one, which counts its requests.
fn through<S>(service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<Body>, Future: Send, Error = Error> + Clone + Send + Sync + 'static,
{
    let way: Way = Arc::new(move |request| service.clone().oneshot(request).boxed());
    Client { way, in_process: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use tower::service_fn;

    fn server(name: &'static str, up: bool) -> Client {
        in_process(service_fn(move |_: Request<Body>| async move {
            if up { Ok(Response::new(Body::from(Bytes::from(name)))) } else { Err(BoxError::from("refused")) }
        }))
    }

    #[tokio::test]
    async fn the_next_server_answers_when_one_is_down() {
        let client = server_list(vec![server("a", false), server("b", true)]);
        let ask = async |method: Method| {
            let request = Request::builder().method(method).uri("/x").body(Body::empty()).unwrap();
            let answer = client.send(request).await.ok()?.into_body().collect_bytes().await.ok()?;
            Some(String::from_utf8_lossy(&answer).into_owned())
        };
        assert_eq!(ask(Method::POST).await, None, "a write is not repeated");
        assert_eq!(ask(Method::POST).await.as_deref(), Some("b"));
        let client = server_list(vec![server("a", false), server("b", true)]);
        let get = Request::builder().uri("/x").body(Body::empty()).unwrap();
        assert!(client.send(get).await.is_ok(), "a read is");
    }

    #[tokio::test]
    async fn a_program_says_its_name_unless_the_request_says_one() {
        let echo = |request: Request<Body>| async move {
            let agent = request.headers().get(header::USER_AGENT).cloned();
            Ok::<_, BoxError>(Response::new(Body::from(
                agent.map_or_else(Bytes::new, |agent| Bytes::copy_from_slice(agent.as_bytes())),
            )))
        };
        let client = in_process(service_fn(echo)).named("kube-scheduler");
        let ask = async |request: http::request::Builder| {
            let answer = client.send(request.body(Body::empty()).unwrap()).await.unwrap();
            String::from_utf8(answer.into_body().collect_bytes().await.unwrap().to_vec()).unwrap()
        };
        assert!(ask(Request::builder()).await.starts_with("kube-scheduler/"));
        assert_eq!(ask(Request::builder().header(header::USER_AGENT, "mine")).await, "mine");
    }

    #[tokio::test]
    async fn a_replaced_client_goes_the_new_way() {
        let (client, way) = replaceable(server("a", true));
        let ask = async || {
            let request = Request::builder().uri("/x").body(Body::empty()).unwrap();
            let answer = client.send(request).await.unwrap().into_body().collect_bytes().await.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        };
        assert_eq!(ask().await, "a");
        way.replace(server("b", true));
        assert_eq!(ask().await, "b");
    }
}
