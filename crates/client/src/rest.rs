//! Requests whose kind is known only as data. Sending and receiving needs no type, so this is compiled once for all
//! kinds: controllers plan writes as values, and [`Api`](crate::Api) and the caches add types to what comes back.

use api::object::{Kind, MetadataOnly, Object as _};
use bytes::Bytes;
use clock::Duration;
use http::{Method, Request, Response, StatusCode, header};
use json::Value;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, StatusDetails};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    Client,
    body::Body,
    error::{Error, Status},
};

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
        Resource {
            group: K::GROUP.to_owned(),
            version: K::VERSION.to_owned(),
            kind: K::KIND.to_owned(),
            plural: K::URL_PATH_SEGMENT.to_owned(),
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
}

/// An operation on an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    Create(Value),
    Update(Value),
    MergePatch(Value),
    JsonPatch(Value),
    StrategicPatch(Value),
    /// Server-side apply in the name of a manager, over the objections of others.
    Apply(Value, &'static str),
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
        let mut body = json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
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

/// The identity and revision of an object after a write.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    pub name: String,
    pub uid: String,
    /// 0 when the server answered with a `Status` that has none (an object that is gone at once).
    pub revision: u64,
}

/// The code that the server answered with; 0 for what went wrong on the way.
pub fn code(error: &Error) -> u16 {
    match error {
        Error::Api(status) => status.code,
        _ => 0,
    }
}

/// The reason that the server gave; empty for what went wrong on the way.
pub fn reason(error: &Error) -> &str {
    match error {
        Error::Api(status) => &status.reason,
        _ => "",
    }
}

/// Whether the server refused because the namespace is being deleted: trying again cannot help.
pub fn is_namespace_terminating(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.is_caused_by("NamespaceTerminating"))
}

/// That there is no such object is an answer, not a failure.
pub fn found<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(object) => Ok(Some(object)),
        Err(Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The server's message, or the error's own words.
pub fn message(error: &Error) -> String {
    match error {
        Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

impl Verb {
    fn method(&self) -> Method {
        match self {
            Verb::Create(_) => Method::POST,
            Verb::Update(_) => Method::PUT,
            Verb::MergePatch(_) | Verb::JsonPatch(_) | Verb::StrategicPatch(_) | Verb::Apply(..) => Method::PATCH,
            Verb::Delete(_) | Verb::DeleteCollection(_) => Method::DELETE,
        }
    }

    fn content_type(&self) -> &'static str {
        match self {
            Verb::MergePatch(_) => "application/merge-patch+json",
            Verb::JsonPatch(_) => "application/json-patch+json",
            Verb::StrategicPatch(_) => "application/strategic-merge-patch+json",
            Verb::Apply(..) => "application/apply-patch+yaml",
            _ => JSON,
        }
    }

    fn body(&self) -> Result<Vec<u8>, serde_json::Error> {
        match self {
            Verb::Delete(options) | Verb::DeleteCollection(options) => serde_json::to_vec(&options.body()),
            Verb::Create(body) | Verb::Update(body) | Verb::Apply(body, _) => serde_json::to_vec(body),
            Verb::MergePatch(body) | Verb::JsonPatch(body) | Verb::StrategicPatch(body) => serde_json::to_vec(body),
        }
    }
}

/// Sends one write and returns the server's answer.
pub async fn send(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
    subresource: &str,
    verb: &Verb,
) -> Result<Bytes, Error> {
    // A new object's name is in its body; the URL names the collection, or the parent of a subresource.
    let in_url = if matches!(verb, Verb::Create(_)) && subresource.is_empty() { "" } else { name };
    let mut path = resource.path(namespace, in_url, subresource);
    if let Verb::Apply(_, manager) = verb {
        path = with_query(path, &[("fieldManager", *manager), ("force", "true")]);
    }
    let body = verb.body().map_err(Error::Decode)?;
    let response = open(client, verb.method(), &path, JSON, verb.content_type(), body).await?;
    response.into_body().collect_bytes().await
}

/// Posts to a path that names no object, and returns the server's answer.
pub async fn post(client: &Client, path: &str) -> Result<Bytes, Error> {
    open(client, Method::POST, path, JSON, JSON, Vec::new()).await?.into_body().collect_bytes().await
}

/// Sends one write; only the identity and revision of the result come back.
pub async fn write(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
    subresource: &str,
    verb: &Verb,
) -> Result<Written, Error> {
    #[derive(Deserialize, Default)]
    struct Answer {
        #[serde(default)]
        metadata: ObjectMeta,
        details: Option<StatusDetails>,
    }
    let bytes = send(client, resource, namespace, name, subresource, verb).await?;
    let answer: Answer = serde_json::from_slice(&bytes).unwrap_or_default();
    let (name, uid) = answer.details.map(|d| (d.name, d.uid)).unwrap_or_default();
    let metadata = answer.metadata;
    Ok(Written {
        name: metadata.name.or(name).unwrap_or_default(),
        uid: metadata.uid.or(uid).unwrap_or_default(),
        revision: metadata.resource_version.and_then(|v| v.parse().ok()).unwrap_or(0),
    })
}

pub(crate) const JSON: &str = "application/json";

/// How much of the objects is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Whole,
    Metadata,
}

impl Form {
    /// One answer form fits a single object, a list and a watch.
    pub(crate) fn accept(self) -> &'static str {
        match self {
            Form::Whole => JSON,
            Form::Metadata => {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                 application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            }
        }
    }
}

