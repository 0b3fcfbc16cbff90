//! The documents that others need to check the tokens of service accounts: `/.well-known/openid-configuration`, and the
//! public keys at `/openid/v1/jwks`. RBAC says who may read them, as for every path.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use api::validation::url::Url;
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
    keys_url: String,
    keys: Arc<Keys>,
}

impl IssuerDocuments {
    /// The keys are found at the server's address unless another place is given. An issuer that OpenID Connect does not know as
    /// one has no documents: the error says why.
    pub fn new(issuer: &str, address: SocketAddr, keys_url: Option<String>, keys: Arc<Keys>) -> Result<Self, String> {
        let url = Url::parse(issuer)?;
        if url.scheme != "https" {
            return Err(format!("issuer URL must use https scheme, got: {issuer}"));
        }
        if !url.query.is_empty() {
            return Err(format!("issuer URL may not include a query, got: {issuer}"));
        }
        if !url.fragment.is_empty() {
            return Err(format!("issuer URL may not include a fragment, got: {issuer}"));
        }
        let keys_url = keys_url.unwrap_or_else(|| format!("https://{address}{KEYS}"));
        if Url::parse(&keys_url)?.scheme != "https" {
            return Err(format!("jwksURI requires https scheme, parsed as: {keys_url}"));
        }
        Ok(IssuerDocuments { issuer: issuer.to_owned(), keys_url, keys })
    }

    /// The paths of both documents.
    pub(crate) const PATHS: [&str; 2] = [CONFIGURATION, KEYS];

    pub(crate) fn answer(&self, path: &str) -> Option<Response> {
        if !Self::PATHS.contains(&path) {
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
            "jwks_uri": self.keys_url,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }
}

fn jwk(key: &pki::VerifyingKey) -> Value {
    key.jwk().into_iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect::<Map>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_issuer_of_openid_connect_has_documents() {
        let of = |issuer: &str, keys_url: Option<&str>| {
            let (address, keys) = ("192.0.2.1:6443".parse().unwrap(), Arc::new(Keys::own(Vec::new())));
            let documents = IssuerDocuments::new(issuer, address, keys_url.map(str::to_owned), keys);
            documents.map(|documents| documents.keys_url)
        };
        assert_eq!(of("https://us/a", None).unwrap(), "https://192.0.2.1:6443/openid/v1/jwks");
        assert_eq!(of("https://us", Some("https://keys/k")).unwrap(), "https://keys/k");
        for (issuer, why) in [
            ("us", "must use https"),
            ("http://us", "must use https"),
            ("https://us?a=b", "may not include a query"),
            ("https://us#a", "may not include a fragment"),
            ("https://us:port", "invalid port"),
        ] {
            assert!(of(issuer, None).unwrap_err().contains(why), "{issuer}");
        }
        assert!(of("https://us", Some("http://keys")).unwrap_err().contains("jwksURI requires https scheme"));
    }
}
