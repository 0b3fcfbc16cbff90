//! TokenRequest: a token for a service account, bound to an object and an audience, for a time.

use std::sync::Arc;

use api::status::StatusError;
use api::validation::field::{FieldError, Path};
use api::{Value, meta};
use json::json;

use super::object::{admitted, body, created, same_name, text};
use crate::auth::authn::service_account::{
    Bound, Claims, Reference, Signing,
    expiry::{Expiry, MINIMUM_SECONDS},
};
use crate::storage::object_store::ObjectStore;
use crate::{call::Call, http::body::Response};

const MAXIMUM_SECONDS: i64 = 1 << 32;

/// Issues tokens.
pub struct Issuer {
    pub signing: Signing,
    /// The issuer that tokens name.
    pub name: String,
    pub expiry: Expiry,
    /// The audiences of a token that names none: the API server's.
    pub audiences: Vec<String>,
    /// Whether a request that names another UID than the account's is refused, and not only warned about.
    pub same_uid: bool,
}

const GROUP: &str = "authentication.k8s.io";

/// `serviceaccounts/NAME/token`
pub async fn create(mut call: Call, issuer: Arc<Issuer>) -> Result<Response, StatusError> {
    let (mut request, options) = body(&mut call, GROUP, "v1", "TokenRequest").await?;
    // Everybody after this, the client among them, is told the life of a token whose request says nothing of it.
    request["spec"]["expirationSeconds"] = json!(seconds(&request));
    let (namespace, name) = (call.info.namespace.clone(), call.info.name.clone());
    if !meta::name(&request).is_empty() && meta::name(&request) != name {
        let (path, detail) = (Path::new("metadata").child("name"), "must match the service account name if specified");
        let wrong = FieldError::invalid(&path, meta::name(&request), detail);
        return Err(StatusError::invalid(GROUP, "TokenRequest", &name, &[wrong]));
    }
    same_name(&call, &request, "TokenRequest")?;
    let objects = &call.state.objects;
    let definition = objects.definition("", "serviceaccounts")?;
    let account = objects.get(&definition, &namespace, &name).await?;
    call.warnings.add(issuer.compare_uids(meta::uid(&request), meta::uid(&account), &name)?);
    let now = clock::now_seconds();
    if let Some(metadata) = meta::metadata_mut(&mut request) {
        metadata.insert("name", json!(name));
        metadata.insert("namespace", json!(namespace));
        metadata.insert("uid", json!(meta::uid(&account)));
        metadata.insert("creationTimestamp", json!(now.to_string()));
    }
    // Admission sees the audiences that were asked for: the usual ones come in afterwards.
    let mut request = admitted(&call, (&definition, &name), request, &options, |request| {
        let errors = validate(request);
        if errors.is_empty() {
            return Ok(());
        }
        Err(StatusError::invalid(GROUP, "TokenRequest", &name, &errors))
    })
    .await?;
    let audiences = request.pointer_mut("/spec/audiences").and_then(Value::as_array_mut);
    if audiences.is_none_or(|a| a.is_empty()) {
        request["spec"]["audiences"] = json!(issuer.audiences);
    }
    call.warnings.add(shorten(&mut request, issuer.expiry));
    let mut bound = Bound {
        namespace: namespace.clone(),
        node: None,
        pod: None,
        secret: None,
        serviceaccount: reference(&account),
        warnafter: None,
    };
    bind(objects, &request, &mut bound).await?;
    let claims = claims(&request, bound, &issuer, now.as_second());
    let token = issuer.signing.sign(&claims).await;
    let token = token.map_err(|why| StatusError::internal(format!("failed to generate token: {why}")))?;
    call.trail.annotate("authentication.kubernetes.io/issued-credential-id", format!("JTI={}", claims.jti));
    let expires = clock::Timestamp::from_second(now.as_second() + seconds(&request)).map_err(StatusError::internal)?;
    request["status"] = json!({"token": token, "expirationTimestamp": expires.to_string()});
    Ok(created(&request))
}

impl Issuer {
    /// Refuses a request for an account that was there before under the same name, or warns about it.
    fn compare_uids(&self, asked: &str, own: &str, name: &str) -> Result<Vec<String>, StatusError> {
        if asked.is_empty() || asked == own {
            return Ok(Vec::new());
        }
        let why =
            format!("the UID in the token request ({asked}) does not match the UID of the service account ({own})");
        if self.same_uid {
            return Err(StatusError::conflict(GROUP, "TokenRequest", name, &why));
        }
        Ok(vec![format!(
            "{why} but TokenRequestServiceAccountUIDValidation is not enabled. In the future, this will return a conflict error"
        )])
    }
}

/// Gives who asks for too long a life the longest that there is, and says so.
fn shorten(request: &mut Value, expiry: Expiry) -> Vec<String> {
    let asked = seconds(request);
    let Some(longest) = expiry.longest.filter(|longest| asked > *longest) else { return Vec::new() };
    request["spec"]["expirationSeconds"] = json!(longest);
    vec![format!("requested expiration of {asked} seconds shortened to {longest} seconds")]
}

fn reference(object: &Value) -> Reference {
    Reference { name: meta::name(object).to_owned(), uid: meta::uid(object).to_owned() }
}

fn seconds(request: &Value) -> i64 {
    request.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(3600)
}

