//! Bootstrap tokens as credentials: the Secret that holds the token decides who its user is.

use std::sync::Arc;

use api::{
    object::Object,
    rules::bootstrap_token::{GROUP, NAMESPACE, read, secret_name, split},
};
use futures::future::BoxFuture;
use json::Value;
use k8s_openapi::api::core::v1::Secret;

use super::token::{Identity, Refusal, Tokens, same_secret};
use crate::{auth::User, storage::loopback::Loopback};

/// Checks tokens against the Secrets.
pub struct BootstrapTokens(pub Arc<Loopback>);

impl Tokens for BootstrapTokens {
    fn check<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Result<Option<Identity>, Refusal>> {
        Box::pin(async move {
            let Some((id, secret)) = split(token) else { return Ok(None) };
            let found = self.0.get("", "secrets", NAMESPACE, &secret_name(id)).await.map_err(|e| e.to_string())?;
            let user = found.and_then(|object| user(&object, id, secret, clock::now()));
            Ok(user.map(|user| Identity { user: Arc::new(user), audiences: Vec::new(), notes: Vec::new() }))
        })
    }
}

/// The user that the Secret names, when it is in force and the secret is right.
fn user(object: &Value, id: &str, secret: &str, now: clock::Timestamp) -> Option<User> {
    let token = read(&Secret::from_value(object).ok()?)?;
    let right = same_secret(&token.secret, secret) && token.id == id && token.authenticates;
    if !right || token.end.is_past(now) || !token.groups.iter().all(|g| is_group(g)) {
        return None;
    }
    let all = std::iter::once(GROUP).chain(token.groups.iter().map(String::as_str));
    Some(User::new(format!("system:bootstrap:{id}"), all))
}

/// The groups that a token may name: `system:bootstrappers:` and lower case letters, digits, colons and dashes.
fn is_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix(GROUP).and_then(|g| g.strip_prefix(':')) else { return false };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    rest.len() <= 256
        && rest.bytes().all(|b| plain(b) || b == b':' || b == b'-')
        && rest.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use json::json;

    use super::*;

    #[test]
    fn only_a_token_in_force_counts() {
        let encode = |s: &str| base64::engine::general_purpose::STANDARD.encode(s);
        let now: clock::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let check = |change: &[(&str, &str)], secret: &str| {
            let mut object = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token", "data": {
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
        for group in [
            "system:masters",
            "system:bootstrappers:",
            "system:bootstrappers:A",
            "system:bootstrappers:a,system:masters",
        ] {
            assert!(check(&[("auth-extra-groups", group)], good).is_none(), "{group}");
        }
    }
}
