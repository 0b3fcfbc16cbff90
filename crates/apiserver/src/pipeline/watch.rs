//! watch: changes as they happen, from a revision on, or from now with the present objects first.

use std::{collections::VecDeque, time::Duration};

use api::status::StatusError;
use bytes::Bytes;
use clock::Instant;
use futures::StreamExt;
use http::header;
use serde_json::json;
use store::{Event, Range, Revision, StoreError};

use super::Request;
use crate::{
    body::{Body, BoxError},
    core::{Core, store_error, too_large_version},
    feed::{Subscription, Wanted},
    filter::Filter,
    object,
    options::ListOptions,
    respond,
    server::Server,
    special::Response,
    view::{self, View},
};

/// Initial events are sent in pieces of about this size.
const CHUNK: usize = 256 * 1024;
/// Events that wait for a watcher are joined up to about this size: as much as an HTTP/2 frame usually holds.
const FRAME: usize = 16 * 1024;

pub async fn run(request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::watch(request.waypoint_name());
    let options = ListOptions::of_watch(request.query())?;
    let view = View::negotiate(&request.call.headers, &options.include_object)?;
    let wanted = request.wanted(&options, view)?;
    let lines = match request.begin(&options, wanted).await {
        Ok(lines) => lines,
        // What is wrong with the revision is an event of the watch, as from upstream's cache.
        Err(error) if error.code == 410 => return Ok(stream(Body::from(error_line(&error)))),
        Err(error) => return Err(error),
    };
    Ok(stream(Body::stream(lines.into_stream())))
}

fn stream(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, respond::JSON);
    response
}

fn error_line(error: &StatusError) -> String {
    let mut status = serde_json::to_value(error.to_status()).unwrap_or_default();
    status["metadata"] = json!({});
    format!("{}\n", json!({"type": "ERROR", "object": status}))
}

impl Request {
    fn wanted(&self, options: &ListOptions, view: View) -> Result<Wanted, StatusError> {
        let info = &self.call.info;
        let filter = Filter::parse(&self.definition, &info.label_selector, &info.field_selector)?;
        let namespace = match info.namespace.as_str() {
            "" => filter.namespace().unwrap_or("").to_owned(),
            _ if !self.definition.namespaced() => String::new(),
            given => given.to_owned(),
        };
        let name = filter.name().unwrap_or("").to_owned();
        let selectors = format!("{}|{}", info.label_selector, info.field_selector);
        Ok(Wanted {
            definition: self.definition.clone(),
            view,
            namespace,
            name,
            filter,
            selectors,
            bookmarks: options.bookmarks,
        })
    }

    /// Joins the feed and gathers what comes before its events.
    async fn begin(&self, options: &ListOptions, wanted: Wanted) -> Result<Lines, StatusError> {
        let server = &self.call.server;
        let core = server.core();
        let from = options.resource_version.filter(|r| *r > 0);
        let initial = options.send_initial_events.unwrap_or(from.is_none());
        let reach = match (from, options.resource_version) {
            (Some(from), _) => from,
            (None, Some(_)) => 0,
            (None, None) => core.store.revision().await.map_err(store_error)?,
        };
        if !core.feed.reached(reach, &*core.store).await {
            return Err(too_large_version(reach, core.feed.revision()));
        }
        let (subscription, joined) = core.feed.subscribe(wanted.clone());
        let mut before = VecDeque::new();
        if initial {
            let end = options.send_initial_events == Some(true) && wanted.bookmarks;
            present(core, &wanted, joined.revision, end, &mut before).await?;
        } else if let Some(from) = from {
            // Without an event of this kind since, there is nothing to read.
            let (newest, prefix) = match joined.latest {
                Ok(latest) => (latest, object::key(&wanted.definition, "", "")),
                Err(started) => (started, "/registry/".to_owned()),
            };
            if from < newest {
                missed(core, &wanted, from, joined.revision, &prefix, &mut before).await?;
            }
        }
        let limit = server.limits().watch_timeout;
        let timeout = match options.timeout_seconds {
            Some(seconds) => Duration::from_secs(seconds),
            None => limit + Duration::from_millis(clock::random_range(0..limit.as_millis().max(1) as u64)),
        };
        let deadline = Instant::now() + timeout;
        Ok(Lines { before, subscription: Some(subscription), deadline, wanted, _open: Open::new(server.clone()) })
    }
}

