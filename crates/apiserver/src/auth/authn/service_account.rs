//! Service account tokens: JWTs that the server signs, bound to an account and often to a Pod, Secret or Node. A token
//! is good while everything that it names exists with the UID it names.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Value, kind::Target, meta};
use base64::Engine;
use futures::future::BoxFuture;
use json::json;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use super::certificate::CREDENTIAL_ID;
use super::token::{Identity, Rejected, Tokens, same_secret};
use crate::{auth::User, storage::loopback::Loopback};

/// A deleted object still vouches this long for a token, because its containers may run that long.
const DELETION_LEEWAY_SECONDS: i64 = 60;
/// The label of a Secret whose token is no longer accepted, because nobody used it for long.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The label that says on which day the token was used last.
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// The issuer of the tokens that live in Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// An object as a claim names it. A claim without a UID names nothing that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The claims below `kubernetes.io`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    /// When a client that still uses the token is one that doesn't reload it; the token itself lives longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// All claims of a token that this server signs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aud: Vec<String>,
    pub exp: i64,
    pub iat: i64,
    pub iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub bound: Bound,
    pub nbf: i64,
    pub sub: String,
}

/// The claims of a token in a Secret: no end, no audience.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LegacyClaims {
    iss: String,
    /// Makes each token another one: a Secret that is made again holds a new token, not the old one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    jti: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    name: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
    sub: String,
}

/// Signs tokens.
pub struct Signer {
    pub issuer: String,
    key: EncodingKey,
    header: Header,
}

impl Signer {
    pub fn new(issuer: &str, key: &pki::SigningKey) -> Result<Self, String> {
        let mut header = Header::new(key.public.jwt_algorithm());
        header.typ = None;
        header.kid = Some(key.public.id.clone());
        let key = key.for_jwt().map_err(|e| e.to_string())?;
        Ok(Signer { issuer: issuer.to_owned(), key, header })
    }

    /// A token without an end, for the Secret that it lies in: it is good as long as Secret and account are there.
    pub fn sign_for_secret(&self, namespace: &str, secret: &str, account: &Reference) -> Result<String, String> {
        let claims = LegacyClaims {
            iss: LEGACY_ISSUER.to_owned(),
            jti: clock::uuid(),
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            name: account.name.clone(),
            uid: account.uid.clone(),
            sub: format!("system:serviceaccount:{namespace}:{}", account.name),
        };
        jsonwebtoken::encode(&self.header, &claims, &self.key).map_err(|e| e.to_string())
    }

    pub fn sign(&self, claims: &Claims) -> Result<String, String> {
        jsonwebtoken::encode(&self.header, claims, &self.key).map_err(|e| e.to_string())
    }
}

struct Key {
    id: String,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// Checks tokens.
pub struct ServiceAccountTokens {
    issuers: Vec<String>,
    keys: Vec<Key>,
    objects: Arc<Loopback>,
}

impl ServiceAccountTokens {
    pub fn new(issuers: Vec<String>, keys: &[pki::VerifyingKey], objects: Arc<Loopback>) -> Self {
        let load =
            |key: &pki::VerifyingKey| Key { id: key.id.clone(), algorithm: key.jwt_algorithm(), key: key.for_jwt() };
        ServiceAccountTokens { issuers, keys: keys.iter().map(load).collect(), objects }
    }

    /// The claims under a good signature.
    fn verify<C: serde::de::DeserializeOwned>(&self, token: &str) -> Result<C, Rejected> {
        let header = jsonwebtoken::decode_header(token).map_err(|e| e.to_string())?;
        let fits = |key: &&Key| key.algorithm == header.alg && header.kid.as_ref().is_none_or(|id| *id == key.id);
        let mut last = "no key fits the token's signature".to_owned();
        for key in self.keys.iter().filter(fits) {
            // Times and audiences are checked by our own clock and rules.
            let mut validation = Validation::new(key.algorithm);
            validation.validate_exp = false;
            validation.validate_aud = false;
            validation.required_spec_claims.clear();
            match jsonwebtoken::decode(token, &key.key, &validation) {
                Ok(data) => return Ok(data.claims),
                Err(e) => last = e.to_string(),
            }
        }
        Err(last)
    }

    /// Whether an object exists with this UID and is not on its way out for long.
    async fn exists(&self, plural: &str, namespace: &str, wanted: &Reference) -> Result<(), Rejected> {
        let found = self.objects.get("", plural, namespace, &wanted.name).await.map_err(|e| e.to_string())?;
        let what = plural.trim_end_matches('s');
        let object = found.ok_or_else(|| format!("{what} has been deleted"))?;
        if meta::uid(&object) != wanted.uid {
            return Err(format!("{what} UID ({}) does not match claim ({})", meta::uid(&object), wanted.uid));
        }
        let oldest = clock::now().as_second() - DELETION_LEEWAY_SECONDS;
        let gone = |at: &str| at.parse::<clock::Timestamp>().map_or(true, |at| at.as_second() < oldest);
        if meta::deletion_timestamp(&object).is_some_and(gone) {
            return Err(format!("{what} has been deleted"));
        }
        Ok(())
    }

