//! Authentication: client certificates, the front proxy's headers, and bearer tokens of several sorts.
//!
//! The first sort that knows the caller names the user. A credential that is there but wrong is answered with 401, also where
//! anonymous callers are let in.

pub mod bootstrap_token;
pub mod certificate;
pub mod front_proxy;
pub mod oidc;
mod remembered;
pub mod service_account;
pub mod structured;
pub mod token;
pub mod token_file;
pub mod token_webhook;
mod turns;

use std::sync::Arc;

use clock::{Instant, Seldom};
use front_proxy::Refused;
use futures::future::BoxFuture;
use http::HeaderMap;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use api::status::StatusError;

use super::{User, credentials::WEBSOCKET_TOKEN, header};
use crate::http::access::{Authenticator, Known, Peer, Stranger};
use remembered::Remembered;
use structured::{Anonymous, Structured};
use token::{Identity, Refusal, Rejected, Tokens};

/// The complaint about a token that nobody knows, to whoever shows it or asks about it.
pub const UNKNOWN_TOKEN: &str = "invalid bearer token";

/// All ways to find out who asks.
pub struct Authentication {
    pub certificates: Option<certificate::Certificates>,
    pub front_proxy: Option<front_proxy::FrontProxy>,
    pub tokens: Vec<Arc<dyn Tokens>>,
    /// The conditions for requests without credentials, where no configuration says them.
    pub anonymous: Anonymous,
    /// The part that can change while the server runs.
    pub structured: Option<Arc<Structured>>,
    /// The audiences that this API server answers to.
    pub audiences: Vec<String>,
    remembered: Remembered,
}

impl Authentication {
    pub fn new(audiences: Vec<String>) -> Self {
        Authentication {
            certificates: None,
            front_proxy: None,
            tokens: Vec::new(),
            anonymous: Anonymous { enabled: true, paths: Vec::new() },
            structured: None,
            audiences,
            remembered: Remembered::default(),
        }
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        let of_certificates = self.certificates.as_ref().map(certificate::Certificates::render).unwrap_or_default();
        of_certificates + &self.remembered.metrics.render()
    }

