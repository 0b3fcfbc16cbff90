//! The user behind a request, as authentication found out, and the names that have a meaning of their own.

use std::collections::BTreeMap;

use json::{Map, Value, json};

pub const ANONYMOUS: &str = "system:anonymous";
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// Members may do everything; no policy is asked.
pub const GROUP_MASTERS: &str = "system:masters";
pub const GROUP_NODES: &str = "system:nodes";
pub const NODE_PREFIX: &str = "system:node:";
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
pub const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub fn new<G: Into<String>>(name: impl Into<String>, groups: impl IntoIterator<Item = G>) -> Self {
        User { name: name.into(), groups: groups.into_iter().map(Into::into).collect(), ..User::default() }
    }

    pub fn anonymous() -> Self {
        User::new(ANONYMOUS, [GROUP_UNAUTHENTICATED])
    }

    /// The user that a service account's token stands for, without the group of all authenticated users.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups = [GROUP_SERVICE_ACCOUNTS.to_owned(), format!("{GROUP_SERVICE_ACCOUNTS}:{namespace}")];
        User { uid: uid.to_owned(), ..User::new(format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"), groups) }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    pub fn is_master(&self) -> bool {
        self.in_group(GROUP_MASTERS)
    }

    /// Whether nobody is known by this, whatever else it is called.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.in_group(GROUP_UNAUTHENTICATED)
    }

    /// Whether this is a kubelet, also one whose node cannot be told.
    pub fn is_node(&self) -> bool {
        self.name.starts_with(NODE_PREFIX) && self.in_group(GROUP_NODES)
    }

    /// The node whose kubelet this is.
    pub fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX).filter(|_| self.is_node())?;
        (!name.is_empty()).then_some(name)
    }

    /// Adds the group that every user except the anonymous one has.
    pub fn authenticated(mut self) -> Self {
        let known = self.groups.iter().any(|g| g == GROUP_AUTHENTICATED || g == GROUP_UNAUTHENTICATED);
        if !known && self.name != ANONYMOUS {
            self.groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        self
    }

    /// `authentication.k8s.io` `UserInfo`.
    pub fn info(&self) -> Value {
        let mut info = Map::new();
        if !self.name.is_empty() {
            info.insert("username", json!(self.name));
        }
        if !self.uid.is_empty() {
            info.insert("uid", json!(self.uid));
        }
        if !self.groups.is_empty() {
            info.insert("groups", json!(self.groups));
        }
        if !self.extra.is_empty() {
            info.insert("extra", json!(self.extra));
        }
        Value::Object(info)
    }
}

/// Namespace and name of the service account that a user name stands for.
pub fn split_service_account(user_name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user_name.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}
