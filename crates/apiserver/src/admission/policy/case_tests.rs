//! Upstream's cases about policies, beyond what the other tests here say: variables, params, annotations, and what expressions make
//! of objects.
//! Upstream counterpart: the tests of apiserver's pkg/admission/plugin/cel and of policy/{validating,mutating}.

use api::Value;
use json::json;

use super::mutating_tests::{self as mutating, apply, deployment, patch};
use super::tests::{self as validating, BINDINGS, binding, one, pod};
use super::{MUTATING, VALIDATING};
use crate::admission::{attributes::Operation, plugin::Context};
use crate::tests::admission::Write;

#[tokio::test]
async fn variables_have_the_types_of_their_expressions() {
    let spec = |variable: &str, expression: &str| json!({"variables": [{"name": "v", "expression": variable}], "validations": [{"expression": expression}]});
    for (variable, expression) in [
        ("object.metadata.name", "variables.v == 'web'"),
        ("true", "variables.v"),
        ("[1, 2, 3, 4]", "variables.v.sum() == 10"),
        ("{'foo': 'bar'}", "variables.v['foo'].contains('bar')"),
    ] {
        validating::check(spec(variable, expression), json!({}), "").await;
    }
    let overload = "found no matching overload for";
    for (variable, expression, expected) in [
        ("1 == '1'", "variables.v == 'x'", format!("{overload} '_==_' applied to '(int, string)'")),
        (
            "object.spec.containers[114514].ports.size()",
            "variables.v == 810",
            "composited variable \"v\" fails to evaluate: index out of bounds: 114514".to_owned(),
        ),
        ("[1, 2]", "variables.v['a'] == 'a'", format!("{overload} '_[_]' applied to '(list(int), string)'")),
        ("['1', '2']", "variables.v[0] == 1", format!("{overload} '_==_' applied to '(string, int)'")),
    ] {
        let refused = validating::told(spec(variable, expression), json!({})).await.err().unwrap_or_default();
        assert!(refused.contains(&expected), "{variable} {expression}: {refused}");
    }
}

/// A variable is evaluated, and paid for, once; in what it costs together with the expressions the budget of both is used up.
#[tokio::test]
async fn variables_cost_what_their_first_use_costs() {
    let check = "authorizer.requestResource.check('a').allowed()";
    let spec = |uses: usize, each: &str| {
        let validation = json!({"expression": each});
        json!({"variables": [{"name": "v", "expression": check}], "validations": vec![validation; uses]})
    };
    let budget = "validation failed due to running out of cost budget, no further validation rules will be run";
    validating::check(spec(60, "variables.v"), json!({}), "").await;
    validating::check(spec(28, check), json!({}), "").await;
    validating::check(spec(29, check), json!({}), budget).await;
    let mut both = spec(28, check);
    both["validations"][0]["expression"] = json!("variables.v");
    validating::check(both.clone(), json!({}), "").await;
    both["validations"][1]["expression"] = json!(format!("variables.v && {check}"));
    validating::check(both, json!({}), "").await;
}

