//! Tokens of issuers that speak OpenID Connect: JWTs under keys that the issuer publishes, and the users that their claims stand
//! for. A token is looked at only by the issuer that it names.
//!
//! Upstream counterpart: apiserver/plugin/pkg/authenticator/token/oidc.

mod distributed;
mod keys;
mod mapping;
#[cfg(test)]
mod tests;
mod token;

use std::sync::Arc;

use futures::future::BoxFuture;
use json::Map;
use meter::{Metric, Sort};

use super::token::{Identity, Refusal, Rejected, Tokens};
use crate::{
    auth::{User, metrics::hash},
    outbound::fetch::Fetcher,
};
use distributed::Distributed;
use keys::Issuer;
pub use keys::Told;
use mapping::Mapping;
use token::Token;

static LATENCY: Metric = Metric {
    name: "apiserver_authentication_jwt_authenticator_latency_seconds",
    help: "Latency of jwt authentication operations in seconds. This is the time spent authenticating a token for cache miss only (i.e. when the token is not found in the cache).",
    sort: Sort::Histogram(&[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
};

/// The settings of an issuer and its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub url: String,
    /// Where its discovery document is, if not below its URL.
    pub discovery: Option<String>,
    /// The authorities that are believed, in PEM; the machine's where there are none.
    pub authorities: Option<String>,
    /// A token is for one of these.
    pub audiences: Vec<String>,
    pub algorithms: Vec<String>,
    pub username: Source,
    pub groups: Source,
    pub uid: Source,
    /// Keys with expressions.
    pub extra: Vec<(String, String)>,
    pub claim_rules: Vec<ClaimRule>,
    /// Expressions over the user, each with what is said where it does not hold.
    pub user_rules: Vec<(String, String)>,
}

/// The source of a part of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Nothing,
    Claim { name: String, prefix: String },
    Expression(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimRule {
    Value { claim: String, value: String },
    Expression { expression: String, message: String },
}

/// The issuer that vouches for tokens, and which of its tokens count.
struct Voucher {
    issuer: Issuer,
    algorithms: Vec<String>,
    audiences: Vec<String>,
}

impl Voucher {
    /// The claims of a token that is good.
    async fn vouch(&self, token: Token<'_>) -> Result<Map, Rejected> {
        let now = clock::now().as_millisecond() as f64 / 1000.0;
        token.check(&self.algorithms, &self.audiences, now)?;
        self.issuer.vouch(&token).await?;
        Ok(token.into_claims())
    }
}

/// The tokens of one issuer.
pub struct Jwt {
    url: String,
    voucher: Voucher,
    mapping: Mapping,
    distributed: Option<Distributed>,
    told: Told,
}

impl Jwt {
    pub fn new(settings: &Settings, told: Told) -> Result<Self, String> {
        let fetcher = Arc::new(Fetcher::new(settings.authorities.as_deref())?);
        let issuer = Issuer::new(&settings.url, settings.discovery.as_deref(), fetcher.clone(), Some(told.clone()));
        let (algorithms, audiences) = (settings.algorithms.clone(), settings.audiences.clone());
        let distributed = match &settings.groups {
            Source::Claim { name, .. } => Some(Distributed::new(name, fetcher, settings)),
            _ => None,
        };
        let mapping = Mapping::new(settings)?;
        let url = settings.url.clone();
        Ok(Jwt { url, voucher: Voucher { issuer, algorithms, audiences }, mapping, distributed, told })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Finds the issuer by its discovery document.
    pub async fn find(&self) -> Result<(), Rejected> {
        let found = self.voucher.issuer.find().await;
        found.map_err(|why| format!("oidc: authenticator for issuer {:?} is not initialized: {why}", self.url))
    }

    /// Its tokens are believed no more, or by another one in its place.
    pub fn retire(&self, replaced: bool) {
        self.voucher.issuer.retire(replaced);
    }

    async fn user(&self, token: Token<'_>) -> Result<User, Rejected> {
        let claims = self.voucher.vouch(token).await;
        let mut claims = claims.map_err(|why| format!("oidc: verify token: {why}"))?;
        if let Some(distributed) = &self.distributed {
            let expanded = distributed.expand(&mut claims).await;
            expanded.map_err(|why| format!("oidc: could not expand distributed claims: {why}"))?;
        }
        self.mapping.user(claims)
    }
}

impl Tokens for Jwt {
    fn check<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Result<Option<Identity>, Refusal>> {
        Box::pin(async move {
            // A text that is no token of this issuer may be one of somebody else's.
            let Ok(token) = Token::read(token) else { return Ok(None) };
            if token.issuer() != self.url {
                return Ok(None);
            }
            let begin = clock::Instant::now();
            let user = self.user(token).await;
            let labels =
                [("result", if user.is_ok() { "success" } else { "failure" }), ("jwt_issuer_hash", &hash(&self.url))];
            self.told.metrics.observe(&LATENCY, &labels, begin.elapsed().as_secs_f64());
            Ok(Some(Identity { user: Arc::new(user?), audiences: Vec::new(), notes: Vec::new() }))
        })
    }
}
