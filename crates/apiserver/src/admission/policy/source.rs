//! The policies with their bindings, kept up to date by the store's changes. A policy is compiled when a request first
//! meets it, and again only when its spec has changed.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use api::k8s_openapi::api::admissionregistration::{
    v1::{MatchResources, ParamKind, ParamRef, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec},
    v1beta1::{MutatingAdmissionPolicyBindingSpec, MutatingAdmissionPolicySpec},
};
use api::kinds::admission_policy::stable;
use api::{Value, kind::Definition, meta};
use parking_lot::RwLock;

use super::changes;
use super::evaluation::Evaluator;
use super::metrics::Counts;
use crate::storage::informer::EventHandler;

pub const GROUP: &str = "admissionregistration.k8s.io";
/// All kinds of policies and bindings.
pub const FOLLOWED: [&str; 4] = [
    ValidatingAdmissionPolicySpec::POLICIES,
    ValidatingAdmissionPolicySpec::BINDINGS,
    MutatingAdmissionPolicySpec::POLICIES,
    MutatingAdmissionPolicySpec::BINDINGS,
];

/// The policies that bindings of this name bind; none if these are no bindings.
pub fn policies_of(bindings: &str) -> Option<&'static str> {
    let sorts = [
        (ValidatingAdmissionPolicySpec::POLICIES, ValidatingAdmissionPolicySpec::BINDINGS),
        (MutatingAdmissionPolicySpec::POLICIES, MutatingAdmissionPolicySpec::BINDINGS),
    ];
    sorts.into_iter().find(|(_, own)| *own == bindings).map(|(policies, _)| policies)
}

/// The subject of a policy, and what its failures mean.
pub struct About {
    pub constraints: Option<MatchResources>,
    pub param_kind: Option<ParamKind>,
    pub ignores_failures: bool,
}

/// The spec of one sort of policies.
pub trait Spec: Sized + Send + Sync + 'static {
    const POLICIES: &'static str;
    const BINDINGS: &'static str;
    type Evaluator: Send + Sync;

    /// Reads it out of a policy.
    fn read(policy: &Value) -> Option<Self>;
    fn about(&self) -> About;
    fn compile(&self) -> Self::Evaluator;
    /// Reads a binding of the sort.
    fn binding(name: &str, binding: &Value) -> Option<Binding>;
}

/// The spec of an object that validation has let through, whatever version of its kind it is in.
fn spec<T: serde::de::DeserializeOwned + Default>(object: &Value) -> Option<T> {
    let spec = object.get("spec").filter(|spec| !spec.is_null());
    spec.map_or_else(|| Some(T::default()), |spec| json::from_value(spec.clone()).ok())
}

impl Spec for ValidatingAdmissionPolicySpec {
    const POLICIES: &'static str = "validatingadmissionpolicies";
    const BINDINGS: &'static str = "validatingadmissionpolicybindings";
    type Evaluator = Evaluator;

    fn read(policy: &Value) -> Option<Self> {
        spec(policy)
    }

    fn about(&self) -> About {
        About {
            constraints: self.match_constraints.clone(),
            param_kind: self.param_kind.clone(),
            ignores_failures: self.failure_policy.as_deref() == Some("Ignore"),
        }
    }

    fn compile(&self) -> Evaluator {
        Evaluator::new(self)
    }

    fn binding(name: &str, binding: &Value) -> Option<Binding> {
        let spec: ValidatingAdmissionPolicyBindingSpec = spec(binding)?;
        Some(Binding {
            name: name.to_owned(),
            policy: spec.policy_name.unwrap_or_default(),
            resources: spec.match_resources,
            params: spec.param_ref,
            actions: spec.validation_actions.unwrap_or_default(),
        })
    }
}

impl Spec for MutatingAdmissionPolicySpec {
    const POLICIES: &'static str = "mutatingadmissionpolicies";
    const BINDINGS: &'static str = "mutatingadmissionpolicybindings";
    type Evaluator = changes::Evaluator;

    fn read(policy: &Value) -> Option<Self> {
        spec(policy)
    }

    fn about(&self) -> About {
        About {
            constraints: self.match_constraints.as_ref().map(stable::match_resources),
            param_kind: self.param_kind.as_ref().map(stable::param_kind),
            ignores_failures: self.failure_policy.as_deref() == Some("Ignore"),
        }
    }

    fn compile(&self) -> changes::Evaluator {
        changes::Evaluator::new(self)
    }

