//! Tokens of service accounts: none but the one that was signed is good, whatever is changed about it.

use std::sync::Arc;

use apiserver::{
    auth::authn::{
        service_account::{Bound, Claims, Reference, ServiceAccountTokens, Signer, keys::Keys},
        token::Tokens,
    },
    storage::{loopback::Loopback, object_store::ObjectStore},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use fuzz::Target;
use json::json;
use store::embedded::Embedded;

use crate::found;

const ISSUER: &str = "https://us";

fn claims(uid: &str) -> Claims {
    Claims {
        aud: vec!["api".into()],
        exp: i64::MAX,
        iat: 0,
        iss: ISSUER.into(),
        jti: "j".into(),
        bound: Bound {
            namespace: "default".into(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: Reference { name: "bot".into(), uid: uid.into() },
            warnafter: None,
        },
        nbf: 0,
        sub: "system:serviceaccount:default:bot".into(),
    }
}

/// An account, the tokens that are checked against it, and one that is good.
async fn place() -> (ServiceAccountTokens, String) {
    let objects = ObjectStore::new(Arc::new(Embedded::memory())).await.unwrap();
    let accounts = objects.definition("", "serviceaccounts").unwrap();
    objects.create(&accounts, json!({"metadata": {"name": "bot", "namespace": "default"}})).await.unwrap();
    let account = objects.get(&accounts, "default", "bot").await.unwrap();
    let key = pki::SigningKey::create().unwrap();
    let loopback = Arc::new(Loopback::new(objects, &[]).await.unwrap());
    let keys = Arc::new(Keys::own(vec![key.public.clone()]));
    let tokens = ServiceAccountTokens::new(vec![ISSUER.into()], keys, loopback, Arc::default());
    let uid = account["metadata"]["uid"].as_str().unwrap();
    (tokens, Signer::new(&key).unwrap().sign(&claims(uid)).unwrap())
}

#[test]
fn jwt() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (tokens, good) = runtime.block_on(place());
    let plain = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let payload = good.split('.').nth(1).unwrap();
    let none = format!("{}.{payload}.", plain(r#"{"alg":"none"}"#));
    let shared = format!("{}.{payload}.{}", plain(r#"{"alg":"HS256","typ":"JWT"}"#), plain("x"));
    let seeds = [&good, &none, &shared].map(|token| token.as_bytes().to_vec()).into();
    let words = [".", "..", "=", "e30", "bnVsbA", "eyJhbGciOiJub25lIn0"];
    let target = Target { name: "jwt", seeds, words: &words, found: found() };
    let audiences = ["api".to_owned()];
    fuzz::run(&target, |input| {
        let Ok(token) = std::str::from_utf8(input) else { return "no text".to_owned() };
        let outcome = runtime.block_on(tokens.check(token, &audiences));
        let is_good = matches!(outcome, Ok(Some(_)));
        assert_eq!(is_good, token == good, "{outcome:?}");
        outcome.map_or_else(|refusal| refusal.why, |identity| format!("{:?}", identity.is_some()))
    });
}
