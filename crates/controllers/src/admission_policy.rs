//! ValidatingAdmissionPolicy status: warnings about expressions that do not fit the kinds that a policy names.
//! Reads: ValidatingAdmissionPolicy. Writes: ValidatingAdmissionPolicy/status.
//! Upstream counterpart: pkg/controller/validatingadmissionpolicystatus.

use api::kinds::built_in;
use api::rules::cel::typed;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches};
use k8s_openapi::api::admissionregistration::v1::{TypeChecking, ValidatingAdmissionPolicy};

pub struct PolicyStatus;

impl Controller for PolicyStatus {
    const NAME: &'static str = "validatingadmissionpolicy-status-controller";
    type Object = ValidatingAdmissionPolicy;
    type Observed = ();

    fn watches(&self, _: &mut Watches<ValidatingAdmissionPolicy>) {}

    fn observe(&self, _: &ValidatingAdmissionPolicy, _: &Listers) {}

    /// A generation is checked once.
    fn plan(&self, policy: &ValidatingAdmissionPolicy, (): &(), _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let generation = policy.metadata.generation.unwrap_or_default();
        let observed = policy.status.as_ref().and_then(|s| s.observed_generation).unwrap_or_default();
        if generation <= observed {
            return plan;
        }
        let warnings = typed::check(policy, built_in());
        let mut checked = policy.clone();
        let status = checked.status.get_or_insert_default();
        status.observed_generation = Some(generation);
        let expression_warnings = (!warnings.is_empty()).then_some(warnings);
        status.type_checking = Some(TypeChecking { expression_warnings });
        plan.set_status(policy, &checked);
        plan
    }
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

    fn plan(policy: &ValidatingAdmissionPolicy) -> Option<json::Value> {
        let plan = PolicyStatus.plan(policy, &(), Timestamp::UNIX_EPOCH);
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
        // What was written is not written again.
        let mut after = policy("object.spec.size == 1", 2, 1);
        after.status = json::from_value(wrong).unwrap();
        assert_eq!(plan(&after), None);
    }
}
