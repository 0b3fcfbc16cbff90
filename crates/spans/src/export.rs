//! Spans sent in batches. A batch that the collector does not take is lost, and the log says so now and then.

use clock::Duration;
use tokio::sync::mpsc;

use crate::{
    context::Context,
    facts::{self, Attribute, Facts},
    messages::{
        AnyValue, Event, ExportTraceServiceRequest, KeyValue, Kind, Link, Resource, ResourceSpans, Scope, ScopeSpans,
        Span, Status,
    },
};

/// The method of the collector.
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Upstream's numbers: a batch is sent when it is full, or this time after its first span.
const BATCH: usize = 512;
const DELAY: Duration = Duration::from_secs(5);

/// Sends what comes until nobody makes spans any more. `about` says whose they are. The sender has a limit in time of its own.
pub async fn run<S>(
    mut spans: mpsc::Receiver<Facts>,
    about: Vec<(&'static str, String)>,
    send: impl Fn(ExportTraceServiceRequest) -> S,
) where
    S: Future<Output = Result<(), String>>,
{
    let mut failing = false;
    let mut batch = Vec::new();
    while spans.recv_many(&mut batch, BATCH).await > 0 {
        let full = async {
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                if spans.recv_many(&mut batch, room).await == 0 {
                    break;
                }
            }
        };
        // An early batch is as good as a full one.
        let _ = clock::timeout(DELAY, full).await;
        let count = batch.len();
        match send(request(std::mem::take(&mut batch), &about)).await {
            Ok(()) => failing = false,
            // Once for each time that the collector goes away.
            Err(why) if !failing => {
                failing = true;
                tracing::warn!(
                    why,
                    spans = count,
                    "the collector of traces takes no spans; those that it does not take are lost"
                );
            }
            Err(why) => tracing::debug!(why, spans = count, "spans are lost"),
        }
    }
}

fn request(spans: Vec<Facts>, about: &[(&'static str, String)]) -> ExportTraceServiceRequest {
    let about = about.iter().map(|(name, value)| attribute(name, Attribute::Text(value.clone())));
    let scope = Scope { name: "skiff".to_owned() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans: spans.into_iter().map(span).collect() }];
    let resource = Some(Resource { attributes: about.collect() });
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
}

fn attribute(name: &str, value: Attribute) -> KeyValue {
    let kind = match value {
        Attribute::Text(text) => Kind::Text(text),
        Attribute::Number(number) => Kind::Number(number),
    };
    KeyValue { key: name.to_owned(), value: Some(AnyValue { kind: Some(kind) }) }
}

fn attributes(all: Vec<(&'static str, Attribute)>) -> Vec<KeyValue> {
    all.into_iter().map(|(name, value)| attribute(name, value)).collect()
}

fn span(facts: Facts) -> Span {
    let nanoseconds = |time: clock::Timestamp| u64::try_from(time.as_nanosecond()).unwrap_or(0);
    let link =
        |link: Context| Link { trace_id: link.trace.to_be_bytes().to_vec(), span_id: link.span.to_be_bytes().to_vec() };
    let event = |event: facts::Event| Event {
        time_unix_nano: nanoseconds(event.at),
        name: event.name.to_owned(),
        attributes: attributes(event.attributes),
    };
    // A client's own mistake is no failure of the server, which says so itself; a question that is refused has failed.
    let code = if facts.failed { 2 } else { 0 };
    Span {
        trace_id: facts.context.trace.to_be_bytes().to_vec(),
        span_id: facts.context.span.to_be_bytes().to_vec(),
        parent_span_id: facts.parent.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
        name: facts.name.into_owned(),
        kind: facts.side as i32,
        start_time_unix_nano: nanoseconds(facts.began),
        end_time_unix_nano: nanoseconds(facts.ended),
        attributes: attributes(facts.attributes),
        events: facts.events.into_iter().map(event).collect(),
        links: facts.link.map(link).into_iter().collect(),
        status: Some(Status { code }),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;
    use crate::Tracer;

    #[tokio::test(start_paused = true)]
    async fn spans_go_out_in_batches_and_a_collector_that_is_away_stops_nothing() {
        let (tracer, spans) = Tracer::new(1_000_000);
        for _ in 0..BATCH + 1 {
            drop(tracer.serve("GET".into(), None, false));
        }
        drop(tracer);
        let sent = Rc::new(RefCell::new(Vec::new()));
        let seen = sent.clone();
        let send = |request: ExportTraceServiceRequest| {
            seen.borrow_mut().push(request);
            std::future::ready(if seen.borrow().len() == 1 { Err("away".to_owned()) } else { Ok(()) })
        };
        run(spans, vec![("service.name", "apiserver".to_owned())], send).await;
        let counts: Vec<usize> =
            sent.borrow().iter().map(|request| request.resource_spans[0].scope_spans[0].spans.len()).collect();
        assert_eq!(counts, [BATCH, 1]);
        let first = &sent.borrow()[0].resource_spans[0];
        assert_eq!(first.resource.as_ref().unwrap().attributes[0].key, "service.name");
        let span = &first.scope_spans[0].spans[0];
        assert_eq!((span.kind, span.trace_id.len(), span.span_id.len(), span.parent_span_id.len()), (2, 16, 8, 0));
    }
}
