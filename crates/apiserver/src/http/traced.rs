//! The span of a request, from the moment at which it is known who asks until there is an answer. A stream goes on behind it.
//! Upstream counterpart: k8s.io/apiserver/pkg/endpoints/filters/traces.go, whose names and rules are the ones here.

use std::{borrow::Cow, sync::Arc};

use api::status::StatusError;
use http::request::Parts;
use spans::{Context, Span, Tracer};

use crate::{
    auth::User,
    http::{access::Peer, body::Response, request::Info},
};

/// The members of these groups decide whether a trace is sent, and it goes on with theirs.
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];

pub struct Traced(Span);

impl Traced {
    pub fn begin(tracer: Option<&Arc<Tracer>>, parts: &Parts, info: &Info, user: &User) -> Option<Self> {
        let tracer = tracer?;
        let mut given = parts.headers.get_all("traceparent").iter();
        // Of two contexts none is the one that is meant.
        let came_with = given.next().filter(|_| given.next().is_none());
        let came_with = came_with.and_then(|header| Context::parse(header.to_str().ok()?));
        let trusted = user.groups.iter().any(|group| TRUSTED.contains(&&**group));
        let mut span = tracer.serve(name(parts, info), came_with, trusted);
        if span.context().sampled {
            describe(&mut span, parts);
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
