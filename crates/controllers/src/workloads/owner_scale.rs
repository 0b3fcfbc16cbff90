//! How many Pods the controllers of some Pods want together: what the caches say of upstream's workloads, and what the server says
//! of whatever else has a scale.
//! Upstream counterpart: the finders of pkg/controller/disruption.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::kinds::built_in;
use client::{
    Caches, Client, Key,
    rest::{self, Form, Resource},
};
use controller::controller_of;
use json::Value;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        core::v1::{Pod, ReplicationController},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use crate::discovery;

/// The scales of at most this many controllers are asked for: each is a request, and users name the controllers of their Pods.
const MOST: usize = 200;

#[derive(Default)]
pub struct Scales {
    /// The sizes of those that decide, by their UIDs.
    known: BTreeMap<String, i32>,
    /// The controllers that the caches do not have, each with the name of its first Pod.
    unknown: Vec<(OwnerReference, String)>,
}

impl Scales {
    /// The scales that the caches know. Pods without a controller count for nothing.
    pub fn cached(pods: &[Arc<Pod>], caches: &Caches) -> Self {
        let (mut scales, mut seen) = (Scales::default(), BTreeSet::new());
        for pod in pods {
            let Some(owner) = controller_of(&**pod).filter(|owner| seen.insert(owner.uid.clone())) else { continue };
            match cached(owner, pod.metadata.namespace.as_deref().unwrap_or(""), caches) {
                Some((uid, replicas)) => _ = scales.known.insert(uid, replicas),
                None => scales.unknown.push((owner.clone(), pod.metadata.name.clone().unwrap_or_default())),
            }
        }
        scales
    }

    /// The sum of all, as far as the caches have them.
    pub fn total(&self) -> Result<i32, String> {
        match self.unknown.first() {
            Some((_, pod)) => Err(format!("found no controllers for pod \"{pod}\"")),
            None => Ok(self.known.values().fold(0, |sum, replicas| sum.saturating_add(*replicas))),
        }
    }

    /// The sum of all, with what the server says of those that the caches do not have.
    pub async fn ask(&mut self, namespace: &str, client: &Client) -> Result<i32, String> {
        if self.unknown.len() > MOST {
            return Err(format!("more than {MOST} controllers of pods whose scale has to be asked for"));
        }
        let mut resources = BTreeMap::new();
        while let Some((owner, _)) = self.unknown.first() {
            let kind = (owner.api_version.clone(), owner.kind.clone());
            if !resources.contains_key(&kind) {
                resources.insert(kind.clone(), resource(owner, client).await?);
            }
            let Some(replicas) = asked(owner, &resources[&kind], namespace, client).await? else { break };
            let (owner, _) = self.unknown.remove(0);
            self.known.insert(owner.uid, replicas);
        }
        self.total()
    }
}

/// The UID and the size of what controls a Pod: of a ReplicaSet's Deployment, where it has one.
fn cached(owner: &OwnerReference, namespace: &str, caches: &Caches) -> Option<(String, i32)> {
    let key = Key::new(namespace, &owner.name);
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let (uid, replicas) = match (group, owner.kind.as_str()) {
        ("apps" | "extensions", "ReplicaSet") => {
            let set =
                caches.of::<ReplicaSet>().get(&key).filter(|set| set.metadata.uid.as_ref() == Some(&owner.uid))?;
            let parent = controller_of(&*set).filter(|parent| parent.kind == "Deployment");
            let deployment =
                parent.and_then(|parent| caches.of::<Deployment>().get(&Key::new(namespace, &parent.name)));
            if let Some(deployment) = deployment.filter(|d| d.metadata.uid.as_ref() == parent.map(|p| &p.uid)) {
                let replicas = deployment.spec.as_ref().and_then(|s| s.replicas);
                return Some((deployment.metadata.uid.clone()?, replicas.unwrap_or(1)));
            }
            (set.metadata.uid.clone(), set.spec.as_ref().and_then(|s| s.replicas))
        }
        ("apps", "StatefulSet") => {
            let set = caches.of::<StatefulSet>().get(&key)?;
            (set.metadata.uid.clone(), set.spec.as_ref().and_then(|s| s.replicas))
        }
        ("", "ReplicationController") => {
            let set = caches.of::<ReplicationController>().get(&key)?;
            (set.metadata.uid.clone(), set.spec.as_ref().and_then(|s| s.replicas))
        }
        _ => return None,
    };
    uid.filter(|uid| *uid == owner.uid).map(|uid| (uid, replicas.unwrap_or(1)))
}

/// The resource of the owner's kind. Of built-in kinds the server need not be asked: Jobs and DaemonSets control most of the
/// Pods that come here.
async fn resource(owner: &OwnerReference, client: &Client) -> Result<Resource, String> {
    let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    if let Some(kind) = built_in().by_kind(group, version, &owner.kind) {
        let (plural, kind_name) = (kind.plural.clone(), kind.kind.clone());
        let resource = Resource { group: group.to_owned(), version: version.to_owned(), kind: kind_name, plural };
        return if kind.scale.is_some() { Ok(resource) } else { Err(has_none(&resource)) };
    }
    let found = discovery::find(client, group, &owner.kind).await?;
    found.ok_or_else(|| format!("no matches for kind {:?} in version {:?}", owner.kind, owner.api_version))
}

fn has_none(resource: &Resource) -> String {
    let dot = if resource.group.is_empty() { "" } else { "." };
    format!("{}{dot}{} does not implement the scale subresource", resource.plural, resource.group)
}

