//! Identities: headers that can't be read never make somebody else of a user, tokens are good where they are meant, and
//! a node is its node.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    caller::{Answer, Caller},
    server::Server,
};

const PATIENCE: Duration = Duration::from_secs(60);
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// Asks again until the answer is as wanted: what follows the store follows it a moment later.
async fn until(ask: impl AsyncFn() -> Answer, wanted: impl Fn(&Answer) -> bool) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{} {}", answer.code, answer.text());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// `SelfSubjectReview` with these header lines, which may hold any bytes: the code, and the body.
async fn raw(caller: &Caller, lines: &[&[u8]]) -> (u16, String) {
    let mut stream = caller.connect("http/1.1").await.unwrap();
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let mut request = format!(
        "POST {WHOAMI} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n",
        body.len()
    )
    .into_bytes();
    for line in lines {
        request.extend_from_slice(line);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body.as_bytes());
    stream.write_all(&request).await.unwrap();
    let mut answer = Vec::new();
    // The server may end TLS without its farewell; what came is the answer.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an answer in time");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let code = answer.split(' ').nth(1).and_then(|c| c.parse().ok()).unwrap_or_default();
    (code, answer)
}

#[tokio::test]
async fn nobody_acts_as_himself_by_accident() {
    let server = Server::start().await;
    let admin = server.admin();
    let (code, answer) =
        raw(&admin, &["Impersonate-User: jösé".as_bytes(), "Impersonate-Group: größe".as_bytes()]).await;
    assert!(code == 201 && answer.contains("\"jösé\"") && answer.contains("\"größe\""), "{answer}");
    assert!(!answer.contains("system:masters"), "{answer}");
    let extra: &[&[u8]] = &[b"Impersonate-User: a", "Impersonate-Extra-J%c3%b6%2fx: jö".as_bytes()];
    let (code, answer) = raw(&admin, extra).await;
    assert!(code == 201 && answer.contains("\"jö/x\":[\"jö\"]"), "{answer}");
    for lines in [
        &[&b"Impersonate-User: j\xf6s\xe9"[..]][..],
        &[b"Impersonate-User: \xff"],
        &[b"Impersonate-User: a", b"Impersonate-Group: gr\xf6\xdfe"],
        &[b"Impersonate-User: a", b"Impersonate-Uid: \xff"],
        &[b"Impersonate-User: a", b"Impersonate-Extra-Scopes: \xff"],
        &[b"Impersonate-User: a", b"Impersonate-Extra-%ff: x"],
        &[b"Impersonate-User: a", b"Impersonate-User: b"],
        &[b"Impersonate-User: a", b"Impersonate-Uid: 1", b"Impersonate-Uid: 2"],
        &[b"Impersonate-User: a", b"Impersonate-Groups: b"],
        &[b"Impersonate-Usr: a"],
    ] {
        let (code, answer) = raw(&admin, lines).await;
        assert_eq!(code, 400, "{answer}");
    }
    for lines in [&[&b"Impersonate-Group: a"[..]][..], &[b"Impersonate-User:"], &[b"Impersonate-Uid: 1"]] {
        let (code, answer) = raw(&admin, lines).await;
        assert!(code == 400 && answer.contains("without impersonating a user"), "{answer}");
    }
    // Each part must be allowed, also one that is not ASCII.
    let one = |names: &[&str], resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["impersonate"], "resourceNames": names});
    server.allow_rules("mallory", "", vec![one(&["jösé"], "users"), one(&["leute"], "groups")]).await;
    let mallory = server.user("mallory");
    let bearer = b"Authorization: Bearer mallory-token";
    let user = "Impersonate-User: jösé".as_bytes();
    assert_eq!(raw(&mallory, &[bearer, user]).await.0, 201);
    assert_eq!(raw(&mallory, &[bearer, user, b"Impersonate-Group: leute"]).await.0, 201);
    for lines in [
        &[&bearer[..], user, "Impersonate-Group: größe".as_bytes()][..],
        &[bearer, "Impersonate-User: jose".as_bytes()],
        &[bearer, user, b"Impersonate-Uid: 1"],
        &[bearer, user, b"Impersonate-Extra-A: 1"],
    ] {
        assert_eq!(raw(&mallory, lines).await.0, 403);
    }
}