    async fn check_bound(&self, token: &str, audiences: &[String]) -> Result<Identity, Rejected> {
        let claims: Claims = self.verify(token)?;
        let now = clock::now().as_second();
        if now < claims.nbf {
            return Err("service account token is not valid yet".to_owned());
        }
        if now > claims.exp {
            return Err("service account token has expired".to_owned());
        }
        let common: Vec<String> = audiences.iter().filter(|a| claims.aud.contains(a)).cloned().collect();
        if common.is_empty() {
            return Err(format!("token audiences {:?} is invalid for the target audiences {audiences:?}", claims.aud));
        }
        let bound = &claims.bound;
        self.exists("serviceaccounts", &bound.namespace, &bound.serviceaccount).await?;
        if let Some(secret) = &bound.secret {
            self.exists("secrets", &bound.namespace, secret).await?;
        }
        if let Some(pod) = &bound.pod {
            self.exists("pods", &bound.namespace, pod).await?;
        }
        // A token that is bound to a Pod carries the node only for information.
        if let (None, Some(node)) = (&bound.pod, &bound.node) {
            self.exists("nodes", "", node).await?;
        }
        Ok(Identity { user: Arc::new(user_of(&claims)), audiences: common })
    }

    /// The Secret holds the very token: one that was made again under the same name does not revive what its
    /// predecessor held.
    async fn check_legacy(&self, token: &str) -> Result<Identity, Rejected> {
        let claims: LegacyClaims = self.verify(token)?;
        let (namespace, name) = (&claims.namespace, &claims.name);
        if claims.sub != format!("system:serviceaccount:{namespace}:{name}") {
            return Err("sub claim is invalid".to_owned());
        }
        let secret = self.objects.get("", "secrets", namespace, &claims.secret).await.map_err(|e| e.to_string())?;
        let secret = secret.filter(|s| meta::deletion_timestamp(s).is_none());
        let secret = secret.ok_or("service account token has been invalidated")?;
        let held = meta::at(&secret, "/data/token").and_then(Value::as_str).unwrap_or_default();
        if !same_secret(held, &base64::engine::general_purpose::STANDARD.encode(token)) {
            return Err("service account token does not match server's copy".to_owned());
        }
        let account = self.objects.get("", "serviceaccounts", namespace, name).await.map_err(|e| e.to_string())?;
        let account = account.filter(|a| meta::deletion_timestamp(a).is_none());
        let account = account.ok_or_else(|| format!("service account {namespace}/{name} has been deleted"))?;
        let uid = meta::uid(&account);
        if uid != claims.uid {
            return Err(format!("service account UID ({uid}) does not match claim ({})", claims.uid));
        }
        if meta::labels(&secret).is_some_and(|labels| labels.contains_key(INVALID_SINCE)) {
            return Err(format!(
                "the token in secret {namespace}/{} for service account {namespace}/{name} has been marked invalid. Use \
                 tokens from the TokenRequest API or manually created secret-based tokens, or remove the \
                 '{INVALID_SINCE}' label from the secret to temporarily allow use of this token",
                claims.secret
            ));
        }
        self.note_use(&secret).await;
        let user = User::service_account(namespace, name, &claims.uid);
        Ok(Identity { user: Arc::new(user), audiences: Vec::new() })
    }

    /// Notes the day of the token's use, at most once a day. A token is good whether or not that succeeds.
    async fn note_use(&self, secret: &Value) {
        let now = clock::now();
        let day = |time: clock::Timestamp| time.strftime("%Y-%m-%d").to_string();
        let today = day(now);
        // Another server's clock may be ahead.
        let tomorrow = day(now.checked_add(clock::Duration::from_secs(24 * 3600)).unwrap_or(now));
        let used = meta::labels(secret).and_then(|labels| labels.get(LAST_USED)).and_then(Value::as_str);
        if used.is_some_and(|used| used == today || used == tomorrow) {
            return;
        }
        let place = (meta::namespace(secret), meta::name(secret));
        let noted = self.objects.update(("", "secrets"), Target::Object, place, |present| {
            if meta::uid(present) != meta::uid(secret) {
                return Ok(false);
            }
            if let Some(metadata) = meta::metadata_mut(present) {
                let labels = metadata.entry("labels").or_insert_with(|| json!({}));
                labels[LAST_USED] = json!(today);
            }
            Ok(true)
        });
        if let Err(error) = noted.await {
            tracing::debug!(secret = place.1, error = error.message, "the use of a token could not be noted");
        }
    }
}

/// The issuer a token claims, before anything is verified: it says whose token it is.
fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let json = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, payload).ok()?;
    serde_json::from_slice::<Issuer>(&json).ok().map(|i| i.iss)
}

