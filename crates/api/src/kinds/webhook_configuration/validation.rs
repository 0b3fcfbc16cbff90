//! The validation of webhook configurations.
//! Upstream counterpart: pkg/apis/admissionregistration/validation.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, NamedRuleWithOperations, RuleWithOperations,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kinds::admission_policy::{expressions::match_conditions, validation::rule};
use crate::kinds::rollout::{validate_selector, validate_selector_of_any_values};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::dns1123_subdomain;
use crate::validation::webhook::{Service, client, review_versions};

/// The versions of AdmissionReview.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
/// Older versions of the group had these, too.
const ALL_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const LONGEST_TIMEOUT: i32 = 30;

/// The common fields of both sorts of webhooks.
struct Webhook<'w> {
    name: &'w str,
    client: &'w WebhookClientConfig,
    rules: &'w [RuleWithOperations],
    failure_policy: Option<&'w str>,
    match_policy: Option<&'w str>,
    selectors: [(&'static str, Option<&'w LabelSelector>); 2],
    side_effects: &'w str,
    timeout_seconds: Option<i32>,
    reinvocation_policy: Option<&'w str>,
    conditions: &'w [MatchCondition],
    review_versions: &'w [String],
}

impl<'w> From<&'w MutatingWebhook> for Webhook<'w> {
    fn from(webhook: &'w MutatingWebhook) -> Self {
        Webhook {
            name: &webhook.name,
            client: &webhook.client_config,
            rules: webhook.rules.as_deref().unwrap_or_default(),
            failure_policy: webhook.failure_policy.as_deref(),
            match_policy: webhook.match_policy.as_deref(),
            selectors: [
                ("namespaceSelector", webhook.namespace_selector.as_ref()),
                ("objectSelector", webhook.object_selector.as_ref()),
            ],
            side_effects: &webhook.side_effects,
            timeout_seconds: webhook.timeout_seconds,
            reinvocation_policy: webhook.reinvocation_policy.as_deref(),
            conditions: webhook.match_conditions.as_deref().unwrap_or_default(),
            review_versions: &webhook.admission_review_versions,
        }
    }
}

impl<'w> From<&'w ValidatingWebhook> for Webhook<'w> {
    fn from(webhook: &'w ValidatingWebhook) -> Self {
        Webhook {
            name: &webhook.name,
            client: &webhook.client_config,
            rules: webhook.rules.as_deref().unwrap_or_default(),
            failure_policy: webhook.failure_policy.as_deref(),
            match_policy: webhook.match_policy.as_deref(),
            selectors: [
                ("namespaceSelector", webhook.namespace_selector.as_ref()),
                ("objectSelector", webhook.object_selector.as_ref()),
            ],
            side_effects: &webhook.side_effects,
            timeout_seconds: webhook.timeout_seconds,
            reinvocation_policy: None,
            conditions: webhook.match_conditions.as_deref().unwrap_or_default(),
            review_versions: &webhook.admission_review_versions,
        }
    }
}

/// How strictly a configuration is checked. One that is changed keeps the faults of a sort that it had: they are older than the
/// rule that they break.
struct Strictness {
    effects: bool,
    reviews: bool,
    names: bool,
    selectors: bool,
    conditions: bool,
}

impl Strictness {
    const NEW: Strictness = Strictness { effects: true, reviews: true, names: true, selectors: true, conditions: true };

    fn of_change(new: &[Webhook<'_>], old: &[Webhook<'_>]) -> Self {
        let known = |one: &Webhook<'_>| one.review_versions.iter().any(|version| REVIEWS.contains(&&**version));
        let right = |(field, selector): &(&str, Option<&LabelSelector>)| {
            selector.is_none_or(|selector| validate_selector(selector, &Path::new(field)).is_empty())
        };
        let same = |(new, old): (&Webhook<'_>, &Webhook<'_>)| new.conditions == old.conditions;
        let names: BTreeSet<&str> = old.iter().map(|one| one.name).collect();
        Strictness {
            effects: old.iter().all(|one| EFFECTS.contains(&one.side_effects)),
            reviews: old.iter().all(|one| one.review_versions.is_empty() || known(one)),
            names: names.len() == old.len(),
            selectors: old.iter().all(|one| one.selectors.iter().all(right)),
            conditions: new.len() != old.len() || !new.iter().zip(old).all(same),
        }
    }
}

pub(super) fn mutating(configuration: &MutatingWebhookConfiguration) -> Errors {
    all(&of_mutating(configuration), &Strictness::NEW)
}

pub(super) fn mutating_update(new: &MutatingWebhookConfiguration, old: &MutatingWebhookConfiguration) -> Errors {
    let (new, old) = (of_mutating(new), of_mutating(old));
    all(&new, &Strictness::of_change(&new, &old))
}

