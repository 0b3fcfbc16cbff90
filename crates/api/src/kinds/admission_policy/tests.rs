//! Validating policies and their bindings case by case as upstream's tests (validation_test.go), what is sent with what is said
//! about it; and the tables of what both sorts of policies share.

use json::{Value, json};

use super::mutating_tests as mutating;
use super::validation::{binding, policy, policy_update};
use crate::validation::field::Errors;

fn shown(errors: Errors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// The spec of a policy that is right.
fn right() -> Value {
    let rule = json!({"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "scope": "*",
        "resources": ["deployments"]});
    let constraints = json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
        "resourceRules": [rule]});
    json!({"failurePolicy": "Fail", "matchConstraints": constraints,
        "validations": [{"expression": "object.spec.replicas < 5"}]})
}

/// A binding that is right but for what the change does to it.
fn of_binding(change: impl Fn(&mut Value)) -> Vec<String> {
    let spec = json!({"policyName": "xyzlimit-scale.example.com", "validationActions": ["Deny"],
        "paramRef": {"name": "xyzlimit-scale-setting.example.com", "parameterNotFoundAction": "Deny"},
        "matchResources": {"matchPolicy": "Exact", "namespaceSelector": {}, "objectSelector": {}}});
    let mut object = json!({"metadata": {"name": "config"}, "spec": spec});
    change(&mut object["spec"]);
    shown(binding(&json::from_value(object).expect("a binding")))
}

/// A policy that is right but for what the change does to it.
fn of_policy(change: impl Fn(&mut Value)) -> Vec<String> {
    let mut object = json!({"metadata": {"name": "replicas.example.com"}, "spec": right()});
    change(&mut object["spec"]);
    shown(policy(&json::from_value(object).expect("a policy")))
}

#[test]
fn policies_are_checked() {
    let check = |change: fn(&mut Value), expected: &[&str]| assert_eq!(of_policy(change), expected);
    check(|_| {}, &[]);
    check(
        |s| s["failurePolicy"] = json!("Never"),
        &["spec.failurePolicy: Unsupported value: \"Never\": supported values: \"Fail\", \"Ignore\""],
    );
    check(
        |s| s["matchConstraints"]["resourceRules"] = json!([]),
        &["spec.matchConstraints.resourceRules: Required value"],
    );
    check(
        |s| s["validations"] = json!([]),
        &[
            "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
            "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
        ],
    );
    check(
        |s| s["paramKind"] = json!({"apiVersion": "a/b/c", "kind": ""}),
        &[
            "spec.paramKind.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
            "spec.paramKind.kind: Required value",
        ],
    );
    check(
        |s| s["matchConstraints"]["resourceRules"][0]["resources"] = json!(["*", "pods", "a/*", "a/b"]),
        &[
            "spec.matchConstraints.resourceRules[0].resources[3]: Invalid value: \"a/b\": if 'a/*' is present, must not \
         specify a/b",
            "spec.matchConstraints.resourceRules[0].resources: Invalid value: [\"*\",\"pods\",\"a/*\",\"a/b\"]: if '*' is \
         present, must not specify other resources without subresources",
        ],
    );
    check(
        |s| s["matchConstraints"]["resourceRules"][0]["operations"] = json!(["*", "READ"]),
        &[
            "spec.matchConstraints.resourceRules[0].operations: Invalid value: [\"*\",\"READ\"]: if '*' is present, must \
         not specify other operations",
            "spec.matchConstraints.resourceRules[0].operations[1]: Unsupported value: \"READ\": supported values: \"*\", \
         \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
        ],
    );
}

