//! Admission policies in the whole server, case by case as upstream's integration tests (test/integration/apiserver/cel).

use api::Value;
use api::features::{Feature, Features, RuntimeConfig};
use json::json;

use super::assembled::{Talk, options};
use crate::Options;

const GROUP: &str = "/apis/admissionregistration.k8s.io";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PANDAS: &str = "/apis/awesome.bears.com";

/// The two sorts of policies, with the place of each.
#[derive(Clone, Copy)]
enum Sort {
    Mutating,
    Validating,
}

impl Sort {
    fn place(self) -> String {
        match self {
            Sort::Mutating => format!("{GROUP}/v1beta1/mutatingadmissionpolic"),
            Sort::Validating => format!("{GROUP}/v1/validatingadmissionpolic"),
        }
    }
}

struct Scene(Talk);

fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!([{"operations": ["*"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]}])
}

fn with(mut fields: Value, more: &Value) -> Value {
    more.as_object().into_iter().flatten().for_each(|(field, value)| fields[&**field] = value.clone());
    fields
}

impl Scene {
    async fn start() -> Self {
        let features = Features::default().with(Feature::MutatingAdmissionPolicy, true);
        let runtime_config = RuntimeConfig::parse(&["admissionregistration.k8s.io/v1beta1=true".to_owned()]).unwrap();
        Scene(Talk::over(Options { features, runtime_config, ..options() }).await)
    }

    async fn ok(&self, head: &str, body: Value) -> Value {
        self.0.ok("+root", head, body).await
    }

    async fn follow(&self) {
        self.0.0.objects().caught_up().await.unwrap();
    }

    /// A policy about Endpoints, but for these fields of its spec.
    async fn policy(&self, sort: Sort, name: &str, fields: Value) {
        let constraints = json!({"resourceRules": rule("", "v1", "endpoints")});
        let mut spec = json!({"matchConstraints": constraints});
        if let Sort::Mutating = sort {
            spec["reinvocationPolicy"] = json!("Never");
        }
        let policy = json!({"metadata": {"name": name}, "spec": with(spec, &fields)});
        self.ok(&format!("POST {}ies", sort.place()), policy).await;
        self.follow().await;
    }

    async fn bind(&self, sort: Sort, name: &str, policy: &str, fields: Value) {
        let mut spec = json!({"policyName": policy});
        if let Sort::Validating = sort {
            spec["validationActions"] = json!(["Deny"]);
        }
        let binding = json!({"metadata": {"name": name}, "spec": with(spec, &fields)});
        self.ok(&format!("POST {}ybindings", sort.place()), binding).await;
        self.follow().await;
    }

    async fn params(&self, name: &str, labels: Value, data: Value) {
        self.ok(&format!("POST {MAPS}"), json!({"metadata": {"name": name, "labels": labels}, "data": data})).await;
    }

    /// The metadata of Endpoints that are created with these metadata, for trial.
    async fn made(&self, metadata: Value) -> Value {
        let body = json!({"metadata": with(json!({"name": "object"}), &metadata)});
        self.ok(&format!("POST {ENDPOINTS}?dryRun=All"), body).await["metadata"].clone()
    }

    /// Takes all policies, bindings and params away.
    async fn clear(&self, sort: Sort) {
        for collection in [format!("{}ies", sort.place()), format!("{}ybindings", sort.place())] {
            self.ok(&format!("DELETE {collection}"), Value::Null).await;
        }
        self.ok(&format!("DELETE {MAPS}"), Value::Null).await;
        self.follow().await;
    }

    async fn define_pandas(&self) {
        let version = |name: &str, storage: bool| {
            let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
            json!({"name": name, "served": true, "storage": storage, "schema": schema})
        };
        let names = json!({"plural": "pandas", "kind": "Panda"});
        let spec = json!({"group": "awesome.bears.com", "scope": "Cluster", "names": names,
            "versions": [version("v1", true), version("v2", false)]});
        self.ok(&format!("POST {CRDS}"), json!({"metadata": {"name": "pandas.awesome.bears.com"}, "spec": spec})).await;
        while self.0.say("+root", &format!("GET {PANDAS}/v2/pandas"), Value::Null).await.0 != 200 {
            tokio::task::yield_now().await;
        }
    }

