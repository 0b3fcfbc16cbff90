//! Policies, namespaces, Pods and nodes of the cluster, and what follows from them for this node. Pure: no clock, no kernel.
//!
//! It is kept as they change: which Pods are in which group, and which policies select which Pod of this node. A change asks
//! only what it touches; [`World::plan`] puts together what the kernel is to hold and shares all that stayed as it was.

mod followed;
mod learned;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    chain::{Chain, ChainName, Rule},
    group::{Group, GroupName, digest},
    kind::{PolicyName, Tier},
    node::NodeFacts,
    pod::{Facts, Labels},
    rule::{Action, Clause, Policy},
    tables::Tables,
    text,
    traffic::{Direction, Family},
};

use followed::{Followed, Seen};

/// The text that tells Pods apart, see [`Pod::identity`](crate::pod::Pod::identity).
pub type Identity = String;

/// Stands for a policy where many are listed.
type Number = u32;

/// The tier and direction in which policies are asked about a Pod.
type Post = (Tier, Direction);

#[derive(Debug, Default)]
pub struct World {
    namespaces: BTreeMap<String, Arc<Labels>>,
    pods: BTreeMap<Identity, Arc<Facts>>,
    /// The Pods by their addresses. Two Pods may say that they do: the one that is gone, and the one that came after
    /// it.
    holders: BTreeMap<IpAddr, Identity>,
    nodes: BTreeMap<String, NodeFacts>,
    policies: BTreeMap<PolicyName, Stored>,
    by_number: BTreeMap<Number, PolicyName>,
    next_number: Number,
    groups: BTreeMap<GroupName, Followed>,
    /// The Pods of this node.
    local: BTreeMap<Identity, Isolation>,
    /// The chains for policies that select a Pod together.
    together: HashMap<(Post, Arc<[Number]>), Arc<Together>>,
}

#[derive(Debug)]
struct Stored {
    number: Number,
    /// It tells the policy from all others in the names of chains.
    digest: String,
    policy: Policy,
    /// Its rules in their order, by direction and family.
    parts: BTreeMap<(Direction, Family), Vec<Part>>,
}

/// Some rules of a policy that follow each other.
#[derive(Debug)]
enum Part {
    /// A chain of the policy's own: whatever it says, only this chain changes with it.
    Own(ChainName, Arc<Chain>),
    /// Rules that pass connections on. They stand among those of all policies of the tier, for the way past these.
    Among(Vec<Rule>),
}

impl Stored {
    fn new(number: Number, name: &PolicyName, policy: Policy) -> Self {
        let about = name.to_string();
        let mut parts = BTreeMap::new();
        for direction in Direction::ALL {
            let Some(clauses) = policy.clauses(direction) else { continue };
            for family in Family::ALL {
                parts.insert((direction, family), self::parts(&about, direction, family, clauses));
            }
        }
        Stored { number, digest: digest(&about), policy, parts }
    }

    fn parts(&self, direction: Direction, family: Family) -> &[Part] {
        self.parts.get(&(direction, family)).map_or(&[], Vec::as_slice)
    }

    /// The rules by which it is asked.
    fn asked(&self, direction: Direction, family: Family) -> Vec<Rule> {
        let rules = self.parts(direction, family).iter().flat_map(|part| match part {
            Part::Own(name, _) => vec![Rule::Ask(name.clone())],
            Part::Among(rules) => rules.clone(),
        });
        rules.collect()
    }
}

/// The parts that the rules of a policy make: those that pass connections on, and the chains between them.
fn parts(about: &str, direction: Direction, family: Family, clauses: &[Clause]) -> Vec<Part> {
    let rules = |run: &[Clause]| run.iter().cloned().map(Rule::Clause).collect::<Vec<Rule>>();
    let own = |at: usize, run: &[Clause]| {
        let digest = if at == 0 { digest(about) } else { digest(&format!("{about}#{at}")) };
        let name = text::chain_name(direction, family, &digest, about);
        Part::Own(name, Arc::new(Chain { direction, family, rules: rules(run) }))
    };
    if clauses.is_empty() {
        return vec![own(0, &[])];
    }
    let passes = |clause: &Clause| clause.action == Action::Pass;
    let runs = clauses.chunk_by(|a, b| passes(a) == passes(b)).enumerate();
    runs.map(|(at, run)| if passes(&run[0]) { Part::Among(rules(run)) } else { own(at, run) }).collect()
}