#[test]
fn expressions_are_compiled() {
    let check = |change: fn(&mut Value), expected: &[&str]| assert_eq!(of_policy(change), expected);
    check(
        |s| s["validations"][0]["expression"] = json!("object.x in [1, 2"),
        &["spec.validations[0].expression: Invalid value: \"object.x in [1, 2\": compilation failed: ERROR: \
         <input>:1:18: Syntax error: mismatched input '<EOF>' expecting ']'\n | object.x in [1, 2\n | .................^"],
    );
    check(
        |s| s["validations"][0]["expression"] = json!("object.x"),
        &["spec.validations[0].expression: Invalid value: \"object.x\": must evaluate to bool but got dyn"],
    );
    check(
        |s| s["validations"][0]["expression"] = json!("params.x == 1"),
        &["spec.validations[0].expression: Invalid value: \"params.x == 1\": compilation failed: ERROR: <input>:1:1: \
         undeclared reference to 'params' (in container '')\n | params.x == 1\n | ^"],
    );
    check(
        |s| s["validations"][0]["messageExpression"] = json!("1"),
        &["spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string but got int"],
    );
    check(
        |s| s["validations"][0]["message"] = json!("a\nb"),
        &["spec.validations[0].message: Invalid value: \"a\\nb\": message must not contain line breaks"],
    );
    check(
        |s| s["validations"][0]["reason"] = json!("Other"),
        &["spec.validations[0].reason: Unsupported value: \"Other\": supported values: \"Forbidden\", \"Invalid\", \
         \"RequestEntityTooLarge\""],
    );
    check(
        |s| {
            s["variables"] = json!([{"name": "n", "expression": "object.spec.replicas"},
                {"name": "m", "expression": "int(variables.n) + 1"}]);
            s["validations"] = json!([{"expression": "variables.m < 5", "messageExpression": "string(variables.m)"}]);
        },
        &[],
    );
    check(
        |s| {
            s["variables"] =
                json!([{"name": "in", "expression": "variables.later"}, {"name": "later", "expression": "1"}])
        },
        &[
            "spec.variables[0].name: Invalid value: \"in\": name is not a valid CEL identifier",
            "spec.variables[0].expression: Invalid value: \"variables.later\": compilation failed: ERROR: <input>:1:1: \
         undeclared reference to 'variables' (in container '')\n | variables.later\n | ^",
        ],
    );
    check(
        |s| s["matchConditions"] = json!([{"name": "a", "expression": "true"}, {"name": "a", "expression": " "}]),
        &["spec.matchConditions[1].expression: Required value", "spec.matchConditions[1].name: Duplicate value: \"a\""],
    );
    check(
        |s| {
            s["auditAnnotations"] =
                json!([{"key": "k", "valueExpression": "'v'"}, {"key": "k", "valueExpression": "1"}])
        },
        &[
            "spec.auditAnnotations[1].valueExpression: Invalid value: \"1\": must evaluate to one of [string null_type] but got \
         int",
            "spec.auditAnnotations[1].key: Duplicate value: \"k\"",
        ],
    );
}

#[test]
fn bindings_are_checked() {
    let check = |spec: Value, expected: &[&str]| {
        let object = json!({"metadata": {"name": "b"}, "spec": spec});
        assert_eq!(shown(binding(&json::from_value(object).expect("a binding"))), expected);
    };
    check(json!({"policyName": "p", "validationActions": ["Deny", "Audit"]}), &[]);
    check(
        json!({"policyName": "", "validationActions": ["Deny", "Warn", "Warn", "Stop"]}),
        &[
            "spec.policyName: Required value",
            "spec.validationActions[2]: Duplicate value: \"Warn\"",
            "spec.validationActions[3]: Unsupported value: \"Stop\": supported values: \"Audit\", \"Deny\", \"Warn\"",
            "spec.validationActions: Invalid value: [\"Deny\",\"Warn\",\"Warn\",\"Stop\"]: must not contain both Deny and \
         Warn (repeating the same validation failure information in the API response and headers serves no purpose)",
        ],
    );
    check(
        json!({"policyName": "p", "validationActions": [], "paramRef": {"name": "a", "selector": {}}}),
        &[
            "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.parameterNotFoundAction: Required value",
            "spec.validationActions: Required value: at least one validation action is required",
        ],
    );
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
                         and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, \
                     and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
                     '[a-z]([-a-z0-9]*[a-z0-9])?')";