/// Which params a reference gives for a write in a namespace, and for one that is in none.
#[tokio::test]
async fn references_give_params_by_name_namespace_and_labels() {
    let map = |namespace: &str, name: &str, label: &str| {
        ("configmaps", json!({"metadata": {"name": name, "namespace": namespace, "labels": {"match": label}}}))
    };
    let node = |name: &str, label: &str| ("nodes", json!({"metadata": {"name": name, "labels": {"match": label}}}));
    let params = [
        map("ns", "a", "yes"),
        map("ns", "b", "no"),
        map("other", "a", "no"),
        map("other", "c", "yes"),
        node("a", "yes"),
        node("b", "no"),
    ];
    let check = async |kind: &str, reference: Value, expected: [Result<&str, &str>; 2]| {
        let value = "params.metadata.?namespace.orValue('') + '/' + params.metadata.name";
        let spec = json!({"paramKind": {"apiVersion": "v1", "kind": kind},
            "auditAnnotations": [{"key": "seen", "valueExpression": value}]});
        let context = validating::context(spec, json!({"paramRef": reference}), params.to_vec()).await;
        let writes =
            [Write::create("pods", pod(json!({}))), Write::create("nodes", json!({"metadata": {"name": "n"}}))];
        for (write, expected) in writes.into_iter().zip(expected) {
            let (done, told) = write.heard(&context, &VALIDATING, false).await;
            let seen = told.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join("; ");
            match expected {
                Ok(expected) => assert_eq!((done.err(), seen.as_str()), (None, expected), "{kind} {reference}"),
                Err(why) => {
                    let message = done.err().map(|error| error.message).unwrap_or_default();
                    assert!(message.ends_with(why), "{kind} {reference}: {message}");
                }
            }
        }
    };
    let of = |mut reference: Value, action: &str| {
        reference["parameterNotFoundAction"] = json!(action);
        reference
    };
    let nowhere = Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources");
    let none = Err("no params found for policy binding with `Deny` parameterNotFoundAction");
    let yes = json!({"matchLabels": {"match": "yes"}});
    for action in ["Allow", "Deny"] {
        check("ConfigMap", of(json!({"name": "a"}), action), [Ok("ns/a"), nowhere]).await;
        let elsewhere = of(json!({"name": "a", "namespace": "other"}), action);
        check("ConfigMap", elsewhere, [Ok("other/a"); 2]).await;
        check("ConfigMap", of(json!({"selector": {}}), action), [Ok("ns/a, ns/b"), nowhere]).await;
        check("ConfigMap", of(json!({"selector": yes}), action), [Ok("ns/a"), nowhere]).await;
        let elsewhere = of(json!({"selector": yes, "namespace": "other"}), action);
        check("ConfigMap", elsewhere, [Ok("other/c"); 2]).await;
        check("Node", of(json!({"name": "a"}), action), [Ok("/a"); 2]).await;
        check("Node", of(json!({"selector": {}}), action), [Ok("/a, /b"); 2]).await;
        check("Node", of(json!({"selector": yes}), action), [Ok("/a"); 2]).await;
        let absent = if action == "Deny" { none } else { Ok("") };
        check("ConfigMap", of(json!({"name": "z", "namespace": "ns"}), action), [absent; 2]).await;
        let selector = json!({"matchLabels": {"match": "perhaps"}});
        check("Node", of(json!({ "selector": selector }), action), [absent; 2]).await;
        check("Node", of(json!({}), action), [Err("one of name or selector must be provided"); 2]).await;
    }
}

/// Values of one key are joined, each of them once; one that fails refuses the write whatever the binding wants done.
#[tokio::test]
async fn annotations_of_several_bindings_are_joined() {
    let maps =
        ["one", "two", "three"].map(|name| ("configmaps", json!({"metadata": {"name": name, "namespace": "ns"}})));
    let spec = |failing: &str| {
        json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "failurePolicy": failing, "auditAnnotations": [
            {"key": "example-key", "valueExpression": "params.metadata.name == 'two' ? 'special-value' : ' normal-value '"},
            {"key": "excluded-key", "valueExpression": "null"},
            {"key": "error-key", "valueExpression": "string(params.missing)"}]})
    };
    let bound = |name: &str| json!({"paramRef": {"name": name}, "validationActions": ["Audit"]});
    let heard = async |failing: &str| {
        let context = validating::context(spec(failing), bound("one"), maps.to_vec()).await;
        for name in ["two", "three"] {
            context.policies.object_changed(BINDINGS, name, Some(&binding(bound(name))));
        }
        let (done, told) = Write::create("pods", pod(json!({}))).heard(&context, &VALIDATING, false).await;
        assert_eq!(told, [("p/example-key".to_owned(), "normal-value, special-value".to_owned())]);
        done.err().map(|error| error.message).unwrap_or_default()
    };
    let refused = heard("Fail").await;
    assert!(
        refused.ends_with("expression 'string(params.missing)' resulted in error: no such key: missing"),
        "{refused}"
    );
    assert_eq!(heard("Ignore").await, "");
}

