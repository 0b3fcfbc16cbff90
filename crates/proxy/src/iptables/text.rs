//! The input of iptables-restore: the fixed chains, and changes of Services as lines. Pure.
//!
//! With `--noflush` a chain that is declared is made, or emptied where it is there. So one text brings a chain from anything to
//! what it says, and a transaction holds whole chains.
//!
//! A change is one transaction for each table. So is everything, but for the chains of many Services, which go first: whoever was
//! led to such a chain already finds the old one or the new one, each whole, and the last transaction leads to the others and
//! removes those that are left. When one fails, the next attempt begins with the first again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::{
    Settings, order,
    rules::{self, MARK_MASQ, OWN_CHAINS},
    saved,
};
use crate::{
    item::{Item, Shared},
    node::Node,
    script::MASQUERADE_MARK,
    table::{Change, Table},
};

const FILTER: &str = "filter";
const NAT: &str = "nat";
/// The tables, each with a chain by whose absence it is known that somebody emptied it.
pub const TABLES: [&str; 3] = ["mangle", FILTER, NAT];
pub const CANARY: &str = "KUBE-PROXY-CANARY";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const FORWARD: &str = "KUBE-FORWARD";
const FIREWALL: &str = "KUBE-FIREWALL";

/// With more endpoints than this, upstream too prefers rules that are fast to ones that are easy to read. The kernel looks at each
/// condition of each line with each change, and a comment is one to it.
const MANY_ENDPOINTS: usize = 1000;

const ALL_SHARED: [Shared; 6] = [
    Shared::Services,
    Shared::NodePorts,
    Shared::Firewall,
    Shared::Refused,
    Shared::RefusedOutside,
    Shared::HealthPorts,
];

/// The table and the chain of what Services share.
fn place(shared: Shared) -> (&'static str, &'static str) {
    match shared {
        Shared::Services => (NAT, "KUBE-SERVICES"),
        Shared::NodePorts => (NAT, "KUBE-NODEPORTS"),
        Shared::Firewall => (FILTER, "KUBE-PROXY-FIREWALL"),
        Shared::Refused => (FILTER, "KUBE-SERVICES"),
        Shared::RefusedOutside => (FILTER, "KUBE-EXTERNAL-SERVICES"),
        Shared::HealthPorts => (FILTER, "KUBE-NODEPORTS"),
    }
}

/// A jump from a chain of the kernel's own: table, chain, chain that is jumped to, condition.
type Jump = (&'static str, &'static str, &'static str, &'static str);
const JUMPS: [Jump; 14] = [
    (FILTER, "INPUT", "KUBE-EXTERNAL-SERVICES", NEW_FROM_OUTSIDE),
    (FILTER, "FORWARD", "KUBE-EXTERNAL-SERVICES", NEW_FROM_OUTSIDE),
    (FILTER, "INPUT", "KUBE-NODEPORTS", "-m comment --comment \"kubernetes health check service ports\""),
    (FILTER, "FORWARD", "KUBE-SERVICES", NEW_TO_SERVICES),
    (FILTER, "OUTPUT", "KUBE-SERVICES", NEW_TO_SERVICES),
    (FILTER, "FORWARD", FORWARD, "-m comment --comment \"kubernetes forwarding rules\""),
    (FILTER, "INPUT", "KUBE-PROXY-FIREWALL", NEW_TO_BALANCERS),
    (FILTER, "OUTPUT", "KUBE-PROXY-FIREWALL", NEW_TO_BALANCERS),
    (FILTER, "FORWARD", "KUBE-PROXY-FIREWALL", NEW_TO_BALANCERS),
    (FILTER, "INPUT", FIREWALL, ""),
    (FILTER, "OUTPUT", FIREWALL, ""),
    (NAT, "OUTPUT", "KUBE-SERVICES", "-m comment --comment \"kubernetes service portals\""),
    (NAT, "PREROUTING", "KUBE-SERVICES", "-m comment --comment \"kubernetes service portals\""),
    (NAT, "POSTROUTING", POSTROUTING, "-m comment --comment \"kubernetes postrouting rules\""),
];
const NEW_FROM_OUTSIDE: &str =
    "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\"";
