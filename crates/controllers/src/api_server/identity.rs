//! API server identity: a Lease of each API server that is there, under a name that stays while its machine's does.
//! Reads: Lease (kube-system). Writes: Lease (kube-system: its own; those of servers that are gone are deleted).
//! Upstream counterpart: pkg/controlplane/apiserver/server.go, pkg/controlplane/controller/apiserverleasegc.

use std::{collections::BTreeMap, time::Duration};

use client::{Api, Client, rest::DeleteOptions};
use clock::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use sha2::{Digest, Sha256};

pub const NAMESPACE: &str = "kube-system";
/// The label that says whose Lease it is.
const COMPONENT: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
const HOST: &str = "kubernetes.io/hostname";

const LEASE_SECONDS: i32 = 3600;
/// Upstream renews every ten seconds. Nobody concludes anything from the Lease before an hour is over, and on a quiet
/// node each renewal would be one more write to the disk beside the kubelet's.
const RENEWAL: Duration = Duration::from_secs(300);
/// A renewal takes no longer, and after one that failed the next follows this soon.
const RETRY: Duration = Duration::from_secs(10);
/// How often Leases of servers that are gone are looked for.
const COLLECTION: Duration = Duration::from_secs(3600);

/// The name of the server on a machine: `apiserver-` and a part of the machine's name's hash.
pub fn name(host: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = Sha256::digest(host);
    let bit = |place: usize| hash.get(place / 8).filter(|_| place < 128).map_or(0, |byte| byte >> (7 - place % 8) & 1);
    let letter = |digit: usize| (0..5).fold(0, |value, i| value << 1 | usize::from(bit(digit * 5 + i)));
    let text: String = (0..26).map(|digit| char::from(LETTERS[letter(digit)])).collect();
    format!("apiserver-{text}")
}

/// Whether a Lease is an API server's.
pub fn is_servers(lease: &Lease) -> bool {
    let label = lease.metadata.labels.as_ref().and_then(|labels| labels.get(COMPONENT.0));
    lease.metadata.namespace.as_deref() == Some(NAMESPACE) && label.is_some_and(|component| component == COMPONENT.1)
}

/// The Lease as the server writes it now.
fn renewed(lease: Option<Lease>, id: &str, holder: &str, host: &str, now: Timestamp) -> Lease {
    let made = || Lease {
        metadata: ObjectMeta { name: Some(id.to_owned()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            ..LeaseSpec::default()
        }),
    };
    let mut lease = lease.unwrap_or_else(made);
    lease.spec.get_or_insert_default().renew_time = Some(MicroTime(now));
    let labels: &mut BTreeMap<String, String> = lease.metadata.labels.get_or_insert_default();
    labels.insert(COMPONENT.0.to_owned(), COMPONENT.1.to_owned());
    labels.insert(HOST.to_owned(), host.to_owned());
    lease
}

/// Keeps the server's Lease. Never returns.
pub async fn keep(client: &Client, id: &str, host: &str) {
    let api: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let holder = format!("{id}_{}", clock::uuid());
    // Written from the last answer; only a write that was refused is followed by a read.
    let mut last: Option<Lease> = None;
    let renew = async |last: Option<Lease>| {
        let found = match last {
            Some(lease) => Some(lease),
            None => api.find(id).await?,
        };
        let is_new = found.is_none();
        let lease = renewed(found, id, &holder, host, clock::now());
        if is_new { api.create(&lease).await } else { api.replace(id, "", &lease).await }
    };
    loop {
        match clock::timeout(RETRY, renew(last.take())).await {
            Ok(Ok(lease)) => last = Some(lease),
            Ok(Err(error)) => tracing::debug!(lease = id, %error, "cannot renew the API server's lease"),
            Err(_) => tracing::debug!(lease = id, "the API server's lease cannot be renewed in time"),
        }
        clock::sleep(if last.is_some() { RENEWAL } else { RETRY }).await;
    }
}

/// Whether a Lease says nothing any more.
fn is_over(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return true };
    let (Some(renewed), Some(seconds)) = (&spec.renew_time, spec.lease_duration_seconds) else { return true };
    now.duration_since(renewed.0).as_secs() > i64::from(seconds)
}

/// Deletes the Leases of servers that are gone, once an hour. Never returns.
pub async fn collect(client: &Client) {
    let api: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let selector = format!("{}={}", COMPONENT.0, COMPONENT.1);
    loop {
        let leases = api.list(&[("labelSelector", &selector)]).await.unwrap_or_default();
        for lease in leases.into_iter().filter(|lease| is_over(lease, clock::now())) {
            let ObjectMeta { name, uid, resource_version, .. } = lease.metadata;
            // As it was seen: one that was renewed since then stays.
            let options = DeleteOptions { uid, resource_version, ..DeleteOptions::default() };
            if let Err(error) = api.delete(&name.unwrap_or_default(), options).await {
                tracing::debug!(%error, "cannot delete the lease of an API server that is gone");
            }
        }
        clock::sleep(COLLECTION).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_machines() {
        // sha256("test") begins with 9f86d081884c7d659a2feaa0c55ad015.
        assert_eq!(name("test"), "apiserver-t6dnbamijr6wlgrp5kqmkwwqcu");
        assert_ne!(name("test"), name("test2"));
    }

    #[test]
    fn a_lease_says_who_and_where() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let made = renewed(None, "apiserver-x", "apiserver-x_1", "node", at(100));
        let spec = made.spec.clone().unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("apiserver-x_1"), Some(3600)));
        let labels = made.metadata.labels.clone().unwrap();
        assert_eq!(
            labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>(),
            ["apiserver.kubernetes.io/identity=kube-apiserver", "kubernetes.io/hostname=node"]
        );
        // A Lease that is there stays, and a label that somebody took comes back.
        let mut found = made.clone();
        found.metadata.labels = None;
        let again = renewed(Some(found), "apiserver-x", "apiserver-x_2", "node", at(110));
        assert_eq!(again.spec.as_ref().unwrap().holder_identity, spec.holder_identity);
        assert_eq!(again.metadata.labels, made.metadata.labels);
        assert!(!is_over(&again, at(110)) && !is_over(&again, at(3710)) && is_over(&again, at(3711)));
        assert!(is_over(&Lease::default(), at(0)));
        let mut in_system = again.clone();
        in_system.metadata.namespace = Some(NAMESPACE.to_owned());
        assert!(is_servers(&in_system) && !is_servers(&again));
        in_system.metadata.labels = None;
        assert!(!is_servers(&in_system));
    }
}
