//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: servers that are asked before an object is written.

#[cfg(test)]
mod tests;
mod validation;

use json::Value;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};

use crate::kind::{Generation, Kind, age, int, name};

const COUNT: &str = "Webhooks indicates the number of webhooks registered in this configuration";

pub const MUTATING: Kind<MutatingWebhookConfiguration> = Kind {
    unconditional_update: false,
    categories: &["api-extensions"],
    generation: Generation::CountsChangesOf("webhooks"),
    default: Some(default_mutating),
    validate_create: Some(validation::mutating),
    validate_update: Some(|new, old, _| validation::mutating_update(new, old)),
    columns: &[name(), int("Webhooks", COUNT, |c, _| Value::from(c.webhooks.as_ref().map_or(0, Vec::len))), age()],
    ..Kind::BASE
};

pub const VALIDATING: Kind<ValidatingWebhookConfiguration> = Kind {
    unconditional_update: false,
    categories: &["api-extensions"],
    generation: Generation::CountsChangesOf("webhooks"),
    default: Some(default_validating),
    validate_create: Some(validation::validating),
    validate_update: Some(|new, old, _| validation::validating_update(new, old)),
    columns: &[name(), int("Webhooks", COUNT, |c, _| Value::from(c.webhooks.as_ref().map_or(0, Vec::len))), age()],
    ..Kind::BASE
};

fn default_mutating(configuration: &mut MutatingWebhookConfiguration) {
    for hook in configuration.webhooks.iter_mut().flatten() {
        hook.failure_policy.get_or_insert_with(|| "Fail".to_owned());
        hook.match_policy.get_or_insert_with(|| "Equivalent".to_owned());
        hook.namespace_selector.get_or_insert_default();
        hook.object_selector.get_or_insert_default();
        hook.timeout_seconds.get_or_insert(10);
        hook.reinvocation_policy.get_or_insert_with(|| "Never".to_owned());
        default_rules(hook.rules.as_mut());
        default_client(&mut hook.client_config);
    }
}

fn default_validating(configuration: &mut ValidatingWebhookConfiguration) {
    for hook in configuration.webhooks.iter_mut().flatten() {
        hook.failure_policy.get_or_insert_with(|| "Fail".to_owned());
        hook.match_policy.get_or_insert_with(|| "Equivalent".to_owned());
        hook.namespace_selector.get_or_insert_default();
        hook.object_selector.get_or_insert_default();
        hook.timeout_seconds.get_or_insert(10);
        default_rules(hook.rules.as_mut());
        default_client(&mut hook.client_config);
    }
}

fn default_rules(rules: Option<&mut Vec<RuleWithOperations>>) {
    for rule in rules.into_iter().flatten() {
        rule.scope.get_or_insert_with(|| "*".to_owned());
    }
}

fn default_client(client: &mut WebhookClientConfig) {
    if let Some(service) = &mut client.service {
        service.port.get_or_insert(443);
    }
}