#[tokio::test]
async fn a_credential_that_cannot_be_read_is_refused() {
    let server = Server::start().await;
    let nobody = server.nobody();
    for lines in [
        &[&b"Authorization: Bearer \xff"[..]][..],
        &["Authorization: Bearer jösé".as_bytes()],
        &[b"Authorization: Bearer jane-token", b"Authorization: Bearer mallory-token"],
        &[b"Authorization: Basic eDp5", b"Authorization: Bearer jane-token"],
    ] {
        assert_eq!(raw(&nobody, lines).await.0, 401);
    }
    // Nobody but the front proxy speaks for others.
    for caller in [nobody, server.user("jane")] {
        let (code, answer) = raw(&caller, &[b"X-Remote-User: root", b"X-Remote-Group: system:masters"]).await;
        assert!(matches!(code, 401 | 403), "{answer}");
    }
}

/// Most clients show no certificate of an authority that they were not told of.
#[tokio::test]
async fn certificates_of_clients_and_of_front_proxies_are_asked_for() {
    let server = Server::start().await;
    let told = server.nobody().wanted_authorities().await;
    let holds = |name: &str| told.iter().any(|told| told.windows(name.len()).any(|part| part == name.as_bytes()));
    assert!(told.len() == 2 && holds("kubernetes") && holds("front-proxy-ca"), "{told:?}");
}

async fn review(server: &Server, token: &str, audiences: &[&str]) -> Value {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token, "audiences": audiences}});
    server.admin().create(REVIEWS, &review).await.expect(201).json()["status"].clone()
}

#[tokio::test]
async fn a_token_without_audience_is_for_the_api_server_alone() {
    let server = Server::start().await;
    server.joiner().await;
    for token in ["jane-token", "abcdef.0123456789abcdef"] {
        let own = review(&server, token, &[]).await;
        assert_eq!(own["authenticated"], true, "{own}");
        let server_itself = own["audiences"][0].as_str().unwrap().to_owned();
        assert_eq!(review(&server, token, &["vault"]).await["authenticated"], Value::Null);
        let both = review(&server, token, &["vault", &server_itself]).await;
        assert_eq!((&both["authenticated"], &both["audiences"]), (&json!(true), &json!([server_itself])));
    }
}

#[tokio::test]
async fn a_deleted_token_stays_deleted() {
    let server = Server::start().await;
    server.namespace("x").await;
    let admin = server.admin();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot"}});
    admin.create("/api/v1/namespaces/x/serviceaccounts", &account).await.expect(201);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "bot-token", "annotations": {"kubernetes.io/service-account.name": "bot"}}});
    let (secrets, path) = ("/api/v1/namespaces/x/secrets", "/api/v1/namespaces/x/secrets/bot-token");
    let filled = async || {
        admin.create(secrets, &secret).await.expect(201);
        let full = until(async || admin.get(path).await, |a| a.json()["data"]["token"].is_string()).await.json();
        String::from_utf8(STANDARD.decode(full["data"]["token"].as_str().unwrap()).unwrap()).unwrap()
    };
    let token = filled().await;
    assert_eq!(review(&server, &token, &[]).await["authenticated"], true);
    assert_eq!(review(&server, &token, &["vault"]).await["authenticated"], Value::Null);

    let label = |value: Value| json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": value}}});
    admin.patch("merge", path, label(json!("2026-01-01")).to_string()).await.expect(200);
    let marked = review(&server, &token, &[]).await;
    assert!(
        marked["authenticated"].is_null() && marked["error"].as_str().unwrap().contains("marked invalid"),
        "{marked}"
    );
    admin.patch("merge", path, label(Value::Null).to_string()).await.expect(200);
    assert_eq!(review(&server, &token, &[]).await["authenticated"], true);

    admin.delete(path).await.expect(200);
    assert_eq!(review(&server, &token, &[]).await["authenticated"], Value::Null);
    let next = filled().await;
    assert_eq!(review(&server, &next, &[]).await["authenticated"], true);
    assert_eq!(review(&server, &token, &[]).await["authenticated"], Value::Null, "the old one is back");
    admin.delete(path).await.expect(200);
    let any =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bot-token"}, "stringData": {"token": "x"}});
    admin.create(secrets, &any).await.expect(201);
    for old in [&token, &next] {
        assert_eq!(review(&server, old, &[]).await["authenticated"], Value::Null);
    }
}

