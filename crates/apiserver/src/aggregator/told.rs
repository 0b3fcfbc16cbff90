//! The documents of another API server about itself: its resources for discovery, and its OpenAPI documents. Each is asked
//! for now and then and kept, so that whoever asks this server does not wait for others.
//! Upstream counterpart: kube-aggregator/pkg/apiserver/handler_discovery.go, pkg/controllers/{openapi,openapiv3}.

use std::sync::Arc;

use api::{Value, rules::url, status::StatusError};
use clock::Duration;
use dialer::Endpoint;
use http::{StatusCode, header};
use json::{Map, json};
use sha2::{Digest, Sha256};

use super::{
    Aggregator,
    backend::{self, Page},
    openapi,
    registrations::Registration,
};
use crate::{auth::User, outbound::dialer::Dialer, storage::object_store::ObjectStore};

/// All is asked for again after this time.
const PERIOD: Duration = Duration::from_secs(60);
/// A longer document counts as none.
const DISCOVERY_BYTES: usize = 4 << 20;
const OPENAPI_BYTES: usize = 8 << 20;

const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// The documents of one group version.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    /// As `resources` of its version in `APIGroupDiscoveryList`; `None` when it was never told.
    pub resources: Option<Value>,
    /// Whether the last question was answered.
    pub fresh: bool,
    /// Stands for the content of its OpenAPI document of version 3; `None` where it has none.
    pub v3: Option<String>,
    /// The entity tag of its OpenAPI document of version 2, and its part of it.
    pub v2: Option<(String, Arc<Value>)>,
}

/// The entry of a group version in discovery.
pub fn entry(registration: &Registration, told: Option<&Told>) -> Value {
    let mut entry = json!({"version": registration.version});
    if let Some(resources) = told.and_then(|told| told.resources.as_ref()) {
        entry["resources"] = resources.clone();
    }
    entry["freshness"] = json!(if told.is_some_and(|told| told.fresh) { "Current" } else { "Stale" });
    entry
}

/// One server, while it is asked.
struct Asked<'a> {
    dialer: &'a Dialer,
    to: Endpoint,
}

impl Asked<'_> {
    async fn page(&self, path: &str, accept: &str, user: &User, limit: usize) -> Result<Page, StatusError> {
        let answer = backend::get(self.dialer, &self.to, path, user, &[(header::ACCEPT, accept)]).await?;
        backend::read(answer, limit).await
    }

    async fn json(&self, path: &str, user: &User, limit: usize) -> Option<Value> {
        let page = self.page(path, "application/json", user, limit).await.ok()?;
        (page.status == StatusCode::OK).then(|| serde_json::from_slice(&page.bytes).ok()).flatten()
    }

    /// The resources of a group version, from the one document of all groups or, where there is none, from its own.
    async fn resources(&self, registration: &Registration) -> Result<Value, String> {
        let asker = User::new("system:kube-aggregator", ["system:masters"]);
        let page = self.page("/apis", DISCOVERY, &asker, DISCOVERY_BYTES).await.map_err(|error| error.message)?;
        if page.status == StatusCode::SERVICE_UNAVAILABLE {
            return Err("the server is not available".to_owned());
        }
        if page.status == StatusCode::OK && page.media_type.contains("as=APIGroupDiscoveryList") {
            let list: Value = serde_json::from_slice(&page.bytes).map_err(|error| error.to_string())?;
            return Ok(of_list(&list, &registration.group, &registration.version));
        }
        let asker = User::new("system:kube-aggregator", [""; 0]);
        let list = self.json(&registration.path(), &asker, DISCOVERY_BYTES).await;
        let list = list.ok_or("the server told no resources")?;
        Ok(of_old_list(&list, &registration.group, &registration.version))
    }

    /// The mark of the document that the server lists for the group version.
    async fn v3(&self, registration: &Registration) -> Option<String> {
        let path = format!("apis/{}/{}", registration.group, registration.version);
        let index = self.json("/openapi/v3", &User::new("system:aggregator", [""; 0]), DISCOVERY_BYTES).await?;
        let document = index["paths"][&path]["serverRelativeURL"].as_str()?;
        // The server's own hash: by another one it would lead to its document as it is now, which is not followed.
        let own = url::query_value(url::query(document), "hash")
            .filter(|hash| hash.bytes().all(|b| b.is_ascii_alphanumeric()));
        Some(own.unwrap_or_else(|| base16ct::upper::encode_string(&Sha256::digest(document))))
    }

    /// The part that is known stays as long as the server says that its document is the same.
    async fn v2(
        &self,
        registration: &Registration,
        known: Option<(String, Arc<Value>)>,
    ) -> Option<(String, Arc<Value>)> {
        let asker = User::new("system:aggregator", [""; 0]);
        let tag = known.as_ref().map_or("", |(tag, _)| tag);
        let headers = [(header::ACCEPT, "application/json"), (header::IF_NONE_MATCH, tag)];
        let headers = if tag.is_empty() { &headers[..1] } else { &headers[..] };
        let answer = backend::get(self.dialer, &self.to, "/openapi/v2", &asker, headers).await.ok()?;
        let page = backend::read(answer, OPENAPI_BYTES).await.ok()?;
        match page.status {
            StatusCode::NOT_MODIFIED => known,
            StatusCode::OK => {
                let document = serde_json::from_slice(&page.bytes).ok()?;
                Some((page.etag, Arc::new(openapi::part(document, &registration.path())?)))
            }
            _ => None,
        }
    }
}

