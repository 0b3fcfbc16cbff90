//! Webhooks asked over HTTPS. Where one is may be any address: whoever may write its configuration may have this server talk to
//! it, as upstream. Credentials are shown only as the administrator's file says. A webhook that holds a request up or sends too
//! much ends with that request:
//! questions have a deadline and a bounded answer.
//!
//! Upstream counterpart: apiserver/pkg/util/webhook and client-go/rest, whose errors are those of the answers here.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use ::client::Shown;
use api::{
    Value,
    codec::decode::{self, Format},
    kind::webhook::Client,
    status::StatusError,
};
use base64::Engine as _;
use clock::Duration;
use dialer::Endpoint;
use http::{HeaderName, HeaderValue, Request, Uri, header};
use parking_lot::Mutex;
use pki::Serving;

use super::{
    credentials::Credentials,
    dialer::{Dialer, why},
    service::Routing,
};
use crate::{
    http::{body::Body, places::outside},
    storage::{continuation::named, object_store::ObjectStore},
};

/// Trusts that are remembered; with one more all begin anew.
const KEPT: usize = 256;
/// How much is repeated of an answer that is an error.
const SHOWN: usize = 2048;

/// The way to all webhooks.
pub struct Webhooks {
    objects: Weak<ObjectStore>,
    routing: Routing,
    /// Connections by the authorities that are believed on them, and by the certificate that is shown.
    dialers: Mutex<HashMap<String, Vec<Trusted>>>,
}

/// Connections on which the same authorities are believed and this certificate is shown.
struct Trusted {
    shown: Option<Arc<Serving>>,
    dialer: Arc<Dialer>,
}

/// The question to a webhook.
pub struct Question<'q> {
    pub review: &'q Value,
    /// Everything is over by then; the webhook is told.
    pub seconds: u64,
    /// How upstream says that the time is over.
    pub late: &'static str,
    /// The answer has at most this many bytes.
    pub limit: usize,
    /// The asker, where that is told.
    pub agent: Option<&'static str>,
    /// The credentials that it may be shown.
    pub credentials: Option<&'q Credentials>,
}

/// Why a question has no answer.
#[derive(Debug)]
pub enum Silence {
    /// So many wait for this webhook already that it was not asked.
    Busy(StatusError),
    /// It could not be asked, or gave no answer that counts: the words, and the status that they stand for.
    NoAnswer(StatusError),
}

impl From<StatusError> for Silence {
    fn from(why: StatusError) -> Self {
        Silence::NoAnswer(why)
    }
}

/// Where a question goes.
struct Place {
    to: Endpoint,
    host: String,
    /// The host with its port, by which credentials are found.
    server: String,
    /// Path and query.
    path: String,
}

impl Place {
    fn failed(&self, why: &str) -> StatusError {
        unanswered(503, format!("Post {:?}: {why}", format!("https://{}{}", self.host, self.path)))
    }
}

/// Reads an answer, bounded in depth and number of values as every other document. The error is Go's.
fn document(body: &[u8]) -> Result<Value, String> {
    const WANTED: &str =
        r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let (value, _) = decode::raw(body, Format::Json).map_err(|why| why.to_string())?;
    if value.is_object() || value.is_null() {
        return Ok(value);
    }
    Err(format!("json: cannot unmarshal {} into Go value of type {WANTED}", named(&value)))
}

/// Why there is no answer: the words, and the status that they stand for.
fn unanswered(code: u16, message: String) -> StatusError {
    StatusError::new(code, "", message)
}

impl Webhooks {
    pub fn new(objects: &Arc<ObjectStore>, routing: Routing) -> Self {
        Webhooks { objects: Arc::downgrade(objects), routing, dialers: Mutex::default() }
    }

