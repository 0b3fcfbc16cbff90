//! The proxy subresources of pods, nodes and services: any HTTP request, passed on to an address inside the cluster.

use std::net::IpAddr;

use api::{Value, status::StatusError};
use dialer::Endpoint;
use futures::StreamExt;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyStream;
use stream::upgrade;

use super::connector::{Connector, object, request};
use super::links::{Page, Place};
use crate::{
    call::Call,
    http::body::{Body, Response},
    outbound::{
        dialer::{Dialer, why},
        service,
    },
    special::forwarded,
};

/// `name`, `name:port` or `scheme:name:port`, as the name in a proxy's path may be written.
#[derive(Debug, PartialEq, Eq)]
struct Named<'a> {
    scheme: &'a str,
    name: &'a str,
    port: &'a str,
}

fn split<'a>(text: &'a str, what: &str) -> Result<Named<'a>, StatusError> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [name] if !name.is_empty() => Ok(Named { scheme: "", name, port: "" }),
        [name, port] if !name.is_empty() => Ok(Named { scheme: "", name, port }),
        [scheme @ ("http" | "https" | ""), name, port] if !name.is_empty() => Ok(Named { scheme, name, port }),
        _ => Err(StatusError::bad_request(format!("invalid {what} request {text:?}"))),
    }
}

/// Whether a request without a path is sent on to the folder `/`. Only one that reads is: a client that follows the redirection
/// of another would read instead of what it was about to do.
fn leads_to_folder(method: &Method, rest: &str) -> bool {
    rest.is_empty() && matches!(*method, Method::GET | Method::HEAD)
}

/// The path behind `/proxy`, raw, or the answer that sends the client to the folder `/`.
fn rest(call: &Call) -> Result<String, Box<Response>> {
    let Some(passed) = &call.info.passed else { return Ok("/".to_owned()) };
    let query = if call.query.is_empty() { String::new() } else { format!("?{}", call.query) };
    if leads_to_folder(&passed.method, &passed.rest) && !upgrade::is_upgrade(&call.headers) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(target) = HeaderValue::from_str(&format!("{}/{query}", passed.base)) {
            response.headers_mut().insert(header::LOCATION, target);
        }
        return Err(Box::new(response));
    }
    Ok(format!("{}{query}", if passed.rest.is_empty() { "/" } else { &passed.rest }))
}

/// The address to dial. Requests may reach pods and nodes, not the API server's own machine or its neighbours on the
/// link, whatever the object says and in whatever form it says so.
fn allowed(address: &str) -> Result<IpAddr, StatusError> {
    api::rules::ip::reachable(address).ok_or_else(|| StatusError::bad_request("address not allowed"))
}

fn port_number(port: &str) -> Result<u16, StatusError> {
    port.parse().map_err(|_| StatusError::bad_request(format!("invalid port {port:?}")))
}

/// Passes the request on to a Pod or another server of the cluster.
async fn pass(
    connector: &Connector,
    call: Call,
    scheme: &str,
    to: Endpoint,
    path: &str,
) -> Result<Response, StatusError> {
    let to = Endpoint { host: allowed(&to.host)?.to_string(), ..to };
    let dialer = if scheme == "https" { &connector.secure_pods } else { &connector.pods };
    let (call, place) = placed(call, &to);
    Ok(through(forward(dialer, &to, readdressed(call, path, &to)?).await?, place))
}

/// The other server's answer. Without one the request had no server to go to, but an upgrade was a connection that failed.
async fn forward(dialer: &Dialer, to: &Endpoint, request: Request<Body>) -> Result<Response, StatusError> {
    let upgrade = upgrade::is_upgrade(request.headers());
    match dialer.forward(to, request).await {
        Ok(answer) => Ok(answer.map(Body::Network)),
        Err(error) if upgrade => Err(error),
        Err(error) => Err(StatusError::unavailable(format!("error trying to reach service: {}", why(&error)))),
    }
}

/// The client's request as a Pod, a node or a Service gets it: under the name that the client has for the API server.
fn readdressed(mut call: Call, path: &str, to: &Endpoint) -> Result<Request<Body>, StatusError> {
    let host = call.headers.get(header::HOST).cloned();
    if let Some(passed) = &call.info.passed {
        forwarded::tell(&mut call.headers, &call.extensions, passed, None)?;
    }
    let mut request = request(call, path, to)?;
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
    Ok(request)
}

