//! Connections over HTTP/2 that nobody known speaks over: they end after a request. Upstream's cases are those of
//! TestUnauthenticatedHTTP2ClientConnectionClose.

use std::sync::Arc;

use api::features::{Feature, Features};
use bytes::Bytes;
use clock::Duration;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pki::{Authority, Serving, Subject};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::assembled::options;
use crate::{Listening, Options, Server};

/// A server that listens, and those who trust it.
struct Scene {
    _server: Server,
    listening: Listening,
    authority: Authority,
}

impl Scene {
    async fn start(mitigates: bool) -> Scene {
        let features = Features::default().with(Feature::UnauthenticatedHTTP2DOSMitigation, mitigates);
        let server = crate::assemble(Options { features, ..options() }).await.unwrap();
        let authority = Authority::create("us").unwrap();
        let issued = authority.issue(&Subject::server("us", vec!["127.0.0.1".into()])).unwrap();
        let tls = pki::server_config(Serving::new(&issued).unwrap(), None, &["h2", "http/1.1"]).unwrap();
        let listening = server.listen("127.0.0.1:0".parse().unwrap(), Arc::new(tls)).await.unwrap();
        Scene { _server: server, listening, authority }
    }

    async fn dial(&self, protocol: &str) -> TokioIo<TlsStream<TcpStream>> {
        let client = pki::client_config(self.authority.certificate(), None, &[protocol]).unwrap();
        let tcp = TcpStream::connect(self.listening.address).await.unwrap();
        let name = "127.0.0.1".try_into().unwrap();
        TokioIo::new(TlsConnector::from(Arc::new(client)).connect(name, tcp).await.unwrap())
    }
}

fn request(uri: &str, token: &str) -> Request<Empty<Bytes>> {
    let request = Request::get(uri).header("host", "us");
    let request = if token.is_empty() { request } else { request.header("authorization", format!("Bearer {token}")) };
    request.body(Empty::new()).unwrap()
}

async fn answered(answer: Response<Incoming>) -> u16 {
    let (head, body) = answer.into_parts();
    assert!(!head.headers.contains_key("connection"), "it is no header of HTTP/2");
    body.collect().await.unwrap();
    head.status.as_u16()
}

#[tokio::test]
async fn they_end_over_http2() {
    for (mitigates, token, code, ends) in [
        (true, "wrong", 401, true),
        (true, "", 200, true),
        (true, "secret", 200, false),
        (false, "wrong", 401, false),
        (false, "", 200, false),
        (false, "secret", 200, false),
    ] {
        let scene = Scene::start(mitigates).await;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), scene.dial("h2").await).await.unwrap();
        let connection = tokio::spawn(connection);
        let asked = || request("https://us/version", token);
        assert_eq!(answered(sender.send_request(asked()).await.unwrap()).await, code);
        if ends {
            let ended = clock::timeout(Duration::from_secs(60), connection).await;
            assert!(ended.expect("it ends").unwrap().is_ok(), "{mitigates} {token}");
        } else {
            for _ in 0..3 {
                sender.ready().await.unwrap();
                assert_eq!(answered(sender.send_request(asked()).await.unwrap()).await, code, "{mitigates} {token}");
            }
        }
    }
}

#[tokio::test]
async fn they_go_on_over_http1() {
    let scene = Scene::start(true).await;
    let (mut sender, connection) = http1::handshake(scene.dial("http/1.1").await).await.unwrap();
    tokio::spawn(connection);
    for (token, code) in [("wrong", 401), ("", 200), ("wrong", 401), ("", 200)] {
        sender.ready().await.unwrap();
        assert_eq!(answered(sender.send_request(request("/version", token)).await.unwrap()).await, code);
    }
}
