//! nft text: the fixed part of the table, and names, rules and elements as the kernel reads them. Pure.

use crate::{
    chain::{Chain, Rule},
    group::Element,
    rule::{Allow, Peer, Ports},
    traffic::{Direction, Family, Protocol},
};

/// The table, with its family. Each network namespace has its own.
pub const TABLE: &str = "inet skiff-policy";

/// nft takes longer names, but nobody reads them.
const NAME_LENGTH: usize = 120;

fn digit(family: Family) -> char {
    match family {
        Family::V4 => '4',
        Family::V6 => '6',
    }
}

/// The selector of addresses of a family.
fn ip(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// The map from a Pod's address to the chain that decides about it.
pub fn isolated(direction: Direction, family: Family) -> String {
    format!("{}-{}", direction.name(), digit(family))
}

/// The set of pairs of an isolated address with itself.
pub fn own(family: Family) -> String {
    format!("own-{}", digit(family))
}

pub fn group(name: &str, family: Family) -> String {
    format!("{name}-{}", digit(family))
}

/// The name of a chain: which one it is (a digest), and for people what it is about.
pub fn chain_name(direction: Direction, family: Family, digest: &str, about: &str) -> String {
    let name = format!("{}-{}-{digest}-{about}", direction.name(), digit(family));
    name.chars().take(NAME_LENGTH).collect()
}

/// Commands that leave an empty table with all hooks and maps, whatever was there before.
///
/// Both chains see what is routed through the node, after destinations have been rewritten (by Services and host ports) and
/// before sources are: so policies meet the real addresses. Packets that the node itself sends or takes are not routed and
/// pass. A packet that one chain accepts goes on to the next, so a connection needs both: its source's egress and its
/// destination's ingress. A first packet from a Pod's link has to carry an address that is routed to this link, or a Pod
/// could escape its policies, and satisfy others', with an address of its choice.
pub fn fresh_table(pod_links: &str) -> String {
    let mut text = format!(
        "add table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n  \
         comment \"rules for Kubernetes NetworkPolicies, written by skiff\"\n"
    );
    for family in Family::ALL {
        let address = address_type(family);
        for direction in Direction::ALL {
            text += &format!("  map {} {{ type {address} : verdict; }}\n", isolated(direction, family));
        }
        text += &format!("  set {} {{ type {address} . {address}; }}\n", own(family));
    }
    let spoofed = format!("iifname \"{pod_links}*\" fib saddr . iif oif missing drop;");
    for (direction, field, priority, first) in
        [(Direction::Egress, "saddr", 1, spoofed.as_str()), (Direction::Ingress, "daddr", 2, "")]
    {
        text += &format!(
            "  chain {} {{\n    type filter hook forward priority filter + {priority};\n    \
             ct state established,related accept;\n    {first}\n",
            direction.name()
        );
        for family in Family::ALL {
            let (ip, own, map) = (ip(family), own(family), isolated(direction, family));
            text += &format!("    {ip} saddr . {ip} daddr @{own} accept;\n    {ip} {field} vmap @{map};\n");
        }
        text += "  }\n";
    }
    text + "}\n"
}

/// The declaration of a group's set.
pub fn declaration(has_ports: bool, family: Family) -> String {
    let port = if has_ports { " . inet_service" } else { "" };
    format!("type {}{port};", address_type(family))
}

pub fn element(element: &Element) -> String {
    match element.port {
        None => element.address.to_string(),
        Some(port) => format!("{} . {port}", element.address),
    }
}

/// The rules of a chain, a line each. None holds a set of its own: nft reads the elements of every set before it changes
/// one, and thousands of small ones cost it most of a second.
pub fn chain(chain: &Chain) -> String {
    let rules = chain.rules.iter().flat_map(|rule| match rule {
        Rule::Allow(allow) => allowing(chain.direction, chain.family, allow),
        Rule::Ask(name) => vec![format!("jump {name}")],
        Rule::Drop => vec!["drop".to_owned()],
    });
    rules.collect::<Vec<_>>().join("\n")
}

/// A rule for each range of ports.
fn allowing(direction: Direction, family: Family, allow: &Allow) -> Vec<String> {
    let ip = ip(family);
    let other_end = match direction {
        Direction::Ingress => format!("{ip} saddr"),
        Direction::Egress => format!("{ip} daddr"),
    };
    let peer = match &allow.peer {
        Peer::Anyone => String::new(),
        Peer::Pods(name) => format!("{other_end} @{} ", group(name, family)),
        // It allows nobody of this family.
        Peer::Block { within, .. } if Family::of(within.addr()) != family => return Vec::new(),
        Peer::Block { within, except } => {
            let except = except.iter().filter(|e| within.contains(*e)).map(|e| format!("{other_end} != {e} "));
            format!("{other_end} {within} {}", except.collect::<String>())
        }
    };
    let ports = match &allow.ports {
        Ports::Any => vec![String::new()],
        Ports::Protocol(of) => vec![format!("meta l4proto {} ", protocol(*of))],
        Ports::Numbers(of, ranges) => {
            ranges.iter().map(|r| format!("{} dport {}-{} ", protocol(*of), r.start(), r.end())).collect()
        }
        Ports::Named(of, name) => {
            vec![format!("meta l4proto {} {ip} daddr . th dport @{} ", protocol(*of), group(name, family))]
        }
    };
    ports.iter().map(|ports| format!("{peer}{ports}accept")).collect()
}
