//! IP addresses as users write them: the one reading of their text, and which of them traffic may be sent to. Validation
//! of what is stored and those who connect to it ask the same functions, so an address cannot mean one thing to the
//! check and another to the kernel (apimachinery's `util/validation/ip.go`, KEP-4858).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};

use crate::validation::field::{Errors, FieldError, Path, quote};

/// The message about a text that is no IP address.
pub(crate) const BAD_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

/// The address that a text stands for. Fields older than the strict form may hold octets with leading zeros, which are
/// decimal all the same, and IPv4 addresses written as IPv6 (`::ffff:10.0.0.1`), which are IPv4.
pub fn parse(text: &str) -> Option<IpAddr> {
    if !text.contains(':') {
        return octets(text).map(IpAddr::V4);
    }
    let address = match text.rsplit_once(':') {
        Some((start, end)) if end.contains('.') => format!("{start}:{}", octets(end)?).parse::<Ipv6Addr>(),
        _ => text.parse::<Ipv6Addr>(),
    };
    Some(IpAddr::V6(address.ok()?).to_canonical())
}

/// An address for code that knows IPv4 only.
pub fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    match parse(text)? {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

/// A host (an address or a name) with a port, as URLs and messages write it.
pub fn with_port(host: &str, port: impl std::fmt::Display) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn octets(text: &str) -> Option<Ipv4Addr> {
    let mut parts = text.split('.').map(|part| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let number = part.trim_start_matches('0');
        if digits && number.is_empty() { Some(0) } else { number.parse::<u8>().ok().filter(|_| digits) }
    });
    let address = Ipv4Addr::new(parts.next()??, parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(address)
}

/// Addresses that do not lead to one peer in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    Unspecified,
    Loopback,
    /// Where clouds serve metadata and credentials of the machine, among others.
    LinkLocal,
    LinkLocalMulticast,
    Multicast,
    Broadcast,
}

/// The special ranges that an address may belong to, in whichever form it is written.
pub fn special(ip: IpAddr) -> Option<Special> {
    let ip = ip.to_canonical();
    let (link_local, link_local_multicast, broadcast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0], v4.is_broadcast()),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02, false),
    };
    Some(match ip {
        _ if ip.is_unspecified() => Special::Unspecified,
        _ if ip.is_loopback() => Special::Loopback,
        _ if link_local => Special::LinkLocal,
        _ if link_local_multicast => Special::LinkLocalMulticast,
        _ if ip.is_multicast() => Special::Multicast,
        _ if broadcast => Special::Broadcast,
        _ => return None,
    })
}

/// The address to connect to on behalf of a client, if there may be a connection at all: not the machine itself, its
/// link or many peers at once. Connect to what this returns, never to the text.
pub fn reachable(text: &str) -> Option<IpAddr> {
    parse(text).filter(|ip| special(*ip).is_none())
}

/// Any address.
pub(crate) fn errors(text: &str, path: &Path) -> Errors {
    if parse(text).is_some() { Errors::new() } else { vec![FieldError::invalid(path, text, BAD_IP)] }
}

/// An address behind or in front of a Service: not the machine itself, not its own link. Upstream lets multicast beyond
/// the link and broadcast pass here.
pub(crate) fn endpoint_errors(text: &str, path: &Path) -> Errors {
    let Some(ip) = parse(text) else { return errors(text, path) };
    let unspecified = format!("may not be unspecified ({text})");
    let detail = match special(ip) {
        Some(Special::Unspecified) => &unspecified,
        Some(Special::Loopback) => "may not be in the loopback range (127.0.0.0/8, ::1/128)",
        Some(Special::LinkLocal) => "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        Some(Special::LinkLocalMulticast) => "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        Some(Special::Multicast | Special::Broadcast) | None => return Errors::new(),
    };
    vec![FieldError::invalid(path, text, detail)]
}

/// The warning about a valid address in a form that others may read differently.
pub(crate) fn warning(text: &str, path: &Path) -> Option<String> {
    let ip = parse(text)?;
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) if ip.is_ipv6() => {
            let standard = v6.to_string();
            let should = "should be in RFC 5952 canonical format";
            (standard != text).then(|| format!("{path}: IPv6 address {} {should} ({})", quote(text), quote(&standard)))
        }
        Ok(IpAddr::V4(_)) => None,
        _ => {
            let future = "will be considered invalid in a future Kubernetes release";
            Some(format!("{path}: non-standard IP address {} {future}: use {}", quote(text), quote(&ip.to_string())))
        }
    }
}

/// The warnings about a valid range in a form that others may read differently.
pub(crate) fn range_warnings(text: &str, path: &Path) -> Vec<String> {
    let Ok(range) = text.parse::<IpNet>() else { return Vec::new() };
    let (given, mut list) = (quote(text), Vec::new());
    let network = quote(&of_its_family(range.trunc()).to_string());
    if range.addr() != range.network() {
        let single = quote(&format!("{}/{}", range.addr().to_canonical(), range.max_prefix_len()));
        let context = "is ambiguous in this context";
        list.push(format!("{path}: CIDR value {given} {context} (should be {network} or {single}?)"));
    }
    if !is_strict(text) {
        let future = "will be considered invalid in a future Kubernetes release";
        list.push(format!("{path}: non-standard CIDR value {given} {future}: use {network}"));
    }
    let standard = range.to_string();
    if list.is_empty() && text.contains(':') && standard != text {
        let should = "should be in RFC 5952 canonical format";
        list.push(format!("{path}: IPv6 CIDR value {given} {should} ({})", quote(&standard)));
    }
    list
}

