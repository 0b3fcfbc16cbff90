//! Spans of traces, for a collector that speaks OTLP: which part of a request took how long, also across processes.
//!
//! `context` is the header by which a trace goes from one process to the next, `config` upstream's TracingConfiguration, `messages` the
//! protocol, and `export` sends in batches. Whoever makes spans never waits for the collector: what has no room is lost, and counted.
//! Upstream counterpart: k8s.io/component-base/tracing, go.opentelemetry.io/otel/sdk.

pub mod config;
mod context;
mod export;
pub mod messages;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use clock::Timestamp;
use tokio::sync::mpsc;

pub use context::Context;
pub use export::{EXPORT, run};

/// Spans that wait to be sent; upstream's number.
const QUEUE: usize = 2048;
/// Longer values are cut: clients choose some of them.
const VALUE_BYTES: usize = 1024;
const ATTRIBUTES: usize = 32;

tokio::task_local! {
    static CURRENT: (Arc<Tracer>, Context);
}

/// The side of a call that a span shows. The numbers are the protocol's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Side {
    Server = 2,
    Client = 3,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Number(i64),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        let mut end = text.len().min(VALUE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Attribute::Text(text[..end].to_owned())
    }
}

impl From<u16> for Attribute {
    fn from(number: u16) -> Self {
        Attribute::Number(number.into())
    }
}

/// Everything about a span that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub context: Context,
    pub parent: Option<u64>,
    /// Another trace that this one came from without belonging to it.
    pub link: Option<Context>,
    pub name: Cow<'static, str>,
    pub side: Side,
    pub began: Timestamp,
    pub ended: Timestamp,
    pub attributes: Vec<(&'static str, Attribute)>,
    pub failed: bool,
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
            Some(parent) if trusted => self.begin(name, Side::Server, parent.child(), Some(parent.span), None),
            link => self.begin(name, Side::Server, Context::root(self.per_million), None, link),
        }
    }

    fn begin(
        self: &Arc<Self>,
        name: Cow<'static, str>,
        side: Side,
        context: Context,
        parent: Option<u64>,
        link: Option<Context>,
    ) -> Span {
        let (began, attributes) = (clock::now(), Vec::new());
        let facts = Facts { context, parent, link, name, side, began, ended: began, attributes, failed: false };
        Span { tracer: self.clone(), facts }
    }

    /// The number of spans that there was no room for.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A span that goes on. It ends when it is dropped, also with work that is broken off.
#[derive(Debug)]
pub struct Span {
    tracer: Arc<Tracer>,
    facts: Facts,
}

impl Span {
    pub fn context(&self) -> Context {
        self.facts.context
    }

    pub fn set(&mut self, name: &'static str, value: impl Into<Attribute>) {
        if self.facts.context.sampled && self.facts.attributes.len() < ATTRIBUTES {
            self.facts.attributes.push((name, value.into()));
        }
    }

    /// The work came to nothing.
    pub fn fail(&mut self) {
        self.facts.failed = true;
    }

    /// The work that belongs to the span: [`child`] finds it there.
    pub fn around<W: Future>(&self, work: W) -> impl Future<Output = W::Output> + use<W> {
        CURRENT.scope((self.tracer.clone(), self.facts.context), work)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if !self.facts.context.sampled {
            return;
        }
        self.facts.ended = clock::now();
        if self.tracer.queue.try_send(self.facts.clone()).is_err() {
            self.tracer.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A span of a question to another process, within the work on the current one.
pub fn child(name: &'static str) -> Option<Span> {
    CURRENT
        .try_with(|(tracer, parent)| {
            tracer.begin(Cow::Borrowed(name), Side::Client, parent.child(), Some(parent.span), None)
        })
        .ok()
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
        span.set("url.path", &*"ä".repeat(VALUE_BYTES));
        span.around(async { child("HTTP POST").unwrap().fail() }).await;
        let asked = spans.try_recv().unwrap();
        assert_eq!((asked.context.trace, asked.parent), (span.context().trace, Some(span.context().span)));
        assert_eq!((asked.side, asked.failed), (Side::Client, true));
        drop(span);
        let Attribute::Text(path) = spans.try_recv().unwrap().attributes.remove(0).1 else { panic!("a text") };
        assert_eq!(path.len(), VALUE_BYTES);
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
}
