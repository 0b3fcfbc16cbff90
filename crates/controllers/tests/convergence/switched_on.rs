//! Controllers of what is off by default: migrations of storage versions, what API servers say of them, and the bundle of the
//! API server's authority.

use client::{Api, Kind, rest::DeleteOptions};
use json::{Value, json};
use k8s_openapi::api::{
    apiserverinternal::v1alpha1::StorageVersion,
    certificates::v1beta1::ClusterTrustBundle,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace},
    storagemigration::v1beta1::StorageVersionMigration,
};

use crate::common::object;
use crate::world::{AUTHORITY, Story, World, below, chance, converges};

/// Migrations of ConfigMaps that change meanwhile, and of what does not exist; bundles that somebody spoils; API servers that
/// come and go.
struct SwitchedOn;

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";

fn all<K: Kind>(world: &World) -> Api<K> {
    Api::all(world.client.clone())
}

fn leases(world: &World) -> Api<Lease> {
    Api::namespaced(world.client.clone(), "kube-system")
}

async fn create<K: Kind>(world: &World, value: Value) {
    // It may be there already.
    let _ = all::<K>(world).create(&object(value)).await;
}

fn holds(migration: &StorageVersionMigration, condition: &str) -> bool {
    let conditions = migration.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == condition && c.status == "True")
}

impl Story for SwitchedOn {
    const CONTROLLERS: &'static [&'static str] = &[
        "storage-version-migrator-controller",
        "kube-apiserver-serving-clustertrustbundle-publisher-controller",
        "storageversion-garbage-collector-controller",
    ];

    async fn begin(world: &World) -> Self {
        create::<Namespace>(world, json!({"metadata": {"name": "kube-system"}})).await;
        SwitchedOn
    }

    async fn change(&mut self, world: &World) {
        let bundles = all::<ClusterTrustBundle>(world);
        match below(7) {
            0 => {
                let resource = if chance(70) { "configmaps" } else { "nothings" };
                let spec = json!({"resource": {"group": "", "resource": resource}});
                let name = format!("{resource}-{}", below(3));
                create::<StorageVersionMigration>(world, json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            1 => {
                for migration in all::<StorageVersionMigration>(world).list(&[]).await.unwrap() {
                    let name = migration.metadata.name.unwrap_or_default();
                    let _ = all::<StorageVersionMigration>(world).delete(&name, DeleteOptions::default()).await;
                }
            }
            2 => {
                let (maps, name) = (world.api::<ConfigMap>(), format!("m{}", below(4)));
                let _ = maps.create(&object(json!({"metadata": {"name": name}}))).await;
                let _ = maps.merge_patch(&name, "", json!({"data": {"a": below(9).to_string()}})).await;
            }
            3 => {
                let name = format!("{}:{}", SIGNER.replace('/', ":"), below(3));
                let spec = json!({"signerName": SIGNER, "trustBundle": *AUTHORITY});
                create::<ClusterTrustBundle>(world, json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            4 => {
                let (leases, name) = (leases(world), format!("server-{}", below(3)));
                if chance(50) {
                    let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver"});
                    let _ = leases.create(&object(json!({"metadata": {"name": name, "labels": labels}}))).await;
                } else {
                    let _ = leases.delete(&name, DeleteOptions::default()).await;
                }
            }
            5 => {
                // Some of them have no Lease.
                let (versions, name) = (all::<StorageVersion>(world), format!("core.r{}", below(2)));
                let _ = versions.create(&object(json!({"metadata": {"name": name}, "spec": {}}))).await;
                let server = |n: u64| json!({"apiServerID": format!("server-{n}"), "encodingVersion": "v1", "decodableVersions": ["v1"]});
                let said =
                    json!({"commonEncodingVersion": "v1", "storageVersions": [server(below(2)), server(2 + below(2))]});
                let _ = versions.merge_patch(&name, "status", json!({"status": said})).await;
            }
            _ => {
                for bundle in bundles.list(&[]).await.unwrap() {
                    let _ = bundles.delete(&bundle.metadata.name.unwrap_or_default(), DeleteOptions::default()).await;
                }
            }
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let ended = |migration: &StorageVersionMigration| {
            let exists = migration.metadata.name.as_ref().is_some_and(|name| name.starts_with("configmaps"));
            holds(migration, if exists { "Succeeded" } else { "Failed" }) && !holds(migration, "Running")
        };
        let migrations = all::<StorageVersionMigration>(world).list(&[]).await.unwrap();
        if let Some(open) = migrations.iter().find(|migration| !ended(migration)) {
            return Some(format!("{:?} has not ended: {:?}", open.metadata.name, open.status));
        }
        let held = leases(world).list(&[]).await.unwrap();
        let is_there = |id: &Option<String>| held.iter().any(|lease| lease.metadata.name == *id);
        for version in all::<StorageVersion>(world).list(&[]).await.unwrap() {
            let gone = version.status.storage_versions.iter().flatten().find(|server| !is_there(&server.api_server_id));
            if let Some(gone) = gone {
                return Some(format!("{:?} names {:?}", version.metadata.name, gone.api_server_id));
            }
        }
        let bundles = all::<ClusterTrustBundle>(world).list(&[]).await.unwrap();
        let texts: Vec<&str> = bundles.iter().map(|bundle| bundle.spec.trust_bundle.as_str()).collect();
        (texts != [AUTHORITY.as_str()]).then(|| format!("{} bundles", texts.len()))
    }
}

#[test]
fn migrations_end_one_bundle_stays_and_servers_that_are_gone_say_nothing() {
    converges::<SwitchedOn>(0..8);
}
