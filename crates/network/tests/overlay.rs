//! The overlay in the real kernel: three nodes in network namespaces, two on one link and one behind a router. Their Pods reach
//! each other, a stranger's packets do not come out of the tunnel, and a node that goes leaves nothing.

use std::{
    collections::BTreeMap,
    process::{Command, Output},
    thread::JoinHandle,
};

use ipnet::Ipv4Net;
use network::overlay::{Overlay, peers::Peer, plan::Mode, uplink};
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

struct World(String);

impl World {
    /// The nodes with a Pod's address each, a router between `c` and the link of the others, and a stranger on that link.
    fn new(test: &str) -> Option<Self> {
        let world = World(format!("sko{}{test}", std::process::id()));
        if !run("ip", &["netns", "add", &world.of("r")]).status.success() {
            eprintln!("SKIPPED: network namespaces need root and iproute2");
            return None;
        }
        let router = world.of("r");
        sh(&format!(
            "ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1; ip -n {router} link add br0 type bridge; \
             ip -n {router} link set br0 up; ip -n {router} address add 192.0.2.254/24 dev br0"
        ));
        for (name, address, range) in NODES.into_iter().chain([("x", "192.0.2.66", "")]) {
            let node = world.of(name);
            let far = address.starts_with("198");
            let (gateway, own) = if far {
                ("198.51.100.254", "ip -n R address add 198.51.100.254/24 dev pNAME")
            } else {
                ("192.0.2.254", "ip -n R link set pNAME master br0")
            };
            let own = own.replace("pNAME", &format!("p{name}")).replace("-n R", &format!("-n {router}"));
            sh(&format!(
                "ip netns add {node}; ip -n {node} link set lo up; \
                 ip -n {node} link add eth0 type veth peer name p{name} netns {router}; {own}; \
                 ip -n {router} link set p{name} up; ip -n {node} link set eth0 up; \
                 ip -n {node} address add {address}/24 dev eth0; ip -n {node} route add default via {gateway}; \
                 ip netns exec {node} sysctl -qw net.ipv4.ip_forward=1"
            ));
            if let Ok(range) = range.parse::<Ipv4Net>() {
                let table = network::rules::table(range, CLUSTER.parse().unwrap());
                sh(&format!("printf '%s' '{table}' | ip netns exec {node} nft -f -"));
                // A Pod, as far as others see it.
                sh(&format!("ip -n {node} address add {}/32 dev lo", pod(range)));
            }
        }
        Some(world)
    }

    fn of(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }

    /// Has a node follow others once, in its namespace.
    fn follow(&self, own: &str, others: &[&str], mode: Mode) {
        let (follower, stop) = self.keep_following(own, others, mode);
        drop(stop);
        follower.join().unwrap();
    }

    /// Has a node follow others, in its namespace, until the sender is dropped.
    fn keep_following(&self, own: &str, others: &[&str], mode: Mode) -> (JoinHandle<()>, oneshot::Sender<()>) {
        let find = |name: &str| NODES.into_iter().find(|(n, ..)| *n == name).unwrap();
        let (_, address, range) = find(own);
        let peer = |name: &&str| {
            let (_, address, range) = find(name);
            let range: Ipv4Net = range.parse().unwrap();
            (range, Peer { address: address.parse().unwrap(), range })
        };
        let peers: BTreeMap<Ipv4Net, Peer> = others.iter().map(peer).collect();
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
        let range = |name: &str| NODES.into_iter().find(|(n, ..)| *n == name).unwrap().2.parse::<Ipv4Net>().unwrap();
        let ping = format!("busybox ping -c1 -W1 {options} -I {} {}", pod(range(from)), pod(range(to)));
        run("sh", &["-c", &format!("ip netns exec {} {ping}", self.of(from))]).status.success()
    }

    /// How many pieces the node's kernel has cut packets into.
    fn cut(&self, node: &str) -> String {
        let text = sh(&format!("ip netns exec {} cat /proc/net/snmp", self.of(node)));
        let mut lines = text.lines().filter(|line| line.starts_with("Ip:")).map(|line| line.split(' '));
        let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
        let place = names.position(|name| name == "FragCreates").unwrap();
        values.nth(place).unwrap().to_owned()
    }

    fn shown(&self, node: &str, what: &str) -> String {
        sh(&format!("ip -n {} {what}", self.of(node)))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for name in ["a", "b", "c", "x", "r"] {
            run("ip", &["netns", "del", &self.of(name)]);
        }
    }
}

fn pod(range: Ipv4Net) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from(u32::from(range.network()) + 7)
}