/// The resources that an `APIGroupDiscoveryList` has for a group version: none, if it is not among them.
fn of_list(list: &Value, group: &str, version: &str) -> Value {
    let items = |value: &Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
    let group = items(list, "items").into_iter().find(|item| item["metadata"]["name"] == group);
    let found = group.and_then(|group| items(&group, "versions").into_iter().find(|v| v["version"] == version));
    let mut resources = found.map(|version| items(&version, "resources")).unwrap_or_default();
    resources.retain(Value::is_object);
    for resource in &mut resources {
        name_kind(resource);
        let below = resource.get_mut("subresources").and_then(Value::as_array_mut);
        below.into_iter().flatten().for_each(name_kind);
    }
    Value::Array(resources)
}

/// Some clients break where a resource has no kind.
fn name_kind(resource: &mut Value) {
    if let Some(fields) = resource.as_object_mut() {
        let kind = fields.entry("responseKind").or_insert(Value::Null);
        if !kind.is_object() {
            *kind = json!({"group": "", "version": "", "kind": ""});
        }
    }
}

/// The resources of an `APIResourceList`, in which subresources stand beside their resources.
fn of_old_list(list: &Value, group: &str, version: &str) -> Value {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let kind = |resource: &Value| {
        let or =
            |field: &str, usual: &str| Some(text(resource, field)).filter(|t| !t.is_empty()).unwrap_or(usual.into());
        json!({"group": or("group", group), "version": or("version", version), "kind": text(resource, "kind")})
    };
    let given = list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut resources: Vec<Value> = Vec::new();
    for resource in given.iter().filter(|r| !text(r, "name").contains('/')) {
        let scope = if resource["namespaced"] == true { "Namespaced" } else { "Cluster" };
        let mut shown = Map::from_iter([
            ("resource".to_owned(), json!(text(resource, "name"))),
            ("responseKind".to_owned(), kind(resource)),
            ("scope".to_owned(), json!(scope)),
            ("singularResource".to_owned(), json!(text(resource, "singularName"))),
        ]);
        for field in ["verbs", "shortNames", "categories"] {
            shown.extend(resource.get(field).filter(|v| v.is_array()).map(|v| (field.to_owned(), v.clone())));
        }
        let prefix = format!("{}/", text(resource, "name"));
        let below = given.iter().filter_map(|r| Some((r["name"].as_str()?.strip_prefix(&prefix)?, r)));
        let below: Vec<Value> =
            below.map(|(name, r)| json!({"subresource": name, "responseKind": kind(r), "verbs": r["verbs"]})).collect();
        if !below.is_empty() {
            shown.insert("subresources", json!(below));
        }
        resources.push(Value::Object(shown));
    }
    Value::Array(resources)
}

/// Asks for everything once. A document that was told before stays where an answer fails to come.
async fn ask(aggregator: &Aggregator, objects: &ObjectStore, registration: &Registration) -> Told {
    let mut told = aggregator.told(&registration.name).unwrap_or_default();
    told.fresh = false;
    let Some(to) = &registration.backend else { return told };
    let Ok(dialer) = aggregator.dialer(&to.trust) else { return told };
    let Ok(endpoint) = aggregator.endpoint(objects, to).await else { return told };
    let asked = Asked { dialer: &dialer, to: endpoint };
    match asked.resources(registration).await {
        Ok(resources) => (told.resources, told.fresh) = (Some(resources), true),
        Err(why) => {
            tracing::debug!(name = registration.name, why, "an API server does not tell its resources");
            return told;
        }
    }
    let v3 = asked.v3(registration).await;
    // Clients that read version 3 do not read version 2; the merged document of everything is for those that have no other.
    told.v2 = asked.v2(registration, told.v2.take()).await;
    told.v3 = v3;
    told
}

/// Keeps what is known of a group version up to date, for as long as another server serves it.
pub async fn keep(aggregator: &Aggregator, objects: &ObjectStore, name: &str) {
    loop {
        let table = aggregator.table();
        let Some(registration) = table.passed_on().find(|r| r.name == name) else { return };
        let wake = aggregator.wakes(name);
        let told = ask(aggregator, objects, registration).await;
        aggregator.learn(name, told);
        let _ = clock::timeout(PERIOD, wake.ask.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_group_version_is_believed() {
        let list = json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [{"resource": "lies"}]}]},
            {"metadata": {"name": "a.io"}, "versions": [{"version": "v2"}, {"version": "v1", "resources": [
                {"resource": "things", "responseKind": {"kind": "Thing"}, "subresources": [{"subresource": "status"}]}, 7]}]},
        ]});
        let none = json!({"group": "", "version": "", "kind": ""});
        let expected = json!([{"resource": "things", "responseKind": {"kind": "Thing"},
            "subresources": [{"subresource": "status", "responseKind": none}]}]);
        assert_eq!(of_list(&list, "a.io", "v1"), expected);
        assert_eq!(of_list(&list, "a.io", "v3"), json!([]));
        assert_eq!(of_list(&json!([1]), "a.io", "v1"), json!([]));
    }

    #[test]
    fn an_old_list_says_the_same() {
        let list = json!({"resources": [
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get"], "shortNames": ["t"]},
            {"name": "things/scale", "kind": "Scale", "group": "autoscaling", "version": "v1", "verbs": ["get", "update"]},
        ]});
        let expected = json!([{
            "resource": "things", "singularResource": "thing", "scope": "Namespaced", "verbs": ["get"], "shortNames": ["t"],
            "responseKind": {"group": "a.io", "version": "v1", "kind": "Thing"},
            "subresources": [{"subresource": "scale", "verbs": ["get", "update"],
                "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}}],
        }]);
        assert_eq!(of_old_list(&list, "a.io", "v1"), expected);
        assert_eq!(of_old_list(&json!({}), "a.io", "v1"), json!([]));
    }
}
