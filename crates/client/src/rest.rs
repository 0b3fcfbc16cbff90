//! Writes whose kind is known only as data: one request in, the identity and revision of the result out.
//!
//! Controllers plan writes as values. Sending them needs no type, so this is compiled once for all kinds.

use http::{Method, Request};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client,
    client::Body,
    core::{Status, discovery::ApiResource, response::StatusDetails},
};
use serde::Deserialize;
use serde_json::Value;

use crate::caches::Kind;

/// A resource as URLs name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
}

impl Resource {
    pub fn of<K: Kind>() -> Self {
        let (dt, text) = ((), |c: std::borrow::Cow<'_, str>| c.into_owned());
        Resource {
            group: text(K::group(&dt)),
            version: text(K::version(&dt)),
            kind: text(K::kind(&dt)),
            plural: text(K::plural(&dt)),
        }
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The URL path of the collection (empty `name`) or of an object. An empty namespace leaves that part out.
    pub fn path(&self, namespace: &str, name: &str, subresource: &str) -> String {
        let mut path = String::from(if self.group.is_empty() { "/api/" } else { "/apis/" });
        path.push_str(&self.api_version());
        if !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        for part in [self.plural.as_str(), name, subresource].into_iter().filter(|p| !p.is_empty()) {
            path.push('/');
            path.push_str(part);
        }
        path
    }

    pub fn to_api_resource(&self) -> ApiResource {
        ApiResource {
            group: self.group.clone(),
            version: self.version.clone(),
            api_version: self.api_version(),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
        }
    }
}

/// What to do to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    Create(Value),
    Update(Value),
    MergePatch(Value),
    JsonPatch(Value),
    StrategicPatch(Value),
    Delete(DeleteOptions),
    DeleteCollection(DeleteOptions),
}

/// The part of `metav1.DeleteOptions` that controllers use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeleteOptions {
    /// Only this very object, not a namesake.
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub grace_seconds: Option<i64>,
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<&'static str>,
}

impl DeleteOptions {
    fn body(&self) -> Value {
        let mut body = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if self.uid.is_some() || self.resource_version.is_some() {
            let preconditions = [("uid", &self.uid), ("resourceVersion", &self.resource_version)];
            body["preconditions"] = preconditions
                .into_iter()
                .filter_map(|(k, v)| Some((k.to_owned(), Value::from(v.clone()?))))
                .collect::<Value>();
        }
        if let Some(grace) = self.grace_seconds {
            body["gracePeriodSeconds"] = grace.into();
        }
        if let Some(propagation) = self.propagation {
            body["propagationPolicy"] = propagation.into();
        }
        body
    }
}

/// What a write left behind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    pub name: String,
    pub uid: String,
    /// 0 when the server answered with a `Status` that has none (an object that is gone at once).
    pub revision: u64,
}

/// The failures that a `kube::Error` stands for, as `reason` of the server or a word for what went wrong on the way.
pub fn reason(error: &kube::Error) -> &str {
    match error {
        kube::Error::Api(status) => &status.reason,
        _ => "",
    }
}

/// Whether the server refused because the namespace is being deleted: trying again cannot help.
pub fn is_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.details.iter().flat_map(|d| &d.causes).any(|cause| cause.reason == "NamespaceTerminating")
}

/// The server's message, or the error's own words.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Sends one write.
pub async fn write(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
    subresource: &str,
    verb: &Verb,
) -> Result<Written, kube::Error> {
    let (method, content_type, body) = match verb {
        Verb::Create(body) => (Method::POST, "application/json", serde_json::to_vec(body)),
        Verb::Update(body) => (Method::PUT, "application/json", serde_json::to_vec(body)),
        Verb::MergePatch(body) => (Method::PATCH, "application/merge-patch+json", serde_json::to_vec(body)),
        Verb::JsonPatch(body) => (Method::PATCH, "application/json-patch+json", serde_json::to_vec(body)),
        Verb::StrategicPatch(body) => {
            (Method::PATCH, "application/strategic-merge-patch+json", serde_json::to_vec(body))
        }
        Verb::Delete(options) | Verb::DeleteCollection(options) => {
            (Method::DELETE, "application/json", serde_json::to_vec(&options.body()))
        }
    };
    let body = body.map_err(kube::Error::SerdeError)?;
    // A new object's name is in its body; the URL names the collection, or the parent of a subresource.
    let in_url = if matches!(verb, Verb::Create(_)) && subresource.is_empty() { "" } else { name };
    send(client, method, &resource.path(namespace, in_url, subresource), content_type, body).await
}

async fn send(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: Vec<u8>,
) -> Result<Written, kube::Error> {
    #[derive(Deserialize, Default)]
    struct Answer {
        #[serde(default)]
        metadata: ObjectMeta,
        details: Option<StatusDetails>,
    }
    let bytes = request(client, method, path, content_type, body).await?;
    let answer: Answer = serde_json::from_slice(&bytes).unwrap_or_default();
    let (name, uid) = answer.details.map(|d| (d.name, d.uid)).unwrap_or_default();
    Ok(Written {
        name: answer.metadata.name.unwrap_or(name),
        uid: answer.metadata.uid.unwrap_or(uid),
        revision: answer.metadata.resource_version.and_then(|v| v.parse().ok()).unwrap_or(0),
    })
}

/// One request and its whole answer; an answer that is no success becomes the error that its `Status` says.
pub async fn request(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: Vec<u8>,
) -> Result<bytes::Bytes, kube::Error> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::CONTENT_TYPE, content_type)
        .body(Body::from(body))
        .map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    let code = response.status();
    let bytes = response.into_body().collect_bytes().await?;
    if code.is_success() {
        return Ok(bytes);
    }
    let status = serde_json::from_slice::<Status>(&bytes).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&bytes);
        Status::failure(text.trim(), "Failed to parse error data")
    });
    Err(kube::Error::Api(Box::new(status.with_code(code.as_u16()))))
}

/// Reads one object as plain JSON.
pub async fn get(client: &Client, resource: &Resource, namespace: &str, name: &str) -> Result<Value, kube::Error> {
    let path = resource.path(namespace, name, "");
    let bytes = request(client, Method::GET, &path, "application/json", Vec::new()).await?;
    serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};

    #[test]
    fn paths() {
        let deployment = Resource::of::<Deployment>();
        assert_eq!(deployment.path("a", "b", "status"), "/apis/apps/v1/namespaces/a/deployments/b/status");
        assert_eq!(deployment.path("", "", ""), "/apis/apps/v1/deployments");
        assert_eq!(Resource::of::<Node>().path("", "n", ""), "/api/v1/nodes/n");
    }

    #[test]
    fn delete_options_name_only_what_is_set() {
        let options = DeleteOptions { uid: Some("u".into()), grace_seconds: Some(0), ..Default::default() };
        let expected = serde_json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "u"}, "gracePeriodSeconds": 0
        });
        assert_eq!(options.body(), expected);
    }
}