#[test]
fn pods_of_all_nodes_reach_each_other_and_strangers_none() {
    let Some(world) = World::new("r") else { return };
    for mode in [Mode::Auto, Mode::Vxlan] {
        for (own, ..) in NODES {
            let others: Vec<&str> = NODES.iter().map(|(name, ..)| *name).filter(|name| *name != own).collect();
            world.follow(own, &others, mode);
        }
        for (from, ..) in NODES {
            for (to, ..) in NODES.into_iter().filter(|(to, ..)| *to != from) {
                assert!(world.reaches(from, to, ""), "{mode}: {from} to {to}: {}", world.shown(from, "route"));
                // The largest packet of a Pod, which is not cut on the way: 1450 bytes less IPv4 and ICMP.
                assert!(world.reaches(from, to, "-s 1422"), "{mode}: {from} to {to}, full size");
                assert_eq!(world.cut(from), "0", "{mode}: {from} to {to}");
            }
        }
        let way = world.shown("a", "route get 10.244.2.7");
        let direct = way.contains("via 192.0.2.2 dev eth0");
        assert_eq!(direct, mode == Mode::Auto, "{way}");
        assert!(world.shown("a", "route get 10.244.3.7").contains("via 10.244.3.1 dev skf-vxlan"));
    }

    // A stranger that knows the tunnel's number and addresses speaks as a Pod of `b`.
    let stranger = world.of("x");
    sh(&format!(
        "ip -n {stranger} link add name vx type vxlan id 1 dev eth0 local 192.0.2.66 dstport 8472 nolearning; \
         ip -n {stranger} link set vx address 0a:58:c0:00:02:42 up; ip -n {stranger} address add 10.244.2.9/32 dev vx; \
         bridge -n {stranger} fdb append 0a:58:c0:00:02:01 dev vx dst 192.0.2.1; \
         ip -n {stranger} neighbour add 10.244.1.1 lladdr 0a:58:c0:00:02:01 dev vx nud permanent; \
         ip -n {stranger} route add 10.244.1.0/24 via 10.244.1.1 dev vx onlink"
    ));
    let received = || -> u64 {
        let text = sh(&format!("ip netns exec {} cat /sys/class/net/skf-vxlan/statistics/rx_packets", world.of("a")));
        text.trim().parse().unwrap()
    };
    let before = received();
    run("ip", &["netns", "exec", &stranger, "busybox", "ping", "-c1", "-W1", "10.244.1.7"]);
    assert_eq!(received(), before, "a stranger's packet came out of the tunnel");
    assert!(world.reaches("b", "a", "") && received() > before, "those of nodes do");

    // A process that begins anew finds what an earlier one left, keeps what is right and removes the rest.
    let index = world.shown("a", "-o link show skf-vxlan");
    world.follow("a", &["c"], Mode::Vxlan);
    assert_eq!(
        world.shown("a", "-o link show skf-vxlan").split(':').next(),
        index.split(':').next(),
        "the tunnel stays"
    );
    let left = world.shown("a", "route")
        + &world.shown("a", "neighbour show dev skf-vxlan")
        + &sh(&format!("bridge -n {} fdb show dev skf-vxlan", world.of("a")));
    assert!(!left.contains("10.244.2.") && !left.contains("192.0.2.2 "), "{left}");
    assert!(left.contains("10.244.3.0/24 via 10.244.3.1") && world.reaches("a", "c", ""), "{left}");
    // Without tunnels there is none.
    world.follow("a", &["b", "c"], Mode::Direct);
    assert!(!world.shown("a", "link").contains("skf-vxlan"));
    assert!(world.shown("a", "route").contains("10.244.2.0/24 via 192.0.2.2"));
}

#[test]
fn what_is_removed_by_hand_comes_back() {
    let Some(world) = World::new("h") else { return };
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
        sh(&what.replace("HERE", &world.of("a")));
        world.reaches_again("a", "c", what);
        world.reaches_again("a", "b", what);
    };
    ruin("ip -n HERE route del 10.244.2.0/24");
    ruin("ip -n HERE route flush proto 83");
    ruin("ip -n HERE neighbour flush dev skf-vxlan nud permanent");
    ruin("bridge -n HERE fdb del 0a:58:c6:33:64:03 dev skf-vxlan dst 198.51.100.3");
    ruin("ip -n HERE link set skf-vxlan down");
    ruin("ip -n HERE link del skf-vxlan");
    ruin("ip -n HERE address flush dev skf-vxlan");
    // The link itself, with everything on it, and only later its routes.
    ruin("ip -n HERE link set eth0 down; ip -n HERE link set eth0 up; ip -n HERE route add default via 192.0.2.254");
    // A change of one's own is no loss: there is nothing more to tell.
    all();
    drop(stop);
    follower.join().unwrap();
}