#[tokio::test]
async fn failures_are_told_as_upstreams_structures_are_written() {
    let spec = json!({"validations": [{"expression": "true"}, {"expression": "object.spec.containers.size() < 1"}]});
    let context = validating::context(spec, json!({"validationActions": ["Audit"]}), Vec::new()).await;
    let (_, told) = Write::create("pods", pod(json!({}))).heard(&context, &VALIDATING, false).await;
    let failure = r#"[{"message":"failed expression: object.spec.containers.size() \u003c 1","policy":"p","binding":"b","expressionIndex":1,"validationActions":["Audit"]}]"#;
    assert_eq!(told, [("validation.policy.admission.k8s.io/validation_failure".to_owned(), failure.to_owned())]);
}

/// The labels that a patch sets to the texts of these expressions.
async fn labels(expected: &[(&str, &str, &str)]) {
    let entries: Vec<String> = expected.iter().map(|(name, expression, _)| format!("'{name}': {expression}")).collect();
    let text = format!("[JSONPatch{{op: 'add', path: '/metadata/labels', value: {{{}}}}}]", entries.join(", "));
    let wanted: Value = expected.iter().map(|(name, _, value)| ((*name).to_owned(), *value)).collect();
    mutating::check(&[patch(&text)], json!({}), "/metadata/labels", wanted).await;
}

#[tokio::test]
async fn patches_and_objects_in_expressions_have_fields_and_compare() {
    labels(&[
        ("op", "JSONPatch{op: 'opValue'}.op", "opValue"),
        ("path", "JSONPatch{path: 'pathValue'}.path", "pathValue"),
        ("from", "JSONPatch{from: 'fromValue'}.from", "fromValue"),
        ("value", "string(JSONPatch{value: 'valueValue'}.value)", "valueValue"),
        ("has", "string(has(JSONPatch{from: 'x'}.from))", "true"),
        ("has-not", "string(has(JSONPatch{}.value))", "false"),
    ])
    .await;
    let whole = "JSONPatch{op: 'add', path: 'path', from: 'from', value: 1}";
    let other = |field: &str, value: &str| {
        let parts = [("op", "'add'"), ("path", "'path'"), ("from", "'from'"), ("value", "1")];
        let parts = parts.map(|(name, own)| format!("{name}: {}", if name == field { value } else { own }));
        format!("string(JSONPatch{{{}}} == {whole})", parts.join(", "))
    };
    labels(&[
        ("empty", "string(JSONPatch{} == JSONPatch{})", "true"),
        ("partial", "string(JSONPatch{op: 'add'} == JSONPatch{op: 'add'})", "true"),
        ("same", &other("", ""), "true"),
        ("op", &other("op", "'remove'"), "false"),
        ("path", &other("path", "'x'"), "false"),
        ("from", &other("from", "'x'"), "false"),
        ("value", &other("value", "'1'"), "false"),
    ])
    .await;
    labels(&[
        ("field", "string(Object{field: 'fieldValue'}.field)", "fieldValue"),
        ("has", "string(has(Object{field: 'x'}.field))", "true"),
        ("has-not", "string(has(Object{}.field))", "false"),
        ("empty", "string(Object{} == Object{})", "true"),
        ("same", "string(Object{field: 'x'} == Object{field: 'x'})", "true"),
        ("different", "string(Object{field: 'x'} == Object{field: 'y'})", "false"),
    ])
    .await;
}