const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

#[test]
fn params_are_of_a_kind_that_can_be() {
    let check = |kind: Value, expected: &[&str]| {
        let expected: Vec<String> = expected.iter().map(|why| format!("spec.paramKind.{why}")).collect();
        assert_eq!(of_policy(|s| s["paramKind"] = kind.clone()), expected, "{kind}");
        assert_eq!(mutating::of_policy(|s| s["paramKind"] = kind.clone()), expected, "{kind}");
    };
    let of = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind});
    check(of("test.example.com/v1", "Example"), &[]);
    check(of("v1", "ConfigMap"), &[]);
    let version = |wrong: &str, why: &str| format!("apiVersion: Invalid value: \"{wrong}\": {why}");
    check(of("test.example.com", "Example"), &[&version("test.example.com", LABEL)]);
    check(of("test.example.com/v1", ""), &["kind: Required value"]);
    check(of("", "Example"), &["apiVersion: Required value"]);
    check(of("test.example.com/!!!", "Example"), &[&version("!!!", LABEL)]);
    check(of("!!!/v1", "ReplicaLimit"), &[&version("!!!", SUBDOMAIN)]);
    check(of("a.com/", "Example"), &[&version("a.com/", "version must be specified")]);
    let kind = format!("kind: Invalid value: \"a b\": may have mixed case, but should otherwise match: {LABEL}");
    check(of("v1", "a b"), &[&kind]);
}

/// The rules of what a policy or its binding is about: each case in all three places of both sorts.
#[test]
fn rules_say_what_they_are_about() {
    let check = |fields: Value, expected: &[&str]| {
        let mut rule = json!({"operations": ["CREATE"], "apiGroups": ["a"], "apiVersions": ["a"], "resources": ["a"]});
        fields.as_object().into_iter().flatten().for_each(|(field, value)| rule[&**field] = value.clone());
        let at = |place: &str| expected.iter().map(|why| format!("spec.{place}[0].{why}")).collect::<Vec<_>>();
        let found = of_policy(|s| s["matchConstraints"]["resourceRules"] = json!([rule]));
        assert_eq!(found, at("matchConstraints.resourceRules"), "{fields}");
        let found = of_policy(|s| s["matchConstraints"]["excludeResourceRules"] = json!([rule]));
        assert_eq!(found, at("matchConstraints.excludeResourceRules"), "{fields}");
        let found = of_binding(|s| s["matchResources"]["resourceRules"] = json!([rule]));
        assert_eq!(found, at("matchResources.resourceRules"), "{fields}");
        // Which operations a mutating policy has beside that is a rule of its own.
        let shared = |found: Vec<String>| {
            found.into_iter().filter(|why| !why.contains(".resourceRules.operations: ")).collect::<Vec<_>>()
        };
        let found = shared(mutating::of_policy(|s| s["matchConstraints"]["resourceRules"] = json!([rule])));
        assert_eq!(found, at("matchConstraints.resourceRules"), "{fields}");
        let found = mutating::of_policy(|s| s["matchConstraints"]["excludeResourceRules"] = json!([rule]));
        assert_eq!(found, at("matchConstraints.excludeResourceRules"), "{fields}");
        let found = shared(mutating::of_binding(|s| s["matchResources"]["resourceRules"] = json!([rule])));
        assert_eq!(found, at("matchResources.resourceRules"), "{fields}");
    };
    check(json!({}), &[]);
    for field in ["operations", "apiGroups", "apiVersions", "resources"] {
        check(json!({ field: [] }), &[&format!("{field}: Required value")]);
        check(json!({ field: null }), &[&format!("{field}: Required value")]);
    }
    let operation = |at: usize, wrong: &str| {
        let known = "supported values: \"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"";
        format!("operations[{at}]: Unsupported value: \"{wrong}\": {known}")
    };
    check(json!({"operations": ["CREATE", ""]}), &[&operation(1, "")]);
    check(json!({"operations": ["PATCH"]}), &[&operation(0, "PATCH")]);
    let mixed = "operations: Invalid value: [\"CREATE\",\"*\"]: if '*' is present, must not specify other operations";
    check(json!({"operations": ["CREATE", "*"]}), &[mixed]);
    check(json!({"resources": ["*", "a/b", "a/*", "*/b"]}), &[]);
    let mixed = "resources: Invalid value: [\"*\",\"a\"]: if '*' is present, must not specify other resources without subresources";
    check(json!({"resources": ["*", "a"]}), &[mixed]);
    let covered = "resources[1]: Invalid value: \"a/x\": if 'a/*' is present, must not specify a/x";
    check(json!({"resources": ["a/*", "a/x"]}), &[covered]);
    check(json!({"resources": ["a/*", "a"]}), &[]);
    let covered = "resources[1]: Invalid value: \"x/a\": if '*/a' is present, must not specify x/a";
    check(json!({"resources": ["*/a", "x/a"]}), &[covered]);
    let mixed = "resources: Invalid value: [\"*/*\",\"a\"]: if '*/*' is present, must not specify other resources";
    check(json!({"resources": ["*/*", "a"]}), &[mixed]);
    check(json!({"resourceNames": ["/./."]}), &["resourceNames[0]: Invalid value: \"/./.\": may not contain '/'"]);
    check(json!({"resourceNames": ["test", "test"]}), &["resourceNames[1]: Duplicate value: \"test\""]);
}

