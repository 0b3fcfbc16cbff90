//! A tally: how many Pods of interest to a class each topology domain holds, kept current Pod by Pod.
//!
//! Topology spreading and affinity between Pods both ask "how many Pods like that are in this node's zone". Counting
//! anew for every Pod costs nodes times Pods; a tally costs one addition per Pod that comes or goes.

use crate::{
    cache::Cache,
    class::{Class, ClassId},
    node::{Group, Node},
    node_id::NodeId,
    topology::{Domain, KeyId, Labels},
};

/// The Pods that a tally counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// Pods that the class' spread constraint of this index selects.
    Spread(usize),
    /// Pods that match all the class' required affinity terms.
    Affinity,
    /// Pods that match the class' required anti-affinity term of this index.
    AntiAffinity(usize),
    /// Pods whose own required anti-affinity term over this tally's key matches the class.
    RefusedBy,
    /// Preferences, of the class for the Pods and of the Pods for the class, by weight. Required affinity of existing Pods
    /// attracts Pods that it matches with the weight given here.
    Preference(i64),
}

/// The Pods of interest that each domain of one topology key holds.
#[derive(Debug, Clone)]
pub struct Tally {
    pub key: KeyId,
    pub counts: Counts,
    /// By domain.
    sums: Vec<i64>,
    /// How many nodes of each domain take part.
    members: Vec<u32>,
    /// By node: whether it takes part.
    eligible: Vec<bool>,
    /// The weight that one Pod of a class adds, by class; `None` until asked for. Terminating Pods come second.
    weights: Vec<[Option<i64>; 2]>,
    /// The least sum of any domain that takes part, and how many take part; `None` when sums changed since.
    least: Option<(i64, usize)>,
}

impl Tally {
    pub fn new(key: KeyId, counts: Counts, class: &Class, cache: &Cache) -> Self {
        let mut tally = Tally {
            key,
            counts,
            sums: vec![0; cache.topologies.domains(key)],
            members: vec![0; cache.topologies.domains(key)],
            eligible: vec![false; cache.nodes.len()],
            weights: Vec::new(),
            least: None,
        };
        for (id, node) in cache.nodes() {
            let Some(domain) = cache.topologies.domain(key, id) else { continue };
            if !tally.takes_part(class, id, node, cache) {
                continue;
            }
            tally.eligible[id.index()] = true;
            tally.members[domain as usize] += 1;
            for group in &node.groups {
                let weight = tally.weight(class, group, cache);
                tally.sums[domain as usize] += weight * i64::from(group.pods);
            }
        }
        tally
    }

    /// Spreading looks only at nodes that have all keys (unless one is enough) and that the Pod could run on, as its policies say.
    fn takes_part(&self, class: &Class, id: NodeId, node: &Node, cache: &Cache) -> bool {
        let Counts::Spread(index) = self.counts else { return true };
        let own = &class.spread[index];
        let mut same_sort = class.spread.iter().filter(|s| s.hard == own.hard);
        node.known
            && (own.any_key || same_sort.all(|s| cache.topologies.domain(s.key, id).is_some()))
            && (!own.honour_affinity || node.is_selected_by(class))
            && (!own.honour_taints || node.is_tolerated_by(class))
    }

    fn weight(&mut self, class: &Class, group: &Group, cache: &Cache) -> i64 {
        let index = group.class.index();
        if self.weights.len() <= index {
            self.weights.resize(index + 1, [None; 2]);
        }
        let terminating = usize::from(group.terminating);
        if let Some(weight) = self.weights[index][terminating] {
            return weight;
        }
        let weight = self.weigh(class, cache.class(group.class), group.terminating, cache);
        self.weights[index][terminating] = Some(weight);
        weight
    }

    /// The weight that one Pod of class `other` adds.
    fn weigh(&self, class: &Class, other: &Class, terminating: bool, cache: &Cache) -> i64 {
        let labels = |c: &Class| -> Option<&Labels> { cache.namespaces.get(&c.namespace) };
        let (own_labels, other_labels) = (labels(class), labels(other));
        match self.counts {
            Counts::Spread(index) => i64::from(!terminating && class.spread[index].counts(&class.namespace, other)),
            Counts::Affinity => i64::from(class.affinity.iter().all(|t| t.matches(other, other_labels))),
            Counts::AntiAffinity(index) => i64::from(class.anti_affinity[index].matches(other, other_labels)),
            Counts::RefusedBy => {
                let mut refusing = other.anti_affinity.iter().filter(|t| t.key == self.key);
                i64::from(refusing.any(|t| t.matches(class, own_labels)))
            }
            Counts::Preference(hard_weight) => {
                let here = |t: &crate::class::Term| t.key == self.key;
                let own = class.preferred.iter().filter(|(_, t)| here(t) && t.matches(other, other_labels));
                let theirs = other.preferred.iter().filter(|(_, t)| here(t) && t.matches(class, own_labels));
                let hard = other.affinity.iter().filter(|t| here(t) && t.matches(class, own_labels)).count() as i64;
                own.chain(theirs).map(|(weight, _)| weight).sum::<i64>() + hard * hard_weight
            }
        }
    }

    /// `group.pods` Pods came to a node (`sign` 1) or left it (-1).
    pub fn count(&mut self, class: &Class, node: NodeId, group: &Group, sign: i64, cache: &Cache) {
        if !self.eligible.get(node.index()).copied().unwrap_or(false) {
            return;
        }
        let Some(domain) = cache.topologies.domain(self.key, node) else { return };
        let weight = self.weight(class, group, cache);
        if weight != 0 {
            self.sums[domain as usize] += sign * weight * i64::from(group.pods);
            self.least = None;
        }
    }

    /// The class is gone and its number may be given to another.
    pub fn forget(&mut self, class: ClassId) {
        if let Some(weights) = self.weights.get_mut(class.index()) {
            *weights = [None; 2];
        }
    }

    /// Brings `least` up to date; called before each cycle, so that no filter works it out for every node.
    pub fn refresh(&mut self) {
        self.least.get_or_insert_with(|| least(&self.sums, &self.members));
    }

    pub fn sum(&self, domain: Domain) -> i64 {
        self.sums.get(domain as usize).copied().unwrap_or(0)
    }

    /// Whether no domain has any.
    pub fn is_empty(&self) -> bool {
        self.sums.iter().all(|s| *s <= 0)
    }

    /// The least sum, taken as 0 when fewer than `min_domains` domains take part.
    pub fn least(&self, min_domains: i64) -> i64 {
        let (sum, domains) = self.least.unwrap_or_else(|| least(&self.sums, &self.members));
        if (domains as i64) < min_domains { 0 } else { sum }
    }
}

/// The least sum of the domains that have members, and how many those are.
fn least(sums: &[i64], members: &[u32]) -> (i64, usize) {
    let taking_part = || sums.iter().zip(members).filter(|(_, members)| **members > 0).map(|(sum, _)| *sum);
    (taking_part().min().unwrap_or(i64::from(i32::MAX)), taking_part().count())
}
