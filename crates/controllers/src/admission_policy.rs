//! ValidatingAdmissionPolicy status: warnings about expressions that do not fit the kinds that a policy names.
//! Reads: ValidatingAdmissionPolicy, discovery, OpenAPI. Writes: ValidatingAdmissionPolicy/status.
//! Upstream counterpart: pkg/controller/validatingadmissionpolicystatus.

use api::kinds::built_in;
use api::rules::cel::typed::{self, Custom, Kinds};
use client::Client;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches};
use k8s_openapi::api::admissionregistration::v1::{TypeChecking, ValidatingAdmissionPolicy};

use crate::discovery;

pub struct PolicyStatus;

impl Controller for PolicyStatus {
    const NAME: &'static str = "validatingadmissionpolicy-status-controller";
    type Object = ValidatingAdmissionPolicy;
    /// The custom kinds that it names.
    type Observed = Vec<Custom>;

    fn watches(&self, _: &mut Watches<ValidatingAdmissionPolicy>) {}

    fn observe(&self, _: &ValidatingAdmissionPolicy, _: &Listers) -> Vec<Custom> {
        Vec::new()
    }

    async fn ask(
        &self,
        policy: &ValidatingAdmissionPolicy,
        custom: &mut Vec<Custom>,
        client: &Client,
    ) -> Result<(), client::Error> {
        if unchecked(policy).is_none() {
            return Ok(());
        }
        for (group, version) in typed::unknown_versions(policy, built_in()) {
            custom.extend(discovery::schemas(client, &group, &version).await?);
        }
        Ok(())
    }

    fn plan(&self, policy: &ValidatingAdmissionPolicy, custom: &Vec<Custom>, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(generation) = unchecked(policy) else { return plan };
        let warnings = typed::check(policy, Kinds { built_in: built_in(), custom });
        let mut checked = policy.clone();
        let status = checked.status.get_or_insert_default();
        status.observed_generation = Some(generation);
        let expression_warnings = (!warnings.is_empty()).then_some(warnings);
        status.type_checking = Some(TypeChecking { expression_warnings });
        plan.set_status(policy, &checked);
        plan
    }
}

/// The generation of a policy, if it is still to be checked. Each is checked once.
fn unchecked(policy: &ValidatingAdmissionPolicy) -> Option<i64> {
    let generation = policy.metadata.generation.unwrap_or_default();
    let observed = policy.status.as_ref().and_then(|s| s.observed_generation).unwrap_or_default();
    (generation > observed).then_some(generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn policy(expression: &str, generation: i64, observed: i64) -> ValidatingAdmissionPolicy {
        let rule =
            json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]});
        json::from_value(json!({
            "metadata": {"name": "p", "generation": generation},
            "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}]},
            "status": {"observedGeneration": observed},
        }))
        .unwrap()
    }

    /// A kind with one field in its spec.
    fn custom() -> Vec<Custom> {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"text":
            {"type": "string"}}}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
        vec![Custom {
            group: "example.com".into(),
            version: "v1alpha1".into(),
            kind: "Reproducer".into(),
            plural: "reproducers".into(),
            ty: api::schema::custom("Reproducer", &schema),
        }]
    }

    fn plan(policy: &ValidatingAdmissionPolicy) -> Option<json::Value> {
        let plan = PolicyStatus.plan(policy, &custom(), Timestamp::UNIX_EPOCH);
        plan.writes().next().map(|write| write.body()["status"].clone())
    }

    #[test]
    fn each_generation_is_checked_once() {
        let right = plan(&policy("object.spec.replicas == 1", 2, 1)).unwrap();
        assert_eq!(right, json!({"observedGeneration": 2, "typeChecking": {}}));
        let wrong = plan(&policy("object.spec.size == 1", 2, 1)).unwrap();
        let warnings = wrong["typeChecking"]["expressionWarnings"].as_array().unwrap();
        assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
        assert!(warnings[0]["warning"].as_str().unwrap().contains("undefined field 'size'"));
        assert_eq!(plan(&policy("object.spec.size == 1", 2, 2)), None);
        let of_custom = |expression: &str| {
            let mut policy = policy(expression, 1, 0);
            let constraints = policy.spec.as_mut().and_then(|s| s.match_constraints.as_mut()).unwrap();
            let rule = &mut constraints.resource_rules.as_mut().unwrap()[0];
            rule.api_groups = Some(vec!["example.com".into()]);
            rule.api_versions = Some(vec!["v1alpha1".into()]);
            rule.resources = Some(vec!["reproducers".into()]);
            assert_eq!(typed::unknown_versions(&policy, built_in()).len(), 1);
            let warnings = plan(&policy).unwrap()["typeChecking"]["expressionWarnings"].take();
            warnings.as_array().map(|all| all[0]["warning"].as_str().unwrap().to_owned()).unwrap_or_default()
        };
        assert_eq!(of_custom("has(object.spec.text)"), "");
        let told = of_custom("object.spec.text == 1");
        assert!(told.starts_with("example.com/v1alpha1, Kind=Reproducer: ") && told.contains("no matching overload"));
        // A warning that was written is not written again.
        let mut after = policy("object.spec.size == 1", 2, 1);
        after.status = json::from_value(wrong).unwrap();
        assert_eq!(plan(&after), None);
    }
}
