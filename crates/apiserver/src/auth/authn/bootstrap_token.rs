//! Bootstrap tokens: `abcdef.0123456789abcdef`, kept as Secrets in `kube-system`, with which new nodes ask for more.

use std::sync::Arc;

use base64::Engine;
use futures::future::BoxFuture;
use serde_json::Value;

use super::{Identity, Lookup, Rejected, Tokens, same_secret};
use crate::auth::User;

/// Checks tokens against the Secrets.
pub struct BootstrapTokens(pub Arc<dyn Lookup>);

impl Tokens for BootstrapTokens {
    fn check<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Result<Option<Identity>, Rejected>> {
        Box::pin(async move {
            let Some((id, secret)) = split(token) else { return Ok(None) };
            let name = format!("bootstrap-token-{id}");
            let found = self.0.get("", "secrets", "kube-system", &name).await.map_err(|e| e.to_string())?;
            let user = found.and_then(|object| user(&object, id, secret, clock::now()));
            Ok(user.map(|user| Identity { user: Arc::new(user), audiences: Vec::new() }))
        })
    }
}

/// Id and secret of a token of the right form.
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let fits = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    (fits(id, 6) && fits(secret, 16)).then_some((id, secret))
}

/// The user that the Secret names, when it is in force and the secret is right.
fn user(object: &Value, id: &str, secret: &str, now: clock::Timestamp) -> Option<User> {
    let data = |key: &str| {
        let encoded = object.get("data")?.get(key)?.as_str()?;
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded).ok()?).ok()
    };
    let right = object.get("type")?.as_str()? == "bootstrap.kubernetes.io/token"
        && api::meta::deletion_timestamp(object).is_none()
        && same_secret(&data("token-secret")?, secret)
        && data("token-id")? == id
        && data("usage-bootstrap-authentication")? == "true";
    let expired = match data("expiration") {
        None => false,
        Some(text) => text.parse::<clock::Timestamp>().map_or(true, |at| at <= now),
    };
    let extra = data("auth-extra-groups").unwrap_or_default();
    let groups: Vec<&str> = extra.split(',').map(str::trim).filter(|g| !g.is_empty()).collect();
    if !right || expired || !groups.iter().all(|g| g.starts_with("system:bootstrappers:")) {
        return None;
    }
    let all = std::iter::once("system:bootstrappers").chain(groups);
    Some(User::new(format!("system:bootstrap:{id}"), all))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_token_in_force_counts() {
        let encode = |s: &str| base64::engine::general_purpose::STANDARD.encode(s);
        let now: clock::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let check = |change: &[(&str, &str)], secret: &str| {
            let mut object = json!({"type": "bootstrap.kubernetes.io/token", "data": {
                "token-id": encode("abcdef"), "token-secret": encode("0123456789abcdef"),
                "usage-bootstrap-authentication": encode("true"), "expiration": encode("2026-01-02T00:00:00Z"),
            }});
            for (key, value) in change {
                object["data"][key] = json!(encode(value));
            }
            let (id, secret) = split(secret)?;
            user(&object, id, secret, now)
        };
        let good = "abcdef.0123456789abcdef";
        let user = check(&[("auth-extra-groups", "system:bootstrappers:x")], good).unwrap();
        assert_eq!(user, User::new("system:bootstrap:abcdef", ["system:bootstrappers", "system:bootstrappers:x"]));
        assert!(check(&[], "abcdef.0123456789abcdee").is_none());
        assert!(check(&[], "abcdef.0123").is_none());
        assert!(check(&[("expiration", "2025-12-31T00:00:00Z")], good).is_none());
        assert!(check(&[("usage-bootstrap-authentication", "false")], good).is_none());
        assert!(check(&[("auth-extra-groups", "system:masters")], good).is_none());
    }
}
