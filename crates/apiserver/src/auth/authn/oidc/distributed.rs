//! Distributed claims: groups that stand in another token, which is fetched from where the first one says. Only the claim of the
//! groups is looked for, as upstream. The other token's issuer vouches for it with keys of its own, for the same audiences.

use std::{collections::HashMap, sync::Arc};

use json::{Map, Value};
use parking_lot::Mutex;

use super::{Settings, Voucher, keys::Issuer, token::Token};
use crate::{auth::authn::token::Rejected, outbound::fetch::Fetcher};

/// A token that is fetched has at most this many bytes.
const TOKEN: usize = 64 << 10;
/// Tokens of further issuers are refused.
const ISSUERS: usize = 32;

pub(super) struct Distributed {
    claim: String,
    fetcher: Arc<Fetcher>,
    algorithms: Vec<String>,
    audiences: Vec<String>,
    issuers: Mutex<HashMap<String, Arc<Voucher>>>,
}

impl Distributed {
    pub fn new(claim: &str, fetcher: Arc<Fetcher>, settings: &Settings) -> Self {
        Distributed {
            claim: claim.to_owned(),
            fetcher,
            algorithms: settings.algorithms.clone(),
            audiences: settings.audiences.clone(),
            issuers: Mutex::default(),
        }
    }

    /// Adds the claim where it stands elsewhere.
    pub async fn expand(&self, claims: &mut Map) -> Result<(), Rejected> {
        if claims.get(&self.claim).is_some() {
            return Ok(());
        }
        let Some(names) = claims.get("_claim_names") else { return Ok(()) };
        let names = names.as_object().ok_or("oidc: error parsing distributed claim names: it is no map")?;
        let sources = claims.get("_claim_sources").ok_or("oidc: no claim sources")?;
        let sources = sources.as_object().ok_or("oidc: could not parse claim sources: it is no map")?;
        let Some(source) = names.get(&self.claim) else { return Ok(()) };
        let source = source.as_str().ok_or("oidc: error parsing distributed claim names: a name is no text")?;
        let missing = || format!("id token _claim_names contained a source {source} missing in _claims_sources");
        let place = sources.get(source).ok_or_else(missing)?;
        let text = |field: &str| place.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let Some(url) = text("endpoint") else { return Ok(()) };
        let value = self.fetch(url, text("access_token")).await?;
        claims.insert(self.claim.clone(), value);
        Ok(())
    }

    async fn fetch(&self, url: &str, access: Option<&str>) -> Result<Value, Rejected> {
        let claim = &self.claim;
        let fetched = self.fetcher.get(url, access, TOKEN).await;
        let fetched = fetched.map_err(|why| format!("while getting distributed claim {claim:?}: {why}"))?;
        let text = String::from_utf8_lossy(&fetched);
        let token = Token::read(text.trim())
            .map_err(|why| format!("getting untrusted issuer from endpoint {url} failed for claim {claim:?}: {why}"))?;
        let voucher = self.voucher(token.issuer())?;
        let claims = voucher.vouch(token).await.map_err(|why| format!("verify distributed claim token: {why}"))?;
        let absent = || format!("jwt returned by distributed claim endpoint {url:?} did not contain claim: {claim}");
        claims.get(claim).cloned().ok_or_else(absent)
    }

    fn voucher(&self, issuer: &str) -> Result<Arc<Voucher>, Rejected> {
        let mut issuers = self.issuers.lock();
        if let Some(known) = issuers.get(issuer) {
            return Ok(known.clone());
        }
        if issuers.len() >= ISSUERS {
            return Err(format!("there are too many issuers of distributed claims for {issuer:?} to be one"));
        }
        // Metrics tell of the issuers of the configuration alone: these here are named by tokens.
        let voucher = Arc::new(Voucher {
            issuer: Issuer::new(issuer, None, self.fetcher.clone(), None),
            algorithms: self.algorithms.clone(),
            audiences: self.audiences.clone(),
        });
        issuers.insert(issuer.to_owned(), voucher.clone());
        Ok(voucher)
    }
}
