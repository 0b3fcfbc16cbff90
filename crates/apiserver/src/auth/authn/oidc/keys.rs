//! An issuer's keys: found by its discovery document, fetched at once when a token comes that none of them signed, and not more often
//! than that is bearable. An issuer that hangs or lies harms its own tokens alone.
//!
//! Upstream counterpart: the remote key set of github.com/coreos/go-oidc, which has no such bound.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use api::codec::decode::{self, Format};
use clock::Duration;
use json::Value;
use meter::{Metric, Metrics, Sort};
use parking_lot::RwLock;
use pki::{jwk, signing::Numbers};
use tokio::sync::Mutex;

use super::token::Token;
use crate::{
    auth::{
        authn::{token::Rejected, turns::Turns},
        metrics::hash,
    },
    outbound::fetch::Fetcher,
};

/// A document has at most this many bytes, and this many keys count.
const DOCUMENT: usize = 1 << 20;
const KEYS: usize = 100;
/// Fetches because of tokens that no key fits go on at this pace, once the first few have followed each other at once.
const PAUSE: Duration = Duration::from_secs(2);
/// Where issuers tell of themselves.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";

static FETCHED: Metric = Metric {
    name: "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds",
    help: "Timestamp of the last successful or failed JWKS fetch split by result, api server identity and jwt issuer for the JWT authenticator.",
    sort: Sort::Gauge,
};
static KEY_SET: Metric = Metric {
    name: "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info",
    help: "Information about the last JWKS fetched by the JWT authenticator with hash as label, split by api server identity and jwt issuer.",
    sort: Sort::Gauge,
};

/// A key of a set.
pub struct Key {
    pub id: String,
    pub numbers: Numbers,
}

/// Where metrics of fetches go, and how they name this server.
#[derive(Clone)]
pub struct Told {
    pub metrics: Arc<Metrics>,
    pub server: String,
}

pub struct Issuer {
    url: String,
    /// Where its discovery document is.
    discovery: String,
    fetcher: Arc<Fetcher>,
    keys: RwLock<Arc<Vec<Key>>>,
    /// One fetch at a time; the others wait for what it brings.
    last: Mutex<Last>,
    /// The number of fetches that are over.
    fetches: AtomicU64,
    /// `None` for an issuer whose fetches are not told of.
    told: parking_lot::Mutex<Option<Told>>,
}

struct Last {
    turns: Turns,
    /// Why the last fetch brought nothing.
    failure: Option<Rejected>,
    /// Where the keys are, once that is known.
    keys_url: Option<String>,
}

impl Issuer {
    pub fn new(url: &str, discovery: Option<&str>, fetcher: Arc<Fetcher>, told: Option<Told>) -> Self {
        let discovery = discovery.map_or_else(|| format!("{}{WELL_KNOWN}", url.trim_end_matches('/')), str::to_owned);
        let last = Mutex::new(Last { turns: Turns::new(PAUSE), failure: None, keys_url: None });
        let (keys, fetches, told) = (RwLock::default(), AtomicU64::default(), parking_lot::Mutex::new(told));
        Issuer { url: url.to_owned(), discovery, fetcher, keys, last, fetches, told }
    }

    /// Finds out where the keys are, if that is not known yet.
    pub async fn find(&self) -> Result<(), Rejected> {
        let mut last = self.last.lock().await;
        self.keys_url(&mut last).await.map(drop)
    }

    /// Tells of no fetch any more, and takes back what it told unless another issuer has its place.
    pub fn retire(&self, replaced: bool) {
        let Some(told) = self.told.lock().take().filter(|_| !replaced) else { return };
        let labels = [("jwt_issuer_hash", &*hash(&self.url)), ("apiserver_id_hash", &*told.server)];
        told.metrics.forget(&FETCHED, &labels);
        told.metrics.forget(&KEY_SET, &labels);
    }

