//! Authentication: client certificates, the front proxy's headers, and bearer tokens of several sorts.
//!
//! The first that knows the caller names him. A credential that is there but wrong is answered with 401, also where
//! anonymous callers are let in.

pub mod bootstrap_token;
pub mod certificate;
pub mod front_proxy;
pub mod service_account;
pub mod token_file;

use std::collections::HashMap;
use std::sync::Arc;

use clock::{Duration, Instant, Seldom};
use futures::future::BoxFuture;
use http::HeaderMap;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use sha2::{Digest, Sha256};

use api::status::StatusError;

use super::{User, credentials::WEBSOCKET_TOKEN};
use crate::access::{Authenticator, Peer};

/// Reads objects for authentication: always the newest state, without a check of who asks.
pub trait Lookup: Send + Sync {
    fn get<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Value>>, StatusError>>;
}

/// What a bearer token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub user: Arc<User>,
    /// The audiences that the token is for and that were asked for; empty for tokens that know no audience.
    pub audiences: Vec<String>,
}

/// A credential that is not accepted; the text is for the log and for `TokenReview`.
pub type Rejected = String;

/// A sort of bearer token. `Ok(None)`: not one of mine.
pub trait Tokens: Send + Sync {
    fn check<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Option<Identity>, Rejected>>;
}

/// How long an accepted token is believed without another check, and how many are remembered.
const REMEMBERED: Duration = Duration::from_secs(10);
const REMEMBERED_TOKENS: usize = 8192;

/// Accepted tokens by their SHA-256, with the end of the trust in them.
type Remembered = HashMap<[u8; 32], (Instant, Arc<User>)>;

/// All ways to find out who asks.
pub struct Authentication {
    pub certificates: Option<certificate::Certificates>,
    pub front_proxy: Option<front_proxy::FrontProxy>,
    pub tokens: Vec<Arc<dyn Tokens>>,
    pub anonymous: bool,
    /// The audiences that this API server answers to.
    pub audiences: Vec<String>,
    remembered: Mutex<Remembered>,
}

impl Authentication {
    pub fn new(audiences: Vec<String>) -> Self {
        Authentication {
            certificates: None,
            front_proxy: None,
            tokens: Vec::new(),
            anonymous: true,
            audiences,
            remembered: Mutex::default(),
        }
    }

