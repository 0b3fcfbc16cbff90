//! A JSON Web Token: its parts, read once, and what its issuer's keys and its times say of it.

use api::codec::decode::{self, Format};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use json::{Map, Value};

use crate::auth::authn::token::Rejected;

/// A longer token is nobody's.
const LONGEST: usize = 64 << 10;
/// How far ahead another's clock may be.
const LEEWAY_SECONDS: f64 = 300.0;

/// The parts of a token that nobody vouched for yet.
pub struct Token<'t> {
    pub(super) signed: &'t str,
    pub(super) signature: Vec<u8>,
    pub(super) algorithm: String,
    pub(super) key_id: String,
    claims: Map,
}

/// A part of a token: a JSON map without any name twice.
fn part(text: &str) -> Result<Map, Rejected> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| format!("error decoding token: {error}"))?;
    let (value, strict) =
        decode::raw(&bytes, Format::Json).map_err(|why| format!("while unmarshaling token: {why}"))?;
    if let Some(twice) = strict.first() {
        return Err(format!("while unmarshaling token: {twice}"));
    }
    match value {
        Value::Object(map) => Ok(map),
        _ => Err("while unmarshaling token: it is no map".to_owned()),
    }
}

fn text<'m>(map: &'m Map, field: &str) -> &'m str {
    map.get(field).and_then(Value::as_str).unwrap_or_default()
}

impl<'t> Token<'t> {
    pub fn read(token: &'t str) -> Result<Self, Rejected> {
        if token.len() > LONGEST {
            return Err("the token is too long".to_owned());
        }
        let malformed = || "malformed token".to_owned();
        let (signed, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (head, claims) = signed.split_once('.').ok_or_else(malformed)?;
        if claims.contains('.') {
            return Err(malformed());
        }
        let head = part(head)?;
        if head.get("crit").is_some() {
            return Err("oidc: malformed jwt: unsupported crit header".to_owned());
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|error| format!("error decoding token: {error}"))?;
        Ok(Token {
            signed,
            signature,
            algorithm: text(&head, "alg").to_owned(),
            key_id: text(&head, "kid").to_owned(),
            claims: part(claims)?,
        })
    }

    /// The issuer that the token names.
    pub fn issuer(&self) -> &str {
        match text(&self.claims, "iss") {
            "accounts.google.com" => "https://accounts.google.com",
            issuer => issuer,
        }
    }

    /// Whether it may be signed like this, is for one of the audiences and is good now.
    pub fn check(&self, algorithms: &[String], audiences: &[String], now: f64) -> Result<(), Rejected> {
        if !algorithms.contains(&self.algorithm) {
            return Err(format!(
                "oidc: id token signed with unsupported algorithm, expected {algorithms:?} got {:?}",
                self.algorithm
            ));
        }
        let named = self.audiences()?;
        if !audiences.iter().any(|audience| named.contains(&audience.as_str())) {
            return Err(format!("oidc: expected audience in {audiences:?} got {named:?}"));
        }
        match self.time("exp")? {
            Some(end) if now <= end => {}
            Some(end) => return Err(format!("oidc: token is expired (Token Expiry: {end})")),
            None => return Err("oidc: token is expired (it has no exp)".to_owned()),
        }
        match self.time("nbf")? {
            Some(begin) if now + LEEWAY_SECONDS < begin => {
                Err(format!("oidc: current time {now} before the nbf (not before) time: {begin}"))
            }
            _ => Ok(()),
        }
    }

    /// The audiences that it names: a text or a list of texts. Null is one that is empty, as Go reads it.
    fn audiences(&self) -> Result<Vec<&str>, Rejected> {
        let wrong = || "oidc: failed to unmarshal claims: aud is neither a text nor a list of texts".to_owned();
        fn text(value: &Value) -> Option<&str> {
            if value.is_null() { Some("") } else { value.as_str() }
        }
        match self.claims.get("aud") {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(|one| text(one).ok_or_else(wrong)).collect(),
            Some(one) => Ok(vec![text(one).ok_or_else(wrong)?]),
        }
    }

    /// The seconds since 1970 in a claim.
    fn time(&self, claim: &str) -> Result<Option<f64>, Rejected> {
        match self.claims.get(claim) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_i64().or_else(|| value.as_f64().and_then(whole)) {
                Some(seconds) => Ok(Some(since_1970(seconds))),
                None => Err(format!("oidc: failed to unmarshal claims: {claim} is no time")),
            },
        }
    }

    pub fn into_claims(self) -> Map {
        self.claims
    }
}

/// A number as Go cuts it to 64 bits: one that does not fit is the least, so that nothing is good for ever by a large number.
fn whole(time: f64) -> Option<i64> {
    let fits = time >= i64::MIN as f64 && time < i64::MAX as f64;
    time.is_finite().then_some(if fits { time as i64 } else { i64::MIN })
}

/// Go counts seconds from the year 1 on: the last ones come out at the beginning of time.
fn since_1970(seconds: i64) -> f64 {
    const YEAR_1: i64 = 62_135_596_800;
    seconds.wrapping_add(YEAR_1) as f64 - YEAR_1 as f64
}
