//! Sets of addresses that rules refer to: the Pods that selectors choose, and named ports of Pods. Pure.
//!
//! Rules that mean the same group share it, whatever policies they stand in. So a label of a Pod that changes is one
//! element of each group that it joins or leaves.

use std::{net::IpAddr, sync::Arc};

use api::rules::selector::Selector;
use sha2::{Digest, Sha256};

use crate::{
    pod::{Facts, Labels},
    traffic::Protocol,
};

/// The namespaces of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    One(String),
    Selected(Selector),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// The addresses of Pods.
    Pods { namespaces: Namespaces, pods: Selector },
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
        let sort = if self.has_ports() { "port" } else { "pods" };
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
            Group::Pods { namespaces, pods } => {
                let is_in = match namespaces {
                    Namespaces::One(name) => pod.namespace == *name,
                    Namespaces::Selected(selector) => selector.matches(namespace),
                };
                if is_in && pods.matches(&pod.labels) { of(None).collect() } else { Vec::new() }
            }
            Group::Port { protocol, name } => {
                let ports = pod.ports.iter().filter(|p| p.name == *name && p.protocol == *protocol);
                ports.flat_map(|p| of(Some(p.number))).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_groups_have_different_names() {
        let pods = |text: &str| Group::Pods {
            namespaces: Namespaces::One("x".to_owned()),
            pods: Selector::of_labels(&text.split(',').map(|l| l.split_once('=').unwrap()).fold(
                Labels::new(),
                |mut all, (k, v)| {
                    all.insert(k.to_owned(), v.replace(';', ","));
                    all
                },
            )),
        };
        // As text both are `a=b,c=d`.
        assert_ne!(pods("a=b,c=d").name(), pods("a=b;c=d").name());
        assert_eq!(pods("c=d,a=b").name(), pods("a=b,c=d").name());
    }
}