    /// Whether the issuer signed a token.
    pub async fn vouch(&self, token: &Token<'_>) -> Result<(), Rejected> {
        let before = self.fetches.load(Ordering::Acquire);
        if is_signed_by(token, &self.keys.read().clone()) {
            return Ok(());
        }
        let mut last = self.last.lock().await;
        // A fetch that ended meanwhile was for this token too.
        if self.fetches.load(Ordering::Acquire) == before && last.turns.take() {
            let fetched = self.fetch(&mut last).await;
            self.tell(&fetched);
            last.failure = match fetched {
                Ok((keys, _)) => {
                    *self.keys.write() = Arc::new(keys);
                    None
                }
                Err(why) => Some(why),
            };
            self.fetches.fetch_add(1, Ordering::Release);
        }
        if is_signed_by(token, &self.keys.read().clone()) {
            return Ok(());
        }
        Err(match &last.failure {
            Some(why) => format!("failed to verify signature: fetching keys {why}"),
            None => "failed to verify signature: failed to verify id token signature".to_owned(),
        })
    }

    fn tell(&self, fetched: &Result<(Vec<Key>, String), Rejected>) {
        // The lock is held until all is told, so that nothing is told that was taken back.
        let told = self.told.lock();
        let Some(Told { metrics, server }) = &*told else { return };
        let issuer = hash(&self.url);
        let result = if fetched.is_ok() { "success" } else { "failure" };
        let labels = [("result", result), ("jwt_issuer_hash", &*issuer), ("apiserver_id_hash", server)];
        metrics.set(&FETCHED, &labels, clock::now().as_second() as f64);
        if let Ok((_, set)) = fetched {
            let labels = [("jwt_issuer_hash", &*issuer), ("apiserver_id_hash", server), ("hash", set.as_str())];
            metrics.replace(&KEY_SET, &labels);
        }
    }

    /// The keys, and the hash of their document.
    async fn fetch(&self, last: &mut Last) -> Result<(Vec<Key>, String), Rejected> {
        let url = self.keys_url(last).await?;
        let bytes = self.fetcher.get(&url, None, DOCUMENT).await?;
        let keys = key_set(&bytes).map_err(|why| format!("{url}: {why}"))?;
        Ok((keys, hash(&String::from_utf8_lossy(&bytes))))
    }

    async fn keys_url(&self, last: &mut Last) -> Result<String, Rejected> {
        Ok(match &last.keys_url {
            Some(url) => url.clone(),
            None => last.keys_url.insert(self.discover().await?).clone(),
        })
    }

    async fn discover(&self) -> Result<String, Rejected> {
        let bytes = self.fetcher.get(&self.discovery, None, DOCUMENT).await?;
        let (document, _) = decode::raw(&bytes, Format::Json)
            .map_err(|why| format!("oidc: failed to decode provider discovery object: {why}"))?;
        let text = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default();
        if text("issuer") != self.url {
            return Err(format!(
                "oidc: issuer URL provided to client ({:?}) did not match the issuer URL returned by provider ({:?})",
                self.url,
                text("issuer")
            ));
        }
        match text("jwks_uri") {
            "" => Err("provider did not return JWKS URL".to_owned()),
            url => Ok(url.to_owned()),
        }
    }
}

/// Whether one of the keys made a token's signature. A token that names a key is checked with keys of that name alone. The
/// algorithm that a set gives a key is no more than a hint, as for go-jose: the key's own type decides which ones it can check.
fn is_signed_by(token: &Token<'_>, keys: &[Key]) -> bool {
    keys.iter().any(|key| {
        let meant = token.key_id.is_empty() || key.id == token.key_id;
        meant && jwk::verifies(&key.numbers, &token.algorithm, token.signed.as_bytes(), &token.signature)
    })
}

/// The keys of a set that can check signatures, whatever the set says they are used for. Keys of other sorts are passed over.
fn key_set(bytes: &[u8]) -> Result<Vec<Key>, String> {
    let (set, _) = decode::raw(bytes, Format::Json).map_err(|why| why.to_string())?;
    let list = set.get("keys").and_then(Value::as_array).ok_or("it holds no keys")?;
    let key = |value: &Value| {
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let numbers = match text("kty") {
            "RSA" => jwk::rsa(text("n"), text("e")),
            "EC" => jwk::curve(text("crv"), text("x"), text("y")),
            _ => None,
        };
        Some(Key { id: text("kid").to_owned(), numbers: numbers? })
    };
    Ok(list.iter().take(KEYS).filter_map(key).collect())
}
