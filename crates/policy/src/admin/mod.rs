//! The policies of administrators as rules: AdminNetworkPolicy, BaselineAdminNetworkPolicy and ClusterNetworkPolicy. Pure.
//!
//! A user installs their definitions, perhaps of another version, and perhaps with a lax schema. So an object may hold anything:
//! what is not understood fails closed, as the API says. A rule that allows then is about nothing, and one that denies or
//! passes connections on denies them all; the rest of the policy counts as it is written. An order or a tier that is not
//! understood makes every rule such a one. A subject that is not understood selects nobody.
//! Upstream counterpart: apis/v1alpha1 and apis/v1alpha2 of kubernetes-sigs/network-policy-api.

pub(crate) mod custom;
mod parts;
pub(crate) mod served;

use api::rules::selector::Selector;
use json::Value;

use crate::{
    domain::Domain,
    group::{Group, Groups, Namespaces, Selected},
    kind::{PolicyKind, Tier},
    ports::Ports,
    rule::{Action, Clause, Peer, Policy, net},
    traffic::Direction,
};

/// The priority of a BaselineAdminNetworkPolicy, which has none: behind all ClusterNetworkPolicies of its tier.
const LAST: i64 = i64::MAX;

/// How many rules of the kernel a policy may become in one direction. Peers times ports grow fast: an object of a few kilobytes
/// can ask for millions.
const RULES_MAX: usize = 10_000;

/// How many parts of a policy are named as not enforced.
const PROBLEMS_MAX: usize = 8;

/// The policy that a spec means, where addresses of domains are learned from DNS.
pub fn read(kind: PolicyKind, spec: &Value) -> Policy {
    read_as(kind, spec, true)
}

/// The policy that a spec means, where addresses of domains are learned or nobody learns them.
pub fn read_as(kind: PolicyKind, spec: &Value, learns_names: bool) -> Policy {
    let mut problems = Vec::new();
    let place = place(kind, spec);
    let subject = subject(spec.get("subject").unwrap_or(&Value::Null)).unwrap_or_else(|why| {
        problems.push(format!("subject: {why}; no Pod is selected"));
        Selected::NOBODY
    });
    let place_in = place.as_ref().map(|(tier, _)| *tier);
    let mut reader = Reader { kind, place: place_in, learns_names, groups: Groups::default(), problems };
    let [ingress, egress] = Direction::ALL.map(|direction| reader.direction(direction, spec));
    let Reader { groups, mut problems, .. } = reader;
    if problems.len() > PROBLEMS_MAX {
        let more = problems.len() - PROBLEMS_MAX;
        problems.truncate(PROBLEMS_MAX);
        problems.push(format!("and {more} more"));
    }
    let (tier, priority) = place.unwrap_or((Tier::Admin, 0));
    Policy { tier, priority, subject, ingress, egress, groups: groups.into_vec(), problems }
}

/// The tier and the place in it.
fn place(kind: PolicyKind, spec: &Value) -> Result<(Tier, i64), String> {
    let priority = || {
        let priority = spec.get("priority").and_then(Value::as_i64);
        priority.ok_or_else(|| "`spec.priority` is not a number".to_owned())
    };
    match (kind, spec.get("tier").and_then(Value::as_str)) {
        (PolicyKind::BaselineAdmin, _) => Ok((Tier::Baseline, LAST)),
        (PolicyKind::Cluster, Some("Admin")) => Ok((Tier::Admin, priority()?)),
        (PolicyKind::Cluster, Some("Baseline")) => Ok((Tier::Baseline, priority()?)),
        (PolicyKind::Cluster, _) => Err("`spec.tier` is not one that is known".to_owned()),
        (PolicyKind::Admin | PolicyKind::Network, _) => Ok((Tier::Admin, priority()?)),
    }
}

fn subject(subject: &Value) -> Result<Selected, String> {
    match parts::only(subject)? {
        ("namespaces", selector) => of_namespaces(selector),
        ("pods", pods) => of_pods(pods),
        (other, _) => Err(format!("{other:?} is not known")),
    }
}

fn of_namespaces(selector: &Value) -> Result<Selected, String> {
    Ok(Selected { namespaces: Namespaces::Selected(parts::selector(selector)?), pods: Selector::default() })
}

fn of_pods(pods: &Value) -> Result<Selected, String> {
    let [namespaces, pods] = parts::fields(pods, ["namespaceSelector", "podSelector"])?;
    // The newer version lets the former be left out.
    let namespaces = namespaces.map_or_else(|| Ok(Selector::default()), parts::selector)?;
    let pods = parts::selector(pods.ok_or("`podSelector` is missing")?)?;
    Ok(Selected { namespaces: Namespaces::Selected(namespaces), pods })
}

