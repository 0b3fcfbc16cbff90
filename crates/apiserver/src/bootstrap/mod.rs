//! The objects that every cluster has from its first moment. Missing ones are made and stale ones mended at start, all at
//! once, so that the store commits them as one group; what is right is not written.

pub mod flow_control;
pub mod policy;
pub mod system;

use api::{kind::Target, meta, status::StatusError};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::{
    auth::rbac::{cover, policy as roles},
    storage::object_store::ObjectStore,
};

pub use system::Cluster;

/// The annotation that lets the server mend a default role or binding; `"false"` keeps it as the administrator made it.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// An object that must exist.
#[derive(Debug, Clone, PartialEq)]
pub struct BootstrapObject {
    pub group: &'static str,
    pub plural: &'static str,
    pub object: Value,
    /// JSON pointers to the parts that are the server's: they are set again when they differ.
    pub owned: &'static [&'static str],
}

impl BootstrapObject {
    pub fn new(group: &'static str, plural: &'static str, object: Value) -> Self {
        BootstrapObject { group, plural, object, owned: &[] }
    }

    #[must_use]
    pub fn owning(mut self, owned: &'static [&'static str]) -> Self {
        self.owned = owned;
        self
    }
}

/// Makes and mends everything.
pub async fn ensure(objects: &ObjectStore, cluster: &Cluster) -> Result<(), StatusError> {
    let all = policy::objects().into_iter().chain(flow_control::objects()).chain(system::objects(cluster));
    let all: Vec<BootstrapObject> = all.collect();
    try_join_all(all.iter().map(|wanted| ensure_one(objects, wanted))).await?;
    Ok(())
}

async fn ensure_one(objects: &ObjectStore, wanted: &BootstrapObject) -> Result<(), StatusError> {
    let definition = objects.definition(wanted.group, wanted.plural)?;
    let of = (meta::namespace(&wanted.object), meta::name(&wanted.object));
    let mend = |present: &mut Value| Ok(mended(present, wanted).map(|object| *present = object).is_some());
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

/// The object with what is missing in it, or `None` when nothing is.
fn mended(present: &Value, wanted: &BootstrapObject) -> Option<Value> {
    match (autoupdates(&wanted.object), autoupdates(present)) {
        (true, true) => mended_policy(present, wanted),
        (true, false) => None,
        (false, _) => {
            let mut object = present.clone();
            for pointer in wanted.owned {
                set(&mut object, pointer, wanted.object.pointer(pointer)?.clone());
            }
            (object != *present).then_some(object)
        }
    }
}

/// Whether an object is a default role or binding that the server may mend.
fn autoupdates(object: &Value) -> bool {
    object["metadata"]["annotations"][AUTOUPDATE] == "true"
}

/// Default roles get back rules that they lost, default bindings subjects; more than the default is left alone.
fn mended_policy(present: &Value, wanted: &BootstrapObject) -> Option<Value> {
    let mut object = present.clone();
    if wanted.object.get("roleRef").is_some() {
        let mut subjects = present.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
        for subject in wanted.object.get("subjects").and_then(Value::as_array).into_iter().flatten() {
            if !subjects.contains(subject) {
                subjects.push(subject.clone());
            }
        }
        if !subjects.is_empty() {
            object["subjects"] = json!(subjects);
        }
    } else if wanted.object.get("aggregationRule").is_some() {
        // The rules of these are the aggregation controller's.
        object["aggregationRule"] = wanted.object["aggregationRule"].clone();
    } else {
        let mut rules = roles::rules(present);
        rules.extend(cover::uncovered(&rules, &roles::rules(&wanted.object)));
        let same = rules.len() == present.get("rules").and_then(Value::as_array).map_or(0, Vec::len);
        if !same {
            object["rules"] = json!(rules);
        }
    }
    for (key, value) in wanted.object["metadata"]["labels"].as_object().into_iter().flatten() {
        object["metadata"]["labels"][key] = value.clone();
    }
    (object != *present).then_some(object)
}

/// Sets what a pointer of object keys names, making objects on the way.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    for key in pointer.split('/').skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[key];
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::StreamExt;
    use store::{Store, embedded::Embedded};

    use super::*;

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
        ensure(&objects, &cluster).await.unwrap();
        for (group, plural, namespace, name) in [
            ("", "namespaces", "", "kube-system"),
            ("", "services", "default", "kubernetes"),
            (group, "clusterroles", "", "admin"),
        ] {
            let definition = objects.definition(group, plural).unwrap();
            objects.get(&definition, namespace, name).await.unwrap();
        }
        let first = store.revision().await.unwrap();
        ensure(&objects, &cluster).await.unwrap();
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
        ensure(&objects, &cluster).await.unwrap();
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
}
