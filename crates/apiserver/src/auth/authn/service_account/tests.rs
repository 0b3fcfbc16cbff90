//! Which tokens of service accounts are good, and what is said of them.

use json::json;

use super::*;
use crate::{auth::authn::certificate::CREDENTIAL_ID, storage::object_store::ObjectStore, tests::objects};

fn claims(now: i64) -> Claims {
    let reference = |name: &str| Reference { name: name.into(), uid: format!("{name}-uid") };
    Claims {
        aud: vec!["api".into()],
        exp: now + 3600,
        iat: now,
        iss: "https://us".into(),
        jti: "j".into(),
        bound: Bound {
            namespace: "ns".into(),
            node: None,
            pod: Some(reference("web")),
            secret: None,
            serviceaccount: reference("bot"),
            warnafter: None,
        },
        nbf: now,
        sub: "system:serviceaccount:ns:bot".into(),
    }
}

async fn tokens(objects: &Arc<ObjectStore>, key: &pki::SigningKey) -> ServiceAccountTokens {
    let loopback = Arc::new(Loopback::new(objects.clone(), &[]).await.unwrap());
    let keys = Arc::new(Keys::own(vec![key.public.clone()]));
    ServiceAccountTokens::new(vec!["https://us".into()], keys, loopback, Arc::default())
}