/// Some objects of one kind.
#[derive(Debug, Clone)]
pub struct Collection {
    pub resource: Resource,
    /// Empty for all.
    pub namespace: String,
    /// A field selector, or empty.
    pub fields: String,
    pub form: Form,
}

impl Collection {
    /// All objects of a kind in all namespaces.
    pub fn all(resource: Resource, form: Form) -> Self {
        Collection { resource, namespace: String::new(), fields: String::new(), form }
    }

    /// The one object of this name.
    pub fn one(resource: Resource, namespace: &str, name: &str) -> Self {
        let fields = format!("metadata.name={name}");
        Collection { resource, namespace: namespace.to_owned(), fields, form: Form::Whole }
    }

    /// The path of a list or watch.
    pub fn path(&self, query: &[(&str, &str)]) -> String {
        let fields = (!self.fields.is_empty()).then_some(("fieldSelector", self.fields.as_str()));
        let query: Vec<_> = fields.into_iter().chain(query.iter().copied()).collect();
        with_query(self.resource.path(&self.namespace, "", ""), &query)
    }
}

/// A path with a query, escaped.
pub fn with_query(mut path: String, query: &[(&str, &str)]) -> String {
    if !query.is_empty() {
        path.push('?');
        path = form_urlencoded::Serializer::new(path).extend_pairs(query).finish();
    }
    path
}

/// An answer as text. The readers that follow do not look at every string again.
pub(crate) fn text(answer: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(answer).map_err(Error::transport)
}

/// A page of a list, its objects still text.
#[derive(Deserialize)]
pub struct Page<'a> {
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(borrow)]
    pub items: Vec<&'a RawValue>,
}

pub fn page(answer: &[u8]) -> Result<Page<'_>, Error> {
    serde_json::from_str(text(answer)?).map_err(Error::Decode)
}

/// One read and its whole answer.
pub async fn read(client: &Client, path: &str, form: Form) -> Result<Bytes, Error> {
    let response = open(client, Method::GET, path, form.accept(), JSON, Vec::new()).await?;
    response.into_body().collect_bytes().await
}

