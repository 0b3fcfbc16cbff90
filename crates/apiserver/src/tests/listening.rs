//! A server that listens, for tests that reach it over real connections.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pki::{Authority, Credential, Serving, Subject};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{Listening, Options, Server, assemble};

/// It asks every client for a certificate and takes any.
pub struct Reached {
    pub server: Server,
    pub address: SocketAddr,
    authority: Authority,
}

pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reached {
    pub async fn start(options: Options) -> (Self, Listening) {
        let server = assemble(options).await.unwrap();
        let authority = Authority::create("us").unwrap();
        let issued = authority.issue(&Subject::server("us", vec!["127.0.0.1".into()])).unwrap();
        let tls = pki::server_config(Serving::new(&issued).unwrap(), Some(""), &["h2", "http/1.1"]).unwrap();
        let listening = server.listen("127.0.0.1:0".parse().unwrap(), Arc::new(tls)).await.unwrap();
        (Reached { server, address: listening.address, authority }, listening)
    }

    pub async fn dial(&self, protocol: &str, shown: Option<&Credential>) -> TlsStream<TcpStream> {
        let client = pki::client_config(self.authority.certificate(), shown, &[protocol]).unwrap();
        let tcp = TcpStream::connect(self.address).await.unwrap();
        TlsConnector::from(Arc::new(client)).connect("127.0.0.1".try_into().unwrap(), tcp).await.unwrap()
    }

    /// One request over an HTTP/1.1 connection of its own.
    pub async fn ask(&self, shown: Option<&Credential>, request: Request<Full<Bytes>>) -> Answer {
        let io = TokioIo::new(self.dial("http/1.1", shown).await);
        let (mut sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        answer(sender.send_request(request).await.unwrap()).await
    }

    pub async fn over_http2(&self) -> http2::SendRequest<Full<Bytes>> {
        let io = TokioIo::new(self.dial("h2", None).await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

pub async fn answer(response: http::Response<hyper::body::Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let text = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text).into_owned();
    Answer { code: head.status.as_u16(), headers: head.headers, text }
}

/// A request of whoever has the token `secret`.
pub fn get(uri: &str) -> Request<Full<Bytes>> {
    Request::get(uri).header("host", "us").header("authorization", "Bearer secret").body(Full::default()).unwrap()
}
