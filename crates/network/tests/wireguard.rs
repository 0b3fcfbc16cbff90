//! Encrypted ways in the real kernel: three nodes in network namespaces, two on one link and one behind a router, whose wires show
//! nothing but WireGuard. A kernel without it says so; `tests/wireguard.sh` runs this file on one that has it.

mod world;

use std::{
    net::IpAddr,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use network::overlay::plan::Mode;
use nft::Family;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt::ReceiveTimeout,
};
use world::{NODES, World, run, sh, text};

/// Whether this kernel can be tried; one that cannot has to say what to do about it.
fn there() -> bool {
    let found = network::require(Mode::Wireguard);
    if let Err(error) = &found {
        let said = error.to_string();
        assert!(said.contains("modprobe wireguard") && said.contains("--pod-network"), "{said}");
        eprintln!("SKIPPED: {said}");
    }
    found.is_ok()
}

fn world(test: &str, family: Family) -> Option<World> {
    let world = World::new(test, family)?;
    // Each node's key is known to the others before they need it.
    for (name, ..) in NODES {
        world.follow(name, &[], Mode::Wireguard);
    }
    Some(world)
}

fn others(own: &str) -> Vec<&'static str> {
    NODES.iter().map(|(name, ..)| *name).filter(|name| *name != own).collect()
}

fn follow_all(world: &World) {
    for (own, ..) in NODES {
        world.follow(own, &others(own), Mode::Wireguard);
    }
}

/// All that passes the router and the link before it, while it is there.
struct Wire {
    stop: Arc<AtomicBool>,
    frames: JoinHandle<Vec<Vec<u8>>>,
}

impl Wire {
    fn tap(world: &World) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, namespace) = (stop.clone(), world.namespace("r"));
        let (ready, begun) = std::sync::mpsc::channel();
        let listen = move || {
            nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let tap = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).unwrap();
            setsockopt(&tap, ReceiveTimeout, &nix::sys::time::TimeVal::new(0, 100_000)).unwrap();
            ready.send(()).unwrap();
            let mut frames = Vec::new();
            let mut buffer = [0; 2048];
            loop {
                match recv(tap.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                    Ok(length) => frames.push(buffer[..length].to_vec()),
                    Err(_) if asked.load(Ordering::Relaxed) => return frames,
                    Err(_) => {}
                }
            }
        };
        let frames = std::thread::spawn(listen);
        begun.recv().unwrap();
        Wire { stop, frames }
    }

    /// The packets of IP that were seen.
    fn seen(self) -> Vec<Packet> {
        self.stop.store(true, Ordering::Relaxed);
        let frames = self.frames.join().unwrap();
        frames.into_iter().filter_map(packet).collect()
    }
}

/// A packet of IP on the wire.
struct Packet {
    protocol: u8,
    /// Those of UDP.
    ports: Option<(u16, u16)>,
    frame: Vec<u8>,
}

impl Packet {
    fn shows_what_pods_send(&self) -> bool {
        self.frame.windows(16).any(|bytes| bytes == [0x5a; 16])
    }
}

fn packet(frame: Vec<u8>) -> Option<Packet> {
    let (protocol, payload) = match frame.get(12..14)? {
        [0x08, 0x00] => (*frame.get(23)?, 14 + usize::from(frame[14] & 15) * 4),
        [0x86, 0xdd] => (*frame.get(20)?, 54),
        // Neighbours of IPv4 are asked for beside it.
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(frame.get(payload + at..payload + at + 2)?.try_into().ok()?));
    let ports = if protocol == 17 { port(0).zip(port(2)) } else { None };
    Some(Packet { protocol, ports, frame })
}

/// From where to where a packet of IP is.
fn ends(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    Some(match frame.get(12..14)? {
        [0x08, 0x00] => {
            let address = |at| Some(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?.into());
            (address(26)?, address(30)?)
        }
        _ => {
            let address = |at| Some(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?.into());
            (address(22)?, address(38)?)
        }
    })
}

/// Whether a packet is of those that ask for neighbours and routers of IPv6, or reports groups to them.
fn of_neighbours(packet: &Packet) -> bool {
    // Reports of groups have options before them.
    packet.protocol == 0 || (packet.protocol == 58 && matches!(packet.frame.get(54), Some(130..=143)))
}

#[test]
fn pods_of_all_nodes_reach_each_other_and_the_wires_show_nothing_of_it() {
    for family in Family::ALL.into_iter().filter(|_| there()) {
        nothing_is_shown(family);
    }
}

