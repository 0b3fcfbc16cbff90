//! Those who speak for others: headers without a proxy's certificate, certificates of the wrong authority or name, authorities that
//! clients and proxies share; and keys of tokens that gave way to others.

use std::time::{Duration, Instant};

use apiserver::auth::authn::service_account::{Bound, Claims, Reference, Signer};
use json::json;
use pki::{Authority, Credential, SigningKey, Subject};

use crate::{audited::Audited, caller::PATIENCE, server::Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const TOLD: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
const JANE: (&str, &str) = ("x-remote-user", "jane");

fn client(authority: &Authority, name: &str) -> Credential {
    authority.issue(&Subject::client(name, None)).unwrap()
}

/// The files of a front proxy's authority, and of a certificate of it that the server shows itself.
struct Files {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        let files = Files { folder: tempfile::tempdir().unwrap(), authority: Authority::create("proxies").unwrap() };
        files.write("ca", files.authority.certificate());
        let shown = client(&files.authority, "aggregator");
        files.write("crt", &shown.certificate);
        files.write("key", &shown.key);
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.folder.path().join(name).display())
    }

    fn flags(&self) -> [String; 3] {
        [
            self.flag("requestheader-client-ca-file", "ca"),
            self.flag("proxy-client-cert-file", "crt"),
            self.flag("proxy-client-key-file", "key"),
        ]
    }
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn nobody_speaks_for_others_but_the_proxy_of_the_flags() {
    let files = Files::new();
    let more =
        ["--requestheader-allowed-names=proxy,aggregator", "--requestheader-username-headers=X-Remote-User,X-User"];
    let flags = files.flags();
    let flags = [&flags.each_ref().map(String::as_str)[..], &more].concat();
    let scene = Audited::start(&flags).await;
    let ask = async |shown: Credential, header| scene.server.certified(shown).send("GET", PODS, &[header], "").await;
    for header in [JANE, ("x-user", "jane")] {
        scene.forbidden("the proxy", &ask(client(&files.authority, "proxy"), header).await, "jane");
    }
    let refused = async |what: &str, shown: Credential| {
        scene.refused(what, &ask(shown, JANE).await, 401, None);
    };
    refused("another name", client(&files.authority, "mallory")).await;
    refused("a namesake's certificate", client(&Authority::create("proxies").unwrap(), "proxy")).await;
    // The cluster's own authority of proxies has given way.
    let read = |name: &str| std::fs::read_to_string(scene.server.data().join("pki").join(name)).unwrap();
    let own = Authority::load(&read("front-proxy-ca.crt"), &read("front-proxy-ca.key")).unwrap();
    refused("the own front proxy", client(&own, "proxy")).await;
    // A client of the cluster may have a proxy's name, and is itself even so.
    let namesake = ask(client(&scene.server.authority(), "proxy"), JANE).await;
    scene.forbidden("a client of that name", &namesake, "proxy");
    scene.forbidden("nobody", &scene.server.nobody().send("GET", PODS, &[JANE], "").await, "system:anonymous");
    let told = async |key: &str| {
        let map = scene.server.admin().get(TOLD).await.expect(200).json();
        map["data"][format!("requestheader-{key}").as_str()].as_str().unwrap().to_owned()
    };
    assert_eq!(told("allowed-names").await, "[\"proxy\",\"aggregator\"]");
    assert_eq!(told("username-headers").await, "[\"X-Remote-User\",\"X-User\"]");
    assert_eq!(told("client-ca-file").await.trim(), files.authority.certificate().trim());
    // The file is followed, and extension servers hear of it.
    let later = Authority::create("later").unwrap();
    files.write("ca", later.certificate());
    until("the file is followed", async || ask(client(&later, "proxy"), JANE).await.code == 403).await;
    refused("an authority that was taken out", client(&files.authority, "proxy")).await;
    until("they are told", async || told("client-ca-file").await.trim() == later.certificate().trim()).await;
    // What is wrong changes nothing.
    files.write("ca", "no certificate");
    until("it is said", async || scene.server.log().contains("--requestheader-client-ca-file")).await;
    scene.forbidden("what was read before", &ask(client(&later, "proxy"), JANE).await, "jane");
}