#[tokio::test]
async fn a_token_is_good_while_all_it_names_exists() {
    let key = pki::SigningKey::create().unwrap();
    let objects = objects::store(Vec::new()).await;
    let put = async |plural, name, uid: &str| {
        objects::put(&objects, plural, ("ns", name), Some(json!({"metadata": {"uid": uid}}))).await;
    };
    put("serviceaccounts", "bot", "bot-uid").await;
    put("pods", "web", "web-uid").await;
    let tokens = tokens(&objects, &key).await;
    let signer = Signer::new(&key).unwrap();
    let now = clock::now().as_second();
    let check = |claims: Claims| {
        let token = signer.sign(&claims).unwrap();
        let tokens = &tokens;
        async move { tokens.check(&token, &["other".to_owned(), "api".to_owned()]).await }
    };
    let identity = check(claims(now)).await.unwrap().unwrap();
    assert_eq!(identity.audiences, ["api"]);
    assert_eq!(identity.user.name, "system:serviceaccount:ns:bot");
    assert_eq!(identity.user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns"]);
    assert_eq!(identity.user.extra["authentication.kubernetes.io/pod-name"], ["web"]);
    assert_eq!(identity.user.extra[CREDENTIAL_ID], ["JTI=j"]);

    // Projected tokens live longer than their Pods are told, and who needs that is seen.
    let aged = |warn: i64| Claims { bound: Bound { warnafter: Some(warn), ..claims(now).bound }, ..claims(now) };
    assert_eq!(check(aged(now + 9)).await.unwrap().unwrap().notes, []);
    let stale = "subject: system:serviceaccount:ns:bot, seconds after warning threshold: ";
    let notes = check(aged(now - 60)).await.unwrap().unwrap().notes;
    assert!(notes[0].0 == STALE && notes[0].1.starts_with(stale), "{notes:?}");
    let counted = tokens.metrics.render();
    for expected in ["serviceaccount_valid_tokens_total 1\n", "serviceaccount_stale_tokens_total 1\n"] {
        assert!(counted.contains(expected), "{counted}");
    }

    assert!(check(Claims { exp: now - 1, ..claims(now) }).await.unwrap_err().why.contains("expired"));
    assert!(check(Claims { aud: vec!["x".into()], ..claims(now) }).await.is_err());
    assert_eq!(check(Claims { iss: "https://them".into(), ..claims(now) }).await, Ok(None));
    put("pods", "web", "another").await;
    assert!(check(claims(now)).await.unwrap_err().why.contains("does not match"));
    objects::put(&objects, "pods", ("ns", "web"), None).await;
    assert_eq!(check(claims(now)).await.unwrap_err().why, "pod has been deleted");

    // The same claims under another key.
    let stranger = Signer::new(&pki::SigningKey::create().unwrap()).unwrap();
    let token = stranger.sign(&claims(now)).unwrap();
    assert!(tokens.check(&token, &["api".to_owned()]).await.is_err());
    assert_eq!(tokens.check("no.jwt", &[]).await, Ok(None));
}

#[tokio::test]
async fn a_token_in_a_secret_is_good_while_that_secret_holds_it() {
    let key = pki::SigningKey::create().unwrap();
    let objects = objects::store(Vec::new()).await;
    let put = async |plural, name, object| objects::put(&objects, plural, ("ns", name), Some(object)).await;
    let tokens = tokens(&objects, &key).await;
    let signer = Signer::new(&key).unwrap();
    let account = Reference { name: "bot".into(), uid: "bot-uid".into() };
    let token = signer.sign_for_secret("ns", "bot-token", &account).unwrap();
    let secret = |held: &str| json!({"metadata": {"uid": "s"}, "data": {"token": base64::engine::general_purpose::STANDARD.encode(held)}});
    let check = || async { tokens.check(&token, &["api".to_owned()]).await };
    put("serviceaccounts", "bot", json!({"metadata": {"uid": "bot-uid"}})).await;
    assert!(check().await.unwrap_err().why.contains("invalidated"));
    put("secrets", "bot-token", secret(&token)).await;
    let identity = check().await.unwrap().unwrap();
    assert_eq!(identity.user.name, "system:serviceaccount:ns:bot");
    assert!(identity.audiences.is_empty());
    let about = (LEGACY, "system:serviceaccount:ns:bot".to_owned());
    assert_eq!(identity.notes, [about.clone(), (LEGACY_MANUAL, "bot-token".to_owned())]);
    put("serviceaccounts", "bot", json!({"metadata": {"uid": "bot-uid"}, "secrets": [{"name": "bot-token"}]})).await;
    let notes = check().await.unwrap().unwrap().notes;
    assert_eq!(notes, [about, (LEGACY_AUTOGENERATED, "bot-token".to_owned())]);
    let counted = tokens.metrics.render();
    for expected in
        ["legacy_tokens_total 2\n", "legacy_manual_token_uses_total 1\n", "legacy_auto_token_uses_total 1\n"]
    {
        assert!(counted.contains(&format!("serviceaccount_{expected}")), "{counted}");
    }
    let day = async || {
        let held = objects.get(&objects.definition("", "secrets").unwrap(), "ns", "bot-token").await.unwrap();
        held["metadata"]["labels"][LAST_USED].as_str().map(str::to_owned)
    };
    assert_eq!(day().await, Some(clock::now().strftime("%Y-%m-%d").to_string()));

    // The next Secret of the name holds another token, or none.
    let other = signer.sign_for_secret("ns", "bot-token", &account).unwrap();
    for held in [json!({"metadata": {}}), secret(""), secret(&other)] {
        put("secrets", "bot-token", held).await;
        assert!(check().await.unwrap_err().why.contains("does not match server's copy"));
    }
    let mut marked = secret(&token);
    marked["metadata"]["labels"] = json!({INVALID_SINCE: "2026-01-01"});
    put("secrets", "bot-token", marked).await;
    let refusal = check().await.unwrap_err();
    assert!(refusal.why.contains("has been marked invalid"));
    assert_eq!(refusal.notes, [(LEGACY_INVALIDATED, "bot-token/ns".to_owned())]);
    let counted = "serviceaccount_invalid_legacy_auto_token_uses_total 1\n";
    assert!(tokens.metrics.render().contains(counted), "{}", tokens.metrics.render());
    assert_eq!(day().await, Some(clock::now().strftime("%Y-%m-%d").to_string()), "a refused use is a use");
    let mut going = secret(&token);
    going["metadata"]["deletionTimestamp"] = json!(clock::now().to_string());
    put("secrets", "bot-token", going).await;
    assert!(check().await.unwrap_err().why.contains("invalidated"));
    put("secrets", "bot-token", secret(&token)).await;
    put("serviceaccounts", "bot", json!({"metadata": {"uid": "another"}})).await;
    assert!(check().await.unwrap_err().why.contains("does not match claim"));
}
