//! Token cleaner: deletes bootstrap tokens that have ended.
//! Reads: Namespace, Secrets of bootstrap tokens. Writes: Secret (delete).
//! Upstream counterpart: pkg/controller/bootstrap/tokencleaner.go.

use std::{sync::Arc, time::Duration};

use api::rules::bootstrap_token::{self, End};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::core::v1::{Namespace, Secret};

pub struct TokenCleaner;

/// Only these Secrets are watched and kept.
pub(crate) const TOKENS: &str = "type=bootstrap.kubernetes.io/token";

/// Looks again when the token ends.
pub(crate) fn wait_for(plan: &mut Plan, end: End, now: Timestamp) {
    if let End::At(end) = end
        && end > now
    {
        plan.again_after(Duration::from_secs((end.as_second() - now.as_second()).unsigned_abs()));
    }
}

impl Controller for TokenCleaner {
    const NAME: &'static str = "token-cleaner-controller";
    /// The one namespace stands for all tokens, so that not all Secrets have to be kept.
    type Object = Namespace;
    type Observed = Vec<Arc<Secret>>;

    fn concerns(change: &Change<Namespace>) -> bool {
        change.key.name == bootstrap_token::NAMESPACE && change.old.is_none()
    }

    fn watches(&self, watches: &mut Watches<Namespace>) {
        let tokens = watches.caches().selected::<Secret>(TOKENS);
        watches.changed_in(tokens, |_, _| vec![Key::new("", bootstrap_token::NAMESPACE)]);
    }

    fn observe(&self, namespace: &Namespace, listers: &Listers) -> Self::Observed {
        if namespace.metadata.name.as_deref() != Some(bootstrap_token::NAMESPACE) {
            return Vec::new();
        }
        listers.caches.selected::<Secret>(TOKENS).list_in(bootstrap_token::NAMESPACE)
    }

    fn plan(&self, _: &Namespace, secrets: &Self::Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        // Those that nobody can use go too when their time is over.
        for secret in secrets.iter().filter(|secret| secret.metadata.deletion_timestamp.is_none()) {
            let end = bootstrap_token::end(secret);
            if end.is_past(now) {
                plan.step(Write::delete(&**secret));
            }
            wait_for(&mut plan, end, now);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_when_they_have_ended() {
        let secret = |id: &str, end: &str| {
            let data: std::collections::BTreeMap<_, _> = [("token-id", id), ("token-secret", "s"), ("expiration", end)]
                .map(|(k, v)| (k.to_owned(), k8s_openapi::ByteString(v.into())))
                .into();
            let mut secret = Secret { type_: Some(bootstrap_token::SECRET_TYPE.to_owned()), ..Secret::default() };
            secret.metadata.name = Some(bootstrap_token::secret_name(id));
            secret.data = Some(data);
            Arc::new(secret)
        };
        let all = vec![
            secret("aaaaaa", "1970-01-01T00:00:10Z"),
            secret("bbbbbb", "1970-01-01T00:01:00Z"),
            secret("cccccc", ""),
            secret("dddddd", "soon"),
            secret("not an id", "1970-01-01T00:00:10Z"),
        ];
        let plan = TokenCleaner.plan(&Namespace::default(), &all, Timestamp::from_second(10).unwrap());
        let gone = ["aaaaaa", "dddddd", "not an id"].map(|id| format!("delete secrets bootstrap-token-{id}"));
        assert_eq!(plan.to_string(), gone.join(", "));
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(50)));
    }
}
