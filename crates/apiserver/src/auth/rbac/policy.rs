//! The policy as lookups: subjects to bindings, role names to rules.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use json::Value;

use super::PolicyRule;
use crate::auth::{User, user};

/// The role that a binding names. A Role is in the binding's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleRef {
    pub cluster: bool,
    pub name: String,
}

impl RoleRef {
    /// The `roleRef` of a binding.
    pub fn of(binding: &Value) -> Option<Self> {
        let role = binding.get("roleRef")?;
        let cluster = match role.get("kind")?.as_str()? {
            "ClusterRole" => true,
            "Role" => false,
            _ => return None,
        };
        Some(RoleRef { cluster, name: role.get("name")?.as_str()?.to_owned() })
    }

    fn kind(&self) -> &'static str {
        if self.cluster { "ClusterRole" } else { "Role" }
    }

    fn missing(&self) -> String {
        format!("{}.rbac.authorization.k8s.io \"{}\" not found", self.kind().to_lowercase(), self.name)
    }
}

#[derive(Debug)]
struct Binding {
    name: String,
    role: RoleRef,
    /// As the lookup keys have them, with the text for reasons.
    subjects: Vec<(SubjectKey, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum SubjectKey {
    User(String),
    Group(String),
}

/// The bindings of one namespace, or of the cluster.
#[derive(Debug, Default)]
struct Bindings {
    by_name: HashMap<String, Arc<Binding>>,
    users: HashMap<String, Vec<Arc<Binding>>>,
    groups: HashMap<String, Vec<Arc<Binding>>>,
}

/// All roles and bindings.
#[derive(Debug, Default)]
pub struct Policy {
    cluster_roles: HashMap<String, Vec<PolicyRule>>,
    roles: HashMap<String, HashMap<String, Vec<PolicyRule>>>,
    cluster: Bindings,
    namespaces: HashMap<String, Bindings>,
}

/// One binding that applies to a user, with the rules of its role.
pub struct Grant<'a> {
    pub rules: &'a [PolicyRule],
    binding: &'a Binding,
    namespace: &'a str,
    /// The user's name or group that the binding was found by.
    by: (bool, &'a str),
}

impl fmt::Display for Grant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, place) = match self.namespace {
            "" => ("ClusterRoleBinding", String::new()),
            namespace => ("RoleBinding", format!("/{namespace}")),
        };
        let same = |key: &SubjectKey| match key {
            SubjectKey::User(name) => !self.by.0 && name == self.by.1,
            SubjectKey::Group(name) => self.by.0 && name == self.by.1,
        };
        let subject = self.binding.subjects.iter().find(|(key, _)| same(key)).map_or("", |(_, text)| text);
        let (binding, role) = (&self.binding.name, &self.binding.role);
        write!(f, "RBAC: allowed by {kind} \"{binding}{place}\" of {} \"{}\" to {subject}", role.kind(), role.name)
    }
}

impl Policy {
    pub fn changed(&mut self, plural: &str, namespace: &str, name: &str, object: Option<&Value>) {
        match plural {
            "clusterroles" => set(&mut self.cluster_roles, name, object.map(rules)),
            "roles" => {
                set(self.roles.entry(namespace.to_owned()).or_default(), name, object.map(rules));
                self.roles.retain(|_, roles| !roles.is_empty());
            }
            "clusterrolebindings" => self.cluster.set(name, object.and_then(|o| binding(name, "", o))),
            "rolebindings" => {
                let bindings = self.namespaces.entry(namespace.to_owned()).or_default();
                bindings.set(name, object.and_then(|o| binding(name, namespace, o)));
                if bindings.by_name.is_empty() {
                    self.namespaces.remove(namespace);
                }
            }
            _ => {}
        }
    }

    pub fn rules(&self, role: &RoleRef, namespace: &str) -> Option<&[PolicyRule]> {
        if role.cluster {
            self.cluster_roles.get(&role.name).map(Vec::as_slice)
        } else {
            self.roles.get(namespace)?.get(&role.name).map(Vec::as_slice)
        }
    }

