//! The span of a request, from its arrival until there is an answer, and that of the handler in it. A stream goes on behind them. There is
//! a span only where it is known who asks. Those of the steps before the handler last as long as the step, while upstream's filters
//! lie around all that follows them.
//! Upstream counterpart: k8s.io/apiserver/pkg/endpoints/filters/traces.go, handlers/trace_util.go, whose names and rules are the ones here.

use std::{borrow::Cow, sync::Arc};

use api::status::StatusError;
use http::request::Parts;
use spans::{Context, Span, Tracer};

use crate::{
    audit::Begun,
    auth::User,
    http::{access::Peer, body::Response, request::Info},
    pages::metrics::requests,
};

/// The members of these groups decide whether a trace is sent, and it goes on with theirs.
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];

pub struct Traced(Span);

impl Traced {
    /// The span of a request that began like this.
    pub fn begin(tracer: Option<&Arc<Tracer>>, parts: &Parts, info: &Info, user: &User, begun: &Begun) -> Option<Self> {
        let (tracer, arrived) = (tracer?, begun.received());
        let mut given = parts.headers.get_all("traceparent").iter();
        // Of two contexts none is the one that is meant.
        let came_with = given.next().filter(|_| given.next().is_none());
        let came_with = came_with.and_then(|header| Context::parse(header.to_str().ok()?));
        let trusted = user.groups.iter().any(|group| TRUSTED.contains(&&**group));
        let mut span = tracer.serve(name(parts, info), came_with, trusted).since(arrived);
        if span.context().sampled {
            describe(&mut span, parts);
            span.set("audit-id", begun.id());
            drop(span.part("authentication").map(|part| part.since(arrived)));
        }
        Some(Traced(span))
    }

    /// Does the work; the questions to others in it are spans of the same trace.
    pub async fn around(
        self,
        work: impl Future<Output = Result<Response, StatusError>>,
    ) -> Result<Response, StatusError> {
        let Traced(mut span) = self;
        let answer = span.around(work).await;
        let code = match &answer {
            Ok(response) => response.status().as_u16(),
            Err(error) => error.code,
        };
        span.set("http.response.status_code", code);
        if code >= 500 {
            span.fail();
        }
        answer
    }
}

/// The span of what a handler does, named after the verb. Streams have none: how long one is open says nothing of the server.
pub fn handler(parts: &Parts, info: &Info) -> Option<Span> {
    let name = match info.verb {
        _ if info.definition.is_none() || info.long_running() => return None,
        "create" => "Create",
        "update" => "Update",
        "patch" => "Patch",
        "delete" | "deletecollection" => "Delete",
        "get" => "Get",
        "list" => "List",
        _ => return None,
    };
    let mut span = spans::part(name)?;
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let definition = info.definition.as_ref()?;
    let (verb, scope) = requests::verb_and_scope(info, parts);
    let client = parts.extensions.get::<Peer>().map(|peer| peer.address.ip().to_string());
    for (name, value) in [
        ("accept", header("accept").unwrap_or("unknown")),
        ("client", client.as_deref().unwrap_or("unknown")),
        ("api-group", &definition.group),
        ("api-version", &definition.version),
        ("name", &info.name),
        ("subresource", info.subresource),
        ("namespace", &info.namespace),
        ("protocol", &format!("{:?}", parts.version)),
        ("resource", &definition.plural),
        ("scope", scope),
        ("url", parts.uri.path()),
        ("user-agent", header("user-agent").unwrap_or_default()),
        ("verb", verb),
    ] {
        span.set(name, value);
    }
    Some(span)
}

fn describe(span: &mut Span, parts: &Parts) {
    span.set("http.request.method", parts.method.as_str());
    span.set("url.scheme", "https");
    span.set("url.path", parts.uri.path());
    span.set("http.target", parts.uri.path_and_query().map_or("/", |target| target.as_str()));
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(agent) = header("user-agent") {
        span.set("user_agent.original", agent);
    }
    if let Some(host) = parts.uri.host().or_else(|| header("host")) {
        span.set("server.address", host);
    }
    if let Some(peer) = parts.extensions.get::<Peer>() {
        span.set("network.peer.address", &*peer.address.ip().to_string());
        span.set("network.peer.port", peer.address.port());
    }
}

/// The method, and for resources the shape of their path. Names of objects are not in it, so that there are few different ones.
fn name(parts: &Parts, info: &Info) -> Cow<'static, str> {
    let method = parts.method.as_str();
    let Some(definition) = &info.definition else { return method.to_owned().into() };
    let mut name = match &*definition.group {
        "" => format!("{method} /api/{}", definition.version),
        group => format!("{method} /apis/{group}/{}", definition.version),
    };
    if !info.namespace.is_empty() {
        name.push_str("/namespaces/{:namespace}");
    }
    name.push('/');
    name.push_str(&definition.plural);
    if !info.name.is_empty() {
        name.push_str("/{:name}");
    }
    if !info.subresource.is_empty() {
        name.push('/');
        name.push_str(info.subresource);
    }
    name.into()
}
