//! The way of every request, from top to bottom: panic guard, resolution, deadline, authentication, the decision what is
//! audited, impersonation, authorization, a place (with the body read before), seats, and the handler.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
};

use api::{custom::formats::go_duration, rules::url::query_pairs, status::StatusError, validation::field::quote};
use clock::{Duration, Instant};
use futures::FutureExt;
use http::{Method, Request, header, request::Parts};
use listener::Answering;

use crate::{
    audit::{self, AUDIT_ID, Begun, Trail},
    auth::{self, Attributes, User, Verdict, authn, authn::token::Note},
    call::Call,
    fairness::{self, Flow},
    http::{
        access::{Known, Peer, Stranger},
        body::{Body, Response},
        encoding::{self, Encoding, pretty},
        ending, large,
        places::outside,
        request::{Info, Served},
        respond, timing,
        traced::{self, Traced},
        view::View,
        web::Web,
    },
    pages::metrics::{load::Phase, requests::Running},
    router::{self, Router},
    state::{State, permitted},
};

/// Answers a request; an error or a panic on the way becomes a response too.
pub async fn handle(router: Arc<Router>, request: Request<Body>) -> Response {
    let state = &router.state;
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or("");
    let (kinds, registrations) = (state.objects.kinds.table(), state.aggregator.table());
    let served = Served { kinds: &kinds, registrations: &registrations };
    let info = Arc::new(Info::resolve(&parts.method, parts.uri.path(), query, served));
    waypoint::apiserver::request(&info.path);
    let running = Running::begin(&state.metrics, &info, &parts);
    let _open = match router.ending.enter(&parts, info.long_running()) {
        Ok(open) => open,
        Err(ending::Refused) => return running.answered(ending::refusal(&parts), None),
    };
    let origin = router.web.origin(&parts.headers);
    if let Some(mut response) = Web::preflight(&parts.method, origin.as_ref()) {
        router.web.headers(origin, response.headers_mut());
        return running.answered(response, None);
    }
    router.web.leave(&parts);
    let spaced = authn::has_spaced_token(&parts);
    let head = parts.method == Method::HEAD;
    let accept_encoding = parts.headers.get(header::ACCEPT_ENCODING).cloned();
    let counted = info.clone();
    let view =
        info.is_document().then(|| View::negotiate(state.encodings, &parts.headers, "", info.definition.as_deref()));
    let encoding = view.and_then(Result::ok).map(|view| view.encoding).unwrap_or_default();
    let of_errors =
        if info.is_of_api() { Encoding::of_errors(state.encodings, &parts.headers) } else { Encoding::default() };
    let for_people = pretty::wanted(&info, query, &parts.headers);
    let streams = state.auditor.is_some() || info.long_running();
    let answering = parts.extensions.get::<Answering>().filter(|_| streams).cloned();
    let begun = Begun::of(&parts, state.auditor.is_some());
    let found = Found { begun, trail: OnceLock::new(), flow: OnceLock::new(), warning: OnceLock::new() };
    let work = timing::of(running.timing.clone(), limited(&router, parts, body, info, &found));
    let guarded = AssertUnwindSafe(work).catch_unwind().await;
    let trail = found.trail.into_inner().unwrap_or_default();
    let (response, encoding) = match guarded {
        Ok(Ok(response)) => (response, encoding),
        Ok(Err(error)) => (respond::error(&error), of_errors),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            tracing::error!(path = counted.path, panic = text.unwrap_or("?"), "a request panicked");
            trail.panicked(text.unwrap_or("?")).await;
            let why =
                format!("This request caused apiserver to panic. Look in the logs for details. ({})", counted.path);
            (respond::error(&StatusError::new(500, "InternalError", why)), of_errors)
        }
    };
    let response = audit::observed(trail, response, &counted, answering.as_ref()).await;
    let mut response = match encoding {
        Encoding::Json if for_people => pretty::indented(response),
        encoding => encoding::encoded(response, encoding),
    };
    respond::common_headers(response.headers_mut());
    if let Some(warning) = found.warning.into_inner().or(spaced.then_some(authn::SPACED_TOKEN)) {
        respond::warn_first(&mut response, &[warning.to_owned()]);
    }
    router.web.headers(origin, response.headers_mut());
    if let Some(id) = found.begun.into_id() {
        response.headers_mut().insert(AUDIT_ID, id);
    }
    let mut response = respond::compress(response, accept_encoding.as_ref());
    if head {
        response = respond::head(response);
    }
    if let Some(flow) = found.flow.into_inner() {
        for (name, value) in fairness::HEADERS.into_iter().zip(&flow.headers) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    running.answered(response, answering.as_ref())
}