/// The objects there are at `revision`, as ADDED events.
async fn present(
    core: &Core,
    wanted: &Wanted,
    revision: Revision,
    end: bool,
    before: &mut VecDeque<Bytes>,
) -> Result<(), StatusError> {
    let definition = &wanted.definition;
    let mut range = Range::prefix(&object::key(definition, &wanted.namespace, ""));
    if !wanted.name.is_empty() && (!definition.namespaced() || !wanted.namespace.is_empty()) {
        range.start.push_str(&wanted.name);
        range.end = format!("{}\0", range.start);
    }
    range.revision = Some(revision);
    let page = core.store.range(range).await.map_err(store_error)?;
    let mut chunk = Vec::new();
    for entry in page.entries {
        let name_fits = wanted.name.is_empty() || object::names(definition, &entry.key).1 == wanted.name;
        if name_fits && wanted.filter.matches_bytes(definition, &entry.value) {
            chunk.extend_from_slice(&view::event(definition, wanted.view, "ADDED", &entry.value, entry.modified));
            if chunk.len() > CHUNK {
                before.push_back(std::mem::take(&mut chunk).into());
            }
        }
    }
    if end {
        chunk.extend_from_slice(&view::bookmark(definition, wanted.view, revision, true));
    }
    if !chunk.is_empty() {
        before.push_back(chunk.into());
    }
    Ok(())
}

/// The events after `from` up to `to`, from the store's history.
async fn missed(
    core: &Core,
    wanted: &Wanted,
    from: Revision,
    to: Revision,
    prefix: &str,
    before: &mut VecDeque<Bytes>,
) -> Result<(), StatusError> {
    let expired = |error| match error {
        StoreError::Compacted { requested, oldest } => {
            StatusError::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        other => store_error(other),
    };
    let mut history = core.store.watch(prefix, Some(from)).await.map_err(expired)?;
    let mut chunk = Vec::new();
    let mut reached = from;
    while reached < to {
        let Some(batch) = history.next().await else { break };
        let batch = batch.map_err(expired)?;
        for event in batch.events.iter().filter(|e| e.revision <= to) {
            if let Some(line) = line(wanted, event) {
                chunk.extend_from_slice(&line);
            }
        }
        reached = batch.revision;
    }
    if !chunk.is_empty() {
        before.push_back(chunk.into());
    }
    Ok(())
}

/// One event of the past for this watcher.
fn line(wanted: &Wanted, event: &Event) -> Option<Vec<u8>> {
    let definition = &wanted.definition;
    let own = object::key(definition, "", "");
    if !event.key.starts_with(&own) {
        return None;
    }
    let (namespace, name) = object::names(definition, &event.key);
    if !(wanted.namespace.is_empty() || wanted.namespace == namespace)
        || !(wanted.name.is_empty() || wanted.name == name)
    {
        return None;
    }
    let matching = |e: &&store::Entry| wanted.filter.matches_bytes(definition, &e.value);
    let (old, new) = (event.previous.as_ref().filter(matching), event.entry.as_ref().filter(matching));
    let (kind, entry) = match (old, new) {
        (None, Some(new)) => ("ADDED", new),
        (Some(_), Some(new)) => ("MODIFIED", new),
        (Some(old), None) => ("DELETED", old),
        (None, None) => return None,
    };
    Some(view::event(definition, wanted.view, kind, &entry.value, event.revision))
}

/// Counts a watch among the long-running requests while it is open.
struct Open(Server);

impl Open {
    fn new(server: Server) -> Self {
        server.shared.metrics.long_running.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Open(server)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.shared.metrics.long_running.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A buffer with those that wait behind it, if there are any: a watcher that lags is woken less often.
fn together(first: Bytes, waiting: &mut tokio::sync::mpsc::Receiver<Bytes>) -> Bytes {
    if first.len() >= FRAME {
        return first;
    }
    let Ok(second) = waiting.try_recv() else { return first };
    let mut all = [first, second].concat();
    while all.len() < FRAME
        && let Ok(more) = waiting.try_recv()
    {
        all.extend_from_slice(&more);
    }
    all.into()
}

/// The lines of one watch.
struct Lines {
    before: VecDeque<Bytes>,
    /// `None` once the watch has ended.
    subscription: Option<Subscription>,
    deadline: Instant,
    wanted: Wanted,
    _open: Open,
}

impl Lines {
    fn into_stream(self) -> impl futures::Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
        futures::stream::unfold(self, |mut lines| async move {
            let line = lines.next().await?;
            Some((Ok(line), lines))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(line) = self.before.pop_front() {
            return Some(line);
        }
        let subscription = self.subscription.as_mut()?;
        match tokio::time::timeout_at(self.deadline, subscription.events.recv()).await {
            Ok(line) => line.map(|first| together(first, &mut subscription.events)),
            Err(_) => {
                let mut subscription = self.subscription.take()?;
                let revision = subscription.leave();
                while let Ok(line) = subscription.events.try_recv() {
                    self.before.push_back(line);
                }
                if self.wanted.bookmarks {
                    let Wanted { definition, view, .. } = &self.wanted;
                    self.before.push_back(view::bookmark(definition, *view, revision, false).into());
                }
                self.before.pop_front()
            }
        }
    }
}
