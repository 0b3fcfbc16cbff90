//! Faults between a component and the API server: requests that are delayed, refused, or carried out without the caller
//! learning of it, and watches that break off.

use std::{
    future::Future,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use apiserver::server::InProcess;
use bytes::Bytes;
use client::Body;
use clock::Duration;
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use parking_lot::Mutex;
use tower::{BoxError, Service};

use crate::{
    duty::{self, Component},
    leaders::Leader,
    sabotage,
    usage::Usage,
};

/// How bad it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Of 1000 requests, how many do not reach the server.
    pub refused: u64,
    /// Of 1000 requests, how many are carried out but never answered.
    pub unanswered: u64,
    /// Of 1000 requests, how many the server turns away because it has too much to do.
    pub overloaded: u64,
    pub delay_ms: Range<u64>,
    /// After how long a watch breaks off; empty for never.
    pub watch_ms: Range<u64>,
    /// Only watches of these objects break off, if it says some.
    pub broken: &'static str,
    /// The managers get no list and no new watch of these objects, but of their metadata.
    pub unseen: &'static str,
    /// Their metadata is unseen too, which is all that the garbage collector asks for.
    pub unseen_metadata: bool,
}

impl Faults {
    pub const NONE: Faults = Faults {
        refused: 0,
        unanswered: 0,
        overloaded: 0,
        delay_ms: 0..1,
        watch_ms: 0..0,
        broken: "",
        unseen: "",
        unseen_metadata: false,
    };

    /// A very bad network.
    pub const STORM: Faults = Faults { refused: 30, delay_ms: 0..200, watch_ms: 500..20_000, ..Faults::NONE };

    /// A server that has too much to do: a third of the requests is told to come again later, also watches and lists.
    pub const OVERLOAD: Faults = Faults { overloaded: 333, delay_ms: 0..1000, watch_ms: 2_000..60_000, ..Faults::NONE };

    /// A storm in which answers are lost too. A controller that does not learn that a delete was carried out, and sees old
    /// caches, may delete another Pod as well: neither upstream nor skiff promises that enough Pods serve then.
    pub const LOSSY_STORM: Faults = Faults { unanswered: 15, ..Faults::STORM };
}

impl Faults {
    /// Watches of these objects break off all the time, and nothing else is wrong.
    pub const fn broken_watches_of(objects: &'static str) -> Faults {
        Faults { watch_ms: 500..3_000, broken: objects, ..Faults::NONE }
    }

    /// After how long this watch breaks off.
    fn breaks_off(&self, path: &str) -> Option<Duration> {
        let [_, resource, ..] = duty::parts(path);
        let breaks = !self.watch_ms.is_empty() && (self.broken.is_empty() || self.broken == resource);
        breaks.then(|| Duration::from_millis(random(&self.watch_ms)))
    }

    fn hide(&self, sender: Option<Component>, request: &Request<Body>) -> bool {
        let [_, resource, name, _] = duty::parts(request.uri().path());
        let metadata = request.headers().get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok());
        !self.unseen.is_empty()
            && matches!(sender, Some(Component::Manager(_)))
            && (request.method(), resource, name) == (&Method::GET, self.unseen, "")
            && (self.unseen_metadata || !metadata.is_some_and(|accept| accept.contains("PartialObjectMetadata")))
    }
}

/// The faults of now, shared by all connections; a test changes them as it goes.
#[derive(Clone)]
pub struct Weather {
    faults: Arc<Mutex<Faults>>,
    /// Requests that were not their sender's to make.
    trespasses: Arc<Mutex<Vec<String>>>,
    leader: Leader,
    pub usage: Usage,
}

impl Weather {
    pub fn new(faults: Faults, usage: Usage) -> Self {
        let (faults, trespasses) = (Arc::new(Mutex::new(faults)), Arc::default());
        Weather { faults, trespasses, leader: Leader::default(), usage }
    }

    pub fn set(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    pub fn now(&self) -> Faults {
        self.faults.lock().clone()
    }

    pub fn trespasses(&self) -> Vec<String> {
        self.trespasses.lock().clone()
    }

    fn watch_over(&self, sender: Option<Component>, method: &Method, path: &str) {
        let Some(sender) = sender else { return };
        if !duty::may_send(sender, method, path) {
            self.trespasses.lock().push(format!("{sender:?} sent {method} {path}"));
        }
        if self.leader.objects(sender, method, path) {
            self.trespasses.lock().push(format!("{sender:?} does not lead and sent {method} {path}"));
        }
    }
}

/// The way to the server, as long as there is one: a server that is down refuses connections.
#[derive(Clone, Default)]
pub struct Line(Arc<Mutex<Option<InProcess>>>);

impl Line {
    pub fn connect(&self, server: InProcess) {
        *self.0.lock() = Some(server);
    }

    pub fn cut(&self) {
        *self.0.lock() = None;
    }
}

impl Service<Request<Body>> for Line {
    type Response = Response<apiserver::http::body::Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.0.lock().clone();
        Box::pin(async move {
            let mut server = server.ok_or_else(|| broken("the server of the simulation is down"))?;
            server.call(request).await.map_err(Into::into)
        })
    }
}

fn random(range: &Range<u64>) -> u64 {
    if range.is_empty() { range.start } else { clock::random_range(range.clone()) }
}

fn happens(per_mille: u64) -> bool {
    per_mille > 0 && clock::random_range(0..1000) < per_mille
}

