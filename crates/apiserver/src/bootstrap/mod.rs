//! The objects that every cluster has from its first moment. Missing ones are made and stale ones mended at start, all at
//! once, so that the store commits them as one group; what is right is not written. Some of them are kept while the server runs
//! (`keep`).

mod authorities;
mod cluster;
mod endpoints;
pub mod flow_control;
pub mod keep;
#[cfg(test)]
mod keep_tests;
pub mod object;
pub mod policy;
#[cfg(test)]
mod policy_tests;
pub mod system;

use api::{features::Features, kind::Target, meta, status::StatusError};
use futures::future::try_join_all;
use json::Value;

use crate::storage::object_store::ObjectStore;
use object::BootstrapObject;

pub use cluster::Cluster;

/// Makes and mends everything.
pub async fn ensure(objects: &ObjectStore, cluster: &Cluster, features: Features) -> Result<(), StatusError> {
    let kinds = objects.kinds.table();
    let all = policy::objects(&kinds, features)
        .into_iter()
        .chain(flow_control::objects())
        .chain(system::objects(cluster, &kinds));
    // Where others share the store, the endpoints are all servers' together.
    let together = |one: &BootstrapObject| ["endpoints", "endpointslices"].contains(&one.plural);
    let all = all.filter(|one| !(objects.store.is_shared() && together(one)));
    let all: Vec<BootstrapObject> = all.collect();
    try_join_all(all.iter().map(|wanted| inherit(objects, wanted))).await?;
    try_join_all(all.iter().map(|wanted| ensure_one(objects, wanted))).await?;
    forget_api_services(objects, &all).await
}

/// Default roles and bindings that were part of another one in older versions: plural, old name, new name.
const SPLIT: &[(&str, &str, &str)] = &[
    ("clusterroles", "admin", "system:aggregate-to-admin"),
    ("clusterroles", "edit", "system:aggregate-to-edit"),
    ("clusterroles", "view", "system:aggregate-to-view"),
    ("clusterrolebindings", "system:discovery", "system:public-info-viewer"),
];

/// One that is not there yet begins as the one that it was part of: rights that an administrator has taken away from that do not
/// come back with it.
async fn inherit(objects: &ObjectStore, wanted: &BootstrapObject) -> Result<(), StatusError> {
    let is_it = |split: &&(&str, &str, &str)| split.0 == wanted.plural && split.2 == meta::name(&wanted.object);
    let Some((plural, old, new)) = SPLIT.iter().find(is_it) else { return Ok(()) };
    let definition = objects.definition(wanted.group, plural)?;
    if found(objects.get(&definition, "", new).await)?.is_some() {
        return Ok(());
    }
    let Some(old) = found(objects.get(&definition, "", old).await)? else { return Ok(()) };
    if old.get("aggregationRule").is_some() {
        return Ok(());
    }
    let mut heir = wanted.object.clone();
    for (of, field) in [("/metadata", "labels"), ("/metadata", "annotations"), ("", "subjects"), ("", "rules")] {
        let Some(heir) = heir.pointer_mut(of).and_then(Value::as_object_mut) else { continue };
        heir.remove(field);
        if let Some(value) = meta::at(&old, &format!("{of}/{field}")) {
            heir.insert(field, value.clone());
        }
    }
    match objects.create(&definition, heir).await {
        // Another server was faster.
        Err(error) if error.code == 409 => Ok(()),
        made => made,
    }
}

/// An object, or none where it is not there.
fn found<T>(got: Result<T, StatusError>) -> Result<Option<T>, StatusError> {
    match got {
        Err(error) if error.code == 404 => Ok(None),
        got => got.map(Some),
    }
}

/// Takes away what an earlier start registered and this server no longer serves: nobody else answers for it. Custom groups have
/// a keeper of their own, who knows which of them there are.
async fn forget_api_services(objects: &ObjectStore, wanted: &[BootstrapObject]) -> Result<(), StatusError> {
    let definition = objects.definition("apiregistration.k8s.io", "apiservices")?;
    for entry in objects.entries(&definition, "").await? {
        let mut swap = objects.swap(&definition, entry);
        let present = swap.object();
        let is_it =
            |one: &BootstrapObject| one.plural == definition.plural && meta::name(&one.object) == meta::name(&present);
        if present["metadata"]["labels"][object::AUTOMANAGED] == "onstart" && !wanted.iter().any(is_it) {
            // Whoever changed it meanwhile wrote what is right.
            swap.remove().await?;
        }
    }
    Ok(())
}

