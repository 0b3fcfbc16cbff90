//! Programs that sign, good ones and others.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use clock::Duration;
use futures::{FutureExt, future::BoxFuture};
use json::{Value, json};
use parking_lot::RwLock;

use super::{
    claims::{Bound, Claims, Parts, Reference},
    external::*,
    *,
};
use crate::{auth::authn::turns::AT_ONCE, tests::objects};

/// A program whose answers the test chooses.
struct Program {
    key: pki::SigningKey,
    header: RwLock<Value>,
    fetched: RwLock<Fetched>,
    signature: RwLock<Option<String>>,
    asked: AtomicUsize,
}

fn der(key: &pki::SigningKey) -> Vec<u8> {
    let lines = key.public.pem.lines().filter(|line| !line.starts_with('-'));
    base64::engine::general_purpose::STANDARD.decode(lines.collect::<String>()).unwrap()
}

impl Program {
    fn new() -> Arc<Self> {
        Program::of(pki::SigningKey::create().unwrap())
    }

    fn of(key: pki::SigningKey) -> Arc<Self> {
        let fetched = FetchedKey { id: "k1".to_owned(), der: der(&key), hidden: false };
        Arc::new(Program {
            header: RwLock::new(json!({"alg": key.public.algorithm, "kid": "k1", "typ": "JWT"})),
            key,
            fetched: RwLock::new(Fetched { keys: vec![fetched], of: Some(5.0), refresh_seconds: 60 }),
            signature: RwLock::default(),
            asked: AtomicUsize::new(0),
        })
    }

    async fn started(self: &Arc<Self>) -> Arc<External> {
        External::start(Arc::new(Handle(self.clone())), Arc::default()).await.unwrap().0
    }
}

struct Handle(Arc<Program>);

impl Service for Handle {
    fn sign(&self, claims: String) -> BoxFuture<'_, Result<Signed, Failure>> {
        let header = URL_SAFE_NO_PAD.encode(self.0.header.read().to_string());
        let text = format!("{header}.{claims}");
        let signed = self.0.key.for_jwt().unwrap().sign(text.as_bytes()).unwrap();
        let signature = self.0.signature.read().clone().unwrap_or_else(|| URL_SAFE_NO_PAD.encode(signed));
        std::future::ready(Ok(Signed { header, signature })).boxed()
    }

    fn fetch_keys(&self) -> BoxFuture<'_, Result<Fetched, Failure>> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(self.0.fetched.read().clone())).boxed()
    }

    fn longest(&self) -> BoxFuture<'_, Result<i64, Failure>> {
        std::future::ready(Ok(7200)).boxed()
    }
}

