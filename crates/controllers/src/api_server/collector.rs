//! Storage version garbage collector: what API servers that are gone have said of their storage goes too.
//! Reads: StorageVersion, Lease (kube-system). Writes: StorageVersion/status, StorageVersion (delete).
//! Upstream counterpart: pkg/controller/storageversiongc.

use std::collections::BTreeSet;

use client::{Api, Change, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::{
    apiserverinternal::v1alpha1::{ServerStorageVersion, StorageVersion},
    coordination::v1::Lease,
};

use super::{identity, storage_versions::agreed};

pub struct StorageVersionCollector;

/// The servers that are named and have no Lease.
#[derive(Default)]
pub struct Gone(BTreeSet<String>);

fn servers(version: &StorageVersion) -> impl Iterator<Item = &ServerStorageVersion> {
    version.status.storage_versions.iter().flatten()
}

fn id(server: &ServerStorageVersion) -> &str {
    server.api_server_id.as_deref().unwrap_or_default()
}

impl Controller for StorageVersionCollector {
    const NAME: &'static str = "storageversion-garbage-collector-controller";
    type Object = StorageVersion;
    type Observed = Gone;

    /// A deletion leaves nothing to do.
    fn concerns(change: &Change<StorageVersion>) -> bool {
        change.new.is_some()
    }

    fn watches(&self, watches: &mut Watches<StorageVersion>) {
        watches.changed::<Lease>(|change, caches| {
            let is_gone = change.new.as_deref().is_none_or(|lease| !identity::is_servers(lease));
            let was_servers = change.old.as_deref().is_some_and(identity::is_servers);
            if !is_gone || !was_servers {
                return Vec::new();
            }
            let all = caches.of::<StorageVersion>().list();
            let named = all.iter().filter(|version| servers(version).any(|server| id(server) == change.key.name));
            named.map(|version| Key::of(&**version)).collect()
        });
    }

    fn observe(&self, version: &StorageVersion, listers: &Listers) -> Gone {
        let leases = listers.caches.of::<Lease>();
        let is_there =
            |id: &str| leases.get(&Key::new(identity::NAMESPACE, id)).is_some_and(|l| identity::is_servers(&l));
        Gone(servers(version).map(|server| id(server).to_owned()).filter(|id| !is_there(id)).collect())
    }

    /// A server that has just come may have said something before its Lease is seen here.
    async fn ask(&self, _: &StorageVersion, gone: &mut Gone, client: &Client) -> Result<(), client::Error> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), identity::NAMESPACE);
        for id in gone.0.clone() {
            // A name that no Lease can have is nobody's.
            let found = if id.is_empty() || id.contains('/') { None } else { leases.find(&id).await? };
            if found.is_some_and(|lease| identity::is_servers(&lease)) {
                gone.0.remove(&id);
            }
        }
        Ok(())
    }

    fn plan(&self, version: &StorageVersion, Gone(gone): &Gone, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if gone.is_empty() || version.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        let left: Vec<ServerStorageVersion> =
            servers(version).filter(|server| !gone.contains(id(server))).cloned().collect();
        if left.is_empty() {
            plan.step(Write::delete(version));
            return plan;
        }
        let status = agreed(version, left, now);
        plan.set_status(version, &StorageVersion { status, ..version.clone() });
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::storage_versions::tests::server;

    #[test]
    fn what_servers_said_goes_with_them() {
        let at = Timestamp::UNIX_EPOCH;
        let check = |said: &[(&str, &str)], gone: &[&str], expected: &str, common: Option<&str>| {
            let mut version = StorageVersion::default();
            version.metadata.name = Some("core.pods".to_owned());
            version.status = agreed(&version, said.iter().map(|(id, writes)| server(id, writes)).collect(), at);
            let plan =
                StorageVersionCollector.plan(&version, &Gone(gone.iter().map(|id| (*id).to_owned()).collect()), at);
            assert_eq!(plan.to_string(), expected, "{said:?} {gone:?}");
            let written =
                plan.status.as_ref().and_then(|write| write.body()["status"]["commonEncodingVersion"].as_str());
            assert_eq!(written, common, "{said:?} {gone:?}");
        };
        let (update, delete) = ("update storageversions/status core.pods", "delete storageversions core.pods");
        check(&[], &[], "", None);
        check(&[("a", "v1"), ("b", "v1")], &[], "", None);
        check(&[("a", "v1"), ("b", "v1")], &["a"], update, Some("v1"));
        check(&[("a", "v1"), ("b", "v2")], &["a"], update, Some("v2"));
        check(&[("a", "v1"), ("b", "v2"), ("c", "v3")], &["a"], update, None);
        check(&[("a", "v1"), ("b", "v1")], &["a", "b"], delete, None);
        check(&[("a", "v1")], &["a"], delete, None);
    }
}