/// The policies that select a Pod.
#[derive(Debug, Default)]
struct Isolation {
    selected: BTreeMap<Post, BTreeSet<Number>>,
    together: BTreeMap<Post, Arc<Together>>,
}

#[derive(Debug)]
struct Together {
    policies: Arc<[Number]>,
    chains: BTreeMap<Family, (ChainName, Arc<Chain>)>,
}

impl World {
    pub fn policies(&self) -> Vec<PolicyName> {
        self.policies.keys().cloned().collect()
    }

    pub fn policy(&self, name: &PolicyName) -> Option<&Policy> {
        self.policies.get(name).map(|stored| &stored.policy)
    }

    pub fn namespaces(&self) -> Vec<String> {
        self.namespaces.keys().cloned().collect()
    }

    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    pub fn pods(&self) -> Vec<Identity> {
        self.pods.keys().cloned().collect()
    }

    pub fn nodes(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    /// Whether a rule is about nodes, so that they have to be known.
    pub fn asks_for_nodes(&self) -> bool {
        self.groups.values().any(Followed::is_of_nodes)
    }

    pub fn has_pod(&self, id: &str) -> bool {
        self.pods.contains_key(id)
    }

    /// The labels of a namespace; `None` when it is gone.
    pub fn set_namespace(&mut self, name: &str, labels: Option<&Labels>) {
        if self.namespaces.get(name).map(|l| &**l) == labels {
            return;
        }
        let inside = self.pods.iter().filter(|(_, pod)| pod.namespace == name).map(|(id, _)| id.clone()).collect();
        self.update(inside, |world| match labels {
            Some(labels) => drop(world.namespaces.insert(name.to_owned(), Arc::new(labels.clone()))),
            None => drop(world.namespaces.remove(name)),
        });
    }

    /// A Pod as it is now; `None` when it is gone.
    pub fn set_pod(&mut self, id: &str, facts: Option<Facts>) {
        if self.pods.get(id).map(|f| &**f) == facts.as_ref() {
            return;
        }
        let mut touched: BTreeSet<Identity> = [id.to_owned()].into();
        let new = facts.iter().flat_map(|f| &f.addresses);
        touched.extend(new.filter_map(|address| self.holders.get(address).cloned()));
        self.update(touched, |world| world.put_pod(id, facts));
    }

    fn put_pod(&mut self, id: &str, facts: Option<Facts>) {
        let old = match &facts {
            Some(facts) => self.pods.insert(id.to_owned(), Arc::new(facts.clone())),
            None => self.pods.remove(id),
        };
        let old = old.map(|f| f.addresses.clone()).unwrap_or_default();
        let new = facts.as_ref().map(|f| f.addresses.clone()).unwrap_or_default();
        for address in old.iter().filter(|a| !new.contains(a)) {
            if self.holders.get(address).is_some_and(|holder| holder == id) {
                self.holders.remove(address);
            }
        }
        // An address is with whoever came last, but what a Pod elsewhere says takes none from a Pod of this node.
        for address in new.into_iter().filter(|a| !old.contains(a)) {
            let is_local = |id: &str| self.pods.get(id).is_some_and(|f| f.is_local);
            if self.holders.get(&address).is_none_or(|holder| !is_local(holder) || is_local(id)) {
                self.holders.insert(address, id.to_owned());
            }
        }
    }

    /// A node as it is now; `None` when it is gone.
    pub fn set_node(&mut self, name: &str, facts: Option<NodeFacts>) {
        if self.nodes.get(name) == facts.as_ref() {
            return;
        }
        match facts {
            Some(facts) => drop(self.nodes.insert(name.to_owned(), facts)),
            None => drop(self.nodes.remove(name)),
        }
        for followed in self.groups.values_mut().filter(|followed| followed.is_of_nodes()) {
            followed.set_nodes(self.nodes.values());
        }
    }

    /// A policy as it is now; `None` when it is gone.
    pub fn set_policy(&mut self, name: &PolicyName, policy: Option<Policy>) {
        if self.policies.get(name).map(|s| &s.policy) == policy.as_ref() {
            return;
        }
        let new_groups = policy.as_ref().map(|p| p.groups.clone()).unwrap_or_default();
        for group in new_groups {
            self.follow(group);
        }
        let old = self.policies.remove(name);
        let old_number = old.as_ref().map(|stored| stored.number);
        // The chains of other tiers hold the order of policies and rules of theirs, so these are made anew for a new number.
        let kept = old.as_ref().filter(|stored| stored.policy.tier == Tier::Namespace).map(|stored| stored.number);
        let number = kept.unwrap_or_else(|| {
            self.next_number += 1;
            self.next_number
        });
        if let Some(old) = old_number {
            self.by_number.remove(&old);
        }
        if let Some(policy) = policy {
            self.by_number.insert(number, name.clone());
            self.policies.insert(name.clone(), Stored::new(number, name, policy));
        }
        for group in old.iter().flat_map(|stored| &stored.policy.groups) {
            self.forget(&group.name());
        }
        let namespace = &name.key.namespace;
        let inside = |id: &&Identity| {
            namespace.is_empty() || self.pods.get(*id).is_some_and(|facts| facts.namespace == *namespace)
        };
        let inside: Vec<Identity> = self.local.keys().filter(inside).cloned().collect();
        let numbers: BTreeSet<Number> = old_number.into_iter().chain([number]).collect();
        for id in inside {
            self.select(&id, numbers.iter().map(|number| (*number, name.clone())));
        }
    }

    fn follow(&mut self, group: Group) {
        let name = group.name();
        if let Some(followed) = self.groups.get_mut(&name) {
            followed.used();
            return;
        }
        let mut followed = Followed::new(group);
        if followed.is_of_nodes() {
            followed.set_nodes(self.nodes.values());
        } else {
            let all: Vec<Option<Seen>> = self.pods.keys().map(|id| self.seen(id)).collect();
            followed.change(&BTreeSet::new(), &followed.elements(&all));
        }
        self.groups.insert(name, followed);
    }

    fn forget(&mut self, name: &GroupName) {
        if self.groups.get_mut(name).is_some_and(Followed::unused) {
            self.groups.remove(name);
        }
    }

    fn seen(&self, id: &str) -> Option<Seen> {
        let facts = self.pods.get(id)?.clone();
        let held = |address: &&IpAddr| self.holders.get(*address).is_some_and(|holder| holder == id);
        let addresses = facts.addresses.iter().filter(held).copied().collect();
        let namespace = self.namespaces.get(&facts.namespace).cloned().unwrap_or_default();
        Some(Seen { facts, addresses, namespace })
    }

    /// Makes a change, and takes over what it means for these Pods.
    fn update(&mut self, touched: BTreeSet<Identity>, change: impl FnOnce(&mut Self)) {
        let before: Vec<Option<Seen>> = touched.iter().map(|id| self.seen(id)).collect();
        change(self);
        let after: Vec<Option<Seen>> = touched.iter().map(|id| self.seen(id)).collect();
        for followed in self.groups.values_mut() {
            let (old, new) = (followed.elements(&before), followed.elements(&after));
            followed.change(&old, &new);
        }
        for (id, seen) in touched.iter().zip(after) {
            self.local.remove(id);
            if let Some(seen) = seen.filter(|seen| seen.facts.is_local) {
                self.local.insert(id.clone(), Isolation::default());
                let all = self.about(&seen.facts.namespace);
                self.select(id, all);
            }
        }
    }

    /// The policies that may select Pods of a namespace.
    fn about(&self, namespace: &str) -> Vec<(Number, PolicyName)> {
        let of_namespace = self.policies.range(PolicyName::first_in(namespace)..);
        let of_namespace = of_namespace.take_while(|(name, _)| name.key.namespace == namespace);
        let of_all = self.policies.range(PolicyName::first_of_administrators()..);
        of_namespace.chain(of_all).map(|(name, stored)| (stored.number, name.clone())).collect()
    }

    /// Finds out anew whether these policies, of which some may be gone, select a Pod of this node.
    fn select(&mut self, id: &str, policies: impl IntoIterator<Item = (Number, PolicyName)>) {
        let Some(facts) = self.pods.get(id).cloned() else { return };
        let Some(mut isolation) = self.local.remove(id) else { return };
        let namespace = self.namespaces.get(&facts.namespace).cloned().unwrap_or_default();
        let mut changed = BTreeSet::new();
        for (number, name) in policies {
            let stored = self.policies.get(&name).filter(|stored| stored.number == number);
            let policy = stored.map(|s| &s.policy).filter(|p| p.subject.matches(&facts, &namespace));
            for post in Tier::ALL.into_iter().flat_map(|tier| Direction::ALL.map(|direction| (tier, direction))) {
                let selected = isolation.selected.entry(post).or_default();
                let selects = policy.is_some_and(|p| p.tier == post.0 && p.clauses(post.1).is_some());
                if if selects { selected.insert(number) } else { selected.remove(&number) } {
                    changed.insert(post);
                }
            }
        }
        for post in changed {
            match self.together(post, &isolation.selected[&post]) {
                Some(together) => drop(isolation.together.insert(post, together)),
                None => drop(isolation.together.remove(&post)),
            }
        }
        self.local.insert(id.to_owned(), isolation);
    }

    fn together(&mut self, post: Post, policies: &BTreeSet<Number>) -> Option<Arc<Together>> {
        if policies.is_empty() {
            return None;
        }
        let policies: Arc<[Number]> = policies.iter().copied().collect();
        let at = (post, policies.clone());
        if let Some(known) = self.together.get(&at) {
            return Some(known.clone());
        }
        let (tier, direction) = post;
        let ordered = self.ordered(&policies);
        let names: Vec<&str> = ordered.iter().map(|stored| stored.digest.as_str()).collect();
        let (names, about) = (digest(&names.join("\n")), format!("{}{}-policies", tier.prefix(), names.len()));
        let chains = Family::ALL.map(|family| {
            let name = text::chain_name(direction, family, &names, &about);
            let asked = ordered.iter().flat_map(|stored| stored.asked(direction, family));
            // In the other tiers those that nobody decided about go on.
            let (first, last) = match tier {
                Tier::Namespace => (Some(Rule::Itself), Some(Rule::Drop)),
                Tier::Admin | Tier::Baseline => (None, None),
            };
            let rules = first.into_iter().chain(asked).chain(last).collect();
            (family, (name, Arc::new(Chain { direction, family, rules })))
        });
        let together = Arc::new(Together { policies, chains: chains.into() });
        self.together.insert(at, together.clone());
        Some(together)
    }

    /// Policies in the order in which they are asked.
    fn ordered(&self, policies: &[Number]) -> Vec<&Stored> {
        let named = policies.iter().filter_map(|number| self.by_number.get(number));
        let mut found: Vec<_> = named.filter_map(|name| Some((name, self.policies.get(name)?))).collect();
        found.sort_by_key(|(name, stored)| (stored.policy.priority, &name.key, name.kind));
        found.into_iter().map(|(_, stored)| stored).collect()
    }

    /// The tables that the kernel is to hold: all that is needed for the Pods of this node, and nothing else.
    pub fn plan(&mut self) -> Tables {
        self.together.retain(|_, together| Arc::strong_count(together) > 1);
        let mut tables = Tables::default();
        for (id, isolation) in &self.local {
            let addresses = self.seen(id).map(|seen| seen.addresses).unwrap_or_default();
            for (post, together) in &isolation.together {
                let (tier, direction) = *post;
                // NetworkPolicies leave nothing to the tier behind them.
                if tier == Tier::Baseline && isolation.together.contains_key(&(Tier::Namespace, direction)) {
                    continue;
                }
                for address in &addresses {
                    let family = Family::of(*address);
                    let (name, chain) = &together.chains[&family];
                    tables.asked.insert((tier, direction, *address), name.clone());
                    if !tables.chains.contains_key(name) {
                        self.need(&mut tables, name, chain);
                        self.need_all(&mut tables, direction, family, &together.policies);
                    }
                }
            }
        }
        tables
    }

    /// Adds a chain with the groups that it names.
    fn need(&self, tables: &mut Tables, name: &ChainName, chain: &Arc<Chain>) {
        tables.chains.insert(name.clone(), chain.clone());
        for name in chain.rules.iter().flat_map(Rule::groups) {
            if let Some(followed) = self.groups.get(name) {
                tables.groups.insert((name.clone(), chain.family), followed.members(chain.family).clone());
            }
        }
    }

    /// Adds the chains of policies.
    fn need_all(&self, tables: &mut Tables, direction: Direction, family: Family, policies: &[Number]) {
        let stored = policies.iter().filter_map(|number| self.policies.get(self.by_number.get(number)?));
        for part in stored.flat_map(|stored| stored.parts(direction, family)) {
            if let Part::Own(name, chain) = part {
                self.need(tables, name, chain);
            }
        }
    }
}