/// The facts about a request that are found on its way down, and needed on its way up.
struct Found {
    begun: Begun,
    trail: OnceLock<Trail>,
    flow: OnceLock<Arc<Flow>>,
    /// About the credentials.
    warning: OnceLock<&'static str>,
}

impl Found {
    /// The request is refused before it is known who sent it.
    fn refused(&self, router: &Router, parts: &Parts, info: &Arc<Info>, notes: &[Note]) {
        let Some(auditor) = &router.state.auditor else { return };
        let trail = auditor.refuse(parts, info, &self.begun);
        notes.iter().for_each(|(key, text)| trail.annotate(*key, text.clone()));
        let _ = self.trail.set(trail);
    }
}

/// The time that the client gives the request. None, and one of zero, is the server's own.
fn given(query: &str, most: Duration) -> Result<Duration, StatusError> {
    let Some((_, text)) = query_pairs(query).find(|(key, _)| key == "timeout").filter(|(_, text)| !text.is_empty())
    else {
        return Ok(most);
    };
    let wrong = || {
        let number = text.trim_start_matches(['-', '+']);
        let bare = number.starts_with(|c: char| c.is_ascii_digit()) && number.parse::<f64>().is_ok();
        let why = if bare { "missing unit in duration" } else { "invalid duration" };
        StatusError::bad_request(format!("invalid timeout specified in the request URL - time: {why} {}", quote(&text)))
    };
    let nanos = go_duration(&text).ok_or_else(wrong)?;
    let given = u64::try_from(nanos).map(Duration::from_nanos).unwrap_or_default();
    Ok(if given.is_zero() { most } else { given.min(most) })
}

/// Applies the deadline.
async fn limited(
    router: &Router,
    parts: Parts,
    body: Body,
    info: Arc<Info>,
    found: &Found,
) -> Result<Response, StatusError> {
    let long_running = info.long_running();
    // Callers inside this process bound themselves, and must not starve behind clients.
    let internal = parts.extensions.get::<Arc<User>>().is_some();
    let most = router.state.limits.request_timeout;
    let given =
        || given(parts.uri.query().unwrap_or(""), most).inspect_err(|_| found.refused(router, &parts, &info, &[]));
    let timeout = if long_running { None } else { Some(given()?) };
    // The state of a whole request is some kilobytes: every layer above would move them, so they move one pointer.
    let work = Box::pin(authenticated(router, parts, body, info, found));
    let Some(timeout) = timeout else { return work.await };
    timing::ends(Instant::now() + timeout);
    let gate = (!internal).then(|| router.large.clone());
    match clock::timeout(timeout, large::guarded(gate, work)).await {
        Ok(result) => result,
        Err(_) => {
            timing::broken_off();
            Err(StatusError::timeout("Timeout: request did not complete within the allotted timeout"))
        }
    }
}

/// Finds out who asks.
async fn authenticated(
    router: &Router,
    mut parts: Parts,
    body: Body,
    info: Arc<Info>,
    found: &Found,
) -> Result<Response, StatusError> {
    let Known { user, notes } = match parts.extensions.get::<Arc<User>>().cloned() {
        Some(user) => user.into(),
        None => {
            let (metrics, began) = (&router.state.metrics, Instant::now());
            let known = router.state.places.authenticate(&*router.authenticator, &mut parts).await;
            let user = known.as_ref().map(|known| &*known.user).map_err(|stranger| &stranger.error);
            metrics.access.identified(&metrics.all, user, began.elapsed());
            if user.map_or_else(|error| error.code == 401, User::is_anonymous) {
                router.web.leave_stranger(&parts);
            }
            if let Err(Stranger { error, notes }) = &known
                && error.code == 401
            {
                found.refused(router, &parts, &info, notes);
            }
            known.map_err(|stranger| stranger.error)?
        }
    };
    waypoint::apiserver::authenticate(&user.name);
    let known = Known { user, notes };
    match Traced::begin(router.state.tracer.as_ref(), &parts, &info, &known.user, &found.begun) {
        None => identified(router, parts, body, info, known, found).await,
        // Few servers send spans: the others need no room for one beside each request.
        Some(traced) => Box::pin(traced.around(identified(router, parts, body, info, known, found))).await,
    }
}

