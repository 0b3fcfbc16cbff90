//! Webhooks that convert custom objects, asked over HTTPS. Where one is may be any address: whoever may write definitions
//! may have this server talk to it, as upstream. What one holds up or sends too much of ends with the request that asked it:
//! questions have a deadline and a bounded answer, and few are under way at once for one definition.
//!
//! Upstream counterpart: apiserver/pkg/util/webhook and client-go/rest, whose errors are those of the answers here.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use api::{
    Value,
    codec::decode::{self, Format},
    kind::webhook::{Client, Webhook},
    status::StatusError,
};
use base64::Engine as _;
use clock::Duration;
use dialer::Endpoint;
use futures::future::BoxFuture;
use http::{Request, Uri, header};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    aggregator::backend::{Routing, why},
    http::body::Body,
    outbound::dialer::Dialer,
    storage::{conversion::Converter, object_store::ObjectStore},
};

/// Everything about a question is over by then.
const PATIENCE: Duration = Duration::from_secs(30);
/// Questions to the webhook of one definition that are under way at once; others wait.
const QUESTIONS: usize = 64;
/// Webhooks of so many definitions, and trusts, are remembered; with one more all begin anew.
const KEPT: usize = 256;
/// How much is repeated of an answer that is an error.
const SHOWN: usize = 2048;

/// The way to all webhooks.
pub struct Webhooks {
    objects: Weak<ObjectStore>,
    routing: Routing,
    /// Connections by the authorities that are believed on them.
    dialers: Mutex<HashMap<String, Arc<Dialer>>>,
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Where a question goes.
struct Place {
    to: Endpoint,
    host: String,
    /// Path and query.
    path: String,
}

fn remembered<T>(
    kept: &Mutex<HashMap<String, Arc<T>>>,
    key: &str,
    make: impl FnOnce() -> Result<T, String>,
) -> Result<Arc<T>, String> {
    let mut kept = kept.lock();
    if let Some(known) = kept.get(key) {
        return Ok(known.clone());
    }
    let made = Arc::new(make()?);
    if kept.len() >= KEPT {
        kept.clear();
    }
    kept.insert(key.to_owned(), made.clone());
    Ok(made)
}

impl Webhooks {
    pub fn new(objects: &Arc<ObjectStore>, routing: Routing) -> Self {
        let objects = Arc::downgrade(objects);
        Webhooks { objects, routing, dialers: Mutex::default(), places: Mutex::default() }
    }

    async fn place(&self, client: &Client) -> Result<Place, String> {
        if let Some(service) = &client.service {
            let (namespace, name, port) = (&service.namespace, &service.name, service.port.unwrap_or(443));
            let objects = self.objects.upgrade().ok_or("the server is shutting down")?;
            let host = format!("{name}.{namespace}.svc:{port}");
            let path = format!("/{}?timeout=30s", service.path.trim_start_matches('/'));
            let to = self.routing.endpoint(&objects, (namespace, name, port)).await;
            let to = to.map_err(|error| failed(&host, &path, &error.message))?;
            return Ok(Place { to, host, path });
        }
        let url = client.url.as_deref().unwrap_or_default();
        let uri: Uri = url.parse().map_err(|why| format!("Unparsable URL: {why}"))?;
        let authority = uri.authority().ok_or("Unparsable URL: there is no host")?;
        let to = Endpoint::new(authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(443));
        Ok(Place { to, host: authority.to_string(), path: format!("{}?timeout=30s", uri.path()) })
    }

    fn dialer(&self, client: &Client) -> Result<Arc<Dialer>, String> {
        remembered(&self.dialers, &client.ca_bundle, || {
            const PROTOCOLS: &[&str] = &["http/1.1"];
            let unread = |why: String| format!("unable to load root certificates: {why}");
            let tls = if client.ca_bundle.is_empty() {
                pki::client_config_of_machine(None, PROTOCOLS)
            } else {
                let bytes = base64::engine::general_purpose::STANDARD.decode(&client.ca_bundle);
                let bytes = bytes.map_err(|error| unread(error.to_string()))?;
                pki::client_config_of_bundle(&String::from_utf8_lossy(&bytes), None, PROTOCOLS)
            };
            Ok(Dialer::tls(Arc::new(tls.map_err(|error| unread(error.to_string()))?)))
        })
    }

    async fn post(&self, webhook: &dyn Webhook, review: &Value, limit: usize) -> Result<Value, String> {
        let places = remembered(&self.places, webhook.name(), || Ok(Semaphore::new(QUESTIONS)))?;
        let dialer = self.dialer(webhook.client())?;
        let Place { to, host, path } = self.place(webhook.client()).await?;
        let failed = |why: &str| failed(&host, &path, why);
        let request = Request::post(&path)
            .header(header::HOST, &host)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*");
        let request = request.body(Body::from(review.to_string())).map_err(|error| failed(&error.to_string()))?;
        let asked = async {
            let _place = places.acquire().await.map_err(|error| failed(&error.to_string()))?;
            // Nothing that it redirects to is followed.
            let answer = dialer.forward(&to, request).await.map_err(|error| failed(why(&error)))?;
            let (parts, body) = answer.into_parts();
            let whole = Body::Network(body).read(limit, |_| Ok(())).await;
            Ok::<_, String>((parts, whole.map_err(|error| failed(&unread(&error, limit)))?))
        };
        let late = |_| failed("context deadline exceeded (Client.Timeout exceeded while awaiting headers)");
        let (parts, body) = clock::timeout(PATIENCE, asked).await.map_err(late)??;
        if !parts.status.is_success() {
            let media_type = parts.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("text/");
            return Err(refused(parts.status.as_u16(), media_type, &body));
        }
        // Bounded in depth and number of values, as every other document.
        let read = decode::raw(&body, Format::Json).map(|(review, _)| review);
        read.map_err(|why| format!("couldn't get version/kind; json parse error: {why}"))
    }
}

impl Converter for Webhooks {
    fn ask<'a>(
        &'a self,
        webhook: &'a dyn Webhook,
        review: &'a Value,
        limit: usize,
    ) -> BoxFuture<'a, Result<Value, String>> {
        Box::pin(self.post(webhook, review, limit))
    }
}

fn unread(error: &StatusError, limit: usize) -> String {
    if error.code == 413 { format!("the answer has more than {limit} bytes") } else { error.message.clone() }
}

fn failed(host: &str, path: &str, why: &str) -> String {
    format!("Post {:?}: {why}", format!("https://{host}{path}"))
}

/// The words for an answer that is an error.
fn refused(status: u16, media_type: &str, body: &[u8]) -> String {
    match status {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .to_owned()
        }
        500.. => {
            let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]);
            let said = if media_type.starts_with("text/") { text.trim() } else { "unknown" };
            format!("an error on the server ({said:?}) has prevented the request from succeeding")
        }
        other => format!("the server responded with the status code {other} but did not return more information"),
    }
}