/// The size that the owner's scale tells; `None` where there is no such owner.
async fn asked(
    owner: &OwnerReference,
    resource: &Resource,
    namespace: &str,
    client: &Client,
) -> Result<Option<i32>, String> {
    let words = |error: client::Error| rest::message(&error);
    let path = resource.path(namespace, discovery::segment(&owner.name)?, "scale");
    let Some(text) = rest::found(rest::read(client, &path, Form::Whole).await).map_err(words)? else {
        // Either the owner is gone, or its kind has no scale.
        if discovery::has_scale(client, resource).await.map_err(words)? {
            return Ok(None);
        }
        return Err(has_none(resource));
    };
    let scale: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let replicas = scale["spec"]["replicas"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    Ok((scale["metadata"]["uid"].as_str() == Some(&owner.uid)).then_some(replicas))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    /// Answers each path with a document; of all else there is none.
    fn server(pages: &'static [(&'static str, &'static str)]) -> Client {
        client::in_process(tower::service_fn(move |request: http::Request<client::Body>| {
            let asked = request.uri().to_string();
            let found = pages.iter().find(|(path, _)| asked.trim_end_matches('?') == *path).map(|(_, page)| *page);
            let missing = r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404}"#;
            let response = http::Response::builder().status(if found.is_some() { 200 } else { 404 });
            let response = response.header("content-type", "application/json");
            let body = http_body_util::Full::new(bytes::Bytes::from(found.unwrap_or(missing)));
            std::future::ready(Ok::<_, std::convert::Infallible>(response.body(body).unwrap()))
        }))
    }

    #[tokio::test]
    async fn whatever_has_a_scale_is_asked_for_it() {
        let client = server(&[
            (
                "/apis",
                r#"{"groups": [{"name": "a.io", "versions": [{"groupVersion": "a.io/v1", "version": "v1"}]},
                    {"name": "c.io", "versions": [{"groupVersion": "c.io/v1", "version": "v1"}]}]}"#,
            ),
            (
                "/apis/a.io/v1",
                r#"{"groupVersion": "a.io/v1", "resources": [
                    {"name": "things", "singularName": "", "namespaced": true, "kind": "Thing", "verbs": []},
                    {"name": "things/scale", "singularName": "", "namespaced": true, "kind": "Scale", "verbs": []}]}"#,
            ),
            (
                "/apis/c.io/v1",
                r#"{"groupVersion": "c.io/v1", "resources": [
                    {"name": "others", "singularName": "", "namespaced": true, "kind": "Other", "verbs": []}]}"#,
            ),
            (
                "/apis/apps/v1",
                r#"{"groupVersion": "apps/v1", "resources": [
                    {"name": "replicasets/scale", "singularName": "", "namespaced": true, "kind": "Scale", "verbs": []}]}"#,
            ),
            (
                "/apis/a.io/v1/namespaces/d/things/t/scale",
                r#"{"metadata": {"name": "t", "uid": "u"}, "spec": {"replicas": 7}}"#,
            ),
        ]);
        // The controllers of Pods as `apiVersion kind name uid`, and what they want together.
        let check = async |owners: &[&str], expected: Result<i32, &str>| {
            let pod = |(at, owner): (usize, &&str)| -> Arc<Pod> {
                let words: Vec<&str> = owner.split(' ').collect();
                let [version, kind, name, uid] = words[..] else { panic!("{owner}") };
                let owner =
                    json!([{"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true}]);
                let metadata = json!({"name": format!("p{at}"), "namespace": "d", "ownerReferences": owner});
                Arc::new(json::from_value(json!({"metadata": metadata})).unwrap())
            };
            let pods: Vec<Arc<Pod>> = owners.iter().enumerate().map(pod).collect();
            let mut scales = Scales::cached(&pods, &Caches::new(client.clone()));
            assert_eq!(scales.ask("d", &client).await, expected.map_err(str::to_owned), "{owners:?}");
        };
        check(&[], Ok(0)).await;
        check(&["a.io/v1 Thing t u", "a.io/v1 Thing t u"], Ok(7)).await;
        check(&["a.io/v1 Thing t other"], Err("found no controllers for pod \"p0\"")).await;
        check(&["a.io/v1 Thing t u", "a.io/v1 Thing gone g"], Err("found no controllers for pod \"p1\"")).await;
        check(&["c.io/v1 Other t u"], Err("others.c.io does not implement the scale subresource")).await;
        check(&["batch/v1 Job j u"], Err("jobs.batch does not implement the scale subresource")).await;
        check(&["v1 Node n u"], Err("nodes does not implement the scale subresource")).await;
        check(&["apps/v1 ReplicaSet gone u"], Err("found no controllers for pod \"p0\"")).await;
        check(&["b.io/v1 Thing t u"], Err("no matches for kind \"Thing\" in version \"b.io/v1\"")).await;
        let away = "\"../../e/things/t\" is not found: no path leads to it";
        check(&["a.io/v1 Thing ../../e/things/t u"], Err(away)).await;
        // A workload of another group is none of upstream's.
        check(&["a.io/v1 StatefulSet t u"], Err("no matches for kind \"StatefulSet\" in version \"a.io/v1\"")).await;
        let many: Vec<String> = (0..=MOST).map(|at| format!("a.io/v1 Thing t{at} u{at}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check(&many, Err("more than 200 controllers of pods whose scale has to be asked for")).await;
    }
}
