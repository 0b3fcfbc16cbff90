//! How the API server reaches kubelets and Pods, and what it tells them of a client's request.

use std::sync::Arc;

use api::{Value, status::StatusError};
use bytes::Bytes;
use dialer::Endpoint;
use http::{HeaderValue, Request, header};

use crate::{
    call::Call,
    http::body::{Body, Response},
    outbound::dialer::{Dialer, bare},
    special::metrics::scrape::Ask,
    state::State,
};

/// The port of a kubelet that names none.
const DEFAULT_PORT: u64 = 10250;
/// A document of a kubelet is at most this long: some thousand containers.
const DOCUMENT_BYTES: usize = 8 * 1024 * 1024;

/// The ways to kubelets and Pods.
pub struct Connector {
    pub(super) kubelets: Dialer,
    pub(super) pods: Dialer,
    /// A server behind `https:` in a proxy's path shows whatever certificate it has, and ends its answers as it likes.
    pub(super) secure_pods: Dialer,
    address_types: Vec<String>,
    /// Clients may ask for one stream of a log.
    pub(super) selects_streams: bool,
}

impl Connector {
    /// `tls` shows the API server's client certificate, and knows the authority that kubelets' certificates must come from;
    /// `address_types` of nodes are in order of preference (`--kubelet-preferred-address-types`).
    pub fn new(tls: Arc<rustls::ClientConfig>, address_types: Vec<String>) -> Self {
        let anybody =
            pki::client_config_believing_all(None, &["http/1.1"]).expect("the provider has usual versions of TLS");
        let secure_pods = Dialer::tls(Arc::new(anybody)).taking_unannounced_ends();
        let (kubelets, pods) = (Dialer::tls(tls), Dialer::plain());
        Connector { kubelets, pods, secure_pods, address_types, selects_streams: false }
    }

    /// With the feature PodLogsQuerySplitStreams as it is switched.
    #[must_use]
    pub fn selecting_streams(mut self, on: bool) -> Self {
        self.selects_streams = on;
        self
    }

    /// Where a node's kubelet listens.
    pub(super) fn kubelet(&self, node: &Value) -> Result<Endpoint, StatusError> {
        kubelet(node, &self.address_types)
    }

    /// Passes a client's request on to a kubelet, with its upgrade if it asks for one.
    pub(super) async fn pass(&self, call: Call, path: &str, to: &Endpoint) -> Result<Response, StatusError> {
        Ok(self.kubelets.forward(to, request(call, path, to)?).await?.map(Body::Network))
    }
}

impl Connector {
    /// The function that reads `/metrics/resource` of a node's kubelet, as the API server itself.
    pub fn resource_metrics(self: &Arc<Self>) -> Ask {
        let connector = self.clone();
        Arc::new(move |node| {
            let connector = connector.clone();
            Box::pin(async move { connector.read(&node, "/metrics/resource").await })
        })
    }

    /// A bounded document of a kubelet. A redirect is not followed.
    async fn read(&self, node: &Value, path: &str) -> Result<Bytes, StatusError> {
        let to = self.kubelet(node)?;
        let request = Request::get(path).header(header::HOST, to.authority()).body(Body::empty());
        let answer = self.kubelets.forward(&to, request.map_err(StatusError::internal)?).await?;
        if !answer.status().is_success() {
            return Err(bare(format!("the kubelet answered {}", answer.status())));
        }
        Body::Network(answer.into_body()).read(DOCUMENT_BYTES, |_| Ok(())).await
    }
}

/// Reads an object that the request names.
pub(super) async fn object(state: &State, plural: &str, namespace: &str, name: &str) -> Result<Value, StatusError> {
    let objects = &state.objects;
    objects.get(&*objects.definition("", plural)?, namespace, name).await
}

/// The client's request, readdressed. Nothing in it tells who the client is.
pub(super) fn request(call: Call, path: &str, to: &Endpoint) -> Result<Request<Body>, StatusError> {
    let passed =
        call.info.passed.as_ref().ok_or_else(|| StatusError::internal("the request is not to be passed on"))?;
    let mut request = Request::new(call.body);
    *request.method_mut() = passed.method.clone();
    *request.uri_mut() = path.parse().map_err(|_| StatusError::bad_request(format!("invalid path {path:?}")))?;
    *request.headers_mut() = call.headers;
    *request.extensions_mut() = call.extensions;
    let host = HeaderValue::from_str(&to.authority()).map_err(StatusError::internal)?;
    request.headers_mut().insert(header::HOST, host);
    Ok(request)
}

/// The node's address of the most preferred type, with its kubelet's port.
fn kubelet(node: &Value, types: &[String]) -> Result<Endpoint, StatusError> {
    let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array);
    let known: Vec<(String, String)> =
        addresses.into_iter().flatten().map(|a| (text(a, "type"), text(a, "address"))).collect();
    let preferred = types.iter().find_map(|wanted| known.iter().find(|(kind, _)| kind == wanted));
    let Some((_, host)) = preferred else {
        let known: Vec<String> = known.iter().map(|(kind, address)| format!("{{{kind} {address}}}")).collect();
        return Err(bare(format!("no preferred addresses found; known addresses: [{}]", known.join(" "))));
    };
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    let port = u16::try_from(port.filter(|p| *p != 0).unwrap_or(DEFAULT_PORT)).map_err(StatusError::internal)?;
    Ok(Endpoint::new(host.clone(), port))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn endpoints_follow_the_preference() {
        let node = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10260}}}});
        let check = |node: &Value, types: &[&str], expected: &str| {
            let types: Vec<String> = types.iter().map(ToString::to_string).collect();
            let got = kubelet(node, &types).map_or_else(|e| e.message, |e| e.authority());
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