fn user_of(claims: &Claims) -> User {
    let bound = &claims.bound;
    let account = &bound.serviceaccount;
    let mut extra = BTreeMap::new();
    let mut add = |key: &str, value: &str| extra.insert(key.to_owned(), vec![value.to_owned()]);
    if !claims.jti.is_empty() {
        add(CREDENTIAL_ID, &format!("JTI={}", claims.jti));
    }
    for (what, reference) in [("pod", &bound.pod), ("node", &bound.node)] {
        if let Some(reference) = reference {
            add(&format!("authentication.kubernetes.io/{what}-name"), &reference.name);
            add(&format!("authentication.kubernetes.io/{what}-uid"), &reference.uid);
        }
    }
    User { extra, ..User::service_account(&bound.namespace, &account.name, &account.uid) }
}

impl Tokens for ServiceAccountTokens {
    fn check<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Option<Identity>, Rejected>> {
        Box::pin(async move {
            match claimed_issuer(token) {
                Some(issuer) if issuer == LEGACY_ISSUER => self.check_legacy(token).await.map(Some),
                Some(issuer) if self.issuers.contains(&issuer) => self.check_bound(token, audiences).await.map(Some),
                _ => Ok(None),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::{storage::object_store::ObjectStore, tests::objects};

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
        ServiceAccountTokens::new(vec!["https://us".into()], std::slice::from_ref(&key.public), loopback)
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
        let signer = Signer::new("https://us", &key).unwrap();
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

        assert!(check(Claims { exp: now - 1, ..claims(now) }).await.unwrap_err().contains("expired"));
        assert!(check(Claims { aud: vec!["x".into()], ..claims(now) }).await.is_err());
        assert_eq!(check(Claims { iss: "https://them".into(), ..claims(now) }).await, Ok(None));
        put("pods", "web", "another").await;
        assert!(check(claims(now)).await.unwrap_err().contains("does not match"));
        objects::put(&objects, "pods", ("ns", "web"), None).await;
        assert_eq!(check(claims(now)).await.unwrap_err(), "pod has been deleted");

        // The same claims under another key.
        let stranger = Signer::new("https://us", &pki::SigningKey::create().unwrap()).unwrap();
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
        let signer = Signer::new("https://us", &key).unwrap();
        let account = Reference { name: "bot".into(), uid: "bot-uid".into() };
        let token = signer.sign_for_secret("ns", "bot-token", &account).unwrap();
        let secret = |held: &str| json!({"metadata": {"uid": "s"}, "data": {"token": base64::engine::general_purpose::STANDARD.encode(held)}});
        let check = || async { tokens.check(&token, &["api".to_owned()]).await };
        put("serviceaccounts", "bot", json!({"metadata": {"uid": "bot-uid"}})).await;
        assert!(check().await.unwrap_err().contains("invalidated"));
        put("secrets", "bot-token", secret(&token)).await;
        let identity = check().await.unwrap().unwrap();
        assert_eq!(identity.user.name, "system:serviceaccount:ns:bot");
        assert!(identity.audiences.is_empty());
        let day = async || {
            let held = objects.get(&objects.definition("", "secrets").unwrap(), "ns", "bot-token").await.unwrap();
            held["metadata"]["labels"][LAST_USED].as_str().map(str::to_owned)
        };
        assert_eq!(day().await, Some(clock::now().strftime("%Y-%m-%d").to_string()));

        // The next Secret of the name holds another token, or none.
        let other = signer.sign_for_secret("ns", "bot-token", &account).unwrap();
        for held in [json!({"metadata": {}}), secret(""), secret(&other)] {
            put("secrets", "bot-token", held).await;
            assert!(check().await.unwrap_err().contains("does not match server's copy"));
        }
        let mut marked = secret(&token);
        marked["metadata"]["labels"] = json!({INVALID_SINCE: "2026-01-01"});
        put("secrets", "bot-token", marked).await;
        assert!(check().await.unwrap_err().contains("has been marked invalid"));
        let mut going = secret(&token);
        going["metadata"]["deletionTimestamp"] = json!(clock::now().to_string());
        put("secrets", "bot-token", going).await;
        assert!(check().await.unwrap_err().contains("invalidated"));
        put("secrets", "bot-token", secret(&token)).await;
        put("serviceaccounts", "bot", json!({"metadata": {"uid": "another"}})).await;
        assert!(check().await.unwrap_err().contains("does not match claim"));
    }
}