pub(super) fn validating(configuration: &ValidatingWebhookConfiguration) -> Errors {
    all(&of_validating(configuration), &Strictness::NEW)
}

pub(super) fn validating_update(new: &ValidatingWebhookConfiguration, old: &ValidatingWebhookConfiguration) -> Errors {
    let (new, old) = (of_validating(new), of_validating(old));
    all(&new, &Strictness::of_change(&new, &old))
}

fn of_mutating(configuration: &MutatingWebhookConfiguration) -> Vec<Webhook<'_>> {
    configuration.webhooks.iter().flatten().map(Webhook::from).collect()
}

fn of_validating(configuration: &ValidatingWebhookConfiguration) -> Vec<Webhook<'_>> {
    configuration.webhooks.iter().flatten().map(Webhook::from).collect()
}

fn all(webhooks: &[Webhook<'_>], strictness: &Strictness) -> Errors {
    let (mut errors, mut names) = (Errors::new(), BTreeSet::new());
    for (i, webhook) in webhooks.iter().enumerate() {
        let path = Path::new("webhooks").index(i);
        errors.extend(one(webhook, strictness, &path));
        if strictness.names && !webhook.name.is_empty() && !names.insert(webhook.name) {
            errors.push(FieldError::duplicate(&path.child("name"), webhook.name));
        }
    }
    errors
}

fn one(webhook: &Webhook<'_>, strictness: &Strictness, path: &Path) -> Errors {
    let mut errors: Errors = name(webhook.name, &path.child("name")).into_iter().collect();
    for (i, given) in webhook.rules.iter().enumerate() {
        errors.extend(rule(&named(given), &path.child("rules").index(i)));
    }
    let known = |field: &'static str, given: Option<&str>, known: &[&str]| {
        let unknown = given.filter(|given| !known.contains(given));
        unknown.map(|given| FieldError::not_supported(&path.child(field), given, known))
    };
    errors.extend(known("failurePolicy", webhook.failure_policy, &["Fail", "Ignore"]));
    errors.extend(known("matchPolicy", webhook.match_policy, &["Equivalent", "Exact"]));
    let effects = if strictness.effects { &EFFECTS[..] } else { &ALL_EFFECTS };
    errors.extend(side_effects(webhook.side_effects, effects, &path.child("sideEffects")));
    if let Some(seconds) = webhook.timeout_seconds.filter(|seconds| !(1..=LONGEST_TIMEOUT).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(&path.child("timeoutSeconds"), seconds, detail));
    }
    let check = if strictness.selectors { validate_selector } else { validate_selector_of_any_values };
    for (field, selector) in webhook.selectors {
        errors.extend(selector.into_iter().flat_map(|given| check(given, &path.child(field))));
    }
    errors.extend(known("reinvocationPolicy", webhook.reinvocation_policy, &["IfNeeded", "Never"]));
    let service = webhook.client.service.as_ref().map(|service| Service {
        namespace: &service.namespace,
        name: &service.name,
        path: service.path.as_deref(),
        port: service.port,
    });
    errors.extend(client(webhook.client.url.as_deref(), service, &path.child("clientConfig")));
    if strictness.conditions {
        errors.extend(match_conditions(webhook.conditions, false, &path.child("matchConditions")));
    }
    let missing = format!("must specify one of {}", REVIEWS.join(", "));
    let needed = if strictness.reviews { &REVIEWS[..] } else { &[] };
    errors.extend(review_versions(webhook.review_versions, needed, &missing, &path.child("admissionReviewVersions")));
    errors
}

/// A name that nobody else has: that of a domain, and of one in it.
fn name(name: &str, path: &Path) -> Option<FieldError> {
    let wrong = dns1123_subdomain(name);
    if name.is_empty() {
        Some(FieldError::required(path, ""))
    } else if !wrong.is_empty() {
        Some(FieldError::invalid(path, name, &wrong.join(",")))
    } else {
        let detail = "should be a domain with at least three segments separated by dots";
        (name.split('.').count() < 3).then(|| FieldError::invalid(path, name, detail))
    }
}

/// A rule about objects of any name.
fn named(rule: &RuleWithOperations) -> NamedRuleWithOperations {
    let rule = rule.clone();
    NamedRuleWithOperations {
        api_groups: rule.api_groups,
        api_versions: rule.api_versions,
        operations: rule.operations,
        resource_names: None,
        resources: rule.resources,
        scope: rule.scope,
    }
}

fn side_effects(given: &str, known: &[&str], path: &Path) -> Option<FieldError> {
    match given {
        "" => Some(FieldError::required(path, &format!("must specify one of {}", known.join(", ")))),
        given if known.contains(&given) => None,
        other => Some(FieldError::not_supported(path, other, known)),
    }
}