#[tokio::test]
async fn patches_move_copy_and_replace() {
    let check = async |operations: &str, path: &str, expected: Value| {
        mutating::check(&[patch(&format!("[{operations}]"))], json!({}), path, expected).await;
    };
    let (labels, containers) = ("/metadata/labels", "/spec/template/spec/containers");
    check(
        "JSONPatch{op: 'copy', from: '/metadata/labels/app', path: '/metadata/labels/y'}",
        labels,
        json!({"app": "web", "y": "web"}),
    )
    .await;
    check(
        "JSONPatch{op: 'move', from: '/metadata/labels/app', path: '/metadata/labels/y'}",
        labels,
        json!({"y": "web"}),
    )
    .await;
    check("JSONPatch{op: 'replace', path: '/metadata/labels/x', value: '2'}", labels, json!({"app": "web", "x": "2"}))
        .await;
    check("JSONPatch{op: 'add', path: '/metadata/labels', value: {'y': '2'}}", labels, json!({"y": "2"})).await;
    check("JSONPatch{op: 'remove', path: '/metadata/labels/app'}", "/metadata/labels/app", Value::Null).await;
    let names = async |operation: &str, expected: Value| {
        let mutation = patch(&format!("[JSONPatch{{{operation}}}]"));
        let context = mutating::context(vec![mutating::policy("p", &[mutation], &json!({}))], json!({})).await;
        let made = mutating::write(deployment()).through(&context, &MUTATING).await.expect("let through");
        let containers = made["spec"]["template"]["spec"]["containers"].as_array().expect("a list");
        assert_eq!(containers.iter().map(|one| one["name"].clone()).collect::<Value>(), expected, "{operation}");
    };
    names(&format!("op: 'copy', from: '{containers}/0', path: '{containers}/-'"), json!(["a", "a"])).await;
    names(&format!("op: 'add', path: '{containers}/0', value: {{'name': 'x'}}"), json!(["x", "a"])).await;
    names(&format!("op: 'replace', path: '{containers}/-1', value: {{'name': 'x'}}"), json!(["x"])).await;
    check(
        "JSONPatch{op: 'replace', path: '/spec/replicas', value: request.resource.resource == 'deployments' ? 10 : 0}",
        "/spec/replicas",
        json!(10),
    )
    .await;
    // The names of types are not held against the place that a patch writes to.
    check(
        "JSONPatch{op: 'add', path: '/spec/strategy', value: Object.invalid{type: 'Recreate'}}",
        "/spec/strategy/type",
        json!("Recreate"),
    )
    .await;
}

#[tokio::test]
async fn what_patches_and_configurations_do_wrong_is_told() {
    let at = "JSONPatch{op: 'add', path: '/spec/template/spec/containers/-', value: Object.spec.template.spec.containers{name: 'x', \
              ports: [Object.spec.template.spec.containers.";
    let wrong = format!("[{at}portsZ{{containerPort: 8080}}]}}}}]");
    let mismatch = "type mismatch: unexpected type name \"Object.spec.template.spec.containers.portsZ\", expected \
                    \"Object.spec.template.spec.containers.ports\", which matches field name path from root Object type";
    mutating::refused(patch(&wrong), json!({}), mismatch).await;
    let unknown = patch(&format!("[{at}ports{{containerPortZ: 8080}}]}}}}]"));
    let context = mutating::context(vec![mutating::policy("p", &[unknown], &json!({}))], json!({})).await;
    let why = mutating::write(deployment()).through(&context, &MUTATING).await.expect_err("refused");
    let field = "strict decoding error: unknown field \"spec.template.spec.containers[1].ports[0].containerPortZ\"";
    assert!(why.contains(field), "{why}");
    let made = apply("Object.spec.metadata{}");
    mutating::refused(made, json!({}), "must evaluate to Object but got Object.spec.metadata").await;
    // Seven loops through ten values are too many.
    let loops: String = (0..7).map(|i| format!("variables.list.all(x{i}, ")).collect();
    let dear = format!("{loops}'0123456789' == '0123456789'{} ? 1 : 0", ")".repeat(7));
    let variables = json!({"variables": [{"name": "list", "expression": "[0,1,2,3,4,5,6,7,8,9]"}]});
    for text in [
        format!("[JSONPatch{{op: 'replace', path: '/spec/replicas', value: {dear}}}]"),
        format!("Object{{spec: Object.spec{{replicas: {dear}}}}}"),
    ] {
        let mutation = if text.starts_with('[') { patch(&text) } else { apply(&text) };
        let why = format!("expression '{text}' resulted in error: operation cancelled: actual cost limit exceeded");
        mutating::refused(mutation, variables.clone(), &why).await;
    }
}

