//! Keeps a copy of a collection current for ever: one list, then one watch from the list's revision.
//!
//! When the watch ends it is resumed from the last revision seen; when the server no longer has that revision, or has not come
//! to it, everything is listed anew. Objects stay text here; what is made of them is the [`Sink`]'s business.

use std::{marker::PhantomData, time::Duration};

use api::object::{MetadataOnly, Object};
use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt, stream::BoxStream};
use http::Method;
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    Client, Error,
    error::Status,
    rest::{self, Collection},
};

/// Takes what the server says about a collection, as JSON text.
pub trait Sink: Send + Sync {
    /// Begins a new list of everything there is.
    fn list(&self) -> Box<dyn Listing + '_>;
    /// An object was made or has changed. Returns its revision.
    fn apply(&self, object: &str) -> Result<u64, serde_json::Error>;
    /// An object is gone. Returns the revision of its removal.
    fn delete(&self, object: &str) -> Result<u64, serde_json::Error>;
    /// A bookmark: nothing else happened up to `revision`.
    fn advance(&self, revision: u64);
    /// Whether changes are told of from now on; while they are not, no news says nothing.
    fn listening(&self, _listens: bool) {}
}

/// A watch that is open: its sink listens for as long as this lives.
struct Listening<'a>(&'a dyn Sink);

impl<'a> Listening<'a> {
    fn begin(sink: &'a dyn Sink) -> Self {
        sink.listening(true);
        Listening(sink)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.listening(false);
    }
}

/// Everything there is, as it comes in, page by page.
pub trait Listing: Send {
    fn add(&mut self, object: &str) -> Result<(), serde_json::Error>;
    /// That was everything, as of `revision`.
    fn finish(self: Box<Self>, revision: u64);
}

/// The revision in an object's metadata; 0 when it has none.
pub fn revision_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// How long a failed list or watch waits before it is tried again, doubling from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// How many objects one request of a list asks for.
const PAGE: &str = "500";

/// How long the server is asked to keep one watch, in seconds; a random time in this range, so that the watches of
/// many clients do not end together. On a network a connection may fall silent, which the end of a watch brings to light;
/// within one process it cannot, and there each watch that begins anew is only work and a line of the audit log.
const WATCH_SECONDS: std::ops::Range<u64> = 200..290;
const WATCH_SECONDS_IN_PROCESS: std::ops::Range<u64> = 3000..3600;

/// How long one event may be: several times the largest object that a server stores.
const EVENT_BYTES: usize = 16 << 20;

/// Feeds `sink` from a collection. Never returns.
pub async fn reflect(client: &Client, collection: &Collection, sink: &dyn Sink) {
    let mut wait = RETRY.0;
    let mut from: Option<u64> = None;
    loop {
        let started = clock::Instant::now();
        let outcome = match from {
            None => list(client, collection, sink).await.map(Some),
            Some(revision) => watch(client, collection, sink, revision).await,
        };
        match outcome {
            Ok(next) => {
                // A watch that the server ends at once must not become a busy loop.
                if from.is_some() && next == from && started.elapsed() < RETRY.0 {
                    clock::sleep(RETRY.0).await;
                }
                from = next;
                wait = RETRY.0;
            }
            Err(error) => {
                tracing::debug!(kind = collection.resource.kind, %error, "list or watch failed, trying again");
                let jitter = clock::random_range(0..wait.as_millis() as u64 / 2);
                clock::sleep(wait + Duration::from_millis(jitter)).await;
                wait = (wait * 2).min(RETRY.1);
            }
        }
    }
}

async fn list(client: &Client, collection: &Collection, sink: &dyn Sink) -> Result<u64, Error> {
    let mut listing = sink.list();
    let mut token = String::new();
    loop {
        let mut query = vec![("limit", PAGE)];
        if !token.is_empty() {
            query.push(("continue", &token));
        }
        let text = rest::read(client, &collection.path(&query), collection.form).await?;
        let page = rest::page(&text)?;
        for object in page.items {
            listing.add(object.get()).map_err(Error::Decode)?;
        }
        token = page.metadata.continue_.unwrap_or_default();
        if token.is_empty() {
            let revision = page.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
            listing.finish(revision);
            return Ok(revision);
        }
    }
}

/// One line of a watch.
#[derive(Debug, PartialEq)]
struct Event<'a> {
    kind: &'a str,
    object: &'a str,
}

