//! Mutating policies and writes: what they make of objects, in which order, and what refuses a write.

use std::sync::Arc;

use api::Value;
use api::features::{Feature, Features};
use api::k8s_openapi::api::admissionregistration::v1beta1::MutatingAdmissionPolicySpec as Spec;
use json::json;

use super::MUTATING;
use super::source::{Policies, Spec as _};
use crate::admission::attributes::Operation;
use crate::admission::plugin::Context;
use crate::auth::User;
use crate::tests::admission::{self, Told, Write};

/// A policy that makes these mutations, with other fields of its spec.
pub(super) fn policy(name: &str, mutations: &[Value], more: &Value) -> Value {
    let rule =
        json!({"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["*"], "scope": "*"});
    let mut spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": mutations,
        "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
            "resourceRules": [rule]}});
    for (field, value) in more.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    json!({"metadata": {"name": name, "uid": name, "generation": 1}, "spec": spec})
}

pub(super) fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

pub(super) fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn label(name: &str, value: &str) -> Value {
    apply(&format!("Object{{metadata: Object.metadata{{labels: {{'{name}': {value}}}}}}}"))
}

/// The policies, each with a binding of its own.
pub(super) async fn context(policies: Vec<Value>, binding: Value) -> Context {
    let held = Policies::default();
    for policy in policies {
        let name = api::meta::name(&policy).to_owned();
        let mut spec = json!({"policyName": name});
        for (field, value) in binding.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        held.object_changed(Spec::POLICIES, &name, Some(&policy));
        let binding = json!({"metadata": {"name": "b"}, "spec": spec});
        held.object_changed(Spec::BINDINGS, &format!("of-{name}"), Some(&binding));
    }
    let params = |name: &str| json!({"metadata": {"name": name, "namespace": "ns", "labels": {"p": "x"}}, "data": {"more": "10"}});
    let namespace = json!({"metadata": {"name": "ns", "labels": {"team": "a"}}});
    let objects = vec![("namespaces", namespace), ("configmaps", params("one")), ("configmaps", params("two"))];
    let features = Features::default().with(Feature::MutatingAdmissionPolicy, true);
    Context { policies: Arc::new(held), features, ..admission::context(objects).await }
}

pub(super) fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "ns", "labels": {"app": "web"}},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "a"}], "volumes": [{"name": "x"}]}}}})
}

pub(super) fn write(object: Value) -> Write {
    Write { kind: ("apps", "deployments", ""), ..Write::create("deployments", object) }
}

async fn told(policies: Vec<Value>, binding: Value) -> Result<Told, String> {
    write(deployment()).told(&context(policies, binding).await, &MUTATING).await
}

/// Compares the field at the path that one policy makes, or the reason why it refuses the write.
pub(super) async fn check(mutations: &[Value], more: Value, path: &str, expected: Value) {
    let made = told(vec![policy("p", mutations, &more)], json!({})).await.expect("let through");
    let found = api::meta::at(&made.object, path).cloned().unwrap_or_default();
    assert_eq!(found, expected, "{mutations:?}");
}

pub(super) async fn refused(mutation: Value, more: Value, expected: &str) {
    let why = told(vec![policy("p", &[mutation], &more)], json!({})).await.err().expect("refused");
    assert_eq!(why, format!("policy 'p' with binding 'of-p' denied request: {expected}"));
}

#[tokio::test]
async fn configurations_are_merged_into_the_object() {
    let replicas = |text: &str| [apply(&format!("Object{{spec: Object.spec{{replicas: {text}}}}}"))];
    check(&replicas("object.spec.replicas + 100"), json!({}), "/spec/replicas", json!(101)).await;
    check(&replicas("oldObject == null ? 5 : 6"), json!({}), "/spec/replicas", json!(5)).await;
    let variables = json!({"variables": [{"name": "ten", "expression": "10"}, {"name": "bad", "expression": "1 / 0"}]});
    check(&replicas("variables.ten + 1"), variables, "/spec/replicas", json!(11)).await;
    let volume = "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{volumes: \
                  [Object.spec.template.spec.volumes{name: 'y', hostPath: Object.spec.template.spec.volumes.hostPath{path: \
                  namespaceObject.metadata.labels.team}}]}}}}";
    let volumes = json!([{"name": "x", "emptyDir": {}}, {"name": "y", "hostPath": {"path": "a", "type": ""}}]);
    check(&[apply(volume)], json!({}), "/spec/template/spec/volumes", volumes).await;
    check(
        &[label("by", "request.userInfo.username")],
        json!({}),
        "/metadata/labels",
        json!({"app": "web", "by": "jane"}),
    )
    .await;
}

