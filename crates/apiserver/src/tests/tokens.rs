//! The tokens that the server makes for service accounts: for which account, bound to what, and checked by others.

use api::Value;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use json::json;

use super::assembled::{Talk, options};
use crate::{
    Options,
    assemble::ServiceAccounts,
    auth::authn::service_account::{Claims, Reference, Signer},
};

#[tokio::test(start_paused = true)]
async fn tokens_can_be_checked_elsewhere() {
    let talk = Talk::start().await;
    const CONFIGURATION: &str = "GET /.well-known/openid-configuration";
    assert_eq!(talk.say("", CONFIGURATION, json!(null)).await.0, 403);
    let configuration = talk.ok("+root", CONFIGURATION, json!(null)).await;
    assert_eq!(configuration["issuer"], "https://us");
    assert_eq!(configuration["id_token_signing_alg_values_supported"], json!(["ES256"]));
    assert!(configuration["jwks_uri"].as_str().unwrap().ends_with("/openid/v1/jwks"));
    let account =
        talk.ok("+root", "POST /api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "a"}}));
    account.await;
    let path = "POST /api/v1/namespaces/default/serviceaccounts/a/token";
    let token = talk.ok("+root", path, json!({"spec": {}})).await["status"]["token"].as_str().unwrap().to_owned();
    let keys = talk.ok(&token, "GET /openid/v1/jwks", json!(null)).await;
    assert_eq!((&keys["keys"][0]["kty"], &keys["keys"][0]["use"]), (&json!("EC"), &json!("sig")));
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
    let expected = format!(r#"{{"alg":"ES256","kid":"{}"}}"#, keys["keys"][0]["kid"].as_str().unwrap());
    assert_eq!(String::from_utf8(header).unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_for_the_account_that_is_meant() {
    let talk = Talk::start().await;
    const ACCOUNTS: &str = "POST /api/v1/namespaces/default/serviceaccounts";
    let account = talk.ok("+root", ACCOUNTS, json!({"metadata": {"name": "a"}})).await;
    let ask = async |request: Value| talk.say("+root", &format!("{ACCOUNTS}/a/token"), request).await;
    let (code, answer) = ask(json!({"metadata": {"name": "b"}, "spec": {}})).await;
    let said = "TokenRequest.authentication.k8s.io \"a\" is invalid: metadata.name: Invalid value: \"b\": must match the service \
                account name if specified";
    assert_eq!((code, answer["message"].as_str().unwrap()), (422, said));
    assert_eq!(ask(json!({"metadata": {"namespace": "kube-system"}, "spec": {}})).await.0, 400);
    assert_eq!(ask(json!({"metadata": {"uid": "another"}, "spec": {}})).await.0, 409);
    let uid = &account["metadata"]["uid"];
    let (code, answer) = ask(json!({"metadata": {"name": "a", "namespace": "default", "uid": uid}, "spec": {}})).await;
    assert_eq!((code, &answer["metadata"]["uid"]), (201, uid));
    let bind = async |version: &str, kind: &str, uid: &str| {
        let object = json!({"apiVersion": version, "kind": kind, "name": "s", "uid": uid});
        let (code, answer) = ask(json!({"spec": {"boundObjectRef": object}})).await;
        (code, answer["message"].as_str().unwrap_or_default().to_owned())
    };
    let refused = "cannot bind token to object of type apps/v1, Kind=Deployment".to_owned();
    assert_eq!(bind("apps/v1", "Deployment", "").await, (400, refused));
    assert_eq!(bind("v1", "Secret", "").await, (404, "secrets \"s\" not found".to_owned()));
    talk.ok("+root", "POST /api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}})).await;
    let (code, message) = bind("v1", "Secret", "another").await;
    assert_eq!(code, 409, "{message}");
    assert!(
        message.starts_with("Operation cannot be fulfilled on Secret \"s\": the UID in the bound object reference")
    );
    assert_eq!(bind("v1", "Secret", "").await.0, 201);
    // A request that says nothing of its life is told how long it is.
    for request in [json!({}), json!({"spec": {}}), json!({"spec": {"audiences": ["x"]}})] {
        let (code, answer) = ask(request).await;
        assert_eq!((code, &answer["spec"]["expirationSeconds"]), (201, &json!(3600)), "{answer}");
    }
}

/// The objects that a token is bound to: upstream's test/integration/auth/svcaccttoken_test.go.
#[tokio::test(start_paused = true)]
async fn a_token_ends_with_what_it_is_bound_to() {
    const PLACE: &str = "/api/v1/namespaces/default";
    let talk = Talk::start().await;
    let make = async |place: &str, body: Value| talk.ok("+root", &format!("POST {place}"), body).await;
    let pod = |name: &str, account: &str, node: Option<&str>| {
        json!({"metadata": {"name": name}, "spec": {"serviceAccountName": account, "nodeName": node,
            "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}})
    };
    let ask = async |spec: Value| {
        let head = format!("POST {PLACE}/serviceaccounts/a/token");
        talk.say("+root", &head, json!({"spec": spec})).await
    };
    let review = async |token: &str| {
        talk.0.objects().caught_up().await.unwrap();
        let review = json!({"spec": {"token": token}});
        let answer = talk.ok("+root", "POST /apis/authentication.k8s.io/v1/tokenreviews", review).await;
        let extra = answer["status"]["user"]["extra"].as_object().cloned().unwrap_or_default();
        let names: Vec<String> = extra.iter().map(|(name, _)| name.rsplit('/').next().unwrap().to_owned()).collect();
        (answer["status"]["authenticated"] == true).then(|| names.join(" "))
    };
    assert_eq!(ask(json!({})).await.0, 404, "of no account");
    for account in ["a", "b"] {
        make(&format!("{PLACE}/serviceaccounts"), json!({"metadata": {"name": account}})).await;
    }
    make("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    for (kind, path, body, extra) in [
        ("Pod", format!("{PLACE}/pods"), pod("o", "a", None), "credential-id pod-name pod-uid"),
        ("Pod", format!("{PLACE}/pods"), pod("o", "a", Some("n")), "credential-id node-name node-uid pod-name pod-uid"),
        ("Secret", format!("{PLACE}/secrets"), json!({"metadata": {"name": "o"}}), "credential-id"),
        ("Node", "/api/v1/nodes".to_owned(), json!({"metadata": {"name": "o"}}), "credential-id node-name node-uid"),
    ] {
        let bound = |uid: &str| json!({"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": "o", "uid": uid}});
        assert_eq!(ask(bound("")).await.0, 404, "{kind}");
        let object = make(&path, body.clone()).await;
        assert_eq!(ask(bound("wrong")).await.0, 409, "{kind}");
        assert_eq!(ask(bound(api::meta::uid(&object))).await.0, 201, "{kind}");
        let (code, token) = ask(bound("")).await;
        let token = token["status"]["token"].as_str().unwrap();
        assert_eq!((code, review(token).await.as_deref()), (201, Some(extra)), "{kind}");
        talk.ok("+root", &format!("DELETE {path}/o?gracePeriodSeconds=0"), json!(null)).await;
        assert_eq!(review(token).await, None, "{kind}");
        make(&path, body).await;
        assert_eq!(review(token).await, None, "another {kind} of its name");
        talk.ok("+root", &format!("DELETE {path}/o?gracePeriodSeconds=0"), json!(null)).await;
    }
    make(&format!("{PLACE}/pods"), pod("other", "b", None)).await;
    let other = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "other"}});
    assert_eq!(ask(other).await.0, 400);
    let of = async |audience: Value| {
        ask(json!({"audiences": audience})).await.1["status"]["token"].as_str().unwrap().to_owned()
    };
    assert_eq!(review(&of(json!(["not-the-api"])).await).await, None);
    let token = of(Value::Null).await;
    assert_eq!(review(&token).await.as_deref(), Some("credential-id"));
    talk.ok("+root", &format!("DELETE {PLACE}/serviceaccounts/a"), json!(null)).await;
    assert_eq!(review(&token).await, None);
    make(&format!("{PLACE}/serviceaccounts"), json!({"metadata": {"name": "a"}})).await;
    assert_eq!(review(&token).await, None, "another account of its name");
}

/// Upstream's TestLegacyServiceAccountTokenTracking: whoever uses a token that was made unasked is told so each time.
#[tokio::test(start_paused = true)]
async fn tokens_that_nobody_asked_for_are_warned_of() {
    const PLACE: &str = "/api/v1/namespaces/default";
    let key = pki::SigningKey::create().unwrap();
    let signer = Signer::new(&key).unwrap();
    let talk = Talk::over(Options { service_accounts: ServiceAccounts::new("https://us", key), ..options() }).await;
    let accounts = format!("POST {PLACE}/serviceaccounts");
    let account = json!({"metadata": {"name": "a"}, "secrets": [{"name": "generated"}]});
    let account = talk.ok("+root", &accounts, account).await;
    let account = Reference { name: "a".into(), uid: api::meta::uid(&account).to_owned() };
    for (name, told) in [("manual", 0), ("generated", 1)] {
        let token = signer.sign_for_secret("default", name, &account).unwrap();
        let secret = json!({"metadata": {"name": name}, "stringData": {"token": &token}});
        talk.ok("+root", &format!("POST {PLACE}/secrets"), secret).await;
        talk.0.objects().caught_up().await.unwrap();
        for _ in 0..2 {
            let (code, warnings, answer) = talk.hear(&token, &format!("GET {PLACE}/pods"), json!(null)).await;
            assert_eq!((code, warnings.len()), (403, told), "{answer} {warnings:?}");
            assert!(warnings.iter().all(|w| w.contains("Use tokens from the TokenRequest API or manually created")));
        }
    }
}

/// An issuer and a key give way to others, and what they said before counts on.
#[tokio::test(start_paused = true)]
async fn tokens_of_earlier_issuers_and_keys_are_believed() {
    let [new, old, stranger] = [(); 3].map(|()| pki::SigningKey::create().unwrap());
    let signers = [&new, &old, &stranger].map(|key| Signer::new(key).unwrap());
    let issuers = ["https://new", "https://old"].map(str::to_owned).to_vec();
    let own = [new.public.id.clone(), old.public.id.clone()];
    let accounts = ServiceAccounts {
        issuers,
        // A key may be in several files.
        keys: vec![old.public.clone(), new.public.clone()],
        keys_url: Some("https://keys.example/k".to_owned()),
        ..ServiceAccounts::new("", new)
    };
    let talk = Talk::over(Options { service_accounts: accounts, ..options() }).await;
    talk.ok("+root", "POST /api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "a"}})).await;
    let path = "POST /api/v1/namespaces/default/serviceaccounts/a/token";
    let answer = talk.ok("+root", path, json!({"spec": {}})).await;
    assert_eq!(answer["spec"]["audiences"], json!(["https://new", "https://old"]));
    let claims =
        URL_SAFE_NO_PAD.decode(answer["status"]["token"].as_str().unwrap().split('.').nth(1).unwrap()).unwrap();
    let claims: Claims = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims.iss, "https://new");
    talk.0.objects().caught_up().await.unwrap();
    for (signer, issuer, audience, known) in [
        (0, "https://new", "https://new", true),
        (1, "https://new", "https://old", true),
        (1, "https://old", "https://old", true),
        (0, "https://old", "https://new", true),
        (2, "https://old", "https://old", false),
        (1, "https://other", "https://old", false),
        (1, "https://old", "https://other", false),
    ] {
        let claims = Claims { iss: issuer.to_owned(), aud: vec![audience.to_owned()], ..claims.clone() };
        let token = signers[signer].sign(&claims).unwrap();
        let code = talk.say(&token, "GET /version", json!(null)).await.0;
        assert_eq!(code, if known { 200 } else { 401 }, "key {signer}, {issuer}, {audience}");
    }
    let keys = talk.ok("+root", "GET /openid/v1/jwks", json!(null)).await;
    let keys = keys["keys"].as_array().unwrap();
    assert_eq!(keys.iter().map(|key| key["kid"].as_str().unwrap()).collect::<Vec<_>>(), own);
    assert!(keys.iter().all(|key| key.get("d").is_none()), "no private number is told: {keys:?}");
    let configuration = talk.ok("+root", "GET /.well-known/openid-configuration", json!(null)).await;
    assert_eq!(
        (&configuration["issuer"], &configuration["jwks_uri"]),
        (&json!("https://new"), &json!("https://keys.example/k"))
    );
}

#[tokio::test(start_paused = true)]
async fn audiences_and_odd_issuers_are_the_administrators() {
    let key = pki::SigningKey::create().unwrap();
    let accounts = ServiceAccounts { audiences: vec!["api".into(), "more".into()], ..ServiceAccounts::new("us", key) };
    let talk = Talk::over(Options { service_accounts: accounts, ..options() }).await;
    talk.ok("+root", "POST /api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "a"}})).await;
    let path = "POST /api/v1/namespaces/default/serviceaccounts/a/token";
    let token = async |spec: Value| {
        let answer = talk.ok("+root", path, json!({ "spec": spec })).await;
        (answer["spec"]["audiences"].clone(), answer["status"]["token"].as_str().unwrap().to_owned())
    };
    let (usual, own) = token(json!({})).await;
    assert_eq!(usual, json!(["api", "more"]));
    let (_, for_issuer) = token(json!({"audiences": ["us"]})).await;
    let (_, for_more) = token(json!({"audiences": ["x", "more"]})).await;
    talk.0.objects().caught_up().await.unwrap();
    let ask = async |token: &str| talk.say(token, "GET /version", json!(null)).await.0;
    assert_eq!([ask(&own).await, ask(&for_issuer).await, ask(&for_more).await], [200, 401, 200]);
    // That issuer is none of OpenID Connect: there are no documents of it.
    for path in ["/.well-known/openid-configuration", "/openid/v1/jwks"] {
        assert_eq!(talk.say("+root", &format!("GET {path}"), json!(null)).await.0, 404, "{path}");
    }
}
