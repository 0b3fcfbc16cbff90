//! The overlay in the real kernel: three nodes in network namespaces, two on one link and one behind a router. Their Pods reach
//! each other, a stranger's packets do not come out of the tunnel, and a node that goes leaves nothing; in both families of addresses.

mod world;

use network::overlay::plan::{Mode, mac};
use nft::Family;
use world::{NODES, World, run, sh};

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
