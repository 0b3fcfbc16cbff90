//! `ip('10.0.0.1')` and `cidr('10.0.0.0/8')`. Expressions read addresses strictly: no leading zeros, no zones, and no
//! IPv4 written as IPv6.

use std::any::Any;
use std::net::IpAddr;

use cel::estimate::{self, Guess, Operands, Range};
use cel::{Call, EvaluationError, Library, Opaque, Type, Value, cost, function};
use ipnet::IpNet;

use super::address_text;

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

const IP: &str = "net.IP";
const CIDR: &str = "net.CIDR";

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("ip(string): net.IP", ip).costs(cost::first).estimated(estimate::first),
        function("isIP(string): bool", is_ip).costs(cost::first).estimated(estimate::first),
        function("ip.isCanonical(string): bool", is_canonical)
            .costs(cost::first_twice)
            .estimated(estimate::first_twice),
        function("string(net.IP): string", text),
        function("net.IP::family(): int", family),
        function("net.IP::isUnspecified(): bool", is_unspecified),
        function("net.IP::isLoopback(): bool", is_loopback),
        function("net.IP::isLinkLocalMulticast(): bool", is_link_local_multicast),
        function("net.IP::isLinkLocalUnicast(): bool", is_link_local_unicast),
        function("net.IP::isGlobalUnicast(): bool", is_global_unicast),
        function("cidr(string): net.CIDR", cidr).costs(cost::first).estimated(estimate::first),
        function("isCIDR(string): bool", is_cidr).costs(cost::first).estimated(estimate::first),
        function("string(net.CIDR): string", text),
        function("net.CIDR::containsIP(string): bool", contains_ip)
            .costs(contains_ip_text_cost)
            .estimated(contains_ip_text),
        function("net.CIDR::containsIP(net.IP): bool", contains_ip)
            .costs(contains_ip_cost)
            .estimated(contains_ip_bytes),
        function("net.CIDR::containsCIDR(string): bool", contains_cidr)
            .costs(contains_cidr_text_cost)
            .estimated(contains_cidr_text),
        function("net.CIDR::containsCIDR(net.CIDR): bool", contains_cidr)
            .costs(contains_cidr_cost)
            .estimated(contains_cidr_bytes),
        function("net.CIDR::ip(): net.IP", ip_of),
        function("net.CIDR::prefixLength(): int", prefix_length),
        function("net.CIDR::masked(): net.CIDR", masked),
    ],
    types: &[(IP, Type::Opaque(IP)), (CIDR, Type::Opaque(CIDR))],
};

#[derive(Debug)]
struct Address(IpAddr);

#[derive(Debug)]
struct Network(IpNet);