    /// Who sent a request with these headers over a connection with these client certificates.
    pub async fn identify(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Arc<User>, StatusError> {
        let mut rejected = Vec::new();
        if let Some(proxy) = &self.front_proxy {
            match proxy.check(chain, headers) {
                Ok(Some(user)) => return Ok(Arc::new(user.authenticated())),
                Ok(None) => {}
                Err(why) => rejected.push(why),
            }
        }
        if let Some(certificates) = &self.certificates
            && !chain.is_empty()
        {
            match certificates.check(chain) {
                Ok(Some(user)) => return Ok(user),
                Ok(None) => {}
                Err(why) => rejected.push(why),
            }
        }
        if let Some(token) = bearer_token(headers) {
            match self.known_token(&token).await {
                Ok(user) => return Ok(user),
                Err(why) => rejected.push(why),
            }
        }
        if rejected.is_empty() && self.anonymous {
            return Ok(Arc::new(User::anonymous()));
        }
        if !rejected.is_empty() {
            static SELDOM: Seldom = Seldom::new();
            if let Some(more) = SELDOM.turn() {
                tracing::warn!(why = rejected.join(", "), more, "unable to authenticate the request");
            }
        }
        Err(StatusError::unauthorized())
    }

    async fn known_token(&self, token: &str) -> Result<Arc<User>, Rejected> {
        let key: [u8; 32] = Sha256::digest(token).into();
        let now = Instant::now();
        if let Some((until, user)) = self.remembered.lock().get(&key)
            && *until > now
        {
            return Ok(user.clone());
        }
        let identity = self.check_token(token, &self.audiences).await?.ok_or("invalid bearer token")?;
        let user = Arc::new(User::clone(&identity.user).authenticated());
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_TOKENS {
            remembered.retain(|_, (until, _)| *until > now);
        }
        if remembered.len() < REMEMBERED_TOKENS {
            remembered.insert(key, (now + REMEMBERED, user.clone()));
        }
        Ok(user)
    }

    /// Checks a token against the audiences wanted, without remembering it: for `TokenReview`.
    pub async fn check_token(&self, token: &str, audiences: &[String]) -> Result<Option<Identity>, Rejected> {
        let mut rejected = Vec::new();
        for tokens in &self.tokens {
            match tokens.check(token, audiences).await {
                Ok(Some(identity)) => return Ok(Some(identity)),
                Ok(None) => {}
                Err(why) => rejected.push(why),
            }
        }
        match rejected.as_slice() {
            [] => Ok(None),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

impl Authenticator for Authentication {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<Arc<User>>, StatusError>> {
        Box::pin(async move {
            let peer = request.extensions.get::<Peer>();
            let chain = peer.map_or(&[][..], |peer| &peer.certificates);
            self.identify(chain, &request.headers).await.map(Some)
        })
    }
}

/// The token of `Authorization: Bearer …`, or of a WebSocket handshake.
fn bearer_token(headers: &HeaderMap) -> Option<String> {
    if let Some(value) = headers.get(http::header::AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
        let token = token.split(' ').next().unwrap_or("");
        return (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned());
    }
    let protocols = headers.get_all("sec-websocket-protocol").iter().filter_map(|v| v.to_str().ok());
    let encoded = protocols.flat_map(|v| v.split(',')).find_map(|p| p.trim().strip_prefix(WEBSOCKET_TOKEN))?;
    let decoded = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, encoded).ok()?;
    String::from_utf8(decoded).ok().filter(|t| !t.is_empty())
}

/// Compares without telling by its duration where the difference is.
pub(crate) fn same_secret(a: &str, b: &str) -> bool {
    let difference = a.bytes().zip(b.bytes()).fold(0u8, |d, (x, y)| d | (x ^ y));
    a.len() == b.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authentication() -> Authentication {
        let mut all = Authentication::new(vec!["api".into()]);
        let file = token_file::TokenFile::parse("tokens", "secret,jane,7,\"dev,ops\"\n").unwrap();
        all.tokens.push(Arc::new(file));
        all
    }

    async fn ask(all: &Authentication, header: Option<&str>) -> Result<Arc<User>, StatusError> {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert("authorization", value.parse().unwrap());
        }
        all.identify(&[], &headers).await
    }

    #[tokio::test]
    async fn callers_are_named_refused_or_anonymous() {
        let mut all = authentication();
        let jane = ask(&all, Some("Bearer secret")).await.unwrap();
        assert_eq!((jane.name.as_str(), jane.uid.as_str()), ("jane", "7"));
        assert_eq!(jane.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(ask(&all, Some("bearer secret")).await.unwrap().name, "jane");
        assert_eq!(ask(&all, Some("Bearer wrong")).await.unwrap_err().code, 401);
        let nobody = ask(&all, None).await.unwrap();
        assert_eq!(
            (nobody.name.as_str(), nobody.groups.as_slice()),
            ("system:anonymous", &["system:unauthenticated".to_owned()][..])
        );
        all.anonymous = false;
        assert_eq!(ask(&all, None).await.unwrap_err().message, "Unauthorized");
    }

    #[tokio::test]
    async fn a_websocket_carries_its_token_in_the_protocol() {
        let all = authentication();
        let mut headers = HeaderMap::new();
        let token = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, "secret");
        let value = format!("{WEBSOCKET_TOKEN}{token}, v5.channel.k8s.io");
        headers.insert("sec-websocket-protocol", value.parse().unwrap());
        assert_eq!(all.identify(&[], &headers).await.unwrap().name, "jane");
    }
}
