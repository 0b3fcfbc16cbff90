//! Requests for group versions that another API server serves: passed on in the name of the user, whom authentication has found
//! and authorization allowed here already.
//! Upstream counterpart: kube-aggregator/pkg/apiserver/handler_proxy.go, apimachinery/pkg/util/proxy.

use api::status::StatusError;
use clock::{Duration, Instant};
use dialer::Endpoint;
use futures::stream as streams;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use stream::upgrade::{is_upgrade, strip_hop_by_hop};

use crate::{
    aggregator::{identity, registrations::Registration},
    audit::AUDIT_ID,
    call::Call,
    http::{
        body::{Body, BoxError, Response},
        timing,
    },
    outbound::dialer::why,
    special::forwarded,
};

/// The page about a group version is there by then: clients ask for it before anything else.
const DISCOVERY: Duration = Duration::from_secs(5);
/// Carries the id of each server that the request came through, so that none sees it twice.
const THROUGH: &str = "x-skiff-aggregator";

/// Passes a request on, and gives the answer as it comes.
pub async fn pass(call: Call) -> Result<Response, StatusError> {
    let Some(remote) = call.info.remote.clone() else { return Err(StatusError::no_route()) };
    let (state, info) = (call.state.clone(), call.info.clone());
    let registration = &*remote.registration;
    let Some(backend) = &registration.backend else { return Err(StatusError::no_route()) };
    let through = |value: &HeaderValue| value.as_bytes() == state.aggregator.id.as_bytes();
    if call.headers.get_all(THROUGH).iter().any(through) {
        return Ok(text(StatusCode::LOOP_DETECTED, "the request has been here before"));
    }
    if !registration.available {
        return Ok(unavailable("service unavailable"));
    }
    let dialer = match state.aggregator.dialer(&backend.trust) {
        Ok(dialer) => dialer,
        Err(why) => return Ok(text(StatusCode::INTERNAL_SERVER_ERROR, &why)),
    };
    let to = match state.aggregator.endpoint(&state.objects, backend).await {
        Ok(to) => to,
        Err(error) => {
            tracing::debug!(name = registration.name, %error, "an API server's address is not known");
            return Ok(unavailable("service unavailable"));
        }
    };
    let upgrade = is_upgrade(&call.headers);
    let limit = if remote.resource.is_empty() { DISCOVERY } else { state.limits.request_timeout };
    let until = (!upgrade && !info.long_running()).then(|| Instant::now() + limit);
    waypoint::apiserver::connect(&info.path);
    let answer = dialer.forward(&to, request(call, registration, &to, upgrade)?);
    let answer = match until {
        None => answer.await,
        Some(until) => match clock::timeout(until.duration_since(Instant::now()), answer).await {
            Ok(answer) => answer,
            Err(_) => return Ok(unreached("context deadline exceeded")),
        },
    };
    Ok(match answer {
        Ok(answer) => answered(answer, upgrade, until),
        Err(error) => unreached(why(&error)),
    })
}

/// The client's request, readdressed, with the user's name.
fn request(
    call: Call,
    registration: &Registration,
    to: &Endpoint,
    upgrade: bool,
) -> Result<Request<Body>, StatusError> {
    let Call { state, info, user, query, trail, mut headers, extensions, body, .. } = call;
    let passed = info.passed.as_ref().ok_or_else(|| StatusError::internal("the request is not to be passed on"))?;
    let path = if query.is_empty() { passed.base.clone() } else { format!("{}?{query}", passed.base) };
    // A header that the client counts among those of its connection is taken out first: the user's name must not be.
    let protocol = upgrade.then(|| headers.remove(header::UPGRADE)).flatten();
    strip_hop_by_hop(&mut headers);
    if let Some(protocol) = protocol {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    identity::name(&mut headers, &user)?;
    let value = |text: &str| HeaderValue::from_str(text).map_err(StatusError::internal);
    headers.append(THROUGH, value(&state.aggregator.id)?);
    // It audits the request under the same identity.
    if let Some(id) = trail.id() {
        headers.insert(AUDIT_ID, value(id)?);
    }
    headers.insert(header::HOST, value(&to.authority())?);
    forwarded::tell(&mut headers, &extensions, passed, Some(&to.authority()))?;
    let mut request = Request::new(body);
    *request.method_mut() = passed.method.clone();
    *request.uri_mut() = path.parse().map_err(|_| StatusError::bad_request(format!("invalid path {path:?}")))?;
    *request.headers_mut() = headers;
    *request.extensions_mut() = extensions;
    tracing::trace!(name = registration.name, path, "passed on");
    Ok(request)
}

/// The other server's answer, as far as it may be given on.
fn answered(answer: http::Response<Incoming>, upgrade: bool, until: Option<Instant>) -> Response {
    let status = answer.status();
    if status.is_redirection() && answer.headers().contains_key(header::LOCATION) {
        let why = "the backend attempted to redirect this request, which is not permitted";
        return text(StatusCode::BAD_GATEWAY, why);
    }
    if status == StatusCode::SWITCHING_PROTOCOLS && !upgrade {
        return text(
            StatusCode::BAD_GATEWAY,
            "the backend attempted to upgrade this request, which did not ask for it",
        );
    }
    let (mut parts, body) = answer.into_parts();
    strip_cors(&mut parts.headers);
    let body = match until {
        Some(until) => ending(body, until),
        None => Body::Network(body),
    };
    Response::from_parts(parts, body)
}

/// Which origins may read this server's answers is nothing that another server says.
fn strip_cors(headers: &mut HeaderMap) {
    for name in [
        header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
    ] {
        headers.remove(name);
    }
}

/// A body that breaks off when it is not whole by then: whoever stalls holds nothing for longer.
fn ending(body: Incoming, until: Instant) -> Body {
    Body::stream(streams::try_unfold(body, move |mut body| async move {
        loop {
            let left = until.duration_since(Instant::now());
            let frame = clock::timeout(left, body.frame()).await;
            let frame = frame.map_err(|_| BoxError::from("the other server did not answer in time"))?;
            match frame.transpose()?.map(http_body::Frame::into_data) {
                None => return Ok::<_, BoxError>(None),
                Some(Ok(data)) => return Ok(Some((data, body))),
                Some(Err(_trailers)) => {}
            }
        }
    }))
}

fn unreached(why: &str) -> Response {
    unavailable(&format!("error trying to reach service: {why}"))
}

fn unavailable(why: &str) -> Response {
    timing::broken_off();
    text(StatusCode::SERVICE_UNAVAILABLE, why)
}

/// An error in plain text, as upstream's aggregator gives them.
fn text(status: StatusCode, why: &str) -> Response {
    let mut response = Response::new(format!("{why}\n").into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