    /// The message that refuses a namespace of this name, or an empty one.
    async fn namespace(&self, user: &str, name: &str) -> String {
        let body = json!({"metadata": {"name": name}});
        let (code, answer) = self.0.say(user, "POST /api/v1/namespaces?dryRun=All", body).await;
        if code < 300 { String::new() } else { answer["message"].as_str().unwrap_or_default().to_owned() }
    }
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn annotate(entries: &str) -> Value {
    apply(&format!("Object{{metadata: Object.metadata{{annotations: {{{entries}}}}}}}"))
}

/// Counts how often it ran.
fn counting(entry: &str) -> Value {
    annotate(&format!("?\"foo\": optional.of(string(int(object.metadata.annotations[\"foo\"]) + 1)){entry}"))
}

#[tokio::test]
async fn mutations_are_made_by_the_policies_that_are_bound() {
    use Sort::Mutating;
    let scene = Scene::start().await;
    let annotations = async |metadata: Value| scene.made(metadata).await["annotations"].clone();
    let none = || json!({});

    scene.policy(Mutating, "one", json!({"mutations": [annotate("\"foo1\": \"foo1Value\"")]})).await;
    assert_eq!(annotations(none()).await, Value::Null, "it is not bound");
    scene.bind(Mutating, "one", "one", none()).await;
    assert_eq!(annotations(none()).await, json!({"foo1": "foo1Value"}));
    scene.policy(Mutating, "two", json!({"mutations": [annotate("\"foo2\": \"foo2Value\"")]})).await;
    scene.bind(Mutating, "two", "two", none()).await;
    assert_eq!(annotations(none()).await, json!({"foo1": "foo1Value", "foo2": "foo2Value"}));
    scene.clear(Mutating).await;
    assert_eq!(annotations(none()).await, Value::Null);

    let variables = json!([{"name": "foo1", "expression": "\"foo1\" + \"Value\""},
        {"name": "foo2", "expression": "variables.foo1.replace(\"1\", \"2\")"}]);
    let operations = "[JSONPatch{op: \"test\", path: \"/metadata/annotations\", value: {\"foo1\": variables.foo1}}, \
                      JSONPatch{op: \"add\", path: \"/metadata/annotations/foo2\", value: variables.foo2},]";
    let patch = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": operations}});
    let mutations = json!([annotate("\"foo1\": variables.foo1"), patch, annotate("\"foo3\": \"foo3Value\"")]);
    scene.policy(Mutating, "p", json!({"variables": variables, "mutations": mutations})).await;
    scene.bind(Mutating, "p", "p", none()).await;
    let expected = json!({"foo1": "foo1Value", "foo2": "foo2Value", "foo3": "foo3Value"});
    assert_eq!(annotations(none()).await, expected);
    scene.clear(Mutating).await;

    let wrong = apply("Object{spec: Object.spec{invalidField: \"invalid apply configuration\"}}");
    scene.policy(Mutating, "p", json!({"failurePolicy": "Ignore", "mutations": [wrong]})).await;
    scene.bind(Mutating, "p", "p", none()).await;
    assert_eq!(annotations(none()).await, Value::Null);
    scene.clear(Mutating).await;

    let label =
        |value: &str| apply(&format!("Object{{metadata: Object.metadata{{labels: {{\"applied\": \"{value}\"}}}}}}"));
    for (name, environment) in [("wrong", "production"), ("updated", "test")] {
        let expression = format!("object.metadata.?labels[\"environment\"] == optional.of(\"{environment}\")");
        let conditions = json!([{"name": "test-only", "expression": expression}]);
        scene.policy(Mutating, name, json!({"matchConditions": conditions, "mutations": [label(name)]})).await;
        scene.bind(Mutating, name, name, none()).await;
    }
    let labels = async |metadata: Value| scene.made(metadata).await["labels"].clone();
    let tested = labels(json!({"labels": {"environment": "test"}})).await;
    assert_eq!(tested, json!({"environment": "test", "applied": "updated"}));
    assert_eq!(labels(json!({"labels": {"environment": "other"}})).await, json!({"environment": "other"}));
    assert_eq!(labels(none()).await, Value::Null);
}

#[tokio::test]
async fn mutations_are_made_once_for_each_param_and_once_more_after_others() {
    use Sort::Mutating;
    let scene = Scene::start().await;
    let annotations = async |metadata: Value| scene.made(metadata).await["annotations"].clone();
    let kind = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let data = apply("Object{metadata: Object.metadata{annotations: params.data}}");

    let one = json!({"paramKind": kind, "mutations": [annotate("params.data[\"key\"]: params.data[\"value\"]")]});
    scene.params("p", json!({}), json!({"key": "myFooKey", "value": "myFooValue"})).await;
    scene.policy(Mutating, "p", one).await;
    let named = |name: &str| json!({"paramRef": {"name": name, "parameterNotFoundAction": "Allow"}});
    scene.bind(Mutating, "p", "p", named("p")).await;
    assert_eq!(annotations(json!({})).await, json!({"myFooKey": "myFooValue"}));
    scene.clear(Mutating).await;

    let labels = json!({"chosen": "true"});
    scene.params("p1", labels.clone(), json!({"key1": "value1"})).await;
    scene.params("p2", labels.clone(), json!({"key2": "value2", "key3": "value3"})).await;
    let all = json!({"key1": "value1", "key2": "value2", "key3": "value3"});
    scene.policy(Mutating, "p", json!({"paramKind": kind, "mutations": [data]})).await;
    let selected = json!({"paramRef": {"namespace": "default", "parameterNotFoundAction": "Allow",
        "selector": {"matchLabels": labels}}});
    scene.bind(Mutating, "p", "p", selected).await;
    assert_eq!(annotations(json!({})).await, all, "one binding for both");
    scene.ok(&format!("DELETE {}ybindings/p", Mutating.place()), Value::Null).await;
    for name in ["p1", "p2"] {
        let named = json!({"paramRef": {"name": name, "namespace": "default", "parameterNotFoundAction": "Allow"}});
        scene.bind(Mutating, name, "p", named).await;
    }
    assert_eq!(annotations(json!({})).await, all, "a binding for each");
    scene.clear(Mutating).await;

    // The last one is not run again, but the two before it are, since it has changed something: once.
    for (name, again) in [("first", "IfNeeded"), ("second", "IfNeeded"), ("third", "Never")] {
        let mutation = counting(&format!(", \"{name}Applied\": \"true\""));
        scene.policy(Mutating, name, json!({"reinvocationPolicy": again, "mutations": [mutation]})).await;
        scene.bind(Mutating, name, name, json!({})).await;
    }
    let counted = json!({"firstApplied": "true", "foo": "5", "secondApplied": "true", "thirdApplied": "true"});
    assert_eq!(annotations(json!({"annotations": {"foo": "0"}})).await, counted);
    scene.clear(Mutating).await;

    for (name, applied) in [("p1", "firstApplied"), ("p2", "secondApplied"), ("p3", "thirdApplied")] {
        let labels = if name == "p3" { json!({}) } else { json!({"again": "true"}) };
        scene.params(name, labels, json!({applied: "true"})).await;
    }
    for (name, again) in [("again", "IfNeeded"), ("once", "Never")] {
        let fields = json!({"paramKind": kind, "reinvocationPolicy": again, "mutations": [data, counting("")]});
        scene.policy(Mutating, name, fields).await;
    }
    let selected =
        json!({"paramRef": {"parameterNotFoundAction": "Allow", "selector": {"matchLabels": {"again": "true"}}}});
    scene.bind(Mutating, "again", "again", selected).await;
    scene.bind(Mutating, "once", "once", named("p3")).await;
    assert_eq!(annotations(json!({"annotations": {"foo": "0"}})).await, counted);
}

#[tokio::test]
async fn mutations_reach_statuses_and_all_versions_of_custom_kinds() {
    use Sort::Mutating;
    let scene = Scene::start().await;
    let mutation = "Object{status: Object.status{conditions: [Object.status.conditions{type: \
                    \"NamespaceDeletionContentFailure\", message: \"mutated\"}]}}";
    let constraints = json!({"resourceRules": rule("", "v1", "namespaces/status")});
    scene.policy(Mutating, "status", json!({"matchConstraints": constraints, "mutations": [apply(mutation)]})).await;
    scene.bind(Mutating, "status", "status", json!({})).await;
    scene.ok("POST /api/v1/namespaces", json!({"metadata": {"name": "test"}})).await;
    let condition = json!({"type": "NamespaceDeletionContentFailure", "status": "Unknown"});
    let status = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "test"},
        "status": {"conditions": [condition]}});
    let made = scene.ok("PUT /api/v1/namespaces/test/status?dryRun=All", status).await;
    let found = &made["status"]["conditions"][0];
    assert_eq!((&found["message"], &found["status"]), (&json!("mutated"), &json!("Unknown")), "{made}");
    assert_eq!((&made["status"]["phase"], &made["spec"]["finalizers"]), (&json!("Active"), &json!(["kubernetes"])));

    scene.define_pandas().await;
    let constraints = json!({"resourceRules": rule("awesome.bears.com", "v1", "pandas")});
    let mutation = apply("Object{ metadata: Object.metadata{ labels: {\"mutated-panda\": \"true\"} } }");
    let fields = json!({"matchConstraints": constraints, "reinvocationPolicy": "IfNeeded", "mutations": [mutation]});
    scene.policy(Mutating, "pandas", fields).await;
    scene.bind(Mutating, "pandas", "pandas", json!({})).await;
    for version in ["v1", "v2"] {
        let panda = json!({"apiVersion": format!("awesome.bears.com/{version}"), "kind": "Panda",
            "metadata": {"name": format!("{version}-bears")}});
        let made = scene.ok(&format!("POST {PANDAS}/{version}/pandas"), panda).await;
        assert_eq!(made["metadata"]["labels"], json!({"mutated-panda": "true"}));
        assert_eq!(made["apiVersion"], format!("awesome.bears.com/{version}"));
    }
}

