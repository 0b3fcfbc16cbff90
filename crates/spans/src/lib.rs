//! Spans of traces, for a collector that speaks OTLP: which part of a request took how long, also across processes.
//!
//! `context` is the header by which a trace goes from one process to the next, `config` upstream's TracingConfiguration, `facts` is what
//! is known of a span, `messages` the protocol, and `export` sends in batches. Whoever makes spans never waits for the collector: what
//! has no room is lost, and counted.
//!
//! Without a tracer, and in a trace that is not sent, a part of the work is no span: [`part`] and [`event`] then look at one thread-local
//! value and neither allocate nor ask for the time, and [`within`] awaits the work as if it were not there.
//! Upstream counterpart: k8s.io/component-base/tracing, go.opentelemetry.io/otel/sdk.

pub mod config;
mod context;
mod export;
mod facts;
pub mod messages;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use clock::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;

pub use context::Context;
pub use export::{EXPORT, run};
pub use facts::{Attribute, Event, Facts, Side};

/// Spans that wait to be sent; upstream's number.
const QUEUE: usize = 2048;

tokio::task_local! {
    static CURRENT: Arc<Open>;
}

/// Makes the spans of a process.
#[derive(Debug)]
pub struct Tracer {
    queue: mpsc::Sender<Facts>,
    per_million: u32,
    lost: AtomicU64,
}

impl Tracer {
    /// The number of traces that are sent of a million that begin here. Spans come out of the receiver.
    pub fn new(per_million: u32) -> (Arc<Self>, mpsc::Receiver<Facts>) {
        let (queue, spans) = mpsc::channel(QUEUE);
        (Arc::new(Tracer { queue, per_million, lost: AtomicU64::new(0) }), spans)
    }

    /// A span of a request that came with this context, if with any. A caller who is trusted decides whether the trace is sent; the
    /// trace of any other caller is only linked, lest everybody could fill the collector, or choose the traces of others.
    pub fn serve(self: &Arc<Self>, name: Cow<'static, str>, came_with: Option<Context>, trusted: bool) -> Span {
        match came_with {
            Some(parent) if trusted => self.begin(parent.child(), || Facts::new(name, Side::Server).below(parent.span)),
            link => self.begin(Context::root(self.per_million), || Facts { link, ..Facts::new(name, Side::Server) }),
        }
    }

    /// The first span of work that nobody asked for.
    pub fn root(self: &Arc<Self>, name: &'static str) -> Span {
        self.begin(Context::root(self.per_million), || Facts::new(name.into(), Side::Internal))
    }

    fn begin(self: &Arc<Self>, context: Context, facts: impl FnOnce() -> Facts) -> Span {
        let facts = context.sampled.then(|| Facts { context, ..facts() });
        Span(Arc::new(Open { tracer: self.clone(), context, facts: Mutex::new(facts) }))
    }

    /// The number of spans that there was no room for.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A span as the work on it knows it.
#[derive(Debug)]
struct Open {
    tracer: Arc<Tracer>,
    context: Context,
    /// `None` where the trace is not sent, and when the span is over.
    facts: Mutex<Option<Facts>>,
}

impl Open {
    fn note(&self, note: impl FnOnce(&mut Facts)) {
        if self.context.sampled
            && let Some(facts) = &mut *self.facts.lock()
        {
            note(facts);
        }
    }

    fn below(&self, name: Cow<'static, str>, side: Side) -> Span {
        self.tracer.begin(self.context.child(), || Facts::new(name, side).below(self.context.span))
    }
}

/// A span that goes on. It ends when it is dropped, also with work that is broken off.
#[derive(Debug)]
pub struct Span(Arc<Open>);

impl Span {
    pub fn context(&self) -> Context {
        self.0.context
    }

    /// Says that the span began earlier than it was known that there is one.
    #[must_use]
    pub fn since(self, began: Timestamp) -> Self {
        self.0.note(|facts| facts.began = began);
        self
    }

    pub fn set(&mut self, name: &'static str, value: impl Into<Attribute>) {
        self.0.note(|facts| facts.set(name, value.into()));
    }

