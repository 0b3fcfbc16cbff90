//! The validation of webhook configurations.
//! Upstream counterpart: pkg/apis/admissionregistration/validation.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, NamedRuleWithOperations, RuleWithOperations,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kinds::admission_policy::{expressions::match_conditions, validation::rule};
use crate::kinds::rollout::validate_selector;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::dns1123_subdomain;
use crate::validation::webhook::{Service, client, review_versions};

/// The versions of AdmissionReview.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
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

pub(super) fn mutating(configuration: &MutatingWebhookConfiguration) -> Errors {
    all(configuration.webhooks.iter().flatten().map(Webhook::from))
}

pub(super) fn validating(configuration: &ValidatingWebhookConfiguration) -> Errors {
    all(configuration.webhooks.iter().flatten().map(Webhook::from))
}

fn all<'w>(webhooks: impl Iterator<Item = Webhook<'w>>) -> Errors {
    let (mut errors, mut names) = (Errors::new(), Vec::new());
    for (i, webhook) in webhooks.enumerate() {
        let path = Path::new("webhooks").index(i);
        errors.extend(one(&webhook, &path));
        if webhook.name.is_empty() {
            continue;
        }
        if names.contains(&webhook.name) {
            errors.push(FieldError::duplicate(&path.child("name"), webhook.name));
        }
        names.push(webhook.name);
    }
    errors
}

fn one(webhook: &Webhook<'_>, path: &Path) -> Errors {
    let mut errors: Errors = name(webhook.name, &path.child("name")).into_iter().collect();
    for (i, given) in webhook.rules.iter().enumerate() {
        errors.extend(rule(&named(given), &path.child("rules").index(i)));
    }
    let words = [
        ("failurePolicy", webhook.failure_policy, ["Fail", "Ignore"]),
        ("matchPolicy", webhook.match_policy, ["Equivalent", "Exact"]),
        ("reinvocationPolicy", webhook.reinvocation_policy, ["IfNeeded", "Never"]),
    ];
    for (field, given, known) in words {
        let unknown = given.filter(|given| !known.contains(given));
        errors.extend(unknown.map(|given| FieldError::not_supported(&path.child(field), given, &known)));
    }
    errors.extend(side_effects(webhook.side_effects, &path.child("sideEffects")));
    if let Some(seconds) = webhook.timeout_seconds.filter(|seconds| !(1..=LONGEST_TIMEOUT).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(&path.child("timeoutSeconds"), seconds, detail));
    }
    for (field, selector) in webhook.selectors {
        errors.extend(selector.into_iter().flat_map(|given| validate_selector(given, &path.child(field))));
    }
    let service = webhook.client.service.as_ref().map(|service| Service {
        namespace: &service.namespace,
        name: &service.name,
        path: service.path.as_deref(),
        port: service.port,
    });
    errors.extend(client(webhook.client.url.as_deref(), service, &path.child("clientConfig")));
    errors.extend(match_conditions(webhook.conditions, false, &path.child("matchConditions")));
    let missing = format!("must specify one of {}", REVIEWS.join(", "));
    let place = path.child("admissionReviewVersions");
    errors.extend(review_versions(webhook.review_versions, &REVIEWS, &missing, &place));
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

