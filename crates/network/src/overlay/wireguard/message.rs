//! WireGuard's messages of generic netlink, as `linux/wireguard.h` and `linux/genetlink.h` have them. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use nix::libc;

use super::super::key::{Bytes, PrivateKey, PublicKey};

/// The headers of netlink and of generic netlink.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

// Types and flags of netlink.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const NESTED: u16 = 1 << 15;
/// The bits of an attribute's type that say what it is.
const KIND: u16 = !(3 << 14);

/// The family that names the others, its command and attributes for that.
const CONTROL: u16 = 16;
const CONTROL_VERSION: u8 = 1;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The family and its commands.
const NAME: &[u8] = b"wireguard\0";
const VERSION: u8 = 1;
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;

mod device {
    pub const INDEX: u16 = 1;
    pub const PRIVATE_KEY: u16 = 3;
    pub const PUBLIC_KEY: u16 = 4;
    pub const LISTEN_PORT: u16 = 6;
    pub const PEERS: u16 = 8;
}

mod peer {
    pub const PUBLIC_KEY: u16 = 1;
    pub const FLAGS: u16 = 3;
    pub const ENDPOINT: u16 = 4;
    pub const KEEPALIVE_SECONDS: u16 = 5;
    pub const ALLOWED_IPS: u16 = 9;

    pub const REMOVE: u32 = 1;
    pub const REPLACE_ALLOWED_IPS: u32 = 2;
}

mod allowed_ip {
    pub const FAMILY: u16 = 1;
    pub const ADDRESS: u16 = 2;
    pub const LENGTH: u16 = 3;
}

/// Attributes on their way to the kernel.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn put(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("attributes of ours are short");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) {
        let mut inner = Attributes::default();
        fill(&mut inner);
        self.put(kind | NESTED, &inner.0);
    }
}

fn message(kind: u16, flags: u16, (command, version): (u8, u8), fill: impl FnOnce(&mut Attributes)) -> Vec<u8> {
    let mut attributes = Attributes::default();
    fill(&mut attributes);
    let length = HEADER + GENERIC_HEADER + attributes.0.len();
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length).expect("messages of ours are short").to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    // The number of the question and of who asks: a socket asks one thing at a time.
    message.extend([0; 8]);
    message.extend([command, version, 0, 0]);
    message.extend(attributes.0);
    message
}

/// Asks for the number of WireGuard's family. The kernel loads the module if it can.
pub fn ask_family() -> Vec<u8> {
    message(CONTROL, ACK, (GET_FAMILY, CONTROL_VERSION), |a| a.put(FAMILY_NAME, NAME))
}

/// Asks what an interface is like.
pub fn ask_device(family: u16, index: u32) -> Vec<u8> {
    message(family, DUMP, (GET_DEVICE, VERSION), |a| a.put(device::INDEX, &index.to_ne_bytes()))
}

/// Gives an interface its key and its port.
pub fn set_device(family: u16, index: u32, key: &PrivateKey, port: u16) -> Vec<u8> {
    message(family, ACK, (SET_DEVICE, VERSION), |a| {
        a.put(device::INDEX, &index.to_ne_bytes());
        a.put(device::PRIVATE_KEY, key.bytes());
        a.put(device::LISTEN_PORT, &port.to_ne_bytes());
    })
}

/// Adds a peer or changes it. Its ranges are these and no others; without an endpoint it keeps the one that it has.
pub fn set_peer(
    family: u16,
    index: u32,
    key: PublicKey,
    (endpoint, keepalive_seconds): (Option<SocketAddr>, u16),
    ranges: &BTreeSet<IpNet>,
) -> Vec<u8> {
    of_peer(family, index, key, peer::REPLACE_ALLOWED_IPS, |a| {
        if let Some(endpoint) = endpoint {
            a.put(peer::ENDPOINT, &socket_address(endpoint));
        }
        a.put(peer::KEEPALIVE_SECONDS, &keepalive_seconds.to_ne_bytes());
        a.nest(peer::ALLOWED_IPS, |list| {
            for range in ranges {
                list.nest(0, |a| put_range(a, *range));
            }
        });
    })
}

pub fn remove_peer(family: u16, index: u32, key: PublicKey) -> Vec<u8> {
    of_peer(family, index, key, peer::REMOVE, |_| {})
}

