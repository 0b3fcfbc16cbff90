//! The objects that every cluster has from its first moment. Missing ones are made and stale ones mended at start, all at
//! once, so that the store commits them as one group; what is right is not written.

pub mod flow_control;
pub mod policy;
pub mod system;

use std::sync::Arc;

use api::meta;
use api::status::StatusError;
use futures::future::{BoxFuture, try_join_all};
use serde_json::{Value, json};

use crate::auth::authn::Lookup;
use crate::auth::rbac::{cover, policy as roles};

pub use system::Cluster;

/// The annotation that lets the server mend a default role or binding; `"false"` keeps it as the administrator made it.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Writes objects for the server itself: without authentication, authorization or admission.
pub trait Objects: Lookup {
    fn create<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        object: Value,
    ) -> BoxFuture<'a, Result<Arc<Value>, StatusError>>;
    /// Fails with a conflict when `metadata.resourceVersion` is not the present one.
    fn update<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        object: Value,
    ) -> BoxFuture<'a, Result<Arc<Value>, StatusError>>;
}

/// An object that must exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    pub group: &'static str,
    pub plural: &'static str,
    pub object: Value,
    /// JSON pointers to the parts that are the server's: they are set again when they differ.
    pub owned: &'static [&'static str],
}

impl Wanted {
    pub fn new(group: &'static str, plural: &'static str, object: Value) -> Self {
        Wanted { group, plural, object, owned: &[] }
    }

    #[must_use]
    pub fn owning(mut self, owned: &'static [&'static str]) -> Self {
        self.owned = owned;
        self
    }
}

/// Makes and mends everything.
pub async fn ensure(objects: &dyn Objects, cluster: &Cluster) -> Result<(), StatusError> {
    let all = policy::objects().into_iter().chain(flow_control::objects()).chain(system::objects(cluster));
    let all: Vec<Wanted> = all.collect();
    try_join_all(all.iter().map(|wanted| ensure_one(objects, wanted))).await?;
    Ok(())
}

/// Another server may write the same object at the same time; the loser looks again.
const ATTEMPTS: usize = 5;

async fn ensure_one(objects: &dyn Objects, wanted: &Wanted) -> Result<(), StatusError> {
    let (namespace, name) = (meta::namespace(&wanted.object), meta::name(&wanted.object));
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let present = objects.get(wanted.group, wanted.plural, namespace, name).await?;
        let written = match present {
            None => objects.create(wanted.group, wanted.plural, wanted.object.clone()).await,
            Some(present) => match mended(&present, wanted) {
                None => return Ok(()),
                Some(object) => objects.update(wanted.group, wanted.plural, object).await,
            },
        };
        match written {
            Ok(_) => return Ok(()),
            Err(e) if e.code == 409 => last = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| StatusError::conflict(wanted.group, wanted.plural, name, "too many writers")))
}

/// The object with what is missing in it, or `None` when nothing is.
fn mended(present: &Value, wanted: &Wanted) -> Option<Value> {
    match wanted.plural {
        "roles" | "clusterroles" | "rolebindings" | "clusterrolebindings"
            if wanted.group == crate::auth::rbac::GROUP =>
        {
            mended_policy(present, wanted)
        }
        _ => {
            let mut object = present.clone();
            for pointer in wanted.owned {
                set(&mut object, pointer, wanted.object.pointer(pointer)?.clone());
            }
            (object != *present).then_some(object)
        }
    }
}

/// Default roles get back rules that they lost, default bindings subjects; more than the default is left alone.
fn mended_policy(present: &Value, wanted: &Wanted) -> Option<Value> {
    let annotation = present.get("metadata")?.get("annotations").and_then(|a| a.get(AUTOUPDATE));
    if annotation.and_then(Value::as_str) != Some("true") {
        return None;
    }
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
    use parking_lot::Mutex;

    use super::*;
    use crate::tests::fake::{self, key};

    #[derive(Default)]
    struct Fake {
        objects: fake::Objects,
        writes: Mutex<Vec<String>>,
    }

    impl Lookup for Fake {
        fn get<'a>(
            &'a self,
            group: &'a str,
            plural: &'a str,
            namespace: &'a str,
            name: &'a str,
        ) -> BoxFuture<'a, Result<Option<Arc<Value>>, StatusError>> {
            self.objects.get(group, plural, namespace, name)
        }
    }

    impl Objects for Fake {
        fn create<'a>(
            &'a self,
            _: &'a str,
            plural: &'a str,
            object: Value,
        ) -> BoxFuture<'a, Result<Arc<Value>, StatusError>> {
            let (key, object) = (key(plural, &object), Arc::new(object));
            self.writes.lock().push(key.clone());
            assert!(self.objects.0.lock().insert(key.clone(), object.clone()).is_none(), "{key} twice");
            Box::pin(std::future::ready(Ok(object)))
        }

        fn update<'a>(
            &'a self,
            _: &'a str,
            plural: &'a str,
            object: Value,
        ) -> BoxFuture<'a, Result<Arc<Value>, StatusError>> {
            let (key, object) = (key(plural, &object), Arc::new(object));
            self.writes.lock().push(key.clone());
            self.objects.0.lock().insert(key, object.clone());
            Box::pin(std::future::ready(Ok(object)))
        }
    }

    #[tokio::test]
    async fn a_second_start_writes_only_what_is_wrong() {
        let store = Fake::default();
        let cluster = Cluster::example();
        ensure(&store, &cluster).await.unwrap();
        for name in ["namespaces//kube-system", "services/default/kubernetes", "clusterroles//admin"] {
            assert!(store.objects.0.lock().contains_key(name), "{name}");
        }
        store.writes.lock().clear();
        ensure(&store, &cluster).await.unwrap();
        assert_eq!(*store.writes.lock(), [""; 0]);

        let change = |key: &str, f: &dyn Fn(&mut Value)| {
            let mut objects = store.objects.0.lock();
            let mut object = objects[key].as_ref().clone();
            f(&mut object);
            objects.insert(key.to_owned(), Arc::new(object));
        };
        change("clusterroles//system:kube-dns", &|o| o["rules"] = json!([]));
        change("clusterroles//system:monitoring", &|o| {
            o["rules"] = json!([]);
            o["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        });
        change("clusterrolebindings//cluster-admin", &|o| {
            o["subjects"] = json!([{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}]);
        });
        change("endpoints/default/kubernetes", &|o| o["subsets"] = json!([]));
        store.objects.0.lock().remove("priorityclasses//system-node-critical");
        ensure(&store, &cluster).await.unwrap();
        let mut writes = store.writes.lock().clone();
        writes.sort();
        let expected = [
            "clusterrolebindings//cluster-admin",
            "clusterroles//system:kube-dns",
            "endpoints/default/kubernetes",
            "priorityclasses//system-node-critical",
        ];
        assert_eq!(writes, expected);
        let objects = store.objects.0.lock();
        assert_eq!(objects["clusterrolebindings//cluster-admin"]["subjects"].as_array().unwrap().len(), 2);
        assert_eq!(objects["clusterroles//system:kube-dns"]["rules"][0]["resources"], json!(["endpoints"]));
    }
}
