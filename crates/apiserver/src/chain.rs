//! The way of every request, from top to bottom: panic guard, what it is about, deadline and limits, who asks, as whom,
//! whether he may, and the handler.

use std::{panic::AssertUnwindSafe, sync::Arc};

use api::status::StatusError;
use clock::Instant;
use futures::FutureExt;
use http::{Request, header, request::Parts};

use crate::{
    auth::{self, Attributes, User},
    body::Body,
    large, pretty,
    request::Info,
    respond, route,
    server::Server,
    special::{Call, Response},
};

/// Answers a request; an error or a panic on the way becomes a response too.
pub async fn handle(server: Server, request: Request<Body>) -> Response {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let info = Arc::new(Info::parse(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or("")));
    waypoint::apiserver::request(&info.path);
    let accept_encoding = parts.headers.get(header::ACCEPT_ENCODING).cloned();
    let counted = info.clone();
    let for_people = pretty::wanted(&info, parts.uri.query().unwrap_or(""), &parts.headers);
    let guarded = AssertUnwindSafe(limited(server.clone(), parts, body, info)).catch_unwind().await;
    let mut response = match guarded {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => respond::error(&error),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            tracing::error!(path = counted.path, panic = text.unwrap_or("?"), "a request panicked");
            respond::error(&StatusError::new(
                500,
                "InternalError",
                format!("This request caused apiserver to panic. Look in the logs for details. ({})", counted.path),
            ))
        }
    };
    if for_people {
        response = pretty::indented(response);
    }
    respond::common_headers(response.headers_mut());
    let response = respond::compress(response, accept_encoding.as_ref());
    server.shared.metrics.finished(&counted, response.status().as_u16(), started.elapsed());
    response
}

/// Applies the limits: how many at once, and how long.
async fn limited(server: Server, parts: Parts, body: Body, info: Arc<Info>) -> Result<Response, StatusError> {
    if info.long_running() {
        return authenticated(server, parts, body, info).await;
    }
    let reading = matches!(info.verb, "get" | "list" | "head");
    let shared = server.shared.clone();
    let places = if reading { &shared.reads } else { &shared.writes };
    // Callers inside this process bound themselves, and must not starve behind clients.
    let internal = parts.extensions.get::<Arc<User>>().is_some();
    let _place = if internal {
        None
    } else {
        Some(places.try_acquire().map_err(|_| {
            shared.metrics.rejected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            StatusError::too_many_requests("Too many requests, please try again later.", 1)
        })?)
    };
    let timeout = shared.config.limits.request_timeout;
    let gate = (!internal).then(|| shared.large.clone());
    match clock::timeout(timeout, large::guarded(gate, authenticated(server, parts, body, info))).await {
        Ok(result) => result,
        Err(_) => Err(StatusError::timeout("Timeout: request did not complete within the allotted timeout")),
    }
}

/// Finds out who asks and, if he asks to be somebody else, whether he may.
async fn authenticated(server: Server, parts: Parts, body: Body, info: Arc<Info>) -> Result<Response, StatusError> {
    let given = parts.extensions.get::<Arc<User>>().cloned();
    let user = match given {
        Some(user) => user,
        None => server.config().authenticator.authenticate(&parts).await?.ok_or_else(StatusError::unauthorized)?,
    };
    waypoint::apiserver::authenticate(&user.name);
    let user = match auth::impersonation::requested(&parts.headers).map_err(StatusError::internal)? {
        None => user,
        Some((wanted, asked)) => {
            asked.iter().try_for_each(|part| server.ask(&part.attributes(&user)))?;
            Arc::new(wanted)
        }
    };
    authorized(server, parts, body, info, user).await
}

async fn authorized(
    server: Server,
    mut parts: Parts,
    body: Body,
    info: Arc<Info>,
    user: Arc<User>,
) -> Result<Response, StatusError> {
    server.ask(&Attributes::of(&user, &info))?;
    waypoint::apiserver::authorize(&info.path);
    // Nothing behind this point needs the caller's secret.
    parts.headers.remove(header::AUTHORIZATION);
    waypoint::apiserver::route(&info.path);
    route::route(Call { server, parts, body, info, user }).await
}