const NEW_TO_SERVICES: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\"";
const NEW_TO_BALANCERS: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\"";

/// One transaction of a table.
#[derive(Default)]
struct Part {
    declared: String,
    lines: String,
    leaving: String,
}

impl Part {
    /// A whole chain.
    fn chain<T: AsRef<str>>(&mut self, name: &str, lines: impl IntoIterator<Item = T>) {
        self.declare(name);
        for line in lines {
            let _ = writeln!(self.lines, "-A {name} {}", line.as_ref());
        }
    }

    /// A chain that goes. It is emptied first, as is every other one that could jump to it.
    fn remove(&mut self, name: &str) {
        self.declare(name);
        let _ = writeln!(self.leaving, "-X {name}");
    }

    fn declare(&mut self, name: &str) {
        // Writing to a text cannot fail.
        let _ = writeln!(self.declared, ":{name} - [0:0]");
    }

    fn text(&self, table: &str) -> String {
        let Part { declared, lines, leaving } = self;
        format!("*{table}\n{declared}{lines}{leaving}COMMIT\n")
    }
}

/// The parts of all tables that have one.
#[derive(Default)]
struct Parts {
    last: BTreeMap<&'static str, Part>,
    /// The transactions before that.
    earlier: String,
}

impl Parts {
    fn of(&mut self, table: &'static str) -> &mut Part {
        self.last.entry(table).or_default()
    }

    /// The next lines are of another transaction than those that this table has until now.
    fn divide(&mut self, table: &'static str) {
        if let Some(part) = self.last.remove(table) {
            self.earlier += &part.text(table);
        }
    }

    /// Puts a jump at the front of its chain (`I`), or takes it away (`D`).
    fn jump(&mut self, how: char, (table, parent, chain, condition): &Jump) {
        let space = if condition.is_empty() { "" } else { " " };
        let _ = writeln!(self.of(table).lines, "-{how} {parent} {condition}{space}-j {chain}");
    }

    fn text(self) -> String {
        let last = self.last.iter().map(|(table, part)| part.text(table));
        std::iter::once(self.earlier).chain(last).collect()
    }

    /// A whole chain of one Service.
    fn own(&mut self, name: &str, lines: &str, table: &Table) {
        let is_large = table.endpoints() > MANY_ENDPOINTS;
        let line = |line| if is_large { rules::terse(name, line) } else { line };
        self.of(NAT).chain(name, lines.lines().map(line));
    }

    /// A whole chain of those that Services share, with what stands at its end.
    fn shared(&mut self, shared: Shared, table: &Table, node: &Node, settings: Settings) {
        let (place, chain) = place(shared);
        let last = if shared == Shared::Services { node_ports(node, settings) } else { Vec::new() };
        self.of(place).chain(chain, lines_of(shared, table).into_iter().chain(last));
    }
}

/// The lines of all Services in a chain that they share.
fn lines_of(shared: Shared, table: &Table) -> Vec<String> {
    let mut lines = table.lines(shared);
    if place(shared).0 == NAT {
        order::fall(&mut lines);
    }
    lines
}

/// The lines at the end of the Services' chain, which lead to the node's ports.
fn node_ports(node: &Node, settings: Settings) -> Vec<String> {
    let comment =
        "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\"";
    let local = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS";
    let apart = if settings.at_loopback(node) { String::new() } else { format!("! -d {} ", node.family.loopback()) };
    match &node.node_ports {
        None => vec![format!("{comment} {apart}{local}")],
        Some(ranges) => ranges.iter().map(|range| format!("{comment} -d {range} {local}")).collect(),
    }
}