impl<'a> Event<'a> {
    /// The event in a line, whatever else stands in it.
    fn read(line: &'a str) -> Result<Event<'a>, Error> {
        #[derive(Deserialize)]
        struct Read<'a> {
            #[serde(rename = "type")]
            kind: &'a str,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        let Read { kind, object } = parsed(line)?;
        Ok(Event { kind, object: object.get() })
    }

    /// The event in a line as servers write it, without a look at the object, which its reader reads anyway. Where the object
    /// turns out to be none, [`Event::read`] knows what the line is.
    fn framed(line: &'a str) -> Option<Event<'a>> {
        let (kind, rest) = line.trim_end().strip_prefix("{\"type\":\"")?.split_once('"')?;
        let object = rest.strip_prefix(",\"object\":")?.strip_suffix('}')?;
        kind.bytes().all(|byte| byte.is_ascii_uppercase()).then_some(Event { kind, object })
    }

    /// Tells a sink of an object that changed; `None` when the event is about something else.
    fn tell(&self, sink: &dyn Sink) -> Option<Result<u64, serde_json::Error>> {
        match self.kind {
            "ADDED" | "MODIFIED" => Some(sink.apply(self.object)),
            "DELETED" => Some(sink.delete(self.object)),
            _ => None,
        }
    }
}

/// Watches until the server ends the watch. `Ok(None)` asks for a new list, `Ok(Some(r))` for a watch from `r`.
async fn watch(
    client: &Client,
    collection: &Collection,
    sink: &dyn Sink,
    mut revision: u64,
) -> Result<Option<u64>, Error> {
    let mut lines = match open(client, collection, revision).await {
        Err(Error::Api(status)) if status.asks_for_a_list() => return Ok(None),
        other => other?,
    };
    let _listening = Listening::begin(sink);
    while let Some(line) = lines.next().await {
        let line = match line {
            Ok(line) => line,
            // The connection broke: go on from where it was, without a new list.
            Err(error) => {
                tracing::debug!(%error, "watch broke off");
                break;
            }
        };
        match heed(rest::text(&line)?, sink)? {
            Some(reached) => revision = reached.max(revision),
            None => return Ok(None),
        }
    }
    Ok(Some(revision))
}

/// Tells a sink what a line of a watch says; returns the revision that it is at then. `Ok(None)` asks for a new list.
fn heed(line: &str, sink: &dyn Sink) -> Result<Option<u64>, Error> {
    if let Some(Ok(revision)) = Event::framed(line).and_then(|event| event.tell(sink)) {
        return Ok(Some(revision));
    }
    let event = Event::read(line)?;
    match event.tell(sink) {
        Some(told) => Ok(Some(told.map_err(Error::Decode)?)),
        None if event.kind == "BOOKMARK" => {
            let mark: MetadataOnly = parsed(event.object)?;
            let revision = revision_of(&mark.metadata);
            sink.advance(revision);
            Ok(Some(revision))
        }
        None => {
            let status: Status = parsed(event.object)?;
            if status.asks_for_a_list() { Ok(None) } else { Err(Error::Api(Box::new(status))) }
        }
    }
}

fn parsed<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(Error::Decode)
}

async fn open(
    client: &Client,
    collection: &Collection,
    revision: u64,
) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
    let seconds = if client.is_in_process() { WATCH_SECONDS_IN_PROCESS } else { WATCH_SECONDS };
    let (from, seconds) = (revision.to_string(), clock::random_range(seconds).to_string());
    let path = collection.path(&[
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("resourceVersion", &from),
        ("timeoutSeconds", &seconds),
    ]);
    let response = rest::open(client, Method::GET, &path, collection.form.accept(), rest::JSON, Vec::new()).await?;
    Ok(lines(response.into_body().into_data_stream()).boxed())
}

/// The lines of a body, without their ends. Those that lie within one piece are parts of it, and not copied.
fn lines(
    body: impl Stream<Item = Result<Bytes, Error>> + Send + Unpin,
) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    // The piece that is read, and the line that began in the ones before it.
    let state = (body, Bytes::new(), BytesMut::new());
    futures::stream::unfold(state, |(mut body, mut piece, mut begun)| async move {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &piece) {
                let mut line = piece.split_to(end);
                piece.advance(1);
                if !begun.is_empty() {
                    begun.extend_from_slice(&line);
                    line = begun.split().freeze();
                }
                return Some((Ok(line), (body, piece, begun)));
            }
            begun.extend_from_slice(&std::mem::take(&mut piece));
            if begun.len() > EVENT_BYTES {
                let error = format!("an event of a watch has more than {EVENT_BYTES} bytes");
                return Some((Err(Error::transport(error)), (body, piece, BytesMut::new())));
            }
            match body.next().await {
                Some(Ok(next)) => piece = next,
                Some(Err(error)) => return Some((Err(error), (body, piece, begun))),
                None => return None,
            }
        }
    })
}

/// A sink of a collection that has one object at most: `tell` hears its state at the first list and after every change.
pub struct One<K, F> {
    tell: F,
    kind: PhantomData<fn() -> K>,
}

impl<K: Object, F: Fn(Option<K>) + Send + Sync> One<K, F> {
    pub fn new(tell: F) -> Self {
        One { tell, kind: PhantomData }
    }
}

