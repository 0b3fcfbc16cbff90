//! nft text: the fixed part of the table, and names, rules and elements as the kernel reads them. Pure.

use crate::{
    chain::{Chain, ChainName, Rule},
    group::Element,
    kind::Tier,
    ports::Ports,
    rule::{Action, Clause, Peer},
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

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// The map from a Pod's address to the chain that a tier has for it.
pub fn asked(tier: Tier, direction: Direction, family: Family) -> String {
    format!("{}{}-{}", tier.prefix(), direction.name(), digit(family))
}

/// The way into a chain of a tier. From the first tier a packet comes back to meet the next one.
pub fn verdict(tier: Tier, chain: &str) -> String {
    format!("{} {chain}", if tier == Tier::Admin { "jump" } else { "goto" })
}

/// The set of pairs of an isolated address with itself.
pub fn own(family: Family) -> String {
    format!("own-{}", digit(family))
}

pub fn group(name: &str, family: Family) -> String {
    format!("{name}-{}", digit(family))
}

/// The name of a chain: which one it is (a digest), and for people what it is about.
pub fn chain_name(direction: Direction, family: Family, digest: &str, about: &str) -> ChainName {
    let name = format!("{}-{}-{digest}-{about}", direction.name(), digit(family));
    name.chars().take(NAME_LENGTH).collect::<String>().into()
}

/// Commands that leave an empty table with all hooks and maps, whatever was there before.
///
/// The first two chains see what is routed through the node, after destinations have been rewritten (by Services and host
/// ports) and before sources are: so policies meet the real addresses. A packet that one chain accepts goes on to the next, so a
/// connection needs both: its source's egress and its destination's ingress. A first packet from a Pod's link has to carry an
/// address that is routed to this link, or a Pod could escape its policies, and satisfy others', with an address of its choice.
///
/// Packets that the node itself sends are in none of these chains and pass. Those that it takes meet the policies of
/// administrators alone, since NetworkPolicies never close a Pod's way to its own node: addresses of nodes are peers of the
/// former, and on a cluster of one node there is no other. By neighbour discovery alone a Pod finds its gateway.
pub fn fresh_table(pod_links: &str) -> String {
    let mut text = format!(
        "add table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n  \
         comment \"rules for Kubernetes NetworkPolicies, written by skiff\"\n"
    );
    for family in Family::ALL {
        let address = family.address_type();
        for (tier, direction) in Tier::ALL.into_iter().flat_map(|tier| Direction::ALL.map(|d| (tier, d))) {
            text += &format!("  map {} {{ type {address} : verdict; }}\n", asked(tier, direction, family));
        }
        text += &format!("  set {} {{ type {address} . {address}; }}\n", own(family));
    }
    let spoofed = format!("iifname \"{pod_links}*\" fib saddr . iif oif missing drop;");
    let to_node = format!("icmpv6 type 133-137 accept;\n    {spoofed}");
    let administrators = [Tier::Admin, Tier::Baseline];
    text += &base_chain("egress", "forward", 1, Direction::Egress, &spoofed, &Tier::ALL);
    text += &base_chain("ingress", "forward", 2, Direction::Ingress, "", &Tier::ALL);
    text += &base_chain("egress-to-node", "input", 1, Direction::Egress, &to_node, &administrators);
    text + "}\n"
}

/// A chain that the kernel begins at one of its hooks: it asks these tiers about a Pod's address.
fn base_chain(name: &str, hook: &str, priority: u8, direction: Direction, first: &str, tiers: &[Tier]) -> String {
    let field = match direction {
        Direction::Ingress => "daddr",
        Direction::Egress => "saddr",
    };
    let mut text = format!(
        "  chain {name} {{\n    type filter hook {hook} priority filter + {priority};\n    \
         ct state established,related accept;\n    {first}\n"
    );
    for tier in tiers {
        for family in Family::ALL {
            text += &format!("    {} {field} vmap @{};\n", family.ip(), asked(*tier, direction, family));
        }
    }
    text + "  }\n"
}

/// The declaration of a group's set.
pub fn declaration(has_ports: bool, family: Family) -> String {
    let port = if has_ports { " . inet_service" } else { "" };
    format!("type {}{port};", family.address_type())
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
        Rule::Clause(clause) => clause_text(chain.direction, chain.family, clause),
        Rule::Ask(name) => vec![format!("jump {name}")],
        Rule::Itself => {
            let ip = chain.family.ip();
            vec![format!("{ip} saddr . {ip} daddr @{} accept", own(chain.family))]
        }
        Rule::Drop => vec!["drop".to_owned()],
    });
    rules.collect::<Vec<_>>().join("\n")
}

/// A rule for each range of ports.
fn clause_text(direction: Direction, family: Family, clause: &Clause) -> Vec<String> {
    let ip = family.ip();
    let other_end = match direction {
        Direction::Ingress => format!("{ip} saddr"),
        Direction::Egress => format!("{ip} daddr"),
    };
    let peer = match &clause.peer {
        Peer::Anyone => String::new(),
        Peer::Group(name) => format!("{other_end} @{} ", group(name, family)),
        // It is about nobody of this family.
        Peer::Block { within, .. } if Family::of(within.addr()) != family => return Vec::new(),
        Peer::Block { within, except } => {
            let except = except.iter().filter(|e| within.contains(*e)).map(|e| format!("{other_end} != {e} "));
            format!("{other_end} {within} {}", except.collect::<String>())
        }
    };
    let ports = match &clause.ports {
        Ports::Any => vec![String::new()],
        Ports::Protocol(of) => vec![format!("meta l4proto {} ", protocol(*of))],
        Ports::Numbers(of, ranges) => {
            ranges.iter().map(|r| format!("{} dport {}-{} ", protocol(*of), r.start(), r.end())).collect()
        }
        Ports::Named(of, name) => {
            vec![format!("meta l4proto {} {ip} daddr . th dport @{} ", protocol(*of), group(name, family))]
        }
    };
    let action = match clause.action {
        Action::Allow => "accept",
        Action::Deny => "drop",
        Action::Pass => "return",
    };
    ports.iter().map(|ports| format!("{peer}{ports}{action}")).collect()
}
