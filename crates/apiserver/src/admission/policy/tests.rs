//! Policies and writes: what is refused, in which words, and what is let through.

use std::sync::Arc;

use api::Value;
use json::json;

use api::k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicySpec as Spec;

use super::VALIDATING as PLUGIN;
use super::source::{Policies, Spec as _};
use crate::admission::attributes::Operation;
use crate::admission::plugin::Context;
use crate::auth::User;
use crate::tests::admission::{self, Told, Write};

pub(super) const POLICIES: &str = Spec::POLICIES;
pub(super) const BINDINGS: &str = Spec::BINDINGS;

const RULES: &str =
    r#"[{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["*"], "scope": "*"}]"#;

fn policy(spec: Value) -> Value {
    let rules: Value = serde_json::from_str(RULES).expect("rules");
    let mut whole = json!({"failurePolicy": "Fail", "matchConstraints": {"matchPolicy": "Equivalent",
        "namespaceSelector": {}, "objectSelector": {}, "resourceRules": rules}});
    for (field, value) in spec.as_object().expect("a spec") {
        whole[field] = value.clone();
    }
    json!({"metadata": {"name": "p", "uid": "u", "generation": 1}, "spec": whole})
}

pub(super) fn binding(spec: Value) -> Value {
    let mut whole = json!({"policyName": "p", "validationActions": ["Deny"]});
    for (field, value) in spec.as_object().expect("a spec") {
        whole[field] = value.clone();
    }
    json!({"metadata": {"name": "b"}, "spec": whole})
}