#[tokio::test]
async fn operations_are_carried_out_on_the_object() {
    let one = |text: &str| [patch(&format!("[{text}]"))];
    let replace = "JSONPatch{op: 'replace', path: '/spec/replicas', value: object.spec.replicas + 2}";
    check(&one(replace), json!({}), "/spec/replicas", json!(3)).await;
    let tested =
        |wanted: u8| one(&format!("JSONPatch{{op: 'test', path: '/spec/replicas', value: {wanted}}}, {replace}"));
    check(&tested(1), json!({}), "/spec/replicas", json!(3)).await;
    check(&tested(100), json!({}), "/spec/replicas", json!(1)).await;
    // A field that is removed gets its default again.
    check(&one("JSONPatch{op: 'remove', path: '/spec/replicas'}"), json!({}), "/spec/replicas", json!(1)).await;
    let escaped = "JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('k8s.io/x~y'), value: 'true'}";
    check(&one(escaped), json!({}), "/metadata/labels", json!({"app": "web", "k8s.io/x~y": "true"})).await;
    let container = "JSONPatch{op: 'add', path: '/spec/template/spec/containers/-', value: \
                     Object.spec.template.spec.containers{name: 'b', image: 'b:1'}}, \
                     JSONPatch{op: 'remove', path: '/spec/template/spec/containers/0'}";
    let made = told(vec![policy("p", &one(container), &json!({}))], json!({})).await.expect("let through");
    assert_eq!(made.object["spec"]["template"]["spec"]["containers"][0]["name"], "b");
    check(
        &[patch("[JSONPatch{op: 'replace', path: '/metadata/annotations', value: {'a': 'b'}}]")],
        json!({}),
        "/metadata/annotations",
        json!({"a": "b"}),
    )
    .await;
    // Each mutation sees what those before it made, and so do its variables.
    let mutations = [
        apply("Object{spec: Object.spec{replicas: object.spec.replicas + 100}}"),
        patch("[JSONPatch{op: 'replace', path: '/spec/replicas', value: variables.now + 10}]"),
    ];
    let variables = json!({"variables": [{"name": "now", "expression": "object.spec.replicas"}]});
    check(&mutations, variables, "/spec/replicas", json!(111)).await;
}

#[tokio::test]
async fn what_goes_wrong_refuses_the_write() {
    refused(
        apply("Object{spec: Object.specx{}}"),
        json!({}),
        "type mismatch: unexpected type name \"Object.specx\", expected \
        \"Object.spec\", which matches field name path from root Object type",
    )
    .await;
    refused(
        apply("Object{spec: Object.spec{replicasx: 1}}"),
        json!({}),
        "error applying patch: failed to convert patch object \
        to typed object: .spec.replicasx: field not declared in schema",
    )
    .await;
    refused(apply("Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'l': 'v'}}}}"), json!({}),
        "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector").await;
    refused(apply("'a'"), json!({}), "must evaluate to Object but got string").await;
    refused(
        apply("Object{spec: object.missing}"),
        json!({}),
        "expression 'Object{spec: object.missing}' resulted in error: no such key: missing",
    )
    .await;
    refused(
        patch("[JSONPatch{op: 'replace', path: '/spec/template/spec/containers/-', value: {}}]"),
        json!({}),
        "JSON Patch: replace operation does not apply: doc is missing key: /spec/template/spec/containers/-: missing value",
    )
    .await;
    let endless = "[JSONPatch{op: 'add', path: '/spec/replicas', value: lists.range(1000).all(a, lists.range(1000).all(b, a + b \
                   >= 0)) ? 1 : 0}]";
    refused(
        patch(endless),
        json!({}),
        &format!("expression '{endless}' resulted in error: operation cancelled: actual cost limit exceeded"),
    )
    .await;
    let conditions = json!({"matchConditions": [{"name": "c", "expression": "object.missing == 1"}]});
    refused(label("a", "'b'"), conditions, "expression 'object.missing == 1' resulted in error: no such key: missing")
        .await;
}