/// The metadata of one object; `None` when there is none of that name.
pub async fn metadata(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<ObjectMeta>, Error> {
    let Some(text) = found(read(client, &resource.path(namespace, name, ""), Form::Metadata).await)? else {
        return Ok(None);
    };
    let object: MetadataOnly = serde_json::from_slice(&text).map_err(Error::Decode)?;
    Ok(Some(object.metadata))
}

/// The metadata of all objects of a kind in a namespace.
pub async fn list_metadata(client: &Client, resource: &Resource, namespace: &str) -> Result<Vec<ObjectMeta>, Error> {
    let text = read(client, &resource.path(namespace, "", ""), Form::Metadata).await?;
    let object = |item: &RawValue| MetadataOnly::from_json(item.get()).map(|o| o.metadata);
    page(&text)?.items.into_iter().map(object).collect::<Result<_, _>>().map_err(Error::Decode)
}

/// The store's revision of now, or one of a moment later: each write that was carried out before has an older one.
pub async fn newest(client: &Client, resource: &Resource, namespace: &str) -> Result<u64, Error> {
    let path = with_query(resource.path(namespace, "", ""), &[("limit", "1")]);
    let text = read(client, &path, Form::Metadata).await?;
    let revision = page(&text)?.metadata.resource_version.unwrap_or_default();
    revision.parse().map_err(Error::transport)
}

/// How often a request is tried again that the server had no time for, as upstream's clients do.
const TRIED_AGAIN: usize = 10;

/// The longest time that a server can make a request wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// After how long the server may have time for a request that it did not begin with.
fn turned_away(response: &Response<Body>) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    let wait = Duration::from_secs(seconds).min(LONGEST_WAIT);
    (response.status() == StatusCode::TOO_MANY_REQUESTS).then_some(wait)
}

/// One request, of which the body is still to come; an answer that is no success becomes the error that its `Status`
/// says. A server that has too much to do is asked again after the time that it says.
pub async fn open(
    client: &Client,
    method: Method,
    path: &str,
    accept: &str,
    content_type: &str,
    body: Vec<u8>,
) -> Result<Response<Body>, Error> {
    let body = Bytes::from(body);
    let mut tried_again = 0;
    let response = loop {
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(header::ACCEPT, accept)
            .header(header::CONTENT_TYPE, content_type)
            .body(Body::from(body.clone()))
            .map_err(Error::transport)?;
        let response = client.send(request).await?;
        let Some(wait) = turned_away(&response).filter(|_| tried_again < TRIED_AGAIN) else { break response };
        tried_again += 1;
        clock::sleep(wait).await;
    };
    let code = response.status();
    if code.is_success() {
        return Ok(response);
    }
    let bytes = response.into_body().collect_bytes().await?;
    Err(Error::Api(Box::new(Status::read(code.as_u16(), &bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    #[test]
    fn paths() {
        let deployment = Resource::of::<Deployment>();
        assert_eq!(deployment.path("a", "b", "status"), "/apis/apps/v1/namespaces/a/deployments/b/status");
        assert_eq!(deployment.path("", "", ""), "/apis/apps/v1/deployments");
        assert_eq!(Resource::of::<Node>().path("", "n", ""), "/api/v1/nodes/n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_time_is_asked_again() {
        let check = async |refusals: usize, retry_after: Option<&'static str>, asked: usize, works: bool| {
            let count = Arc::new(AtomicUsize::new(0));
            let counted = count.clone();
            let client = crate::in_process(tower::service_fn(move |_: Request<Body>| {
                let refused = counted.fetch_add(1, Ordering::Relaxed) < refusals;
                let mut response = Response::new(http_body_util::Full::new(Bytes::from_static(b"{}")));
                if refused {
                    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                    let wait = retry_after.map(http::HeaderValue::from_static);
                    wait.and_then(|wait| response.headers_mut().insert(header::RETRY_AFTER, wait));
                }
                async move { Ok::<_, std::convert::Infallible>(response) }
            }));
            let began = clock::Instant::now();
            let answer = read(&client, "/api/v1/pods", Form::Whole).await;
            assert_eq!((count.load(Ordering::Relaxed), answer.is_ok()), (asked, works), "{refusals} {retry_after:?}");
            assert_eq!(began.elapsed().as_secs(), asked as u64 - 1);
        };
        check(0, Some("1"), 1, true).await;
        check(2, Some("1"), 3, true).await;
        check(20, Some("1"), 11, false).await;
        check(1, None, 1, false).await;
        check(1, Some("soon"), 1, false).await;
    }

    #[test]
    fn delete_options_name_only_what_is_set() {
        let options = DeleteOptions { uid: Some("u".into()), grace_seconds: Some(0), ..Default::default() };
        let expected = json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "u"}, "gracePeriodSeconds": 0
        });
        assert_eq!(options.body(), expected);
    }
}
