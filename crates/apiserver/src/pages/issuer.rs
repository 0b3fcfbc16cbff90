//! The documents that others need to check the tokens of service accounts: `/.well-known/openid-configuration`, and the
//! public keys at `/openid/v1/jwks`. RBAC says who may read them, as for every path.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use http::{HeaderValue, StatusCode, header};
use json::{Map, Value, json};

use crate::{
    auth::authn::service_account::keys::Keys,
    http::{body::Response, respond},
};

const CONFIGURATION: &str = "/.well-known/openid-configuration";
const KEYS: &str = "/openid/v1/jwks";

/// Both documents, made of the keys of now.
pub struct IssuerDocuments {
    issuer: String,
    /// Where clients outside find the keys.
    address: SocketAddr,
    keys: Arc<Keys>,
}

impl IssuerDocuments {
    pub fn new(issuer: &str, address: SocketAddr, keys: Arc<Keys>) -> Self {
        IssuerDocuments { issuer: issuer.to_owned(), address, keys }
    }

    pub(crate) fn answer(&self, path: &str) -> Option<Response> {
        if !matches!(path, CONFIGURATION | KEYS) {
            return None;
        }
        let (keys, seconds) = self.keys.published();
        let (document, kind) = match path {
            CONFIGURATION => (self.configuration(&keys), "application/json"),
            _ => (json!({"keys": keys.iter().map(jwk).collect::<Vec<Value>>()}), "application/jwk-set+json"),
        };
        let mut response = respond::json(StatusCode::OK, document.to_string());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Ok(value) = HeaderValue::from_str(&format!("public, max-age={seconds}")) {
            headers.insert(header::CACHE_CONTROL, value);
        }
        Some(response)
    }

    fn configuration(&self, keys: &[pki::VerifyingKey]) -> Value {
        let algorithms: BTreeSet<&str> = keys.iter().map(|key| key.algorithm).collect();
        json!({
            "issuer": self.issuer,
            "jwks_uri": format!("https://{}{KEYS}", self.address),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }
}

fn jwk(key: &pki::VerifyingKey) -> Value {
    key.jwk().into_iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect::<Map>().into()
}
