//! Which node ports are taken: one object of the store's own, which no client sees. Every Service that takes a port or gives
//! one back changes it in the transaction that writes the Service, so that the two never say different things.
//!
//! It has upstream's place and fields: a `RangeAllocation` under `/registry/ranges/servicenodeports` whose `data` has one bit
//! for each port of `range`, as one number with the range's first port in its lowest bit.
//! Upstream counterpart: pkg/registry/core/service/{allocator,portallocator}.

use std::ops::RangeInclusive;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use json::json;
use serde::Deserialize;

pub const KEY: &str = "/registry/ranges/servicenodeports";

const WORDS: usize = 1 << 10;

/// The taken ports.
#[derive(Clone, PartialEq, Eq)]
pub struct PortMap {
    /// The range that the object names: that of all servers that wrote it. A port that is taken outside of one server's range
    /// (since the flag changed) stays known.
    range: RangeInclusive<u16>,
    bits: Box<[u64; WORDS]>,
}

#[derive(Deserialize)]
struct Stored {
    range: String,
    #[serde(default)]
    data: String,
}

impl PortMap {
    pub fn new(range: &RangeInclusive<u16>) -> Self {
        PortMap { range: range.clone(), bits: Box::new([0; WORDS]) }
    }

    /// The map of a server with this range by the stored object.
    pub fn decode(stored: &[u8], own: &RangeInclusive<u16>) -> Result<Self, String> {
        let damaged = || "the stored map of node ports is damaged".to_owned();
        let stored: Stored = serde_json::from_slice(stored).map_err(|_| damaged())?;
        let data = STANDARD.decode(&stored.data).map_err(|_| damaged())?;
        let ends = stored.range.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (first, last): (u16, u16) = ends.ok_or_else(damaged)?;
        let range = first.min(*own.start())..=last.max(*own.end());
        let mut map = PortMap { range, bits: Box::new([0; WORDS]) };
        for (at, byte) in data.iter().rev().enumerate() {
            for bit in (0..8).filter(|bit| byte & (1 << bit) != 0) {
                let port = usize::from(first) + at * 8 + bit;
                map.take(u16::try_from(port).map_err(|_| damaged())?);
            }
        }
        Ok(map)
    }

    pub fn encode(&self) -> Bytes {
        let (first, last) = (*self.range.start(), *self.range.end());
        let mut data = vec![0_u8; usize::from(last - first) / 8 + 1];
        for port in self.taken() {
            let offset = usize::from(port - first);
            data[offset / 8] |= 1 << (offset % 8);
        }
        while data.last() == Some(&0) {
            data.pop();
        }
        data.reverse();
        let object = json!({"kind": "RangeAllocation", "apiVersion": "v1", "metadata": {},
            "range": format!("{first}-{last}"), "data": STANDARD.encode(data)});
        Bytes::from(object.to_string())
    }

    pub fn has(&self, port: u16) -> bool {
        self.bits[usize::from(port >> 6)] & (1 << (port & 63)) != 0
    }

    pub fn take(&mut self, port: u16) {
        self.bits[usize::from(port >> 6)] |= 1 << (port & 63);
        self.range = port.min(*self.range.start())..=port.max(*self.range.end());
    }

    pub fn free(&mut self, port: u16) {
        self.bits[usize::from(port >> 6)] &= !(1 << (port & 63));
    }

    pub fn taken(&self) -> impl Iterator<Item = u16> {
        let words = self.bits.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| (at << 6 | bit) as u16)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_again_in_upstreams_form() {
        let own = 30000..=32767;
        let mut map = PortMap::new(&own);
        let text = |map: &PortMap| String::from_utf8(map.encode().to_vec()).unwrap();
        assert!(text(&map).contains(r#""data":"","kind":"RangeAllocation","metadata":{},"range":"30000-32767""#));
        for port in [30000, 30009, 32767] {
            map.take(port);
        }
        let again = PortMap::decode(&map.encode(), &own).unwrap();
        assert!(again == map);
        assert_eq!(again.taken().collect::<Vec<_>>(), [30000, 30009, 32767]);
        map.free(32767);
        // The bits 0 and 9 as one number.
        assert!(text(&map).contains(&format!(r#""data":"{}""#, STANDARD.encode([0b10, 0b1]))), "{}", text(&map));
    }

    #[test]
    fn another_servers_range_loses_no_port() {
        let (small, wide) = (30000..=30010, 29000..=31000);
        let mut map = PortMap::new(&wide);
        for port in [29001, 30005, 30999] {
            map.take(port);
        }
        let mut seen = PortMap::decode(&map.encode(), &small).unwrap();
        seen.take(30006);
        let back = PortMap::decode(&seen.encode(), &wide).unwrap();
        assert_eq!(back.taken().collect::<Vec<_>>(), [29001, 30005, 30006, 30999]);
    }

    #[test]
    fn damage_is_told() {
        for text in [
            "",
            "{}",
            r#"{"range": "x", "data": ""}"#,
            r#"{"range": "1-2", "data": "%"}"#,
            r#"{"range": "65535-65535", "data": "AAEA"}"#,
        ] {
            assert!(PortMap::decode(text.as_bytes(), &(1..=2)).is_err(), "{text}");
        }
    }
}