fn nothing_is_shown(family: Family) {
    let Some(world) = world("w", family) else { return };
    follow_all(&world);
    let wire = Wire::tap(&world);
    // The largest packet of a Pod: 1500 bytes less WireGuard's, and less those of IP and ICMP; all of its bytes are 5a.
    let full_size = if family == Family::V4 { "-p 5a -s 1392" } else { "-p 5a -s 1372" };
    for (from, ..) in NODES {
        for to in others(from) {
            world.reaches_again(from, to, "wireguard");
            assert!(world.reaches(from, to, full_size), "{from} to {to}, full size");
            assert_eq!(world.cut(from), "0", "{from} to {to}, which is not cut on the way");
        }
    }
    let port = if family == Family::V4 { 51820 } else { 51821 };
    let (mut encrypted, mut clear) = (0, Vec::new());
    for packet in wire.seen() {
        match packet.ports {
            Some(ports) if ports == (port, port) => encrypted += 1,
            _ if of_neighbours(&packet) => {}
            ports => clear.push(format!("protocol {} {ports:?}", packet.protocol)),
        }
        assert!(!packet.shows_what_pods_send(), "a Pod's packet can be read on the wire");
    }
    assert_eq!(clear, [""; 0], "on the wire in the open");
    // Each ping of each pair, there and back.
    assert!(encrypted >= 2 * 2 * 6, "{encrypted} packets");
    a_node_without_a_key(&world);
    lies(&world);
    another_process(&world);
}

/// A packet for a node whose key is unknown is refused, and does not leave in the open; also while there is no interface at all.
fn a_node_without_a_key(world: &World) {
    world.follow("a", &["c"], Mode::Wireguard);
    let wire = Wire::tap(world);
    assert!(!world.reaches("a", "b", "-p 5a"));
    sh(&format!("ip -n {} link del {}", world.of("a"), world.encrypted()));
    assert!(!world.reaches("a", "c", "-p 5a"));
    assert!(!wire.seen().iter().any(Packet::shows_what_pods_send), "a Pod's packet left in the open");
    follow_all(world);
    world.reaches_again("a", "b", "the key is known again");
}

/// `c` says that the key of `b` were its own: it gets nothing of what is for `b`, which goes on being reached.
fn lies(world: &World) {
    let (honest, own) = (world.told("b"), world.told("c"));
    world.tells("c", honest);
    world.follow("a", &["b", "c"], Mode::Wireguard);
    let wire = Wire::tap(world);
    world.reaches_again("a", "b", "while another one names its key");
    assert!(!world.reaches("a", "c", ""));
    let [from, to] = ["192.0.2.1", "198.51.100.3"].map(|node| world.text(node).parse().unwrap());
    let to_liar = wire.seen().into_iter().filter(|packet| ends(&packet.frame) == Some((from, to))).count();
    assert_eq!(to_liar, 0, "the liar was sent packets");
    world.tells("c", own);
    world.follow("a", &["b", "c"], Mode::Wireguard);
    world.reaches_again("a", "c", "after the lie");
}

/// A process that begins anew keeps what an earlier one left that is right, and removes the rest; in another mode there is none of it.
fn another_process(world: &World) {
    let device = world.encrypted();
    let number = || world.shown("a", &format!("-o link show {device}")).split(':').next().map(str::to_owned);
    let before = number();
    world.follow("a", &["c"], Mode::Wireguard);
    assert_eq!(number(), before, "the interface stays");
    assert!(world.reaches("a", "c", "") && !world.reaches("a", "b", ""));
    for (own, ..) in NODES {
        world.follow(own, &others(own), Mode::Auto);
    }
    assert!(!world.shown("a", "link").contains(device));
    world.reaches_again("a", "b", "in the open again");
    let refused = world.text("unreachable 10.244.0.0/16");
    assert!(!world.shown("a", "route show table all").contains(&refused));
}

#[test]
fn what_is_removed_by_hand_comes_back() {
    for family in Family::ALL.into_iter().filter(|_| there()) {
        comes_back(family);
    }
}

fn comes_back(family: Family) {
    let Some(world) = world("g", family) else { return };
    follow_all(&world);
    let (follower, stop) = world.keep_following("a", &["b", "c"], Mode::Wireguard);
    let version = if family == Family::V4 { "" } else { "-6 " };
    let ruin = |what: &str| {
        world.reaches_again("a", "b", "before");
        world.reaches_again("a", "c", "before");
        let what = what.replace("HERE", &world.of("a")).replace("WG", world.encrypted()).replace("VERSION ", version);
        // Keys come last: any text may be a part of one.
        let what = text(family, &what).replace("%B", &world.told("b").to_string());
        let what = what.replace("%C", &world.told("c").to_string());
        sh(&what);
        world.reaches_again("a", "c", &what);
        world.reaches_again("a", "b", &what);
    };
    ruin("ip VERSION -n HERE route del 10.244.0.0/16 dev WG");
    ruin("ip VERSION -n HERE route flush proto 83");
    ruin("ip -n HERE link set WG down");
    ruin("ip -n HERE link del WG");
    ruin("ip -n HERE address flush dev WG");
    // The rest is changed with the program of WireGuard itself, where there is one.
    if run("sh", &["-c", "command -v wg"]).status.success() {
        ruin("ip netns exec HERE wg set WG peer %B remove");
        ruin("ip netns exec HERE wg set WG peer %C allowed-ips 10.244.2.0/24");
        ruin("ip netns exec HERE wg set WG listen-port 5000");
        ruin("wg genkey | ip netns exec HERE wg set WG private-key /dev/stdin");
    } else {
        eprintln!("SKIPPED: changes by hand with wg, which is not there");
    }
    drop(stop);
    follower.join().unwrap();
}
