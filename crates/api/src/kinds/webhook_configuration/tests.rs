//! Webhook configurations case by case as upstream's tests (validation_test.go), what is sent with what is said about it.

use json::{Value, json};

use super::{MUTATING, validation};
use crate::validation::field::Errors;

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
    let found = validation::mutating(&json::from_value(configuration.clone()).expect("a configuration"));
    let shown = |errors: &Errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let expected: Vec<String> = expected.iter().map(|why| format!("webhooks[0].{why}")).collect();
    assert_eq!(shown(&found), expected);
    if webhook["reinvocationPolicy"].is_null() {
        let found = validation::validating(&json::from_value(configuration).expect("a configuration"));
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
    let timeout = |s| format!("timeoutSeconds: Invalid value: {s}: the timeout value must be between 1 and 30 seconds");
    check(|w| w["timeoutSeconds"] = json!(0), &[&timeout(0)]);
    check(|w| w["timeoutSeconds"] = json!(31), &[&timeout(31)]);
    check(|w| w["timeoutSeconds"] = json!(-1), &[&timeout(-1)]);
    for seconds in [1, 15, 30] {
        check(|w| w["timeoutSeconds"] = json!(seconds), &[]);
    }
    let client = "clientConfig: Required value: exactly one of url or service is required";
    check(|w| w["clientConfig"] = json!({}), &[client]);
    let client = "clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: \
                  https://host[/path]";
    check(|w| w["clientConfig"] = json!({"url": "http://a"}), &[client]);
    let client = "clientConfig.service.name: Required value";
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
    let others =
        |list: &str, what: &str| format!(": Invalid value: {list}: if '*' is present, must not specify other {what}");
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
    let place = |client: Value, expected: &[&str]| check(|webhook| webhook["clientConfig"] = client.clone(), expected);
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
    let (scheme, host) = (url("", &format!("{scheme}{form}")), url("", &format!("{host}{form}")));
    let fragment = "backwards=thisis?html.index/port:host//:https";
    let fragment = url(fragment, "fragments are not permitted in the URL");
    place(json!({"url": "arg#backwards=thisis?html.index/port:host//:https"}), &[&scheme, &host, &fragment]);
    for (given, wrong, why) in [
        ("https://user:pass@example.com/webhook", "user:pass", "user information is not permitted in the URL"),
        ("https://harry.potter@example.com/", "harry.potter", "user information is not permitted in the URL"),
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
    path("/apis/foo.bar/v1alpha1/--bad", &format!("segment[3]: {SUBDOMAIN}"));
    path("//", "segment[0] may not be empty");
    path("/foo//bar/", "segment[1] may not be empty");
    path("/foo/bar//", "segment[2] may not be empty");
    for port in [0, 65536] {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        let expected = format!("clientConfig.service.port: Invalid value: {port}: {why}");
        place(service(json!({ "port": port })), &[&expected]);
    }
    let versions = |list: Value, expected: &[&str]| check(|w| w["admissionReviewVersions"] = list.clone(), expected);
    versions(json!(["v1beta1"]), &[]);
    versions(json!(["v1beta1", "invalid-version"]), &[]);
    let again = "admissionReviewVersions[2]: Invalid value: \"v1beta1\": duplicate version";
    versions(json!(["v1beta1", "v1", "v1beta1"]), &[again]);
    let none = "admissionReviewVersions: Invalid value: [\"invalidVersion\"]: must include at least one of v1, v1beta1";
    let label = "admissionReviewVersions[0]: Invalid value: \"invalidVersion\": a DNS-1035 label must consist of lower case \
                 alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character \
                 (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    versions(json!(["invalidVersion"]), &[label, none]);
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
                         and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn shown(errors: &Errors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Several webhooks that are right but for what the changes do to them, in both kinds.
fn all(changes: &[Value], expected: &[&str]) {
    let configuration = of(changes);
    let found = validation::mutating(&json::from_value(configuration.clone()).expect("a configuration"));
    assert_eq!(shown(&found), expected);
    let found = validation::validating(&json::from_value(configuration).expect("a configuration"));
    assert_eq!(shown(&found), expected);
}

/// A configuration of webhooks that have these fields instead of the usual ones.
fn of(changes: &[Value]) -> Value {
    let webhooks: Vec<Value> = changes
        .iter()
        .map(|change| {
            let mut webhook = webhook();
            change.as_object().into_iter().flatten().for_each(|(field, value)| webhook[&**field] = value.clone());
            webhook
        })
        .collect();
    json!({"metadata": {"name": "config"}, "webhooks": webhooks})
}

#[test]
fn names_are_those_of_domains_and_given_once() {
    let name = |name: &str| json!({ "name": name });
    let short = "webhooks[1].name: Invalid value: \"k8s.io\": should be a domain with at least three segments separated by \
                 dots";
    all(&[name("webhook.k8s.io"), name("k8s.io"), name("")], &[short, "webhooks[2].name: Required value"]);
    let twice = "webhooks[1].name: Duplicate value: \"webhook.k8s.io\"";
    all(&[name("webhook.k8s.io"), name("webhook.k8s.io")], &[twice]);
    // Two that have none are not the same.
    all(&[name(""), name("")], &["webhooks[0].name: Required value", "webhooks[1].name: Required value"]);
}

#[test]
fn conditions_have_names_and_are_of_the_right_type() {
    let conditions = |list: &[(&str, &str)]| {
        let list: Vec<Value> =
            list.iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect();
        json!({ "matchConditions": list })
    };
    let place = |webhook: usize, condition: usize, what: &str| {
        format!("webhooks[{webhook}].matchConditions[{condition}].{what}")
    };
    let check = |changes: &[Value], expected: &[String]| {
        let names = (0..changes.len()).map(|i| json!(format!("w{i}.k8s.io")));
        let changes: Vec<Value> = changes
            .iter()
            .zip(names)
            .map(|(change, name)| {
                let mut change = change.clone();
                change["name"] = name;
                change
            })
            .collect();
        all(&changes, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let nameless = |webhook, condition| place(webhook, condition, "name: Required value");
    check(&[conditions(&[("", "true")])], &[nameless(0, 0)]);
    let both = [conditions(&[("", "true"), ("", "true")]), conditions(&[("", "true")])];
    check(&both, &[nameless(0, 0), nameless(0, 1), nameless(1, 0)]);
    let unqualified = |webhook, given: &str| {
        let rule = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                    character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
        place(webhook, 0, &format!("name: Invalid value: {given:?}: {rule}"))
    };
    check(&[conditions(&[("-hello", "true")])], &[unqualified(0, "-hello")]);
    let both = [conditions(&[(".io", "true"), ("thing.test.com", "true")]), conditions(&[("some name", "true")])];
    check(&both, &[unqualified(0, ".io"), unqualified(1, "some name")]);
    check(&[conditions(&[("webhook.k8s.io", "")])], &[place(0, 0, "expression: Required value")]);
    check(&[conditions(&[("webhook.k8s.io", "  ")])], &[place(0, 0, "expression: Required value")]);
    let twice = place(0, 1, "name: Duplicate value: \"webhook.k8s.io\"");
    check(&[conditions(&[("webhook.k8s.io", "true"), ("webhook.k8s.io", "true")])], &[twice]);
    check(&[conditions(&[("webhook.k8s.io", "true")]), conditions(&[("webhook.k8s.io", "true")])], &[]);
    let kind = place(0, 0, "expression: Invalid value: \"6\": must evaluate to bool but got int");
    check(&[conditions(&[("webhook.k8s.io", "6")])], &[kind]);
    let unknown = "expression: Invalid value: \"params.x\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' \
                   (in container '')\n | params.x\n | ^";
    check(&[conditions(&[("webhook.k8s.io", "params.x")])], &[place(0, 0, unknown)]);
    let names: Vec<String> = (0..65).map(|i| format!("test{i}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "true")).collect();
    check(&[conditions(&many)], &["webhooks[0].matchConditions: Too many: 65: must have at most 64 items".to_owned()]);
    check(&[conditions(&many[..64])], &[]);
    // The text is shown without the blanks around it.
    let broken =
        json!({"metadata": {"name": "c"}, "webhooks": of(&[conditions(&[("a", "object.x in [1, 2, ")])])["webhooks"]});
    let found = shown(&validation::mutating(&json::from_value(broken).expect("a configuration")));
    let begins = "webhooks[0].matchConditions[0].expression: Invalid value: \"object.x in [1, 2,\": compilation failed: ERROR: \
                  <input>:1:19: Syntax error";
    assert!(found.len() == 1 && found[0].starts_with(begins), "{found:?}");
}

#[test]
fn a_change_keeps_the_sorts_of_faults_that_there_were() {
    let check = |old: &[Value], new: &[Value], expected: &[&str]| {
        let (old, new) = (of(old), of(new));
        let read = |value: &Value| json::from_value(value.clone()).expect("a configuration");
        assert_eq!(shown(&validation::mutating_update(&read(&new), &read(&old))), expected, "{old} {new}");
        let read = |value: &Value| json::from_value(value.clone()).expect("a configuration");
        assert_eq!(shown(&validation::validating_update(&read(&new), &read(&old))), expected, "{old} {new}");
    };
    let reviews = |list: Value| json!({ "admissionReviewVersions": list });
    check(&[reviews(json!(["v1"]))], &[reviews(json!(["v1beta1"]))], &[]);
    check(&[reviews(json!(["invalid-v0"]))], &[reviews(json!(["invalid-v1", "invalid-v2"]))], &[]);
    let none = "webhooks[0].admissionReviewVersions: Invalid value: [\"invalid-v1\"]: must include at least one of v1, v1beta1";
    check(&[reviews(json!(["v1beta1", "invalid-v1"]))], &[reviews(json!(["invalid-v1"]))], &[none]);
    check(&[reviews(json!([]))], &[reviews(json!(["invalid-v1"]))], &[none]);
    let needed = "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1";
    check(&[reviews(json!(["invalid-v0"]))], &[reviews(json!([]))], &[needed]);
    let name = |name: &str| json!({ "name": name });
    let twice = "webhooks[1].name: Duplicate value: \"webhook.k8s.io\"";
    check(&[name("webhook.k8s.io")], &[name("webhook.k8s.io"), name("webhook.k8s.io")], &[twice]);
    let both = [name("webhook.k8s.io"), name("webhook.k8s.io")];
    check(&both, &both, &[]);
    let effects = |effects: &str| json!({ "sideEffects": effects });
    let unknown =
        "webhooks[0].sideEffects: Unsupported value: \"Unknown\": supported values: \"None\", \"NoneOnDryRun\"";
    check(&[effects("None")], &[effects("Unknown")], &[unknown]);
    check(&[effects("Unknown")], &[effects("Unknown")], &[]);
    check(&[effects("Unknown")], &[effects("Some")], &[]);
    let other = "webhooks[0].sideEffects: Unsupported value: \"other\": supported values: \"None\", \"NoneOnDryRun\", \"Some\", \
                 \"Unknown\"";
    check(&[effects("Unknown")], &[effects("other")], &[other]);
    let absent = "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun, Some, Unknown";
    check(&[effects("Unknown")], &[effects("")], &[absent]);
    let condition = |expression: &str| json!({"matchConditions": [{"name": "checkStorage", "expression": expression}]});
    check(&[condition("test() == true")], &[condition("test() == true")], &[]);
    let unknown = "webhooks[0].matchConditions[0].expression: Invalid value: \"test() == true\": compilation failed: ERROR: \
                   <input>:1:5: undeclared reference to 'test' (in container '')\n | test() == true\n | ....^";
    check(&[condition("true")], &[condition("test() == true")], &[unknown]);
    let selector = |value: &str| {
        let expression = json!({"key": "a", "operator": "In", "values": [value]});
        json!({"objectSelector": {"matchExpressions": [expression]}})
    };
    check(&[selector("-1")], &[selector("-2")], &[]);
    let value = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
                 with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
                 '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    let place = "webhooks[0].objectSelector.matchExpressions[0].values[0]";
    check(&[selector("1")], &[selector("-2")], &[&format!("{place}: Invalid value: \"-2\": {value}")]);
}

#[test]
fn what_is_left_out_has_upstreams_defaults() {
    let rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
    let client = json!({"service": {"namespace": "n", "name": "s"}});
    let hook = json!({"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": client, "rules": [rule]});
    let configuration = json!({"metadata": {"name": "c"}, "webhooks": [hook]});
    let mut configuration = json::from_value(configuration).expect("a configuration");
    (MUTATING.default.expect("it has some"))(&mut configuration);
    let hook = &json::to_value(&configuration).expect("it is JSON")["webhooks"][0];
    let mut expected = json!({"failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {},
        "objectSelector": {}, "timeoutSeconds": 10, "reinvocationPolicy": "Never"});
    for field in ["name", "sideEffects", "admissionReviewVersions", "clientConfig", "rules"] {
        expected[field] = hook[field].clone();
    }
    assert_eq!(*hook, expected);
    assert_eq!((&hook["rules"][0]["scope"], &hook["clientConfig"]["service"]["port"]), (&json!("*"), &json!(443)));
}
