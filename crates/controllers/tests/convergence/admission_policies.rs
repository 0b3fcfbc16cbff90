//! ValidatingAdmissionPolicies: whoever changes them, and whenever the checking process dies, each comes to say of its present
//! expressions whether they fit the kinds that it names.

use client::{Api, rest::DeleteOptions};
use json::{Value, json};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;

use crate::common::object;
use crate::world::{Story, World, below, converges};

struct Policies;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A field that Deployments have, one that they have not, and one that nobody asks about.
const EXPRESSIONS: [&str; 3] = ["object.spec.replicas == 1", "object.spec.size == 1", "true"];

fn policies(world: &World) -> Api<ValidatingAdmissionPolicy> {
    Api::all(world.client.clone())
}

fn name(policy: &ValidatingAdmissionPolicy) -> &str {
    policy.metadata.name.as_deref().unwrap_or("")
}

fn validations() -> Value {
    let some = (0..1 + below(3)).map(|_| json!({"expression": EXPRESSIONS[below(3) as usize]}));
    some.collect()
}

/// The expressions that are wrong, by their places.
fn wrong(policy: &ValidatingAdmissionPolicy) -> Vec<String> {
    let all = policy.spec.iter().flat_map(|spec| spec.validations.iter().flatten()).enumerate();
    let wrong = all.filter(|(_, validation)| validation.expression.contains("size"));
    wrong.map(|(at, _)| format!("spec.validations[{at}].expression")).collect()
}

fn warned(policy: &ValidatingAdmissionPolicy) -> Vec<String> {
    let checking = policy.status.as_ref().and_then(|status| status.type_checking.as_ref());
    let warnings = checking.iter().flat_map(|checking| checking.expression_warnings.iter().flatten());
    warnings.map(|warning| warning.field_ref.clone()).collect()
}

impl Story for Policies {
    const CONTROLLERS: &'static [&'static str] = &["validatingadmissionpolicy-status-controller"];

    async fn begin(_: &World) -> Self {
        Policies
    }

    async fn change(&mut self, world: &World) {
        let chosen = NAMES[below(3) as usize];
        match below(5) {
            0 | 1 => {
                let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"],
                    "resources": ["deployments"]});
                let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": validations()});
                // It may be there already.
                let _ = policies(world).create(&object(json!({"metadata": {"name": chosen}, "spec": spec}))).await;
            }
            2 => {
                let patch = json!({"spec": {"validations": validations()}});
                let _ = policies(world).merge_patch(chosen, "", patch).await;
            }
            // Nothing that is checked changes.
            3 => {
                let patch = json!({"metadata": {"labels": {"round": below(1000).to_string()}}});
                let _ = policies(world).merge_patch(chosen, "", patch).await;
            }
            _ => drop(policies(world).delete(chosen, DeleteOptions::default()).await),
        }
    }

    async fn check(&self, world: &World) {
        for policy in policies(world).list(&[]).await.unwrap() {
            let observed = policy.status.as_ref().and_then(|status| status.observed_generation);
            assert!(observed <= policy.metadata.generation, "{} was checked before it was written", name(&policy));
            if observed == policy.metadata.generation {
                assert_eq!(warned(&policy), wrong(&policy), "{}", name(&policy));
            }
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let all = policies(world).list(&[]).await.unwrap();
        let unchecked = all.iter().find(|policy| {
            policy.status.as_ref().and_then(|status| status.observed_generation) != policy.metadata.generation
        });
        unchecked.map(|policy| format!("{} is not checked: {:?}", name(policy), policy.status))
    }
}

#[test]
fn policies_say_what_is_wrong_with_them() {
    converges::<Policies>(0..20);
}