#[tokio::test]
async fn an_authority_of_clients_makes_no_proxies() {
    let files = Files::new();
    let flags = files.flags();
    let flags = flags.each_ref().map(String::as_str);
    let shared = files.flag("client-ca-file", "ca");
    let said = Server::refusal(&[&flags[..], &[shared.as_str()]].concat()).await;
    assert!(said.contains("--requestheader-allowed-names must be specified"), "{said}");
    let said = Server::refusal(&flags[..1]).await;
    assert!(said.contains("Give --proxy-client-cert-file"), "{said}");
    // Any name may speak, until the file also holds the authority of all clients.
    let scene = Audited::start(&flags).await;
    let ask = async |shown: Credential| scene.server.certified(shown).send("GET", PODS, &[JANE], "").await;
    scene.forbidden("any proxy", &ask(client(&files.authority, "any")).await, "jane");
    let clients = scene.server.authority();
    files.write("ca", &format!("{}{}", files.authority.certificate(), clients.certificate()));
    until("it is said", async || scene.server.log().contains("overlapping certificates")).await;
    scene.forbidden("a client", &ask(client(&clients, "mallory")).await, "mallory");
}

#[tokio::test]
async fn keys_and_issuers_that_are_not_named_count_no_more() {
    const NEW: &str = "https://new.example";
    const OLD: &str = "https://old.example";
    let files = Files::new();
    let [signs, further] = [(); 2].map(|()| SigningKey::create().unwrap());
    files.write("signs", &signs.private);
    // A file of private keys gives away none of them.
    files.write("further", &further.private);
    let flags = [
        files.flag("service-account-signing-key-file", "signs"),
        files.flag("service-account-key-file", "further"),
        format!("--service-account-issuer={NEW}"),
        format!("--service-account-issuer={OLD}"),
    ];
    let scene = Audited::start(&flags.each_ref().map(String::as_str)).await;
    let admin = scene.server.admin();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot"}});
    let made = admin.create(accounts, &object).await.expect(201).json();
    let own = std::fs::read_to_string(scene.server.data().join("pki/sa.key")).unwrap();
    let own = SigningKey::load(&own).unwrap();
    let now = clock::now().as_second();
    let token = |key: &SigningKey, issuer: &str| {
        let account = Reference { name: "bot".to_owned(), uid: made["metadata"]["uid"].as_str().unwrap().to_owned() };
        let bound = Bound {
            namespace: "default".to_owned(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: account,
            warnafter: None,
        };
        let claims = Claims {
            aud: vec![OLD.to_owned()],
            exp: now + 3600,
            iat: now,
            iss: issuer.to_owned(),
            jti: "j".to_owned(),
            bound,
            nbf: now,
            sub: "system:serviceaccount:default:bot".to_owned(),
        };
        Signer::new(key).unwrap().sign(&claims).unwrap()
    };
    let usual = "https://kubernetes.default.svc.cluster.local";
    for (key, issuer, known) in [
        (&signs, NEW, true),
        (&signs, OLD, true),
        (&further, OLD, true),
        (&own, NEW, false),
        (&own, usual, false),
        (&signs, usual, false),
    ] {
        let answer = scene.server.bearer(&token(key, issuer)).get(PODS).await;
        if known {
            scene.forbidden(issuer, &answer, "system:serviceaccount:default:bot");
        } else {
            scene.refused(issuer, &answer, 401, None);
        }
    }
    let keys = admin.get("/openid/v1/jwks").await.expect(200).text();
    let names = |key: &SigningKey| keys.contains(&key.public.id);
    assert!(names(&signs) && names(&further) && !names(&own) && !keys.contains("\"d\""), "{keys}");
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let asked = admin.create(&format!("{accounts}/bot/token"), &request).await.expect(201).json();
    assert_eq!(asked["spec"]["audiences"], json!([NEW, OLD]));
    let answer = scene.server.bearer(asked["status"]["token"].as_str().unwrap()).get(PODS).await;
    scene.forbidden("its own token", &answer, "system:serviceaccount:default:bot");
    let configuration = admin.get("/.well-known/openid-configuration").await.expect(200).json();
    assert_eq!(configuration["issuer"], NEW);
}
