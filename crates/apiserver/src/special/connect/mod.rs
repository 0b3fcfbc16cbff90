//! Connections to nodes, pods and services through the API server: log, exec, attach, port-forward and proxy.
//!
//! The meaning of a request is worked out by pure functions (`pod`, `proxy`), `connector` knows where a node listens. Upgrades
//! are passed on as they are; WebSocket clients are translated where the other side speaks SPDY only.
//! Upstream counterpart: pkg/registry/core/{pod,node,service}, apimachinery/pkg/util/proxy.

pub mod connector;
mod links;
mod options;
mod pod;
mod proxy;

use std::sync::Arc;

use api::{Value, status::StatusError};
use dialer::Endpoint;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, StatusCode, header};
use stream::{
    upgrade,
    websocket::{self, Streams},
};

use connector::{Connector, object, request};

use crate::{
    auth::Attributes,
    call::Call,
    http::{
        body::{Body, Response},
        websocket::Asked,
    },
    outbound::dialer::{bare, why},
    special::table::{Special, Specials},
    state::State,
};

/// So much of a kubelet's error text is passed on.
const ERROR_BYTES: usize = 50_000;

/// Adds all connecting subresources to the table.
pub fn add(specials: &mut Specials, connector: &Arc<Connector>) {
    let all = [
        ("pods", "log", Target::Log),
        ("pods", "exec", Target::Stream("exec")),
        ("pods", "attach", Target::Stream("attach")),
        ("pods", "portforward", Target::PortForward),
        ("pods", "proxy", Target::PodProxy),
        ("nodes", "proxy", Target::NodeProxy),
        ("services", "proxy", Target::ServiceProxy),
    ];
    for (plural, subresource, target) in all {
        specials.add(("", plural, subresource), Connect { connector: connector.clone(), target });
    }
}

#[derive(Clone, Copy)]
enum Target {
    Log,
    /// `exec` or `attach`.
    Stream(&'static str),
    PortForward,
    PodProxy,
    NodeProxy,
    ServiceProxy,
}

struct Connect {
    connector: Arc<Connector>,
    target: Target,
}

impl Special for Connect {
    fn call(&self, mut call: Call) -> BoxFuture<'static, Result<Response, StatusError>> {
        let (connector, target) = (self.connector.clone(), self.target);
        Box::pin(async move {
            waypoint::apiserver::connect(&call.info.path);
            if matches!(target, Target::Stream(_) | Target::PortForward) {
                may_create(&call).await?;
            }
            options::admit(&mut call, target).await?;
            match target {
                Target::Log => log(&connector, call).await,
                Target::Stream(path) => stream_to(&connector, call, path).await,
                Target::PortForward => port_forward(&connector, call).await,
                Target::PodProxy => proxy::pod(&connector, call).await,
                Target::NodeProxy => proxy::node(&connector, call).await,
                Target::ServiceProxy => proxy::service(&connector, call).await,
            }
        })
    }
}

/// The kubelet that runs a Pod.
async fn kubelet_of(connector: &Connector, state: &State, pod: &Value) -> Result<Endpoint, StatusError> {
    connector.kubelet(&object(state, "nodes", "", pod::node_name(pod)).await?)
}

async fn log(connector: &Connector, mut call: Call) -> Result<Response, StatusError> {
    let options = pod::log_options(&call.info.name, &call.query, connector.selects_streams)?;
    let pod = object(&call.state, "pods", &call.info.namespace, &call.info.name).await?;
    let wanted = pod::log_path(&pod, &options)?;
    let websocket = Asked::take(&mut call.headers, &mut call.extensions);
    let told = |log: Body| match websocket {
        Some(asked) => asked.log(log),
        None => text(log),
    };
    if pod::node_name(&pod).is_empty() {
        // Nothing was logged yet.
        return Ok(told(Body::empty()));
    }
    let endpoint = kubelet_of(connector, &call.state, &pod).await?;
    call.body = Body::empty();
    // The text is passed on piece by piece, as it is written.
    call.headers.remove(header::ACCEPT_ENCODING);
    let name = call.info.name.clone();
    let answer = connector.kubelets.forward(&endpoint, request(call, &wanted, &endpoint)?).await;
    let answer = answer.map_err(|error| unread(&endpoint, &wanted, &error))?;
    let code = answer.status();
    if code.is_success() {
        return Ok(told(Body::Network(answer.into_body())));
    }
    let said = Body::Network(answer.into_body()).collect(ERROR_BYTES).await?;
    let said = String::from_utf8_lossy(&said).trim_end().to_owned();
    Err(match code {
        StatusCode::BAD_REQUEST => StatusError::bad_request(said),
        StatusCode::NOT_FOUND => StatusError::new(
            404,
            "NotFound",
            format!("the server could not find the requested resource ( pods/log {name})"),
        ),
        _ => StatusError::internal(said),
    })
}