/// The text that writes the changes of Services, and of the shared chains those that have a changed line. Nothing, where
/// nothing changed.
pub fn partial(changes: &[Change], table: &Table, node: &Node, settings: Settings) -> String {
    let (mut parts, mut touched) = (Parts::default(), BTreeSet::new());
    for change in changes {
        match (&change.item, &change.now) {
            (Item::Chain(name), Some(lines)) => parts.own(name, lines, table),
            (Item::Chain(name), None) => parts.of(NAT).remove(name),
            (Item::Line(shared, _), _) => {
                touched.insert(*shared);
            }
            // Of the other writer.
            (Item::Set(_) | Item::Element(..), _) => {}
        }
    }
    for shared in touched {
        parts.shared(shared, table, node, settings);
    }
    parts.text()
}

/// The text that writes everything, whatever was there before: `saved` is what iptables-save says of the tables.
pub fn everything(saved: &str, all: &[Change], table: &Table, node: &Node, settings: Settings) -> String {
    let mut parts = Parts::default();
    // The chains of Services jump to fixed ones, and the shared ones to them.
    fixed(&mut parts, node, settings);
    let own: BTreeMap<&str, &str> = all.iter().filter_map(chain_of).collect();
    let leading = [Shared::Services, Shared::NodePorts].map(|shared| lines_of(shared, table)).concat();
    for (at, portion) in order::portions(&leading, &own).into_iter().enumerate() {
        if at > 0 {
            parts.divide(NAT);
        }
        for name in portion {
            parts.own(name, own[name], table);
        }
    }
    for shared in ALL_SHARED {
        parts.shared(shared, table, node, settings);
    }
    for jump in JUMPS.iter().filter(|jump| !is_there(saved, jump)) {
        parts.jump('I', jump);
    }
    for name in saved::chains(saved, NAT).filter(|name| is_own(name) && !own.contains_key(name)) {
        parts.of(NAT).remove(name);
    }
    // With these the tables count as written, so they are in the last transactions.
    for table in TABLES {
        parts.of(table).chain::<&str>(CANARY, []);
    }
    parts.text()
}

fn chain_of(change: &Change) -> Option<(&str, &str)> {
    match (&change.item, &change.now) {
        (Item::Chain(name), Some(lines)) => Some((name, lines)),
        _ => None,
    }
}

/// The chains that no Service changes.
fn fixed(parts: &mut Parts, node: &Node, settings: Settings) {
    let mark = MASQUERADE_MARK;
    let invalid = (!settings.tcp_be_liberal).then(|| "-m conntrack --ctstate INVALID -j DROP".to_owned());
    let passed = [
        format!("-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark}/{mark} -j ACCEPT"),
        "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
            .to_owned(),
    ];
    parts.of(FILTER).chain(FORWARD, invalid.into_iter().chain(passed));
    // Packets that `route_localnet` lets in for node ports must not reach those who listen at loopback addresses.
    let loopback = "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 \
         -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
    parts.of(FILTER).chain(FIREWALL, settings.at_loopback(node).then_some(loopback));
    parts.of(NAT).chain(MARK_MASQ, [format!("-j MARK --or-mark {mark}")]);
    let postrouting = [
        format!("-m mark ! --mark {mark}/{mark} -j RETURN"),
        format!("-j MARK --xor-mark {mark}"),
        "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully".to_owned(),
    ];
    parts.of(NAT).chain(POSTROUTING, postrouting);
}

/// The text that removes all of it; nothing where nothing of it is there.
pub fn nothing(saved: &str) -> String {
    let mut parts = Parts::default();
    for jump in JUMPS.iter().filter(|jump| is_there(saved, jump)) {
        parts.jump('D', jump);
    }
    let fixed: BTreeSet<&str> = ALL_SHARED.map(|shared| place(shared).1).into_iter().collect();
    for table in TABLES {
        for name in saved::chains(saved, table) {
            let ours = [CANARY, POSTROUTING, FORWARD, FIREWALL, MARK_MASQ].contains(&name);
            if ours || fixed.contains(name) || is_own(name) {
                parts.of(table).remove(name);
            }
        }
    }
    parts.text()
}

fn is_there(saved: &str, (table, parent, chain, _): &Jump) -> bool {
    saved::has_jump(saved, table, parent, chain)
}

fn is_own(chain: &str) -> bool {
    OWN_CHAINS.iter().any(|beginning| chain.starts_with(beginning))
}
