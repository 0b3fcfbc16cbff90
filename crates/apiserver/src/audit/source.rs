//! Where a request comes from: the addresses that proxies name, and the one of the connection; what it shows of its sender.
//!
//! Upstream counterpart: apimachinery/pkg/util/net, SourceIPs; apiserver/pkg/endpoints/filters, `authn_audit.go`.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
};

use api::rules::url::query_pairs;
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, header::AUTHORIZATION, request::Parts};

use crate::http::access::Peer;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Longer user agents are cut, in bytes.
const AGENT: usize = 1024;

/// The addresses in the order in which the request passed them. All but the last one are the client's to say. A caller inside
/// this process is the machine itself.
pub fn addresses(parts: &Parts) -> Vec<IpAddr> {
    let remote = parts.extensions.get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |peer| peer.address.ip());
    named(&parts.headers, remote.to_canonical())
}

fn named(headers: &HeaderMap, remote: IpAddr) -> Vec<IpAddr> {
    let header = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let address = |text: &str| text.trim().parse::<IpAddr>().ok();
    let mut all: Vec<IpAddr> = header(&FORWARDED_FOR).split(',').filter_map(address).collect();
    all.extend(address(header(&REAL_IP)).filter(|real| !all.contains(real)));
    if all.last() != Some(&remote) {
        all.push(remote);
    }
    all
}

/// The sorts of credentials that a request shows of which none was accepted, never these themselves.
pub fn attempted(parts: &Parts) -> String {
    let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("").trim();
    let of = |wanted: &str| header.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case(wanted));
    let is_basic = |(_, text): (&str, &str)| STANDARD.decode(text).is_ok_and(|pair| pair.contains(&b':'));
    let query = parts.uri.query().unwrap_or("");
    let shown = [
        ("basic", of("basic").is_some_and(is_basic)),
        ("bearer", of("bearer").is_some()),
        ("access_token", query_pairs(query).any(|(key, text)| key == "access_token" && !text.trim().is_empty())),
        ("x509", parts.extensions.get::<Peer>().is_some_and(|peer| !peer.certificates.is_empty())),
    ];
    let sorts: Vec<&str> = shown.iter().filter(|(_, is)| *is).map(|(sort, _)| *sort).collect();
    match sorts[..] {
        [] => "Authentication failed, no credentials provided".to_owned(),
        _ => format!("Authentication failed, attempted: {}", sorts.join(", ")),
    }
}

/// The program that the client says it is.
pub fn agent(headers: &HeaderMap) -> Cow<'_, str> {
    let given = headers.get(http::header::USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let whole = given.unwrap_or_default();
    if whole.len() <= AGENT {
        return whole;
    }
    let end = (0..=AGENT).rev().find(|at| whole.is_char_boundary(*at)).unwrap_or(0);
    format!("{}...TRUNCATED", &whole[..end]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_in_the_order_of_the_way() {
        let check = |forwarded: &str, real: &str, expected: &[&str]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", forwarded.parse().unwrap());
            headers.insert("x-real-ip", real.parse().unwrap());
            let found: Vec<String> =
                named(&headers, "192.0.2.1".parse().unwrap()).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{forwarded} {real}");
        };
        check("", "", &["192.0.2.1"]);
        check("172.16.1.1", "", &["172.16.1.1", "192.0.2.1"]);
        check("172.16.1.1, 8.8.8.8", "", &["172.16.1.1", "8.8.8.8", "192.0.2.1"]);
        check("172.16.1.1, foo, 8.8.8.8", "", &["172.16.1.1", "8.8.8.8", "192.0.2.1"]);
        check("", "10.0.0.0", &["10.0.0.0", "192.0.2.1"]);
        check("172.16.1.1, 10.0.0.0", "10.0.0.0", &["172.16.1.1", "10.0.0.0", "192.0.2.1"]);
        check("172.16.1.1, 192.0.2.1", "", &["172.16.1.1", "192.0.2.1"]);
        check("2001:db8::1", "x", &["2001:db8::1", "192.0.2.1"]);
    }

    #[test]
    fn a_failed_sender_is_told_of_by_what_it_tried() {
        let check = |uri: &str, header: Option<&str>, certified: bool, expected: &str| {
            let mut request = http::Request::get(uri);
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            if certified {
                let address = "192.0.2.1:1".parse().unwrap();
                request = request.extension(Peer { address, certificates: vec![vec![1].into()].into() });
            }
            let message = attempted(&request.body(()).unwrap().into_parts().0);
            assert_eq!(message.strip_prefix("Authentication failed, ").unwrap(), expected, "{uri} {header:?}");
        };
        check("/api", None, false, "no credentials provided");
        check("/api", Some("Bearer"), false, "no credentials provided");
        check("/api", Some("bearer x"), false, "attempted: bearer");
        check("/api", Some("Basic eDp5"), false, "attempted: basic");
        check("/api", Some("Basic x"), true, "attempted: x509");
        check("/api?access_token=%20", None, false, "no credentials provided");
        check("/api?access_token=a", Some("Basic eDp5"), true, "attempted: basic, access_token, x509");
    }

    #[test]
    fn a_long_agent_is_cut() {
        let of = |text: String| {
            let mut headers = HeaderMap::new();
            headers.insert("user-agent", text.parse().unwrap());
            agent(&headers).into_owned()
        };
        assert_eq!(of("x".repeat(AGENT)), "x".repeat(AGENT));
        assert_eq!(of("x".repeat(AGENT + 1)), format!("{}...TRUNCATED", "x".repeat(AGENT)));
    }
}