    /// Calls `see` with every grant of a user, those of the cluster first, until it returns false. Answers which roles
    /// are named but missing, among those that were looked at.
    pub fn visit(&self, user: &User, namespace: &str, mut see: impl FnMut(&Grant<'_>) -> bool) -> Vec<String> {
        let mut missing = Vec::new();
        let scopes = [Some(("", &self.cluster)), self.namespaces.get(namespace).map(|b| (namespace, b))];
        for (place, bindings) in scopes.into_iter().flatten() {
            let keys =
                std::iter::once((false, user.name.as_str())).chain(user.groups.iter().map(|g| (true, g.as_str())));
            for by in keys {
                let index = if by.0 { &bindings.groups } else { &bindings.users };
                for binding in index.get(by.1).into_iter().flatten() {
                    match self.rules(&binding.role, place) {
                        None => missing.push(binding.role.missing()),
                        Some(rules) => {
                            if !see(&Grant { rules, binding, namespace: place, by }) {
                                return missing;
                            }
                        }
                    }
                }
            }
        }
        missing
    }
}

fn set<T>(map: &mut HashMap<String, T>, name: &str, value: Option<T>) {
    match value {
        Some(value) => map.insert(name.to_owned(), value),
        None => map.remove(name),
    };
}

impl Bindings {
    fn set(&mut self, name: &str, binding: Option<Binding>) {
        if let Some(old) = self.by_name.remove(name) {
            for (key, _) in &old.subjects {
                let (index, name) = self.index(key);
                if let Some(list) = index.get_mut(name) {
                    list.retain(|b| !Arc::ptr_eq(b, &old));
                    if list.is_empty() {
                        index.remove(name);
                    }
                }
            }
        }
        if let Some(binding) = binding.map(Arc::new) {
            for (key, _) in &binding.subjects {
                let (index, name) = self.index(key);
                index.entry(name.to_owned()).or_default().push(binding.clone());
            }
            self.by_name.insert(name.to_owned(), binding);
        }
    }

    fn index<'k>(&mut self, key: &'k SubjectKey) -> (&mut HashMap<String, Vec<Arc<Binding>>>, &'k str) {
        match key {
            SubjectKey::User(name) => (&mut self.users, name),
            SubjectKey::Group(name) => (&mut self.groups, name),
        }
    }
}

/// The `rules` of a role; a broken one grants nothing.
pub fn rules(role: &Value) -> Vec<PolicyRule> {
    let list = role.get("rules").and_then(Value::as_array);
    let parse = |rule: &Value| json::from_value(rule.clone()).ok();
    list.into_iter().flatten().filter_map(parse).collect()
}

fn binding(name: &str, namespace: &str, object: &Value) -> Option<Binding> {
    let role = RoleRef::of(object)?;
    let mut subjects: Vec<(SubjectKey, String)> = Vec::new();
    let mut known = HashSet::new();
    for subject in object.get("subjects").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| subject.get(field).and_then(Value::as_str).unwrap_or("");
        let name = text("name");
        let (key, shown) = match text("kind") {
            "User" => (SubjectKey::User(name.to_owned()), format!("User \"{name}\"")),
            "Group" => (SubjectKey::Group(name.to_owned()), format!("Group \"{name}\"")),
            "ServiceAccount" => {
                let place = if text("namespace").is_empty() { namespace } else { text("namespace") };
                if place.is_empty() {
                    continue;
                }
                let user = format!("{}{place}:{name}", user::SERVICE_ACCOUNT_PREFIX);
                (SubjectKey::User(user), format!("ServiceAccount \"{name}/{place}\""))
            }
            _ => continue,
        };
        if known.insert(key.clone()) {
            subjects.push((key, shown));
        }
    }
    Some(Binding { name: name.to_owned(), role, subjects })
}
