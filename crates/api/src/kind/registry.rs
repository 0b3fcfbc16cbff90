//! All kinds that the server has built in, found by path or by name.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::kind::Definition;
use crate::kinds;

/// A set of definitions with its indexes.
#[derive(Default)]
pub struct Registry {
    resources: Vec<Arc<Definition>>,
    by_plural: HashMap<String, Vec<Arc<Definition>>>,
    by_kind: HashMap<String, Vec<Arc<Definition>>>,
}

fn pick<'a>(list: Option<&'a Vec<Arc<Definition>>>, group: &str, version: &str) -> Option<&'a Arc<Definition>> {
    list?.iter().find(|d| d.group == group && d.version == version)
}

impl Registry {
    /// `bodies` are kinds that exist only as the body of a subresource (`Scale`, `Eviction`, `TokenRequest`): they have a
    /// name, no path.
    pub fn new(resources: Vec<Definition>, bodies: Vec<Definition>) -> Self {
        let mut registry = Registry::default();
        for definition in resources {
            let definition = Arc::new(definition);
            registry.by_plural.entry(definition.plural.clone()).or_default().push(definition.clone());
            registry.by_kind.entry(definition.kind.clone()).or_default().push(definition.clone());
            registry.resources.push(definition);
        }
        for definition in bodies {
            registry.by_kind.entry(definition.kind.clone()).or_default().push(Arc::new(definition));
        }
        registry
    }

    /// By the names in a URL: `("apps", "v1", "deployments")`.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Definition>> {
        pick(self.by_plural.get(plural), group, version)
    }

    /// By the names in an object: `("apps", "v1", "Deployment")`; finds bodies of subresources too.
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Definition>> {
        pick(self.by_kind.get(kind), group, version)
    }

    /// Every resource that is served, in the order of discovery within each group.
    pub fn all(&self) -> &[Arc<Definition>] {
        &self.resources
    }
}

/// The kinds of Kubernetes v1.35 that are on by default.
pub fn builtin() -> &'static Registry {
    static BUILTIN: LazyLock<Registry> = LazyLock::new(|| Registry::new(kinds::resources(), kinds::bodies()));
    &BUILTIN
}

/// A group of the API: its place in discovery and its versions, the preferred one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    pub name: &'static str,
    /// `groupPriorityMinimum` of its APIServices: higher comes first.
    pub priority: i32,
    /// Each version with the `versionPriority` of its APIService.
    pub versions: &'static [(&'static str, i32)],
}

const fn group(name: &'static str, priority: i32, versions: &'static [(&'static str, i32)]) -> Group {
    Group { name, priority, versions }
}

/// All groups in the order of discovery.
pub const GROUPS: &[Group] = &[
    group("", 18_000, &[("v1", 1)]),
    group("apiregistration.k8s.io", 18_000, &[("v1", 18)]),
    group("apps", 17_800, &[("v1", 15)]),
    group("events.k8s.io", 17_750, &[("v1", 15)]),
    group("authentication.k8s.io", 17_700, &[("v1", 15)]),
    group("authorization.k8s.io", 17_600, &[("v1", 15)]),
    group("autoscaling", 17_500, &[("v2", 30), ("v1", 15)]),
    group("batch", 17_400, &[("v1", 15)]),
    group("certificates.k8s.io", 17_300, &[("v1", 15)]),
    group("networking.k8s.io", 17_200, &[("v1", 15)]),
    group("policy", 17_100, &[("v1", 15)]),
    group("rbac.authorization.k8s.io", 17_000, &[("v1", 15)]),
    group("storage.k8s.io", 16_800, &[("v1", 15)]),
    group("admissionregistration.k8s.io", 16_700, &[("v1", 15)]),
    group("apiextensions.k8s.io", 16_700, &[("v1", 15)]),
    group("scheduling.k8s.io", 16_600, &[("v1", 15)]),
    group("coordination.k8s.io", 16_500, &[("v1", 15)]),
    group("node.k8s.io", 16_300, &[("v1", 15)]),
    group("discovery.k8s.io", 16_200, &[("v1", 15)]),
    group("resource.k8s.io", 16_200, &[("v1", 20)]),
    group("flowcontrol.apiserver.k8s.io", 16_100, &[("v1", 21)]),
];
