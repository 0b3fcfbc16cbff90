//! One client: a credential, requests over HTTP/1.1 or HTTP/2, and raw connections for what no library sends.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use json::Value;
use pki::Credential;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey},
};

/// No attack may make another client wait longer than this for an answer.
pub const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Caller {
    address: SocketAddr,
    authority: String,
    credential: Option<Credential>,
    token: Option<String>,
}

/// The answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    /// The message of a Status.
    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub fn expect(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{}", self.text());
        self
    }

    /// The `Warning` headers' texts.
    pub fn warnings(&self) -> Vec<String> {
        let all = self.headers.get_all(header::WARNING).iter();
        all.map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).collect()
    }
}

impl Caller {
    pub fn new(port: u16, authority: &str) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Caller { address, authority: authority.to_owned(), credential: None, token: None }
    }

    /// Reaches the server at another address of this machine, from which it comes then too.
    pub fn at(mut self, address: IpAddr) -> Self {
        self.address.set_ip(address);
        self
    }

    pub fn bearer(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub fn certificate(mut self, credential: Credential) -> Self {
        self.credential = Some(credential);
        self
    }

    /// A TLS connection with this caller's certificate and nothing sent on it. `alpn`: `h2` or `http/1.1`.
    pub async fn connect(&self, alpn: &str) -> io::Result<TlsStream<TcpStream>> {
        let config =
            pki::client_config(&self.authority, self.credential.as_ref(), &[alpn]).map_err(io::Error::other)?;
        let tcp = TcpStream::connect(self.address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::from(self.address.ip());
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await
    }

    /// The authorities (in DER) of which a server wants certificates, as it says when clients connect.
    pub async fn wanted_authorities(&self) -> Vec<Vec<u8>> {
        let mut config = pki::client_config(&self.authority, None, &["h2"]).unwrap();
        let told = Arc::new(Told::default());
        config.client_auth_cert_resolver = told.clone();
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(ServerName::from(self.address.ip()), tcp);
        connecting.await.expect("a certificate is not demanded");
        std::mem::take(&mut *told.0.lock().unwrap())
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub async fn create(&self, path: &str, object: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], object.to_string()).await
    }

    pub async fn replace(&self, path: &str, object: &Value) -> Answer {
        self.send("PUT", path, &[("content-type", "application/json")], object.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], "").await
    }

    /// `kind` is `json`, `merge`, `strategic` or `apply`.
    pub async fn patch(&self, kind: &str, path: &str, patch: impl Into<Bytes>) -> Answer {
        let media_type = match kind {
            "json" => "application/json-patch+json",
            "merge" => "application/merge-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            "apply" => "application/apply-patch+yaml",
            other => panic!("no kind of patch: {other}"),
        };
        self.send("PATCH", path, &[("content-type", media_type)], patch).await
    }

    /// One request on a connection of its own, HTTP/1.1. Header values may be any bytes.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        self.try_send(method, path, headers, body).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        let request = self.request(method, path, headers, body)?;
        let io = TokioIo::new(self.connect("http/1.1").await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        let connection = tokio::spawn(connection);
        let answer = collected(sender.send_request(request)).await;
        connection.abort();
        answer
    }

    /// One request over HTTP/2.
    pub async fn send_h2(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let mut request = self.request(method, path, headers, body).unwrap();
        let uri = format!("https://{}{path}", self.address);
        *request.uri_mut() = uri.parse().unwrap();
        request.headers_mut().remove(header::HOST);
        let io = TokioIo::new(self.connect("h2").await.unwrap());
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("an HTTP/2 connection");
        let connection = tokio::spawn(connection);
        let answer = collected(sender.send_request(request)).await;
        connection.abort();
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, self.address.to_string());
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, HeaderValue::from_bytes(value.as_bytes())?);
        }
        request.body(Full::new(body.into()))
    }
}

/// Has no certificate and remembers of whom one was wanted.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<Vec<u8>>>);

impl ResolvesClientCert for Told {
    fn resolve(&self, authorities: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        *self.0.lock().unwrap() = authorities.iter().map(|name| name.to_vec()).collect();
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

async fn collected(
    answer: impl Future<Output = hyper::Result<http::Response<hyper::body::Incoming>>>,
) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let whole = async {
        let (parts, body) = answer.await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { code: parts.status.as_u16(), headers: parts.headers, body })
    };
    tokio::time::timeout(PATIENCE, whole).await.map_err(|_| "no answer in time")?
}