/// Makes or mends one.
pub async fn ensure_one(objects: &ObjectStore, wanted: &BootstrapObject) -> Result<(), StatusError> {
    let definition = objects.definition(wanted.group, wanted.plural)?;
    let of = (meta::namespace(&wanted.object), meta::name(&wanted.object));
    let mend = |present: &mut Value| Ok(wanted.mended(present).map(|object| *present = object).is_some());
    match objects.update(&definition, of, Target::Object, mend).await {
        Err(error) if error.code == 404 => {}
        done => return done,
    }
    match objects.create(&definition, wanted.object.clone()).await {
        // Another server was faster.
        Err(error) if error.code == 409 => objects.update(&definition, of, Target::Object, mend).await,
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::StreamExt;
    use json::json;
    use store::{Store, embedded::Embedded};

    use super::{object::AUTOUPDATE, *};

    /// The keys that were written after a revision.
    async fn written(objects: &ObjectStore, after: u64) -> Vec<String> {
        let newest = objects.caught_up().await.unwrap();
        let mut history = objects.store.watch("/registry/", Some(after)).await.unwrap();
        let (mut keys, mut reached) = (Vec::new(), after);
        while reached < newest {
            let batch = history.next().await.unwrap().unwrap();
            keys.extend(batch.events.iter().map(|event| event.key["/registry/".len()..].to_owned()));
            reached = batch.revision;
        }
        keys.sort();
        keys
    }

    #[tokio::test]
    async fn a_second_start_writes_only_what_is_wrong() {
        let store = Arc::new(Embedded::memory());
        let objects = ObjectStore::new(store.clone()).await.unwrap();
        let cluster = Cluster::example();
        let group = crate::auth::rbac::GROUP;
        ensure(&objects, &cluster, Features::default()).await.unwrap();
        for (group, plural, namespace, name) in [
            ("", "namespaces", "", "kube-system"),
            ("", "services", "default", "kubernetes"),
            (group, "clusterroles", "", "admin"),
        ] {
            let definition = objects.definition(group, plural).unwrap();
            objects.get(&definition, namespace, name).await.unwrap();
        }
        let first = store.revision().await.unwrap();
        ensure(&objects, &cluster, Features::default()).await.unwrap();
        assert_eq!(written(&objects, first).await, [""; 0]);

        let change = async |group: &str, plural: &str, of: (&str, &str), f: &(dyn Fn(&mut Value) + Sync)| {
            let definition = objects.definition(group, plural).unwrap();
            let change = |object: &mut Value| {
                f(object);
                Ok(true)
            };
            objects.update(&definition, of, Target::Object, change).await.unwrap();
        };
        change(group, "clusterroles", ("", "system:kube-dns"), &|o| o["rules"] = json!([])).await;
        change(group, "clusterroles", ("", "system:monitoring"), &|o| {
            o["rules"] = json!([]);
            o["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        })
        .await;
        change(group, "clusterrolebindings", ("", "cluster-admin"), &|o| {
            o["subjects"] = json!([{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}]);
        })
        .await;
        change("", "endpoints", ("default", "kubernetes"), &|o| o["subsets"] = json!([])).await;
        let classes = objects.definition("scheduling.k8s.io", "priorityclasses").unwrap();
        let critical = objects.entry(&classes, "", "system-node-critical").await.unwrap();
        objects.swap(&classes, critical).remove().await.unwrap();
        let before = store.revision().await.unwrap();
        ensure(&objects, &cluster, Features::default()).await.unwrap();
        let expected = [
            "clusterrolebindings/cluster-admin",
            "clusterroles/system:kube-dns",
            "priorityclasses/system-node-critical",
            "services/endpoints/default/kubernetes",
        ];
        assert_eq!(written(&objects, before).await, expected);
        let read = async |plural: &str, name: &str| {
            objects.get(&objects.definition(group, plural).unwrap(), "", name).await.unwrap()
        };
        assert_eq!(read("clusterrolebindings", "cluster-admin").await["subjects"].as_array().unwrap().len(), 2);
        assert_eq!(read("clusterroles", "system:kube-dns").await["rules"][0]["resources"], json!(["endpoints"]));
    }

    /// An older cluster whose administrator has closed its discovery to strangers, and its admins' right to Secrets.
    #[tokio::test]
    async fn what_was_part_of_another_begins_as_that_one() {
        let objects = ObjectStore::new(Arc::new(Embedded::memory())).await.unwrap();
        let group = crate::auth::rbac::GROUP;
        let all = policy::objects(&objects.kinds.table(), Features::default());
        let default = |name: &str| {
            let is_it = |one: &&BootstrapObject| one.plural == "clusterrolebindings" && meta::name(&one.object) == name;
            all.iter().find(is_it).unwrap().object.clone()
        };
        let authenticated = json!([{"kind": "Group", "name": "system:authenticated", "apiGroup": group}]);
        let mut discovery = default("system:discovery");
        discovery["metadata"]["annotations"] = json!({AUTOUPDATE: "false", "mine": "yes"});
        discovery["subjects"] = authenticated.clone();
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        let admin = json!({"metadata": {"name": "admin", "annotations": {AUTOUPDATE: "false"}}, "rules": rules});
        let definition = |plural: &str| objects.definition(group, plural).unwrap();
        objects.create(&definition("clusterrolebindings"), discovery.clone()).await.unwrap();
        objects.create(&definition("clusterroles"), admin).await.unwrap();
        ensure(&objects, &Cluster::example(), Features::default()).await.unwrap();
        let read = async |plural: &str, name: &str| objects.get(&definition(plural), "", name).await.unwrap();
        let heir = read("clusterrolebindings", "system:public-info-viewer").await;
        assert_eq!(heir["subjects"], authenticated);
        assert_eq!(heir["metadata"]["annotations"], json!({AUTOUPDATE: "false", "mine": "yes"}));
        assert_eq!(heir["roleRef"]["name"], "system:public-info-viewer");
        assert_eq!(read("clusterrolebindings", "system:discovery").await["subjects"], authenticated);
        let heir = read("clusterroles", "system:aggregate-to-admin").await;
        assert_eq!((&heir["rules"], heir["metadata"].get("labels")), (&rules, None));
        // Without an old one there is nothing to inherit, and a role that collects others has no rules of its own.
        let count = async |name: &str| read("clusterroles", name).await["rules"].as_array().unwrap().len();
        assert!(count("system:aggregate-to-edit").await > 5);

        // Also later, when it was deleted.
        let bindings = definition("clusterrolebindings");
        let entry = objects.entry(&bindings, "", "system:public-info-viewer").await.unwrap();
        objects.swap(&bindings, entry).remove().await.unwrap();
        ensure(&objects, &Cluster::example(), Features::default()).await.unwrap();
        assert_eq!(read("clusterrolebindings", "system:public-info-viewer").await["subjects"], authenticated);
    }

    #[tokio::test]
    async fn group_versions_that_are_no_more_are_taken_away() {
        let objects = ObjectStore::new(Arc::new(Embedded::memory())).await.unwrap();
        let definition = objects.definition("apiregistration.k8s.io", "apiservices").unwrap();
        let service = |name: &str, labels: Value| {
            let (version, group) = name.split_once('.').unwrap();
            json!({"metadata": {"name": name, "labels": labels}, "spec": {"group": group, "version": version,
                "groupPriorityMinimum": 1, "versionPriority": 1}})
        };
        for (name, labels) in [
            ("v1.gone.io", json!({object::AUTOMANAGED: "onstart"})),
            ("v2.gone.io", json!({object::AUTOMANAGED: "true"})),
            ("v1.apps", json!({object::AUTOMANAGED: "onstart"})),
            ("v1.kept.io", json!({object::AUTOMANAGED: "false"})),
            ("v1.mine.io", json!({})),
        ] {
            objects.create(&definition, service(name, labels)).await.unwrap();
        }
        ensure(&objects, &Cluster::example(), Features::default()).await.unwrap();
        let all = objects.list(&definition, "").await.unwrap();
        let names: Vec<&str> =
            all.iter().map(meta::name).filter(|name| name.ends_with(".io") || *name == "v1.apps").collect();
        let foreign: Vec<&str> = names.into_iter().filter(|name| !name.contains("k8s.io")).collect();
        assert_eq!(foreign, ["v1.apps", "v1.kept.io", "v1.mine.io", "v2.gone.io"]);
    }
}
