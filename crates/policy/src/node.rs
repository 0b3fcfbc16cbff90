//! A node as far as policies ask: its labels and its addresses.
//!
//! Nodes tell of themselves every few minutes, and every node hears it, so little is kept of each.

use std::net::IpAddr;

use api::object::Object;
use json::{Error, Value};
use k8s_openapi::{
    ClusterResourceScope, Metadata, Resource, api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::pod::Labels;

/// The facts that policies ask for about a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    pub labels: Labels,
    pub addresses: Vec<IpAddr>,
}

/// A Node of the API, without what policies do not ask for.
#[derive(Debug, Clone)]
pub struct Node {
    metadata: ObjectMeta,
    addresses: Vec<IpAddr>,
}

impl Node {
    fn of(node: core::Node) -> Self {
        let listed = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        // Names of hosts are addresses of a Node too.
        let mut addresses: Vec<IpAddr> = listed.filter_map(|a| api::rules::ip::parse(&a.address)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let ObjectMeta { name, uid, resource_version, labels, .. } = node.metadata;
        Node { metadata: ObjectMeta { name, uid, resource_version, labels, ..ObjectMeta::default() }, addresses }
    }

    pub fn facts(&self) -> NodeFacts {
        NodeFacts { labels: self.metadata.labels.clone().unwrap_or_default(), addresses: self.addresses.clone() }
    }
}

impl Object for Node {
    fn from_value(value: &Value) -> Result<Self, Error> {
        core::Node::from_value(value).map(Node::of)
    }

    fn from_json(text: &str) -> Result<Self, Error> {
        core::Node::from_json(text).map(Node::of)
    }

    /// Never written: this is not the whole object.
    fn to_value(&self) -> Value {
        Value::Null
    }
}

impl Resource for Node {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Node";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "nodes";
    type Scope = ClusterResourceScope;
}

impl Metadata for Node {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn every_address_of_a_node_counts_whatever_sort_it_is_of() {
        let address = |sort: &str, address: &str| json!({"type": sort, "address": address});
        let object = json!({
            "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"long": "text"}},
            "status": {"addresses": [address("InternalIP", "10.0.0.1"), address("Hostname", "n"),
                address("ExternalIP", "fd00::1"), address("Hostname", "10.0.0.1")]},
        });
        let node = Node::from_json(&object.to_string()).unwrap();
        assert_eq!(node.facts().addresses, ["10.0.0.1", "fd00::1"].map(|a| a.parse::<IpAddr>().unwrap()));
        assert_eq!(node.facts().labels, [("a".to_owned(), "b".to_owned())].into());
        assert_eq!(node.metadata.annotations, None);
    }
}