#[test]
fn constraints_are_there_and_complete() {
    let check = |change: &dyn Fn(&mut Value), expected: &[&str]| {
        assert_eq!(of_policy(|spec| change(spec)), expected);
        assert_eq!(mutating::of_policy(|spec| change(spec)), expected);
    };
    check(&|s| s["failurePolicy"] = Value::Null, &["spec.failurePolicy: Required value"]);
    check(&|s| s["matchConstraints"] = Value::Null, &["spec.matchConstraints: Required value"]);
    let lists = ["resourceRules", "matchPolicy", "namespaceSelector", "objectSelector"];
    let missing = |field: &str| format!("spec.matchConstraints.{field}: Required value");
    let expected = [1, 2, 3, 0].map(|at: usize| missing(lists[at]));
    let expected = expected.each_ref().map(String::as_str);
    check(&|s| s["matchConstraints"] = json!({}), &expected);
    let other = "matchPolicy: Unsupported value: \"other\": supported values: \"Equivalent\", \"Exact\"";
    check(&|s| s["matchConstraints"]["matchPolicy"] = json!("other"), &[&format!("spec.matchConstraints.{other}")]);
    let found = of_binding(|s| s["matchResources"]["matchPolicy"] = json!("other"));
    assert_eq!(found, [format!("spec.matchResources.{other}")]);
    let rule = json!({"resourceNames": ["/./."]});
    let found = of_policy(|s| s["matchConstraints"]["resourceRules"] = json!([rule]));
    let place = |what: &str| format!("spec.matchConstraints.resourceRules[0].{what}");
    let mut expected = vec![place("resourceNames[0]: Invalid value: \"/./.\": may not contain '/'")];
    expected.extend(
        ["operations", "apiGroups", "apiVersions", "resources"].map(|f| place(&format!("{f}: Required value"))),
    );
    assert_eq!(found, expected);
}

