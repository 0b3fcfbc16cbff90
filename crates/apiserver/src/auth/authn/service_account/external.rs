//! A program beside this server that has the keys of tokens: it signs, and says which public keys there are. Forged tokens have it
//! asked for keys once a second at the most, behind the first few that may be about a new key.
//!
//! Upstream counterpart: pkg/serviceaccount/externaljwt, and the service of k8s.io/externaljwt.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use clock::{Duration, Instant};
use futures::future::BoxFuture;
use parking_lot::RwLock;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::{
    super::turns::Turns,
    claims::Claims,
    key::{Key, fitting},
    metrics,
};
use meter::Metrics;

/// Keys are asked for again after this time where that failed.
pub(super) const AGAIN: Duration = Duration::from_secs(10);
/// Questions for keys because of tokens go on at this pace, once the first few have followed each other at once.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
const ID_BYTES: usize = 1024;
/// More keys than that are none of a signer that means well.
pub(super) const KEYS: usize = 1000;
/// The code of a call that did not reach the program at all.
const NOT_ASKED: &str = "unknown-non-grpc";

/// Why a call failed: the name of its code, and the words for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: String,
    pub words: String,
}

/// The first and the last part of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signed {
    pub header: String,
    pub signature: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedKey {
    pub id: String,
    /// A SubjectPublicKeyInfo.
    pub der: Vec<u8>,
    pub hidden: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fetched {
    pub keys: Vec<FetchedKey>,
    /// When they were what they are, in seconds since the epoch.
    pub of: Option<f64>,
    /// After how many seconds they are to be asked for again.
    pub refresh_seconds: i64,
}

/// The calls of the program.
pub trait Service: Send + Sync {
    fn sign(&self, claims: String) -> BoxFuture<'_, Result<Signed, Failure>>;
    fn fetch_keys(&self) -> BoxFuture<'_, Result<Fetched, Failure>>;
    /// The longest life of a token in seconds.
    fn longest(&self) -> BoxFuture<'_, Result<i64, Failure>>;
}

/// The keys of the last answer.
struct Held {
    keys: Arc<[Arc<Key>]>,
    refresh: Instant,
}

struct Asked {
    /// When the last question was answered.
    at: Instant,
    turns: Turns,
}

pub struct External {
    service: Arc<dyn Service>,
    held: RwLock<Held>,
    /// Whoever holds it asks for keys.
    asked: Mutex<Asked>,
    pub(super) metrics: Arc<Metrics>,
}

impl External {
    /// Without keys nothing begins. The longest life of a token comes with it.
    pub async fn start(service: Arc<dyn Service>, metrics: Arc<Metrics>) -> Result<(Arc<Self>, i64), String> {
        let held = RwLock::new(Held { keys: Arc::default(), refresh: Instant::now() });
        let asked = Asked { at: Instant::now(), turns: Turns::new(PAUSE) };
        let external = External { service, held, asked: Mutex::new(asked), metrics };
        external.fetch().await.map_err(|why| format!("while initially filling key cache: {why}"))?;
        let longest = external.timed("Metadata", external.service.longest()).await;
        let longest = longest.map_err(|failure| format!("while fetching metadata: {}", failure.words))?;
        Ok((Arc::new(external), longest))
    }

    /// Keeps the keys as the program has them, until cancelled.
    pub async fn follow(self: Arc<Self>) {
        loop {
            let refresh = self.held.read().refresh;
            clock::sleep(refresh.saturating_duration_since(Instant::now())).await;
            let mut asked = self.asked.lock().await;
            let done = self.fetch().await;
            asked.at = Instant::now();
            drop(asked);
            if let Err(why) = done {
                tracing::error!(why, "the keys of service accounts stay what they were");
                clock::sleep(AGAIN).await;
            }
        }
    }

    pub(super) fn held(&self) -> (Arc<[Arc<Key>]>, u64) {
        let held = self.held.read();
        (held.keys.clone(), held.refresh.saturating_duration_since(Instant::now()).as_secs())
    }

    /// The keys of an identity; one that is not known may be new.
    pub(super) async fn keys(&self, id: Option<&str>) -> Vec<Arc<Key>> {
        let began = Instant::now();
        let found = fitting(&self.held().0, id);
        if !found.is_empty() {
            return found;
        }
        let mut asked = self.asked.lock().await;
        // A question that was answered meanwhile was for this token too.
        if asked.at <= began && asked.turns.take() {
            if let Err(why) = self.fetch().await {
                tracing::warn!(why, "the keys of service accounts could not be asked for");
            }
            asked.at = Instant::now();
        }
        drop(asked);
        fitting(&self.held().0, id)
    }

    pub(super) async fn sign(&self, claims: &Claims) -> Result<String, String> {
        let signed = self.assembled(claims).await;
        let code = signed.as_ref().err().map_or("OK", |failure| failure.code.as_str());
        self.metrics.count(&metrics::SIGNED, &[("code", code)]);
        signed.map_err(|failure| failure.words)
    }

    async fn assembled(&self, claims: &Claims) -> Result<String, Failure> {
        let payload = serde_json::to_vec(claims).map_err(|error| bad(format!("while merging claims: {error}")))?;
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let signed = self.timed("Sign", self.service.sign(payload.clone())).await;
        let Signed { header, signature } =
            signed.map_err(|failure| Failure { words: format!("while signing jwt: {}", failure.words), ..failure })?;
        let id = key_id(&header).map_err(|why| bad(format!("while validating header: {why}")))?;
        if self.keys(Some(&id)).await.iter().any(|key| key.hidden) {
            let why = format!("key used for signing JWT (kid: {id}) is excluded from OIDC discovery docs");
            return Err(bad(format!("while validating header: {why}")));
        }
        if signature.is_empty() {
            return Err(bad("empty signature returned".to_owned()));
        }
        if URL_SAFE_NO_PAD.decode(&signature).is_err() {
            return Err(bad("the signature is not base64url".to_owned()));
        }
        Ok(format!("{header}.{payload}.{signature}"))
    }

    async fn fetch(&self) -> Result<(), String> {
        let fetched = self.timed("FetchKeys", self.service.fetch_keys()).await.and_then(read);
        let code = fetched.as_ref().err().map_or("OK", |failure| failure.code.as_str());
        self.metrics.count(&metrics::KEYS_FETCHED, &[("code", code)]);
        let Usable { keys, of, held } = fetched.map_err(|failure| failure.words)?;
        self.metrics.set(&metrics::KEYS_FETCHED_AT, &[], clock::now().as_second() as f64);
        self.metrics.set(&metrics::KEYS_ARE_OF, &[], of);
        *self.held.write() = Held { keys, refresh: Instant::now() + held };
        Ok(())
    }

    async fn timed<T>(&self, call: &str, asked: BoxFuture<'_, Result<T, Failure>>) -> Result<T, Failure> {
        let began = Instant::now();
        let answer = asked.await;
        let code = answer.as_ref().err().map_or("OK", |failure| failure.code.as_str());
        let method = format!("/v1.ExternalJWTSigner/{call}");
        self.metrics.observe(&metrics::TOOK, &[("method", &method), ("code", code)], began.elapsed().as_secs_f64());
        answer
    }
}

fn bad(words: String) -> Failure {
    Failure { code: NOT_ASKED.to_owned(), words }
}

/// Keys that can be used, when they were what they are, and for how long they are held.
pub(super) struct Usable {
    keys: Arc<[Arc<Key>]>,
    of: f64,
    held: Duration,
}

/// Checks an answer as a whole: with one key that cannot be used none of it counts.
pub(super) fn read(fetched: Fetched) -> Result<Usable, Failure> {
    let refresh =
        u64::try_from(fetched.refresh_seconds).ok().filter(|seconds| (1..=u64::from(u32::MAX)).contains(seconds));
    let refresh = refresh.ok_or_else(|| bad(format!("found invalid refresh hint ({}s)", fetched.refresh_seconds)))?;
    if fetched.keys.is_empty() || fetched.keys.len() > KEYS {
        return Err(bad(if fetched.keys.is_empty() { "found no keys" } else { "found too many keys" }.to_owned()));
    }
    let of = fetched.of.ok_or_else(|| bad("invalid data timestamp".to_owned()))?;
    let key = |fetched: FetchedKey| {
        if fetched.id.is_empty() || fetched.id.len() > ID_BYTES {
            return Err(bad(format!("found invalid public key id {:?}", fetched.id)));
        }
        let key = pki::VerifyingKey::named(&fetched.der, fetched.id);
        let key = key.map_err(|error| bad(format!("while parsing external public keys: {error}")))?;
        Ok(Arc::new(Key { public: key, hidden: fetched.hidden }))
    };
    let keys = fetched.keys.into_iter().map(key).collect::<Result<_, Failure>>()?;
    Ok(Usable { keys, of, held: Duration::from_secs(refresh) })
}

/// The key that a header names. It says nothing but that and what every header says.
fn key_id(header: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Header {
        #[serde(default)]
        alg: String,
        #[serde(default)]
        kid: String,
        #[serde(default)]
        typ: String,
    }
    let json = URL_SAFE_NO_PAD.decode(header).map_err(|error| format!("while unwrapping header: {error}"))?;
    let header: Header =
        serde_json::from_slice(&json).map_err(|error| format!("while parsing header JSON: {error}"))?;
    match (header.typ.as_str(), header.kid.len(), header.alg.as_str()) {
        ("JWT", 1..=ID_BYTES, "RS256" | "ES256" | "ES384" | "ES512") => Ok(header.kid),
        ("JWT", 0, _) => Err("key id missing".to_owned()),
        ("JWT", 1..=ID_BYTES, other) => Err(format!("bad signing algorithm {other:?}")),
        ("JWT", ..) => Err("key id longer than 1 kb".to_owned()),
        _ => Err("bad type".to_owned()),
    }
}