pub(super) async fn context(policy_spec: Value, binding_spec: Value, objects: Vec<(&'static str, Value)>) -> Context {
    let policies = Arc::new(Policies::default());
    policies.object_changed(POLICIES, "p", Some(&policy(policy_spec)));
    policies.object_changed(BINDINGS, "b", Some(&binding(binding_spec)));
    let mut all = vec![("namespaces", json!({"metadata": {"name": "ns", "labels": {"team": "a"}}}))];
    all.extend(objects);
    Context { policies, ..admission::context(all).await }
}

pub(super) fn pod(fields: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "ns",
        "labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
    for (field, value) in fields.as_object().expect("fields") {
        pod["spec"][field] = value.clone();
    }
    pod
}

pub(super) async fn told(policy_spec: Value, binding_spec: Value) -> Result<Told, String> {
    let params =
        json!({"metadata": {"name": "limits", "namespace": "ns", "labels": {"p": "x"}}, "data": {"most": "2"}});
    let context = context(policy_spec, binding_spec, vec![("configmaps", params)]).await;
    Write::create("pods", pod(json!({}))).told(&context, &PLUGIN).await
}

const DENIED: &str = "pods \"web\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";

pub(super) async fn check(policy_spec: Value, binding_spec: Value, expected: &str) {
    let shown = policy_spec.to_string();
    let refused = told(policy_spec, binding_spec).await.err();
    let wanted = (!expected.is_empty()).then(|| format!("{DENIED}{expected}"));
    assert_eq!(refused, wanted, "{shown}");
}

pub(super) fn one(validation: Value) -> Value {
    json!({"validations": [validation]})
}

#[tokio::test]
async fn validations_refuse_in_their_words() {
    let none = json!({});
    check(one(json!({"expression": "object.spec.containers.size() == 1"})), none.clone(), "").await;
    check(
        one(json!({"expression": " object.spec.containers.size() == 2"})),
        none.clone(),
        "failed expression: object.spec.containers.size() == 2",
    )
    .await;
    check(one(json!({"expression": "false", "message": "no"})), none.clone(), "no").await;
    let made = "'no ' + object.metadata.name + ' in ' + namespaceObject.metadata.name";
    check(
        one(json!({"expression": "false", "message": "no", "messageExpression": made})),
        none.clone(),
        "no web in ns",
    )
    .await;
    check(
        one(json!({"expression": "false", "message": "no", "messageExpression": "object.missing"})),
        none.clone(),
        "no",
    )
    .await;
    check(one(json!({"expression": "false", "message": "no", "messageExpression": "'a\\nb'"})), none.clone(), "no")
        .await;
    check(
        one(json!({"expression": "object.spec.missing == 1"})),
        none.clone(),
        "expression 'object.spec.missing == 1' resulted in error: no such key: missing",
    )
    .await;
    let broken = "compilation error: compilation failed: ERROR: <input>:1:1: undeclared reference to 'missing' (in \
                  container '')\n | missing\n | ^";
    check(one(json!({"expression": "missing"})), none.clone(), broken).await;
    let request = "request.operation == 'CREATE' && request.userInfo.username == 'jane' && \
                   request.namespace == 'ns' && oldObject == null && !request.dryRun && request.resource.resource == 'pods'";
    let kind = json!({"expression": request});
    check(one(kind), none.clone(), "").await;
    check(json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.spec.missing == 1"}]}), none, "")
        .await;
}

#[tokio::test]
async fn variables_are_evaluated_when_they_are_used() {
    let spec = |expression: &str| {
        json!({"variables": [{"name": "names", "expression": "object.spec.containers.map(c, c.name)"},
            {"name": "first", "expression": "variables.names[0]"}, {"name": "broken", "expression": "object.missing"}],
            "validations": [{"expression": expression, "messageExpression": "'not ' + variables.first"}]})
    };
    check(spec("variables.first == 'c'"), json!({}), "").await;
    check(spec("variables.first == 'd' && variables.broken == 1"), json!({}), "not c").await;
    let failed = "expression 'variables.broken == 1' resulted in error: composited variable \"broken\" fails to evaluate: \
                  no such key: missing";
    check(spec("variables.broken == 1"), json!({}), failed).await;
}

#[tokio::test]
async fn conditions_and_rules_choose_the_writes() {
    let conditions = |first: &str, second: &str| {
        json!({"matchConditions": [{"name": "a", "expression": first}, {"name": "b", "expression": second}],
            "validations": [{"expression": "false"}]})
    };
    let denied = "failed expression: false";
    check(conditions("true", "request.operation == 'CREATE'"), json!({}), denied).await;
    check(conditions("true", "false"), json!({}), "").await;
    check(conditions("object.missing == 1", "false"), json!({}), "").await;
    check(
        conditions("object.missing == 1", "true"),
        json!({}),
        "expression 'object.missing == 1' resulted in error: no such key: missing",
    )
    .await;
    let matched = |change: fn(&mut Value)| {
        let mut spec = policy(one(json!({"expression": "false"})))["spec"].take();
        change(&mut spec["matchConstraints"]);
        spec
    };
    check(matched(|_| {}), json!({}), denied).await;
    check(matched(|m| m["resourceRules"][0]["operations"] = json!(["DELETE"])), json!({}), "").await;
    check(matched(|m| m["resourceRules"][0]["resources"] = json!(["pods/status", "configmaps"])), json!({}), "").await;
    check(matched(|m| m["resourceRules"][0]["resources"] = json!(["*/*"])), json!({}), denied).await;
    check(matched(|m| m["resourceRules"][0]["scope"] = json!("Cluster")), json!({}), "").await;
    check(matched(|m| m["resourceRules"][0]["resourceNames"] = json!(["other"])), json!({}), "").await;
    check(matched(|m| m["excludeResourceRules"] = m["resourceRules"].clone()), json!({}), "").await;
    check(matched(|m| m["objectSelector"] = json!({"matchLabels": {"app": "other"}})), json!({}), "").await;
    check(matched(|m| m["namespaceSelector"] = json!({"matchLabels": {"team": "a"}})), json!({}), denied).await;
    check(matched(|m| m["namespaceSelector"] = json!({"matchLabels": {"team": "b"}})), json!({}), "").await;
    let resources =
        json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "b"}}, "objectSelector": {}}});
    check(matched(|_| {}), resources, "").await;
}

#[tokio::test]
async fn params_come_from_the_binding() {
    let spec = |kind: &str| {
        json!({"paramKind": {"apiVersion": "v1", "kind": kind},
            "validations": [{"expression": "params == null || int(params.data.most) < 2",
                "messageExpression": "'most is ' + params.data.most"}]})
    };
    let named = |name: &str, action: &str| json!({"paramRef": {"name": name, "parameterNotFoundAction": action}});
    check(spec("ConfigMap"), named("limits", "Deny"), "most is 2").await;
    check(spec("ConfigMap"), json!({}), "").await;
    check(spec("ConfigMap"), named("none", "Allow"), "").await;
    let missing = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    check(spec("ConfigMap"), named("none", "Deny"), missing).await;
    let selected = |label: &str| json!({"paramRef": {"selector": {"matchLabels": {"p": label}}, "parameterNotFoundAction": "Deny"}});
    check(spec("ConfigMap"), selected("x"), "most is 2").await;
    check(spec("ConfigMap"), selected("y"), missing).await;
    let elsewhere = json!({"paramRef": {"name": "limits", "namespace": "other", "parameterNotFoundAction": "Allow"}});
    check(spec("ConfigMap"), elsewhere, "").await;
    let cluster = json!({"paramRef": {"name": "a", "namespace": "ns", "parameterNotFoundAction": "Allow"}});
    check(
        spec("Node"),
        cluster,
        "failed to configure binding: paramRef.namespace must not be provided for a cluster-scoped `paramKind`",
    )
    .await;
    let unknown = told(spec("Nothing"), named("a", "Deny")).await.err();
    let expected = "pods \"web\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: \
                    failed to find resource referenced by paramKind: '/v1, Kind=Nothing'";
    assert_eq!(unknown.as_deref(), Some(expected));
}

