//! How long tokens live: as long as is asked for, within what flags and signers allow. A token of a Pod lives longer than the Pod is
//! told, so that a client that does not reload it is seen before it fails.

use std::time::Duration;

/// The lifetime that the ServiceAccount admission plugin asks for: such a token lives longer.
const PROJECTED_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;
/// No token lives shorter than anybody may ask for.
pub const MINIMUM_SECONDS: i64 = 600;

/// The bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// The longest life that is given to who asks for a longer one.
    pub longest: Option<i64>,
    /// The life of a projected token, where it is extended.
    pub extended: Option<i64>,
}

impl Default for Expiry {
    fn default() -> Self {
        Expiry { longest: None, extended: Some(EXTENDED_SECONDS) }
    }
}

impl Expiry {
    /// `signer` is the longest life that a signer of somebody else's gives.
    pub fn new(extend: bool, longest: Option<Duration>, signer: Option<i64>) -> Result<Self, String> {
        let longest = longest.map(|longest| i64::try_from(longest.as_secs()).unwrap_or(i64::MAX));
        let extended = extend.then_some(EXTENDED_SECONDS);
        let Some(signer) = signer else { return Ok(Expiry { longest, extended }) };
        if signer < MINIMUM_SECONDS {
            return Err(format!(
                "max token life supported by external-jwt-signer ({signer}s) is less than acceptable (min {MINIMUM_SECONDS}s)"
            ));
        }
        if let Some(longest) = longest.filter(|longest| *longest > signer) {
            return Err(format!(
                "service-account-max-token-expiration cannot be set longer than the token expiration supported by \
                 service-account-signing-endpoint: {longest}s > {signer}s"
            ));
        }
        let extended = extended.map(|extended| extended.min(signer));
        Ok(Expiry { longest: longest.or(Some(signer)), extended })
    }

    /// The life of a token for which `asked` seconds were asked, and after how many of them its use is seen as stale. `projected` is
    /// whether it is for a Pod and this server.
    pub fn life(self, asked: i64, projected: bool) -> (i64, Option<i64>) {
        match self.extended {
            Some(extended) if projected && asked == PROJECTED_SECONDS => (extended, Some(asked)),
            _ => (asked, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signers_and_flags_bound_the_life_of_tokens() {
        let hours = |hours: u64| Some(Duration::from_secs(3600 * hours));
        let check = |extend, longest, signer, expected: Result<(Option<i64>, Option<i64>), &str>| {
            let found = Expiry::new(extend, longest, signer).map(|expiry| (expiry.longest, expiry.extended));
            match expected {
                Ok(expected) => assert_eq!(found, Ok(expected)),
                Err(expected) => assert!(found.as_ref().unwrap_err().contains(expected), "{found:?}"),
            }
        };
        check(true, None, None, Ok((None, Some(EXTENDED_SECONDS))));
        check(false, hours(2), None, Ok((Some(7200), None)));
        check(true, hours(2), None, Ok((Some(7200), Some(EXTENDED_SECONDS))));
        check(true, None, Some(86_400), Ok((Some(86_400), Some(86_400))));
        check(true, hours(2), Some(86_400), Ok((Some(7200), Some(86_400))));
        check(true, hours(48), Some(86_400), Err("172800s > 86400s"));
        check(true, None, Some(599), Err("less than acceptable (min 600s)"));
    }

    #[test]
    fn only_projected_tokens_live_longer_than_they_say() {
        let expiry = Expiry::default();
        assert_eq!(expiry.life(3600, true), (3600, None));
        assert_eq!(expiry.life(3607, false), (3607, None));
        assert_eq!(expiry.life(3607, true), (EXTENDED_SECONDS, Some(3607)));
        assert_eq!(Expiry { extended: None, ..expiry }.life(3607, true), (3607, None));
    }
}
