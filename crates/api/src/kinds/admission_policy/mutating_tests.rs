//! Mutating policies and their bindings case by case as upstream's tests (validation_test.go), but for the tables that they
//! share with validating ones.

use json::{Value, json};

use super::mutating::{MUTATING_BINDING_V1ALPHA1, MUTATING_POLICY, binding, policy};
use crate::kind::Target;
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
    let expression = "Object{spec: Object.spec{replicas: object.spec.replicas + 1}}";
    json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never", "matchConstraints": constraints,
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]})
}

/// A policy that is right but for what the change does to it.
pub(super) fn of_policy(change: impl Fn(&mut Value)) -> Vec<String> {
    let mut object = json!({"metadata": {"name": "replicas.example.com"}, "spec": right()});
    change(&mut object["spec"]);
    shown(policy(&json::from_value(object).expect("a policy"), true))
}

/// A binding that is right but for what the change does to it.
pub(super) fn of_binding(change: impl Fn(&mut Value)) -> Vec<String> {
    let spec = json!({"policyName": "xyzlimit-scale.example.com",
        "paramRef": {"name": "xyzlimit-scale-setting.example.com", "parameterNotFoundAction": "Deny"},
        "matchResources": {"matchPolicy": "Exact", "namespaceSelector": {}, "objectSelector": {}}});
    let mut object = json!({"metadata": {"name": "config"}, "spec": spec});
    change(&mut object["spec"]);
    shown(binding(&json::from_value(object).expect("a binding")))
}

#[test]
fn policies_are_checked() {
    let check = |change: fn(&mut Value), expected: &[&str]| assert_eq!(of_policy(change), expected);
    check(|_| {}, &[]);
    check(
        |s| {
            s["failurePolicy"] = json!("Never");
            s["reinvocationPolicy"] = json!("Always");
            s["mutations"] = json!([]);
        },
        &[
            "spec.failurePolicy: Unsupported value: \"Never\": supported values: \"Fail\", \"Ignore\"",
            "spec.mutations: Required value: mutations must contain at least one item",
            "spec.reinvocationPolicy: Unsupported value: \"Always\": supported values: \"IfNeeded\", \"Never\"",
        ],
    );
    check(|s| s["reinvocationPolicy"] = json!(""), &["spec.reinvocationPolicy: Required value"]);
    check(
        |s| s["matchConstraints"]["resourceRules"] = json!([]),
        &["spec.matchConstraints.resourceRules: Required value"],
    );
    check(
        |s| s["matchConstraints"]["resourceRules"][0]["operations"] = json!(["CREATE", "DELETE"]),
        &["spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \
         \"CONNECT\", \"CREATE\", \"UPDATE\""],
    );
}

#[test]
fn mutations_are_of_their_type_and_compile() {
    let check = |mutation: Value, expected: &[&str]| {
        assert_eq!(of_policy(|s| s["mutations"] = json!([mutation.clone()])), expected, "{mutation}");
    };
    let patch = |text: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}});
    let apply = |text: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}});
    check(patch("[JSONPatch{op: 'remove', path: '/a/' + jsonpatch.escapeKey('b/c')}]"), &[]);
    check(patch("[JSONPatch{op: 'add', path: '/spec', value: Object.spec{replicas: 3}}, JSONPatch{op: 'test'}]"), &[]);
    check(json!({"patchType": ""}), &["spec.mutations[0].patchType: Required value"]);
    check(
        json!({"patchType": "Merge"}),
        &["spec.mutations[0].patchType: Unsupported value: \"Merge\": supported values: \"ApplyConfiguration\", \
         \"JSONPatch\""],
    );
    check(
        json!({"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}}),
        &[
            "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
            "spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when \
             patchType is JSONPatch",
        ],
    );
    check(
        json!({"patchType": "ApplyConfiguration", "jsonPatch": {"expression": "[]"}}),
        &[
            "spec.mutations[0].applyConfiguration: Required value: must be specified when patchType is \
             ApplyConfiguration",
            "spec.mutations[0].jsonPatch: Invalid value: \"{jsonPatch}\": must not be specified when patchType is \
             ApplyConfiguration",
        ],
    );
    check(apply(" "), &["spec.mutations[0].applyConfiguration.expression: Required value"]);
    let place = "spec.mutations[0].applyConfiguration.expression: Invalid value:";
    check(apply("'a'"), &[&format!("{place} \"'a'\": must evaluate to Object but got string")]);
    check(
        apply("Object.spec{}"),
        &[&format!("{place} \"Object.spec{{}}\": must evaluate to Object but got Object.spec")],
    );
    let place = "spec.mutations[0].jsonPatch.expression: Invalid value:";
    check(patch("[1]"), &[&format!("{place} \"[1]\": must evaluate to list(JSONPatch) but got list(int)")]);
    check(
        patch("missing"),
        &[&format!(
            "{place} \"missing\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'missing' (in \
             container '')\n | missing\n | ^"
        )],
    );
}

#[test]
fn variables_are_known_to_mutations_and_make_no_objects() {
    let with = |variable: &str| {
        of_policy(|s| {
            s["variables"] = json!([{"name": "n", "expression": variable}]);
            let expression = "[JSONPatch{op: 'add', path: '/spec/replicas', value: variables.n}]";
            s["mutations"] = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]);
        })
    };
    assert_eq!(with("object.spec.replicas + 1"), [""; 0]);
    let refused = with("Object{}");
    assert!(refused[0].contains("undeclared reference to 'Object' (in container '')"), "{refused:?}");
}

