//! Ranges of addresses as flags take them: one, or one of each family with a comma between them. The first counts where there is
//! room for one.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(Vec<IpNet>);

impl Ranges {
    /// Reads them; `fits` says what is wrong with one.
    fn parse(text: &str, example: &str, fits: fn(&IpNet) -> Result<(), String>) -> Result<Self, String> {
        let mut ranges: Vec<IpNet> = Vec::new();
        for part in text.split(',') {
            let range: IpNet = part.trim().parse().map_err(|_| format!("it must be a range such as {example}"))?;
            fits(&range)?;
            if ranges.iter().any(|other| other.addr().is_ipv4() == range.addr().is_ipv4()) {
                return Err("two ranges must be one of IPv4 and one of IPv6".to_owned());
            }
            ranges.push(range.trunc());
        }
        Ok(Ranges(ranges))
    }

    pub fn all(&self) -> &[IpNet] {
        &self.0
    }

    pub fn first(&self) -> IpNet {
        self.0[0]
    }

    /// Whether there is a range of the address' family.
    pub fn has_family_of(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.addr().is_ipv4() == address.is_ipv4())
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(IpNet::to_string).collect::<Vec<_>>().join(","))
    }
}

/// Ranges of any size.
pub fn any(text: &str) -> Result<Ranges, String> {
    Ranges::parse(text, "10.244.0.0/16", |_| Ok(()))
}

/// Whether a prefix is between the largest range and the smallest one.
fn between(range: &IpNet, largest: u8, smallest: u8, small: &str) -> Result<(), String> {
    match range.prefix_len() {
        length if length < largest => Err(format!("{range} is too large; /{largest} is the largest")),
        length if length > smallest => Err(format!("{range} is too small; {small}")),
        _ => Ok(()),
    }
}

/// Addresses of Services: room for the API server's (the first) and cluster DNS's (the tenth), and not more than the
/// allocator takes (upstream's limits).
pub fn of_services(text: &str) -> Result<Ranges, String> {
    Ranges::parse(text, "10.96.0.0/12", |range| match range {
        IpNet::V4(_) => between(range, 12, 28, "/28 is the smallest"),
        IpNet::V6(_) => between(range, 64, 124, "/124 is the smallest"),
    })
}

/// Addresses of Pods. How many nodes they are for is the business of `node_ranges`.
pub fn of_pods(text: &str) -> Result<Ranges, String> {
    Ranges::parse(text, "10.244.0.0/16", |range| match range {
        IpNet::V4(_) => between(range, 8, 30, "/30 is the smallest"),
        IpNet::V6(_) => between(range, 16, 126, "/126 is the smallest"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_of_each_family_is_taken() {
        let check = |parse: fn(&str) -> Result<Ranges, String>, text: &str, expected: Result<&str, &str>| match (
            parse(text),
            expected,
        ) {
            (Ok(ranges), Ok(expected)) => assert_eq!(ranges.to_string(), expected),
            (Err(error), Err(words)) => assert!(error.contains(words), "{text}: {error}"),
            (got, _) => panic!("{text}: {got:?}"),
        };
        check(of_services, "10.96.0.0/12", Ok("10.96.0.0/12"));
        check(of_services, "10.96.0.0/28,fd00::/112", Ok("10.96.0.0/28,fd00::/112"));
        check(of_services, "fd00::7/108, 10.96.0.0/16", Ok("fd00::/108,10.96.0.0/16"));
        check(of_services, "10.0.0.0/8", Err("/12 is the largest"));
        check(of_services, "10.96.0.0/29", Err("/28 is the smallest"));
        check(of_services, "fd00::/63", Err("/64 is the largest"));
        check(of_services, "10.96.0.0/16,10.97.0.0/16", Err("one of IPv4 and one of IPv6"));
        check(of_services, "10.96.0.0/16,fd00::/108,fd01::/108", Err("one of IPv4 and one of IPv6"));
        check(of_services, "", Err("such as 10.96.0.0/12"));
        check(of_pods, "10.244.0.0/24,fd00::/64", Ok("10.244.0.0/24,fd00::/64"));
        check(of_pods, "10.244.0.0/31", Err("/30 is the smallest"));
        check(of_pods, "0.0.0.0/0", Err("/8 is the largest"));
        check(of_pods, "fd00::/127", Err("/126 is the smallest"));
        check(of_pods, "fd00::/15", Err("/16 is the largest"));
    }
}
