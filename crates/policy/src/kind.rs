//! The kinds of policies, how each policy is named, and the tiers in which a connection meets them. Pure.

use std::fmt;

use client::{Key, rest::Resource};

/// The tiers in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Decides before the owners of namespaces do.
    Admin,
    /// NetworkPolicies.
    Namespace,
    /// Decides about Pods that no NetworkPolicy selects.
    Baseline,
}

impl Tier {
    pub const ALL: [Tier; 3] = [Tier::Admin, Tier::Namespace, Tier::Baseline];

    /// The beginning of its names in the kernel.
    pub fn prefix(self) -> &'static str {
        match self {
            Tier::Admin => "admin-",
            Tier::Namespace => "",
            Tier::Baseline => "baseline-",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    Network,
    Admin,
    BaselineAdmin,
    Cluster,
}

/// The group of the kinds that administrators write.
pub const GROUP: &str = "policy.networking.k8s.io";

impl PolicyKind {
    /// The kinds that a user installs, for the whole cluster.
    pub const OF_ADMINISTRATORS: [PolicyKind; 3] = [PolicyKind::Admin, PolicyKind::BaselineAdmin, PolicyKind::Cluster];

    pub fn resource(self) -> Resource {
        let (group, version, kind, plural) = match self {
            PolicyKind::Network => ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
            PolicyKind::Admin => (GROUP, "v1alpha1", "AdminNetworkPolicy", "adminnetworkpolicies"),
            PolicyKind::BaselineAdmin => {
                (GROUP, "v1alpha1", "BaselineAdminNetworkPolicy", "baselineadminnetworkpolicies")
            }
            PolicyKind::Cluster => (GROUP, "v1alpha2", "ClusterNetworkPolicy", "clusternetworkpolicies"),
        };
        Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }
}

/// Names one policy of any kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName {
    pub kind: PolicyKind,
    pub key: Key,
}

impl PolicyName {
    pub fn new(kind: PolicyKind, key: Key) -> Self {
        PolicyName { kind, key }
    }

    /// The first name that a NetworkPolicy of a namespace can have.
    pub fn first_in(namespace: &str) -> Self {
        PolicyName::new(PolicyKind::Network, Key::new(namespace, ""))
    }

    /// The first name that a policy of administrators can have; all others come after it.
    pub fn first_of_administrators() -> Self {
        PolicyName::new(PolicyKind::Admin, Key::default())
    }
}

/// No namespace is named as a kind is, so that different policies have different texts.
impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            PolicyKind::Network => self.key.fmt(f),
            other => write!(f, "{}/{}", other.resource().kind, self.key),
        }
    }
}