#[test]
fn bindings_are_checked() {
    let check = |spec: Value, expected: &[&str]| {
        let object = json!({"metadata": {"name": "b"}, "spec": spec});
        assert_eq!(shown(binding(&json::from_value(object).expect("a binding"))), expected);
    };
    check(json!({"policyName": "p"}), &[]);
    check(
        json!({"policyName": "", "paramRef": {"name": "a", "selector": {}}}),
        &[
            "spec.policyName: Required value",
            "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.parameterNotFoundAction: Required value",
        ],
    );
    let rule = json!({"operations": ["DELETE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
    let resources = json!({"matchPolicy": "Exact", "namespaceSelector": {}, "objectSelector": {},
        "resourceRules": [rule]});
    check(
        json!({"policyName": "p", "matchResources": resources}),
        &["spec.matchResources.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \
         \"CONNECT\", \"CREATE\", \"UPDATE\""],
    );
}

#[test]
fn the_first_version_refuses_for_missing_params_by_default() {
    let mut binding = json!({"spec": {"paramRef": {"name": "a"}}});
    (MUTATING_BINDING_V1ALPHA1.to_current)(&mut binding);
    assert_eq!(binding["spec"]["paramRef"]["parameterNotFoundAction"], "Deny");
    let allowed = json!({"spec": {"paramRef": {"name": "a", "parameterNotFoundAction": "Allow"}}});
    let mut binding = allowed.clone();
    (MUTATING_BINDING_V1ALPHA1.to_current)(&mut binding);
    assert_eq!(binding, allowed);
}

#[test]
fn conditions_are_checked_where_they_or_their_params_change() {
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
    let create = |new: &Value| shown(MUTATING_POLICY.validate_create.expect("a check")(&read(new)));
    assert_eq!(create(&of(true, &conditions)), [""; 0]);
    assert_eq!(create(&of(false, &conditions)), [unknown]);
    let nameless = json!([{"name": "", "expression": "true"}]);
    assert_eq!(create(&of(false, &nameless)), ["spec.matchConditions[0].name: Required value"]);
    let many: Vec<Value> = (0..65).map(|n| json!({"name": format!("c{n}"), "expression": "true"})).collect();
    let said = "spec.matchConditions: Too many: 65: must have at most 64 items";
    assert_eq!(create(&of(false, &json!(many))), [said]);
    let update = |new: &Value, old: &Value| {
        let (new, old) = (read(new), read(old));
        shown(MUTATING_POLICY.validate_update.expect("a check")(&new, &old, Target::Object))
    };
    assert_eq!(update(&of(false, &conditions), &of(true, &conditions)), [unknown]);
    let mut new = of(false, &conditions);
    new["spec"]["failurePolicy"] = json!("Ignore");
    new["spec"]["mutations"][0]["applyConfiguration"]["expression"] = json!("Object{}");
    assert_eq!(update(&new, &of(false, &conditions)), [""; 0], "what does not change is not checked again");
    assert_eq!(update(&of(false, &conditions), &of(false, &json!([]))), [unknown]);
    let mut broken = of(false, &json!([]));
    broken["spec"]["mutations"][0]["applyConfiguration"]["expression"] = json!("test()");
    assert_eq!(update(&broken, &broken).len(), 1, "other expressions are checked with each change");
    let empty = json!({"metadata": {"name": "!!!"}, "spec": {}});
    assert_eq!(update(&of(false, &json!([])), &empty), [""; 0]);
}