/// A log that could not be asked for, as Go's client says it.
fn unread(kubelet: &Endpoint, path: &str, error: &StatusError) -> StatusError {
    bare(format!("Get {:?}: {}", format!("https://{}{path}", kubelet.authority()), why(error)))
}

fn text(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

async fn stream_to(connector: &Connector, call: Call, path: &'static str) -> Result<Response, StatusError> {
    let pod = object(&call.state, "pods", &call.info.namespace, &call.info.name).await?;
    let (wanted, streams) = pod::stream_path(path, &pod, &call.query)?;
    let endpoint = kubelet_of(connector, &call.state, &pod).await?;
    check_upgrade(&call)?;
    if let Some(protocol) = websocket::offered(&call.headers, &websocket::REMOTE_COMMAND) {
        return translated(connector, call, protocol, &endpoint, &wanted, Translation::Command(streams)).await;
    }
    connector.pass(call, &wanted, &endpoint).await
}

async fn port_forward(connector: &Connector, call: Call) -> Result<Response, StatusError> {
    let pod = object(&call.state, "pods", &call.info.namespace, &call.info.name).await?;
    let wanted = pod::port_forward_path(&pod, &call.query)?;
    let endpoint = kubelet_of(connector, &call.state, &pod).await?;
    check_upgrade(&call)?;
    if let Some(protocol) = websocket::offered(&call.headers, &[websocket::PORT_FORWARD]) {
        return translated(connector, call, protocol, &endpoint, &wanted, Translation::Tunnel).await;
    }
    connector.pass(call, &wanted, &endpoint).await
}

/// How a WebSocket client is served by a kubelet that speaks SPDY.
enum Translation {
    Command(Streams),
    Tunnel,
}

impl Translation {
    /// The protocols to offer to the kubelet, best first.
    fn protocols(&self) -> &'static [&'static str] {
        match self {
            Translation::Command(_) => {
                &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]
            }
            Translation::Tunnel => &["portforward.k8s.io"],
        }
    }
}

/// Opens a SPDY connection to the kubelet first, so that its refusal still is the answer to the client's request; then
/// accepts the client's WebSocket and joins the two.
async fn translated(
    connector: &Connector,
    call: Call,
    protocol: &str,
    endpoint: &Endpoint,
    path: &str,
    translation: Translation,
) -> Result<Response, StatusError> {
    let missing = || StatusError::bad_request("the WebSocket request has no Sec-WebSocket-Key");
    let accepted = websocket::accept(&call.headers, protocol).ok_or_else(missing)?;
    let mut client = Request::new(());
    *client.extensions_mut() = call.extensions;
    let mut spdy = Request::post(path)
        .header(header::HOST, endpoint.authority())
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "SPDY/3.1");
    for protocol in translation.protocols() {
        spdy = spdy.header("X-Stream-Protocol-Version", *protocol);
    }
    let answer = connector.kubelets.open(endpoint, spdy.body(Body::empty()).map_err(StatusError::internal)?).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer.map(Body::Network));
    }
    let (near, far) = (hyper::upgrade::on(&mut client), hyper::upgrade::on(answer));
    match translation {
        Translation::Command(streams) => tokio::spawn(websocket::remote_command(near, far, streams)),
        Translation::Tunnel => tokio::spawn(websocket::tunnel(near, far)),
    };
    Ok(accepted.map(|()| Body::empty()))
}

/// Whether a request that can stream asks for it. A Pod that is not there, or runs nowhere, is told before.
fn check_upgrade(call: &Call) -> Result<(), StatusError> {
    if upgrade::is_upgrade(&call.headers) {
        return Ok(());
    }
    Err(StatusError::bad_request("Upgrade request required"))
}

/// A WebSocket begins with a GET, which a role may allow to readers; opening a stream takes the right to create.
async fn may_create(call: &Call) -> Result<(), StatusError> {
    call.state.ask(&Attributes { verb: "create", ..Attributes::of(&call.user, &call.info) }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_kubelets_log_is_told_as_go_tells_it() {
        let refused = "dial tcp 10.0.0.1:10250: connect: connection refused";
        let error = bare(format!("error dialing backend: {refused}"));
        let told = unread(&Endpoint::new("10.0.0.1".to_owned(), 10250), "/containerLogs/d/p/c?follow=true", &error);
        let message = format!("Get \"https://10.0.0.1:10250/containerLogs/d/p/c?follow=true\": {refused}");
        assert_eq!((told.code, &*told.reason, told.message), (500, "", message));
    }
}
