//! Signing tokens: with the key of this server, or by a program beside it.

use std::sync::Arc;

use jsonwebtoken::{EncodingKey, Header};

use super::{
    claims::{Claims, LEGACY_ISSUER, LegacyClaims, Reference},
    external::External,
};

/// Signs with a key of its own.
pub struct Signer {
    key: EncodingKey,
    header: Header,
}

impl Signer {
    pub fn new(key: &pki::SigningKey) -> Result<Self, String> {
        let mut header = Header::new(key.public.jwt_algorithm());
        header.typ = None;
        header.kid = Some(key.public.id.clone());
        let key = key.for_jwt().map_err(|e| e.to_string())?;
        Ok(Signer { key, header })
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
