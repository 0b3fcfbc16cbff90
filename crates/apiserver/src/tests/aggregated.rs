//! Group versions of other API servers, from the APIService to the answer, with a server that checks, lies, hangs and dies.

use std::sync::Arc;

use api::Value;
use base64::Engine as _;
use clock::Duration;
use http::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use json::json;
use pki::{Authority, Serving, Subject};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{ending, extension::Extension};
use crate::{
    Server, User,
    assemble::{Options, ServiceAccounts, assemble},
    auth::authn::front_proxy::Headers,
    bootstrap::Cluster,
    http::body::Body,
    server::Limits,
};

/// Nothing that a test waits for takes so long.
const LONG: Duration = Duration::from_secs(20);

pub(super) struct Scene {
    pub server: Server,
    front: Authority,
}

struct Answer {
    code: u16,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

impl Scene {
    pub async fn start(limits: Limits) -> Self {
        Self::over(|options| Options { limits, ..options }).await
    }

    /// With other settings.
    async fn over(change: impl FnOnce(Options) -> Options) -> Self {
        let front = Authority::create("front").unwrap();
        let shown = front.issue(&Subject::client("front-proxy-client", None)).unwrap();
        let options = Options {
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
            front_proxy_client: Some(Serving::new(&shown).unwrap()),
            routing: Default::default(),
            admission_plugins: Default::default(),
            toleration_seconds: (300, 300),
            admission: crate::admission::Configuration::default(),
            components: crate::pages::health::Checks::default(),
            checks: crate::pages::health::Checks::default(),
            web: crate::http::web::Web::default(),
            limits: Limits::default(),
            audit: None,
            build: crate::pages::version::Build::default(),
            debugging: Default::default(),
            tracer: None,
            features: Default::default(),
            runtime_config: Default::default(),
        };
        Scene { server: assemble(change(options)).await.unwrap(), front }
    }

    /// As the administrator.
    async fn say(&self, head: &str, body: Value) -> Answer {
        let root = Arc::new(User::new("root", ["system:masters"]).authenticated());
        self.send(head, body, Request::builder().extension(root)).await
    }

    /// As jane, with further headers.
    async fn jane(&self, head: &str, headers: &[(&str, &str)]) -> Answer {
        let request = Request::builder().header("authorization", "Bearer secret");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        self.send(head, json!(null), request).await
    }

    async fn send(&self, head: &str, body: Value, request: http::request::Builder) -> Answer {
        let (method, uri) = head.split_once(' ').unwrap();
        let method: Method = method.parse().unwrap();
        let json = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = request.method(method).uri(uri).header("content-type", json).body(body).unwrap();
        let response = self.server.handle(request).await;
        let code = response.status().as_u16();
        let text = match response.into_body().collect(1 << 24).await {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => format!("broken: {error}"),
        };
        Answer { code, text }
    }

    pub async fn ok(&self, head: &str, body: Value) -> Value {
        let answer = self.say(head, body).await;
        assert!(answer.code < 300, "{head}: {} {}", answer.code, answer.text);
        answer.json()
    }

    async fn discovered(&self, group: &str) -> Value {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let root = Arc::new(User::new("root", ["system:masters"]));
        let list =
            self.send("GET /apis", json!(null), Request::builder().extension(root).header("accept", accept)).await;
        let items = list.json()["items"].as_array().unwrap().clone();
        items.into_iter().find(|item| item["metadata"]["name"] == group).unwrap_or_default()
    }

    /// Waits until this is so.
    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let waiting = async {
            while !holds().await {
                clock::sleep(Duration::from_millis(5)).await;
            }
        };
        clock::timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
    }

    async fn condition(&self, name: &str) -> String {
        let object = self.ok(&format!("GET {SERVICES}/{name}"), json!(null)).await;
        let c = &object["status"]["conditions"][0];
        let text = |field: &str| c[field].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {}", text("status"), text("reason"), text("message"))
    }

    async fn until_condition(&self, name: &str, begins: &str) {
        self.until(begins, async || self.condition(name).await.starts_with(begins)).await;
    }