/// A policy about params whose binding names none: they are null, which has no fields.
#[tokio::test]
async fn params_that_no_binding_names_have_no_fields() {
    let run = async |expression: &str, expected: &str| {
        let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [{"expression": expression}]});
        check(spec, json!({}), expected).await;
    };
    let unguarded = "object.metadata.name.startsWith(params.metadata.name)";
    let missing = format!("expression '{unguarded}' resulted in error: no such key: metadata");
    run(unguarded, &missing).await;
    for guard in ["has(params.metadata) && has(params.metadata.name)", "params != null"] {
        let guarded = format!("({guard} && {unguarded})");
        run(&guarded, &format!("failed expression: {guarded}")).await;
        run(&format!("{guarded} || object.metadata.name.endsWith('web')"), "").await;
    }
}

/// Autoscalers are stored in v2, where the field has another name.
#[tokio::test]
async fn params_are_in_the_version_that_the_policy_names() {
    let spec = json!({"paramKind": {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler"},
        "validations": [{"expression": "params.spec.targetCPUUtilizationPercentage < 50",
            "messageExpression": "params.apiVersion + string(params.spec.targetCPUUtilizationPercentage)"}]});
    let target = json!({"type": "Utilization", "averageUtilization": 80});
    let params = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "limits", "namespace": "ns", "labels": {"p": "x"}}, "spec": {"maxReplicas": 3,
            "scaleTargetRef": {"kind": "Deployment", "name": "d"},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]}});
    for reference in [json!({"name": "limits"}), json!({"selector": {"matchLabels": {"p": "x"}}})] {
        let binding = json!({"paramRef": reference});
        let objects = vec![("horizontalpodautoscalers", params.clone())];
        let context = context(spec.clone(), binding, objects).await;
        let refused = Write::create("pods", pod(json!({}))).told(&context, &PLUGIN).await.err();
        assert!(refused.as_ref().is_some_and(|why| why.ends_with("autoscaling/v180")), "{refused:?}");
    }
}

