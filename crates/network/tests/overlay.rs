//! The overlay in the real kernel: three nodes in network namespaces, two on one link and one behind a router. Their Pods reach
//! each other, a stranger's packets do not come out of the tunnel, and a node that goes leaves nothing; in both families of addresses.

use std::{
    collections::BTreeMap,
    process::{Command, Output},
    thread::JoinHandle,
};

use ipnet::IpNet;
use network::overlay::{
    Overlay,
    peers::Peer,
    plan::{Mode, mac},
    uplink,
};
use nft::Family;
use tokio::sync::oneshot;

const CLUSTER: &str = "10.244.0.0/16";
/// Name, address, range: `c` is behind the router.
const NODES: [(&str, &str, &str); 3] =
    [("a", "192.0.2.1", "10.244.1.0/24"), ("b", "192.0.2.2", "10.244.2.0/24"), ("c", "198.51.100.3", "10.244.3.0/24")];

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Runs a command that has to succeed; returns what it says.
fn sh(command: &str) -> String {
    let out = run("sh", &["-ec", command]);
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

struct World {
    name: String,
    family: Family,
}

/// A text with the addresses of the other family in the places of those of IPv4.
fn text(family: Family, text: &str) -> String {
    let mut text = text.to_owned();
    let sixes = [("192.0.2.", "2001:db8:1::"), ("198.51.100.", "2001:db8:2::"), ("/24", "/64"), ("/32", "/128")];
    for (four, six) in sixes.into_iter().filter(|_| family == Family::V6) {
        text = text.replace(four, six);
    }
    for number in (0..4).filter(|_| family == Family::V6) {
        text = text.replace(&format!("10.244.{number}."), &format!("fd00:244:0:{number}::"));
    }
    text.replace("fd00:244:0:0::0/16", "fd00:244::/48").replace("::0/64", "::/64")
}

impl World {
    /// The nodes with a Pod's address each, a router between `c` and the link of the others, and a stranger on that link.
    fn new(test: &str, family: Family) -> Option<Self> {
        let world = World { name: format!("sko{}{test}", std::process::id()), family };
        if !run("ip", &["netns", "add", &world.of("r")]).status.success() {
            eprintln!("SKIPPED: network namespaces need root and iproute2");
            return None;
        }
        let router = world.of("r");
        sh(&format!(
            "ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1; ip -n {router} link add br0 type bridge; \
             ip netns exec {router} sysctl -qw net.ipv6.conf.all.forwarding=1; ip -n {router} link set br0 up; {}",
            text(family, &format!("ip -n {router} address add 192.0.2.254/24 dev br0{}", world.at_once()))
        ));
        for (name, address, range) in NODES.into_iter().chain([("x", "192.0.2.66", "")]) {
            let node = world.of(name);
            let far = address.starts_with("198");
            let (gateway, own) = if far {
                ("198.51.100.254", "ip -n R address add 198.51.100.254/24 dev pNAMENODAD")
            } else {
                ("192.0.2.254", "ip -n R link set pNAME master br0")
            };
            let own = text(family, own)
                .replace("NODAD", world.at_once())
                .replace("pNAME", &format!("p{name}"))
                .replace("-n R", &format!("-n {router}"));
            let (address, gateway) = (text(family, address), text(family, gateway));
            let (length, at_once) = (if family == Family::V4 { 24 } else { 64 }, world.at_once());
            let version = if family == Family::V4 { "" } else { "-6 " };
            sh(&format!(
                "ip netns add {node}; ip -n {node} link set lo up; \
                 ip -n {node} link add eth0 type veth peer name p{name} netns {router}; {own}; \
                 ip -n {router} link set p{name} up; ip -n {node} link set eth0 up; \
                 ip -n {node} address add {address}/{length} dev eth0{at_once}; \
                 ip {version}-n {node} route add default via {gateway}; \
                 ip netns exec {node} sysctl -qw net.ipv6.conf.all.forwarding=1; \
                 ip netns exec {node} sysctl -qw net.ipv4.ip_forward=1"
            ));
            if let Ok(range) = text(family, range).parse::<IpNet>() {
                let table = network::rules::table(range, text(family, CLUSTER).parse().unwrap());
                sh(&format!("printf '%s' '{table}' | ip netns exec {node} nft -f -"));
                // A Pod, as far as others see it.
                sh(&format!("ip -n {node} address add {} dev lo", pod(range)));
            }
        }
        Some(world)
    }

    /// A check for others with an address would keep it from being used for a second.
    fn at_once(&self) -> &'static str {
        if self.family == Family::V4 { "" } else { " nodad" }
    }

    fn text(&self, four: &str) -> String {
        text(self.family, four)
    }

    fn of(&self, name: &str) -> String {
        format!("{}{name}", self.name)
    }

    /// Has a node follow others once, in its namespace.
    fn follow(&self, own: &str, others: &[&str], mode: Mode) {
        let (follower, stop) = self.keep_following(own, others, mode);
        drop(stop);
        follower.join().unwrap();
    }

    /// Has a node follow others, in its namespace, until the sender is dropped.
    fn keep_following(&self, own: &str, others: &[&str], mode: Mode) -> (JoinHandle<()>, oneshot::Sender<()>) {
        let find = |name: &str| {
            let (_, address, range) = NODES.into_iter().find(|(n, ..)| *n == name).unwrap();
            (self.text(address), self.text(range))
        };
        let (address, range) = find(own);
        let peer = |name: &&str| {
            let (address, range) = find(name);
            let range: IpNet = range.parse().unwrap();
            (range, Peer { address: address.parse().unwrap(), range })
        };
        let peers: BTreeMap<IpNet, Peer> = others.iter().map(peer).collect();
        let namespace = std::fs::File::open(format!("/var/run/netns/{}", self.of(own))).unwrap();
        let (stop, mut stopped) = oneshot::channel();
        let work = move || {
            nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let uplink = uplink(address.parse().unwrap()).await.unwrap().unwrap();
                let mut overlay = Overlay::new(uplink, mode, range.parse().unwrap()).await.unwrap();
                overlay.follow(&peers).await.unwrap();
                loop {
                    tokio::select! {
                        biased;
                        _ = &mut stopped => return,
                        () = overlay.lost() => {}
                    }
                    // A part that is only half gone is tried again when the rest of the change is told.
                    let _ = overlay.follow(&peers).await;
                }
            });
        };
        // A thread of its own, because the namespace is a thread's property.
        (std::thread::spawn(work), stop)
    }

    /// Waits until a node's Pod reaches another's.
    fn reaches_again(&self, from: &str, to: &str, what: &str) {
        let mut tries = 0..30;
        while !self.reaches(from, to, "") {
            assert!(tries.next().is_some(), "{what}: {from} to {to}: {}", self.shown(from, "route"));
        }
    }

    fn reaches(&self, from: &str, to: &str, options: &str) -> bool {
        let range =
            |name: &str| self.text(NODES.into_iter().find(|(n, ..)| *n == name).unwrap().2).parse::<IpNet>().unwrap();
        let ping = format!("busybox ping -c1 -W1 {options} -I {} {}", pod(range(from)), pod(range(to)));
        run("sh", &["-c", &format!("ip netns exec {} {ping}", self.of(from))]).status.success()
    }

    /// How many pieces the node's kernel has cut packets into.
    fn cut(&self, node: &str) -> String {
        let text = sh(&format!("ip netns exec {} cat /proc/net/snmp /proc/net/snmp6", self.of(node)));
        if self.family == Family::V6 {
            let line = text.lines().find(|line| line.starts_with("Ip6FragCreates")).unwrap();
            return line.split_whitespace().nth(1).unwrap().to_owned();
        }
        let mut lines = text.lines().filter(|line| line.starts_with("Ip:")).map(|line| line.split(' '));
        let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
        let place = names.position(|name| name == "FragCreates").unwrap();
        values.nth(place).unwrap().to_owned()
    }

    fn shown(&self, node: &str, what: &str) -> String {
        let version = if self.family == Family::V4 { "" } else { "-6 " };
        sh(&format!("ip {version}-n {} {}", self.of(node), self.text(what)))
    }

    fn tunnel(&self) -> &'static str {
        network::rules::tunnel(self.family)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for name in ["a", "b", "c", "x", "r"] {
            run("ip", &["netns", "del", &self.of(name)]);
        }
    }
}

