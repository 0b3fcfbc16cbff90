//! Service account tokens in Secrets: a Secret of that type that names an account gets a token without end, the cluster's
//! CA and its namespace. It goes with its account, or at once where there is none. An account does not list one that has gone.
//! Reads: ServiceAccount, Secrets of type `kubernetes.io/service-account-token`. Writes: Secret (update, delete),
//! ServiceAccount (update).
//! Upstream counterpart: pkg/controller/serviceaccount/tokens_controller.go.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use client::{Api, Change, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};
use parking_lot::Mutex;

/// Only these Secrets are watched and kept.
pub(super) const FIELDS: &str = "type=kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

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
    pub removed: Removed,
}

/// The Secrets that have gone, by the account that they named and then by their own name, with the account's UID that they
/// had. Each is kept until its account is seen not to list it.
#[derive(Clone, Default)]
pub struct Removed(Arc<Mutex<HashMap<Key, BTreeMap<String, String>>>>);

impl Removed {
    fn note(&self, secret: &Secret) {
        let name = secret.metadata.name.clone().unwrap_or_default();
        let uid = annotation(secret, ACCOUNT_UID).to_owned();
        self.0.lock().entry(account_of(secret)).or_default().insert(name, uid);
    }

    /// The names that the account lists of Secrets that have gone and did not come again.
    fn listed(&self, account: &ServiceAccount, there: &[Arc<Secret>]) -> Vec<String> {
        let mut removed = self.0.lock();
        let Some(secrets) = removed.get_mut(&Key::of(account)) else { return Vec::new() };
        let is_there = |name: &String| there.iter().any(|secret| secret.metadata.name.as_ref() == Some(name));
        secrets.retain(|name, uid| lists(account, name) && is_meant(account, uid) && !is_there(name));
        let names = secrets.keys().cloned().collect();
        if secrets.is_empty() {
            removed.remove(&Key::of(account));
        }
        names
    }

    fn forget(&self, account: &Key) {
        self.0.lock().remove(account);
    }
}

pub struct Observed {
    /// Each Secret that names the account, with a token for those that have none.
    secrets: Vec<(Arc<Secret>, Option<String>)>,
    /// Secrets that have gone and that the account lists still.
    removed: Vec<String>,
    /// The UID that the account has by now. Asked for where a Secret names another than the one at hand.
    newest: Option<String>,
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

/// Whether a Secret with this UID is for this very account, not for a namesake before it.
fn is_meant(account: &ServiceAccount, uid: &str) -> bool {
    uid.is_empty() || account.metadata.uid.as_deref() == Some(uid)
}

fn is_for(secret: &Secret, account: &ServiceAccount) -> bool {
    is_meant(account, annotation(secret, ACCOUNT_UID))
}

/// Whether the account lists a Secret of this name.
fn lists(account: &ServiceAccount, name: &str) -> bool {
    account.secrets.iter().flatten().any(|listed| listed.name.as_deref() == Some(name))
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
        let removed = self.removed.clone();
        watches.changed_in(secrets, move |change, _| {
            let gone = change.old.as_ref().filter(|_| change.new.is_none());
            let changed = change.new.as_ref().or(gone).filter(|secret| !account_of(secret).name.is_empty());
            gone.filter(|_| changed.is_some()).into_iter().for_each(|secret| removed.note(secret));
            changed.map(|secret| account_of(secret)).into_iter().collect()
        });
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
        let secrets = secrets(listers, &key);
        let removed = self.removed.listed(account, &secrets);
        Observed { secrets: secrets.into_iter().map(with_token).collect(), removed, newest: None }
    }

    async fn ask(
        &self,
        account: &ServiceAccount,
        observed: &mut Observed,
        client: &Client,
    ) -> Result<(), client::Error> {
        if observed.secrets.iter().any(|(secret, _)| !is_for(secret, account)) {
            observed.newest = find(&Key::of(account), client).await?.and_then(|account| account.metadata.uid);
        }
        Ok(())
    }