/// A Pod on a node; admission mounts the account's token into it.
async fn pod(server: &Server, name: &str, node: &str, more: Value) -> String {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
    pod["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = server.admin().create("/api/v1/namespaces/default/pods", &pod).await.expect(201).json();
    made["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_node_gets_the_tokens_that_its_pods_name() {
    let server = Server::start().await;
    let (one, two) = (server.node("node-1").await, server.node("node-2").await);
    let vault = json!({"volumes": [{"name": "v", "projected": {"sources":
        [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}]});
    let web = pod(&server, "web", "node-1", vault).await;
    let bare = pod(&server, "bare", "node-1", json!({"automountServiceAccountToken": false})).await;
    let ask = async |node: &Caller, name: &str, uid: &str, audiences: &[&str]| {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "audiences": audiences, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}}});
        node.create("/api/v1/namespaces/default/serviceaccounts/default/token", &request).await
    };
    until(async || ask(&one, "web", &web, &[]).await, |a| a.code == 201).await;
    ask(&one, "web", &web, &["vault"]).await.expect(201);
    for (name, uid, audiences) in [
        ("web", web.as_str(), &["https://elsewhere"][..]),
        ("web", &web, &["vault", "https://elsewhere"]),
        ("bare", &bare, &[]),
        ("bare", &bare, &["vault"]),
        ("web", &bare, &[]),
        ("web", "", &[]),
    ] {
        ask(&one, name, uid, audiences).await.expect(403);
    }
    ask(&two, "web", &web, &[]).await.expect(403);
    let unbound = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    one.create("/api/v1/namespaces/default/serviceaccounts/default/token", &unbound).await.expect(403);
}

/// The Pod network and its policies have to know where Pods and nodes are: what serves the Pods of a node lists and watches both, and
/// nothing more. Its kubelet sees what is the node's own.
#[tokio::test]
async fn a_node_reads_of_others_what_its_network_needs() {
    let server = Server::start().await;
    let (one, _two) = (server.node("node-1").await, server.node("node-2").await);
    let subject = pki::Subject::client("skiff:node-services:node-1", Some("skiff:node-services"));
    let services = server.certified(server.authority().issue(&subject).unwrap());
    pod(&server, "web", "node-2", json!({})).await;
    // The rights that the control plane keeps for nodes have come into force.
    let wide = ["/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces"];
    for path in wide.into_iter().chain(["/apis/networking.k8s.io/v1/networkpolicies"]) {
        until(async || services.get(path).await, |a| a.code == 200).await;
        one.get(path).await.expect(403);
    }
    for caller in [&one, &services] {
        caller.get("/api/v1/services").await.expect(200);
    }
    one.get("/api/v1/nodes/node-1").await.expect(200);
    for path in [
        "/api/v1/nodes/node-2",
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/default/pods/web",
        "/api/v1/namespaces/default/pods/web/log",
        "/api/v1/secrets",
        "/api/v1/configmaps",
        "/api/v1/serviceaccounts",
        "/api/v1/persistentvolumeclaims",
        "/apis/apps/v1/deployments",
    ] {
        one.get(path).await.expect(403);
        services.get(path).await.expect(403);
    }
}

#[tokio::test]
async fn a_part_of_a_pod_is_written_without_the_rest() {
    let server = Server::start().await;
    let node = server.node("node-1").await;
    pod(&server, "web", "node-1", json!({})).await;
    server.allow("mallory", "default", &["patch"], &["pods/status", "pods/ephemeralcontainers", "pods/resize"]).await;
    let mallory = server.user("mallory");
    let path = "/api/v1/namespaces/default/pods/web";
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}).to_string();
    for caller in [&mallory, &node] {
        let said = caller.patch("merge", &format!("{path}/status"), mirror.clone()).await.expect(422).message();
        assert!(said.contains("may not add mirror pod annotation"), "{said}");
    }
    let before = server.admin().get(path).await.expect(200).json();
    let labels =
        json!({"metadata": {"labels": {"app": "bank"}, "finalizers": ["x/y"], "annotations": {"a": "b"}}}).to_string();
    for part in ["ephemeralcontainers", "resize"] {
        mallory.patch("merge", &format!("{path}/{part}"), labels.clone()).await.expect(200);
    }
    let after = server.admin().get(path).await.expect(200).json();
    for field in ["labels", "finalizers", "annotations"] {
        assert_eq!(before["metadata"][field], after["metadata"][field]);
    }
    // A node does not name the claims that it wants to read.
    let claims =
        json!({"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "other"}]}}).to_string();
    node.patch("merge", &format!("{path}/status"), claims).await.expect(403);
}