fn claims() -> Claims {
    Claims {
        aud: vec!["api".into()],
        exp: 2,
        iat: 1,
        iss: "https://us".into(),
        jti: "j".into(),
        bound: Bound {
            namespace: "ns".into(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: Reference { name: "bot".into(), uid: "u".into() },
            warnafter: None,
        },
        nbf: 1,
        sub: "system:serviceaccount:ns:bot".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_signs_and_its_keys_are_followed() {
    let program = Program::new();
    let external = program.started().await;
    let token = external.sign(&claims()).await.unwrap();
    let parts = Parts::read(&token).unwrap();
    let key = external.keys(Some("k1")).await.remove(0);
    assert!(key.public.verifies(parts.signed.as_bytes(), &parts.signature));
    assert_eq!(serde_json::from_slice::<Claims>(&parts.claims).unwrap(), claims());
    let page = external.metrics.render();
    assert!(page.contains("apiserver_externaljwt_sign_request_total{code=\"OK\"} 1"), "{page}");
    assert!(page.contains("apiserver_externaljwt_fetch_keys_data_timestamp 5\n"), "{page}");
    // A key that is not known may be new, though keys were asked for a moment ago.
    let asked = || program.asked.load(Ordering::Relaxed);
    assert!(external.keys(Some("k2")).await.is_empty());
    program.fetched.write().keys[0].id = "k2".to_owned();
    assert_eq!(external.keys(Some("k2")).await.len(), 1);
    // Tokens that name one do not have the program asked again and again.
    let before = asked();
    for _ in 0..100 {
        assert!(external.keys(Some("forged")).await.is_empty());
    }
    assert_eq!(asked(), before + AT_ONCE as usize - 2);
    clock::sleep(PAUSE).await;
    assert!(external.keys(Some("forged")).await.is_empty());
    assert_eq!(asked(), before + AT_ONCE as usize - 1);
    // The time comes when keys are asked for whatever tokens name.
    program.fetched.write().keys[0].id = "k3".to_owned();
    let following = tokio::spawn(external.clone().follow());
    clock::sleep(Duration::from_secs(61)).await;
    assert_eq!(external.held().0[0].public.id, "k3");
    // An answer that cannot be used leaves them what they were, and it is asked again soon.
    program.fetched.write().refresh_seconds = 0;
    clock::sleep(Duration::from_secs(120)).await;
    assert_eq!(external.held().0[0].public.id, "k3");
    program.fetched.write().refresh_seconds = 60;
    program.fetched.write().keys[0].id = "k4".to_owned();
    clock::sleep(AGAIN * 2).await;
    assert_eq!(external.held().0[0].public.id, "k4");
    following.abort();
}

/// Each algorithm that upstream takes from a program, and no other than its key's.
#[tokio::test(start_paused = true)]
async fn programs_sign_with_keys_of_all_curves() {
    for kind in ["ECDSAP256", "ECDSAP384", "ECDSAP521"] {
        let key = pki::ProvenKey::make(kind, b"").unwrap().private;
        let program = Program::of(pki::SigningKey::load(&key).unwrap());
        let keys = Arc::new(Keys::External(program.started().await));
        let objects = objects::store(Vec::new()).await;
        let account = Some(json!({"metadata": {"uid": "u"}}));
        objects::put(&objects, "serviceaccounts", ("ns", "bot"), account).await;
        let loopback = Arc::new(Loopback::new(objects, &[]).await.unwrap());
        let tokens = ServiceAccountTokens::new(vec!["https://us".into()], keys.clone(), loopback, Arc::default());
        let Keys::External(external) = &*keys else { unreachable!("made above") };
        let now = clock::now().as_second();
        let token = external.sign(&Claims { exp: now + 60, nbf: now, ..claims() }).await.unwrap();
        let identity = tokens.check(&token, &["api".to_owned()]).await.unwrap().unwrap();
        assert_eq!(identity.user.name, "system:serviceaccount:ns:bot", "{kind}");
        let other = if kind == "ECDSAP256" { "ES384" } else { "ES256" };
        program.header.write()["alg"] = json!(other);
        let token = external.sign(&Claims { exp: now + 60, nbf: now, ..claims() }).await.unwrap();
        let why = tokens.check(&token, &["api".to_owned()]).await.unwrap_err().why;
        assert_eq!(why, "no key fits the token's signature", "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_says_nonsense_is_not_followed() {
    let program = Program::new();
    let external = program.started().await;
    let usual = program.header.read().clone();
    let refused = async |header: Value, expected: &str| {
        *program.header.write() = header;
        let error = external.sign(&claims()).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    refused(json!({"alg": "none", "kid": "k1", "typ": "JWT"}), "bad signing algorithm \"none\"").await;
    refused(json!({"alg": "HS256", "kid": "k1", "typ": "JWT"}), "bad signing algorithm \"HS256\"").await;
    refused(json!({"alg": "ES256", "kid": "", "typ": "JWT"}), "key id missing").await;
    refused(json!({"alg": "ES256", "kid": "k".repeat(1025), "typ": "JWT"}), "key id longer than 1 kb").await;
    refused(json!({"alg": "ES256", "kid": "k1"}), "bad type").await;
    refused(json!({"alg": "ES256", "kid": "k1", "typ": "JWT", "jku": "x"}), "while parsing header JSON").await;
    for (signature, expected) in [("", "empty signature returned"), ("a.b", "the signature is not base64url")] {
        *program.signature.write() = Some(signature.to_owned());
        refused(usual.clone(), expected).await;
    }
    *program.signature.write() = None;
    let page = external.metrics.render();
    assert!(page.contains("apiserver_externaljwt_sign_request_total{code=\"unknown-non-grpc\"} 8"), "{page}");
    // Keys for tokens of former times sign none of today.
    program.fetched.write().keys[0].hidden = true;
    let external = program.started().await;
    assert!(external.sign(&claims()).await.unwrap_err().contains("is excluded from OIDC discovery docs"));
}

#[test]
fn an_answer_counts_as_a_whole_or_not_at_all() {
    let key = FetchedKey { id: "k".to_owned(), der: der(&pki::SigningKey::create().unwrap()), hidden: false };
    let good = Fetched { keys: vec![key.clone()], of: Some(1.0), refresh_seconds: 1 };
    assert!(read(good.clone()).is_ok());
    let refused = |fetched: Fetched, expected: &str| {
        let words = read(fetched).err().unwrap().words;
        assert!(words.contains(expected), "{words}");
    };
    refused(Fetched { refresh_seconds: 0, ..good.clone() }, "found invalid refresh hint (0s)");
    refused(Fetched { refresh_seconds: -1, ..good.clone() }, "found invalid refresh hint (-1s)");
    refused(Fetched { keys: Vec::new(), ..good.clone() }, "found no keys");
    refused(Fetched { keys: vec![key.clone(); KEYS + 1], ..good.clone() }, "found too many keys");
    refused(Fetched { of: None, ..good.clone() }, "invalid data timestamp");
    for id in [String::new(), "k".repeat(1025)] {
        let other = FetchedKey { id, ..key.clone() };
        refused(Fetched { keys: vec![key.clone(), other], ..good.clone() }, "found invalid public key id");
    }
    let broken = FetchedKey { der: vec![1], ..key.clone() };
    refused(Fetched { keys: vec![key, broken], ..good }, "while parsing external public keys");
}