/// How long a request takes at least. Whoever goes in a circle makes time pass, so that a circle does not hide in a moment.
const LEAST_MS: u64 = 1;

fn broken(what: &'static str) -> BoxError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, what).into()
}

/// A service behind bad weather.
#[derive(Clone)]
pub struct Faulty<S> {
    pub service: S,
    pub weather: Weather,
    /// The component that sends these requests.
    pub sender: Option<Component>,
}

/// The body of an answer: the server's bytes, possibly cut off.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

impl<S, B> Service<Request<Body>> for Faulty<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut service, faults) = (self.service.clone(), self.weather.now());
        let (weather, sender) = (self.weather.clone(), self.sender);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        Box::pin(async move {
            clock::sleep(Duration::from_millis(random(&faults.delay_ms).max(LEAST_MS))).await;
            if happens(faults.refused) || faults.hide(sender, &request) {
                return Err(broken("connection refused by the simulation"));
            }
            if happens(faults.overloaded) {
                return Ok(turned_away());
            }
            let query = request.uri().query().unwrap_or("");
            if let Some(usage) = weather.usage.answer(&path, query) {
                return Ok(answer(200, &usage));
            }
            let watch = query.contains("watch=");
            weather.watch_over(sender, &method, &path);
            let response = match sender {
                Some(Component::Manager(_) | Component::Scheduler) if method != Method::GET => {
                    let mut sent = sabotage::changed(request).await.into_iter();
                    let first = sent.next().ok_or_else(|| broken("nothing is sent"))?;
                    let response = service.call(first).await.map_err(Into::into)?;
                    for other in sent {
                        let _ = service.call(other).await;
                    }
                    response
                }
                _ => service.call(request).await.map_err(Into::into)?,
            };
            if let Some(sender) = sender.filter(|_| response.status().is_success()) {
                weather.leader.note(sender, &method, &path);
            }
            if !watch && happens(faults.unanswered) {
                return Err(broken("connection lost by the simulation"));
            }
            clock::sleep(Duration::from_millis(random(&faults.delay_ms))).await;
            let cut = watch.then(|| faults.breaks_off(&path)).flatten();
            Ok(response.map(|body| cut_off(body, cut)))
        })
    }
}

/// The answer of a server that has too much to do.
fn turned_away() -> Response<AnswerBody> {
    let status = api::status::StatusError::too_many_requests("the simulation is overloaded", 1);
    let mut response = answer(429, &status.to_status());
    response.headers_mut().insert("retry-after", http::HeaderValue::from_static("1"));
    response
}

fn answer(code: u16, content: &impl serde::Serialize) -> Response<AnswerBody> {
    let text = serde_json::to_vec(content).expect("objects are JSON");
    let body = http_body_util::Full::new(Bytes::from(text)).map_err(|never| match never {});
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(UnsyncBoxBody::new(body)).expect("constant headers")
}

/// The body, broken off after a while if `cut` says so.
fn cut_off<B>(body: B, cut: Option<Duration>) -> AnswerBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let frames = BodyStream::new(body).map(|frame| frame.map_err(Into::into));
    match cut {
        None => UnsyncBoxBody::new(StreamBody::new(frames)),
        Some(after) => {
            let end = futures::stream::once(async { Err(broken("watch cut off by the simulation")) });
            UnsyncBoxBody::new(StreamBody::new(frames.take_until(Box::pin(clock::sleep(after))).chain(end)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    async fn answers(faults: Faults) -> usize {
        clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
        let service = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
        });
        let mut faulty = Faulty { service, weather: Weather::new(faults, Usage::default()), sender: None };
        let mut arrived = 0;
        for _ in 0..100 {
            arrived += usize::from(faulty.call(Request::new(Body::empty())).await.is_ok());
        }
        arrived
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_lost_as_often_as_said() {
        assert_eq!(answers(Faults::NONE).await, 100);
        assert_eq!(answers(Faults { refused: 1000, ..Faults::NONE }).await, 0);
        assert_eq!(answers(Faults { overloaded: 1000, ..Faults::NONE }).await, 100, "it answers");
        let some = answers(Faults { unanswered: 500, ..Faults::NONE }).await;
        assert!((20..80).contains(&some), "{some}");
    }

    #[tokio::test(start_paused = true)]
    async fn watches_break_off() {
        clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
        let service = tower::service_fn(|_: Request<Body>| async {
            let quiet = futures::stream::pending::<Result<http_body::Frame<Bytes>, BoxError>>();
            Ok::<_, std::convert::Infallible>(Response::new(UnsyncBoxBody::new(StreamBody::new(quiet))))
        });
        let faults = Faults { watch_ms: 1000..1001, ..Faults::NONE };
        for (faults, breaks) in [
            (Faults { broken: "pods", ..faults.clone() }, true),
            (Faults { broken: "nodes", ..faults.clone() }, false),
            (faults, true),
        ] {
            let mut faulty = Faulty { service, weather: Weather::new(faults, Usage::default()), sender: None };
            let request = Request::builder().uri("/api/v1/pods?watch=true").body(Body::empty()).unwrap();
            let body = faulty.call(request).await.unwrap().into_body();
            let ended = clock::timeout(Duration::from_secs(10), body.collect()).await;
            assert_eq!(ended.is_ok_and(|read| read.is_err()), breaks);
        }
    }
}