impl Opaque for Address {
    fn type_name(&self) -> &'static str {
        IP
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Address>().is_some_and(|other| self.0 == other.0)
    }

    fn size(&self) -> u64 {
        if self.0.is_ipv4() { 4 } else { 16 }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Opaque for Network {
    fn type_name(&self) -> &'static str {
        CIDR
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Network>().is_some_and(|other| self.0 == other.0)
    }

    fn size(&self) -> u64 {
        u64::from(self.0.prefix_len()).div_ceil(8)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Two walks over the network's bytes.
fn contains_ip_cost(given: &[Value<'_>], _: Option<&Value<'_>>) -> u64 {
    cost::walk(2 * cost::size(given, 0))
}

fn contains_ip_text_cost(given: &[Value<'_>], result: Option<&Value<'_>>) -> u64 {
    contains_ip_cost(given, result) + cost::walk(cost::size(given, 1))
}

/// And one more for masking, and the comparison of the lengths.
fn contains_cidr_cost(given: &[Value<'_>], result: Option<&Value<'_>>) -> u64 {
    contains_ip_cost(given, result) + cost::walk(cost::size(given, 0)) + 1
}

fn contains_cidr_text_cost(given: &[Value<'_>], result: Option<&Value<'_>>) -> u64 {
    contains_cidr_cost(given, result) + cost::walk(cost::size(given, 1))
}

/// The bytes of an address, of either family.
const BYTES: Range = Range { least: 4, most: 16 };

fn contains_ip_bytes(_: &Operands<'_>) -> Guess {
    Guess::costs(estimate::walk(BYTES.plus(BYTES)))
}

fn contains_ip_text(given: &Operands<'_>) -> Guess {
    Guess::costs(contains_ip_bytes(given).cost.plus(estimate::walk(given.size(1))))
}

fn contains_cidr_bytes(given: &Operands<'_>) -> Guess {
    Guess::costs(contains_ip_bytes(given).cost.plus(estimate::walk(BYTES)).plus(Range::ONE))
}

fn contains_cidr_text(given: &Operands<'_>) -> Guess {
    Guess::costs(contains_cidr_bytes(given).cost.plus(estimate::walk(given.size(1))))
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

fn read_ip(text: &str) -> Result<IpAddr, EvaluationError> {
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(EvaluationError::new(match address_text::fault(text) {
            None => format!("IP address {text:?} with zone value is not allowed"),
            Some(fault) => format!("IP Address {text:?} parse error during conversion from string: {fault}"),
        }));
    };
    if is_mapped(address) {
        return Err(EvaluationError::new(format!("IPv4-mapped IPv6 address {text:?} is not allowed")));
    }
    Ok(address)
}

fn read_cidr(text: &str) -> Result<IpNet, EvaluationError> {
    let failed =
        |why: String| EvaluationError::new(format!("network address parse error during conversion from string: {why}"));
    let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
    let canonical = (prefix == "0" || !prefix.starts_with(['0', '+'])) && address_text::fault(address).is_none();
    match text.parse::<IpNet>() {
        Ok(net) if canonical && is_mapped(net.addr()) => {
            Err(failed(format!("IPv4-mapped IPv6 address {text:?} is not allowed")))
        }
        Ok(net) if canonical => Ok(net),
        _ => {
            let fault = address_text::prefix_fault(text);
            Err(failed(format!("network address parse error during conversion from string: {fault}")))
        }
    }
}

fn text_of<'v>(value: &'v Value<'_>) -> Result<&'v str, EvaluationError> {
    value.as_str().ok_or_else(EvaluationError::no_such_overload)
}

fn address(value: &Value<'_>) -> Result<IpAddr, EvaluationError> {
    value.downcast::<Address>().map(|a| a.0).ok_or_else(EvaluationError::no_such_overload)
}

fn network(value: &Value<'_>) -> Result<IpNet, EvaluationError> {
    value.downcast::<Network>().map(|n| n.0).ok_or_else(EvaluationError::no_such_overload)
}

fn ip<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    read_ip(text_of(&given[0])?).map(|a| Value::opaque(Address(a)))
}

fn is_ip<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(read_ip(text_of(&given[0])?).is_ok()))
}

fn is_canonical<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let text = text_of(&given[0])?;
    read_ip(text).map(|a| Value::Bool(a.to_string() == text))
}

fn text<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match address(&given[0]) {
        Ok(address) => Ok(Value::string(address.to_string())),
        Err(_) => network(&given[0]).map(|n| Value::string(n.to_string())),
    }
}

fn family<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    address(&given[0]).map(|a| Value::Int(if a.is_ipv4() { 4 } else { 6 }))
}

fn is_unspecified<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    address(&given[0]).map(|a| Value::Bool(a.is_unspecified()))
}

fn is_loopback<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    address(&given[0]).map(|a| Value::Bool(a.is_loopback()))
}

fn link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}

fn link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn is_link_local_multicast<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    address(&given[0]).map(|a| Value::Bool(link_local_multicast(a)))
}

fn is_link_local_unicast<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    address(&given[0]).map(|a| Value::Bool(link_local_unicast(a)))
}

