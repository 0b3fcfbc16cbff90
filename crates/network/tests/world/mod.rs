//! Three nodes in network namespaces, two on one link and one behind a router, and a stranger.

#![allow(dead_code, reason = "each test uses its own part of this")]

use std::{
    collections::BTreeMap,
    process::{Command, Output},
    sync::{Mutex, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use network::overlay::{Overlay, key::PublicKey, peers::Peer, plan::Mode, uplink};
use nft::Family;
use tokio::sync::oneshot;

pub const CLUSTER: &str = "10.244.0.0/16";
/// How long a way may be missing until the test gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Name, address, range: `c` is behind the router.
pub const NODES: [(&str, &str, &str); 3] =
    [("a", "192.0.2.1", "10.244.1.0/24"), ("b", "192.0.2.2", "10.244.2.0/24"), ("c", "198.51.100.3", "10.244.3.0/24")];

pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Runs a command that has to succeed; returns what it says.
pub fn sh(command: &str) -> String {
    let out = run("sh", &["-ec", command]);
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub struct World {
    name: String,
    pub family: Family,
    /// The keys of the nodes, each in a file named after it, and what the nodes have told of them.
    keys: tempfile::TempDir,
    told: Mutex<BTreeMap<String, PublicKey>>,
}

/// A text with the addresses of the other family in the places of those of IPv4.
pub fn text(family: Family, text: &str) -> String {
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
    pub fn new(test: &str, family: Family) -> Option<Self> {
        let keys = tempfile::tempdir().unwrap();
        let world = World { name: format!("sko{}{test}", std::process::id()), family, keys, told: Mutex::default() };
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
    pub fn at_once(&self) -> &'static str {
        if self.family == Family::V4 { "" } else { " nodad" }
    }

    pub fn text(&self, four: &str) -> String {
        text(self.family, four)
    }

    pub fn of(&self, name: &str) -> String {
        format!("{}{name}", self.name)
    }

    /// Has a node follow others once, in its namespace.
    pub fn follow(&self, own: &str, others: &[&str], mode: Mode) {
        let (follower, stop) = self.keep_following(own, others, mode);
        drop(stop);
        follower.join().unwrap();
    }

    /// Has a node follow others, in its namespace, until the sender is dropped.
    pub fn keep_following(&self, own: &str, others: &[&str], mode: Mode) -> (JoinHandle<()>, oneshot::Sender<()>) {
        let find = |name: &str| {
            let (_, address, range) = NODES.into_iter().find(|(n, ..)| *n == name).unwrap();
            (self.text(address), self.text(range))
        };
        let (address, range) = find(own);
        let peer = |name: &&str| {
            let (address, range) = find(name);
            let range: IpNet = range.parse().unwrap();
            let key = self.told.lock().unwrap().get(*name).copied();
            (range, Peer { address: address.parse().unwrap(), range, key })
        };
        let peers: BTreeMap<IpNet, Peer> = others.iter().map(peer).collect();
        let namespace = self.namespace(own);
        let (stop, mut stopped) = oneshot::channel();
        let (key_file, cluster) = (self.keys.path().join(own), self.text(CLUSTER).parse().unwrap());
        let (tell, told) = mpsc::channel();
        let work = move || {
            nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let uplink = uplink(address.parse().unwrap()).await.unwrap().unwrap();
                let mut overlay = Overlay::new(uplink, mode, range.parse().unwrap(), cluster, &key_file).await.unwrap();
                overlay.follow(&peers).await.unwrap();
                tell.send(overlay.public_key()).unwrap();
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
        let thread = std::thread::spawn(work);
        if let Some(key) = told.recv().expect("a node that follows the others") {
            self.tells(own, key);
        }
        (thread, stop)
    }

    /// Has a node name this key as its own.
    pub fn tells(&self, node: &str, key: PublicKey) {
        self.told.lock().unwrap().insert(node.to_owned(), key);
    }

    pub fn told(&self, node: &str) -> PublicKey {
        self.told.lock().unwrap()[node]
    }

    /// The network namespace of a node.
    pub fn namespace(&self, node: &str) -> std::fs::File {
        std::fs::File::open(format!("/var/run/netns/{}", self.of(node))).unwrap()
    }

    pub fn encrypted(&self) -> &'static str {
        network::rules::encrypted(self.family)
    }

    /// Waits until a node's Pod reaches another's. A ping without a way fails at once, so tries alone would be no time at all:
    /// a peer that is gone is noticed within seconds.
    pub fn reaches_again(&self, from: &str, to: &str, what: &str) {
        let begun = Instant::now();
        while !self.reaches(from, to, "") {
            assert!(begun.elapsed() < PATIENCE, "{what}: {from} to {to}: {}", self.shown(from, "route"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn reaches(&self, from: &str, to: &str, options: &str) -> bool {
        let range =
            |name: &str| self.text(NODES.into_iter().find(|(n, ..)| *n == name).unwrap().2).parse::<IpNet>().unwrap();
        let ping = format!("busybox ping -c1 -W1 {options} -I {} {}", pod(range(from)), pod(range(to)));
        run("sh", &["-c", &format!("ip netns exec {} {ping}", self.of(from))]).status.success()
    }

    /// How many pieces the node's kernel has cut packets into.
    pub fn cut(&self, node: &str) -> String {
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

    pub fn shown(&self, node: &str, what: &str) -> String {
        let version = if self.family == Family::V4 { "" } else { "-6 " };
        sh(&format!("ip {version}-n {} {}", self.of(node), self.text(what)))
    }

    pub fn tunnel(&self) -> &'static str {
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

pub fn pod(range: IpNet) -> String {
    let network = range.network().to_string();
    format!("{}7", network.strip_suffix('0').unwrap_or(&network))
}
