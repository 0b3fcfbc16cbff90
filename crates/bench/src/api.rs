//! A bare HTTP/2 client for the API: a few connections, a bearer token, no conveniences that would cost time.

use std::{
    net::SocketAddr,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The encodings in which answers are asked for.
pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Cloning shares the connections.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
    accept: &'static str,
}

struct Inner {
    connections: Vec<SendRequest<Full<Bytes>>>,
    next: AtomicUsize,
    authority: String,
    token: String,
}

impl Api {
    /// Connects `count` times, trusting the authority in PEM.
    pub async fn connect(address: SocketAddr, authority: &str, token: &str, count: usize) -> anyhow::Result<Self> {
        let tls = Arc::new(pki::client_config(authority, None, &["h2"])?);
        let mut connections = Vec::new();
        for _ in 0..count {
            let stream = TcpStream::connect(address).await.context("connect")?;
            stream.set_nodelay(true)?;
            let name = rustls_pki_types::ServerName::try_from("localhost").expect("a constant name");
            let stream = TlsConnector::from(tls.clone()).connect(name, stream).await.context("TLS")?;
            let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(4 << 20)
                .initial_connection_window_size(64 << 20)
                .handshake(TokioIo::new(stream))
                .await?;
            tokio::spawn(connection);
            connections.push(sender);
        }
        let inner =
            Inner { connections, next: AtomicUsize::new(0), authority: address.to_string(), token: token.to_owned() };
        Ok(Api { inner: Arc::new(inner), accept: JSON })
    }

    /// The same connections, with answers in another encoding.
    pub fn accepting(&self, media_type: &'static str) -> Self {
        Api { inner: self.inner.clone(), accept: media_type }
    }

    pub fn is_binary(&self) -> bool {
        self.accept == PROTOBUF
    }

    /// Sends a request and returns the response with its body still to be read.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        let i = self.inner.next.fetch_add(1, Ordering::Relaxed) % self.inner.connections.len();
        let mut connection = self.inner.connections[i].clone();
        let mut request = Request::builder().method(method).uri(format!("https://{}{path}", self.inner.authority));
        request = request.header("accept", self.accept);
        if !self.inner.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.inner.token));
        }
        if !body.is_empty() {
            request = request.header("content-type", kind);
        }
        connection.ready().await?;
        let response = connection.send_request(request.body(Full::new(body))?).await?;
        if !response.status().is_success() {
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body[..body.len().min(300)]));
        }
        Ok(response)
    }

    /// Sends a request and reads the body to its end; returns its length.
    pub async fn send(&self, method: Method, path: &str, kind: &str, body: Bytes) -> anyhow::Result<usize> {
        let mut body = self.open(method, path, kind, body).await?.into_body();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            length += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(length)
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<usize> {
        self.send(Method::GET, path, "", Bytes::new()).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> anyhow::Result<usize> {
        self.send(Method::POST, path, "application/json", object.to_string().into()).await
    }

    pub async fn merge_patch(&self, path: &str, patch: &Value) -> anyhow::Result<usize> {
        self.send(Method::PATCH, path, "application/merge-patch+json", patch.to_string().into()).await
    }

    /// A namespace with its default service account, which Pods need; made here when no controller runs.
    pub async fn namespace(&self, name: &str) -> anyhow::Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.post("/api/v1/namespaces", &namespace).await?;
        let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        if self.post(&accounts, &account).await.is_err() {
            self.get(&format!("{accounts}/default")).await?;
        }
        Ok(())
    }
}

/// Hands on the events of a watch in JSON, line by line, until the reader has seen enough.
pub async fn follow(
    mut body: Incoming,
    mut seen: impl FnMut(&[u8]) -> anyhow::Result<ControlFlow<()>>,
) -> anyhow::Result<()> {
    let mut rest = Vec::new();
    while let Some(frame) = body.frame().await {
        rest.extend_from_slice(frame?.data_ref().context("data")?);
        let complete = rest.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
        for line in rest[..complete].split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            if seen(line)?.is_break() {
                return Ok(());
            }
        }
        rest.drain(..complete);
    }
    bail!("the watch ended")
}
