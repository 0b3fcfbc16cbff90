//! The parts that mutating policies have in common with validating ones, in the types of v1, for which the rules about them are
//! written.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ParamKind, ParamRef, Variable,
};
use k8s_openapi::api::admissionregistration::v1beta1 as beta;

pub fn match_resources(resources: &beta::MatchResources) -> MatchResources {
    let rules = |rules: &Option<Vec<_>>| rules.as_ref().map(|rules| rules.iter().map(rule).collect());
    MatchResources {
        exclude_resource_rules: rules(&resources.exclude_resource_rules),
        match_policy: resources.match_policy.clone(),
        namespace_selector: resources.namespace_selector.clone(),
        object_selector: resources.object_selector.clone(),
        resource_rules: rules(&resources.resource_rules),
    }
}

fn rule(rule: &beta::NamedRuleWithOperations) -> NamedRuleWithOperations {
    NamedRuleWithOperations {
        api_groups: rule.api_groups.clone(),
        api_versions: rule.api_versions.clone(),
        operations: rule.operations.clone(),
        resource_names: rule.resource_names.clone(),
        resources: rule.resources.clone(),
        scope: rule.scope.clone(),
    }
}

pub fn param_kind(kind: &beta::ParamKind) -> ParamKind {
    ParamKind { api_version: kind.api_version.clone(), kind: kind.kind.clone() }
}

pub fn param_ref(reference: &beta::ParamRef) -> ParamRef {
    ParamRef {
        name: reference.name.clone(),
        namespace: reference.namespace.clone(),
        parameter_not_found_action: reference.parameter_not_found_action.clone(),
        selector: reference.selector.clone(),
    }
}

pub fn match_conditions(conditions: &[beta::MatchCondition]) -> Vec<MatchCondition> {
    conditions.iter().map(|c| MatchCondition { expression: c.expression.clone(), name: c.name.clone() }).collect()
}

pub fn variables(variables: &[beta::Variable]) -> Vec<Variable> {
    variables.iter().map(|v| Variable { expression: v.expression.clone(), name: v.name.clone() }).collect()
}