/// Decides what is audited of the request and, where it asks to act as somebody else, whether that is allowed.
async fn identified(
    router: &Router,
    parts: Parts,
    body: Body,
    info: Arc<Info>,
    Known { user, notes }: Known,
    found: &Found,
) -> Result<Response, StatusError> {
    let auditor = &router.state.auditor;
    let trail = match auditor {
        None => Trail::default(),
        Some(auditor) => {
            let _span = spans::part("audit");
            match auditor.receive(&parts, &info, &user, &found.begun).await {
                Ok(trail) => trail,
                Err(why) => return Ok(respond::failure(&parts.uri, why)),
            }
        }
    };
    let _ = found.trail.set(trail.clone());
    notes.iter().for_each(|(key, text)| trail.annotate(*key, text.clone()));
    if let Some(warning) = authn::warning(&notes) {
        let _ = found.warning.set(warning);
    }
    let (state, impersonation) = (&router.state, router.state.impersonation);
    let user = match impersonation.requested(&parts.headers)? {
        None => user,
        Some(wanted) => {
            let attributes = Attributes::of(&user, &info);
            let act = || impersonation.act(&*state.authorizer, &attributes, &wanted);
            let acting = spans::within(spans::part(impersonation.span()), act).await?;
            let acted_for = Arc::new(acting.user);
            trail.impersonated(&acted_for, acting.constraint);
            acted_for
        }
    };
    authorized(router, parts, body, info, (user, trail), &found.flow).await
}

/// The flow of a request that came over the network. It has its seats until its handler has made the answer, a watch until it has
/// begun; other streams need none.
fn flow(state: &State, parts: &Parts, info: &Info, user: &User) -> Option<Arc<Flow>> {
    parts.extensions.get::<Peer>()?;
    let streams = info.long_running() && info.verb != "watch";
    state.fairness.as_ref().filter(|_| !streams)?.classify(user, info)
}

/// Asks whether the user may do what is asked for, refuses what nothing serves, and hands the rest to what serves it. Handlers get the
/// resolved request, not the method or the path, and none of the caller's credentials.
async fn authorized(
    router: &Router,
    parts: Parts,
    body: Body,
    info: Arc<Info>,
    (user, trail): (Arc<User>, Trail),
    found: &OnceLock<Arc<Flow>>,
) -> Result<Response, StatusError> {
    let state = &router.state;
    let flow = flow(state, &parts, &info, &user);
    if let Some(flow) = &flow {
        let _ = found.set(flow.clone());
    }
    let attributes = Attributes::of(&user, &info);
    match spans::within(spans::part("authorization"), || state.authorize(&attributes, &trail)).await {
        Verdict::Failed(failure) => return Ok(respond::failure(&parts.uri, &failure.error)),
        verdict => permitted(&attributes, verdict)?,
    }
    // Nobody learns what is there but those that may ask for it.
    if let Some(refusal) = &info.refusal {
        return router::refuse(refusal);
    }
    waypoint::apiserver::authorize(&info.path);
    let body = state.places.admit(&parts, body, &info, state.limits.body_bytes).await;
    let body = body.inspect_err(turned_away)?;
    let writes = !matches!(info.verb, "get" | "list" | "watch" | "head");
    let query = parts.uri.query().unwrap_or("").to_owned();
    let seat = match state.fairness.as_ref().zip(flow) {
        Some((fairness, flow)) => {
            let (_waiting, began) = (state.metrics.load.enter(Phase::Waiting, writes), Instant::now());
            let span = spans::part("priorityandfairness");
            let seat = fairness.seat(&flow, &user, &info, &query).await;
            drop(span);
            timing::waited(began.elapsed());
            match seat.inspect_err(turned_away) {
                Ok(seat) => Some(seat),
                Err(error) => return Ok(respond::too_many(&error)),
            }
        }
        None => None,
    };
    let _executing = (!info.long_running()).then(|| state.metrics.load.enter(Phase::Executing, writes));
    let span = traced::handler(&parts, &info);
    let standing = state.places.standing(&parts.extensions, seat);
    let Parts { mut headers, uri, extensions, .. } = parts;
    auth::credentials::strip(&mut headers, &router.identities);
    // HTTP/2 names the host in the URI.
    if let Some(host) = uri.authority().and_then(|host| host.as_str().parse().ok()) {
        headers.entry(header::HOST).or_insert(host);
    }
    waypoint::apiserver::route(&info.path);
    let (state, warnings) = (state.clone(), Default::default());
    let call = Call { state, info, user, trail, query, headers, extensions, body, warnings };
    outside::within(standing, spans::within(span, || router.route(call))).await
}

/// There was no room for a request. (One may say "too many" itself, about what it asks for.)
fn turned_away(error: &StatusError) {
    if error.code == 429 {
        timing::broken_off();
    }
}