    fn binding(name: &str, binding: &Value) -> Option<Binding> {
        let spec: MutatingAdmissionPolicyBindingSpec = spec(binding)?;
        Some(Binding {
            name: name.to_owned(),
            policy: spec.policy_name.unwrap_or_default(),
            resources: spec.match_resources.as_ref().map(stable::match_resources),
            params: spec.param_ref.as_ref().map(stable::param_ref),
            actions: Vec::new(),
        })
    }
}

pub struct Policy<S: Spec> {
    pub name: String,
    pub about: About,
    spec: S,
    /// The uid and the generation of the spec.
    version: (String, i64),
    evaluator: OnceLock<S::Evaluator>,
}

impl<S: Spec> Policy<S> {
    fn new(name: &str, spec: S, version: (String, i64)) -> Self {
        Policy { name: name.to_owned(), about: spec.about(), spec, version, evaluator: OnceLock::new() }
    }

    pub(super) fn evaluator(&self) -> &S::Evaluator {
        self.evaluator.get_or_init(|| self.spec.compile())
    }
}

pub struct Binding {
    pub name: String,
    /// The name of the policy that it puts in force.
    policy: String,
    pub resources: Option<MatchResources>,
    pub params: Option<ParamRef>,
    /// The answers to a denial of a validating policy.
    pub actions: Vec<String>,
}

/// A policy that is in force somewhere.
pub struct Hook<S: Spec> {
    pub policy: Arc<Policy<S>>,
    pub bindings: Vec<Arc<Binding>>,
}

struct Held<S: Spec> {
    policies: BTreeMap<String, Arc<Policy<S>>>,
    bindings: BTreeMap<String, Arc<Binding>>,
}

/// The policies and bindings of one sort.
pub struct Source<S: Spec> {
    held: RwLock<Held<S>>,
    hooks: RwLock<Arc<Vec<Hook<S>>>>,
}

impl<S: Spec> Default for Source<S> {
    fn default() -> Self {
        let held = Held { policies: BTreeMap::new(), bindings: BTreeMap::new() };
        Source { held: RwLock::new(held), hooks: RwLock::default() }
    }
}

impl<S: Spec> Source<S> {
    /// The policies that have bindings, by their names.
    pub fn hooks(&self) -> Arc<Vec<Hook<S>>> {
        self.hooks.read().clone()
    }

    fn object_changed(&self, plural: &str, name: &str, object: Option<&Value>) {
        let mut held = self.held.write();
        if plural == S::POLICIES {
            match object.and_then(|o| S::read(o).map(|spec| (o, spec))) {
                Some((object, spec)) => {
                    let version = (meta::uid(object).to_owned(), meta::generation(object));
                    if held.policies.get(name).is_some_and(|known| known.version == version && version.1 > 0) {
                        return;
                    }
                    held.policies.insert(name.to_owned(), Arc::new(Policy::new(name, spec, version)));
                }
                None => drop(held.policies.remove(name)),
            }
        } else if plural == S::BINDINGS {
            match object.and_then(|o| S::binding(name, o)) {
                Some(binding) => drop(held.bindings.insert(name.to_owned(), Arc::new(binding))),
                None => drop(held.bindings.remove(name)),
            }
        } else {
            return;
        }
        *self.hooks.write() = Arc::new(held.hooks());
    }
}

impl<S: Spec> Held<S> {
    fn hooks(&self) -> Vec<Hook<S>> {
        let mut bound: BTreeMap<&str, Vec<Arc<Binding>>> = BTreeMap::new();
        for binding in self.bindings.values() {
            bound.entry(&binding.policy).or_default().push(binding.clone());
        }
        let hook = |(name, bindings): (&str, Vec<Arc<Binding>>)| {
            Some(Hook { policy: self.policies.get(name)?.clone(), bindings })
        };
        bound.into_iter().filter_map(hook).collect()
    }
}

/// All policies and bindings.
#[derive(Default)]
pub struct Policies {
    pub validating: Source<ValidatingAdmissionPolicySpec>,
    pub mutating: Source<MutatingAdmissionPolicySpec>,
    pub metrics: Counts,
}

impl Policies {
    /// Takes in that an object is now this, or gone.
    pub fn object_changed(&self, plural: &str, name: &str, object: Option<&Value>) {
        self.validating.object_changed(plural, name, object);
        self.mutating.object_changed(plural, name, object);
    }
}

impl EventHandler for Policies {
    fn changed(&self, definition: &Definition, _namespace: &str, name: &str, object: Option<&Value>) {
        self.object_changed(&definition.plural, name, object);
    }
}