#[tokio::test]
async fn failures_are_ignored_where_the_policy_says_so() {
    let ignore = |more: Value| {
        let mut spec = json!({"failurePolicy": "Ignore"});
        more.as_object().expect("fields").iter().for_each(|(field, value)| spec[&**field] = value.clone());
        spec
    };
    // A change by other mutations of the policy stays.
    let mutations = [apply("Object{spec: object.missing}"), label("after", "'yes'")];
    check(&mutations, ignore(json!({})), "/metadata/labels/after", json!("yes")).await;
    let conditions = json!({"matchConditions": [{"name": "c", "expression": "object.missing == 1"}]});
    check(&[label("a", "'b'")], ignore(conditions), "/metadata/labels", json!({"app": "web"})).await;
    let unknown = json!({"paramKind": {"apiVersion": "v1", "kind": "Nothing"}});
    check(&[label("a", "'b'")], ignore(unknown.clone()), "/metadata/labels", json!({"app": "web"})).await;
    let refused = told(vec![policy("p", &[label("a", "'b'")], &unknown)], json!({})).await.err();
    let expected = "policy \"p\" denied request: failed to configure policy: failed to find resource referenced by paramKind: \
                    '/v1, Kind=Nothing'";
    assert_eq!(refused.as_deref(), Some(expected));
    // A field that the object cannot have is no failure of the policy's.
    let unknown_field = patch("[JSONPatch{op: 'add', path: '/spec/replicaz', value: 1}]");
    let why = told(vec![policy("p", &[unknown_field], &ignore(json!({})))], json!({})).await.err().expect("refused");
    assert!(why.contains("strict decoding error: unknown field \"spec.replicaz\""), "{why}");
}

#[tokio::test]
async fn refusals_have_the_form_of_upstreams() {
    let wrong = policy("p", &[apply("Object{spec: object.missing}"), apply("Object{spec: object.gone}")], &json!({}));
    let error = write(deployment()).refused(&context(vec![wrong], json!({})).await, &MUTATING).await;
    assert_eq!((error.code, &*error.reason), (403, "Invalid"));
    let causes = error.details.and_then(|d| d.causes).unwrap_or_default();
    assert_eq!(causes.len(), 2);
    assert_eq!(causes[0].message.as_deref(), Some(&*error.message));
}

#[tokio::test]
async fn policies_run_in_order_and_each_sees_the_ones_before() {
    let first = policy("a", &[label("environment", "'production'")], &json!({}));
    let condition = "object.?metadata.labels['environment'].orValue('') == 'production'";
    let conditional = |name: &str| {
        policy(name, &[label(name, "'ran'")], &json!({"matchConditions": [{"name": "c", "expression": condition}]}))
    };
    let made = told(vec![first, conditional("b")], json!({})).await.expect("let through");
    assert_eq!(made.object["metadata"]["labels"], json!({"app": "web", "environment": "production", "b": "ran"}));
    let last = policy("c", &[label("environment", "'production'")], &json!({}));
    let made = told(vec![conditional("b"), last], json!({})).await.expect("let through");
    assert_eq!(made.object["metadata"]["labels"], json!({"app": "web", "environment": "production"}));
}

#[tokio::test]
async fn a_policy_runs_once_for_each_object_of_params() {
    let more = |kind: &str| json!({"paramKind": {"apiVersion": "v1", "kind": kind}});
    let mutation = apply("Object{spec: Object.spec{replicas: object.spec.replicas + int(params.data.more)}}");
    let run = async |reference: Value| {
        let policies = vec![policy("p", std::slice::from_ref(&mutation), &more("ConfigMap"))];
        told(policies, json!({"paramRef": reference})).await.map(|made| made.object["spec"]["replicas"].clone())
    };
    assert_eq!(run(json!({"name": "one", "parameterNotFoundAction": "Deny"})).await, Ok(json!(11)));
    let selected = json!({"selector": {"matchLabels": {"p": "x"}}, "parameterNotFoundAction": "Deny"});
    assert_eq!(run(selected).await, Ok(json!(21)));
    assert_eq!(run(json!({"name": "none", "parameterNotFoundAction": "Allow"})).await, Ok(json!(1)));
    let missing = "policy 'p' with binding 'of-p' denied request: failed to configure binding: no params found for policy binding \
                   with `Deny` parameterNotFoundAction";
    assert_eq!(run(json!({"name": "none", "parameterNotFoundAction": "Deny"})).await, Err(missing.to_owned()));
}

#[tokio::test]
async fn what_there_is_nothing_to_change_in_is_left_alone() {
    let context = context(vec![policy("p", &[label("a", "'b'")], &json!({}))], json!({})).await;
    let delete = Write { operation: Operation::Delete, old: Some(deployment()), object: None, ..write(deployment()) };
    assert_eq!(delete.through(&context, &MUTATING).await, Ok(Value::Null));
    let other = Write { kind: ("", "pods", ""), ..write(deployment()) };
    assert_eq!(other.through(&context, &MUTATING).await, Ok(deployment()));
    let update = Write { operation: Operation::Update, old: Some(deployment()), ..write(deployment()) };
    let made = update.through(&context, &MUTATING).await.expect("let through");
    assert_eq!(made["metadata"]["labels"]["a"], "b");
    let off = Context { features: Features::default(), ..context };
    assert_eq!(write(deployment()).through(&off, &MUTATING).await, Ok(deployment()));
}