/// No zeros lead a number of the range, and it is written in the form of its family.
fn is_strict(range: &str) -> bool {
    let Some((address, length)) = range.split_once('/') else { return false };
    let leads = length.len() > 1 && length.starts_with('0');
    !leads && address.parse::<IpAddr>().is_ok_and(|ip| ip == ip.to_canonical())
}

/// A range of IPv4 addresses that is written as one of IPv6 addresses, as what it is.
fn of_its_family(range: IpNet) -> IpNet {
    let IpNet::V6(v6) = range else { return range };
    let v4 = v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96));
    v4.and_then(|(ip, length)| Ipv4Net::new(ip, length).ok()).map_or(range, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_is_one_address() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(parse(text).map(|ip| ip.to_string()).as_deref(), expected, "{text}");
        };
        check("10.0.0.1", Some("10.0.0.1"));
        check("010.000.0.0000001", Some("10.0.0.1"));
        check("::ffff:10.0.0.1", Some("10.0.0.1"));
        check("::ffff:010.0.0.01", Some("10.0.0.1"));
        check("::FFFF:a00:1", Some("10.0.0.1"));
        check("0:0:0:0:0:ffff:a9fe:a9fe", Some("169.254.169.254"));
        check("2001:DB8::0001", Some("2001:db8::1"));
        check("::10.0.0.1", Some("::a00:1"));
        for nothing in ["", "10.0.0", "10.0.0.1.2", "10.0.0.256", "10.0..1", "+1.0.0.1", "0x7f.0.0.1", "2130706433"] {
            check(nothing, None);
        }
        for nothing in [
            "::ffff:10.0.0",
            "fe80::1%eth0",
            "::1 ",
            ":",
            "1::2::3",
            "[::1]",
            "10.0.0.1/8",
            "localhost",
            "::ffff:.1.2.3",
        ] {
            check(nothing, None);
        }
    }

    #[test]
    fn no_form_of_a_special_address_is_reachable() {
        let check = |texts: &[&str], expected: Special| {
            for text in texts {
                assert_eq!(parse(text).and_then(special), Some(expected), "{text}");
                assert_eq!(reachable(text), None, "{text}");
            }
        };
        check(&["0.0.0.0", "00.0.0.0", "::", "::ffff:0.0.0.0", "::ffff:0:0"], Special::Unspecified);
        check(
            &["127.0.0.1", "127.9.9.9", "0127.0.0.01", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"],
            Special::Loopback,
        );
        let metadata = ["169.254.169.254", "0169.254.169.254", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "fe80::1"];
        check(&metadata, Special::LinkLocal);
        check(&["224.0.0.1", "::ffff:224.0.0.251", "ff02::1", "ff12::1"], Special::LinkLocalMulticast);
        check(&["239.1.1.1", "::ffff:239.1.1.1", "ff05::1", "ff01::1"], Special::Multicast);
        check(&["255.255.255.255", "::ffff:255.255.255.255"], Special::Broadcast);
        for (text, ip) in [("10.1.2.3", "10.1.2.3"), ("::ffff:010.1.2.3", "10.1.2.3"), ("fd00::1", "fd00::1")] {
            assert_eq!(reachable(text).map(|ip| ip.to_string()).as_deref(), Some(ip));
        }
    }

    #[test]
    fn other_forms_are_warned_of() {
        let check = |text: &str, expected: Option<&str>| {
            let expected = expected.map(|e| format!("a.b: {e}"));
            assert_eq!(warning(text, &Path::new("a").child("b")), expected, "{text}");
        };
        check("10.0.0.1", None);
        check("fd00::1", None);
        let future = "will be considered invalid in a future Kubernetes release: use \"10.0.0.1\"";
        check("010.0.0.1", Some(&format!("non-standard IP address \"010.0.0.1\" {future}")));
        check("::ffff:a00:1", Some(&format!("non-standard IP address \"::ffff:a00:1\" {future}")));
        check("FD00::1", Some("IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")"));
    }
    #[test]
    fn other_forms_of_ranges_are_warned_of() {
        let check = |text: &str, expected: &[&str]| {
            let expected: Vec<String> = expected.iter().map(|e| format!("a.b: {e}")).collect();
            assert_eq!(range_warnings(text, &Path::new("a").child("b")), expected, "{text}");
        };
        check("10.0.0.0/8", &[]);
        check("fd00::/8", &[]);
        check("no range", &[]);
        let of = |text: &str, standard: &str| {
            let future = "will be considered invalid in a future Kubernetes release";
            format!("non-standard CIDR value \"{text}\" {future}: use \"{standard}\"")
        };
        check("010.0.0.0/8", &[&of("010.0.0.0/8", "10.0.0.0/8")]);
        check("10.0.0.0/08", &[&of("10.0.0.0/08", "10.0.0.0/8")]);
        check("::ffff:10.0.0.0/104", &[&of("::ffff:10.0.0.0/104", "10.0.0.0/8")]);
        let context = "is ambiguous in this context";
        let mixed = |text: &str, net: &str, one: &str| {
            format!("CIDR value \"{text}\" {context} (should be \"{net}\" or \"{one}\"?)")
        };
        check("10.0.0.1/8", &[&mixed("10.0.0.1/8", "10.0.0.0/8", "10.0.0.1/32")]);
        check("fd00::1/8", &[&mixed("fd00::1/8", "fd00::/8", "fd00::1/128")]);
        let both = [mixed("010.0.0.1/8", "10.0.0.0/8", "10.0.0.1/32"), of("010.0.0.1/8", "10.0.0.0/8")];
        check("010.0.0.1/8", &both.each_ref().map(String::as_str));
        check("FD00::/8", &["IPv6 CIDR value \"FD00::/8\" should be in RFC 5952 canonical format (\"fd00::/8\")"]);
    }
}