/// The request, and where its answer's links lead. A browser gets its pages plain, so that their links can be read.
fn placed(mut call: Call, to: &Endpoint) -> (Call, Place) {
    let base = call.info.passed.as_ref().map(|passed| passed.base.clone()).unwrap_or_default();
    let here = call.header(header::HOST).to_owned();
    if call.header(header::ACCEPT).contains("text/html") {
        call.headers.remove(header::ACCEPT_ENCODING);
    }
    let here = if here.is_empty() { to.authority() } else { here };
    (call, Place { base, hosts: [to.authority(), here] })
}

/// The headers that the proxied server may not send to a browser in the API server's name.
const CROSS_ORIGIN: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// The answer with its redirects and the links of its pages leading through the proxy.
fn through(mut answer: Response, place: Place) -> Response {
    CROSS_ORIGIN.iter().for_each(|name| drop(answer.headers_mut().remove(*name)));
    let text = |name: HeaderName| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let location = text(header::LOCATION);
    if !location.is_empty() {
        if let Some(Ok(location)) = place.through(location).map(|location| HeaderValue::from_str(&location)) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
        return answer;
    }
    let kind = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    let plain = matches!(text(header::CONTENT_ENCODING), "" | "identity");
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS || !matches!(kind, "" | "text/html") || !plain {
        return answer;
    }
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    answer.map(|body| page(body, place))
}

/// A page whose links change as it passes.
fn page(body: Body, place: Place) -> Body {
    let start = Some((BodyStream::new(body), Page::new(place)));
    Body::stream(futures::stream::unfold(start, async |state| {
        let (mut frames, mut page) = state?;
        Some(match frames.next().await {
            Some(Ok(frame)) => {
                let piece = frame.into_data().unwrap_or_default();
                (Ok(page.take(&piece).into()), Some((frames, page)))
            }
            Some(Err(error)) => (Err(error), None),
            None => (Ok(page.end().into()), None),
        })
    }))
}

pub(super) async fn pod(connector: &Connector, call: Call) -> Result<Response, StatusError> {
    let id = call.info.name.clone();
    let named = split(&id, "pod")?;
    let pod = object(&call.state, "pods", &call.info.namespace, named.name).await?;
    let host = pod.pointer("/status/podIP").and_then(Value::as_str).unwrap_or("").to_owned();
    let port = if named.port.is_empty() { first_port(&pod).unwrap_or(80) } else { port_number(named.port)? };
    let path = match rest(&call) {
        Ok(path) => path,
        Err(redirect) => return Ok(*redirect),
    };
    pass(connector, call, named.scheme, Endpoint::new(host, port), &path).await
}

fn first_port(pod: &Value) -> Option<u16> {
    let containers = pod.pointer("/spec/containers")?.as_array()?;
    let ports = containers.iter().filter_map(|c| c.get("ports")?.as_array()?.first()?.get("containerPort")?.as_u64());
    ports.into_iter().next().and_then(|port| u16::try_from(port).ok())
}

pub(super) async fn node(connector: &Connector, call: Call) -> Result<Response, StatusError> {
    let id = call.info.name.clone();
    let named = split(&id, "node")?;
    let node = object(&call.state, "nodes", "", named.name).await?;
    let endpoint = connector.kubelet(&node)?;
    let path = match rest(&call) {
        Ok(path) => path,
        Err(redirect) => return Ok(*redirect),
    };
    if named.port.is_empty() || named.port == endpoint.port.to_string() {
        let (call, place) = placed(call, &endpoint);
        let answer = forward(&connector.kubelets, &endpoint, readdressed(call, &path, &endpoint)?).await?;
        return Ok(through(answer, place));
    }
    let to = Endpoint { port: port_number(named.port)?, ..endpoint };
    pass(connector, call, named.scheme, to, &path).await
}

