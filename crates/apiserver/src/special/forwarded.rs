//! The headers by which a server is told of a request that was passed on to it.
//! Upstream counterpart: apimachinery/pkg/util/proxy/transport.go and, for the client's address, Go's httputil.ReverseProxy.

use api::{rules::url::percent_decode, status::StatusError};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use stream::upgrade::{is_upgrade, strip_hop_by_hop};

use crate::http::{access::Peer, request::Passed};

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Tells of the client and, but for an upgrade, of the request. `server` is the authority of another API server, which is reached
/// over TLS; of Pods, nodes and Services upstream tells none.
///
/// A header that the client counts among those of its connection is taken out first: none of these must be.
pub(super) fn tell(
    headers: &mut HeaderMap,
    extensions: &Extensions,
    passed: &Passed,
    server: Option<&str>,
) -> Result<(), StatusError> {
    if !is_upgrade(headers) {
        strip_hop_by_hop(headers);
        headers.insert(URI, path(passed)?);
        if let Some(server) = server {
            headers.insert(HOST, HeaderValue::from_str(server).map_err(StatusError::internal)?);
            headers.insert(PROTO, HeaderValue::from_static("https"));
        }
    }
    if let Some(peer) = extensions.get::<Peer>() {
        let before = headers.get_all(FOR).iter().filter_map(|value| value.to_str().ok());
        let all: Vec<String> = before.map(str::to_owned).chain([peer.address.ip().to_string()]).collect();
        headers.insert(FOR, HeaderValue::from_str(&all.join(", ")).map_err(StatusError::internal)?);
    }
    Ok(())
}

/// The path as the client wrote it, decoded where a header can hold that.
fn path(passed: &Passed) -> Result<HeaderValue, StatusError> {
    let raw = format!("{}{}", passed.base, passed.rest);
    let decoded = HeaderValue::from_bytes(percent_decode(&raw).as_bytes());
    decoded.or_else(|_| HeaderValue::from_str(&raw)).map_err(StatusError::internal)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn a_server_is_told_of_the_request_and_the_client() {
        let check = |given: &[(&'static str, &str)], rest: &str, server: Option<&str>, expected: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in given {
                headers.append(*name, value.parse().expect("a value"));
            }
            let mut extensions = Extensions::new();
            let address = "192.0.2.7:4711".parse().expect("an address");
            extensions.insert(Peer { address, certificates: Vec::new().into() });
            let passed = Passed { method: Method::GET, base: "/base".to_owned(), rest: rest.to_owned() };
            tell(&mut headers, &extensions, &passed, server).expect("these fit into headers");
            let mut told: Vec<(&str, &str)> = headers
                .iter()
                .filter(|(name, _)| name.as_str().starts_with("x-"))
                .map(|(name, value)| (name.as_str(), value.to_str().expect("text")))
                .collect();
            told.sort_unstable();
            assert_eq!(told, expected);
        };
        let client = ("x-forwarded-for", "192.0.2.7");
        check(&[], "/a%20b/", None, &[client, ("x-forwarded-uri", "/base/a b/")]);
        check(&[], "/a%0ab", None, &[client, ("x-forwarded-uri", "/base/a%0ab")]);
        let server = ("x-forwarded-host", "a.b:443");
        let proto = ("x-forwarded-proto", "https");
        check(&[], "", Some("a.b:443"), &[client, server, proto, ("x-forwarded-uri", "/base")]);
        check(
            &[
                ("x-forwarded-for", "10.0.0.1, 10.0.0.2"),
                ("x-forwarded-for", "10.0.0.3"),
                ("x-forwarded-uri", "/lie"),
                ("connection", "x-forwarded-uri, x-own"),
                ("x-own", "a"),
            ],
            "/x",
            None,
            &[("x-forwarded-for", "10.0.0.1, 10.0.0.2, 10.0.0.3, 192.0.2.7"), ("x-forwarded-uri", "/base/x")],
        );
        check(&[("connection", "Upgrade"), ("upgrade", "spdy")], "/x", Some("a.b"), &[client]);
    }
}
