//! Where a node's kubelet listens, and connections to it.

use api::{Value, status::StatusError};
use http::Request;
use hyper::body::Incoming;
use rustls_pki_types::ServerName;
use stream::upgrade::{self, ForwardError};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Connector, DIAL_TIMEOUT, plain};
use crate::http::body::{Body, Response};

/// The port of a kubelet that names none.
const DEFAULT_PORT: u64 = 10250;

/// Host and port of a kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub host: String,
    pub port: u16,
}

impl Endpoint {
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// The node's address of the most preferred type, with its kubelet's port.
pub(super) fn endpoint(node: &Value, types: &[String]) -> Result<Endpoint, StatusError> {
    let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array);
    let known: Vec<(String, String)> =
        addresses.into_iter().flatten().map(|a| (text(a, "type"), text(a, "address"))).collect();
    let preferred = types.iter().find_map(|wanted| known.iter().find(|(kind, _)| kind == wanted));
    let Some((_, host)) = preferred else {
        let known: Vec<String> = known.iter().map(|(kind, address)| format!("{{{kind} {address}}}")).collect();
        return Err(plain(format!("no preferred addresses found; known addresses: [{}]", known.join(" "))));
    };
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    let port = u16::try_from(port.filter(|p| *p != 0).unwrap_or(DEFAULT_PORT)).map_err(StatusError::internal)?;
    Ok(Endpoint { host: host.clone(), port })
}

/// Opens a TCP connection, in bounded time.
pub(super) async fn dial_plain(host: &str, port: u16) -> Result<TcpStream, StatusError> {
    let authority = Endpoint { host: host.to_owned(), port }.authority();
    let failed = |why: &dyn std::fmt::Display| plain(format!("error dialing backend: dial tcp {authority}: {why}"));
    let connected = clock::timeout(DIAL_TIMEOUT, TcpStream::connect((host, port))).await;
    let tcp = connected.map_err(|_| failed(&"i/o timeout"))?.map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => failed(&"connect: connection refused"),
        _ => failed(&error),
    })?;
    // Terminals send single bytes.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}

impl Connector {
    async fn dial(&self, endpoint: &Endpoint) -> Result<tokio_rustls::client::TlsStream<TcpStream>, StatusError> {
        let tcp = dial_plain(&endpoint.host, endpoint.port).await?;
        let name = ServerName::try_from(endpoint.host.clone()).map_err(StatusError::internal)?;
        let handshake = TlsConnector::from(self.tls.clone()).connect(name, tcp);
        let done = clock::timeout(DIAL_TIMEOUT, handshake).await;
        let done = done.map_err(|_| plain("error dialing backend: net/http: TLS handshake timeout".to_owned()))?;
        done.map_err(|error| plain(format!("error dialing backend: tls: {error}")))
    }

    /// Sends a request of our own to a kubelet; an upgrade stays with the answer.
    pub(super) async fn open(
        &self,
        endpoint: &Endpoint,
        request: Request<Body>,
    ) -> Result<http::Response<Incoming>, StatusError> {
        upgrade::send(request, self.dial(endpoint).await?).await.map_err(|e| unanswered(&e))
    }

    /// Sends a client's request to a kubelet. An upgrade joins the two connections.
    pub(super) async fn send(
        &self,
        endpoint: &Endpoint,
        request: Request<Body>,
    ) -> Result<http::Response<Incoming>, StatusError> {
        upgrade::forward(request, self.dial(endpoint).await?).await.map_err(|e| unanswered(&e))
    }

    /// Passes a request on to a kubelet, with its upgrade if it asks for one.
    pub(super) async fn pass(&self, endpoint: &Endpoint, request: Request<Body>) -> Result<Response, StatusError> {
        Ok(self.send(endpoint, request).await?.map(Body::Network))
    }
}

pub(super) fn unanswered(error: &ForwardError) -> StatusError {
    plain(format!("error dialing backend: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_follow_the_preference() {
        let node = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10260}}}});
        let check = |node: &Value, types: &[&str], expected: &str| {
            let types: Vec<String> = types.iter().map(ToString::to_string).collect();
            let got = endpoint(node, &types).map_or_else(|e| e.message, |e| e.authority());
            assert_eq!(got, expected);
        };
        check(&node, &["Hostname", "InternalIP"], "n:10260");
        check(&node, &["ExternalIP", "InternalIP"], "10.0.0.1:10260");
        let none = "no preferred addresses found; known addresses: [{InternalIP 10.0.0.1} {Hostname n}]";
        check(&node, &["ExternalIP"], none);
        let six = json!({"status": {"addresses": [{"type": "InternalIP", "address": "fd00::1"}]}});
        check(&six, &["InternalIP"], "[fd00::1]:10250");
    }
}
