//! How the assembled server answers those who may do little: conversations with authentication, policy and admission on.

use std::sync::Arc;

use api::Value;
use api::features::{Feature, Features, RuntimeConfig};
use http::Request;
use json::json;

use crate::assemble::{Options, ServiceAccounts, assemble};
use crate::bootstrap::Cluster;
use crate::http::body::Body;
use crate::server::Limits;
use crate::special::connect::connector::Connector;
use crate::{Server, User};

/// A server with a little of everything.
pub fn options() -> Options {
    Options {
        store: Arc::new(store::embedded::Embedded::memory()),
        cluster: Cluster::example(),
        client_certificates: None,
        front_proxy: None,
        service_accounts: ServiceAccounts::new("https://us", pki::SigningKey::create().unwrap()),
        token_file: Some(("tokens".into(), "secret,jane,1,dev\n".into())),
        anonymous: true,
        authentication: Default::default(),
        token_webhook: None,
        authorization: Default::default(),
        identity: "apiserver-test".to_owned(),
        node_ports: 30000..=32767,
        connector: None,
        front_proxy_client: None,
        routing: Default::default(),
        admission_plugins: Default::default(),
        toleration_seconds: (300, 300),
        admission: crate::admission::Configuration::default(),
        checks: crate::pages::health::Checks::default().with(
            "plugins",
            crate::pages::health::Counts::Everywhere,
            || Ok(()),
        ),
        components: crate::pages::health::Checks::default()
            .with("scheduler", crate::pages::health::Counts::Everywhere, || Ok(()))
            .with("controller-manager", crate::pages::health::Counts::Everywhere, || Err("it has ended".to_owned())),
        web: crate::http::web::Web::default(),
        limits: Limits::default(),
        audit: None,
        build: crate::pages::version::Build::default(),
        debugging: Default::default(),
        tracer: None,
        features: Default::default(),
        runtime_config: Default::default(),
    }
}

pub struct Talk(pub Server);

impl Talk {
    pub async fn start() -> Self {
        Self::with(None).await
    }

    /// With a way to kubelets.
    pub async fn with(connector: Option<Connector>) -> Self {
        Self::over(Options { connector, ..options() }).await
    }

    pub async fn over(options: Options) -> Self {
        Talk(assemble(options).await.unwrap())
    }

    /// `user` is a user name of `system:masters` (`+name`), a node (`@name`), a bearer token, or empty for nobody.
    pub async fn say(&self, user: &str, head: &str, body: Value) -> (u16, Value) {
        let (code, _, value) = self.hear(user, head, body).await;
        (code, value)
    }