    /// The answer to a question over HTTP; `None` where there was none.
    pub fn answered(&mut self, code: Option<u16>) {
        match code {
            Some(code) => self.set("http.response.status_code", code),
            None => self.fail(),
        }
        // A question that is refused has failed.
        if code.is_some_and(|code| code >= 400) {
            self.fail();
        }
    }

    /// The work came to nothing.
    pub fn fail(&mut self) {
        self.0.note(|facts| facts.failed = true);
    }

    /// A part of the span's work; `None` where the trace is not sent.
    pub fn part(&self, name: &'static str) -> Option<Span> {
        self.context().sampled.then(|| self.0.below(name.into(), Side::Internal))
    }

    /// Work that belongs to the span and waits for nothing.
    pub fn over<T>(&self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.0.clone(), work)
    }

    /// The work that belongs to the span: [`child`], [`part`] and [`event`] find it there.
    pub fn around<W: Future>(&self, work: W) -> impl Future<Output = W::Output> + use<W> {
        CURRENT.scope(self.0.clone(), work)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(mut facts) = self.0.facts.lock().take() else { return };
        facts.ended = clock::now();
        let tracer = &self.0.tracer;
        if tracer.queue.try_send(facts).is_err() {
            tracer.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A span of a question to another process, within the work on the current one. There is one also where the trace is not sent: the
/// other process has to know that.
pub fn child(name: impl Into<Cow<'static, str>>) -> Option<Span> {
    CURRENT.try_with(|open| open.below(name.into(), Side::Client)).ok()
}

/// A span of a question over HTTP, and the header that it goes with.
pub fn ask(method: &str, server: &str) -> Option<(Span, String)> {
    let name = match method {
        "GET" => "HTTP GET",
        "POST" => "HTTP POST",
        "PUT" => "HTTP PUT",
        "PATCH" => "HTTP PATCH",
        "DELETE" => "HTTP DELETE",
        _ => "HTTP",
    };
    let mut span = child(name)?;
    span.set("http.request.method", method);
    span.set("server.address", server);
    let header = span.context().header();
    Some((span, header))
}

/// A part of the work on the current span; `None` where there is none, or where its trace is not sent.
pub fn part(name: &'static str) -> Option<Span> {
    CURRENT.try_with(|open| open.context.sampled.then(|| open.below(name.into(), Side::Internal))).ok().flatten()
}

/// The place of the current work in its trace, for a question to another process.
pub fn current() -> Option<Context> {
    CURRENT.try_with(|open| open.context).ok()
}

/// Does the work as that of the span. The work and its span are in one allocation of their own, so that those who have no span need no
/// room for one.
pub async fn within<W: Future>(span: Option<Span>, work: impl FnOnce() -> W) -> W::Output {
    match span {
        None => work().await,
        Some(span) => Box::pin(span.around(work())).await,
    }
}

/// Says more about the current span.
pub fn set<A: Into<Attribute>>(name: &'static str, value: impl FnOnce() -> A) {
    let _ = CURRENT.try_with(|open| open.note(|facts| facts.set(name, value().into())));
}

/// A point in time in the work on the current span.
pub fn event(name: &'static str) {
    event_with(name, || []);
}

/// Says what was wrong with the work on the current span, as OpenTelemetry does.
pub fn error(why: &str) {
    event_with("exception", || [("exception.message", why.into())]);
}

/// An event, and what is to be said about it.
pub fn event_with<const N: usize>(name: &'static str, about: impl FnOnce() -> [(&'static str, Attribute); N]) {
    let _ = CURRENT.try_with(|open| open.note(|facts| facts.add(name, about().into())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came(text: &str) -> Option<Context> {
        Some(Context::parse(text).unwrap())
    }

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[tokio::test]
    async fn only_trusted_callers_decide_what_is_sent() {
        let (tracer, mut spans) = Tracer::new(0);
        drop(tracer.serve("GET".into(), came(SAMPLED), false));
        drop(tracer.serve("GET".into(), None, true));
        drop(tracer.serve("GET".into(), came(UNSAMPLED), true));
        assert!(spans.try_recv().is_err(), "none of these is sent");
        drop(tracer.serve("GET".into(), came(SAMPLED), true));
        let sent = spans.try_recv().unwrap();
        assert_eq!((sent.context.trace, sent.parent), (0x0af7651916cd43dd8448eb211c80319c, Some(0xb7ad6b7169203331)));
        let (tracer, mut spans) = Tracer::new(1_000_000);
        drop(tracer.serve("GET".into(), came(UNSAMPLED), false));
        let sent = spans.try_recv().unwrap();
        assert_ne!(sent.context.trace, 0x0af7651916cd43dd8448eb211c80319c, "a stranger chooses no trace");
        assert_eq!((sent.parent, sent.link), (None, came(UNSAMPLED)));
    }

    #[tokio::test]
    async fn work_finds_its_span_and_children_are_of_one_trace() {
        let (tracer, mut spans) = Tracer::new(1_000_000);
        assert!(child("HTTP POST").is_none());
        let mut span = tracer.serve("POST /api".into(), None, false);
        span.set("url.path", &*"ä".repeat(1024));
        span.around(async { child("HTTP POST").unwrap().fail() }).await;
        let asked = spans.try_recv().unwrap();
        assert_eq!((asked.context.trace, asked.parent), (span.context().trace, Some(span.context().span)));
        assert_eq!((asked.side, asked.failed), (Side::Client, true));
        drop(span);
        let Attribute::Text(path) = spans.try_recv().unwrap().attributes.remove(0).1 else { panic!("a text") };
        assert_eq!(path.len(), 1024);
    }

    #[tokio::test]
    async fn whoever_makes_spans_never_waits() {
        let (tracer, mut spans) = Tracer::new(1_000_000);
        for _ in 0..QUEUE + 3 {
            drop(tracer.serve("GET".into(), None, false));
        }
        assert_eq!((tracer.lost(), spans.len()), (3, QUEUE));
        spans.close();
        drop(tracer.serve("GET".into(), None, false));
        assert_eq!(tracer.lost(), 4);
    }

    #[tokio::test]
    async fn parts_and_events_belong_to_the_innermost_work() {
        let (tracer, mut spans) = Tracer::new(1_000_000);
        let served = tracer.serve("GET".into(), None, false);
        let work = || async {
            event_with("read", || [("len", 7usize.into())]);
            within(part("Get etcd3"), || async { event("found") }).await;
            assert_eq!(child("HTTP POST").unwrap().context().trace, served.context().trace);
        };
        served.around(within(served.part("Get"), work)).await;
        let sent: Vec<Facts> = std::iter::from_fn(|| spans.try_recv().ok()).collect();
        let [inner, asked, outer] = &sent[..] else { panic!("{sent:?}") };
        let events = |facts: &Facts| facts.events.iter().map(|event| event.name).collect::<Vec<_>>();
        assert_eq!((&*inner.name, events(inner), inner.side), ("Get etcd3", vec!["found"], Side::Internal));
        assert_eq!((&*outer.name, events(outer), outer.side), ("Get", vec!["read"], Side::Internal));
        assert_eq!(outer.events[0].attributes, [("len", Attribute::Number(7))]);
        let above = [inner, asked, outer].map(|facts| facts.parent.unwrap());
        assert_eq!(above, [outer.context.span, outer.context.span, served.context().span]);
    }

    #[tokio::test]
    async fn a_trace_that_is_not_sent_has_no_parts() {
        let (tracer, mut spans) = Tracer::new(0);
        let served = tracer.serve("GET".into(), None, false);
        assert!(served.part("Get").is_none() && part("Get").is_none());
        let work = async {
            assert!(part("Get").is_none());
            event_with("read", || -> [_; 0] { panic!("nobody is told") });
            // The next process learns that it is not sent either.
            assert!(!child("HTTP POST").unwrap().context().sampled);
        };
        served.around(work).await;
        drop(served);
        assert!(spans.try_recv().is_err());
    }
}