impl<K: Object + Send, F: Fn(Option<K>) + Send + Sync> Sink for One<K, F> {
    fn list(&self) -> Box<dyn Listing + '_> {
        Box::new(OneListing { one: self, found: None })
    }

    fn apply(&self, object: &str) -> Result<u64, serde_json::Error> {
        let revision = revision_in(object)?;
        (self.tell)(Some(K::from_json(object)?));
        Ok(revision)
    }

    fn delete(&self, object: &str) -> Result<u64, serde_json::Error> {
        (self.tell)(None);
        revision_in(object)
    }

    fn advance(&self, _: u64) {}
}

/// The revision of an object of which nothing else is wanted.
pub fn revision_in(object: &str) -> Result<u64, serde_json::Error> {
    MetadataOnly::from_json(object).map(|object| revision_of(&object.metadata))
}

struct OneListing<'a, K, F> {
    one: &'a One<K, F>,
    found: Option<K>,
}

impl<K: Object + Send, F: Fn(Option<K>) + Send + Sync> Listing for OneListing<'_, K, F> {
    fn add(&mut self, object: &str) -> Result<(), serde_json::Error> {
        self.found = Some(K::from_json(object)?);
        Ok(())
    }

    fn finish(self: Box<Self>, _: u64) {
        (self.one.tell)(self.found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps what it is told, when that is an object.
    struct Told(parking_lot::Mutex<Vec<String>>);

    impl Sink for Told {
        fn list(&self) -> Box<dyn Listing + '_> {
            unreachable!("nothing is listed")
        }

        fn apply(&self, object: &str) -> Result<u64, serde_json::Error> {
            let revision = revision_in(object)?;
            self.0.lock().push(format!("applied {object}"));
            Ok(revision)
        }

        fn delete(&self, object: &str) -> Result<u64, serde_json::Error> {
            let revision = revision_in(object)?;
            self.0.lock().push(format!("deleted {object}"));
            Ok(revision)
        }

        fn advance(&self, revision: u64) {
            self.0.lock().push(format!("advanced {revision}"));
        }
    }

    #[test]
    fn events_are_read_in_whatever_form_they_come() {
        let check = |line: &str, expected: Result<(Option<u64>, &[&str]), ()>| {
            let sink = Told(parking_lot::Mutex::default());
            let done = heed(line, &sink).map_err(|_| ());
            assert_eq!(done, expected.map(|(revision, _)| revision), "{line}");
            assert_eq!(*sink.0.lock(), expected.map_or(&[][..], |(_, told)| told), "{line}");
        };
        let object = r#"{"metadata":{"name":"}","resourceVersion":"7"}}"#;
        let applied = format!("applied {object}");
        check(&format!(r#"{{"type":"ADDED","object":{object}}}"#), Ok((Some(7), &[&applied])));
        check(&format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n"), Ok((Some(7), &[&applied])));
        check(&format!(r#"{{"type":"DELETED","object":{object}}}"#), Ok((Some(7), &[&format!("deleted {object}")])));
        // As nobody writes them today.
        check(&format!(r#"{{ "object": {object}, "type": "ADDED" }}"#), Ok((Some(7), &[&applied])));
        check(&format!(r#"{{"type":"ADDED","object":{object},"more":{{}}}}"#), Ok((Some(7), &[&applied])));
        check(&format!(r#"{{"type":"BOOKMARK","object":{object}}}"#), Ok((Some(7), &["advanced 7"])));
        check(r#"{"type":"ERROR","object":{"code":410}}"#, Ok((None, &[])));
        let ahead = r#"{"code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"m"}]}}"#;
        check(&format!(r#"{{"type":"ERROR","object":{ahead}}}"#), Ok((None, &[])));
        check(r#"{"type":"ERROR","object":{"code":504,"message":"m"}}"#, Err(()));
        check(r#"{"type":"ERROR","object":{"code":500,"message":"m"}}"#, Err(()));
        check(r#"{"type":"ADDED","object":{}"#, Err(()));
        check(r#"{"type":"ADDED","object":7}"#, Err(()));
        check("{}", Err(()));
    }

    #[tokio::test]
    async fn lines_are_cut_wherever_the_pieces_end() {
        let check = async |pieces: &[&'static str], expected: &[&str]| {
            let body = futures::stream::iter(pieces.to_vec()).map(|piece| Ok(Bytes::from(piece)));
            let lines: Vec<Bytes> = lines(body).map(|line| line.expect("no error came in")).collect().await;
            assert_eq!(lines, expected, "{pieces:?}");
        };
        check(&["a\nb\n"], &["a", "b"]).await;
        check(&["a", "b\n", "\nc", "\n"], &["ab", "", "c"]).await;
        // A line without an end is an event that did not come whole.
        check(&["a\nb"], &["a"]).await;
    }
}
