//! Requests that are passed on to a server of the cluster, as that server sees them.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use json::json;
use parking_lot::Mutex;

use super::{assembled::Talk, over_tls};
use crate::{
    User,
    http::{access::Peer, body::Body},
    special::connect::connector::Connector,
};

#[tokio::test]
async fn a_proxied_server_is_told_of_the_client_and_the_path() {
    let issued = pki::Authority::create("a").unwrap().issue(&pki::Subject::server("s", Vec::new())).unwrap();
    let seen = Arc::<Mutex<(String, HeaderMap)>>::default();
    let seeing = seen.clone();
    let (address, listening) = over_tls::listen(pki::Serving::new(&issued).unwrap(), None, move |io| {
        let seeing = seeing.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            *seeing.lock() = (request.uri().to_string(), request.headers().clone());
            async { Ok::<_, std::io::Error>(Response::new(Body::empty())) }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(io), service);
        async { drop(connection.await) }
    })
    .await;
    let tls = pki::client_config_believing_all(None, &["http/1.1"]).unwrap();
    let talk = Talk::with(Some(Connector::new(Arc::new(tls), vec!["InternalIP".to_owned()]))).await;
    let status = json!({"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": address.port()}}});
    let node = json!({"metadata": {"name": "n"}, "status": status});
    talk.ok("+root", "POST /api/v1/nodes", node.clone()).await;
    talk.ok("+root", "PUT /api/v1/nodes/n/status", node).await;
    let path = "/api/v1/nodes/n/proxy/a/b/";
    let client = "192.0.2.7:4711".parse().unwrap();
    let request = Request::get(format!("{path}?c=d"))
        .header(header::HOST, "api.example.com:6443")
        .header("x-forwarded-for", "10.1.1.1")
        .extension(Arc::new(User::new("root", ["system:masters"]).authenticated()))
        .extension(Peer { address: client, certificates: Vec::new().into() });
    assert_eq!(talk.0.handle(request.body(Body::empty()).unwrap()).await.status(), 200);
    let (uri, headers) = seen.lock().clone();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!((uri.as_str(), text("host")), ("/a/b/?c=d", Some("api.example.com:6443")));
    assert_eq!((text("x-forwarded-for"), text("x-forwarded-uri")), (Some("10.1.1.1, 192.0.2.7"), Some(path)));
    // As upstream, whose transport knows no name of the API server.
    assert_eq!((text("x-forwarded-host"), text("x-forwarded-proto")), (None, None));
    listening.abort();
}
