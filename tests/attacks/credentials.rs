//! Forged, foreign and old credentials: tokens whose algorithm, key, issuer, audience or time is wrong, and certificates of others.
//! Each is refused with 401, and the audit log tells of it without naming a user.

use std::time::{Duration, Instant};

use apiserver::auth::authn::service_account::{Bound, Claims, Reference, Signer};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use json::{Value, json};
use pki::{Authority, SigningKey, Subject};

use crate::audited::Audited;

const DEFAULT: &str = "/api/v1/namespaces/default";
const PODS: &str = "/api/v1/namespaces/default/pods";
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The server's own key, which no attacker has: with it the test makes tokens that nothing but their claims makes wrong.
fn key(scene: &Audited) -> SigningKey {
    SigningKey::load(&std::fs::read_to_string(scene.server.data().join("pki/sa.key")).unwrap()).unwrap()
}

async fn account(scene: &Audited, name: &str) -> Reference {
    let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    let made = scene.server.admin().create(&format!("{DEFAULT}/serviceaccounts"), &object).await.expect(201).json();
    Reference { name: name.to_owned(), uid: made["metadata"]["uid"].as_str().unwrap().to_owned() }
}

fn claims(account: &Reference) -> Claims {
    let now = clock::now().as_second();
    Claims {
        aud: vec![ISSUER.to_owned()],
        exp: now + 3600,
        iat: now,
        iss: ISSUER.to_owned(),
        jti: "j".to_owned(),
        bound: Bound {
            namespace: "default".to_owned(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: account.clone(),
            warnafter: None,
        },
        nbf: now,
        sub: format!("system:serviceaccount:default:{}", account.name),
    }
}

#[tokio::test]
async fn tokens_that_nobody_issued_are_refused() {
    let scene = Audited::start(&[]).await;
    let bot = account(&scene, "bot").await;
    let key = key(&scene);
    let signer = Signer::new(&key).unwrap();
    let good = signer.sign(&claims(&bot)).unwrap();
    // The user is known; the rights are another question.
    let answer = scene.server.bearer(&good).get(PODS).await;
    scene.forbidden("a good token", &answer, "system:serviceaccount:default:bot");

    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let parts: Vec<&str> = good.split('.').collect();
    let payload = parts[1];
    let mut masters: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
    masters["sub"] = json!("system:serviceaccount:kube-system:namespace-controller");
    let with_public_key = {
        let signed = format!("{}.{payload}", encode(json!({"alg": "HS256", "kid": key.public.id})));
        let mac = ring::hmac::sign(
            &ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.public.pem.as_bytes()),
            signed.as_bytes(),
        );
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac))
    };
    let stranger = Signer::new(&SigningKey::create().unwrap()).unwrap();
    let now = clock::now().as_second();
    let other = |change: &dyn Fn(&mut Claims)| {
        let mut wrong = claims(&bot);
        change(&mut wrong);
        signer.sign(&wrong).unwrap()
    };
    for (what, token) in [
        ("no algorithm", format!("{}.{payload}.", encode(json!({"alg": "none"})))),
        ("no algorithm, with a signature", format!("{}.{payload}.{}", encode(json!({"alg": "none"})), parts[2])),
        ("the public key as a secret", with_public_key),
        ("other claims under a signature", format!("{}.{}.{}", parts[0], encode(masters), parts[2])),
        ("a cut signature", good[..good.len() - 2].to_owned()),
        ("no signature", format!("{}.{payload}", parts[0])),
        ("two tokens", format!("{good}.{good}")),
        ("another key", stranger.sign(&claims(&bot)).unwrap()),
        ("the past", other(&|claims| (claims.nbf, claims.iat, claims.exp) = (now - 7200, now - 7200, now - 3600))),
        ("the future", other(&|claims| claims.nbf = now + 3600)),
        ("another issuer", other(&|claims| claims.iss = "https://accounts.example.com".to_owned())),
        ("another audience", other(&|claims| claims.aud = vec!["vault".to_owned()])),
        ("no audience", other(&|claims| claims.aud = Vec::new())),
        ("an account of another time", other(&|claims| claims.bound.serviceaccount.uid = "x".to_owned())),
        ("no account", other(&|claims| claims.bound.serviceaccount.name = "nobody".to_owned())),
        (
            "a Pod that is not",
            other(&|claims| claims.bound.pod = Some(Reference { name: "p".into(), uid: "u".into() })),
        ),
        (
            "a node that is not",
            other(&|claims| claims.bound.node = Some(Reference { name: "n".into(), uid: "u".into() })),
        ),
        ("a bootstrap token that is not", "abcdef.0123456789abcdef".to_owned()),
    ] {
        let answer = scene.server.bearer(&token).get(PODS).await;
        let event = scene.refused(what, &answer, 401, None);
        assert!(!event.to_string().contains(&token), "{what}: the log holds the token");
    }
}

