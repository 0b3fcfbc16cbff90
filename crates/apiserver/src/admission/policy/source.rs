//! The policies with their bindings, kept up to date by the store's changes. A policy is compiled when a request first
//! meets it, and again only when its spec has changed.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use api::k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec,
};
use api::{Value, kind::Definition, meta, object::Object};
use parking_lot::RwLock;

use super::evaluation::Evaluator;
use crate::storage::informer::EventHandler;

pub const GROUP: &str = "admissionregistration.k8s.io";
pub const POLICIES: &str = "validatingadmissionpolicies";
pub const BINDINGS: &str = "validatingadmissionpolicybindings";

pub struct Policy {
    pub name: String,
    pub spec: ValidatingAdmissionPolicySpec,
    /// The uid and the generation of the spec.
    version: (String, i64),
    evaluator: OnceLock<Evaluator>,
}

impl Policy {
    pub(super) fn evaluator(&self) -> &Evaluator {
        self.evaluator.get_or_init(|| Evaluator::new(&self.spec))
    }

    pub(super) fn ignores_failures(&self) -> bool {
        self.spec.failure_policy.as_deref() == Some("Ignore")
    }
}

pub struct Binding {
    pub name: String,
    pub spec: ValidatingAdmissionPolicyBindingSpec,
}

/// A policy that is in force somewhere.
pub struct Hook {
    pub policy: Arc<Policy>,
    pub bindings: Vec<Arc<Binding>>,
}

#[derive(Default)]
struct Held {
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<Binding>>,
}

/// All policies and bindings.
#[derive(Default)]
pub struct Policies {
    held: RwLock<Held>,
    hooks: RwLock<Arc<Vec<Hook>>>,
}

impl Policies {
    /// The policies that have bindings.
    pub fn hooks(&self) -> Arc<Vec<Hook>> {
        self.hooks.read().clone()
    }

    /// Takes in that an object is now this, or gone.
    pub fn object_changed(&self, plural: &str, name: &str, object: Option<&Value>) {
        let mut held = self.held.write();
        if plural == POLICIES {
            match object.and_then(|o| ValidatingAdmissionPolicy::from_value(o).ok().map(|p| (o, p))) {
                Some((object, policy)) => {
                    let version = (meta::uid(object).to_owned(), meta::generation(object));
                    if held.policies.get(name).is_some_and(|known| known.version == version && version.1 > 0) {
                        return;
                    }
                    let spec = policy.spec.unwrap_or_default();
                    let policy = Policy { name: name.to_owned(), spec, version, evaluator: OnceLock::new() };
                    held.policies.insert(name.to_owned(), Arc::new(policy));
                }
                None => drop(held.policies.remove(name)),
            }
        } else {
            match object.and_then(|o| ValidatingAdmissionPolicyBinding::from_value(o).ok()) {
                Some(binding) => {
                    let binding = Binding { name: name.to_owned(), spec: binding.spec.unwrap_or_default() };
                    held.bindings.insert(name.to_owned(), Arc::new(binding));
                }
                None => drop(held.bindings.remove(name)),
            }
        }
        *self.hooks.write() = Arc::new(held.hooks());
    }
}

impl Held {
    fn hooks(&self) -> Vec<Hook> {
        let mut bound: BTreeMap<&str, Vec<Arc<Binding>>> = BTreeMap::new();
        for binding in self.bindings.values() {
            bound.entry(binding.spec.policy_name.as_deref().unwrap_or_default()).or_default().push(binding.clone());
        }
        let hook = |(name, bindings): (&str, Vec<Arc<Binding>>)| {
            Some(Hook { policy: self.policies.get(name)?.clone(), bindings })
        };
        bound.into_iter().filter_map(hook).collect()
    }
}

impl EventHandler for Policies {
    fn changed(&self, definition: &Definition, _namespace: &str, name: &str, object: Option<&Value>) {
        self.object_changed(&definition.plural, name, object);
    }
}
