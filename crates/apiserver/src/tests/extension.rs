//! Another API server, for tests: it believes the front proxy, tells of one group version, and does as the names of its objects
//! say.

use std::{net::SocketAddr, sync::Arc};

use api::Value;
use futures::StreamExt;
use http::{HeaderMap, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use json::json;
use parking_lot::Mutex;
use pki::{Authority, ClientCertificates, Serving, Subject};

use crate::{auth::authn::front_proxy::FrontProxy, http::body::Body, tests::over_tls};

/// The last request below its group version: path with query, headers, and whom the front proxy named.
#[derive(Clone, Default)]
pub struct Seen {
    pub uri: String,
    pub headers: HeaderMap,
    pub user: Option<crate::User>,
}

pub struct Extension {
    pub address: SocketAddr,
    pub authority: Authority,
    pub seen: Arc<Mutex<Seen>>,
    /// The status of its answers to questions about its resources.
    pub mood: Arc<Mutex<StatusCode>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Extension {
    /// Listens with a certificate for the Service `name` in `default`; `front` signs the front proxy's.
    pub async fn start(name: &str, front: &Authority) -> Self {
        let authority = Authority::create("extension").unwrap();
        let issued = authority.issue(&Subject::server(name, vec![format!("{name}.default.svc")])).unwrap();
        let serving = Serving::new(&issued).unwrap();
        let (seen, mood) = (Arc::<Mutex<Seen>>::default(), Arc::new(Mutex::new(StatusCode::OK)));
        let proxy = FrontProxy::new(ClientCertificates::new(front.certificate()).unwrap(), Vec::new());
        let shared = (seen.clone(), mood.clone(), Arc::new(proxy));
        let (address, task) = over_tls::listen(serving, Some(front.certificate()), move |io| {
            let shared = shared.clone();
            let chain = io.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
            let service = service_fn(move |request: Request<Incoming>| {
                let (seen, mood, proxy) = shared.clone();
                let user = proxy.check(&chain, request.headers()).ok().flatten();
                async move { answer(request, user, &seen, *mood.lock()) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(io), service);
            async { drop(connection.with_upgrades().await) }
        })
        .await;
        Extension { address, authority, seen, mood, task }
    }

    pub fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }
}

fn document(value: &Value, media: &str) -> Response<Body> {
    let text = value.to_string();
    Response::builder().header(header::CONTENT_TYPE, media).body(Body::from(text)).unwrap()
}

fn plain(status: u16, text: &'static str) -> Response<Body> {
    Response::builder().status(status).body(Body::from(text)).unwrap()
}

/// The error breaks the connection off.
fn answer(
    mut request: Request<Incoming>,
    user: Option<crate::User>,
    seen: &Mutex<Seen>,
    mood: StatusCode,
) -> Result<Response<Body>, std::io::Error> {
    let path = request.uri().path().to_owned();
    let named = user.is_some();
    if path.starts_with("/apis/a.io/v1/") {
        let uri = request.uri().to_string();
        *seen.lock() = Seen { uri, headers: request.headers().clone(), user };
    }
    if !named {
        return Ok(plain(401, "who is that?"));
    }
    const JSON: &str = "application/json";
    let things = json!([{"resource": "things", "singularResource": "thing", "scope": "Namespaced", "shortNames": ["th"],
        "verbs": ["get", "list", "watch", "delete"], "responseKind": {"group": "a.io", "version": "v1", "kind": "Thing"}}]);
    let lies = json!({"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": []}]});
    Ok(match path.as_str() {
        "/apis" | "/apis/a.io/v1" | "/openapi/v2" | "/openapi/v3" if mood != StatusCode::OK => {
            plain(mood.as_u16(), "no")
        }
        "/apis" => document(
            &json!({"kind": "APIGroupDiscoveryList", "items": [lies,
                {"metadata": {"name": "a.io"}, "versions": [{"version": "v1", "resources": things}]}]}),
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        ),
        "/apis/a.io/v1" => {
            document(&json!({"kind": "APIResourceList", "groupVersion": "a.io/v1", "resources": []}), JSON)
        }
        "/openapi/v3" => {
            let place = |path: &str| json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash=1")});
            let paths = json!({"apis/a.io/v1": place("apis/a.io/v1"), "apis/apps/v1": place("apis/lies/v1")});
            document(&json!({ "paths": paths }), JSON)
        }
        "/openapi/v3/apis/a.io/v1" => document(&json!({"openapi": "3.0.0", "own": true}), JSON),
        "/openapi/v2" => {
            document(&json!({"paths": {"/apis/a.io/v1/things": {}, "/apis/apps/v1/lies": {}}, "definitions": {}}), JSON)
        }
        _ => match path.rsplit('/').next().unwrap_or_default() {
            "redirect" => {
                Response::builder().status(302).header("location", "https://evil/").body(Body::empty()).unwrap()
            }
            "die" => return Err(std::io::Error::other("it dies")),
            "hang" => {
                let begun = futures::stream::iter([Ok(bytes::Bytes::from_static(b"{\"begun\":"))]);
                Response::new(Body::stream(begun.chain(futures::stream::pending())))
            }
            "endless" => {
                let piece = bytes::Bytes::from(vec![b' '; 1 << 16]);
                Response::new(Body::stream(futures::stream::repeat_with(move || Ok(piece.clone()))))
            }
            "origins" => {
                let response = Response::builder().header("access-control-allow-origin", "*").header("x-own", "1");
                response.body(Body::empty()).unwrap()
            }
            "switch" => plain(101, ""),
            "echo" => {
                tokio::spawn(async move {
                    let io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
                    let (mut from, mut to) = tokio::io::split(io);
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                    let _ = tokio::io::AsyncWriteExt::shutdown(&mut to).await;
                });
                let response =
                    Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "echo");
                response.body(Body::empty()).unwrap()
            }
            "things" if request.uri().query().is_some_and(|q| q.contains("watch")) => {
                let event = Ok(bytes::Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{}}\n"));
                Response::new(Body::stream(futures::stream::iter([event]).chain(futures::stream::pending())))
            }
            name => document(&json!({"kind": "Thing", "apiVersion": "a.io/v1", "metadata": {"name": name}}), JSON),
        },
    })
}