#[tokio::test]
async fn rules_follow_their_policies_bindings_and_params() {
    use Sort::Validating;
    let scene = Scene::start().await;
    let policies = format!("{}ies", Validating.place());
    let bindings = format!("{}ybindings", Validating.place());
    let namespaces = || json!({"resourceRules": rule("", "*", "namespaces")});
    let refused = async |name: &str| scene.namespace("+root", name).await;
    let denied = |name: &str, why: &str| {
        format!(
            "namespaces \"{name}\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {why}"
        )
    };

    // The kind of params changes.
    scene.params("allowed", json!({}), json!({"prefix": "test-1"})).await;
    scene.ok("POST /api/v1/namespaces/default/secrets", json!({"metadata": {"name": "allowed"}})).await;
    let validation = json!({"expression": "object.metadata.name.startsWith(params.kind.lowerAscii())", "message": "wrong paramKind"});
    let kind = |kind: &str| json!({"apiVersion": "v1", "kind": kind});
    let fields = json!({"matchConstraints": namespaces(), "paramKind": kind("ConfigMap"), "validations": [validation]});
    scene.policy(Validating, "p", fields).await;
    let named = |name: &str| json!({"name": name, "namespace": "default", "parameterNotFoundAction": "Deny"});
    scene.bind(Validating, "b", "p", json!({"paramRef": named("allowed")})).await;
    assert_eq!(refused("configmap-a").await, "");
    assert_eq!(refused("secret-a").await, denied("secret-a", "wrong paramKind"));
    let merge = |path: &str| format!("PATCH {path}\napplication/merge-patch+json");
    scene.ok(&merge(&format!("{policies}/p")), json!({"spec": {"paramKind": kind("Secret")}})).await;
    scene.follow().await;
    assert_eq!(refused("secret-a").await, "");
    assert_eq!(refused("configmap-a").await, denied("configmap-a", "wrong paramKind"));

    // The reference and the params change, go and come back.
    let validation =
        json!({"expression": "object.metadata.name.startsWith(params.data['prefix'])", "message": "wrong prefix"});
    let changed = json!({"spec": {"paramKind": kind("ConfigMap"), "validations": [validation]}});
    scene.ok(&merge(&format!("{policies}/p")), changed).await;
    scene.params("other", json!({}), json!({"prefix": "test-2"})).await;
    scene.follow().await;
    let check = async |one: &str, two: &str| {
        assert_eq!((&*refused("test-1-a").await, &*refused("test-2-a").await), (one, two));
    };
    let (wrong_1, wrong_2) = (denied("test-1-a", "wrong prefix"), denied("test-2-a", "wrong prefix"));
    check("", &wrong_2).await;
    scene.ok(&merge(&format!("{bindings}/b")), json!({"spec": {"paramRef": named("other")}})).await;
    scene.follow().await;
    check(&wrong_1, "").await;
    scene.ok(&merge(&format!("{MAPS}/other")), json!({"data": {"prefix": "test-1"}})).await;
    scene.follow().await;
    check("", &wrong_2).await;
    scene.ok(&format!("DELETE {MAPS}/other"), Value::Null).await;
    scene.follow().await;
    let missing = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    check(&denied("test-1-a", missing), &denied("test-2-a", missing)).await;
    scene.params("other", json!({}), json!({"prefix": "test-2"})).await;
    scene.follow().await;
    check(&wrong_1, "").await;

    // The binding and the policy go and come back.
    let binding = scene.ok(&format!("GET {bindings}/b"), Value::Null).await;
    let policy = scene.ok(&format!("GET {policies}/p"), Value::Null).await;
    let again = |object: &Value| json!({"metadata": {"name": object["metadata"]["name"]}, "spec": object["spec"]});
    for (collection, object) in [(&bindings, &binding), (&policies, &policy)] {
        let name = object["metadata"]["name"].as_str().unwrap();
        scene.ok(&format!("DELETE {collection}/{name}"), Value::Null).await;
        scene.follow().await;
        check("", "").await;
        scene.ok(&format!("POST {collection}"), again(object)).await;
        scene.follow().await;
        check(&wrong_1, "").await;
    }

    // Custom objects are params, too, of the whole cluster.
    scene.define_pandas().await;
    let panda = json!({"apiVersion": "awesome.bears.com/v1", "kind": "Panda", "metadata": {"name": "config-obj"},
        "spec": {"nameCheck": "crd-test-k8s"}});
    scene.ok(&format!("POST {PANDAS}/v1/pandas"), panda).await;
    let rule = "params.spec.nameCheck == object.metadata.name";
    let kind = json!({"apiVersion": "awesome.bears.com/v1", "kind": "Panda"});
    let changed = json!({"spec": {"paramKind": kind, "validations": [{"expression": rule}]}});
    scene.ok(&merge(&format!("{policies}/p")), changed).await;
    let reference = json!({"name": "config-obj", "namespace": null, "parameterNotFoundAction": "Deny"});
    scene.ok(&merge(&format!("{bindings}/b")), json!({"spec": {"paramRef": reference}})).await;
    scene.follow().await;
    assert_eq!(refused("crd-test-k8s").await, "");
    assert_eq!(refused("incorrect-name").await, denied("incorrect-name", &format!("failed expression: {rule}")));
}

