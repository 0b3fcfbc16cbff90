//! A supply of numbered things: takes one that is named, or a random free one.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

/// Why something can't be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("provided {0} is already allocated")]
    Taken(&'static str),
    #[error("range is full")]
    Full,
    #[error("{0}")]
    Outside(String),
}

impl PoolError {
    /// No range is of this address's family.
    pub fn family(address: IpAddr) -> Self {
        PoolError::Outside(format!("the provided IP ({address}) is not in the valid range"))
    }
}

/// Something with a place in the range.
pub trait Numbered: Copy {
    const WHAT: &'static str;
    fn number(self) -> u128;
    fn of(number: u128, like: Self) -> Self;
}

impl Numbered for u16 {
    const WHAT: &'static str = "port";
    fn number(self) -> u128 {
        u128::from(self)
    }
    fn of(number: u128, _: Self) -> Self {
        u16::try_from(number).unwrap_or(u16::MAX)
    }
}

impl Numbered for IpAddr {
    const WHAT: &'static str = "IP";
    fn number(self) -> u128 {
        match self {
            IpAddr::V4(ip) => u128::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip),
        }
    }
    fn of(number: u128, like: Self) -> Self {
        match like {
            IpAddr::V4(_) => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
            IpAddr::V6(_) => IpAddr::V6(number.into()),
        }
    }
}

/// The range `first..=last` and what is taken of it.
#[derive(Debug)]
pub struct Pool<T> {
    like: T,
    first: u128,
    last: u128,
    /// The range as messages name it.
    shown: String,
    /// Numbers from `first` on that are left for those who name one, as long as others are free.
    named_first: u128,
    taken: HashSet<u128>,
}

/// Random tries before the range is searched in order.
const TRIES: usize = 16;

impl Pool<IpAddr> {
    /// The usable addresses of a range: not the network's own and, in IPv4, not the broadcast address.
    pub fn addresses(range: &IpNet) -> Self {
        let first = range.network().number() + 1;
        let last = range.broadcast().number() - u128::from(range.addr().is_ipv4());
        Self::new(range.network(), first, last, range.trunc().to_string())
    }
}

impl Pool<u16> {
    pub fn ports(range: std::ops::RangeInclusive<u16>) -> Self {
        let (first, last) = (*range.start(), *range.end());
        Self::new(first, first.number(), last.number(), format!("{first}-{last}"))
    }
}

impl<T: Numbered> Pool<T> {
    fn new(like: T, first: u128, last: u128, shown: String) -> Self {
        // Upstream's rule: a sixteenth of the range, at least 16 and at most 256, and nothing of a tiny range.
        let size = last.saturating_sub(first) + 1;
        let named_first = if size < 16 { 0 } else { (size / 16).clamp(16, 256).min(size) };
        Pool { like, first, last, shown, named_first, taken: HashSet::new() }
    }

    pub fn take(&mut self, item: T) -> Result<(), PoolError> {
        let number = item.number();
        if number < self.first || number > self.last {
            return Err(PoolError::Outside(self.outside(item)));
        }
        if self.taken.insert(number) { Ok(()) } else { Err(PoolError::Taken(T::WHAT)) }
    }

    fn outside(&self, item: T) -> String {
        let number = item.number();
        if T::WHAT == "port" {
            return format!("provided port is not in the valid range. The range of valid ports is {}", self.shown);
        }
        let address = IpAddr::V4(u32::try_from(number).unwrap_or_default().into());
        let address = if number > u128::from(u32::MAX) { IpAddr::V6(number.into()) } else { address };
        format!("the provided IP ({address}) is not in the valid range. The range of valid IPs is {}", self.shown)
    }

    /// Takes a free one, by chance, so that one that was given back is not soon used again.
    pub fn draw(&mut self) -> Result<T, PoolError> {
        let upper = self.first + self.named_first;
        let found = self.free_between(upper, self.last);
        let found = found.or_else(|| upper.checked_sub(1).and_then(|end| self.free_between(self.first, end)));
        let number = found.ok_or(PoolError::Full)?;
        self.taken.insert(number);
        Ok(T::of(number, self.like))
    }

    fn free_between(&self, first: u128, last: u128) -> Option<u128> {
        if first > last {
            return None;
        }
        // More numbers than this are never taken: a part of a huge range is enough.
        let span = u64::try_from(last - first).unwrap_or(u64::MAX).min(u64::from(u32::MAX)) + 1;
        for _ in 0..TRIES {
            let number = first + u128::from(clock::random_range(0..span));
            if !self.taken.contains(&number) {
                return Some(number);
            }
        }
        (first..=last).find(|number| !self.taken.contains(number))
    }

    pub fn free(&mut self, item: T) {
        self.taken.remove(&item.number());
    }

    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.taken.len()
    }
}
