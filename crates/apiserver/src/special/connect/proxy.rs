//! The proxy subresources of pods, nodes and services: any HTTP request, passed on to an address inside the cluster.

use std::net::IpAddr;

use api::{Value, status::StatusError};
use http::{HeaderValue, StatusCode, header};
use stream::upgrade;

use super::{Connector, kubelet, object, request};
use crate::{call::Call, http::body::Body, http::body::Response};

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

/// What follows `/proxy` in the raw path, or the answer that sends the client to the folder `/`.
fn rest(call: &Call) -> Result<String, Box<Response>> {
    let Some(passed) = &call.info.passed else { return Ok("/".to_owned()) };
    let query = if call.query.is_empty() { String::new() } else { format!("?{}", call.query) };
    if passed.rest.is_empty() && !upgrade::is_upgrade(&call.headers) {
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

async fn pass(call: Call, scheme: &str, host: &str, port: u16, path: &str) -> Result<Response, StatusError> {
    if scheme == "https" {
        return Err(StatusError::new(501, "", "proxying to https backends is not supported"));
    }
    let address = allowed(host)?;
    let authority = kubelet::Endpoint { host: address.to_string(), port }.authority();
    let request = request(call, path, &authority)?;
    let io = kubelet::dial_plain(&address.to_string(), port).await?;
    Ok(upgrade::forward(request, io).await.map_err(|e| kubelet::unanswered(&e))?.map(Body::Network))
}

pub(super) async fn pod(call: Call) -> Result<Response, StatusError> {
    let path = match rest(&call) {
        Ok(path) => path,
        Err(redirect) => return Ok(*redirect),
    };
    let id = call.info.name.clone();
    let named = split(&id, "pod")?;
    let pod = object(&call.state, "pods", &call.info.namespace, named.name).await?;
    let address = pod.pointer("/status/podIP").and_then(Value::as_str).unwrap_or("").to_owned();
    let port = if named.port.is_empty() { first_port(&pod).unwrap_or(80) } else { port_number(named.port)? };
    pass(call, named.scheme, &address, port, &path).await
}

fn first_port(pod: &Value) -> Option<u16> {
    let containers = pod.pointer("/spec/containers")?.as_array()?;
    let ports = containers.iter().filter_map(|c| c.get("ports")?.as_array()?.first()?.get("containerPort")?.as_u64());
    ports.into_iter().next().and_then(|port| u16::try_from(port).ok())
}

pub(super) async fn node(connector: &Connector, call: Call) -> Result<Response, StatusError> {
    let path = match rest(&call) {
        Ok(path) => path,
        Err(redirect) => return Ok(*redirect),
    };
    let id = call.info.name.clone();
    let named = split(&id, "node")?;
    let node = object(&call.state, "nodes", "", named.name).await?;
    let endpoint = kubelet::endpoint(&node, &connector.address_types)?;
    if named.port.is_empty() || named.port == endpoint.port.to_string() {
        return connector.pass(&endpoint, request(call, &path, &endpoint.authority())?).await;
    }
    pass(call, named.scheme, &endpoint.host, port_number(named.port)?, &path).await
}

pub(super) async fn service(call: Call) -> Result<Response, StatusError> {
    let path = match rest(&call) {
        Ok(path) => path,
        Err(redirect) => return Ok(*redirect),
    };
    let id = call.info.name.clone();
    let named = split(&id, "service")?;
    let service = object(&call.state, "services", &call.info.namespace, named.name).await?;
    let port = service_port(&service, named.name, named.port)?;
    let endpoints = object(&call.state, "endpoints", &call.info.namespace, named.name).await?;
    let backends = backends(&endpoints, &port);
    if backends.is_empty() {
        return Err(StatusError::unavailable(format!("no endpoints available for service \"{id}\"")));
    }
    let chosen = clock::random_range(0..backends.len() as u64) as usize;
    let (address, port) = &backends[chosen];
    pass(call, named.scheme, address, *port, &path).await
}

/// The name of the service's port that is meant; ports may be given by name or number, and a single one left out.
fn service_port(service: &Value, name: &str, wanted: &str) -> Result<String, StatusError> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let name_of = |port: &Value| port.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
    match (wanted.parse::<u64>(), ports) {
        (Err(_), [only]) if wanted.is_empty() => Ok(name_of(only)),
        (Err(_), _) => Ok(wanted.to_owned()),
        (Ok(number), _) => {
            let found = ports.iter().find(|p| p.get("port").and_then(Value::as_u64) == Some(number));
            let missing = || StatusError::unavailable(format!("no service port {number} found for service \"{name}\""));
            found.map(name_of).ok_or_else(missing)
        }
    }
}

/// The ready addresses behind the port of that name.
fn backends(endpoints: &Value, port: &str) -> Vec<(String, u16)> {
    let list = |v: &Value, key: &str| v.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut all = Vec::new();
    for subset in list(endpoints, "subsets") {
        let ports = list(&subset, "ports");
        let wanted = ports.iter().find(|p| p.get("name").and_then(Value::as_str).unwrap_or("") == port);
        let number = wanted.and_then(|p| u16::try_from(p.get("port")?.as_u64()?).ok());
        let addresses = list(&subset, "addresses");
        let ips = addresses.iter().filter_map(|a| a.get("ip")?.as_str());
        all.extend(number.into_iter().flat_map(|number| ips.clone().map(move |ip| (ip.to_owned(), number))));
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
    fn services_lead_to_ready_addresses() {
        let service = json!({"spec": {"ports": [{"name": "web", "port": 80}]}});
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "notReadyAddresses": [{"ip": "10.0.0.3"}],
             "ports": [{"name": "web", "port": 8080}]}, {"addresses": [{"ip": "10.0.0.4"}]}]});
        for wanted in ["", "80", "web"] {
            let port = service_port(&service, "s", wanted).unwrap();
            let found = vec![("10.0.0.1".to_owned(), 8080), ("10.0.0.2".to_owned(), 8080)];
            assert_eq!(backends(&endpoints, &port), found, "{wanted:?}");
        }
        assert_eq!(
            service_port(&service, "s", "81").unwrap_err().message,
            "no service port 81 found for service \"s\""
        );
        assert!(backends(&endpoints, "other").is_empty());
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