fn side_effects(given: &str, path: &Path) -> Option<FieldError> {
    match given {
        "" => Some(FieldError::required(path, &format!("must specify one of {}", EFFECTS.join(", ")))),
        known if EFFECTS.contains(&known) => None,
        other => Some(FieldError::not_supported(path, other, &EFFECTS)),
    }
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn webhook() -> Value {
        json!({"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://a/b"}, "rules": [{"operations": ["CREATE"], "apiGroups": [""],
            "apiVersions": ["v1"], "resources": ["pods"], "scope": "*"}]})
    }

    /// The errors of a webhook that is right but for what the change does to it: in both kinds, unless it is about one.
    fn check(change: impl Fn(&mut Value), expected: &[&str]) {
        let mut webhook = webhook();
        change(&mut webhook);
        let configuration = json!({"metadata": {"name": "c"}, "webhooks": [webhook]});
        let found = mutating(&json::from_value(configuration.clone()).expect("a configuration"));
        let shown = |errors: &Errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let expected: Vec<String> = expected.iter().map(|why| format!("webhooks[0].{why}")).collect();
        assert_eq!(shown(&found), expected);
        if webhook["reinvocationPolicy"].is_null() {
            let found = validating(&json::from_value(configuration).expect("a configuration"));
            assert_eq!(shown(&found), expected);
        }
    }

    #[test]
    fn webhooks_are_checked() {
        check(|_| {}, &[]);
        check(|w| w["name"] = json!(""), &["name: Required value"]);
        let short = "name: Invalid value: \"a.b\": should be a domain with at least three segments separated by dots";
        check(|w| w["name"] = json!("a.b"), &[short]);
        let policy = "failurePolicy: Unsupported value: \"x\": supported values: \"Fail\", \"Ignore\"";
        check(|w| w["failurePolicy"] = json!("x"), &[policy]);
        let policy = "matchPolicy: Unsupported value: \"x\": supported values: \"Equivalent\", \"Exact\"";
        check(|w| w["matchPolicy"] = json!("x"), &[policy]);
        let policy = "reinvocationPolicy: Unsupported value: \"x\": supported values: \"IfNeeded\", \"Never\"";
        check(|w| w["reinvocationPolicy"] = json!("x"), &[policy]);
        let effects = "sideEffects: Required value: must specify one of None, NoneOnDryRun";
        check(|w| w["sideEffects"] = json!(""), &[effects]);
        let effects = "sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"";
        check(|w| w["sideEffects"] = json!("Some"), &[effects]);
        let timeout =
            |s| format!("timeoutSeconds: Invalid value: {s}: the timeout value must be between 1 and 30 seconds");
        check(|w| w["timeoutSeconds"] = json!(0), &[&timeout(0)]);
        check(|w| w["timeoutSeconds"] = json!(31), &[&timeout(31)]);
        let client = "clientConfig: Required value: exactly one of url or service is required";
        check(|w| w["clientConfig"] = json!({}), &[client]);
        let client = "clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: \
                      https://host[/path]";
        check(|w| w["clientConfig"] = json!({"url": "http://a"}), &[client]);
        let client = "clientConfig.service.name: Required value: service name is required";
        check(|w| w["clientConfig"] = json!({"service": {"namespace": "n", "name": ""}}), &[client]);
        let reviews = "admissionReviewVersions: Required value: must specify one of v1, v1beta1";
        check(|w| w["admissionReviewVersions"] = json!([]), &[reviews]);
        let reviews = "admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1";
        check(|w| w["admissionReviewVersions"] = json!(["v2"]), &[reviews]);
        let operations = "rules[0].operations[0]: Unsupported value: \"READ\": supported values: \"*\", \"CONNECT\", \
                          \"CREATE\", \"DELETE\", \"UPDATE\"";
        check(|w| w["rules"][0]["operations"] = json!(["READ"]), &[operations]);
        let condition = "matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool but got int";
        check(|w| w["matchConditions"] = json!([{"name": "a", "expression": "1"}]), &[condition]);
    }

    /// Upstream's cases about rules.
    #[test]
    fn rules_say_each_thing_once() {
        let check = |field: &str, list: Value, expected: &[&str]| {
            let shown: Vec<String> = expected.iter().map(|why| format!("rules[0].{field}{why}")).collect();
            let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
            super::tests::check(|webhook| webhook["rules"][0][field] = list.clone(), &shown);
        };
        for field in ["operations", "apiGroups", "apiVersions", "resources"] {
            check(field, json!([]), &[": Required value"]);
        }
        check("apiGroups", json!(["", "apps"]), &[]);
        check("apiVersions", json!([""]), &["[0]: Required value"]);
        check("resources", json!([""]), &["[0]: Required value"]);
        let others = |list: &str, what: &str| {
            format!(": Invalid value: {list}: if '*' is present, must not specify other {what}")
        };
        check("operations", json!(["CREATE", "*"]), &[&others("[\"CREATE\",\"*\"]", "operations")]);
        check("apiGroups", json!(["a", "*"]), &[&others("[\"a\",\"*\"]", "API groups")]);
        check("apiVersions", json!(["a", "*"]), &[&others("[\"a\",\"*\"]", "API versions")]);
        let alone = others("[\"*\",\"a\"]", "resources without subresources");
        check("resources", json!(["*", "a"]), &[&alone]);
        // Of resources without subresources the last one decides.
        check("resources", json!(["a", "*"]), &[]);
        check("resources", json!(["*", "a/b", "a/*", "*/c"]), &[]);
        let covered = "[1]: Invalid value: \"a/x\": if 'a/*' is present, must not specify a/x";
        check("resources", json!(["a/*", "a/x"]), &[covered]);
        check("resources", json!(["a/*", "a"]), &[]);
        let covered = "[1]: Invalid value: \"x/a\": if '*/a' is present, must not specify x/a";
        check("resources", json!(["*/a", "x/a"]), &[covered]);
        check("resources", json!(["*/*"]), &[]);
        let all = ": Invalid value: [\"*/*\",\"a\"]: if '*/*' is present, must not specify other resources";
        check("resources", json!(["*/*", "a"]), &[all]);
        let scope = ": Unsupported value: \"Other\": supported values: \"*\", \"Cluster\", \"Namespaced\"";
        check("scope", json!("Other"), &[scope]);
    }

    /// Upstream's cases about where a webhook is and what it understands.
    #[test]
    fn places_and_versions_are_checked() {
        let place =
            |client: Value, expected: &[&str]| check(|webhook| webhook["clientConfig"] = client.clone(), expected);
        let either = "clientConfig: Required value: exactly one of url or service is required";
        let service = |fields: Value| {
            let mut service = json!({"namespace": "ns", "name": "n"});
            fields.as_object().into_iter().flatten().for_each(|(field, value)| service[&**field] = value.clone());
            json!({ "service": service })
        };
        let mut both = service(json!({}));
        both["url"] = json!("https://a");
        place(both, &[either]);
        let form = "; desired format: https://host[/path]";
        let (scheme, host) = ("'https' is the only allowed URL scheme", "host must be specified");
        let url = |wrong: &str, why: &str| format!("clientConfig.url: Invalid value: \"{wrong}\": {why}");
        place(json!({"url": ""}), &[&url("", &format!("{scheme}{form}")), &url("", &format!("{host}{form}"))]);
        place(json!({"url": "https:///fancy/webhook"}), &[&url("", &format!("{host}{form}"))]);
        for (given, wrong, why) in [
            ("https://user:pass@example.com/webhook", "user:pass", "user information is not permitted in the URL"),
            ("https://example.com/webhook#bookmark", "bookmark", "fragments are not permitted in the URL"),
            ("https://example.com?arg=value", "arg=value", "query parameters are not permitted in the URL"),
        ] {
            place(json!({ "url": given }), &[&url(wrong, why)]);
        }
        place(service(json!({"path": "/apis/foo.bar/v1alpha1/"})), &[]);
        let path = |path: &str, why: &str| {
            let expected = format!("clientConfig.service.path: Invalid value: \"{path}\": {why}");
            place(service(json!({ "path": path })), &[&expected]);
        };
        path("foo/", "must start with a '/'");
        path("//", "segment[0] may not be empty");
        path("/foo//bar/", "segment[1] may not be empty");
        path("/foo/bar//", "segment[2] may not be empty");
        for port in [0, 65536] {
            let why = "port is not valid: must be between 1 and 65535, inclusive";
            let expected = format!("clientConfig.service.port: Invalid value: {port}: {why}");
            place(service(json!({ "port": port })), &[&expected]);
        }
        let versions =
            |list: Value, expected: &[&str]| check(|w| w["admissionReviewVersions"] = list.clone(), expected);
        versions(json!(["v1beta1", "invalid-version"]), &[]);
        let again = "admissionReviewVersions[2]: Invalid value: \"v1beta1\": duplicate version";
        versions(json!(["v1beta1", "v1", "v1beta1"]), &[again]);
        let none =
            "admissionReviewVersions: Invalid value: [\"invalidVersion\"]: must include at least one of v1, v1beta1";
        let label = "admissionReviewVersions[0]: Invalid value: \"invalidVersion\": a DNS-1035 label must consist of lower case \
                     alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character \
                     (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
        versions(json!(["invalidVersion"]), &[label, none]);
    }

    #[test]
    fn names_are_given_once() {
        let configuration = json!({"metadata": {"name": "c"}, "webhooks": [webhook(), webhook()]});
        let found = mutating(&json::from_value(configuration).expect("a configuration"));
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["webhooks[1].name: Duplicate value: \"a.example.com\""]);
    }
}
