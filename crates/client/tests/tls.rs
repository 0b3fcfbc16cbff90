//! A client over TLS, as a kubeconfig file says: it shows its certificate, and believes whom it was told to believe.

use std::{convert::Infallible, error::Error as _, path::PathBuf, sync::Arc};

use bytes::Bytes;
use client::{
    Config, Error,
    config::Trust,
    rest::{self, Form},
};
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use pki::{Authority, Credential, Serving, Subject, inspect};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A server that names the client whose certificate it was shown.
async fn server(authority: &Authority) -> String {
    let credential = authority.issue(&Subject::server("s", vec!["127.0.0.1".to_owned(), "name".to_owned()])).unwrap();
    let serving = Serving::new(&credential).unwrap();
    let tls = pki::server_config(serving, Some(authority.certificate()), &["h2", "http/1.1"]).unwrap();
    let (acceptor, tcp) = (TlsAcceptor::from(Arc::new(tls)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("https://{}", tcp.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((io, _)) = tcp.accept().await {
            // A client that believes nobody breaks off.
            let Ok(io) = acceptor.accept(io).await else { continue };
            let shown = io.get_ref().1.peer_certificates().and_then(|chain| inspect::facts_der(&chain[0]).ok());
            let name = shown.map_or("nobody".to_owned(), |facts| facts.common_name);
            let service = service_fn(move |request: Request<Incoming>| {
                let said = format!("{name} asks for {}", request.uri());
                async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(said)))) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(io), service));
        }
    });
    url
}

async fn ask(config: &Config) -> Result<String, Error> {
    let client = client::from_config(config).expect("a client");
    let read = rest::read(&client, "/version", Form::Whole).await?;
    Ok(String::from_utf8(read.to_vec()).expect("text"))
}

fn all_causes(error: &Error) -> String {
    let (mut said, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        said = format!("{said}: {cause} {cause:?}");
        next = cause.source();
    }
    said
}

struct Scene {
    authority: Authority,
    url: String,
    me: Credential,
}

impl Scene {
    async fn new() -> Self {
        let authority = Authority::create("ours").unwrap();
        let me = authority.issue(&Subject::client("me", None)).unwrap();
        Scene { url: server(&authority).await, authority, me }
    }

    fn config(&self, trust: Trust) -> Config {
        Config { trust, ..Config::new(&self.url).expect("a URL") }
    }

    fn ours(&self) -> Trust {
        Trust::Authorities(self.authority.certificate().to_owned())
    }
}

#[tokio::test]
async fn a_kubeconfig_leads_to_its_server() {
    let scene = Scene::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("config");
    let text = pki::kubeconfig(&scene.url, scene.authority.certificate(), "me", &scene.me);
    std::fs::write(&path, text).unwrap();
    let client = client::from_kubeconfig(&path).expect("a client");
    for _ in 0..2 {
        let read = rest::read(&client, "/version", Form::Whole).await.expect("an answer");
        assert_eq!(read, "me asks for /version");
    }
}

#[tokio::test]
async fn whom_a_client_believes() {
    let scene = Scene::new().await;
    assert_eq!(ask(&scene.config(scene.ours())).await.expect("an answer"), "nobody asks for /version");
    assert_eq!(ask(&scene.config(Trust::Anybody)).await.expect("an answer"), "nobody asks for /version");
    let theirs = Trust::Authorities(Authority::create("theirs").unwrap().certificate().to_owned());
    for stranger in [theirs, Trust::Machine] {
        let said = all_causes(&ask(&scene.config(stranger)).await.expect_err("nobody vouches for the server"));
        assert!(said.contains("UnknownIssuer"), "{said}");
    }
    let named = |name: &str| Config { server_name: Some(name.to_owned()), ..scene.config(scene.ours()) };
    assert!(ask(&named("name")).await.is_ok());
    let said = all_causes(&ask(&named("other")).await.expect_err("the certificate is for another name"));
    assert!(said.contains("NotValidForName"), "{said}");
}
