//! Single words of a Corefile. Pure.

use std::net::{IpAddr, SocketAddr};

use clock::Duration;
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RecordType},
};
use ipnet::IpNet;
use regex::{Regex, RegexBuilder};

use crate::question;

/// The longest pattern, as CoreDNS bounds it, and what a compiled one may take.
const MAX_PATTERN: usize = 10_000;
const MAX_COMPILED: usize = 1 << 20;

/// The zones that a server block's key stands for: a name, or the reverse zones of a network; on this port alone.
pub fn server_key(key: &str) -> Result<Vec<String>, String> {
    let key = key.strip_prefix("dns://").unwrap_or(key);
    if let Some((scheme, _)) = key.split_once("://") {
        return Err(format!("cluster DNS speaks plain DNS to its Pods, not {scheme}"));
    }
    let (zone, port) = match key.rsplit_once(':') {
        Some((zone, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !zone.contains(':') => (zone, Some(port)),
        _ => (key, None),
    };
    if port.is_some_and(|p| p != "53") {
        return Err(format!("{key}: cluster DNS is at port 53 of its Service alone"));
    }
    zones(zone)
}

/// A zone by its name, or those of a network.
pub fn zones(word: &str) -> Result<Vec<String>, String> {
    if let Ok(net) = word.parse::<IpNet>() {
        return reverse_zones(net).ok_or_else(|| format!("{word} needs more than 256 reverse zones"));
    }
    name(word).map(|zone| vec![zone])
}

/// The zones that words name, or others where there are none.
pub fn zones_or(words: &[String], block: &[String]) -> Result<Vec<String>, String> {
    if words.is_empty() {
        return Ok(block.to_vec());
    }
    let mut found = Vec::new();
    for word in words {
        found.extend(zones(word)?);
    }
    Ok(found)
}

/// A name as the rest of the crate writes it.
pub fn name(word: &str) -> Result<String, String> {
    let dotted = format!("{}.", word.trim_end_matches('.'));
    match Name::from_ascii(&dotted) {
        Ok(name) => Ok(question::text(&name)),
        Err(_) => Err(format!("{word:?} is not a domain name")),
    }
}

/// The zones of a network's addresses, of whole labels: the next longer prefix that ends between two.
fn reverse_zones(net: IpNet) -> Option<Vec<String>> {
    let step = if net.addr().is_ipv4() { 8 } else { 4 };
    let whole = net.prefix_len().div_ceil(step) * step;
    let parts = net.subnets(whole).ok()?;
    let labels = usize::from(whole / step);
    let zones = parts.take(257).map(|part| {
        let full = reverse_name(part.addr());
        let drop = if step == 8 { 4 } else { 32 } - labels;
        full.splitn(drop + 1, '.').last().unwrap_or_default().to_owned()
    });
    let zones: Vec<String> = zones.collect();
    (zones.len() <= 256).then_some(zones)
}

/// The reverse-lookup name of an address: `7.0.96.10.in-addr.arpa`.
pub fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(v6) => {
            let nibbles = v6.octets().into_iter().rev().flat_map(|b| [b & 0xf, b >> 4]);
            let dotted: Vec<String> = nibbles.map(|n| format!("{n:x}")).collect();
            format!("{}.ip6.arpa", dotted.join("."))
        }
    }
}

/// A time as Go writes it: `1m30s`, `500ms`.
pub fn duration(word: &str) -> Result<Duration, String> {
    let nanos = api::custom::formats::go_duration(word).and_then(|nanos| u64::try_from(nanos).ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| format!("time: invalid duration {word:?}"))
}

/// A whole number within bounds.
pub fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(word: &str, low: T, high: T) -> Result<T, String> {
    match word.parse::<T>() {
        Ok(number) if number >= low && number <= high => Ok(number),
        _ => Err(format!("{word:?} is not a number from {low} to {high}")),
    }
}

pub fn record_type(word: &str) -> Result<RecordType, String> {
    word.parse().map_err(|_| format!("invalid RR type {word}"))
}

pub fn response_code(word: &str) -> Result<ResponseCode, String> {
    Ok(match word.to_ascii_uppercase().as_str() {
        "NOERROR" => ResponseCode::NoError,
        "FORMERR" => ResponseCode::FormErr,
        "SERVFAIL" => ResponseCode::ServFail,
        "NXDOMAIN" => ResponseCode::NXDomain,
        "NOTIMP" => ResponseCode::NotImp,
        "REFUSED" => ResponseCode::Refused,
        _ => return Err(format!("unknown response code {word:?}")),
    })
}

