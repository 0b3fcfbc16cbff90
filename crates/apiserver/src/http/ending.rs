//! The server's end, orderly: what is asked from then on is refused where clients are to hear of it, and watches end little by little,
//! so that their clients do not all come to another server at once.
//!
//! Upstream counterpart: apiserver/pkg/server (genericapiserver.go, filters/with_retry_after.go, filters/watch_termination.go).

use std::sync::atomic::{AtomicBool, Ordering};

use clock::{Duration, Instant};
use http::{HeaderValue, StatusCode, Version, header, request::Parts};
use listener::{Answering, Peer};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::body::{Body, Response};
use crate::watch_dispatch::WatchDispatch;

/// Load balancers and monitoring are answered to the end.
const EXEMPT: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];
/// The name with which other API servers ask.
const SERVERS: &str = "kube-apiserver/";
const AGAIN_SECONDS: &str = "5";
/// At least as many watches end in a second.
const WATCHES_PER_SECOND: f64 = 200.0;
/// The pause between two turns of ending watches.
const TURN: Duration = Duration::from_millis(50);

/// Whether the server refuses what is asked, and what it has still to answer.
#[derive(Default)]
pub struct Ending {
    refuses: AtomicBool,
    is_over: AtomicBool,
    open: TaskTracker,
}

impl Ending {
    /// The token that goes along with a request until it is answered; there is none where the server takes no more. Callers inside this
    /// process go on until all others are done.
    pub fn enter(&self, parts: &Parts, long_running: bool) -> Result<Option<TaskTrackerToken>, Refused> {
        if self.is_over.load(Ordering::Acquire) {
            return Err(Refused);
        }
        let path = parts.uri.path();
        let asks =
            parts.headers.get(header::USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(SERVERS.as_bytes()));
        if parts.extensions.get::<Peer>().is_none() || asks || EXEMPT.iter().any(|exempt| path.starts_with(exempt)) {
            return Ok(None);
        }
        let open = (!long_running).then(|| self.open.token());
        if self.refuses.load(Ordering::Acquire) { Err(Refused) } else { Ok(open) }
    }

    /// Refuses what comes from now on, and waits, no longer than this, until what came before is answered.
    pub async fn refuse(&self, most: Duration) {
        self.refuses.store(true, Ordering::Release);
        self.answered(most).await;
    }

    /// Refuses everybody: callers inside this process, whose watches have ended, would begin others behind the end of the audit log.
    pub fn close(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Waits, no longer than this, until everything that has an end of its own is answered.
    pub async fn answered(&self, most: Duration) {
        self.open.close();
        let _ = clock::timeout(most, self.open.wait()).await;
    }
}

/// The server takes no more requests.
#[derive(Debug)]
pub struct Refused;

/// The answer to a request that is refused: its client comes again over another connection, perhaps to another server.
pub fn refusal(parts: &Parts) -> Response {
    if let Some(answering) = parts.extensions.get::<Answering>() {
        answering.end_connection();
    }
    let mut response = Response::new(Body::from("The apiserver is shutting down, please try again later.\n"));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static(AGAIN_SECONDS));
    if parts.version <= Version::HTTP_11 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Ends all watches within this time, those that begin meanwhile too.
pub async fn end_watches(watches: &WatchDispatch, within: Duration) {
    let until = Instant::now() + within;
    let rate = (watches.watchers() as f64 / within.as_secs_f64().max(TURN.as_secs_f64())).max(WATCHES_PER_SECOND);
    while watches.watchers() > 0 && Instant::now() < until {
        watches.end_some((rate * TURN.as_secs_f64()).ceil() as usize);
        clock::sleep(TURN).await;
    }
    watches.end_some(usize::MAX);
}