/// Whatever is not special is global here, private addresses too.
fn is_global_unicast<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    address(&given[0]).map(|a| {
        let broadcast = matches!(a, IpAddr::V4(v4) if v4.is_broadcast());
        let special = a.is_unspecified() || a.is_loopback() || a.is_multicast() || broadcast || link_local_unicast(a);
        Value::Bool(!special)
    })
}

fn cidr<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    read_cidr(text_of(&given[0])?).map(|n| Value::opaque(Network(n)))
}

fn is_cidr<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(read_cidr(text_of(&given[0])?).is_ok()))
}

fn contains_ip<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let inner = match given[1].as_str() {
        // Upstream meets its own error as an argument there.
        Some(text) => read_ip(text).map_err(|_| EvaluationError::no_such_overload())?,
        None => address(&given[1])?,
    };
    network(&given[0]).map(|n| Value::Bool(n.contains(&inner)))
}

fn contains_cidr<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let inner = match given[1].as_str() {
        Some(text) => read_cidr(text)?,
        None => network(&given[1])?,
    };
    let outer = network(&given[0])?;
    Ok(Value::Bool(outer.prefix_len() <= inner.prefix_len() && outer.contains(&inner.addr())))
}

fn ip_of<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    network(&given[0]).map(|n| Value::opaque(Address(n.addr())))
}

fn prefix_length<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    network(&given[0]).map(|n| Value::Int(n.prefix_len().into()))
}

fn masked<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    network(&given[0]).map(|n| Value::opaque(Network(n.trunc())))
}

#[cfg(test)]
mod tests {
    use super::super::check;

    #[test]
    fn addresses_in_expressions() {
        check("ip('192.168.0.1') == ip('192.168.0.1')", "true", 2 + 2 + 1);
        check("ip('192.168.0.1').family()", "4", 3);
        check("ip('2001:db8:3333:4444:5555:6666:7777:8888').family()", "6", 5);
        check("string(ip('2001:db8::0001'))", "2001:db8::1", 3);
        check("ip.isCanonical('2001:DB8::1')", "false", 3);
        check("ip.isCanonical('127.0.0.1')", "true", 2);
        check(
            "isIP('10.0.0.256') || isIP('010.0.0.1') || isIP('::ffff:1.2.3.4') || isIP('fe80::1%eth0')",
            "false",
            1 + 1 + 2 + 2,
        );
        check("ip('::ffff:1.2.3.4')", "error: IPv4-mapped IPv6 address \"::ffff:1.2.3.4\" is not allowed", 2);
        check("ip('0.0.0.0').isUnspecified() && ip('127.0.0.1').isLoopback()", "true", 2 + 2);
        check("ip('fe80::1').isLinkLocalUnicast() && ip('ff02::1').isLinkLocalMulticast()", "true", 2 + 2);
        check("ip('10.1.2.3').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast()", "true", 2 + 3 + 1);
    }

    #[test]
    fn networks_in_expressions() {
        check("cidr('192.168.0.0/24').containsIP(ip('192.168.0.1'))", "true", 2 + 2 + 1);
        check("cidr('192.168.0.0/24').containsIP('192.168.1.1')", "false", 2 + 1 + 2);
        check("cidr('192.168.0.0/24').containsCIDR('192.168.0.0/25')", "true", 2 + 1 + 1 + 1 + 2);
        check("cidr('192.168.0.0/24').containsCIDR(cidr('192.168.0.0/23'))", "false", 2 + 2 + 3);
        check("cidr('192.168.0.1/24').ip() == ip('192.168.0.1')", "true", 2 + 1 + 2 + 1);
        check("cidr('192.168.0.1/24').masked() == cidr('192.168.0.0/24')", "true", 2 + 1 + 2 + 1);
        check("cidr('2001:db8::/32').prefixLength()", "32", 2 + 1);
        check("isCIDR('10.0.0.0/33') || isCIDR('10.0.0.0/08') || isCIDR('10.0.0.0')", "false", 2 + 2 + 1);
        check("isCIDR('010.0.0.0/8')", "false", 2);
        check("string(cidr('192.168.0.1/24'))", "192.168.0.1/24", 3);
    }
}