#[tokio::test]
async fn versions_of_custom_kinds_are_one_kind_unless_a_policy_says_otherwise() {
    use Sort::Validating;
    let scene = Scene::start().await;
    scene.define_pandas().await;
    for (policy, v2) in [("Equivalent", 422), ("Exact", 201)] {
        let constraints = json!({"matchPolicy": policy, "resourceRules": rule("awesome.bears.com", "v1", "pandas")});
        let fields = json!({"matchConstraints": constraints, "validations": [{"expression": "false"}]});
        scene.policy(Validating, "p", fields).await;
        scene.bind(Validating, "b", "p", json!({})).await;
        for (version, expected) in [("v1", 422), ("v2", v2)] {
            let panda = json!({"apiVersion": format!("awesome.bears.com/{version}"), "kind": "Panda",
                "metadata": {"name": "bears"}});
            let head = format!("POST {PANDAS}/{version}/pandas?dryRun=All");
            assert_eq!(scene.0.say("+root", &head, panda).await.0, expected, "{policy} {version}");
        }
        scene.clear(Validating).await;
    }
}

/// Users and accounts may have to have other rights for what they do.
#[tokio::test]
async fn rules_ask_for_the_rights_of_the_user_and_of_others() {
    use Sort::Validating;
    let scene = Scene::start().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let grant = async |name: &str, subject: Value, rules: Value| {
        scene.ok(&format!("POST {rbac}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules})).await;
        let binding = json!({"metadata": {"name": name}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}});
        scene.ok(&format!("POST {rbac}/clusterrolebindings"), binding).await;
        scene.follow().await;
    };
    let jane = || json!({"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"});
    let right = |verb: &str, group: &str, resource: &str, names: &[&str]| json!([{"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": names}]);
    grant("create", jane(), json!([{"verbs": ["create"], "apiGroups": [""], "resources": ["namespaces"]}])).await;
    let extra = json!({"kind": "ServiceAccount", "name": "extra-acct", "namespace": "default"});
    let deployment = "authorizer.group('apps').resource('deployments').subresource('status').namespace('default')\
                      .namespace('default').name('charmander').check('create').allowed()";
    let own = "authorizer.requestResource.check('anthropomorphize').allowed()";
    let others = "authorizer.serviceAccount('default', 'extra-acct').group('').resource('pods')\
                  .check('anthropomorphize').allowed()";
    for (at, (expression, subject, rules)) in [
        (deployment, jane(), right("create", "apps", "deployments/status", &["charmander"])),
        (own, jane(), right("anthropomorphize", "", "namespaces", &[])),
        (others, extra, right("anthropomorphize", "", "pods", &[])),
    ]
    .into_iter()
    .enumerate()
    {
        let constraints = json!({"resourceRules": rule("", "*", "namespaces")});
        let fields = json!({"matchConstraints": constraints, "validations": [{"expression": expression}]});
        scene.policy(Validating, "p", fields).await;
        scene.bind(Validating, "b", "p", json!({})).await;
        let refused = scene.namespace("secret", "test-authz").await;
        assert!(refused.ends_with(&format!("failed expression: {expression}")), "{refused}");
        grant(&format!("right-{at}"), subject, rules).await;
        assert_eq!(scene.namespace("secret", "test-authz").await, "", "{expression}");
        scene.clear(Validating).await;
    }
}

/// A policy about everything does not lock out who asks what others may do.
#[tokio::test]
async fn questions_about_users_are_asked_whatever_policies_say() {
    let scene = Scene::start().await;
    let everything = json!({"resourceRules": rule("*", "*", "*")});
    let never = json!({"matchConstraints": everything, "validations": [{"expression": "false"}]});
    scene.policy(Sort::Validating, "never", never).await;
    scene.bind(Sort::Validating, "never", "never", json!({})).await;
    let (access, namespaced) = (json!({"verb": "get", "resource": "pods"}), json!({"namespace": "default"}));
    for (path, spec) in [
        ("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})),
        ("/apis/authentication.k8s.io/v1/tokenreviews", json!({"token": "x"})),
        ("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", namespaced.clone()),
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json!({"resourceAttributes": access})),
        ("/apis/authorization.k8s.io/v1/subjectaccessreviews", json!({"user": "x", "resourceAttributes": access})),
        (
            "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
            json!({"user": "x", "resourceAttributes": with(access.clone(), &namespaced)}),
        ),
    ] {
        scene.ok(&format!("POST {path}"), json!({"spec": spec})).await;
    }
    let refused = scene.namespace("+root", "other").await;
    assert!(refused.contains("ValidatingAdmissionPolicy 'never' with binding 'never' denied request"), "{refused}");
}

#[tokio::test]
async fn warnings_stand_in_the_order_in_which_they_are_earned() {
    let scene = Scene::start().await;
    let never = json!({"validations": [{"expression": "false", "message": "never"}]});
    scene.policy(Sort::Validating, "never", never).await;
    scene.bind(Sort::Validating, "never", "never", json!({"validationActions": ["Warn"]})).await;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    let object = |address: &str| {
        json!({"metadata": {"name": "e", "ownerReferences": [owner, owner]}, "unknown": 1,
            "subsets": [{"addresses": [{"ip": address}], "ports": [{"port": 80}]}]})
    };
    let expected = [
        "v1 Endpoints is deprecated",
        "unknown field",
        ".metadata.ownerReferences contains duplicate entries",
        "subsets[0].addresses[0].ip: non-standard IP address",
        "Validation failed for ValidatingAdmissionPolicy 'never'",
    ];
    let check = |warnings: Vec<String>, expected: &[&str]| {
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (warning, part) in warnings.iter().zip(expected) {
            assert!(warning.contains(part), "{part}: {warnings:?}");
        }
    };
    let (code, warnings, _) = scene.0.hear("+root", &format!("POST {ENDPOINTS}"), object("010.1.1.1")).await;
    assert_eq!(code, 201);
    check(warnings, &expected);
    let (code, warnings, _) = scene.0.hear("+root", &format!("PUT {ENDPOINTS}/e"), object("010.1.1.2")).await;
    assert_eq!(code, 200);
    check(warnings, &expected);
    // Each is told of beside a refusal too.
    let (code, warnings, _) = scene.0.hear("+root", &format!("POST {ENDPOINTS}"), object("010.1.1.1")).await;
    assert_eq!(code, 409);
    check(warnings, &expected);
}