fn pod(range: IpNet) -> String {
    let network = range.network().to_string();
    format!("{}7", network.strip_suffix('0').unwrap_or(&network))
}

#[test]
fn pods_of_all_nodes_reach_each_other_and_strangers_none() {
    for family in Family::ALL {
        all_reach_each_other(family);
    }
}

fn all_reach_each_other(family: Family) {
    let Some(world) = World::new("r", family) else { return };
    // The largest packet of a Pod: 1500 bytes less the tunnel's, and less those of IP and ICMP.
    let full_size = if family == Family::V4 { "-s 1422" } else { "-s 1382" };
    for mode in [Mode::Auto, Mode::Vxlan] {
        for (own, ..) in NODES {
            let others: Vec<&str> = NODES.iter().map(|(name, ..)| *name).filter(|name| *name != own).collect();
            world.follow(own, &others, mode);
        }
        for (from, ..) in NODES {
            for (to, ..) in NODES.into_iter().filter(|(to, ..)| *to != from) {
                // The links' own addresses of IPv6 are not used before a check of a second.
                world.reaches_again(from, to, &mode.to_string());
                assert!(world.reaches(from, to, full_size), "{mode}: {from} to {to}, full size");
                assert_eq!(world.cut(from), "0", "{mode}: {from} to {to}, which is not cut on the way");
            }
        }
        let way = world.shown("a", "route get 10.244.2.7");
        let direct = way.contains(&world.text("via 192.0.2.2 dev eth0"));
        assert_eq!(direct, mode == Mode::Auto, "{way}");
        let (way, through) = (world.shown("a", "route get 10.244.3.7"), format!("dev {}", world.tunnel()));
        assert!(way.contains(&through), "{way}");
    }
    strangers(&world);
    another_process(&world);
}