pub(super) async fn service(connector: &Connector, call: Call) -> Result<Response, StatusError> {
    let id = call.info.name.clone();
    let named = split(&id, "service")?;
    let found = service::resolve(&call.state.objects, &call.info.namespace, named.name, named.port).await?;
    let none = || StatusError::unavailable(format!("no endpoints available for service \"{id}\""));
    let endpoint = found.ok_or_else(none)?;
    let path = match rest(&call) {
        Ok(path) => path,
        Err(redirect) => return Ok(*redirect),
    };
    pass(connector, call, named.scheme, endpoint, &path).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::tests::over_tls;

    #[test]
    fn names_in_paths() {
        let check = |text: &str, expected: &str| {
            let got = split(text, "pod").map(|n| format!("{}|{}|{}", n.scheme, n.name, n.port));
            assert_eq!(got.unwrap_or_else(|e| e.message), expected);
        };
        check("a", "|a|");
        check("a:80", "|a|80");
        check("https:a:http", "https|a|http");
        check("https:a:", "https|a|");
        check("ftp:a:80", "invalid pod request \"ftp:a:80\"");
        check(":80", "invalid pod request \":80\"");
    }

    #[test]
    fn only_readers_are_sent_on_to_the_folder() {
        for (method, rest, sent) in [
            (Method::GET, "", true),
            (Method::HEAD, "", true),
            (Method::GET, "/", false),
            (Method::DELETE, "", false),
            (Method::OPTIONS, "", false),
            (Method::PATCH, "", false),
            (Method::POST, "", false),
            (Method::PUT, "", false),
        ] {
            assert_eq!(leads_to_folder(&method, rest), sent, "{method} {rest:?}");
        }
    }

    #[tokio::test]
    async fn a_port_where_nothing_listens_is_no_service() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let to = Endpoint::new(free.ip().to_string(), free.port());
        let refused = format!("dial tcp {free}: connect: connection refused");
        let check = async |upgrade: Option<&str>, code: u16, reason: &str, message: String| {
            let mut request = Request::get("/").header(header::HOST, to.authority());
            if let Some(protocol) = upgrade {
                request = request.header(header::CONNECTION, "Upgrade").header(header::UPGRADE, protocol);
            }
            let error =
                forward(&Dialer::plain(), &to, request.body(Body::empty()).unwrap()).await.map(drop).unwrap_err();
            assert_eq!((error.code, &*error.reason, error.message), (code, reason, message));
        };
        check(None, 503, "ServiceUnavailable", format!("error trying to reach service: {refused}")).await;
        check(Some("websocket"), 500, "", format!("error dialing backend: {refused}")).await;
    }

    /// Some servers close TCP without a word in TLS, which Go takes for an end.
    #[tokio::test]
    async fn a_secure_server_need_not_say_that_its_answer_ends() {
        let issued = pki::Authority::create("a").unwrap().issue(&pki::Subject::server("s", Vec::new())).unwrap();
        let (address, listening) = over_tls::listen(pki::Serving::new(&issued).unwrap(), None, async |mut io| {
            let mut head = [0; 16];
            io.read_exact(&mut head).await.unwrap();
            io.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it").await.unwrap();
            io.flush().await.unwrap();
            io.into_inner().0.shutdown().await.unwrap();
        })
        .await;
        let to = Endpoint::new(address.ip().to_string(), address.port());
        let tls = || Arc::new(pki::client_config_believing_all(None, &["http/1.1"]).unwrap());
        let connector = Connector::new(tls(), Vec::new());
        let ask = async |dialer: &Dialer| {
            let request = Request::get("/").header(header::HOST, "a").body(Body::empty()).unwrap();
            forward(dialer, &to, request).await.unwrap().into_body().collect(1 << 10).await
        };
        assert_eq!(ask(&connector.secure_pods).await.unwrap(), "all of it");
        assert!(ask(&connector.kubelets).await.is_err(), "of a kubelet that is no end");
        listening.abort();
    }

    #[test]
    fn addresses() {
        for refused in [
            "",
            "127.0.0.1",
            "::1",
            "169.254.1.1",
            "fe80::1",
            "0.0.0.0",
            "224.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:127.0.0.1",
            "0177.0.0.1.2",
            "localhost",
            "2130706433",
        ] {
            assert_eq!(allowed(refused).unwrap_err().message, "address not allowed", "{refused}");
        }
        assert_eq!(allowed("10.1.2.3").unwrap().to_string(), "10.1.2.3");
    }
}