fn of_peer(family: u16, index: u32, key: PublicKey, flags: u32, fill: impl FnOnce(&mut Attributes)) -> Vec<u8> {
    message(family, ACK, (SET_DEVICE, VERSION), |a| {
        a.put(device::INDEX, &index.to_ne_bytes());
        a.nest(device::PEERS, |list| {
            list.nest(0, |a| {
                a.put(peer::PUBLIC_KEY, &key.0);
                a.put(peer::FLAGS, &flags.to_ne_bytes());
                fill(a);
            });
        });
    })
}

fn put_range(to: &mut Attributes, range: IpNet) {
    let (family, address) = match range.addr() {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    to.put(allowed_ip::FAMILY, &number(family).to_ne_bytes());
    to.put(allowed_ip::ADDRESS, &address);
    to.put(allowed_ip::LENGTH, &[range.prefix_len()]);
}

/// The kernel's `AF_` constants in the two bytes that they have in messages.
fn number(family: i32) -> u16 {
    u16::try_from(family).unwrap_or_default()
}

/// A `sockaddr_in` or `sockaddr_in6`.
fn socket_address(endpoint: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::new();
    match endpoint {
        SocketAddr::V4(v4) => {
            bytes.extend(number(libc::AF_INET).to_ne_bytes());
            bytes.extend(v4.port().to_be_bytes());
            bytes.extend(v4.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(v6) => {
            bytes.extend(number(libc::AF_INET6).to_ne_bytes());
            bytes.extend(v6.port().to_be_bytes());
            bytes.extend(v6.flowinfo().to_ne_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// A message of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The attributes of a part of what was asked for.
    Part(&'a [u8]),
    /// All was said and done, or the kernel's word for why not (a positive `errno`).
    End(Result<(), i32>),
}

/// The messages of a datagram; `None` when it cannot be read.
pub fn answers(mut datagram: &[u8]) -> Option<Vec<Answer<'_>>> {
    let mut answers = Vec::new();
    while !datagram.is_empty() {
        let length = usize::try_from(u32::from_ne_bytes(array(datagram.get(..4)?)?)).ok()?;
        let kind = u16::from_ne_bytes(array(datagram.get(4..6)?)?);
        let payload = datagram.get(HEADER..length)?;
        answers.push(match kind {
            ERROR | DONE => Answer::End(outcome(payload)?),
            _ => Answer::Part(payload.get(GENERIC_HEADER..)?),
        });
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(answers)
}

fn outcome(payload: &[u8]) -> Option<Result<(), i32>> {
    let code = i32::from_ne_bytes(array(payload.get(..4)?)?);
    Some(if code == 0 { Ok(()) } else { Err(code.saturating_neg()) })
}

/// The attributes of a list; `None` in the place of one that is cut off.
fn attributes(mut list: &[u8]) -> impl Iterator<Item = Option<(u16, &[u8])>> {
    std::iter::from_fn(move || {
        if list.is_empty() {
            return None;
        }
        let next = first(list);
        list = match next {
            Some((_, value)) => list.get((4 + value.len()).next_multiple_of(4)..).unwrap_or_default(),
            None => &[],
        };
        Some(next)
    })
}

fn first(list: &[u8]) -> Option<(u16, &[u8])> {
    let length = usize::from(u16::from_ne_bytes(array(list.get(..2)?)?));
    let kind = u16::from_ne_bytes(array(list.get(2..4)?)?);
    Some((kind & KIND, list.get(4..length)?))
}

fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

/// The number of the family in the answer to [`ask_family`].
pub fn family(part: &[u8]) -> Option<u16> {
    let found = attributes(part).map_while(|a| a).find(|(kind, _)| *kind == FAMILY_ID)?;
    Some(u16::from_ne_bytes(array(found.1)?))
}

/// An interface, as the kernel tells of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub private_key: Option<PrivateKey>,
    pub public_key: Option<PublicKey>,
    pub port: u16,
    pub peers: BTreeMap<PublicKey, DevicePeer>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct DevicePeer {
    pub endpoint: Option<SocketAddr>,
    pub keepalive_seconds: u16,
    pub ranges: BTreeSet<IpNet>,
}

impl Device {
    /// Takes in a part of the answer to [`ask_device`]; `None` when it cannot be read. A peer with many ranges comes in several parts.
    pub fn take(&mut self, part: &[u8]) -> Option<()> {
        for attribute in attributes(part) {
            let (kind, value) = attribute?;
            match kind {
                device::PRIVATE_KEY => {
                    let bytes: Bytes = array(value)?;
                    // All zeros stand for none.
                    self.private_key = (bytes != Bytes::default()).then(|| PrivateKey::clamped(bytes));
                }
                device::PUBLIC_KEY => self.public_key = Some(PublicKey(array(value)?)),
                device::LISTEN_PORT => self.port = u16::from_ne_bytes(array(value)?),
                device::PEERS => {
                    for peer in attributes(value) {
                        self.take_peer(peer?.1)?;
                    }
                }
                _ => {}
            }
        }
        Some(())
    }

    fn take_peer(&mut self, text: &[u8]) -> Option<()> {
        // The key comes first in every part.
        let mut all = attributes(text);
        let (peer::PUBLIC_KEY, key) = all.next()?? else { return None };
        let held = self.peers.entry(PublicKey(array(key)?)).or_default();
        for attribute in all {
            let (kind, value) = attribute?;
            match kind {
                peer::ENDPOINT => held.endpoint = Some(endpoint(value)?),
                peer::KEEPALIVE_SECONDS => held.keepalive_seconds = u16::from_ne_bytes(array(value)?),
                peer::ALLOWED_IPS => {
                    for range in attributes(value) {
                        held.ranges.insert(read_range(range?.1)?);
                    }
                }
                _ => {}
            }
        }
        Some(())
    }
}

fn read_range(text: &[u8]) -> Option<IpNet> {
    let (mut address, mut length) = (None, None);
    for attribute in attributes(text) {
        match attribute? {
            (allowed_ip::ADDRESS, value) => address = Some(ip(value)?),
            (allowed_ip::LENGTH, value) => length = Some(u8::from_ne_bytes(array(value)?)),
            _ => {}
        }
    }
    IpNet::new(address?, length?).ok()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let four = array(bytes).map(|four: [u8; 4]| Ipv4Addr::from(four).into());
    four.or_else(|| array(bytes).map(|sixteen: [u8; 16]| Ipv6Addr::from(sixteen).into()))
}

fn endpoint(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(array(bytes.get(..2)?)?));
    let port = u16::from_be_bytes(array(bytes.get(2..4)?)?);
    let address = match family {
        libc::AF_INET => ip(bytes.get(4..8)?)?,
        libc::AF_INET6 => ip(bytes.get(8..24)?)?,
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: u16 = 0x25;

    fn hex(bytes: &[u8]) -> String {
        bytes.chunks(4).map(|four| four.iter().map(|b| format!("{b:02x}")).collect::<String>() + " ").collect()
    }

    fn ranges(list: &[&str]) -> BTreeSet<IpNet> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The attributes of a message, as the kernel would give them back.
    fn part(message: &[u8]) -> &[u8] {
        &message[HEADER + GENERIC_HEADER..]
    }

    /// Written down from the header, on a machine of the usual byte order.
    #[test]
    #[cfg(target_endian = "little")]
    fn messages_are_those_of_the_kernels_header() {
        assert_eq!(
            hex(&ask_family()),
            "24000000 10000500 00000000 00000000 03010000 0e000200 77697265 67756172 64000000 "
        );
        assert_eq!(hex(&ask_device(FAMILY, 7)), "1c000000 25000103 00000000 00000000 00010000 08000100 07000000 ");
        let key = PrivateKey::clamped([0x48; 32]);
        let key_words = "48484848 ".repeat(8);
        assert_eq!(
            hex(&set_device(FAMILY, 7, &key, 51820)),
            format!(
                "48000000 25000500 00000000 00000000 01010000 08000100 07000000 24000300 {key_words}06000600 6cca0000 "
            )
        );
        let peer = PublicKey([0x11; 32]);
        let peer_words = "11111111 ".repeat(8);
        assert_eq!(
            hex(&remove_peer(FAMILY, 7, peer)),
            format!(
                "50000000 25000500 00000000 00000000 01010000 08000100 07000000 34000880 30000080 24000100 {peer_words}08000300 01000000 "
            )
        );
        let endpoint = Some("192.0.2.2:51820".parse().unwrap());
        let set = set_peer(FAMILY, 7, peer, (endpoint, 25), &ranges(&["10.244.2.0/24"]));
        assert_eq!(
            hex(&set),
            format!(
                "8c000000 25000500 00000000 00000000 01010000 08000100 07000000 70000880 6c000080 24000100 {peer_words}\
                 08000300 02000000 14000400 0200ca6c c0000202 00000000 00000000 06000500 19000000 \
                 20000980 1c000080 06000100 02000000 08000200 0af40200 05000300 18000000 "
            )
        );
    }

    #[test]
    fn a_device_is_read_as_it_was_written() {
        let mut device = Device::default();
        let key = PrivateKey::clamped([9; 32]);
        device.take(part(&set_device(FAMILY, 7, &key, 51821))).unwrap();
        let (one, two) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let endpoint = Some("[2001:db8::2]:51821".parse().unwrap());
        let parts = [
            set_peer(FAMILY, 7, one, (endpoint, 25), &ranges(&["fd00:244:0:1::/64"])),
            // The rest of a peer comes without its endpoint.
            set_peer(FAMILY, 7, one, (None, 25), &ranges(&["fd00:244:0:2::/64"])),
            set_peer(FAMILY, 7, two, (None, 0), &ranges(&[])),
        ];
        for message in &parts {
            device.take(part(message)).unwrap();
        }
        assert_eq!((device.private_key, device.public_key, device.port), (Some(key), None, 51821));
        let both = ranges(&["fd00:244:0:1::/64", "fd00:244:0:2::/64"]);
        assert_eq!(device.peers[&one], DevicePeer { endpoint, keepalive_seconds: 25, ranges: both });
        assert_eq!(device.peers[&two], DevicePeer::default());
        assert_eq!(device.peers.len(), 2);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_not_taken_for_a_whole_one() {
        let endpoint = Some("192.0.2.2:51820".parse().unwrap());
        let whole = set_peer(FAMILY, 7, PublicKey([1; 32]), (endpoint, 25), &ranges(&["10.244.2.0/24"]));
        assert!(matches!(answers(&whole).unwrap()[..], [Answer::Part(_)]));
        for cut in 1..whole.len() {
            assert_eq!(answers(&whole[..cut]), None, "{cut}");
        }
        let attributes = part(&whole);
        let mut read = 0;
        for cut in 0..attributes.len() {
            // Only between two attributes nothing is missing, and then there is no peer.
            let mut device = Device::default();
            if device.take(&attributes[..cut]).is_some() {
                assert_eq!(device, Device::default(), "{cut}");
                read += 1;
            }
        }
        assert_eq!(read, 2);
        // Whatever else a message may hold, reading it ends.
        for at in 0..attributes.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut broken = attributes.to_vec();
                broken[at] = byte;
                let _ = Device::default().take(&broken);
            }
        }
    }

    #[test]
    fn the_kernels_last_word_is_read() {
        let end = |kind: u16, code: i32| {
            let mut message = 20u32.to_ne_bytes().to_vec();
            message.extend(kind.to_ne_bytes());
            message.extend([0; 10]);
            message.extend(code.to_ne_bytes());
            message
        };
        let check = |datagram: &[u8], expected| assert_eq!(answers(datagram), expected);
        check(&end(ERROR, 0), Some(vec![Answer::End(Ok(()))]));
        check(&end(ERROR, -libc::ENOENT), Some(vec![Answer::End(Err(libc::ENOENT))]));
        check(&end(DONE, 0), Some(vec![Answer::End(Ok(()))]));
        let mut named = message(CONTROL, 0, (1, 2), |a| a.put(FAMILY_ID, &FAMILY.to_ne_bytes()));
        named.extend(end(ERROR, 0));
        let read = answers(&named).unwrap();
        let [Answer::Part(text), Answer::End(Ok(()))] = &read[..] else { panic!("{read:?}") };
        assert_eq!(family(text), Some(FAMILY));
        assert_eq!(family(&[]), None);
        // A length that leads nowhere.
        check(&[0; 20], None);
        check(&[], Some(Vec::new()));
    }
}