#[tokio::test]
async fn updates_see_the_object_before() {
    let odd = "oldObject.spec.replicas % 2 == 0 ? oldObject.spec.replicas + 1 : oldObject.spec.replicas";
    let mutation = apply(&format!("Object{{spec: Object.spec{{replicas: {odd}}}}}"));
    let context: Context = mutating::context(vec![mutating::policy("p", &[mutation], &json!({}))], json!({})).await;
    let mut old = deployment();
    old["spec"]["replicas"] = json!(2);
    let update = Write { operation: Operation::Update, old: Some(old), ..mutating::write(deployment()) };
    let made = update.through(&context, &MUTATING).await.expect("let through");
    assert_eq!(made["spec"]["replicas"], 3);
    let nothing = validating::context(one(json!({"expression": "oldObject == null"})), json!({}), Vec::new()).await;
    assert!(Write::create("pods", pod(json!({}))).through(&nothing, &VALIDATING).await.is_ok());
}

/// Upstream's names of what was done, and its sorts of errors: a rule that refuses is one of them.
#[tokio::test]
async fn what_policies_do_is_counted() {
    let spec = json!({"matchConditions": [{"name": "c", "expression": "request.operation == 'CREATE'"}],
        "validations": [{"expression": "true"}, {"expression": "false"}, {"expression": "missing"}]});
    let counted = async |failing: &str, actions: Value, errors: &str| {
        let mut spec = spec.clone();
        spec["failurePolicy"] = json!(failing);
        spec["matchConditions"][0]["expression"] = json!(errors);
        let context = validating::context(spec, json!({ "validationActions": actions }), Vec::new()).await;
        let _ = Write::create("pods", pod(json!({}))).through(&context, &VALIDATING).await;
        let page = context.policies.metrics.render();
        let wanted = ["check_total{", "errors_total{", "evaluation_seconds_count{"];
        let lines = page.lines().filter(|line| wanted.iter().any(|wanted| line.contains(wanted)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let check = |action: &str, sort: &str| {
        format!(
            "apiserver_validating_admission_policy_check_total{{enforcement_action=\"{action}\",error_type=\"{sort}\",\
             policy=\"p\",policy_binding=\"b\"}} 1"
        )
    };
    let condition = |name: &str| {
        format!(
            "apiserver_admission_match_condition_evaluation_{name}{{kind=\"policy\",name=\"p\",operation=\"CREATE\",type=\"validate\"}} 1"
        )
    };
    let seconds = condition("seconds_count");
    let expected = [
        seconds.clone(),
        check("audit", "compile_error"),
        check("audit", "invalid_error"),
        check("warn", "compile_error"),
        check("warn", "invalid_error"),
    ];
    assert_eq!(counted("Fail", json!(["Warn", "Audit"]), "true").await, expected);
    let expected = [seconds.clone(), check("allow", "compile_error"), check("deny", "invalid_error")];
    assert_eq!(counted("Ignore", json!(["Deny"]), "true").await, expected);
    let expected = [condition("errors_total"), seconds, check("deny", "invalid_error")];
    assert_eq!(counted("Fail", json!(["Deny"]), "object.missing == 1").await, expected);

    let mutations =
        [apply("Object{spec: Object.spec{replicas: 2}}"), patch("missing"), apply("Object{spec: object.missing}")];
    let context = mutating::context(vec![mutating::policy("p", &mutations, &json!({}))], json!({})).await;
    let _ = mutating::write(deployment()).through(&context, &MUTATING).await;
    let page = context.policies.metrics.render();
    for sort in ["no_error", "compile_error", "invalid_error"] {
        let labels = format!("error_type=\"{sort}\",policy=\"p\",policy_binding=\"of-p\"");
        let line = format!("apiserver_mutating_admission_policy_check_total{{{labels}}} 1");
        assert!(page.lines().any(|found| found == line), "{line} is missing in {page}");
    }
}
