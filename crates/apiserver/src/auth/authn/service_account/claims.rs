//! The claims of the tokens of service accounts, and the user that they stand for.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use crate::auth::{User, authn::certificate::CREDENTIAL_ID};

/// The issuer of the tokens that live in Secrets.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

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
pub(super) struct LegacyClaims {
    pub iss: String,
    /// Makes each token another one: a Secret that is made again holds a new token, not the old one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub name: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub uid: String,
    pub sub: String,
}

/// The first part of a token: with which key it says to be signed, and how.
#[derive(Deserialize)]
pub(super) struct Header {
    pub alg: String,
    #[serde(default)]
    pub kid: String,
}

/// A token taken apart, before anybody vouches for it.
pub(super) struct Parts<'t> {
    /// The text under the signature.
    pub signed: &'t str,
    pub header: Header,
    pub claims: Vec<u8>,
    pub signature: Vec<u8>,
}

impl<'t> Parts<'t> {
    pub(super) fn read(token: &'t str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        let decode = |part| URL_SAFE_NO_PAD.decode(part).ok();
        Some(Parts { signed, header, claims: decode(claims)?, signature: decode(signature)? })
    }
}

/// The issuer a token claims, before anything is verified: it says whose token it is.
pub(super) fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let json = URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice::<Issuer>(&json).ok().map(|i| i.iss)
}

pub(super) fn user_of(claims: &Claims) -> User {
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
            // The node of a Pod may be gone, and has no UID then.
            if !reference.uid.is_empty() {
                add(&format!("authentication.kubernetes.io/{what}-uid"), &reference.uid);
            }
        }
    }
    User { extra, ..User::service_account(&bound.namespace, &account.name, &account.uid) }
}