    /// The answer with its warnings. The head's second line, if there is one, is the body's media type.
    pub async fn hear(&self, user: &str, head: &str, body: Value) -> (u16, Vec<String>, Value) {
        let response = self.send(user, head, body).await;
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|text| text.to_str().unwrap().to_owned()).collect();
        let bytes = response.into_body().collect(1 << 24).await.unwrap();
        (code, warnings, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// The answer as it is.
    pub async fn send(&self, user: &str, head: &str, body: Value) -> http::Response<Body> {
        let mut lines = head.lines();
        let (method, uri) = lines.next().unwrap().split_once(' ').unwrap();
        let media_type = lines.next().unwrap_or("application/json");
        let mut request = Request::builder().method(method).uri(uri).header("content-type", media_type);
        if let Some(name) = user.strip_prefix('+') {
            request = request.extension(Arc::new(User::new(name, ["system:masters"]).authenticated()));
        } else if let Some(node) = user.strip_prefix('@') {
            let user = User::new(format!("system:node:{node}"), ["system:nodes"]).authenticated();
            request = request.extension(Arc::new(user));
        } else if !user.is_empty() {
            request = request.header("authorization", format!("Bearer {user}"));
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(bytes::Bytes::from(body.to_string())) };
        self.0.handle(request.body(body).unwrap()).await
    }

    pub async fn ok(&self, user: &str, head: &str, body: Value) -> Value {
        let (code, value) = self.say(user, head, body).await;
        assert!(code < 300, "{head}: {code} {value}");
        value
    }
}

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// Upstream's test/integration/auth/auth_test.go: what does not exist is told before anybody is sent on.
#[tokio::test(start_paused = true)]
async fn proxies_lead_to_what_exists() {
    let tls = pki::client_config_believing_all(None, &["http/1.1"]).unwrap();
    let talk = Talk::with(Some(Connector::new(Arc::new(tls), vec!["InternalIP".to_owned()]))).await;
    let service = json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 8000}]}});
    talk.ok("+root", "POST /api/v1/namespaces/default/services", service).await;
    for (path, code) in [
        ("nodes/a", 404),
        ("namespaces/default/pods/a", 404),
        ("namespaces/default/services/b", 404),
        ("namespaces/default/services/a", 503),
    ] {
        for end in ["proxy", "proxy/"] {
            let (found, answer) = talk.say("+root", &format!("GET /api/v1/{path}/{end}"), json!(null)).await;
            assert_eq!(found, code, "{path}/{end}: {answer}");
        }
    }
    // Nor does it count that a request does not ask for the stream which only a Pod that is there could give.
    let account = json!({"metadata": {"name": "default"}});
    talk.ok("+root", "POST /api/v1/namespaces/default/serviceaccounts", account).await;
    talk.ok("+root", &format!("POST {PODS}"), pod("waiting")).await;
    for stream in ["exec?command=x", "attach", "portforward"] {
        for (name, code, why) in
            [("none", 404, "\"none\" not found"), ("waiting", 400, "does not have a host assigned")]
        {
            let (found, answer) = talk.say("+root", &format!("POST {PODS}/{name}/{stream}"), json!(null)).await;
            let message = answer["message"].as_str().unwrap_or_default();
            assert!(found == code && message.ends_with(why), "{name} {stream}: {answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_what_is_upstreams_policy() {
    let talk = Talk::start().await;
    let message = |value: &Value| value["message"].as_str().unwrap_or("").to_owned();
    let (code, refused) = talk.say("", &format!("GET {PODS}"), json!(null)).await;
    let expected = r#"pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace "default""#;
    assert_eq!((code, message(&refused).as_str()), (403, expected));
    assert_eq!(talk.say("wrong", &format!("GET {PODS}"), json!(null)).await.0, 401);
    assert_eq!(talk.say("secret", &format!("GET {PODS}"), json!(null)).await.0, 403);
    let review = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}});
    let can_i = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(talk.ok("secret", can_i, review.clone()).await["status"]["allowed"], false);
    let binding = json!({"metadata": {"name": "v"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    talk.ok("+root", &format!("POST {bindings}"), binding).await;
    talk.0.objects().caught_up().await.unwrap();
    assert_eq!(talk.ok("secret", can_i, review).await["status"]["allowed"], true);
    talk.ok("secret", &format!("GET {PODS}"), json!(null)).await;
    let who = talk.ok("secret", "POST /apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
    let expected = json!({"username": "jane", "uid": "1", "groups": ["dev", "system:authenticated"]});
    assert_eq!(who["status"]["userInfo"], expected);
    let rules = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let asked = json!({"spec": {"namespace": "default"}});
    let listed = talk.ok("secret", rules, asked.clone()).await;
    assert!(listed["status"]["resourceRules"].as_array().unwrap().len() > 5);
    assert_eq!((&listed["status"]["incomplete"], listed["status"].get("evaluationError")), (&json!(false), None));
    // The rights of a node are no list.
    let of_a_node = talk.ok("@n1", rules, asked).await;
    assert_eq!(of_a_node["status"]["incomplete"], true);
    let why = "node authorizer does not support user rule resolution";
    assert_eq!(of_a_node["status"]["evaluationError"], why);
}

#[tokio::test(start_paused = true)]
async fn only_who_may_do_everything_has_the_store_rewritten() {
    let talk = Talk::start().await;
    let ask = format!("POST {}", crate::router::REWRITE);
    assert_eq!(talk.say("+root", &ask, json!(null)).await.0, 404, "nothing to rewrite with");
    talk.0.on_rewrite(Box::new(|| Box::pin(std::future::ready(Ok(json!({"written": 1}))))));
    for user in ["", "secret", "@n1"] {
        assert_eq!(talk.say(user, &ask, json!(null)).await.0, 403, "{user:?}");
    }
    assert_eq!(talk.ok("+root", &ask, json!(null)).await, json!({"written": 1}));
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_admitted_bound_and_evicted_and_its_node_reads_for_it() {
    let talk = Talk::start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = talk.ok("+root", &format!("POST {accounts}"), json!({"metadata": {"name": "default"}})).await;
    let secret = json!({"metadata": {"name": "s"}, "data": {"k": "dg=="}});
    talk.ok("+root", "POST /api/v1/namespaces/default/secrets", secret).await;
    let mut wanted = pod("web");
    wanted["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "s"}}]);
    let made = talk.ok("+root", &format!("POST {PODS}"), wanted).await;
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(made["spec"]["priority"], 0);
    assert!(made["spec"]["volumes"][1]["name"].as_str().unwrap().starts_with("kube-api-access-"));

    let secret = "GET /api/v1/namespaces/default/secrets/s";
    assert_eq!(talk.say("@n1", secret, json!(null)).await.0, 403);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"}, "target": {"kind": "Node", "name": "n1"}});
    talk.ok("+root", &format!("POST {PODS}/web/binding"), binding.clone()).await;
    assert_eq!(talk.say("+root", &format!("POST {PODS}/web/binding"), binding).await.0, 409);
    let bound = talk.ok("+root", &format!("GET {PODS}/web"), json!(null)).await;
    assert_eq!((&bound["spec"]["nodeName"], &bound["status"]["phase"]), (&json!("n1"), &json!("Pending")));
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    talk.0.objects().caught_up().await.unwrap();
    talk.ok("@n1", secret, json!(null)).await;
    assert_eq!(talk.say("@n2", secret, json!(null)).await.0, 403);

    let request = json!({"spec": {"expirationSeconds": 3607, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": bound["metadata"]["uid"]}}});
    let path = format!("POST {accounts}/default/token");
    assert_eq!(talk.say("@n2", &path, request.clone()).await.0, 403);
    let token = talk.ok("@n1", &path, request).await;
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    let who = talk.ok(&token, "POST /apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
    let user = &who["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:default:default");
    assert_eq!(
        (&user["uid"], &user["extra"]["authentication.kubernetes.io/pod-name"]),
        (&account["metadata"]["uid"], &json!(["web"]))
    );
    let review = json!({"spec": {"token": token}});
    let review = talk.ok("+root", "POST /apis/authentication.k8s.io/v1/tokenreviews", review).await;
    assert_eq!(review["status"]["authenticated"], true, "{review}");

    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    talk.ok("+root", &format!("POST {budgets}"), budget).await;
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let patch = Request::patch(format!("{PODS}/web/status"))
        .header("content-type", "application/merge-patch+json")
        .extension(Arc::new(User::new("root", ["system:masters"])))
        .body(Body::from(bytes::Bytes::from(running.to_string())))
        .unwrap();
    assert_eq!(talk.0.handle(patch).await.status(), 200);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}});
    let evict = format!("POST {PODS}/web/eviction");
    assert_eq!(talk.say("+root", &evict, eviction.clone()).await.0, 429);
    talk.ok("+root", &format!("DELETE {budgets}/b"), json!(null)).await;
    talk.ok("+root", &evict, eviction).await;
    let going = talk.ok("+root", &format!("GET {PODS}/web"), json!(null)).await;
    assert!(going["metadata"]["deletionTimestamp"].is_string(), "a running Pod ends with grace");
}

#[tokio::test(start_paused = true)]
async fn components_show_how_they_are() {
    let talk = Talk::start().await;
    const COMPONENTS: &str = "GET /api/v1/componentstatuses";
    let list = talk.ok("+root", COMPONENTS, json!(null)).await;
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["scheduler", "controller-manager", "etcd-0"]);
    let healthy = json!([{"type": "Healthy", "status": "True", "message": "ok"}]);
    let ended = json!([{"type": "Healthy", "status": "False", "error": "it has ended"}]);
    assert_eq!((&list["items"][2]["conditions"], &list["items"][1]["conditions"]), (&healthy, &ended));
    let one = talk.ok("+root", &format!("{COMPONENTS}/scheduler"), json!(null)).await;
    assert_eq!((&one["kind"], &one["conditions"]), (&json!("ComponentStatus"), &healthy));
    let named = talk.ok("+root", &format!("{COMPONENTS}?fieldSelector=metadata.name%3Detcd-0"), json!(null)).await;
    assert_eq!(named["items"].as_array().unwrap().len(), 1);
    assert_eq!(talk.say("+root", &format!("{COMPONENTS}/x"), json!(null)).await.0, 404);
    assert_eq!(talk.say("+root", "POST /api/v1/componentstatuses", json!({})).await.0, 405);
    // A further check for the server's health stands among its checks.
    assert_eq!(talk.say("+root", "GET /readyz/plugins", json!(null)).await.0, 200);
    assert_eq!(talk.say("+root", "GET /readyz/scheduler", json!(null)).await.0, 404);
}

#[tokio::test]
async fn only_who_may_do_everything_looks_into_the_process() {
    let debugging = crate::pages::debug::Debugging { profiling: true, ..Default::default() };
    let talk = Talk::over(Options { debugging, ..options() }).await;
    for asked in
        ["GET /debug/pprof/", "GET /debug/pprof/profile?seconds=1", "GET /debug/pprof/goroutine", "PUT /debug/flags/v"]
    {
        assert_eq!(talk.say("secret", asked, json!(null)).await.0, 403, "{asked}");
        assert_eq!(talk.say("", asked, json!(null)).await.0, 403, "{asked}");
    }
    let check = async |asked: &str, body: Value, code: u16| {
        assert_eq!(talk.say("+root", asked, body).await.0, code, "{asked}");
    };
    check("GET /debug/pprof/", json!(null), 200).await;
    check("GET /debug/pprof/goroutine?debug=2", json!(null), 200).await;
    check("GET /debug/pprof/cmdline", json!(null), 200).await;
    check("GET /debug/pprof/symbol?0x1", json!(null), 200).await;
    check("GET /debug/pprof/profile?seconds=3000", json!(null), 400).await;
    check("GET /debug/pprof/heap", json!(null), 501).await;
    check("GET /debug/pprof/other", json!(null), 404).await;
    check("DELETE /debug/pprof/profile", json!(null), 404).await;
    check("GET /debug/flags/v", json!(null), 406).await;
    check("PUT /debug/flags/v", json!("much"), 400).await;
    check("PUT /debug/flags/v", json!(4), 200).await;
    assert_eq!(logs::verbosity(), 4);
    check("GET /debug/flags", json!(null), 200).await;
    check("PUT /debug/flags/w", json!(4), 404).await;
    let without = Talk::start().await;
    for page in ["GET /debug/pprof/", "PUT /debug/flags/v", "GET /debug/flags"] {
        assert_eq!(without.say("+root", page, json!(null)).await.0, 404, "--profiling=false: {page}");
    }
}

#[tokio::test]
async fn configurations_are_shown_to_who_may_read_everything() {
    let talk = Talk::start().await;
    assert_eq!(talk.say("+root", "GET /configz", json!(null)).await.0, 404);
    talk.0.show_configurations(json!({"componentconfig": {"podInitialBackoffSeconds": 1}}));
    assert_eq!(talk.say("", "GET /configz", json!(null)).await.0, 403);
    assert_eq!(talk.say("secret", "GET /configz", json!(null)).await.0, 403);
    let (code, shown) = talk.say("+root", "GET /configz", json!(null)).await;
    assert_eq!((code, &shown["componentconfig"]["podInitialBackoffSeconds"]), (200, &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn the_start_is_told_step_by_step() {
    let talk = Talk::start().await;
    // The checks that upstream's e2e test of the pages asks for.
    for check in [
        "ping",
        "log",
        "etcd",
        "poststarthook/start-apiserver-admission-initializer",
        "poststarthook/generic-apiserver-start-informers",
        "poststarthook/storage-object-count-tracker-hook",
        "poststarthook/start-apiextensions-informers",
        "poststarthook/start-apiextensions-controllers",
        "poststarthook/crd-informer-synced",
        "poststarthook/bootstrap-controller",
        "poststarthook/rbac/bootstrap-roles",
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        "poststarthook/start-cluster-authentication-info-controller",
        "poststarthook/aggregator-reload-proxy-client-cert",
        "poststarthook/start-kube-aggregator-informers",
        "poststarthook/apiservice-registration-controller",
        "poststarthook/apiservice-status-local-available-controller",
        "poststarthook/apiservice-status-remote-available-controller",
        "poststarthook/kube-apiserver-autoregistration",
        "autoregister-completion",
        "poststarthook/apiservice-openapi-controller",
    ] {
        for page in ["healthz", "livez", "readyz"] {
            let asked = format!("GET /{page}/{check}");
            assert_eq!(talk.say("+root", &asked, json!(null)).await.0, 200, "{page} {check}");
        }
    }
    assert_eq!(talk.say("+root", "GET /readyz/informer-sync", json!(null)).await.0, 200);
    assert_eq!(talk.say("+root", "GET /readyz/etcd-readiness", json!(null)).await.0, 200);
    assert_eq!(talk.say("+root", "GET /readyz", json!(null)).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn services_hold_addresses_until_they_go() {
    let talk = Talk::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let ports = json!([{"port": 80}]);
    let one = talk
        .ok("+root", &format!("POST {services}"), service("one", json!({"type": "NodePort", "ports": ports})))
        .await;
    assert!(one["spec"]["ports"][0]["nodePort"].as_i64().unwrap() >= 30000);
    let address = one["spec"]["clusterIP"].clone();
    let same = service("two", json!({"clusterIP": address, "ports": ports}));
    let (code, error) = talk.say("+root", &format!("POST {services}"), same.clone()).await;
    assert_eq!(code, 422);
    assert!(error["message"].as_str().unwrap().contains("provided IP is already allocated"), "{error}");
    talk.ok("+root", &format!("DELETE {services}/one"), json!(null)).await;
    talk.ok("+root", &format!("POST {services}"), same).await;
    let first = service("first", json!({"clusterIP": "10.96.0.1", "ports": ports}));
    assert_eq!(talk.say("+root", &format!("POST {services}"), first).await.0, 422, "it is the API server's own");
}

#[tokio::test(start_paused = true)]
async fn deletions_are_warned_of() {
    let talk = Talk::start().await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let rule = json!({"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
    let validation = json!({"expression": "false", "message": "gone is gone"});
    let policy = json!({"metadata": {"name": "p"},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}});
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Warn"]}});
    talk.ok("+root", &format!("POST {group}/validatingadmissionpolicies"), policy).await;
    talk.ok("+root", &format!("POST {group}/validatingadmissionpolicybindings"), binding).await;
    talk.0.objects().caught_up().await.unwrap();
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["a", "b", "c", "d"] {
        let held = (name == "b").then(|| json!(["example.com/held"]));
        let map = json!({"metadata": {"name": name, "finalizers": held}});
        talk.ok("+root", &format!("POST {maps}"), map).await;
    }
    let told = "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': gone is gone\"";
    for head in [
        format!("DELETE {maps}/a?dryRun=All"),
        format!("DELETE {maps}/a"),
        format!("DELETE {maps}/b"),
        format!("DELETE {maps}"),
    ] {
        let (code, warnings, answer) = talk.hear("+root", &head, json!(null)).await;
        assert_eq!((code, warnings.as_slice()), (200, [told.to_owned()].as_slice()), "{head}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn admission_policies_are_checked_bound_and_evaluated() {
    let talk = Talk::start().await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let (policies, bindings) =
        (format!("{group}/validatingadmissionpolicies"), format!("{group}/validatingadmissionpolicybindings"));
    let policy = |name: &str, group: &str, version: &str, resource: &str, validation: Value| {
        let rule = json!({"operations": ["CREATE", "UPDATE"], "apiGroups": [group], "apiVersions": [version],
            "resources": [resource]});
        json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}})
    };
    let bind =
        |name: &str| json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
    let broken = policy("broken", "", "v1", "configmaps", json!({"expression": "object.data.size("}));
    let (code, refused) = talk.say("+root", &format!("POST {policies}"), broken).await;
    assert_eq!((code, &refused["reason"]), (422, &json!("Invalid")));
    assert!(refused["message"].as_str().unwrap().contains("compilation failed: ERROR: <input>:1:18"), "{refused}");

    let small = policy(
        "small",
        "",
        "v1",
        "configmaps",
        json!({"expression": "object.data.size() <= 1",
        "messageExpression": "request.userInfo.username + ' wrote ' + string(object.data.size())"}),
    );
    talk.ok("+root", &format!("POST {policies}"), small).await;
    talk.ok("+root", &format!("POST {bindings}"), bind("small")).await;
    talk.0.objects().caught_up().await.unwrap();
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = |data: Value| json!({"metadata": {"name": "m"}, "data": data});
    let (code, refused) = talk.say("+root", &format!("POST {maps}"), map(json!({"a": "1", "b": "2"}))).await;
    let expected = "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'small' with binding 'small' denied request: \
                    root wrote 2";
    assert_eq!((code, refused["message"].as_str().unwrap()), (422, expected));
    talk.ok("+root", &format!("POST {maps}"), map(json!({"a": "1"}))).await;
    assert_eq!(talk.say("+root", &format!("PUT {maps}/m"), map(json!({"a": "1", "b": "2"}))).await.0, 422);
    talk.ok("+root", &format!("DELETE {maps}/m"), json!(null)).await;

    // A rule about one version is about the same objects in the others, and sees them in its own.
    let converted =
        "request.kind.version == 'v2' && request.requestKind.version == 'v1' && object.spec.metrics.size() == 2";
    let scaling = policy("scaling", "autoscaling", "v2", "horizontalpodautoscalers", json!({"expression": converted}));
    talk.ok("+root", &format!("POST {policies}"), scaling).await;
    talk.ok("+root", &format!("POST {bindings}"), bind("scaling")).await;
    talk.0.objects().caught_up().await.unwrap();
    let scaler = json!({"metadata": {"name": "s"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let path = "POST /apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let (code, refused) = talk.say("+root", path, scaler).await;
    assert_eq!(code, 422, "{refused}");
    assert!(refused["message"].as_str().unwrap().ends_with(&format!("failed expression: {converted}")), "{refused}");
    talk.ok("+root", &format!("DELETE {bindings}/scaling"), json!(null)).await;
    talk.ok("+root", &format!("DELETE {policies}/scaling"), json!(null)).await;
}

#[tokio::test(start_paused = true)]
async fn mutating_policies_change_what_is_written_where_they_are_on() {
    let features = Features::default().with(Feature::MutatingAdmissionPolicy, true);
    let group = "admissionregistration.k8s.io";
    let served = RuntimeConfig::parse(&[format!("{group}/v1beta1=true,{group}/v1alpha1=true")]).unwrap();
    let talk = Talk::over(Options { features, runtime_config: served, ..options() }).await;
    let path = |version: &str, plural: &str| format!("/apis/{group}/{version}/{plural}");
    let rule = |group: &str, version: &str, resource: &str| json!([{"operations": ["CREATE", "UPDATE"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]}]);
    let policy = |name: &str, rules: Value, mutation: &str| {
        json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": rules}, "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mutation}}]}})
    };
    let bind = |name: &str| json!({"metadata": {"name": name}, "spec": {"policyName": name}});
    let label = "Object{metadata: Object.metadata{labels: {'by': request.userInfo.username}}}";
    talk.ok(
        "+root",
        &format!("POST {}", path("v1alpha1", "mutatingadmissionpolicies")),
        policy("label", rule("", "v1", "configmaps"), label),
    )
    .await;
    talk.ok("+root", &format!("POST {}", path("v1beta1", "mutatingadmissionpolicybindings")), bind("label")).await;
    let read =
        talk.ok("+root", &format!("GET {}/label", path("v1beta1", "mutatingadmissionpolicies")), json!(null)).await;
    assert_eq!(
        (&read["apiVersion"], &read["spec"]["failurePolicy"]),
        (&json!(format!("{group}/v1beta1")), &json!("Fail"))
    );
    // A rule about one version changes the same objects in the others, in its own.
    let most = "Object{spec: Object.spec{maxReplicas: 7, metrics: object.spec.metrics}}";
    let scaling = policy("scaling", rule("autoscaling", "v2", "horizontalpodautoscalers"), most);
    talk.ok("+root", &format!("POST {}", path("v1beta1", "mutatingadmissionpolicies")), scaling).await;
    talk.ok("+root", &format!("POST {}", path("v1beta1", "mutatingadmissionpolicybindings")), bind("scaling")).await;
    talk.0.objects().caught_up().await.unwrap();
    let maps = "/api/v1/namespaces/default/configmaps";
    let made = talk.ok("+root", &format!("POST {maps}"), json!({"metadata": {"name": "m"}, "data": {"a": "1"}})).await;
    assert_eq!((&made["metadata"]["labels"], &made["data"]), (&json!({"by": "root"}), &json!({"a": "1"})));
    let scaler = json!({"metadata": {"name": "s"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let (code, refused) = talk
        .say("+root", "POST /apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", scaler.clone())
        .await;
    let whole = "may not mutate atomic arrays, maps or structs: .spec.metrics";
    assert!(code == 403 && refused["message"].as_str().unwrap().contains(whole), "{refused}");
    let most = "Object{spec: Object.spec{maxReplicas: 7}}";
    let change = json!([{"op": "replace", "path": "/spec/mutations/0/applyConfiguration/expression", "value": most}]);
    let patch = format!("PATCH {}/scaling\napplication/json-patch+json", path("v1beta1", "mutatingadmissionpolicies"));
    talk.ok("+root", &patch, change).await;
    talk.0.objects().caught_up().await.unwrap();
    let made = talk.ok("+root", "POST /apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", scaler).await;
    assert_eq!(
        (&made["spec"]["maxReplicas"], &made["spec"]["targetCPUUtilizationPercentage"]),
        (&json!(7), &json!(50))
    );
    // The policies themselves are exempt, and whoever may not read params gives none.
    talk.ok("+root", &format!("DELETE {}/label", path("v1alpha1", "mutatingadmissionpolicies")), json!(null)).await;
    talk.0.objects().caught_up().await.unwrap();
    let made = talk.ok("+root", &format!("POST {maps}"), json!({"metadata": {"name": "n"}})).await;
    assert_eq!(made["metadata"]["labels"], json!(null));
}

/// Once more after the others, and only once, even if it is alone.
#[tokio::test(start_paused = true)]
async fn mutating_policies_run_again_where_they_want_to() {
    let features = Features::default().with(Feature::MutatingAdmissionPolicy, true);
    let group = "admissionregistration.k8s.io/v1beta1";
    let served = RuntimeConfig::parse(&[format!("{group}=true")]).unwrap();
    let talk = Talk::over(Options { features, runtime_config: served, ..options() }).await;
    let rules =
        json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
    for (name, again) in [("again", "IfNeeded"), ("once", "Never")] {
        let count = format!("string(int(object.?metadata.?labels.?{name}.orValue('0')) + 1)");
        let mutation = format!("Object{{metadata: Object.metadata{{labels: {{'{name}': {count}}}}}}}");
        let policy = json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": rules},
            "reinvocationPolicy": again,
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mutation}}]}});
        let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
        talk.ok("+root", &format!("POST /apis/{group}/mutatingadmissionpolicies"), policy).await;
        talk.ok("+root", &format!("POST /apis/{group}/mutatingadmissionpolicybindings"), binding).await;
    }
    talk.0.objects().caught_up().await.unwrap();
    let maps = "POST /api/v1/namespaces/default/configmaps";
    let made = talk.ok("+root", maps, json!({"metadata": {"name": "m"}})).await;
    assert_eq!(made["metadata"]["labels"], json!({"again": "2", "once": "1"}));
    talk.ok("+root", &format!("DELETE /apis/{group}/mutatingadmissionpolicybindings/once"), json!(null)).await;
    talk.0.objects().caught_up().await.unwrap();
    let made = talk.ok("+root", maps, json!({"metadata": {"name": "n"}})).await;
    assert_eq!(made["metadata"]["labels"], json!({"again": "2"}));
}

#[tokio::test(start_paused = true)]
async fn mutating_policies_are_not_served_unless_they_are_asked_for() {
    let talk = Talk::start().await;
    for version in ["v1beta1", "v1alpha1"] {
        let path = format!("GET /apis/admissionregistration.k8s.io/{version}/mutatingadmissionpolicies");
        assert_eq!(talk.say("+root", &path, json!(null)).await.0, 404);
    }
}

/// Where the server sends objects is said by those who may write definitions, and nobody else: not who may do everything with
/// the objects, nor who owns a namespace.
#[tokio::test(start_paused = true)]
async fn only_who_writes_definitions_names_webhooks() {
    let talk = Talk::start().await;
    let (crds, rbac) =
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/rbac.authorization.k8s.io/v1");
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let inward = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://169.254.169.254/latest"}}});
    let mut crd = json!({"metadata": {"name": "hosts.a.io"}, "spec": {"group": "a.io", "scope": "Namespaced",
        "names": {"plural": "hosts", "kind": "Host"}, "versions": [version("v1", true), version("v2", false)]}});
    talk.ok("+root", &format!("POST {crds}"), crd.clone()).await;
    let role =
        json!({"metadata": {"name": "all"}, "rules": [{"apiGroups": ["a.io"], "resources": ["*"], "verbs": ["*"]}]});
    talk.ok("+root", &format!("POST {rbac}/clusterroles"), role).await;
    for (name, role) in [("own", "all"), ("admin", "admin")] {
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
        talk.ok("+root", &format!("POST {rbac}/namespaces/default/rolebindings"), binding).await;
    }
    talk.0.objects().caught_up().await.unwrap();
    let hosts = "/apis/a.io/v1/namespaces/default/hosts";
    let host = json!({"apiVersion": "a.io/v1", "kind": "Host", "metadata": {"name": "h"}});
    for _ in 0..100 {
        if talk.say("secret", &format!("POST {hosts}"), host.clone()).await.0 == 201 {
            break;
        }
        talk.0.objects().caught_up().await.unwrap();
    }
    talk.ok("secret", &format!("GET {hosts}/h"), json!(null)).await;
    crd["spec"]["conversion"] = inward;
    for (verb, path) in
        [("POST", crds.to_owned()), ("PUT", format!("{crds}/hosts.a.io")), ("PUT", format!("{crds}/hosts.a.io/status"))]
    {
        assert_eq!(talk.say("secret", &format!("{verb} {path}"), crd.clone()).await.0, 403, "{verb} {path}");
    }
    talk.ok("secret", &format!("GET {}/h", hosts.replace("v1", "v2")), json!(null)).await;
}

#[tokio::test(start_paused = true)]
async fn a_question_has_no_form_but_its_own() {
    let talk = Talk::start().await;
    let question = r#"{"spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}}"#;
    for (accept, expected) in [
        ("application/json", 201),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", 406),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", 406),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", 201),
    ] {
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .extension(Arc::new(User::new("admin", ["system:masters"]).authenticated()))
            .header("content-type", "application/json")
            .header("accept", accept)
            .body(Body::from(bytes::Bytes::from(question)));
        assert_eq!(talk.0.handle(request.unwrap()).await.status(), expected, "{accept}");
    }
}