#[tokio::test]
async fn rights_are_asked_of_the_servers_authorizer() {
    let mutation = label("may", "authorizer.requestResource.check('approve').allowed() ? 'yes' : 'no'");
    let context = context(vec![policy("p", &[mutation], &json!({}))], json!({})).await;
    let may = async |context: &Context| {
        let write = Write { user: User::new("jane", ["dev"]), ..write(deployment()) };
        write.through(context, &MUTATING).await.expect("let through")["metadata"]["labels"]["may"].clone()
    };
    assert_eq!(may(&context).await, "yes");
    let nobody = Context { authorizer: Arc::<crate::auth::rbac::Rbac>::default(), ..context };
    assert_eq!(may(&nobody).await, "no");
}

/// The rest of upstream's TestApplyConfiguration.
#[tokio::test]
async fn lists_are_merged_by_their_keys() {
    let run = async |object: Value, text: &str| {
        let context = context(vec![policy("p", &[apply(text)], &json!({}))], json!({})).await;
        write(object).through(&context, &MUTATING).await.expect("let through")["spec"].clone()
    };
    let template = |fields: &str| {
        format!(
            "Object{{spec: Object.spec{{template: Object.spec.template{{spec: Object.spec.template.spec{{{fields}}}}}}}}}"
        )
    };
    let volumes = |spec: &Value| spec["template"]["spec"]["volumes"].clone();
    let of = |fields: Value| {
        let mut object = deployment();
        object["spec"]["template"]["spec"] = fields;
        object
    };
    let volume = template(
        "volumes: [Object.spec.template.spec.volumes{name: 'y', emptyDir: Object.spec.template.spec.volumes.emptyDir{}}]",
    );
    let (x, y) = (json!({"name": "x", "emptyDir": {}}), json!({"name": "y", "emptyDir": {}}));
    assert_eq!(volumes(&run(of(json!({"volumes": [x]})), &volume).await), json!([x, y]));
    let path =
        "Object.spec.template.spec.volumes{name: 'y', hostPath: Object.spec.template.spec.volumes.hostPath{path: 'a'}}";
    let made = run(of(json!({"volumes": [x, {"name": "y"}]})), &template(&format!("volumes: [{path}]"))).await;
    assert_eq!(volumes(&made)[1]["hostPath"]["path"], "a");
    let odd = "Object{spec: Object.spec{replicas: object.spec.replicas % 2 == 0 ? object.spec.replicas + 1 : object.spec.replicas}}";
    let mut even = deployment();
    even["spec"]["replicas"] = json!(2);
    assert_eq!(run(even, odd).await["replicas"], 3);
    let container = "containers: [Object.spec.template.spec.containers{name: 'nginx', image: 'nginx:1.14.2', ports: \
                     [Object.spec.template.spec.containers.ports{containerPort: 80}], resources: \
                     Object.spec.template.spec.containers.resources{limits: {'cpu': '128M'}}}]";
    let made = run(of(json!({})), &template(container)).await["template"]["spec"]["containers"][0].clone();
    assert_eq!((&made["image"], &made["ports"][0]["containerPort"]), (&json!("nginx:1.14.2"), &json!(80)));
    assert_eq!(made["resources"]["limits"]["cpu"], "128M");
    // Two of one name stay in a list that is not spoken of, and become one where it is.
    let twice = || {
        let env =
            json!([{"name": "test", "value": "a"}, {"name": "test", "value": "b"}, {"name": "foo", "value": "bar"}]);
        of(json!({"containers": [{"name": "nginx", "env": env}]}))
    };
    let env = |spec: &Value| spec["template"]["spec"]["containers"][0]["env"].clone();
    let made = run(twice(), "Object{spec: Object.spec{replicas: 3}}").await;
    assert_eq!((&made["replicas"], env(&made)), (&json!(3), env(&twice()["spec"])));
    let change = "containers: [Object.spec.template.spec.containers{name: 'nginx', env: \
                  [Object.spec.template.spec.containers.env{name: 'test', value: 'c'}]}]";
    let made = run(twice(), &template(change)).await;
    assert_eq!(env(&made), json!([{"name": "test", "value": "c"}, {"name": "foo", "value": "bar"}]));
}
