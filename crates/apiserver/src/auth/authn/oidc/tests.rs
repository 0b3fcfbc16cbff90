//! Tokens of issuers, good ones and forged ones, over real connections to the issuers.

use std::sync::Arc;

use api::Value;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use json::json;
use pki::SigningKey;
use sha2::{Digest, Sha256};

use super::{ClaimRule, Jwt, Settings, Source, Told};
use crate::{
    User,
    auth::authn::{
        token::{Rejected, Tokens},
        turns::AT_ONCE,
    },
    tests::idp::{DISCOVERY, Idp, KEYS, Page, signed, token},
};

/// A token under a shared secret (HS256, after RFC 2104), which no issuer here makes.
fn hmac_signed(secret: &[u8], header: &str, claims: &str) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let short = if secret.len() > 64 { Sha256::digest(secret).to_vec() } else { secret.to_vec() };
    let mut key = [0; 64];
    key[..short.len()].copy_from_slice(&short);
    let inner = Sha256::digest([&key.map(|byte| byte ^ 0x36)[..], message.as_bytes()].concat());
    let outer = Sha256::digest([&key.map(|byte| byte ^ 0x5c)[..], &inner[..]].concat());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(outer))
}

fn settings(idp: &Idp) -> Settings {
    Settings {
        url: idp.url(),
        discovery: None,
        authorities: Some(idp.authorities()),
        audiences: vec!["us".to_owned(), "them".to_owned()],
        algorithms: vec!["ES256".to_owned()],
        username: Source::Claim { name: "sub".to_owned(), prefix: "idp:".to_owned() },
        groups: Source::Claim { name: "groups".to_owned(), prefix: "idp:".to_owned() },
        uid: Source::Nothing,
        extra: Vec::new(),
        claim_rules: Vec::new(),
        user_rules: Vec::new(),
    }
}

fn jwt(settings: &Settings) -> Jwt {
    Jwt::new(settings, Told { metrics: Arc::default(), server: "s".to_owned() }).unwrap()
}

async fn user(jwt: &Jwt, token: &str) -> Result<Option<User>, Rejected> {
    let identity = jwt.check(token, &[]).await.map_err(|refusal| refusal.why)?;
    Ok(identity.map(|identity| User::clone(&identity.user)))
}

async fn name(jwt: &Jwt, token: &str) -> Result<String, Rejected> {
    Ok(user(jwt, token).await?.map_or("nobody".to_owned(), |user| user.name))
}