    /// Sends a question and reads the answer. The error says why there is none. A request that asks holds nothing up meanwhile.
    pub async fn ask(&self, client: &Client, question: Question<'_>) -> Result<Value, Silence> {
        let place = self.place(client, question.seconds).await?;
        let shown = question.credentials.and_then(|credentials| credentials.of_server(&place.server));
        let dialer = self.dialer(client, shown.and_then(Shown::certificate)).map_err(|why| unanswered(500, why))?;
        let mut request = Request::post(&place.path)
            .header(header::HOST, &place.host)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*");
        if let Some(agent) = question.agent {
            request = request.header(header::USER_AGENT, agent);
        }
        let request = request.body(Body::from(question.review.to_string()));
        let mut request = request.map_err(|error| place.failed(&error.to_string()))?;
        if let Some(shown) = shown {
            shown.stamp(request.headers_mut());
        }
        let mut span = spans::ask("POST", &place.host).map(|(span, context)| {
            let traceparent = context.parse::<HeaderValue>();
            request.headers_mut().extend(traceparent.ok().map(|value| (HeaderName::from_static("traceparent"), value)));
            span
        });
        let asked = async {
            // Nothing that it redirects to is followed.
            let answer = dialer.forward(&place.to, request).await.map_err(|error| place.failed(why(&error)))?;
            let (parts, body) = answer.into_parts();
            let whole = Body::Network(body).read(question.limit, |_| Ok(())).await;
            Ok::<_, StatusError>((parts, whole.map_err(|error| place.failed(&unread(&error, question.limit)))?))
        };
        let late = |_| place.failed(question.late);
        let asked = clock::timeout(Duration::from_secs(question.seconds), asked);
        let answer = outside::wait_for(&place.server, asked).await.map_err(Silence::Busy)?.map_err(late).flatten();
        if let Some(span) = &mut span {
            span.answered(answer.as_ref().ok().map(|(parts, _)| parts.status.as_u16()));
        }
        let (parts, body) = answer?;
        let media_type = parts.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let code = parts.status.as_u16();
        if !parts.status.is_success() {
            return Err(unanswered(code, refused(code, media_type.unwrap_or("text/"), &body)).into());
        }
        if body.is_empty() {
            let of = format!("status code: {code} and content type: {}", media_type.unwrap_or("application/json"));
            return Err(unanswered(503, format!("0-length response with {of}")).into());
        }
        Ok(document(&body)
            .map_err(|why| unanswered(503, format!("couldn't get version/kind; json parse error: {why}")))?)
    }

    async fn place(&self, client: &Client, seconds: u64) -> Result<Place, StatusError> {
        if let Some(service) = &client.service {
            let (namespace, name, port) = (&service.namespace, &service.name, service.port.unwrap_or(443));
            let gone = || unanswered(503, "the server is shutting down".to_owned());
            let objects = self.objects.upgrade().ok_or_else(gone)?;
            let host = format!("{name}.{namespace}.svc:{port}");
            let path = format!("/{}?timeout={seconds}s", service.path.trim_start_matches('/'));
            let mut place = Place { to: Endpoint::new("", port), server: host.clone(), host, path };
            let to = self.routing.endpoint(&objects, (namespace, name, port)).await;
            place.to = to.map_err(|error| place.failed(&error.message))?;
            return Ok(place);
        }
        let unparsable = |why: &str| unanswered(500, format!("Unparsable URL: {why}"));
        let url = client.url.as_deref().unwrap_or_default();
        let uri: Uri = url.parse().map_err(|why: http::uri::InvalidUri| unparsable(&why.to_string()))?;
        let authority = uri.authority().ok_or_else(|| unparsable("there is no host"))?;
        let to = Endpoint::new(authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(443));
        let server = format!("{}:{}", authority.host(), to.port);
        Ok(Place { to, host: authority.to_string(), server, path: format!("{}?timeout={seconds}s", uri.path()) })
    }

    fn dialer(&self, client: &Client, shown: Option<&Arc<Serving>>) -> Result<Arc<Dialer>, String> {
        let mut dialers = self.dialers.lock();
        let same = |one: &&Trusted| one.shown.as_ref().map(Arc::as_ptr) == shown.map(Arc::as_ptr);
        let believing = dialers.get(&client.ca_bundle).into_iter().flatten();
        if let Some(known) = believing.into_iter().find(same) {
            return Ok(known.dialer.clone());
        }
        let made = Arc::new(connections(&client.ca_bundle, shown.cloned())?);
        if dialers.len() >= KEPT {
            dialers.clear();
        }
        let trusted = Trusted { shown: shown.cloned(), dialer: made.clone() };
        dialers.entry(client.ca_bundle.clone()).or_default().push(trusted);
        Ok(made)
    }
}

/// Connections on which the authorities of a bundle are believed, PEM in base64; the machine's where it is empty.
fn connections(bundle: &str, shown: Option<Arc<Serving>>) -> Result<Dialer, String> {
    const PROTOCOLS: &[&str] = &["http/1.1"];
    let unread = |why: String| format!("unable to load root certificates: {why}");
    let tls = if bundle.is_empty() {
        pki::client_config_of_machine(shown, PROTOCOLS)
    } else {
        let bytes = base64::engine::general_purpose::STANDARD.decode(bundle);
        let bytes = bytes.map_err(|error| unread(error.to_string()))?;
        pki::client_config_of_bundle(&String::from_utf8_lossy(&bytes), shown, PROTOCOLS)
    };
    Ok(Dialer::tls(Arc::new(tls.map_err(|error| unread(error.to_string()))?)))
}

fn unread(error: &StatusError, limit: usize) -> String {
    if error.code == 413 { format!("the answer has more than {limit} bytes") } else { error.message.clone() }
}

/// The words for an answer that is an error.
pub(super) fn refused(status: u16, media_type: &str, body: &[u8]) -> String {
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