#[test]
fn texts_of_validations_are_checked() {
    let check = |validation: Value, expected: &[&str]| {
        let expected: Vec<String> = expected.iter().map(|why| format!("spec.validations[0].{why}")).collect();
        assert_eq!(of_policy(|s| s["validations"] = json!([validation])), expected, "{validation}");
    };
    check(json!({"expression": ""}), &["expression: Required value: expression is not specified"]);
    check(json!({"expression": " "}), &["expression: Required value: expression is not specified"]);
    let broken = |begin: &str, validation: Value| {
        let found = of_policy(|s| s["validations"] = json!([validation]));
        assert!(found.len() == 1 && found[0].starts_with(begin), "{found:?}");
    };
    // Of these the blank at the end counts.
    let text = "object.x in [1, 2, ";
    let said = format!("Invalid value: \"{text}\": compilation failed: ERROR: <input>:1:20: Syntax error: ");
    broken(&format!("spec.validations[0].expression: {said}"), json!({ "expression": text }));
    let message = json!({"expression": "true", "messageExpression": text});
    broken(&format!("spec.validations[0].messageExpression: {said}"), message);
    let kind = "messageExpression: Invalid value: \"0 == 0\": must evaluate to string but got bool";
    check(json!({"expression": "true", "messageExpression": "0 == 0"}), &[kind]);
    let blank = "messageExpression: Invalid value: \" \": must be non-empty if specified";
    check(json!({"expression": "true", "messageExpression": " "}), &[blank]);
    let blank = "message: Invalid value: \" \": message must be non-empty if specified";
    check(json!({"expression": "true", "message": " "}), &[blank]);
    check(json!({"expression": "true", "message": "a\n"}), &[]);
    let reason =
        "reason: Unsupported value: \"other\": supported values: \"Forbidden\", \"Invalid\", \"RequestEntityTooLarge\"";
    check(json!({"expression": "true", "reason": "other"}), &[reason]);
}

#[test]
fn audit_annotations_are_named_and_short() {
    let check = |name: &str, annotations: Value, expected: &[&str]| {
        let mut object = json!({"metadata": {"name": name}, "spec": right()});
        object["spec"]["auditAnnotations"] = annotations;
        let found = shown(policy(&json::from_value(object).expect("a policy")));
        let expected: Vec<String> = expected.iter().map(|why| format!("spec.auditAnnotations{why}")).collect();
        assert_eq!(found, expected, "{name}");
    };
    let one = |key: &str, text: &str| json!({"key": key, "valueExpression": text});
    check("config", json!([one("@", "'v'")]), &[&format!("[0].key: Invalid value: \"config/@\": {NAME_PART}")]);
    check("config", json!([one("a", "'1'"), one("a", "'2'")]), &["[1].key: Duplicate value: \"a\""]);
    check(
        "nope!",
        json!([one("key", "'v'")]),
        &[&format!("[0].key: Invalid value: \"nope!/key\": prefix part {SUBDOMAIN}")],
    );
    let long = format!("this-is-a-long-name-for-an-audit-annotation-key-{}", "x".repeat(26));
    let policy = format!("this-is-a-long-name-for-a-admission-policy-{}", "x".repeat(37));
    let said = format!("[0].key: Invalid value: \"{policy}/{long}\": name part must be no more than 63 characters");
    check(&policy, json!([one(&long, "'v'")]), &[&said]);
    check("", json!([one("key", "'v'")]), &["[0].key: Invalid value: \"key\": requires metadata.name be non-empty"]);
    let kind = "[0].valueExpression: Invalid value: \"true\": must evaluate to one of [string null_type] but got bool";
    check("config", json!([one("something", "true")]), &[kind]);
    check("config", json!([one("something", "null")]), &[]);
    let unknown = "[0].valueExpression: Invalid value: \" value \": compilation failed: ERROR: <input>:1:1: undeclared reference to \
                   'value' (in container '')\n | value\n | ^";
    check("config", json!([one("something", " value ")]), &[unknown]);
    check(
        "config",
        json!([one("something", " ")]),
        &["[0].valueExpression: Required value: valueExpression is not specified"],
    );
    let large = format!("'{}'", "x".repeat(5 * 1024 - 1));
    check(
        "config",
        json!([one("a", &large)]),
        &["[0].valueExpression: Required value: must not exceed 5120 bytes in length"],
    );
    check("config", json!([one("a", &large[1..].replacen('x', "'", 1))]), &[]);
}

