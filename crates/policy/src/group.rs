//! Sets of addresses that rules refer to: the Pods and nodes that selectors choose, named ports of Pods, and what DNS has said of
//! domains. Pure.
//!
//! Rules that mean the same group share it, whatever policies they stand in. So a label of a Pod that changes is one
//! element of each group that it joins or leaves.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use api::rules::selector::Selector;
use sha2::{Digest, Sha256};

use crate::{
    domain::Domain,
    node::NodeFacts,
    pod::{Facts, Labels},
    traffic::Protocol,
};

/// The namespaces of a peer or a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    One(String),
    Selected(Selector),
}

/// Some Pods of some namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    pub namespaces: Namespaces,
    pub pods: Selector,
}

impl Selected {
    pub const NOBODY: Selected =
        Selected { namespaces: Namespaces::Selected(Selector::NOTHING), pods: Selector::NOTHING };

    /// Whether it holds a Pod, whose namespace has these labels.
    pub fn matches(&self, pod: &Facts, namespace: &Labels) -> bool {
        let is_in = match &self.namespaces {
            Namespaces::One(name) => pod.namespace == *name,
            Namespaces::Selected(selector) => selector.matches(namespace),
        };
        is_in && self.pods.matches(&pod.labels)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// The addresses of Pods.
    Pods(Selected),
    /// The addresses of nodes.
    Nodes(Selector),
    /// The addresses that DNS has given for the names that it means.
    Domain(Domain),
    /// The addresses of Pods with the number that a port of this name has there.
    Port { protocol: Protocol, name: String },
}

/// A group's name in the kernel, which says exactly which group it is.
pub type GroupName = Arc<str>;

/// One entry of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    pub address: IpAddr,
    pub port: Option<u16>,
}

/// A name that only this text has: users choose their selectors and names, and must not meet another's.
pub fn digest(text: &str) -> String {
    base16ct::lower::encode_string(&Sha256::digest(text)[..16])
}

impl Group {
    pub fn name(&self) -> GroupName {
        let sort = match self {
            Group::Pods(_) => "pods",
            Group::Nodes(_) => "nodes",
            Group::Domain(_) => "names",
            Group::Port { .. } => "port",
        };
        format!("{sort}-{}", digest(&format!("{self:?}"))).into()
    }

    /// Whether its elements are addresses with ports.
    pub fn has_ports(&self) -> bool {
        matches!(self, Group::Port { .. })
    }

    /// The elements that a Pod with these addresses brings in.
    pub fn elements(&self, pod: &Facts, addresses: &[IpAddr], namespace: &Labels) -> Vec<Element> {
        let of = |port: Option<u16>| addresses.iter().map(move |address| Element { address: *address, port });
        match self {
            Group::Pods(selected) if selected.matches(pod, namespace) => of(None).collect(),
            Group::Pods(_) | Group::Nodes(_) | Group::Domain(_) => Vec::new(),
            Group::Port { protocol, name } => {
                let ports = pod.ports.iter().filter(|p| p.name == *name && p.protocol == *protocol);
                ports.flat_map(|p| of(Some(p.number))).collect()
            }
        }
    }
}

impl Group {
    /// The elements that a node brings in.
    pub fn elements_of_node(&self, node: &NodeFacts) -> Vec<Element> {
        let is_in = matches!(self, Group::Nodes(selector) if selector.matches(&node.labels));
        let addresses = node.addresses.iter().filter(|_| is_in);
        addresses.map(|address| Element { address: *address, port: None }).collect()
    }
}

/// The groups that the rules of one policy name.
#[derive(Debug, Default)]
pub struct Groups(BTreeMap<GroupName, Group>);

impl Groups {
    /// The name of a group that is one of them from now on.
    pub fn named(&mut self, group: Group) -> GroupName {
        let name = group.name();
        self.0.insert(name.clone(), group);
        name
    }

    pub fn append(&mut self, mut others: Groups) {
        self.0.append(&mut others.0);
    }

    /// Each of them once.
    pub fn into_vec(self) -> Vec<Group> {
        self.0.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_groups_have_different_names() {
        let labels = |text: &str| -> Labels {
            let pairs = text.split(',').map(|l| l.split_once('=').unwrap());
            pairs.map(|(key, value)| (key.to_owned(), value.replace(';', ","))).collect()
        };
        let pods = |text: &str| {
            let pods = Selector::of_labels(&labels(text));
            Group::Pods(Selected { namespaces: Namespaces::One("x".to_owned()), pods })
        };
        // As text both are `a=b,c=d`.
        assert_ne!(pods("a=b,c=d").name(), pods("a=b;c=d").name());
        assert_eq!(pods("c=d,a=b").name(), pods("a=b,c=d").name());
    }
}