#[tokio::test]
async fn actions_say_what_becomes_of_a_denial() {
    let spec = json!({"validations": [{"expression": "false", "message": "no"}],
        "auditAnnotations": [{"key": "who", "valueExpression": "request.userInfo.username"},
            {"key": "empty", "valueExpression": "''"}]});
    let told = told(spec, json!({"validationActions": ["Warn", "Audit"]})).await.expect("let through");
    assert_eq!(told.warnings, ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': no"]);
    let (key, failure) = &told.annotations[1];
    assert_eq!(key, "validation.policy.admission.k8s.io/validation_failure");
    let failure: Value = serde_json::from_str(failure).expect("JSON");
    let expected = json!([{"message": "no", "policy": "p", "binding": "b", "expressionIndex": 0,
        "validationActions": ["Warn", "Audit"]}]);
    assert_eq!(failure, expected);
    assert_eq!(told.annotations[..1], [("p/who".to_owned(), "jane".to_owned())]);
}

#[tokio::test]
async fn rights_are_asked_of_the_servers_authorizer() {
    let expression = "authorizer.group('').resource('pods').namespace('ns').check('create').allowed() && \
                      authorizer.requestResource.check('approve').allowed() && \
                      authorizer.serviceAccount('ns', 'default').path('/healthz').check('get').allowed()";
    // Three checks are more than one expression may cost.
    let denied =
        format!("expression '{expression}' resulted in error: operation cancelled: actual cost limit exceeded");
    check(one(json!({"expression": expression})), json!({}), &denied).await;
    let two = expression.rsplit_once(" && ").expect("three checks").0;
    check(one(json!({"expression": two})), json!({}), "").await;
    let spec = one(json!({"expression": "authorizer.requestResource.check('create').allowed()"}));
    let nobody =
        Context { authorizer: Arc::<crate::auth::rbac::Rbac>::default(), ..context(spec, json!({}), vec![]).await };
    let refused = Write::create("pods", pod(json!({}))).through(&nobody, &PLUGIN).await.expect_err("no rights");
    assert!(refused.contains("failed expression: authorizer.requestResource"), "{refused}");
}

#[tokio::test]
async fn budgets_end_what_costs_too_much() {
    let many: Vec<Value> =
        (0..30).map(|_| json!({"expression": "authorizer.requestResource.check('a').allowed()"})).collect();
    check(
        json!({"validations": many}),
        json!({}),
        "validation failed due to running out of cost budget, no further validation rules will be run",
    )
    .await;
    let endless = "lists.range(1000).all(a, lists.range(1000).all(b, a + b >= 0))";
    check(
        one(json!({"expression": endless})),
        json!({}),
        &format!("expression '{endless}' resulted in error: operation cancelled: actual cost limit exceeded"),
    )
    .await;
}

#[tokio::test]
async fn deletes_updates_and_namespaces_are_seen() {
    let spec = one(
        json!({"expression": "request.operation == 'DELETE' ? object == null && oldObject.metadata.name != 'web' : \
        oldObject.metadata.labels == object.metadata.labels"}),
    );
    let context = context(spec, json!({}), vec![]).await;
    let write = |operation, old: Option<Value>, object: Option<Value>| Write {
        operation,
        kind: ("", "pods", ""),
        user: User::new("jane", ["dev"]),
        old,
        object,
    };
    let delete = write(Operation::Delete, Some(pod(json!({}))), None);
    assert!(delete.through(&context, &PLUGIN).await.is_err());
    let same = write(Operation::Update, Some(pod(json!({}))), Some(pod(json!({"nodeName": "n"}))));
    assert!(same.through(&context, &PLUGIN).await.is_ok());
    let mut other = pod(json!({}));
    other["metadata"]["labels"] = json!({});
    assert!(write(Operation::Update, Some(pod(json!({}))), Some(other)).through(&context, &PLUGIN).await.is_err());
    let labelled = json!({"matchConstraints": {"namespaceSelector": {"matchLabels": {"team": "b"}}, "objectSelector": {},
        "resourceRules": serde_json::from_str::<Value>(RULES).expect("rules")}, "validations": [{"expression": "false"}]});
    let context = self::context(labelled, json!({}), vec![]).await;
    let namespace = |team: &str| json!({"metadata": {"name": "new", "labels": {"team": team}}});
    assert!(Write::create("namespaces", namespace("b")).through(&context, &PLUGIN).await.is_err());
    assert!(Write::create("namespaces", namespace("a")).through(&context, &PLUGIN).await.is_ok());
}

#[tokio::test]
async fn policies_come_and_go_and_cannot_lock_anybody_out() {
    let context = context(one(json!({"expression": "false"})), json!({}), vec![]).await;
    let everything = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]);
    let mut broad = policy(one(json!({"expression": "false"})));
    broad["spec"]["matchConstraints"]["resourceRules"] = everything;
    broad["metadata"]["generation"] = json!(2);
    context.policies.object_changed(POLICIES, "p", Some(&broad));
    let group = super::source::GROUP;
    let write = |plural: &'static str, group: &'static str| Write {
        kind: (group, plural, ""),
        ..Write::create("", json!({"metadata": {"name": "x"}}))
    };
    assert!(write(POLICIES, group).through(&context, &PLUGIN).await.is_ok());
    assert!(write(BINDINGS, group).through(&context, &PLUGIN).await.is_ok());
    assert!(write("nodes", "").through(&context, &PLUGIN).await.is_err());
    context.policies.object_changed(BINDINGS, "b", None);
    assert!(write("nodes", "").through(&context, &PLUGIN).await.is_ok());
}

#[tokio::test]
async fn reasons_become_codes() {
    let check = |reason: Option<&'static str>, code: u16, shown: &'static str| async move {
        let mut validation = json!({"expression": "false"});
        if let Some(reason) = reason {
            validation["reason"] = json!(reason);
        }
        let context = context(one(validation), json!({}), vec![]).await;
        let error = Write::create("pods", pod(json!({}))).refused(&context, &PLUGIN).await;
        assert_eq!((error.code, &*error.reason), (code, shown));
        let causes = error.details.and_then(|d| d.causes).unwrap_or_default();
        assert!(causes[0].message.as_deref().is_some_and(|m| m.starts_with("ValidatingAdmissionPolicy 'p'")));
    };
    check(None, 422, "Invalid").await;
    check(Some("Forbidden"), 403, "Forbidden").await;
    check(Some("Unauthorized"), 401, "Unauthorized").await;
    check(Some("RequestEntityTooLarge"), 413, "RequestEntityTooLarge").await;
}
