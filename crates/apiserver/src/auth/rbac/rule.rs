//! One policy rule: which requests it matches, and whether rules cover other rules.

use serde::{Deserialize, Serialize};

use crate::auth::Attributes;

/// `rbac.authorization.k8s.io/v1` `PolicyRule`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    pub verbs: Vec<String>,
}

fn owned(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

/// Whether a list of a rule names `wanted` or everything.
fn names(list: &[String], wanted: &str) -> bool {
    list.iter().any(|s| s == "*" || s == wanted)
}

impl PolicyRule {
    pub fn resources(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Self {
        PolicyRule { verbs: owned(verbs), api_groups: owned(groups), resources: owned(resources), ..Self::default() }
    }

    pub fn paths(verbs: &[&str], urls: &[&str]) -> Self {
        PolicyRule { verbs: owned(verbs), non_resource_urls: owned(urls), ..Self::default() }
    }

    #[must_use]
    pub fn named(mut self, resource_names: &[&str]) -> Self {
        self.resource_names = owned(resource_names);
        self
    }

    /// Whether the rule allows the request. The namespace is not the rule's concern but its binding's.
    pub fn matches(&self, a: &Attributes<'_>) -> bool {
        if !names(&self.verbs, a.verb) {
            return false;
        }
        if !a.is_resource() {
            return self.non_resource_urls.iter().any(|url| path_matches(url, a.path));
        }
        names(&self.api_groups, a.group)
            && self.resources.iter().any(|r| resource_matches(r, a.resource, a.subresource))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == a.name))
    }
}

/// `pods`, `pods/log`, `*/scale` and `*` against a resource and its subresource.
fn resource_matches(pattern: &str, resource: &str, subresource: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    match pattern.split_once('/') {
        None => subresource.is_empty() && pattern == resource,
        Some((r, s)) => !subresource.is_empty() && s == subresource && (r == "*" || r == resource),
    }
}

/// `*`, an exact path, or a prefix that ends with `*`.
fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == "*" || pattern == path || pattern.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}
