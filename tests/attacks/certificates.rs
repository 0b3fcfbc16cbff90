//! Certificate signing requests: one request, read one way, and certificates for nobody but who was approved.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use json::{Value, json};
use pki::{Credential, Wish, der};

use crate::{caller::Caller, server::Server};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const PATIENCE: Duration = Duration::from_secs(60);

/// A request's object; the usages are those of a client.
fn csr(name: &str, signer: &str, pem: &str) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(pem), "signerName": signer, "usages": ["digital signature", "client auth"]}})
}

/// A request for a subject: attributes by their number below 2.5.4 (10 an organization, 3 a common name).
fn wish(subject: &[(u8, &str)]) -> Wish {
    Wish::with_subject(subject, &[]).unwrap()
}

fn of_node(name: &str) -> Wish {
    wish(&[(10, "system:nodes"), (3, name)])
}

fn masters() -> Wish {
    wish(&[(10, "system:masters"), (3, "root")])
}

/// Asks as admin until the request is as wanted.
async fn until(server: &Server, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let (admin, deadline) = (server.admin(), Instant::now() + PATIENCE);
    loop {
        let request = admin.get(&format!("{REQUESTS}/{name}")).await.expect(200).json();
        if wanted(&request["status"]) {
            return request;
        }
        assert!(Instant::now() < deadline, "{request}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_issued(status: &Value) -> bool {
    status["certificate"].is_string()
}

fn has(status: &Value, condition: &str) -> bool {
    status["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == condition)
}

async fn approve(server: &Server, name: &str) {
    let patch = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r"}]}});
    let path = format!("{REQUESTS}/{name}/approval");
    server.admin().patch("merge", &path, patch.to_string()).await.expect(200);
}

/// Whoever got the certificate of this request.
fn holder(server: &Server, request: &Value, wish: Wish) -> Caller {
    let pem = STANDARD.decode(request["status"]["certificate"].as_str().unwrap()).unwrap();
    server.certified(Credential { certificate: String::from_utf8(pem).unwrap(), key: wish.key })
}

async fn whoami(caller: &Caller) -> Value {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    caller.create(path, &review).await.expect(201).json()["status"]["userInfo"].clone()
}

/// Requests that one parser could read as a node's and another as somebody else's.
fn ambiguous() -> Vec<String> {
    let (good, evil) = (of_node("system:node:new").request, masters().request);
    let relabelled = evil.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST");
    let other = evil.replace("CERTIFICATE REQUEST", "CERTIFICATE");
    let names = |list: &[&str]| {
        let mut subject = vec![(10, "system:nodes")];
        subject.extend(list.iter().map(|n| (3, *n)));
        wish(&subject).request
    };
    let twice = der::extension(&[2, 5, 29, 17], false, &der::sequence(&[der::dns_name("a")]));
    let two_lists =
        Wish::with_extensions(&[(10, "system:nodes"), (3, "system:node:new")], &[twice.clone(), twice]).unwrap();
    vec![
        format!("{good}{evil}"),
        format!("{evil}{good}"),
        format!("{relabelled}{good}"),
        format!("{good}{relabelled}"),
        format!("{other}{good}"),
        good.replacen("-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
        relabelled,
        other,
        names(&["system:node:new", "system:node:other"]),
        names(&["system:node:other", "system:node:new"]),
        two_lists.request,
        "nothing".to_owned(),
        String::new(),
    ]
}

#[tokio::test]
async fn a_request_that_reads_in_two_ways_is_refused() {
    let server = Server::start().await;
    let joiner = server.joiner().await;
    let node = server.node("new").await;
    for (i, pem) in ambiguous().iter().enumerate() {
        let object = csr(&format!("c{i}"), KUBELET, pem);
        let said = joiner.create(REQUESTS, &object).await.expect(422).message();
        assert!(said.contains("spec.request: Invalid value"), "{said}");
        // A node's is looked at by NodeRestriction first.
        assert!(matches!(node.create(REQUESTS, &object).await.code, 403 | 422), "{pem}");
    }
}

#[tokio::test]
async fn a_newcomer_becomes_its_node_and_nothing_else() {
    let server = Server::start().await;
    let joiner = server.joiner().await;
    let cases: [(&str, Wish); 6] = [
        ("masters", masters()),
        ("both", wish(&[(10, "system:nodes"), (10, "system:masters"), (3, "system:node:new")])),
        ("nobody", wish(&[(10, "system:nodes")])),
        ("admin", wish(&[(10, "system:nodes"), (3, "admin")])),
        ("named", Wish::with_subject(&[(10, "system:nodes"), (3, "system:node:new")], &["kubernetes".into()]).unwrap()),
        ("authority", {
            let ca = der::extension(&[2, 5, 29, 19], true, &der::sequence(&[der::TRUE]));
            Wish::with_extensions(&[(10, "system:nodes"), (3, "system:node:new")], &[ca]).unwrap()
        }),
    ];
    for (name, wish) in &cases {
        joiner.create(REQUESTS, &csr(name, KUBELET, &wish.request)).await.expect(201);
    }
    let good = of_node("system:node:new");
    joiner.create(REQUESTS, &csr("good", KUBELET, &good.request)).await.expect(201);
    let issued = until(&server, "good", is_issued).await;
    let info = whoami(&holder(&server, &issued, good)).await;
    assert_eq!(info["username"], "system:node:new");
    assert_eq!(info["groups"], json!(["system:nodes", "system:authenticated"]));
    for (name, _) in &cases {
        let request = server.admin().get(&format!("{REQUESTS}/{name}")).await.expect(200).json();
        assert!(!has(&request["status"], "Approved") && !is_issued(&request["status"]), "{request}");
        // Not even with an approval: the signer looks for itself.
        approve(&server, name).await;
        let failed = until(&server, name, |status| has(status, "Failed")).await;
        assert!(!is_issued(&failed["status"]), "{failed}");
    }
}

#[tokio::test]
async fn a_node_asks_for_itself_alone() {
    let server = Server::start().await;
    let node = server.node("node-1").await;
    for signer in [KUBELET, "kubernetes.io/kubelet-serving"] {
        let other = csr("other", signer, &of_node("system:node:node-2").request);
        let said = node.create(REQUESTS, &other).await.expect(403).message();
        assert!(said.contains("can only create a node CSR with CN=system:node:node-1"), "{said}");
    }
    let own = of_node("system:node:node-1");
    node.create(REQUESTS, &csr("own", KUBELET, &own.request)).await.expect(201);
    let issued = until(&server, "own", is_issued).await;
    assert_eq!(whoami(&holder(&server, &issued, own)).await["username"], "system:node:node-1");
}

#[tokio::test]
async fn what_serves_the_pods_of_a_node_sees_the_cluster_and_its_kubelet_does_not() {
    const PODS: &str = "/api/v1/pods";
    let server = Server::start().await;
    let (node, jane) = (server.node("node-1").await, server.user("jane"));
    let wide = [PODS, "/api/v1/nodes", "/api/v1/namespaces", "/apis/networking.k8s.io/v1/networkpolicies"];
    node.get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dnode-1")).await.expect(200);
    let services = |name: &str| wish(&[(10, "skiff:node-services"), (3, &format!("skiff:node-services:{name}"))]);
    server.allow("jane", "", &["create"], &["certificatesigningrequests.certificates.k8s.io"]).await;
    jane.create(REQUESTS, &csr("jane", CLIENT, &services("node-1").request)).await.expect(201);
    node.create(REQUESTS, &csr("other", CLIENT, &services("node-2").request)).await.expect(201);
    let own = services("node-1");
    node.create(REQUESTS, &csr("own", CLIENT, &own.request)).await.expect(201);
    let issued = until(&server, "own", is_issued).await;
    for name in ["jane", "other"] {
        let request = server.admin().get(&format!("{REQUESTS}/{name}")).await.expect(200).json();
        assert!(!has(&request["status"], "Approved"), "{request}");
    }
    let holder = holder(&server, &issued, own);
    assert_eq!(whoami(&holder).await["username"], "skiff:node-services:node-1");
    for path in wide {
        holder.get(path).await.expect(200);
        node.get(path).await.expect(403);
    }
    // It reads, and is no node.
    holder.get("/api/v1/secrets").await.expect(403);
    holder.get("/api/v1/nodes/node-1").await.expect(403);
    holder
        .patch("merge", "/api/v1/nodes/node-1", json!({"metadata": {"labels": {"a": "b"}}}).to_string())
        .await
        .expect(403);
    holder.create(REQUESTS, &csr("more", CLIENT, &services("node-1").request)).await.expect(403);
}

#[tokio::test]
async fn a_user_gets_all_groups_that_were_approved() {
    let server = Server::start().await;
    server.allow("jane", "", &["create"], &["certificatesigningrequests.certificates.k8s.io"]).await;
    let jane = server.user("jane");
    for subject in [&[(10, "system:masters"), (3, "jane")][..], &[(10, "dev"), (10, "system:masters"), (3, "jane")]] {
        let said = jane.create(REQUESTS, &csr("m", CLIENT, &wish(subject).request)).await.expect(403).message();
        assert!(said.contains("system:masters group is not allowed"), "{said}");
    }
    let said = jane.create(REQUESTS, &csr("l", "kubernetes.io/legacy-unknown", &masters().request)).await.expect(422);
    assert!(said.message().contains("the legacy signerName is not allowed"));
    let wanted = wish(&[(10, "dev"), (10, "ops"), (3, "jösé")]);
    jane.create(REQUESTS, &csr("j", CLIENT, &wanted.request)).await.expect(201);
    approve(&server, "j").await;
    let issued = until(&server, "j", is_issued).await;
    let info = whoami(&holder(&server, &issued, wanted)).await;
    assert_eq!((&info["username"], &info["groups"]), (&json!("jösé"), &json!(["dev", "ops", "system:authenticated"])));
}

#[tokio::test]
async fn lifetimes_that_were_asked_for_are_counted() {
    let server = Server::start().await;
    let page = async || server.admin().get("/metrics").await.expect(200).text();
    assert!(!page().await.contains("csr_requested_duration_total{"));
    for (name, seconds) in [("none", Value::Null), ("hour", json!(3600)), ("long", json!(1_000_000_000))] {
        let mut request = csr(name, CLIENT, &wish(&[(3, name)]).request);
        request["spec"]["expirationSeconds"] = seconds;
        server.admin().create(REQUESTS, &request).await.expect(201);
        approve(&server, name).await;
        let issued = until(&server, name, is_issued).await;
        // A later write of the status issues nothing.
        let patch = json!({"status": {"certificate": issued["status"]["certificate"]}}).to_string();
        server.admin().patch("merge", &format!("{REQUESTS}/{name}/status"), patch).await.expect(200);
    }
    let page = page().await;
    for (what, count) in [("requested", 2), ("honored", 1)] {
        let line =
            format!("apiserver_certificates_registry_csr_{what}_duration_total{{signerName=\"{CLIENT}\"}} {count}\n");
        assert!(page.contains(&line), "{line}");
    }
}

#[tokio::test]
async fn who_writes_the_status_decides_nothing() {
    let server = Server::start().await;
    let group = "certificatesigningrequests.certificates.k8s.io";
    let parts = [format!("{group}/status"), format!("{group}/approval"), group.to_owned()];
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    server.allow("mallory", "", &["create", "get", "update", "patch"], &parts).await;
    let sign = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["sign"],
        "resourceNames": ["example.com/signer"]});
    server.allow_rules("bob", "", vec![sign]).await;
    server.allow("bob", "", &["update", "patch"], &parts[..2]).await;
    let (mallory, bob) = (server.user("mallory"), server.user("bob"));
    let pem = wish(&[(3, "mallory")]).request;
    mallory.create(REQUESTS, &csr("own", CLIENT, &pem)).await.expect(201);
    mallory.create(REQUESTS, &csr("other", "example.com/signer", &pem)).await.expect(201);
    let approved =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r"}]}}).to_string();
    let failed = approved.replace("Approved", "Failed");
    let certificate = json!({"status": {"certificate": STANDARD.encode(server.authority().certificate())}}).to_string();
    for patch in [&approved, &failed, &certificate] {
        let answer = mallory.patch("merge", &format!("{REQUESTS}/own/status"), patch.clone()).await;
        assert!(matches!(answer.code, 403 | 422), "{}", answer.text());
    }
    mallory.patch("merge", &format!("{REQUESTS}/own/approval"), approved.clone()).await.expect(403);
    // The signer's name that counts is the stored one, and an object's own path writes no status.
    let mut renamed = server.admin().get(&format!("{REQUESTS}/own")).await.expect(200).json();
    renamed["spec"]["signerName"] = json!("example.com/signer");
    renamed["status"] = serde_json::from_str::<Value>(&certificate).unwrap()["status"].clone();
    bob.replace(&format!("{REQUESTS}/own/status"), &renamed).await.expect(403);
    mallory.replace(&format!("{REQUESTS}/own"), &renamed).await.expect(200);
    let own = server.admin().get(&format!("{REQUESTS}/own")).await.expect(200).json();
    assert!(own["spec"]["signerName"] == CLIENT && !is_issued(&own["status"]) && !has(&own["status"], "Approved"));
    // Bob signs for another signer: no decisions, no second certificate, nothing that is no certificate.
    let status = format!("{REQUESTS}/other/status");
    let said = bob.patch("merge", &status, approved).await.expect(422).message();
    assert!(said.contains("updates may not add a condition of type \"Approved\""), "{said}");
    let key = json!({"status": {"certificate": STANDARD.encode(server.authority().key())}}).to_string();
    bob.patch("merge", &status, key).await.expect(422);
    approve(&server, "other").await;
    bob.patch("merge", &status, certificate.clone()).await.expect(200);
    let second = json!({"status": {"certificate": STANDARD.encode(format!("\n{}", server.authority().certificate()))}});
    bob.patch("merge", &status, second.to_string()).await.expect(422);
    bob.patch("merge", &status, json!({"status": {"conditions": null}}).to_string()).await.expect(422);
}