    /// Registers the group version with the server, which is reached by a name outside of the cluster.
    async fn register(&self, group_version: (&str, &str), extension: &Extension) {
        let (group, version) = group_version;
        let service =
            json!({"metadata": {"name": "ext"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
        self.say("POST /api/v1/namespaces/default/services", service).await;
        let bundle = base64::engine::general_purpose::STANDARD.encode(extension.authority.certificate());
        let registration = json!({"metadata": {"name": format!("{version}.{group}")}, "spec": {
            "group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 10, "caBundle": bundle,
            "service": {"namespace": "default", "name": "ext", "port": extension.address.port()}}});
        self.ok(&format!("POST {SERVICES}"), registration).await;
    }

    async fn with_extension(&self) -> Extension {
        let extension = Extension::start("ext", &self.front).await;
        self.register(("a.io", "v1"), &extension).await;
        self.until_condition("v1.a.io", "True Passed: all checks passed").await;
        extension
    }

    /// Lets jane do everything in the group.
    async fn allow_jane(&self) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let rules = json!([{"apiGroups": ["a.io"], "resources": ["*"], "verbs": ["*"]}]);
        self.ok(&format!("POST {rbac}/clusterroles"), json!({"metadata": {"name": "a"}, "rules": rules})).await;
        let binding = json!({"metadata": {"name": "a"}, "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "a"}});
        self.ok(&format!("POST {rbac}/clusterrolebindings"), binding).await;
        self.server.objects().caught_up().await.unwrap();
    }
}

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const THINGS: &str = "/apis/a.io/v1/namespaces/default/things";

#[tokio::test]
async fn requests_are_passed_on_in_the_users_name_when_he_may() {
    let scene = Scene::start(Limits::default()).await;
    let extension = scene.with_extension().await;
    let refused = scene.jane(&format!("GET {THINGS}/t"), &[]).await;
    let expected = r#"things.a.io "t" is forbidden: User "jane" cannot get resource "things" in API group "a.io" in the namespace "default""#;
    assert_eq!((refused.code, refused.json()["message"].as_str()), (403, Some(expected)));
    assert_eq!(extension.seen().uri, "", "what is not allowed here is not asked there");
    scene.allow_jane().await;
    let thing = scene.jane(&format!("GET {THINGS}/t?a=b%2Fc"), &[]).await;
    assert_eq!((thing.code, &thing.json()["metadata"]["name"]), (200, &json!("t")));
    let seen = extension.seen();
    assert_eq!(seen.uri, format!("{THINGS}/t?a=b%2Fc"));
    let user = seen.user.unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "1"));
    assert_eq!(user.groups, ["dev", "system:authenticated"]);
    assert!(!seen.headers.contains_key("authorization"), "the user's own credentials stay here");
    let forwarded = format!("localhost:{}", extension.address.port());
    assert_eq!(seen.headers["host"], forwarded);
    assert_eq!(seen.headers["x-forwarded-uri"], format!("{THINGS}/t"));
}

#[tokio::test]
async fn nobody_gives_himself_another_name() {
    let scene = Scene::start(Limits::default()).await;
    let extension = scene.with_extension().await;
    scene.allow_jane().await;
    let user = async |headers: &[(&str, &str)]| {
        assert_eq!(scene.jane(&format!("GET {THINGS}/t"), headers).await.code, 200);
        extension.seen().user.unwrap()
    };
    let jane = user(&[]).await;
    let claims = [
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-a", "b"),
        ("x-remote-uid", "0"),
    ];
    assert_eq!(user(&claims).await, jane);
    // Headers of the connection are dropped on the way: the user's name must not be made one.
    assert_eq!(user(&[("connection", "close, x-remote-user, x-remote-group, x-remote-uid")]).await, jane);
    assert_eq!(user(&[("connection", "upgrade, x-remote-group"), ("upgrade", "none")]).await, jane);
    let acting = scene.jane(&format!("GET {THINGS}/t"), &[("impersonate-user", "root")]).await;
    assert_eq!(acting.code, 403);
}

#[tokio::test]
async fn a_server_that_misbehaves_harms_its_own_requests() {
    let scene = Scene::start(Limits { request_timeout: Duration::from_secs(1), ..Limits::default() }).await;
    let extension = scene.with_extension().await;
    let ask = async |name: &str| {
        let answer = scene.say(&format!("GET {THINGS}/{name}"), json!(null)).await;
        format!("{} {}", answer.code, answer.text.lines().next().unwrap_or_default())
    };
    let redirected = "502 the backend attempted to redirect this request, which is not permitted";
    assert_eq!(ask("redirect").await, redirected);
    let switched = ask("switch").await;
    assert!(switched.starts_with("50"), "{switched}");
    let died = ask("die").await;
    assert!(died.starts_with("503 error trying to reach service: "), "{died}");
    let hung = ask("hang").await;
    assert!(hung.starts_with("200 broken: "), "{hung}");
    let endless = ask("endless").await;
    assert!(endless.starts_with("200 broken: "), "{endless}");
    let many = futures::future::join_all((0..50).map(|_| ask("hang"))).await;
    assert!(many.iter().all(|answer| answer.starts_with("200 broken") || answer.starts_with("50")), "{many:?}");
    assert_eq!(ask("t").await[..3], *"200");
    scene.ok("GET /api/v1/namespaces/default/pods", json!(null)).await;
    let origins = Request::get(format!("{THINGS}/origins")).extension(Arc::new(User::new("root", ["system:masters"])));
    let origins = scene.server.handle(origins.body(Body::empty()).unwrap()).await;
    assert!(origins.headers().contains_key("x-own") && !origins.headers().contains_key("access-control-allow-origin"));
    drop(extension);
}

#[tokio::test]
async fn availability_follows_the_service_and_the_server() {
    let scene = Scene::start(Limits::default()).await;
    let extension = Extension::start("ext", &scene.front).await;
    let before = scene.say(&format!("GET {THINGS}/t"), json!(null)).await;
    assert_eq!((before.code, &*before.text), (404, "404 page not found\n"));
    scene.register(("a.io", "v1"), &extension).await;
    scene.until_condition("v1.a.io", "True Passed: ").await;
    *extension.mood.lock() = StatusCode::INTERNAL_SERVER_ERROR;
    // A change of the object lets it be looked at again.
    let patch = json!({"spec": {"versionPriority": 11}});
    scene.ok(&format!("PATCH {SERVICES}/v1.a.io"), patch).await;
    let url = format!("https://localhost:{}/apis/a.io/v1", extension.address.port());
    let failed =
        format!("False FailedDiscoveryCheck: failing or missing response from {url}: bad status from {url}: 500");
    scene.until_condition("v1.a.io", &failed).await;
    let gone = scene.say(&format!("GET {THINGS}/t"), json!(null)).await;
    assert_eq!((gone.code, &*gone.text), (503, "service unavailable\n"));
    let metrics = scene.say("GET /metrics", json!(null)).await.text;
    assert!(metrics.contains("\naggregator_unavailable_apiservice{name=\"v1.a.io\"} 1\n"));
    assert!(metrics.contains("\naggregator_unavailable_apiservice{name=\"v1.apps\"} 0\n"));
    let fell = "aggregator_unavailable_apiservice_total{name=\"v1.a.io\",reason=\"FailedDiscoveryCheck\"} 1\n";
    assert!(metrics.contains(fell), "{metrics}");
    let broken_off = metrics.lines().find(|line| line.starts_with("apiserver_request_terminations_total{code=\"503\""));
    assert!(broken_off.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
    scene.until("stale", async || scene.discovered("a.io").await["versions"][0]["freshness"] == "Stale").await;
    *extension.mood.lock() = StatusCode::OK;
    scene.until_condition("v1.a.io", "True Passed: ").await;
    scene.ok("DELETE /api/v1/namespaces/default/services/ext", json!(null)).await;
    let missing = "False ServiceNotFound: service/ext in \"default\" is not present";
    scene.until_condition("v1.a.io", missing).await;
    scene.ok(&format!("DELETE {SERVICES}/v1.a.io"), json!(null)).await;
    scene.until("gone", async || scene.say(&format!("GET {THINGS}/t"), json!(null)).await.code == 404).await;
}

#[tokio::test]
async fn a_certificate_is_believed_only_from_the_bundle() {
    let scene = Scene::start(Limits::default()).await;
    let extension = scene.with_extension().await;
    let other = Authority::create("other").unwrap();
    let bundle = base64::engine::general_purpose::STANDARD.encode(other.certificate());
    let patch = |spec: Value| json!({ "spec": spec });
    scene.ok(&format!("PATCH {SERVICES}/v1.a.io"), patch(json!({ "caBundle": bundle }))).await;
    let ask = async || scene.say(&format!("GET {THINGS}/t"), json!(null)).await;
    scene.until("disbelief", async || ask().await.code == 503).await;
    let refused = ask().await.text;
    assert!(refused.starts_with("error trying to reach service: tls: "), "{refused}");
    let unverified = json!({"caBundle": null, "insecureSkipTLSVerify": true});
    scene.ok(&format!("PATCH {SERVICES}/v1.a.io"), patch(unverified)).await;
    scene.until("belief", async || ask().await.code == 200).await;
    drop(extension);
}

#[tokio::test]
async fn discovery_and_openapi_hold_what_others_serve() {
    let scene = Scene::start(Limits::default()).await;
    let extension = scene.with_extension().await;
    scene.until("told", async || scene.discovered("a.io").await["versions"][0]["freshness"] == "Current").await;
    let group = scene.discovered("a.io").await;
    assert_eq!(group["versions"][0]["resources"][0]["resource"], "things");
    let apps = scene.discovered("apps").await;
    assert!(apps["versions"][0]["resources"].as_array().unwrap().len() > 3, "it tells of its own group version only");
    let groups = scene.ok("GET /apis", json!(null)).await;
    let names: Vec<&str> = groups["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    assert_eq!(
        (names[0], names[names.len() - 2..].to_vec()),
        ("apiregistration.k8s.io", vec!["a.io", "metrics.k8s.io"])
    );
    assert_eq!(scene.ok("GET /apis/a.io", json!(null)).await["preferredVersion"]["version"], "v1");
    assert_eq!(scene.ok("GET /apis/a.io/v1", json!(null)).await["groupVersion"], "a.io/v1");
    let index = async || scene.ok("GET /openapi/v3", json!(null)).await["paths"]["apis/a.io/v1"].clone();
    scene.until("described", async || index().await.is_object()).await;
    let url = index().await["serverRelativeURL"].as_str().unwrap().to_owned();
    assert_eq!(scene.ok(&format!("GET {url}"), json!(null)).await, json!({"openapi": "3.0.0", "own": true}));
    let all = scene.ok("GET /openapi/v2", json!(null)).await;
    let paths = all["paths"].as_object().unwrap();
    assert!(paths.contains_key("/apis/a.io/v1/things") && !paths.contains_key("/apis/apps/v1/lies"));
    drop(extension);
}

#[tokio::test]
async fn local_groups_are_listed_and_the_own_metrics_give_way() {
    let scene = Scene::start(Limits::default()).await;
    assert_eq!(scene.condition("v1.apps").await, "True Local: Local APIServices are always available");
    assert_eq!(scene.say(&format!("GET {SERVICES}/v1.apiregistration.k8s.io"), json!(null)).await.code, 404);
    let ours = scene.ok("GET /apis/metrics.k8s.io/v1beta1", json!(null)).await;
    assert_eq!(ours["resources"].as_array().unwrap().len(), 2);
    let extension = Extension::start("ext", &scene.front).await;
    scene.register(("metrics.k8s.io", "v1beta1"), &extension).await;
    scene.until_condition("v1beta1.metrics.k8s.io", "True Passed: ").await;
    let theirs = scene.ok("GET /apis/metrics.k8s.io/v1beta1/nodes", json!(null)).await;
    assert_eq!(theirs["kind"], "Thing");
    scene.ok(&format!("DELETE {SERVICES}/v1beta1.metrics.k8s.io"), json!(null)).await;
    let back = async || scene.ok("GET /apis/metrics.k8s.io/v1beta1", json!(null)).await == ours;
    scene.until("the own metrics", back).await;
    // A group that APIServices are made of is no other server's, whatever an administrator writes.
    scene.register(("apiregistration.k8s.io", "v1"), &extension).await;
    scene.ok(&format!("GET {SERVICES}"), json!(null)).await;
}

/// A connection to the listening server, over TLS.
pub(super) async fn dial(scene: &Scene) -> (crate::Listening, tokio_rustls::client::TlsStream<TcpStream>) {
    let authority = Authority::create("us").unwrap();
    let issued = authority.issue(&Subject::server("us", vec!["127.0.0.1".into()])).unwrap();
    let tls = pki::server_config(Serving::new(&issued).unwrap(), None, &["http/1.1"]).unwrap();
    let listening = scene.server.listen("127.0.0.1:0".parse().unwrap(), Arc::new(tls)).await.unwrap();
    let client = pki::client_config(authority.certificate(), None, &["http/1.1"]).unwrap();
    let tcp = TcpStream::connect(listening.address).await.unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    let io = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, tcp).await.unwrap();
    (listening, io)
}

#[tokio::test]
async fn upgrades_pass_both_ways() {
    let scene = Scene::start(Limits::default()).await;
    let extension = scene.with_extension().await;
    scene.allow_jane().await;
    let (_listening, io) = dial(&scene).await;
    let request = Request::get(format!("{THINGS}/t/echo"))
        .header("host", "us")
        .header("authorization", "Bearer secret")
        .header("connection", "Upgrade, X-Remote-Group")
        .header("upgrade", "echo");
    let mut answer = stream::upgrade::send(request.body(Body::empty()).unwrap(), io).await.unwrap();
    assert_eq!(answer.status(), 101);
    let seen = extension.seen();
    assert_eq!(seen.user.unwrap().groups, ["dev", "system:authenticated"]);
    assert_eq!(seen.headers["x-forwarded-for"], "127.0.0.1");
    let mut io = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    io.write_all(b"hello").await.unwrap();
    io.shutdown().await.unwrap();
    let mut back = String::new();
    io.read_to_string(&mut back).await.unwrap();
    assert_eq!(back, "hello");
}

#[tokio::test]
async fn watches_stream_and_outlive_the_time_of_other_requests() {
    let scene = Scene::start(Limits { request_timeout: Duration::from_millis(300), ..Limits::default() }).await;
    let extension = scene.with_extension().await;
    let watch = Request::get(format!("{THINGS}?watch=1")).extension(Arc::new(User::new("root", ["system:masters"])));
    let watch = scene.server.handle(watch.body(Body::empty()).unwrap()).await;
    let mut body = watch.into_body();
    let frame = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap();
    assert!(frame.data_ref().unwrap().starts_with(b"{\"type\":\"ADDED\""));
    // Another request breaks off when its time is over; the watch goes on beyond that.
    let hung = scene.say(&format!("GET {THINGS}/hang"), json!(null)).await.text;
    assert!(hung.starts_with("broken: "), "{hung}");
    assert!(futures::poll!(Box::pin(http_body_util::BodyExt::frame(&mut body))).is_pending());
    drop(extension);
}

#[tokio::test]
async fn a_request_that_comes_back_ends() {
    let scene = Scene::start(Limits::default()).await;
    let extension = scene.with_extension().await;
    scene.say(&format!("GET {THINGS}/t"), json!(null)).await;
    let through = extension.seen().headers["x-skiff-aggregator"].to_str().unwrap().to_owned();
    scene.allow_jane().await;
    let again = scene.jane(&format!("GET {THINGS}/t"), &[("x-skiff-aggregator", &through)]).await;
    assert_eq!(again.code, 508);
    assert_eq!(scene.jane(&format!("GET {THINGS}/t"), &[("x-skiff-aggregator", "another")]).await.code, 200);
}

/// Extension servers are told in which headers this server names users: no client may send one of those on.
#[tokio::test]
async fn headers_that_name_users_here_are_not_passed_on() {
    let headers = Headers {
        user: vec!["X-Remote-User".to_owned(), "X-My-User".to_owned()],
        groups: vec!["X-Team".to_owned(), "X-Remote-Group".to_owned()],
        extra_prefixes: vec!["X-More-".to_owned()],
        ..Headers::default()
    };
    let cluster = Cluster { front_proxy_headers: headers, ..Cluster::example() };
    let scene = Scene::over(|options| Options { cluster, ..options }).await;
    let extension = scene.with_extension().await;
    scene.allow_jane().await;
    let sent = [("X-My-User", "root"), ("x-team", "system:masters"), ("x-more-a", "b"), ("x-mine", "kept")];
    assert_eq!(scene.jane(&format!("GET {THINGS}/t"), &sent).await.code, 200);
    let seen = extension.seen();
    assert_eq!(seen.headers.get("x-mine").map(|value| value.as_bytes()), Some(&b"kept"[..]));
    for (name, _) in &sent[..3] {
        assert!(!seen.headers.contains_key(*name), "{name}");
    }
    assert_eq!(seen.user.unwrap().name, "jane");
}

/// A connection that was handed over outlives its listener, and the log of what was done over it is complete even so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_is_open_when_the_server_ends_is_audited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let audit = Some(ending::audited(&path));
    let scene = Scene::over(|options| Options { audit, ..options }).await;
    let _extension = scene.with_extension().await;
    scene.allow_jane().await;
    let (listening, io) = dial(&scene).await;
    let request = Request::get(format!("{THINGS}/t/echo"))
        .header("host", "us")
        .header("authorization", "Bearer secret")
        .header("connection", "Upgrade")
        .header("upgrade", "echo");
    let mut answer = stream::upgrade::send(request.body(Body::empty()).unwrap(), io).await.unwrap();
    let id = answer.headers()["audit-id"].to_str().unwrap().to_owned();
    let mut io = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    io.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    io.read_exact(&mut back).await.unwrap();
    let of = |id: &str| ending::stages(&std::fs::read_to_string(&path).unwrap()).remove(id).unwrap();
    assert!(!of(&id).contains(&"ResponseComplete".to_owned()), "it is open");
    assert!(clock::timeout(LONG, scene.server.end(listening, false, LONG)).await.unwrap());
    assert_eq!(of(&id).last().map(String::as_str), Some("ResponseComplete"));
    let told = of(&id).len();
    drop(io);
    scene.server.flush_audit().await;
    assert_eq!(of(&id).len(), told, "it is told once");
}