#[test]
fn conditions_may_ask_for_params_where_there_are_any() {
    let conditions = json!([{"name": "hasParams", "expression": "params.foo == \"okay\""}]);
    let unknown = "spec.matchConditions[0].expression: Invalid value: \"params.foo == \\\"okay\\\"\": compilation failed: ERROR: \
                   <input>:1:1: undeclared reference to 'params' (in container '')\n | params.foo == \"okay\"\n | ^";
    let of = |params: bool, conditions: &Value| {
        let mut spec = right();
        spec["matchConditions"] = conditions.clone();
        if params {
            spec["paramKind"] = json!({"apiVersion": "foobar/v1alpha1", "kind": "Foo"});
        }
        json!({"metadata": {"name": "config"}, "spec": spec})
    };
    let read = |value: &Value| json::from_value(value.clone()).expect("a policy");
    assert_eq!(shown(policy(&read(&of(true, &conditions)))), [""; 0]);
    assert_eq!(shown(policy(&read(&of(false, &conditions)))), [unknown]);
    let nameless = json!([{"name": "", "expression": "true"}]);
    assert_eq!(shown(policy(&read(&of(false, &nameless)))), ["spec.matchConditions[0].name: Required value"]);
    let update = |new: &Value, old: &Value| shown(policy_update(&read(new), &read(old)));
    assert_eq!(update(&of(false, &conditions), &of(true, &conditions)), [unknown]);
    let mut new = of(false, &conditions);
    new["spec"]["failurePolicy"] = json!("Ignore");
    new["spec"]["validations"][0]["expression"] = json!("object.x < 50");
    assert_eq!(update(&new, &of(false, &conditions)), [""; 0], "what does not change is not checked again");
    assert_eq!(update(&of(false, &conditions), &of(false, &json!([]))), [unknown]);
    let mut broken = of(false, &json!([]));
    broken["spec"]["validations"] = json!([{"expression": "test()"}]);
    assert_eq!(update(&broken, &broken).len(), 1, "other expressions are checked with each change");
    let empty = json!({"metadata": {"name": "!!!"}, "spec": {}});
    assert_eq!(update(&of(false, &json!([])), &empty), [""; 0]);
}

#[test]
fn bindings_name_a_policy_and_actions() {
    let check = |change: &dyn Fn(&mut Value), expected: &[&str]| assert_eq!(of_binding(|spec| change(spec)), expected);
    check(&|_| {}, &[]);
    let both = |change: &dyn Fn(&mut Value), expected: &[&str]| {
        check(change, expected);
        assert_eq!(mutating::of_binding(|spec| change(spec)), expected);
    };
    both(&|s| s["policyName"] = json!(""), &["spec.policyName: Required value"]);
    both(&|s| s["policyName"] = json!("!!!!"), &[&format!("spec.policyName: Invalid value: \"!!!!\": {SUBDOMAIN}")]);
    check(
        &|s| s["validationActions"] = json!(["Deny", "Deny"]),
        &["spec.validationActions[1]: Duplicate value: \"Deny\""],
    );
    let illegal =
        "spec.validationActions[0]: Unsupported value: \"illegal\": supported values: \"Audit\", \"Deny\", \"Warn\"";
    check(&|s| s["validationActions"] = json!(["illegal"]), &[illegal]);
    let none = "spec.validationActions: Required value: at least one validation action is required";
    check(&|s| s["validationActions"] = json!([]), &[none]);
    let missing = "spec.paramRef: Required value: one of name or selector must be specified";
    both(&|s| s["paramRef"] = json!({"parameterNotFoundAction": "Deny"}), &[missing]);
    let action =
        "spec.paramRef.parameterNotFoundAction: Unsupported value: \"Warn\": supported values: \"Deny\", \"Allow\"";
    both(&|s| s["paramRef"]["parameterNotFoundAction"] = json!("Warn"), &[action]);
    let action = "spec.paramRef.parameterNotFoundAction: Required value";
    both(&|s| s["paramRef"]["parameterNotFoundAction"] = Value::Null, &[action]);
    let slash = "spec.paramRef.name: Invalid value: \"a/b\": may not contain '/'";
    both(&|s| s["paramRef"]["name"] = json!("a/b"), &[slash]);
}