fn validate(request: &Value) -> Vec<FieldError> {
    let path = Path::new("spec").child("expirationSeconds");
    let seconds = seconds(request);
    if seconds < MINIMUM_SECONDS {
        return vec![FieldError::invalid(&path, seconds, "may not specify a duration less than 10 minutes")];
    }
    if seconds > MAXIMUM_SECONDS {
        return vec![FieldError::invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds")];
    }
    Vec::new()
}

/// Finds the object that the token is to be bound to, and the node of a Pod.
async fn bind(objects: &ObjectStore, request: &Value, bound: &mut Bound) -> Result<(), StatusError> {
    let Some(wanted) = request.pointer("/spec/boundObjectRef").filter(|r| r.is_object()) else { return Ok(()) };
    let (kind, version, name) = (text(wanted, "/kind"), text(wanted, "/apiVersion"), text(wanted, "/name"));
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let (plural, namespace) = match (group, kind) {
        ("", "Pod") => ("pods", bound.namespace.as_str()),
        ("", "Secret") => ("secrets", bound.namespace.as_str()),
        ("", "Node") => ("nodes", ""),
        _ => {
            let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(StatusError::bad_request(message));
        }
    };
    let object = objects.get(&*objects.definition("", plural)?, namespace, name).await?;
    let found = Some(reference(&object));
    match kind {
        "Secret" => bound.secret = found,
        "Node" => bound.node = found,
        _ => {
            if text(&object, "/spec/serviceAccountName") != bound.serviceaccount.name {
                let account = &bound.serviceaccount.name;
                return Err(StatusError::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            bound.pod = found;
            bound.node = node(objects, text(&object, "/spec/nodeName")).await?;
        }
    }
    let uid = text(wanted, "/uid");
    if !uid.is_empty() && uid != meta::uid(&object) {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        );
        return Err(StatusError::conflict("", kind, name, &why));
    }
    Ok(())
}

/// The node of a Pod, for information; it may be gone.
async fn node(objects: &ObjectStore, name: &str) -> Result<Option<Reference>, StatusError> {
    if name.is_empty() {
        return Ok(None);
    }
    match objects.get(&*objects.definition("", "nodes")?, "", name).await {
        Ok(node) => Ok(Some(reference(&node))),
        Err(error) if error.code == 404 => Ok(Some(Reference { name: name.to_owned(), uid: String::new() })),
        Err(error) => Err(error),
    }
}

fn claims(request: &Value, mut bound: Bound, issuer: &Issuer, now: i64) -> Claims {
    let audiences = request.pointer("/spec/audiences").and_then(Value::as_array).into_iter().flatten();
    let audiences: Vec<String> = audiences.filter_map(Value::as_str).map(str::to_owned).collect();
    let projected = bound.pod.is_some() && audiences.iter().all(|a| issuer.audiences.contains(a));
    let (life, warn) = issuer.expiry.life(seconds(request), projected);
    bound.warnafter = warn.map(|warn| now + warn);
    Claims {
        aud: audiences,
        exp: now + life,
        iat: now,
        iss: issuer.name.clone(),
        jti: clock::uuid(),
        nbf: now,
        sub: format!("system:serviceaccount:{}:{}", bound.namespace, bound.serviceaccount.name),
        bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::authn::service_account::Signer;

    #[test]
    fn projected_tokens_live_longer_than_they_say() {
        let signer = Signer::new(&pki::SigningKey::create().unwrap()).unwrap();
        let (signing, name) = (Signing::Own(Box::new(signer)), "https://us".to_owned());
        let issuer = Issuer { signing, name, expiry: Expiry::default(), audiences: vec!["api".into()], same_uid: true };
        let account = Reference { name: "bot".into(), uid: "u".into() };
        let bound = |pod: Option<&str>| Bound {
            namespace: "ns".into(),
            node: None,
            pod: pod.map(|name| Reference { name: name.into(), uid: "p".into() }),
            secret: None,
            serviceaccount: account.clone(),
            warnafter: None,
        };
        let request =
            |seconds: i64, audience: &str| json!({"spec": {"expirationSeconds": seconds, "audiences": [audience]}});
        let life = |seconds, audience, pod| {
            let claims = claims(&request(seconds, audience), bound(pod), &issuer, 1000);
            assert_eq!((claims.sub.as_str(), &*claims.iss), ("system:serviceaccount:ns:bot", "https://us"));
            (claims.exp, claims.bound.warnafter)
        };
        assert_eq!(life(3600, "api", Some("web")), (4600, None));
        assert_eq!(life(3607, "api", Some("web")), (1000 + 365 * 86_400, Some(4607)));
        assert_eq!(life(3607, "vault", Some("web")), (4607, None));
        assert_eq!(life(3607, "api", None), (4607, None), "only Pods have tokens that are projected");
        assert_eq!(
            validate(&request(60, "a"))[0].to_string(),
            "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes"
        );
        assert!(validate(&request(600, "a")).is_empty());
        let mut long = request(9000, "a");
        let told = shorten(&mut long, Expiry { longest: Some(7200), extended: None });
        assert_eq!(told, ["requested expiration of 9000 seconds shortened to 7200 seconds"]);
        assert_eq!(seconds(&long), 7200);
        assert!(shorten(&mut long, Expiry::default()).is_empty());
        assert_eq!(issuer.compare_uids("", "own", "bot"), Ok(Vec::new()));
        assert_eq!(issuer.compare_uids("own", "own", "bot"), Ok(Vec::new()));
        let why = "the UID in the token request (other) does not match the UID of the service account (own)";
        let refused = issuer.compare_uids("other", "own", "bot").unwrap_err();
        let begin = "Operation cannot be fulfilled on TokenRequest.authentication.k8s.io \"bot\":";
        assert_eq!((refused.code, refused.message), (409, format!("{begin} {why}")));
        let told = Issuer { same_uid: false, ..issuer }.compare_uids("other", "own", "bot").unwrap();
        assert!(told[0].starts_with(&format!("{why} but TokenRequestServiceAccountUIDValidation is not enabled")));
    }
}
