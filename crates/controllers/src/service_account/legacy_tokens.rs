//! Legacy tokens: a token that was once made for an account by itself, without anybody asking, and that nobody has used for a
//! year is marked invalid, and deleted when another year has passed.
//! Reads: ServiceAccount, Secrets of type `kubernetes.io/service-account-token`, Pod, the ConfigMap that says since when uses are
//! noted. Writes: Secret (patch, delete).
//! Upstream counterpart: pkg/controller/serviceaccount/legacy_serviceaccount_token_cleaner.go.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use client::{Api, Client, Key, rest::DeleteOptions};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use jiff::SignedDuration;
use json::json;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};

use super::tokens;

const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// How long a token may be unused, and then marked.
const UNUSED: SignedDuration = SignedDuration::from_hours(365 * 24);

pub struct LegacyTokens;

#[derive(Default)]
pub struct Observed {
    /// The tokens of the account that were made by themselves and that no Pod mounts.
    secrets: Vec<Arc<Secret>>,
    /// Since which day uses are noted; `None` leaves all tokens alone.
    since: Option<String>,
}

/// A day as labels have it; days compare as text.
fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

fn label<'a>(secret: &'a Secret, name: &str) -> Option<&'a str> {
    secret.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// The Secrets that the Pods of the namespace mount.
fn mounted(pods: &[Arc<Pod>]) -> BTreeSet<String> {
    let volumes = pods.iter().flat_map(|pod| pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()));
    volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.clone()).collect()
}

impl Controller for LegacyTokens {
    const NAME: &'static str = "legacy-serviceaccount-token-cleaner-controller";
    const RESYNC: Option<Duration> = Some(Duration::from_secs(24 * 3600));
    type Object = ServiceAccount;
    type Observed = Observed;

    /// Nothing is urgent about years.
    fn concerns(_: &client::Change<ServiceAccount>) -> bool {
        false
    }

    fn watches(&self, watches: &mut Watches<ServiceAccount>) {
        let secrets = watches.caches().selected::<Secret>(tokens::FIELDS);
        watches.reads::<Pod>().changed_in(secrets, |_, _| Vec::new());
    }

    fn observe(&self, account: &ServiceAccount, listers: &Listers) -> Observed {
        let named: Vec<&String> = account.secrets.iter().flatten().filter_map(|secret| secret.name.as_ref()).collect();
        if named.is_empty() {
            return Observed::default();
        }
        let key = Key::of(account);
        let mut secrets = tokens::secrets(listers, &key);
        let mounted = mounted(&listers.caches.of::<Pod>().list_in(&key.namespace));
        let name = |secret: &Secret| secret.metadata.name.clone().unwrap_or_default();
        secrets.retain(|secret| named.contains(&&name(secret)) && !mounted.contains(&name(secret)));
        Observed { secrets, since: None }
    }

    async fn ask(&self, _: &ServiceAccount, observed: &mut Observed, client: &Client) -> Result<(), client::Error> {
        if !observed.secrets.is_empty() {
            let map = Api::<ConfigMap>::namespaced(client.clone(), "kube-system").find(TRACKING).await?;
            observed.since = map.and_then(|map| map.data?.get("since").cloned());
        }
        Ok(())
    }

    fn plan(&self, _: &ServiceAccount, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let bound = day(now.checked_sub(UNUSED).unwrap_or(Timestamp::MIN));
        if observed.since.as_ref().is_none_or(|since| *since > bound) {
            return plan;
        }
        for secret in &observed.secrets {
            let made = secret.metadata.creation_timestamp.as_ref().map(|time| day(time.0)).unwrap_or_default();
            let used = label(secret, LAST_USED).unwrap_or("");
            if made > bound || used > bound.as_str() {
                continue;
            }
            match label(secret, INVALID_SINCE) {
                Some(since) if since <= bound.as_str() => {
                    let resource_version = secret.metadata.resource_version.clone();
                    plan.step(Write::delete_with(&**secret, DeleteOptions { resource_version, ..Default::default() }));
                }
                Some(_) => {}
                None => {
                    let labels = json!({INVALID_SINCE: day(now)});
                    // A use in this moment is a change, and the mark waits for another day.
                    let patch = json!({"metadata": {"labels": labels, "uid": secret.metadata.uid,
                        "resourceVersion": secret.metadata.resource_version}});
                    plan.step(Write::merge_patch(&**secret, "", patch).tolerate(&["NotFound", "Conflict"]));
                }
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::Value;

    #[test]
    fn tokens_go_when_nobody_has_used_them_for_two_years() {
        let check = |since: Option<&str>, made: &str, labels: Value, expected: &str| {
            let secret =
                json!({"metadata": {"name": "s", "creationTimestamp": format!("{made}T00:00:00Z"), "labels": labels}});
            let secrets = vec![Arc::new(json::from_value(secret).unwrap())];
            let observed = Observed { secrets, since: since.map(str::to_owned) };
            let now = "2026-06-01T12:00:00Z".parse().unwrap();
            let plan = LegacyTokens.plan(&ServiceAccount::default(), &observed, now);
            assert_eq!(plan.to_string(), expected, "{since:?} {made} {labels}");
        };
        let old = Some("2020-01-01");
        check(old, "2021-01-01", json!({}), "patch secrets s");
        check(None, "2021-01-01", json!({}), "");
        check(Some("2026-01-01"), "2021-01-01", json!({}), "");
        check(old, "2026-01-01", json!({}), "");
        check(old, "2021-01-01", json!({LAST_USED: "2026-05-01"}), "");
        check(old, "2021-01-01", json!({LAST_USED: "2025-05-01"}), "patch secrets s");
        check(old, "2021-01-01", json!({INVALID_SINCE: "2026-01-01"}), "");
        check(old, "2021-01-01", json!({INVALID_SINCE: "2025-05-01"}), "delete secrets s");
        check(old, "2021-01-01", json!({INVALID_SINCE: "2025-05-01", LAST_USED: "2026-05-30"}), "");
    }

    #[test]
    fn what_a_pod_mounts_is_in_use() {
        let pod = json!({"spec": {"containers": [], "volumes": [{"name": "v", "secret": {"secretName": "s"}}]}});
        assert_eq!(mounted(&[Arc::new(json::from_value(pod).unwrap())]), ["s".to_owned()].into());
    }
}