/// Reads the rules of one policy.
struct Reader<'a> {
    kind: PolicyKind,
    place: Result<Tier, &'a String>,
    learns_names: bool,
    groups: Groups,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn direction(&mut self, direction: Direction, spec: &Value) -> Option<Vec<Clause>> {
        let field = direction.name();
        let rules = match spec.get(field) {
            None | Some(Value::Null) => return None,
            Some(Value::Array(rules)) if rules.is_empty() => return None,
            Some(Value::Array(rules)) => rules,
            Some(_) => {
                self.problems.push(format!("{field}: not a list; everything is denied"));
                return Some(vec![Clause::DENY_ALL]);
            }
        };
        let (mut clauses, mut room) = (Vec::new(), RULES_MAX);
        for (at, rule) in rules.iter().enumerate() {
            let action = self.action(rule.get("action"));
            match self.rule(direction, rule, action, room) {
                Ok((more, cost)) => {
                    clauses.extend(more);
                    room -= cost;
                }
                Err(why) => {
                    let is_allowing = action == Some(Action::Allow);
                    let consequence = if is_allowing { "it is about nothing" } else { "it denies everything" };
                    self.problems.push(format!("{field}[{at}]: {why}; {consequence}"));
                    if !is_allowing {
                        // No rule behind it is reached.
                        clauses.push(Clause::DENY_ALL);
                        break;
                    }
                }
            }
        }
        Some(clauses)
    }

    /// Where there is no tier behind, a connection that is passed on is one that nobody closes.
    fn action(&self, action: Option<&Value>) -> Option<Action> {
        let is_last = self.place == Ok(Tier::Baseline);
        match (self.kind, action?.as_str()?) {
            (PolicyKind::Cluster, "Accept") => Some(Action::Allow),
            (PolicyKind::Cluster, "Pass") if is_last => Some(Action::Allow),
            (PolicyKind::Admin | PolicyKind::BaselineAdmin, "Allow") => Some(Action::Allow),
            (PolicyKind::Cluster | PolicyKind::Admin, "Pass") => Some(Action::Pass),
            (_, "Deny") => Some(Action::Deny),
            _ => None,
        }
    }

    /// The clauses of a rule, and how many rules of the kernel they are.
    fn rule(
        &mut self,
        direction: Direction,
        rule: &Value,
        action: Option<Action>,
        room: usize,
    ) -> Result<(Vec<Clause>, usize), String> {
        if let Err(why) = self.place {
            return Err(why.clone());
        }
        let action = action.ok_or("its action is not known")?;
        let (other_end, ports_field) = (
            if direction == Direction::Ingress { "from" } else { "to" },
            if self.kind == PolicyKind::Cluster { "protocols" } else { "ports" },
        );
        let [_, _, peers, ports] = parts::fields(rule, ["name", "action", other_end, ports_field])?;
        let listed = match ports {
            None => None,
            Some(list) => {
                let of = if self.kind == PolicyKind::Cluster { parts::protocol } else { parts::port };
                Some(parts::listed(list, of).map_err(|why| format!("{ports_field}: {why}"))?)
            }
        };
        let has_names = listed.as_ref().is_some_and(|listed| listed.has_names());
        let about = About {
            direction,
            has_port_names: has_names,
            domains: match (self.kind, action, self.learns_names) {
                (PolicyKind::BaselineAdmin, ..) => Err("\"domainNames\" is not known"),
                (_, Action::Deny | Action::Pass, _) => Err("only rules that allow are about `domainNames`"),
                (_, _, false) => Err("`domainNames` cannot be enforced without cluster DNS of skiff's own"),
                (_, Action::Allow, true) => Ok(()),
            },
        };
        let mut groups = Groups::default();
        let ports = listed.map_or_else(|| vec![Ports::Any], |listed| listed.gathered(&mut groups));
        let peers = parts::list(peers.unwrap_or(&Value::Null)).map_err(|why| format!("{other_end}: {why}"))?;
        let each = ports.iter().map(|ports| if let Ports::Numbers(_, ranges) = ports { ranges.len() } else { 1 });
        let each: usize = each.sum();
        let (mut read, mut cost) = (Vec::new(), 0);
        for (at, peer) in peers.iter().enumerate() {
            let more = about.peer(peer, &mut groups);
            let more = more.map_err(|why| format!("{other_end}[{at}]: {why}"))?;
            cost += more.len() * each;
            if cost > room {
                return Err(format!("the policy is more than {RULES_MAX} rules of the kernel"));
            }
            read.extend(more);
        }
        self.groups.append(groups);
        Ok((Clause::each(action, &read, &ports), cost))
    }
}

/// The facts about a rule that decide which peers it may have.
struct About {
    direction: Direction,
    has_port_names: bool,
    /// Whether it may name domains, or why not.
    domains: Result<(), &'static str>,
}

impl About {
    /// A peer; one of networks or domains is as many as it names.
    fn peer(&self, peer: &Value, groups: &mut Groups) -> Result<Vec<Peer>, String> {
        let group = match (parts::only(peer)?, self.direction) {
            (("namespaces", selector), _) => Group::Pods(of_namespaces(selector)?),
            (("pods", pods), _) => Group::Pods(of_pods(pods)?),
            (("nodes" | "networks" | "domainNames", _), Direction::Egress) if self.has_port_names => {
                return Err("only Pods have ports with names".to_owned());
            }
            (("nodes", selector), Direction::Egress) => Group::Nodes(parts::selector(selector)?),
            (("networks", networks), Direction::Egress) => {
                let read = parts::list(networks)?.iter().map(|network| {
                    let within = network.as_str().and_then(net).ok_or_else(|| format!("{network} is not a CIDR"))?;
                    Ok(Peer::Block { within, except: Vec::new() })
                });
                return read.collect();
            }
            (("domainNames", names), Direction::Egress) => {
                self.domains?;
                let read = parts::list(names)?.iter().map(|name| {
                    let domain = name.as_str().map(Domain::parse);
                    let domain = domain.unwrap_or_else(|| Err(format!("{name} is not a name of a domain")))?;
                    Ok(Peer::Group(groups.named(Group::Domain(domain))))
                });
                return read.collect();
            }
            ((other, _), _) => return Err(format!("{other:?} is not known")),
        };
        Ok(vec![Peer::Group(groups.named(group))])
    }
}