#[tokio::test]
async fn a_token_ends_with_its_pod_and_its_account() {
    let scene = Audited::start(&[]).await;
    let bot = account(&scene, "bot").await;
    let admin = scene.server.admin();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"serviceAccountName": "bot", "containers": [{"name": "c", "image": "i"}]}});
    let made = admin.create(PODS, &pod).await.expect(201).json();
    let wanted = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3607,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]}}});
    let tokens = format!("{DEFAULT}/serviceaccounts/bot/token");
    let token = admin.create(&tokens, &wanted).await.expect(201).json()["status"]["token"].as_str().unwrap().to_owned();
    let name = "system:serviceaccount:default:bot";
    scene.forbidden("while the Pod is there", &scene.server.bearer(&token).get(PODS).await, name);
    admin.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).await.expect(200);
    admin.create(PODS, &pod).await.expect(201);
    // A token is believed for some seconds after it was looked at; the next one of the same Pod was not.
    let again = Signer::new(&key(&scene)).unwrap();
    let gone = Reference { name: "p".to_owned(), uid: made["metadata"]["uid"].as_str().unwrap().to_owned() };
    let mut of_the_dead = claims(&bot);
    of_the_dead.bound.pod = Some(gone);
    let answer = scene.server.bearer(&again.sign(&of_the_dead).unwrap()).get(PODS).await;
    scene.refused("a Pod of the same name", &answer, 401, None);
    admin.delete(&format!("{DEFAULT}/serviceaccounts/bot")).await.expect(200);
    account(&scene, "bot").await;
    // The copy of accounts that tokens are checked against follows a moment later; each try is a token of its own.
    let deadline = Instant::now() + crate::caller::PATIENCE;
    for at in 0.. {
        let token = again.sign(&Claims { jti: format!("try-{at}"), ..claims(&bot) }).unwrap();
        let answer = scene.server.bearer(&token).get(PODS).await;
        if answer.code == 401 {
            scene.refused("an account of the same name", &answer, 401, None);
            break;
        }
        assert!(Instant::now() < deadline, "the token outlives its account");
    }
}

#[tokio::test]
async fn certificates_of_others_make_nobody_known() {
    let folder = tempfile::tempdir().unwrap();
    let (trusted, foreign) = (Authority::create("partner").unwrap(), Authority::create("kubernetes").unwrap());
    let file = folder.path().join("clients.crt");
    std::fs::write(&file, trusted.certificate()).unwrap();
    let flag = format!("--client-ca-file={}", file.display());
    let scene = Audited::start(&[&flag]).await;
    let masters = Subject::client("root", Some("system:masters"));
    let with = |authority: &Authority, subject: &Subject| scene.server.certified(authority.issue(subject).unwrap());
    with(&trusted, &masters).get(PODS).await.expect(200);
    with(&scene.server.authority(), &masters).get(PODS).await.expect(200);
    scene.refused("a foreign authority", &with(&foreign, &masters).get(PODS).await, 401, None);
    // A certificate for serving is none for clients, whoever issued it.
    let serving =
        Subject { organization: Some("system:masters".to_owned()), ..Subject::server("root", vec!["root".to_owned()]) };
    scene.refused("a server's certificate", &with(&scene.server.authority(), &serving).get(PODS).await, 401, None);
    // The file is followed: whoever is no longer in it is a stranger at once, also over what was verified before.
    std::fs::write(&file, foreign.certificate()).unwrap();
    let deadline = Instant::now() + crate::caller::PATIENCE;
    while with(&foreign, &masters).get(PODS).await.code != 200 {
        assert!(Instant::now() < deadline, "the file is not followed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    scene.refused("an authority that was taken out", &with(&trusted, &masters).get(PODS).await, 401, None);
    let told = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let told =
        scene.server.admin().get(told).await.expect(200).json()["data"]["client-ca-file"].as_str().unwrap().to_owned();
    assert!(told.contains(foreign.certificate().trim()) && !told.contains(trusted.certificate().trim()), "{told}");
}
