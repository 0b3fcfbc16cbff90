//! Service account tokens in Secrets: a Secret of that type that names an account gets a token without end, the cluster's
//! CA and its namespace; it goes with its account.
//! Reads: ServiceAccount, Secrets of type `kubernetes.io/service-account-token`. Writes: Secret (update, delete).
//! Upstream counterpart: pkg/controller/serviceaccount/tokens_controller.go.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};

/// Only these Secrets are watched and kept.
pub(super) const FIELDS: &str = "type=kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// A Secret may come before the account that it names, from one manifest or through another watch.
const WAIT: Duration = Duration::from_secs(10);

/// The account and the Secret of a token.
#[derive(Debug)]
pub struct Subject<'a> {
    pub namespace: &'a str,
    pub account: &'a str,
    pub uid: &'a str,
    pub secret: &'a str,
}

type Sign = dyn Fn(&Subject) -> Result<String, String> + Send + Sync;

/// Makes tokens, with a key that only the API server's process has.
#[derive(Clone)]
pub struct TokenSigner(pub Arc<Sign>);

impl fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSigner")
    }
}

pub struct ServiceAccountTokens {
    pub signer: TokenSigner,
    /// The cluster's CA certificate in PEM; empty leaves it out.
    pub root_ca: String,
}

pub struct Observed {
    /// Each Secret that names the account, with a token for those that have none.
    secrets: Vec<(Arc<Secret>, Option<String>)>,
}

fn annotation<'a>(secret: &'a Secret, name: &str) -> &'a str {
    secret.metadata.annotations.as_ref().and_then(|a| a.get(name)).map_or("", String::as_str)
}

/// The account that the Secret names.
fn account_of(secret: &Secret) -> Key {
    Key::new(secret.metadata.namespace.as_deref().unwrap_or(""), annotation(secret, ACCOUNT_NAME))
}

fn has(secret: &Secret, field: &str) -> bool {
    secret.data.as_ref().and_then(|d| d.get(field)).is_some_and(|value| !value.0.is_empty())
}

/// Whether the Secret is for this very account, not for a namesake before it.
fn is_for(secret: &Secret, account: &ServiceAccount) -> bool {
    let uid = annotation(secret, ACCOUNT_UID);
    uid.is_empty() || account.metadata.uid.as_deref() == Some(uid)
}

/// The Secrets that name the account.
pub(super) fn secrets(listers: &Listers, account: &Key) -> Vec<Arc<Secret>> {
    let mut all = listers.caches.selected::<Secret>(FIELDS).list_in(&account.namespace);
    all.retain(|s| account_of(s) == *account && s.metadata.deletion_timestamp.is_none());
    all
}

impl Controller for ServiceAccountTokens {
    const NAME: &'static str = "serviceaccount-token-controller";
    type Object = ServiceAccount;
    type Observed = Observed;

    fn concerns(change: &Change<ServiceAccount>) -> bool {
        let uid = |account: &Option<Arc<ServiceAccount>>| account.as_ref().map(|a| a.metadata.uid.clone());
        uid(&change.old) != uid(&change.new)
    }

    fn watches(&self, watches: &mut Watches<ServiceAccount>) {
        let secrets = watches.caches().selected::<Secret>(FIELDS);
        watches.changed_in(secrets, |change, _| change.new.as_ref().map(|s| account_of(s)).into_iter().collect());
    }

    fn observe(&self, account: &ServiceAccount, listers: &Listers) -> Observed {
        let key = Key::of(account);
        let with_token = |secret: Arc<Secret>| {
            let subject = Subject {
                namespace: &key.namespace,
                account: &key.name,
                uid: account.metadata.uid.as_deref().unwrap_or(""),
                secret: secret.metadata.name.as_deref().unwrap_or(""),
            };
            let wanted = is_for(&secret, account) && !has(&secret, "token");
            let token = wanted.then(|| (self.signer.0)(&subject)).and_then(|signed| {
                signed.inspect_err(|error| tracing::warn!(?subject, error, "a token could not be signed")).ok()
            });
            (secret, token)
        };
        Observed { secrets: secrets(listers, &key).into_iter().map(with_token).collect() }
    }

    fn plan(&self, account: &ServiceAccount, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        for (secret, token) in &observed.secrets {
            if !is_for(secret, account) {
                plan.step(Write::delete(&**secret));
            } else if let Some(new) = completed(secret, account, token.as_deref(), &self.root_ca) {
                plan.step(Write::update(&new).tolerate(&["NotFound"]));
            }
        }
        plan
    }

    fn plan_gone(&self, key: &Key, listers: &Listers, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let now = clock::now_seconds();
        for secret in secrets(listers, key) {
            let since = secret.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
            match WAIT.checked_sub(Duration::from_secs((now.as_second() - since.as_second()).max(0) as u64)) {
                Some(left) if !left.is_zero() => plan.again_after(left),
                _ => plan.step(Write::delete(&*secret)),
            };
        }
        plan
    }
}

/// The Secret with all that it should hold; `None` when it does already.
fn completed(secret: &Secret, account: &ServiceAccount, token: Option<&str>, root_ca: &str) -> Option<Secret> {
    let mut fields: BTreeMap<&str, &str> = BTreeMap::new();
    fields.extend(token.map(|token| ("token", token)));
    let ca = secret.data.as_ref().and_then(|d| d.get("ca.crt")).map_or(&b""[..], |value| &value.0);
    if !root_ca.is_empty() && ca != root_ca.as_bytes() {
        fields.insert("ca.crt", root_ca);
    }
    if !has(secret, "namespace") {
        fields.insert("namespace", secret.metadata.namespace.as_deref().unwrap_or(""));
    }
    if fields.is_empty() {
        return None;
    }
    let mut new = secret.clone();
    let fields = fields.into_iter().map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec())));
    new.data.get_or_insert_default().extend(fields);
    let uid = account.metadata.uid.clone().unwrap_or_default();
    new.metadata.annotations.get_or_insert_default().insert(ACCOUNT_UID.to_owned(), uid);
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    fn plan(uid: &str, data: Value, token: Option<&str>) -> Plan {
        let controller =
            ServiceAccountTokens { signer: TokenSigner(Arc::new(|_| unreachable!())), root_ca: "CA".into() };
        let account = json!({"metadata": {"name": "robot", "namespace": "d", "uid": "u"}});
        let annotations = json!({ACCOUNT_NAME: "robot", ACCOUNT_UID: uid});
        let secret = json!({"metadata": {"name": "s", "namespace": "d", "annotations": annotations}, "data": data});
        let secret = Arc::new(json::from_value(secret).unwrap());
        let observed = Observed { secrets: vec![(secret, token.map(str::to_owned))] };
        controller.plan(&json::from_value(account).unwrap(), &observed, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_secret_gets_what_it_lacks() {
        let filled = plan("", json!({"extra": "eA=="}), Some("token"));
        let body = filled.writes().next().unwrap().body();
        let data = json!({"ca.crt": "Q0E=", "extra": "eA==", "namespace": "ZA==", "token": "dG9rZW4="});
        assert_eq!((&body["data"], &body["metadata"]["annotations"][ACCOUNT_UID]), (&data, &json!("u")));
        assert!(plan("u", data, None).is_empty());
        let old_ca = json!({"ca.crt": "b2xk", "namespace": "ZA==", "token": "dG9rZW4="});
        assert_eq!(plan("u", old_ca, None).writes().next().unwrap().body()["data"]["ca.crt"], "Q0E=");
    }

    #[test]
    fn a_secret_of_a_former_account_goes() {
        assert_eq!(plan("other", json!({}), None).to_string(), "delete secrets s");
    }
}
