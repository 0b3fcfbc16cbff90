//! The documents that others need to check the tokens of service accounts: `/.well-known/openid-configuration`, and the
//! public keys at `/openid/v1/jwks`. RBAC says who may read them, as for every path.

use std::{collections::BTreeSet, net::SocketAddr};

use http::{HeaderValue, StatusCode, header};
use json::{Map, Value, json};

use crate::{http::body::Response, http::respond};

const CONFIGURATION: &str = "/.well-known/openid-configuration";
const KEYS: &str = "/openid/v1/jwks";

/// Both documents, as bytes: they are the same for as long as the server runs.
pub struct IssuerDocuments {
    configuration: String,
    keys: String,
}

impl IssuerDocuments {
    /// `address` is where clients outside find the keys.
    pub fn new(issuer: &str, address: SocketAddr, keys: &[pki::VerifyingKey]) -> Self {
        let algorithms: BTreeSet<&str> = keys.iter().map(|key| key.algorithm).collect();
        let jwk = |key: &pki::VerifyingKey| -> Value {
            key.jwk().into_iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect::<Map>().into()
        };
        let configuration = json!({
            "issuer": issuer,
            "jwks_uri": format!("https://{address}{KEYS}"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        });
        let keys = json!({"keys": keys.iter().map(jwk).collect::<Vec<Value>>()});
        IssuerDocuments { configuration: configuration.to_string(), keys: keys.to_string() }
    }

    pub(crate) fn answer(&self, path: &str) -> Option<Response> {
        let (text, kind) = match path {
            CONFIGURATION => (&self.configuration, "application/json"),
            KEYS => (&self.keys, "application/jwk-set+json"),
            _ => return None,
        };
        let mut response = respond::json(StatusCode::OK, text.clone());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
        Some(response)
    }
}