    fn plan(&self, account: &ServiceAccount, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        for (secret, token) in &observed.secrets {
            if !is_for(secret, account) {
                if observed.newest.as_deref() != Some(annotation(secret, ACCOUNT_UID)) {
                    plan.step(Write::delete(&**secret));
                }
            } else if let Some(new) = completed(secret, account, token.as_deref(), &self.root_ca) {
                plan.step(Write::update(&new).tolerate(&["NotFound"]));
            }
        }
        if !observed.removed.is_empty() {
            plan.step(Write::update(&without(account, &observed.removed)).tolerate(&["NotFound"]));
        }
        plan
    }

    async fn is_gone(&self, key: &Key, listers: &Listers<'_>, client: &Client) -> Result<bool, client::Error> {
        Ok(secrets(listers, key).is_empty() || find(key, client).await?.is_none())
    }

    fn plan_gone(&self, key: &Key, listers: &Listers, _: Timestamp) -> Plan {
        self.removed.forget(key);
        let mut plan = Plan::default();
        secrets(listers, key).iter().for_each(|secret| _ = plan.step(Write::delete(&**secret)));
        plan
    }
}

/// The account as the server has it.
async fn find(key: &Key, client: &Client) -> Result<Option<ServiceAccount>, client::Error> {
    Api::<ServiceAccount>::namespaced(client.clone(), &key.namespace).find(&key.name).await
}

/// The account without these Secrets in its list.
fn without(account: &ServiceAccount, removed: &[String]) -> ServiceAccount {
    let mut new = account.clone();
    new.secrets
        .iter_mut()
        .for_each(|all| all.retain(|listed| !removed.iter().any(|name| listed.name.as_ref() == Some(name))));
    new.secrets = new.secrets.filter(|all| !all.is_empty());
    new
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
        let signer = TokenSigner(Arc::new(|_| unreachable!()));
        let controller = ServiceAccountTokens { signer, root_ca: "CA".into(), removed: Removed::default() };
        let account = json!({"metadata": {"name": "robot", "namespace": "d", "uid": "u"}});
        let annotations = json!({ACCOUNT_NAME: "robot", ACCOUNT_UID: uid});
        let secret = json!({"metadata": {"name": "s", "namespace": "d", "annotations": annotations}, "data": data});
        let secret = Arc::new(json::from_value(secret).unwrap());
        let newest = Some("newest".to_owned());
        let observed = Observed { secrets: vec![(secret, token.map(str::to_owned))], removed: Vec::new(), newest };
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
        assert!(plan("newest", json!({}), None).is_empty(), "the account at hand is the former one");
    }

    #[test]
    fn an_account_lists_no_secret_that_has_gone() {
        let account = |listed: Value| -> ServiceAccount {
            json::from_value(json!({"metadata": {"name": "robot", "namespace": "d", "uid": "u"}, "secrets": listed}))
                .unwrap()
        };
        let secret = |name: &str, uid: &str| -> Secret {
            let annotations = json!({ACCOUNT_NAME: "robot", ACCOUNT_UID: uid});
            let metadata = json!({"name": name, "namespace": "d", "annotations": annotations});
            json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let two = account(json!([{"name": "a"}, {"name": "b"}]));
        let removed = Removed::default();
        for (name, uid) in [("a", "u"), ("b", "other"), ("c", "u")] {
            removed.note(&secret(name, uid));
        }
        assert_eq!(removed.listed(&two, &[]), ["a"], "of its own, and listed");
        let left = without(&two, &["a".to_owned()]);
        assert_eq!(left.secrets.as_ref().map(|all| all[0].name.as_deref()), Some(Some("b")));
        assert_eq!(without(&left, &["b".to_owned()]).secrets, None);
        assert!(removed.listed(&two, &[secret("a", "u").into()]).is_empty(), "it came again");
        assert!(removed.0.lock().is_empty(), "and none is remembered");
    }
}
