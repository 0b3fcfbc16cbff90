//! TokenRequest: a token for a service account, bound to an object and an audience, for a time.

use std::sync::Arc;

use api::status::StatusError;
use api::validation::field::{FieldError, Path};
use api::{Value, meta};
use json::json;

use super::object::{admitted, body, created, same_name, text};
use crate::auth::authn::service_account::{Bound, Claims, Reference, Signer};
use crate::storage::object_store::ObjectStore;
use crate::{call::Call, http::body::Response};

const MINIMUM_SECONDS: i64 = 600;
const MAXIMUM_SECONDS: i64 = 1 << 32;
/// The lifetime that the ServiceAccount admission plugin asks for: such a token lives longer, because some clients
/// don't reload it.
const PROJECTED_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;

/// Issues tokens.
pub struct Issuer {
    pub signer: Signer,
    /// The audiences of a token that names none: the API server's.
    pub audiences: Vec<String>,
}

/// `serviceaccounts/NAME/token`
pub async fn create(mut call: Call, issuer: Arc<Issuer>) -> Result<Response, StatusError> {
    let (mut request, options) = body(&mut call, "authentication.k8s.io", "v1", "TokenRequest").await?;
    same_name(&call, &request, "TokenRequest")?;
    let objects = &call.state.objects;
    let definition = objects.definition("", "serviceaccounts")?;
    let (namespace, name) = (call.info.namespace.clone(), call.info.name.clone());
    let account = objects.get(&definition, &namespace, &name).await?;
    let now = clock::now_seconds();
    if let Some(metadata) = meta::metadata_mut(&mut request) {
        metadata.insert("name", json!(name));
        metadata.insert("namespace", json!(namespace));
        metadata.insert("creationTimestamp", json!(now.to_string()));
    }
    // Admission sees the audiences that were asked for: the usual ones come in afterwards.
    let mut request = admitted(&call, (&definition, &name), request, &options, |request| {
        let errors = validate(request);
        if errors.is_empty() {
            return Ok(());
        }
        Err(StatusError::invalid("authentication.k8s.io", "TokenRequest", &name, &errors))
    })
    .await?;
    let audiences = request.pointer_mut("/spec/audiences").and_then(Value::as_array_mut);
    if audiences.is_none_or(|a| a.is_empty()) {
        request["spec"]["audiences"] = json!(issuer.audiences);
    }
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
    let token = issuer.signer.sign(&claims).map_err(StatusError::internal)?;
    call.trail.annotate("authentication.kubernetes.io/issued-credential-id", format!("JTI={}", claims.jti));
    let expires = clock::Timestamp::from_second(now.as_second() + seconds(&request)).map_err(StatusError::internal)?;
    request["status"] = json!({"token": token, "expirationTimestamp": expires.to_string()});
    Ok(created(&request))
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
    let (plural, namespace) = match (kind, version) {
        ("Pod", "v1") => ("pods", bound.namespace.as_str()),
        ("Secret", "v1") => ("secrets", bound.namespace.as_str()),
        ("Node", "v1") => ("nodes", ""),
        _ => {
            let message = format!("cannot bind token to object of type {version}, Kind={kind}");
            return Err(StatusError::bad_request(message));
        }
    };
    let object = objects.get(&*objects.definition("", plural)?, namespace, name).await?;
    let uid = text(wanted, "/uid");
    if !uid.is_empty() && uid != meta::uid(&object) {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        );
        return Err(StatusError::conflict("", plural, name, &why));
    }
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
    let mut life = seconds(request);
    if life == PROJECTED_SECONDS && audiences.iter().all(|a| issuer.audiences.contains(a)) {
        bound.warnafter = Some(now + life);
        life = EXTENDED_SECONDS;
    }
    Claims {
        aud: audiences,
        exp: now + life,
        iat: now,
        iss: issuer.signer.issuer.clone(),
        jti: clock::uuid(),
        nbf: now,
        sub: format!("system:serviceaccount:{}:{}", bound.namespace, bound.serviceaccount.name),
        bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projected_tokens_live_longer_than_they_say() {
        let signer = Signer::new("https://us", &pki::SigningKey::create().unwrap()).unwrap();
        let issuer = Issuer { signer, audiences: vec!["api".into()] };
        let account = Reference { name: "bot".into(), uid: "u".into() };
        let bound = || Bound {
            namespace: "ns".into(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: account.clone(),
            warnafter: None,
        };
        let request =
            |seconds: i64, audience: &str| json!({"spec": {"expirationSeconds": seconds, "audiences": [audience]}});
        let plain = claims(&request(3600, "api"), bound(), &issuer, 1000);
        assert_eq!(
            (plain.exp, plain.bound.warnafter, plain.sub.as_str()),
            (4600, None, "system:serviceaccount:ns:bot")
        );
        let projected = claims(&request(3607, "api"), bound(), &issuer, 1000);
        assert_eq!((projected.exp, projected.bound.warnafter), (1000 + EXTENDED_SECONDS, Some(4607)));
        let elsewhere = claims(&request(3607, "vault"), bound(), &issuer, 1000);
        assert_eq!((elsewhere.exp, elsewhere.bound.warnafter), (4607, None));
        assert_eq!(
            validate(&request(60, "a"))[0].to_string(),
            "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes"
        );
        assert!(validate(&request(600, "a")).is_empty());
    }
}