/// The hardware address of a node's end of the tunnel.
fn end(world: &World, node: &str) -> String {
    mac(world.text(node).parse().unwrap()).map(|byte| format!("{byte:02x}")).join(":")
}

/// A stranger that knows the tunnel's number and addresses speaks as a Pod of `b`.
fn strangers(world: &World) {
    let (stranger, of_a, own) = (world.of("x"), end(world, "192.0.2.1"), end(world, "192.0.2.66"));
    let version = if world.family == Family::V4 { "" } else { "-6 " };
    sh(&world.text(&format!(
        "ip -n {stranger} link add name vx type vxlan id 1 dev eth0 local 192.0.2.66 dstport 8472 nolearning; \
         ip -n {stranger} link set vx address {own} up; ip -n {stranger} address add 10.244.2.9/32 dev vx; \
         bridge -n {stranger} fdb append {of_a} dev vx dst 192.0.2.1; \
         ip -n {stranger} neighbour add 10.244.1.1 lladdr {of_a} dev vx nud permanent; \
         ip {version}-n {stranger} route add 10.244.1.0/24 via 10.244.1.1 dev vx onlink"
    )));
    let received = || -> u64 {
        let file = format!("/sys/class/net/{}/statistics/rx_packets", world.tunnel());
        sh(&format!("ip netns exec {} cat {file}", world.of("a"))).trim().parse().unwrap()
    };
    let before = received();
    run("ip", &["netns", "exec", &stranger, "busybox", "ping", "-c1", "-W1", &world.text("10.244.1.7")]);
    assert_eq!(received(), before, "a stranger's packet came out of the tunnel");
    assert!(world.reaches("b", "a", "") && received() > before, "those of nodes do");
}

/// A process that begins anew finds what an earlier one left, keeps what is right and removes the rest.
fn another_process(world: &World) {
    let tunnel = world.tunnel();
    let number = || world.shown("a", &format!("-o link show {tunnel}")).split(':').next().map(str::to_owned);
    let before = number();
    world.follow("a", &["c"], Mode::Vxlan);
    assert_eq!(number(), before, "the tunnel stays");
    let left = world.shown("a", "route")
        + &world.shown("a", &format!("neighbour show dev {tunnel}"))
        + &sh(&format!("bridge -n {} fdb show dev {tunnel}", world.of("a")));
    assert!(!left.contains(&world.text("10.244.2.")) && !left.contains(&world.text("192.0.2.2 ")), "{left}");
    let way = world.text("10.244.3.0/24 via ");
    assert!(left.contains(&way) && world.reaches("a", "c", ""), "{left}");
    // Without tunnels there is none.
    world.follow("a", &["b", "c"], Mode::Direct);
    assert!(!world.shown("a", "link").contains(tunnel));
    assert!(world.shown("a", "route").contains(&world.text("10.244.2.0/24 via 192.0.2.2")));
}

#[test]
fn what_is_removed_by_hand_comes_back() {
    for family in Family::ALL {
        comes_back(family);
    }
}

fn comes_back(family: Family) {
    let Some(world) = World::new("h", family) else { return };
    for (own, other) in [("b", "a"), ("c", "a")] {
        world.follow(own, &[other], Mode::Auto);
    }
    let (follower, stop) = world.keep_following("a", &["b", "c"], Mode::Auto);
    let all = || {
        world.reaches_again("a", "b", "before");
        world.reaches_again("a", "c", "before");
    };
    let ruin = |what: &str| {
        all();
        let (far, version) = (end(&world, "198.51.100.3"), if family == Family::V4 { "" } else { "-6 " });
        let what = what.replace("HERE", &world.of("a")).replace("TUNNEL", world.tunnel()).replace("FAR", &far);
        sh(&world.text(&what.replace("VERSION ", version).replace(" ATONCE", world.at_once())));
        world.reaches_again("a", "c", &what);
        world.reaches_again("a", "b", &what);
    };
    ruin("ip VERSION -n HERE route del 10.244.2.0/24");
    ruin("ip VERSION -n HERE route flush proto 83");
    ruin("ip VERSION -n HERE neighbour flush dev TUNNEL nud permanent");
    ruin("bridge -n HERE fdb del FAR dev TUNNEL dst 198.51.100.3");
    ruin("ip -n HERE link set TUNNEL down");
    ruin("ip -n HERE link del TUNNEL");
    ruin("ip -n HERE address flush dev TUNNEL");
    // The link itself, with everything on it, and only later its routes. An interface of IPv6 loses its addresses with it.
    let address = if family == Family::V4 { "" } else { "ip -n HERE address add 192.0.2.1/24 dev eth0 ATONCE; " };
    ruin(&format!(
        "ip -n HERE link set eth0 down; ip -n HERE link set eth0 up; {address}ip VERSION -n HERE route add default via 192.0.2.254"
    ));
    // A change of one's own is no loss: there is nothing more to tell.
    all();
    drop(stop);
    follower.join().unwrap();
}