#[tokio::test]
async fn claims_become_a_user() {
    let key = SigningKey::create().unwrap();
    let idp = Idp::start(&[&key.public]).await;
    let found = async |settings: Settings, claims: Value| {
        user(&jwt(&settings), &signed(&key, &idp.claims(claims))).await.map(Option::unwrap)
    };
    let jane = found(settings(&idp), json!({"groups": ["a", "b"], "jti": "7"})).await.unwrap();
    assert_eq!((jane.name.as_str(), &jane.groups[..]), ("idp:jane", &["idp:a".to_owned(), "idp:b".to_owned()][..]));
    assert_eq!(jane.extra["authentication.kubernetes.io/credential-id"], ["JTI=7"]);
    assert_eq!(found(settings(&idp), json!({"groups": "a"})).await.unwrap().groups, ["idp:a"]);
    assert!(found(settings(&idp), json!({})).await.unwrap().groups.is_empty());
    let expressions = || Settings {
        username: Source::Expression("claims.sub + '@' + claims.org.name".into()),
        groups: Source::Expression("claims.roles.split(',')".into()),
        uid: Source::Expression("claims.id".into()),
        extra: vec![
            ("example.com/x".into(), "claims.x".into()),
            ("example.com/y".into(), "claims.?y.orValue('')".into()),
        ],
        claim_rules: vec![
            ClaimRule::Value { claim: "hd".into(), value: "here".into() },
            ClaimRule::Expression { expression: "claims.exp - claims.iat <= 7200".into(), message: "too long".into() },
        ],
        user_rules: vec![("!user.username.startsWith('system:')".into(), "reserved".into())],
        ..settings(&idp)
    };
    let claims = json!({"org": {"name": "o"}, "roles": "r,s,", "id": "9", "x": ["1", "", "2"], "hd": "here"});
    let whole = found(expressions(), claims.clone()).await.unwrap();
    assert_eq!(
        (whole.name.as_str(), whole.uid.as_str(), &whole.groups[..]),
        ("jane@o", "9", &["r".to_owned(), "s".to_owned()][..])
    );
    assert_eq!(
        (&whole.extra["example.com/x"][..], whole.extra.get("example.com/y")),
        (&["1".to_owned(), "2".to_owned()][..], None)
    );
    // The tokens of another cluster's service accounts have claims that are no names.
    let pod = json!({"namespace": "ns", "pod": {"uid": "u"}, "a__b": [{"x-y/z": "z"}]});
    let spelled = Settings {
        username: Source::Expression("'sa:' + claims.kubernetes__dot__io.__namespace__".into()),
        groups: Source::Expression(
            "claims.kubernetes__dot__io.a__underscores__b.map(g, g.x__dash__y__slash__z)".into(),
        ),
        uid: Source::Expression(
            "has(claims.kubernetes__dot__io.pod.uid) ? claims.kubernetes__dot__io.pod.uid : ''".into(),
        ),
        extra: vec![("example.com/x".into(), "claims.?kubernetes__dot__io.orValue({})['namespace']".into())],
        user_rules: vec![("user.extra.example__dot__com__slash__x[0] == 'ns'".into(), "no namespace".into())],
        ..settings(&idp)
    };
    let there = found(spelled, json!({"kubernetes.io": pod})).await.unwrap();
    assert_eq!((there.name.as_str(), there.groups.join(","), there.uid.as_str()), ("sa:ns", "z".to_owned(), "u"));
    let refused = async |changes: Value, why: &str| {
        let mut claims = claims.clone();
        for (name, value) in changes.as_object().unwrap() {
            claims[name.to_string().as_str()] = value.clone();
        }
        let said = found(expressions(), claims).await.unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    refused(json!({"hd": "there"}), "required claim hd value does not match. Got = there, want = here").await;
    refused(json!({"hd": ["here"]}), "parse claim hd").await;
    refused(json!({"iat": 1}), "validation expression 'claims.exp - claims.iat <= 7200' failed: too long").await;
    refused(json!({"sub": "system:admin"}), "failed: reserved").await;
    refused(json!({"id": 9}), "uid claim expression must return a string").await;
    refused(json!({"roles": 1}), "error evaluating group claim expression").await;
    refused(json!({"org": "o"}), "error evaluating username claim expression").await;
    refused(json!({"x": [1]}), "expression must return a string or a list of strings").await;
    // Numbers are doubles, whatever they look like.
    let number = async |expression: &str| {
        let username = Source::Expression(expression.to_owned());
        let claims = json!({"num": 1_234_567_890_123_i64, "list": [{"n": 5}]});
        found(Settings { username, ..settings(&idp) }, claims).await.map(|user| user.name)
    };
    for (expression, expected) in [
        ("string(claims.num)", "1.234567890123e+12"),
        ("string(claims.list[0].n)", "5"),
        ("string(claims.list[0].n / 2.0)", "2.5"),
        ("type(claims.num) == double ? 'double' : 'other'", "double"),
        ("claims.list[0].n == 5 && claims.num > 5 ? 'yes' : 'no'", "yes"),
    ] {
        assert_eq!(number(expression).await.as_deref(), Ok(expected), "{expression}");
    }
    for expression in ["string(claims.num % 2)", "string(claims.num + 1)"] {
        assert!(number(expression).await.unwrap_err().contains("no such overload"), "{expression}");
    }
    let email =
        || Settings { username: Source::Claim { name: "email".into(), prefix: String::new() }, ..settings(&idp) };
    assert_eq!(found(email(), json!({"email": "a@b"})).await.unwrap().name, "a@b");
    for (verified, why) in [
        (json!(false), "email not verified"),
        (Value::Null, "email not verified"),
        (json!("true"), "parse 'email_verified' claim"),
    ] {
        let said = found(email(), json!({"email": "a@b", "email_verified": verified})).await.unwrap_err();
        assert!(said.contains(why), "{said}");
    }
    let said = found(settings(&idp), json!({"groups": [1]})).await.unwrap_err();
    assert!(said.contains("parse groups claim"), "{said}");
}

#[tokio::test]
async fn forged_tokens_are_nobodys() {
    let (key, other) = (SigningKey::create().unwrap(), SigningKey::create().unwrap());
    let idp = Idp::start(&[&key.public]).await;
    let jwt = jwt(&settings(&idp));
    let good = idp.claims(json!({}));
    assert_eq!(name(&jwt, &signed(&key, &good)).await.unwrap(), "idp:jane");
    let now = clock::now().as_second();
    let head = format!(r#"{{"alg":"ES256","kid":"{}"}}"#, key.public.id);
    let text = good.to_string();
    let unsigned = |head: &str| format!("{}.{}.", URL_SAFE_NO_PAD.encode(head), URL_SAFE_NO_PAD.encode(&text));
    let changed = |changes: Value| signed(&key, &idp.claims(changes));
    let hmac = |secret: &[u8]| hmac_signed(secret, &head.replace("ES256", "HS256"), &text);
    let forged = signed(&other, &good);
    let tokens: Vec<(String, &str)> = vec![
        (unsigned(r#"{"alg":"none"}"#), "unsupported algorithm"),
        (unsigned(r#"{"alg":"None"}"#), "unsupported algorithm"),
        (unsigned(&head), "failed to verify id token signature"),
        (unsigned("{}"), "unsupported algorithm"),
        (hmac(key.public.pem.as_bytes()), "unsupported algorithm"),
        (hmac(b""), "unsupported algorithm"),
        (forged.clone(), "failed to verify id token signature"),
        (token(&other, &head, &text), "failed to verify id token signature"),
        (token(&other, r#"{"alg":"ES256"}"#, &text), "failed to verify id token signature"),
        // The name of a key is no path and no address.
        (token(&other, r#"{"alg":"ES256","kid":"../../etc/passwd"}"#, &text), "failed to verify id token signature"),
        (
            token(&other, r#"{"alg":"ES256","kid":"https://evil.example/keys"}"#, &text),
            "failed to verify id token signature",
        ),
        // A key that the token brings itself is not looked at.
        (
            token(&other, &json!({"alg": "ES256", "jwk": {"kty": "EC"}, "jku": idp.url()}).to_string(), &text),
            "id token signature",
        ),
        (token(&key, &head.replace("ES256", "ES384"), &text), "unsupported algorithm"),
        (changed(json!({"aud": "others"})), "expected audience in"),
        (changed(json!({"aud": []})), "expected audience in"),
        (changed(json!({"aud": {"us": true}})), "failed to unmarshal claims: aud is"),
        (changed(json!({"aud": ["us", 5]})), "failed to unmarshal claims: aud is"),
        (changed(json!({"aud": [null]})), "expected audience in"),
        (changed(json!({"exp": now - 1})), "token is expired"),
        (changed(json!({"exp": 1e300})), "token is expired"),
        (changed(json!({"exp": u64::MAX})), "token is expired"),
        (changed(json!({"exp": i64::MAX})), "token is expired"),
        (changed(json!({"exp": null})), "token is expired"),
        (changed(json!({"exp": "never"})), "exp is no time"),
        (changed(json!({"exp": [now + 60]})), "exp is no time"),
        (changed(json!({"nbf": now + 3600})), "before the nbf (not before) time"),
        (changed(json!({"sub": ""})), "empty username"),
        (changed(json!({"sub": 7})), "parse username claims"),
        (changed(json!({"sub": null})), "parse username claims"),
    ];
    for (token, why) in tokens {
        let said = name(&jwt, &token).await.expect_err(why);
        assert!(said.contains(why), "{said}, not {why}");
    }
    // A text that is no token of this issuer is left to others.
    for token in [
        changed(json!({"iss": "https://other"})),
        changed(json!({"iss": format!("{}/", idp.url())})),
        changed(json!({"iss": [idp.url()]})),
        token(&key, &head, &text.replacen('{', r#"{"iss":"https://other","#, 1)),
        token(&key, &head, &text.replacen('{', r#"{"sub":"root","#, 1)),
        token(&key, &head.replacen('{', r#"{"alg":"none","#, 1), &text),
        token(&key, &head.replacen('{', r#"{"crit":["exp"],"#, 1), &text),
        changed(json!({"padding": "a".repeat(64 << 10)})),
        token(&key, &head, "[]"),
        format!("{}.", signed(&key, &good)),
        "a.b.c".to_owned(),
        "..".to_owned(),
        String::new(),
        json!({"payload": "", "signatures": []}).to_string(),
    ] {
        assert_eq!(name(&jwt, &token).await.unwrap(), "nobody", "{token}");
    }
    assert_eq!(name(&jwt, &changed(json!({"aud": ["x", "them"]}))).await.unwrap(), "idp:jane");
    assert_eq!(name(&jwt, &changed(json!({"nbf": now + 60}))).await.unwrap(), "idp:jane", "clocks differ");
    // Whoever sends forged tokens does not have the issuer asked for each.
    idp.asked();
    for _ in 0..50 {
        assert!(name(&jwt, &forged).await.is_err());
    }
    assert!(idp.asked().len() <= 2 * AT_ONCE as usize, "a few fetches are followed by pauses");
}

#[tokio::test]
async fn keys_are_fetched_anew_when_one_is_unknown() {
    let keys: Vec<SigningKey> = (0..2).map(|_| SigningKey::create().unwrap()).collect();
    let idp = Idp::start(&[&keys[0].public]).await;
    let jwt = jwt(&settings(&idp));
    let tokens = [0, 1].map(|at| signed(&keys[at], &idp.claims(json!({}))));
    assert_eq!(name(&jwt, &tokens[0]).await.unwrap(), "idp:jane");
    let paths: Vec<String> = idp.asked().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [DISCOVERY, KEYS]);
    idp.use_keys(&[&keys[1].public]);
    assert_eq!(name(&jwt, &tokens[1]).await.unwrap(), "idp:jane", "a key of this moment is known at once");
    assert!(name(&jwt, &tokens[0]).await.is_err(), "the key is no longer published");
    assert_eq!(name(&jwt, &tokens[1]).await.unwrap(), "idp:jane");
}

#[tokio::test]
async fn an_issuer_that_lies_is_not_believed() {
    let key = SigningKey::create().unwrap();
    let idp = Idp::start(&[&key.public]).await;
    let token = signed(&key, &idp.claims(json!({})));
    let document = |issuer: &str, keys: &str| Page::Text(json!({"issuer": issuer, "jwks_uri": keys}).to_string());
    let url = idp.url();
    let good = || document(&url, &format!("{url}{KEYS}"));
    for (path, page, why) in [
        (
            DISCOVERY,
            document("https://other", &format!("{url}{KEYS}")),
            "did not match the issuer URL returned by provider",
        ),
        (DISCOVERY, document(&url, ""), "provider did not return JWKS URL"),
        (DISCOVERY, document(&url, "http://localhost/keys"), "only https is spoken"),
        (DISCOVERY, document(&url, "file:///etc/passwd"), "invalid format"),
        (DISCOVERY, Page::Text("no".into()), "failed to decode provider discovery object"),
        (DISCOVERY, Page::Status(404), "it answered 404"),
        (DISCOVERY, Page::Redirecting(format!("{url}{KEYS}")), "did not match the issuer URL returned by provider"),
        (DISCOVERY, Page::Redirecting("http://localhost/".into()), "only https is spoken"),
        (DISCOVERY, Page::Redirecting(DISCOVERY.into()), "stopped after 10 redirects"),
        (DISCOVERY, Page::Endless, "has more than 1048576 bytes"),
        (KEYS, Page::Redirecting(format!("{url}{DISCOVERY}")), "it holds no keys"),
        (KEYS, Page::Endless, "has more than 1048576 bytes"),
        (KEYS, Page::Text("[]".into()), "it holds no keys"),
        (
            KEYS,
            Page::Text(r#"{"keys":[{"kty":"oct","k":"AAAA"},{"kty":"EC"},7]}"#.into()),
            "failed to verify id token signature",
        ),
    ] {
        idp.be(DISCOVERY, good());
        idp.use_keys(&[&key.public]);
        idp.be(path, page);
        let said = name(&jwt(&settings(&idp)), &token).await.expect_err(why);
        assert!(said.contains(why), "{said}, not {why}");
    }
    // Another server at its address is not the issuer.
    let strangers = Settings { authorities: Some(Idp::start(&[]).await.authorities()), ..settings(&idp) };
    let said = name(&jwt(&strangers), &token).await.unwrap_err();
    assert!(said.contains("tls"), "{said}");
    idp.be("/moved", good());
    idp.be(DISCOVERY, Page::Redirecting("/moved".into()));
    idp.use_keys(&[&key.public]);
    assert_eq!(name(&jwt(&settings(&idp)), &token).await.unwrap(), "idp:jane", "a redirect is followed");
    // The document may be elsewhere, but speaks of the same issuer.
    idp.be("/elsewhere", good());
    idp.use_keys(&[&key.public]);
    idp.be(DISCOVERY, Page::Status(404));
    let elsewhere = Settings { discovery: Some(format!("{url}/elsewhere")), ..settings(&idp) };
    assert_eq!(name(&jwt(&elsewhere), &token).await.unwrap(), "idp:jane");
}

#[tokio::test]
async fn an_issuer_that_hangs_holds_up_its_own_tokens_alone() {
    let key = SigningKey::create().unwrap();
    let (hanging, well) = (Idp::start(&[&key.public]).await, Idp::start(&[&key.public]).await);
    hanging.be(DISCOVERY, Page::Hanging);
    let (slow, fast) = (jwt(&settings(&hanging)), jwt(&settings(&well)));
    let (late, token) = (signed(&key, &hanging.claims(json!({}))), signed(&key, &well.claims(json!({}))));
    let waiting = name(&slow, &late);
    tokio::pin!(waiting);
    tokio::select! {
        _ = &mut waiting => panic!("it hangs"),
        () = hanging.is_asked() => {}
    }
    assert_eq!(name(&slow, &token).await.unwrap(), "nobody", "a token of another issuer is not waited for");
    assert_eq!(name(&fast, &token).await.unwrap(), "idp:jane");
}

#[tokio::test]
async fn groups_may_stand_elsewhere() {
    let (key, other) = (SigningKey::create().unwrap(), SigningKey::create().unwrap());
    let idp = Idp::start(&[&key.public]).await;
    let jwt = jwt(&settings(&idp));
    let url = format!("{}/groups", idp.url());
    let pointing = |source: Value| {
        signed(&key, &idp.claims(json!({"_claim_names": {"groups": "s"}, "_claim_sources": {"s": source}})))
    };
    let away = pointing(json!({"endpoint": url, "access_token": "t"}));
    idp.be("/groups", Page::Text(signed(&key, &idp.claims(json!({"groups": ["a"]})))));
    let found = user(&jwt, &away).await.unwrap().unwrap();
    assert_eq!(found.groups, ["idp:a"]);
    assert!(idp.asked().contains(&("/groups".to_owned(), "Bearer t".to_owned())));
    for (page, why) in [
        (
            Page::Text(signed(&other, &idp.claims(json!({"groups": ["a"]})))),
            "verify distributed claim token: failed to verify",
        ),
        (Page::Text(signed(&key, &idp.claims(json!({"groups": ["a"], "aud": "x"})))), "expected audience"),
        (Page::Text(signed(&key, &idp.claims(json!({"groups": ["a"], "exp": 1})))), "token is expired"),
        (Page::Text(signed(&key, &idp.claims(json!({"roles": ["a"]})))), "did not contain claim: groups"),
        (Page::Text("no".into()), "malformed token"),
        (Page::Redirecting("http://169.254.169.254/".into()), "only https is spoken"),
        (Page::Endless, "has more than 65536 bytes"),
    ] {
        idp.be("/groups", page);
        let said = user(&jwt, &away).await.expect_err(why);
        assert!(
            said.starts_with("oidc: could not expand distributed claims: ") && said.contains(why),
            "{said}, not {why}"
        );
    }
    let said = user(&jwt, &pointing(json!({"endpoint": "http://localhost/x"}))).await.unwrap_err();
    assert!(said.contains("only https is spoken"), "{said}");
    let nowhere = signed(&key, &idp.claims(json!({"_claim_names": {"groups": "s"}, "_claim_sources": {}})));
    assert!(user(&jwt, &nowhere).await.unwrap_err().contains("missing in _claims_sources"));
    let present =
        signed(&key, &idp.claims(json!({"groups": "b", "_claim_names": {"groups": "s"}, "_claim_sources": 7})));
    assert_eq!(user(&jwt, &present).await.unwrap().unwrap().groups, ["idp:b"], "what is there is not looked for");
}

/// The rules of go-oidc and go-jose: a token that names a key is checked with keys of that name; the set's words on use and
/// algorithm are no more than words.
#[tokio::test]
async fn keys_are_chosen_by_their_names_and_types() {
    let key = SigningKey::create().unwrap();
    let idp = Idp::start(&[]).await;
    let good = idp.claims(json!({})).to_string();
    let check = async |changes: &[(&str, Option<&str>)], head: Value, known: bool| {
        let mut jwk: json::Map =
            key.public.jwk().into_iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect();
        for (name, value) in changes {
            jwk.remove(name);
            if let Some(value) = value {
                jwk.insert((*name).to_owned(), Value::from(*value));
            }
        }
        idp.publish(KEYS, &json!({"keys": [jwk]}));
        let settings = Settings { algorithms: vec!["ES256".into(), "ES384".into(), "RS256".into()], ..settings(&idp) };
        let found = name(&jwt(&settings), &token(&key, &head.to_string(), &good)).await;
        assert_eq!(found.is_ok(), known, "{changes:?} {head}: {found:?}");
    };
    let named = json!({"alg": "ES256", "kid": "k"});
    check(&[("kid", Some("k")), ("alg", Some("ES384"))], named.clone(), true).await;
    check(&[("kid", Some("k")), ("alg", None), ("use", Some("enc"))], named.clone(), true).await;
    check(&[("kid", None)], named.clone(), false).await;
    check(&[("kid", Some("other"))], named.clone(), false).await;
    check(&[("kid", None)], json!({"alg": "ES256"}), true).await;
    check(&[("kid", Some("k"))], json!({"alg": "ES256"}), true).await;
    // No word of the set makes a key check what it cannot.
    for algorithm in ["ES384", "RS256", "HS256", "none"] {
        check(&[("kid", Some("k")), ("alg", Some(algorithm))], json!({"alg": algorithm, "kid": "k"}), false).await;
    }
}

#[tokio::test]
async fn the_issuers_of_distributed_claims_are_in_no_metrics() {
    let (key, other) = (SigningKey::create().unwrap(), SigningKey::create().unwrap());
    let (idp, elsewhere) = (Idp::start(&[&key.public]).await, Idp::start(&[&other.public]).await);
    let authorities = Some(format!("{}{}", idp.authorities(), elsewhere.authorities()));
    let told = Told { metrics: Arc::default(), server: "s".to_owned() };
    let jwt = Jwt::new(&Settings { authorities, ..settings(&idp) }, told.clone()).unwrap();
    elsewhere.be("/groups", Page::Text(signed(&other, &elsewhere.claims(json!({"groups": ["a"]})))));
    let source = json!({"endpoint": format!("{}/groups", elsewhere.url())});
    let claims = idp.claims(json!({"_claim_names": {"groups": "s"}, "_claim_sources": {"s": source}}));
    assert_eq!(user(&jwt, &signed(&key, &claims)).await.unwrap().unwrap().groups, ["idp:a"]);
    let (page, hash) = (told.metrics.render(), crate::auth::metrics::hash);
    assert!(page.contains(&hash(&idp.url())) && !page.contains(&hash(&elsewhere.url())), "{page}");
}
