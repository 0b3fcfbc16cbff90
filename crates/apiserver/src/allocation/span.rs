//! A stretch of numbers out of which free ones are drawn: the addresses of a range, the node ports.
//! Upstream counterpart: the range offsets in pkg/registry/core/service/{ipallocator,portallocator} (KEP-3070, KEP-3668).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// Random tries before the stretch is searched in order.
const TRIES: usize = 16;

/// The numbers `first..=last`. Those below `upper` are left for users who name one, as long as others are free.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    first: u128,
    upper: u128,
    last: u128,
}

pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl Span {
    /// The usable addresses of a range: not the network's own and, in IPv4, not the broadcast address.
    pub fn of_addresses(range: &IpNet) -> Option<Self> {
        let (first, end) = (number(range.network()) + 1, number(range.broadcast()));
        let last = end - u128::from(range.addr().is_ipv4());
        let size = end - number(range.network()) + 1;
        Self::new(first, last, band(size, 16, 256))
    }

    pub fn of_ports(range: &RangeInclusive<u16>) -> Option<Self> {
        let (first, last) = (u128::from(*range.start()), u128::from(*range.end()));
        Self::new(first, last, band((last + 1).saturating_sub(first), 32, 128))
    }

    fn new(first: u128, last: u128, band: u128) -> Option<Self> {
        (first <= last).then_some(Span { first, upper: first + band, last })
    }

    /// A free number, by chance, so that one that was given back is not soon used again.
    pub fn draw(&self, taken: impl Fn(u128) -> bool) -> Option<u128> {
        let found = free_between(self.upper, self.last, &taken);
        found.or_else(|| free_between(self.first, self.upper.checked_sub(1)?, &taken))
    }

    /// An address of a range with the number that [`Self::draw`] found.
    pub fn draw_address(&self, range: &IpNet, taken: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
        let address = |number: u128| match range {
            IpNet::V4(_) => u32::try_from(number).map_or(IpAddr::V4(Ipv4Addr::BROADCAST), |n| Ipv4Addr::from(n).into()),
            IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from(number)),
        };
        self.draw(|number| taken(&address(number))).map(address)
    }
}

/// How much of a range is left for users who name something: a part of it, within bounds, and nothing of a tiny one.
fn band(size: u128, part: u128, max: u128) -> u128 {
    const MIN: u128 = 16;
    if size <= MIN { 0 } else { (size / part).clamp(MIN, max) }
}

fn free_between(first: u128, last: u128, taken: &impl Fn(u128) -> bool) -> Option<u128> {
    if first > last {
        return None;
    }
    // More numbers than this are never taken: a part of a huge range is enough.
    let span = u64::try_from(last - first).unwrap_or(u64::MAX).min(u64::from(u32::MAX)) + 1;
    for _ in 0..TRIES {
        let number = first + u128::from(clock::random_range(0..span));
        if !taken(number) {
            return Some(number);
        }
    }
    (first..=last).find(|number| !taken(*number))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Everything that can be drawn, in order of the drawing.
    fn all(span: Span) -> Vec<u128> {
        let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
        while let Some(number) = span.draw(|number| seen.contains(&number)) {
            assert!(seen.insert(number), "{number} twice");
            order.push(number);
        }
        order
    }

    #[test]
    fn everything_between_the_ends_is_drawn_the_lower_band_last() {
        let check = |range: &str, count: usize, band: usize| {
            let range: IpNet = range.parse().unwrap();
            let base = number(range.network());
            let drawn = all(Span::of_addresses(&range).unwrap());
            assert_eq!(drawn.len(), count, "{range}");
            assert!(drawn.iter().all(|n| (base + 1..=base + count as u128).contains(n)), "{range}");
            let lower = drawn.iter().skip(count - band).all(|n| *n <= base + band as u128);
            let upper = drawn.iter().take(count - band).all(|n| *n > base + band as u128);
            assert!(lower && upper, "{range}: the band of {band} is drawn last");
        };
        check("10.0.0.0/30", 2, 0);
        check("10.0.0.0/28", 14, 0);
        check("10.0.0.0/27", 30, 16);
        check("10.0.0.0/24", 254, 16);
        check("10.0.0.0/20", 4094, 256);
        check("fd00::/124", 15, 0);
        check("fd00::/120", 255, 16);
        assert!(Span::of_addresses(&"10.0.0.0/31".parse().unwrap()).is_none());
        assert!(Span::of_addresses(&"10.0.0.0/32".parse().unwrap()).is_none());
        let ports = all(Span::of_ports(&(30000..=32767)).unwrap());
        assert_eq!(ports.len(), 2768);
        assert!(ports[..2768 - 86].iter().all(|port| *port >= 30086), "30000-30085 are drawn last");
    }

    #[test]
    fn a_huge_range_costs_no_more_than_what_is_taken() {
        let range: IpNet = "fd00::/64".parse().unwrap();
        let drawn = Span::of_addresses(&range).unwrap().draw_address(&range, |_| false).unwrap();
        assert!(range.contains(&drawn));
    }
}
