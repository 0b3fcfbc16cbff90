//! Issuers of tokens: what they call their users and groups makes nobody one of the cluster's own, where names have a prefix or rules say
//! which names are reserved; and an administrator who says neither is told so.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use json::{Map, Value, json};
use pki::{Authority, Serving, SigningKey, Subject};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use tokio::net::TcpListener;

use crate::{
    audited::Audited,
    caller::{Answer, PATIENCE},
    server::Server,
};

const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const SECRETS: &str = "/api/v1/secrets";
/// Names and groups that have rights, or a meaning, in every cluster.
const OURS: [&str; 6] = [
    "system:admin",
    "system:apiserver",
    "system:kube-controller-manager",
    "system:node:node-1",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:anonymous",
];

/// An issuer that says whatever an attacker wants.
struct Issuer {
    url: String,
    authority: Authority,
    key: SigningKey,
    folder: tempfile::TempDir,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Issuer {
    async fn start() -> Self {
        let (authority, key) = (Authority::create("issuer").unwrap(), SigningKey::create().unwrap());
        let credential = authority.issue(&Subject::server("issuer", vec!["localhost".to_owned()])).unwrap();
        let tls = pki::server_config(Serving::new(&credential).unwrap(), None, &["http/1.1"]).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(tls));
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", tcp.local_addr().unwrap().port());
        let jwk: Map = key.public.jwk().into_iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect();
        let keys = json!({"keys": [Value::from(jwk)]}).to_string();
        let discovery = json!({"issuer": url, "jwks_uri": format!("{url}/keys")}).to_string();
        let task = tokio::spawn(async move {
            loop {
                let (io, _) = tcp.accept().await.unwrap();
                let (acceptor, pages) = (acceptor.clone(), (discovery.clone(), keys.clone()));
                tokio::spawn(async move {
                    let Ok(io) = acceptor.accept(io).await else { return };
                    let service = service_fn(move |request: Request<Incoming>| {
                        let page = if request.uri().path() == "/keys" { &pages.1 } else { &pages.0 };
                        let answer = Response::builder().header("content-type", "application/json");
                        let answer = answer.body(Full::new(Bytes::from(page.clone()))).unwrap();
                        async { Ok::<_, Infallible>(answer) }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(io), service).await;
                });
            }
        });
        Issuer { url, authority, key, folder: tempfile::tempdir().unwrap(), task }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The flags of a server that believes it, and these.
    fn flags(&self, more: &[&str]) -> Vec<String> {
        let authority = self.file("ca.crt", self.authority.certificate());
        let flags = [
            format!("--oidc-issuer-url={}", self.url),
            "--oidc-client-id=us".to_owned(),
            format!("--oidc-ca-file={authority}"),
            "--oidc-signing-algs=ES256".to_owned(),
        ];
        flags.into_iter().chain(more.iter().map(|flag| (*flag).to_owned())).collect()
    }

    /// The flag of a configuration with these mappings, and with rules about users.
    fn configuration(&self, mappings: Value, rules: Value) -> String {
        let issuer =
            json!({"url": self.url, "audiences": ["us"], "certificateAuthority": self.authority.certificate()});
        let jwt = json!([{"issuer": issuer, "claimMappings": mappings, "userValidationRules": rules}]);
        let file =
            json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": jwt});
        format!("--authentication-config={}", self.file("authentication.yaml", &file.to_string()))
    }

    /// A token with these claims, good in all else.
    fn token(&self, claims: Value) -> String {
        let now = clock::now().as_second();
        let mut all = json!({"iss": self.url, "aud": "us", "exp": now + 3600, "iat": now});
        for (name, value) in claims.as_object().unwrap() {
            all[&**name] = value.clone();
        }
        let header = json!({"alg": "ES256", "kid": self.key.public.id}).to_string();
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(all.to_string()));
        let key = PrivatePkcs8KeyDer::from_pem_slice(self.key.private.as_bytes()).unwrap();
        let random = ring::rand::SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_pkcs8_der(), &random).unwrap();
        let signature = pair.sign(&random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// A server with these flags that has read the issuer's keys.
    async fn scene(&self, flags: &[String]) -> Audited {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let scene = Audited::start(&flags).await;
        let deadline = Instant::now() + PATIENCE;
        while self.whoami(&scene, json!({"sub": "jane", "email": "jane@example.com"})).await.code != 201 {
            assert!(Instant::now() < deadline, "the issuer's tokens are not believed: {}", scene.server.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        scene
    }

    async fn whoami(&self, scene: &Audited, claims: Value) -> Answer {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        scene.server.bearer(&self.token(claims)).create(WHOAMI, &review).await
    }
}

fn user(answer: Answer) -> (String, Vec<String>) {
    let user = answer.expect(201).json()["status"]["userInfo"].clone();
    let groups = user["groups"].as_array().unwrap().iter().map(|group| group.as_str().unwrap().to_owned());
    (user["username"].as_str().unwrap().to_owned(), groups.collect())
}

#[tokio::test]
async fn an_issuer_names_none_of_the_clusters_own() {
    let issuer = Issuer::start().await;
    let scene = issuer.scene(&issuer.flags(&["--oidc-groups-claim=groups", "--oidc-groups-prefix=idp:"])).await;
    for name in OURS {
        for (groups, seen) in [
            (json!(["system:masters"]), &["idp:system:masters"][..]),
            (json!("system:masters"), &["idp:system:masters"]),
            (json!(["system:nodes", "system:unauthenticated"]), &["idp:system:nodes", "idp:system:unauthenticated"]),
            (json!(["", " system:masters"]), &["idp:", "idp: system:masters"]),
            (json!([]), &[]),
        ] {
            let claims = json!({"sub": name, "groups": groups});
            let known = user(issuer.whoami(&scene, claims.clone()).await);
            let expected = seen.iter().copied().chain(["system:authenticated"]).map(str::to_owned).collect();
            assert_eq!(known, (format!("{}#{name}", issuer.url), expected), "{claims}");
            let answer = scene.server.bearer(&issuer.token(claims)).get(SECRETS).await;
            scene.forbidden(name, &answer, &format!("{}#{name}", issuer.url));
        }
    }
    for (what, claims) in [
        ("a group that is a number", json!({"sub": "jane", "groups": [1]})),
        ("groups that are a map", json!({"sub": "jane", "groups": {"system:masters": true}})),
        ("a name that is a list", json!({"sub": ["system:admin"]})),
        ("an empty name", json!({"sub": ""})),
        ("no name", json!({})),
    ] {
        scene.refused(what, &issuer.whoami(&scene, claims).await, 401, None);
    }
}

/// Names that are addresses have no prefix of themselves, as upstream: then the issuer's word that it has checked them counts.
#[tokio::test]
async fn an_address_that_nobody_checked_is_nobody() {
    let issuer = Issuer::start().await;
    let scene = issuer.scene(&issuer.flags(&["--oidc-username-claim=email"])).await;
    for name in OURS.into_iter().chain(["root@example.com"]) {
        for verified in [json!(false), json!("true"), json!(1)] {
            let claims =
                json!({"sub": "jane", "email": name, "email_verified": verified, "groups": ["system:masters"]});
            scene.refused(name, &issuer.whoami(&scene, claims).await, 401, None);
        }
    }
    // Nobody said which claim holds groups, so there are none.
    let claims = json!({"email": "root@example.com", "email_verified": true, "groups": ["system:masters"]});
    let known = user(issuer.whoami(&scene, claims).await);
    assert_eq!(known, ("root@example.com".to_owned(), vec!["system:authenticated".to_owned()]));
}

#[tokio::test]
async fn rules_keep_the_clusters_own_names() {
    let issuer = Issuer::start().await;
    let rule = |expression: &str| json!({"expression": expression, "message": "names of the cluster are reserved"});
    let rules = json!([
        rule("!user.username.startsWith('system:')"),
        rule("user.groups.all(group, !group.startsWith('system:'))"),
    ]);
    let plain = json!({"username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "groups", "prefix": ""}});
    let scene = issuer.scene(&[issuer.configuration(plain, rules)]).await;
    for name in OURS {
        scene.refused(name, &issuer.whoami(&scene, json!({"sub": name})).await, 401, None);
    }
    for groups in [json!(["people", "system:masters"]), json!("system:masters"), json!(["system:nodes"])] {
        let answer = issuer.whoami(&scene, json!({"sub": "jane", "groups": groups})).await;
        scene.refused("a group of the cluster", &answer, 401, None);
    }
    // What only looks like a name of the cluster is no name of it.
    for (name, group) in [("System:admin", "System:masters"), (" system:admin", "system\u{ff1a}masters")] {
        let claims = json!({"sub": name, "groups": [group]});
        let (known, groups) = user(issuer.whoami(&scene, claims.clone()).await);
        assert_eq!((known.as_str(), groups[0].as_str()), (name, group));
        scene.forbidden(name, &scene.server.bearer(&issuer.token(claims)).get(SECRETS).await, name);
    }
}

#[tokio::test]
async fn whoever_forgets_a_prefix_or_takes_a_reserved_key_is_told() {
    let issuer = Issuer::start().await;
    for (mappings, expected) in [
        (
            json!({"username": {"claim": "sub"}}),
            "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set",
        ),
        (
            json!({"username": {"claim": "sub", "prefix": "i:"}, "groups": {"claim": "groups"}}),
            "jwt[0].claimMappings.groups.prefix: Required value: prefix is required when claim is set",
        ),
        (
            json!({"username": {"claim": "sub", "prefix": "i:"},
                "extra": [{"key": "authentication.kubernetes.io/node-name", "valueExpression": "claims.sub"}]}),
            "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use",
        ),
    ] {
        let said = Server::refusal(&[&issuer.configuration(mappings, json!([]))]).await;
        assert!(said.contains(expected), "{said}");
    }
}
