//! Where a request comes from: the addresses that proxies name, and the one of the connection; the program that sent it.
//!
//! Upstream counterpart: apimachinery/pkg/util/net, SourceIPs; apiserver/pkg/audit, `request.go`.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
};

use http::{HeaderMap, HeaderName, request::Parts};

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
