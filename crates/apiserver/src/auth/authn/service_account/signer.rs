//! Signing tokens: with the key of this server, or by a program beside it.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Serialize;

use super::{
    claims::{Claims, LEGACY_ISSUER, LegacyClaims, Reference},
    external::External,
};

/// Signs with a key of its own.
pub struct Signer {
    key: pki::jwt::JwtSigner,
    /// The first part of each token.
    head: String,
}

impl Signer {
    pub fn new(key: &pki::SigningKey) -> Result<Self, String> {
        let head = format!(r#"{{"alg":"{}","kid":"{}"}}"#, key.public.algorithm, key.public.id);
        let head = URL_SAFE_NO_PAD.encode(head);
        Ok(Signer { key: key.for_jwt().map_err(|e| e.to_string())?, head })
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
        self.signed(&claims)
    }

    pub fn sign(&self, claims: &Claims) -> Result<String, String> {
        self.signed(claims)
    }

    fn signed(&self, claims: &impl Serialize) -> Result<String, String> {
        let claims = serde_json::to_vec(claims).map_err(|e| e.to_string())?;
        let text = format!("{}.{}", self.head, URL_SAFE_NO_PAD.encode(claims));
        let signature = self.key.sign(text.as_bytes()).map_err(|e| e.to_string())?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// The signer of the tokens that are asked for.
pub enum Signing {
    Own(Box<Signer>),
    External(Arc<External>),
}

impl Signing {
    pub async fn sign(&self, claims: &Claims) -> Result<String, String> {
        match self {
            Signing::Own(signer) => signer.sign(claims),
            Signing::External(external) => external.sign(claims).await,
        }
    }
}