    /// Finds the user behind a request for a path with these headers, over a connection with these client certificates.
    pub async fn identify(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Known, Stranger> {
        let (mut rejected, mut notes) = (Vec::new(), Vec::new());
        if let Some(proxy) = &self.front_proxy {
            match proxy.check(chain, headers) {
                Ok(Some(user)) => return Ok(Arc::new(user.authenticated()).into()),
                Ok(None) => {}
                Err(Refused::Stranger(why)) => rejected.push(why),
                Err(Refused::Unreadable(why)) => return Err(unauthorized(&[why]).into()),
            }
        }
        if let Some(certificates) = &self.certificates
            && !chain.is_empty()
        {
            match certificates.check(chain) {
                Ok(Some(user)) => return Ok(user.into()),
                Ok(None) => {}
                Err(why) => rejected.push(why),
            }
        }
        for token in [bearer_token(headers), websocket_token(headers)] {
            let known = match token {
                Ok(None) => continue,
                Ok(Some(token)) => self.known_token(&token).await,
                Err(why) => Err(why.into()),
            };
            match known {
                Ok(known) => return Ok(known),
                Err(refusal) => {
                    rejected.push(refusal.why);
                    notes.extend(refusal.notes);
                }
            }
        }
        if rejected.is_empty() && self.lets_in_strangers(path) {
            return Ok(Arc::new(User::anonymous()).into());
        }
        Err(Stranger { error: unauthorized(&rejected), notes })
    }

    fn lets_in_strangers(&self, path: &str) -> bool {
        let configured = self.structured.as_ref().and_then(|structured| structured.anonymous());
        configured.as_ref().unwrap_or(&self.anonymous).is_let_in(path)
    }

    fn changes(&self) -> u64 {
        self.structured.as_ref().map_or(0, |structured| structured.changes())
    }

    async fn known_token(&self, token: &str) -> Result<Known, Refusal> {
        let key: remembered::Key = Sha256::digest(token).into();
        let (now, changes) = (Instant::now(), self.changes());
        if let Some(known) = self.remembered.get(&key, now, changes) {
            self.remembered.searched(now, true);
            return Ok(known);
        }
        let checking = self.remembered.checking();
        let checked = self.check_token(token, &self.audiences).await;
        checking.end(matches!(checked, Ok(Some(_))));
        self.remembered.searched(now, false);
        let identity = checked?.ok_or(UNKNOWN_TOKEN)?;
        let user = Arc::new(User::clone(&identity.user).authenticated());
        let known = Known { user, notes: identity.notes.into() };
        // A user who was found under another configuration counts for this request alone.
        if self.changes() == changes {
            self.remembered.keep(key, now, changes, &known);
        }
        Ok(known)
    }

    /// Checks a token against the audiences wanted, without remembering it: for `TokenReview`. A token that knows no
    /// audience is for this server alone.
    pub async fn check_token(&self, token: &str, audiences: &[String]) -> Result<Option<Identity>, Refusal> {
        let (mut rejected, mut notes) = (Vec::new(), Vec::new());
        let own: Vec<String> = audiences.iter().filter(|a| self.audiences.contains(a)).cloned().collect();
        for tokens in &self.tokens {
            match tokens.check(token, audiences).await {
                Ok(Some(identity)) if !identity.audiences.is_empty() => return Ok(Some(identity)),
                Ok(Some(identity)) if !own.is_empty() => return Ok(Some(Identity { audiences: own, ..identity })),
                Ok(_) => {}
                Err(refusal) => {
                    rejected.push(refusal.why);
                    notes.extend(refusal.notes);
                }
            }
        }
        let why = match rejected.as_slice() {
            [] => return Ok(None),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Err(Refusal { why, notes })
    }
}

/// The refusal; why is for the log alone.
fn unauthorized(why: &[Rejected]) -> StatusError {
    static SELDOM: Seldom = Seldom::new();
    if !why.is_empty()
        && let Some(more) = SELDOM.turn()
    {
        tracing::warn!(why = why.join(", "), more, "unable to authenticate the request");
    }
    StatusError::unauthorized()
}

impl Authenticator for Authentication {
    fn authenticate<'a>(&'a self, request: &'a http::request::Parts) -> BoxFuture<'a, Result<Option<Known>, Stranger>> {
        Box::pin(async move {
            let peer = request.extensions.get::<Peer>();
            let chain = peer.map_or(&[][..], |peer| &peer.certificates);
            self.identify(chain, &request.headers, request.uri.path()).await.map(Some)
        })
    }
}

/// The token of `Authorization: Bearer …`. Another scheme, or none, is no token.
fn bearer_token(headers: &HeaderMap) -> Result<Option<String>, Rejected> {
    let Some(value) = header::one(headers, "authorization").map_err(|why| why.to_string())? else { return Ok(None) };
    let mut words = value.trim().splitn(3, ' ');
    let bearer = words.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer"));
    Ok(words.next().filter(|token| bearer && !token.is_empty()).map(str::to_owned))
}

/// The warning for a client that is known by what it should no longer use, by the notes about that.
pub fn warning(notes: &[token::Note]) -> Option<&'static str> {
    notes.iter().any(|(key, _)| *key == service_account::LEGACY_AUTOGENERATED).then_some(
        "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.",
    )
}

/// A client is told this that put one blank too many before its token, which makes it none.
pub const SPACED_TOKEN: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// Whether the header of a request, which nothing else says the sender of, is such a one.
pub fn has_spaced_token(request: &http::request::Parts) -> bool {
    let known = request.extensions.get::<Arc<User>>().is_some()
        || request.extensions.get::<Peer>().is_some_and(|peer| !peer.certificates.is_empty());
    let value = request.headers.get(http::header::AUTHORIZATION).map(|value| value.as_bytes().trim_ascii());
    let spaced = |value: &[u8]| {
        value
            .split_at_checked(6)
            .is_some_and(|(scheme, rest)| scheme.eq_ignore_ascii_case(b"bearer") && rest.starts_with(b"  "))
    };
    !known && value.is_some_and(spaced)
}

/// The token of a WebSocket handshake, which stands among the subprotocols that the client offers.
fn websocket_token(headers: &HeaderMap) -> Result<Option<String>, Rejected> {
    if !headers.get("upgrade").is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        return Ok(None);
    }
    let offered = header::all(headers, "sec-websocket-protocol").map_err(|why| why.to_string())?;
    let offered = || offered.iter().flat_map(|v| v.split(',')).map(str::trim);
    let mut tokens = offered().filter_map(|p| p.strip_prefix(WEBSOCKET_TOKEN));
    let Some(encoded) = tokens.next() else { return Ok(None) };
    if tokens.next().is_some() {
        return Err("multiple base64.bearer.authorization tokens specified".to_owned());
    }
    // The one that is echoed to the client must be another.
    if offered().all(|p| p.starts_with(WEBSOCKET_TOKEN)) {
        return Err("missing additional subprotocol".to_owned());
    }
    let decoded = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, encoded)
        .map_err(|_| "invalid base64.bearer.authorization token encoding")?;
    let token = String::from_utf8(decoded).map_err(|_| "invalid base64.bearer.authorization token")?;
    Ok(Some(token).filter(|t| !t.is_empty()))
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

    async fn ask(all: &Authentication, header: Option<&str>) -> Result<Arc<User>, Stranger> {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert("authorization", value.parse().unwrap());
        }
        all.identify(&[], &headers, "/api").await.map(|known| known.user)
    }

    #[tokio::test]
    async fn callers_are_named_refused_or_anonymous() {
        let mut all = authentication();
        let jane = ask(&all, Some("Bearer secret")).await.unwrap();
        assert_eq!((jane.name.as_str(), jane.uid.as_str()), ("jane", "7"));
        assert_eq!(jane.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(ask(&all, Some("bearer secret")).await.unwrap().name, "jane");
        assert_eq!(ask(&all, Some("Bearer wrong")).await.unwrap_err().error.code, 401);
        let nobody = ask(&all, None).await.unwrap();
        assert_eq!(
            (nobody.name.as_str(), nobody.groups.as_slice()),
            ("system:anonymous", &["system:unauthenticated".to_owned()][..])
        );
        all.anonymous.enabled = false;
        assert_eq!(ask(&all, None).await.unwrap_err().error.message, "Unauthorized");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_spares_a_check() {
        let all = authentication();
        for (token, after) in [("secret", 0), ("secret", 9), ("wrong", 0), ("wrong", 0), ("secret", 2)] {
            clock::sleep(clock::Duration::from_secs(after)).await;
            let _ = ask(&all, Some(&format!("Bearer {token}"))).await;
        }
        let page = all.render();
        for expected in [
            "request_total{status=\"hit\"} 1",
            "request_total{status=\"miss\"} 4",
            "request_duration_seconds_count{status=\"miss\"} 4",
            "fetch_total{status=\"ok\"} 2",
            "fetch_total{status=\"error\"} 2",
            "active_fetch_count{status=\"in_flight\"} 0",
        ] {
            assert!(page.contains(&format!("authentication_token_cache_{expected}\n")), "{expected}: {page}");
        }
    }

    struct Marked;

    impl Tokens for Marked {
        fn check<'a>(&'a self, _: &'a str, _: &'a [String]) -> BoxFuture<'a, Result<Option<Identity>, Refusal>> {
            let refusal = Refusal { why: "marked".to_owned(), notes: vec![("key", "text".to_owned())] };
            Box::pin(std::future::ready(Err(refusal)))
        }
    }

    #[tokio::test]
    async fn notes_about_a_refused_token_reach_who_audits() {
        let mut all = authentication();
        all.tokens.insert(0, Arc::new(Marked));
        let stranger = ask(&all, Some("Bearer wrong")).await.unwrap_err();
        assert_eq!((stranger.error.code, stranger.notes), (401, vec![("key", "text".to_owned())]));
        assert_eq!(ask(&all, Some("Bearer secret")).await.unwrap().name, "jane", "another sort knows it");
    }

    #[tokio::test]
    async fn a_token_behind_two_blanks_is_none() {
        let spaced = |value: &str| {
            let request = http::Request::get("/api").header("authorization", value);
            has_spaced_token(&request.body(()).unwrap().into_parts().0)
        };
        assert_eq!(ask(&authentication(), Some("Bearer  secret")).await.unwrap().name, "system:anonymous");
        assert!(spaced("Bearer  secret") && spaced("bearer   secret"));
        assert!(!spaced("Bearer secret") && !spaced("Basic  secret") && !spaced("Bearer") && !spaced("Bear  er"));
        let request = http::Request::get("/api").header("authorization", "Bearer  secret");
        let request = request.extension(Arc::new(User::new("jane", [""; 0]))).body(()).unwrap();
        assert!(!has_spaced_token(&request.into_parts().0), "that client is known without it");
    }

    #[tokio::test]
    async fn a_websocket_carries_its_token_in_the_protocol() {
        let all = authentication();
        let mut headers = HeaderMap::new();
        let token = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, "secret");
        let value = format!("{WEBSOCKET_TOKEN}{token}, v5.channel.k8s.io");
        headers.insert("sec-websocket-protocol", value.parse().unwrap());
        assert_eq!(all.identify(&[], &headers, "/api").await.unwrap().user.name, "system:anonymous", "no handshake");
        headers.insert("upgrade", "WebSocket".parse().unwrap());
        assert_eq!(all.identify(&[], &headers, "/api").await.unwrap().user.name, "jane");
        headers.append("sec-websocket-protocol", value.parse().unwrap());
        assert_eq!(all.identify(&[], &headers, "/api").await.unwrap_err().error.code, 401);
        for wrong in [format!("{WEBSOCKET_TOKEN}=, x"), format!("{WEBSOCKET_TOKEN}{token}")] {
            headers.insert("sec-websocket-protocol", wrong.parse().unwrap());
            assert_eq!(all.identify(&[], &headers, "/api").await.unwrap_err().error.code, 401);
        }
    }

    #[tokio::test]
    async fn a_credential_that_cannot_be_read_is_not_absent() {
        let all = authentication();
        let with = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("authorization", http::HeaderValue::from_bytes(value).unwrap());
            }
            headers
        };
        for wrong in [&[&b"Bearer \xff"[..]][..], &["Bearer jösé".as_bytes()], &[b"Bearer secret", b"Bearer secret"]]
        {
            assert_eq!(all.identify(&[], &with(wrong), "/api").await.unwrap_err().error.code, 401);
        }
        // Another scheme is nobody's credential here.
        assert_eq!(all.identify(&[], &with(&[b"Basic eDp5"]), "/api").await.unwrap().user.name, "system:anonymous");
    }

    #[tokio::test]
    async fn a_token_without_audience_is_for_this_server_alone() {
        let all = authentication();
        let check = |list: &[&str]| {
            let audiences: Vec<String> = list.iter().map(|a| (*a).to_owned()).collect();
            let all = &all;
            async move { all.check_token("secret", &audiences).await.unwrap().map(|i| i.audiences) }
        };
        assert_eq!(check(&["vault"]).await, None);
        assert_eq!(check(&["vault", "api"]).await, Some(vec!["api".to_owned()]));
    }
}