/// How logs show a response code.
pub fn code_name(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        _ => "OTHER",
    }
}

/// A pattern; it takes time linear in the name, and bounded memory.
pub fn pattern(word: &str) -> Result<Regex, String> {
    if word.len() > MAX_PATTERN {
        return Err(format!("the pattern is longer than {MAX_PATTERN} characters"));
    }
    RegexBuilder::new(word).size_limit(MAX_COMPILED).build().map_err(|error| format!("invalid regex pattern: {error}"))
}

/// The servers that a word of `forward` stands for.
pub fn servers(word: &str, resolv_conf: &str) -> Result<Vec<SocketAddr>, String> {
    if word == "/etc/resolv.conf" {
        return Ok(resolvers(resolv_conf));
    }
    if word.starts_with('/') {
        return Err(format!("{word}: of the node's files only /etc/resolv.conf is read"));
    }
    let plain = word.strip_prefix("dns://").unwrap_or(word);
    if let Some((scheme, _)) = plain.split_once("://") {
        return Err(format!("{scheme} to other servers is not supported"));
    }
    let address = plain.parse::<SocketAddr>().ok();
    let address = address.or_else(|| plain.parse().ok().map(|ip| SocketAddr::new(ip, 53)));
    address.map(|a| vec![a]).ok_or_else(|| format!("not an IP address or file: {word:?}"))
}

/// The name servers of a resolv.conf, each once.
pub fn resolvers(text: &str) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some("nameserver")
            && let Some(Ok(ip)) = words.next().map(str::parse::<IpAddr>)
            && !found.contains(&SocketAddr::new(ip, 53))
        {
            found.push(SocketAddr::new(ip, 53));
        }
    }
    found
}

/// The search domains of a resolv.conf: its last line about them counts.
pub fn search_domains(text: &str) -> Vec<String> {
    let mut lines = text
        .lines()
        .map(str::trim)
        .rev()
        .filter_map(|l| l.strip_prefix("search").filter(|r| r.starts_with([' ', '\t'])));
    let last = lines.next().unwrap_or_default();
    last.split_whitespace().filter_map(|d| name(d).ok()).filter(|d| !d.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_their_zones() {
        for (key, expected) in [
            (".:53", Ok(vec![""])),
            (".", Ok(vec![""])),
            ("Example.org", Ok(vec!["example.org"])),
            ("dns://example.org.", Ok(vec!["example.org"])),
            ("10.0.0.0/16", Ok(vec!["0.10.in-addr.arpa"])),
            ("10.2.0.0/23", Ok(vec!["0.2.10.in-addr.arpa", "1.2.10.in-addr.arpa"])),
            ("fd00::/8", Ok(vec!["d.f.ip6.arpa"])),
            ("example.org:5353", Err("example.org:5353: cluster DNS is at port 53 of its Service alone")),
            ("tls://example.org", Err("cluster DNS speaks plain DNS to its Pods, not tls")),
            ("a..b", Err("\"a..b\" is not a domain name")),
        ] {
            let expected = expected.map(|z| z.into_iter().map(str::to_owned).collect()).map_err(str::to_owned);
            assert_eq!(server_key(key), expected, "{key}");
        }
        assert!(server_key("10.0.0.0/0").is_err() || server_key("10.0.0.0/0").unwrap().len() <= 256);
    }

    #[test]
    fn times() {
        for (word, millis) in [("5s", 5000), ("1m30s", 90_000), ("500ms", 500), ("1.5h", 5_400_000), ("0", 0)] {
            assert_eq!(duration(word), Ok(Duration::from_millis(millis)), "{word}");
        }
        for word in ["", "5", "s", "5 s", "-5s", "99999999h"] {
            assert!(duration(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn resolv_conf() {
        let text = "# c\nsearch a b\nsearch x Y.z\nnameserver 10.0.0.1\nnameserver fd00::1 \nnameserver broken\nnameserver 10.0.0.1\n";
        let found: Vec<String> = resolvers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:53", "[fd00::1]:53"]);
        assert_eq!(search_domains(text), ["x", "y.z"]);
    }

    #[test]
    fn servers_of_forward() {
        assert_eq!(servers("10.0.0.1:5353", "").unwrap(), ["10.0.0.1:5353".parse().unwrap()]);
        assert_eq!(servers("dns://10.0.0.1", "").unwrap(), ["10.0.0.1:53".parse().unwrap()]);
        for word in ["/etc/shadow", "tls://1.1.1.1", "resolver.example"] {
            assert!(servers(word, "").is_err(), "{word}");
        }
    }
}
