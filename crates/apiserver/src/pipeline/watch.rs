//! watch: changes as they happen, from a revision on, or from now with the present objects first.

use std::{collections::VecDeque, sync::Arc, time::Duration, vec};

use api::status::StatusError;
use bytes::Bytes;
use clock::Instant;
use futures::{Stream, StreamExt, future, stream};
use http::{Extensions, header};
use listener::Place;
use store::{Entry, Event, Range, Revision, StoreError};

use super::request::Request;
use crate::{
    http::{
        body::Response,
        body::{Body, BoxError},
        encoding::Encoding,
        options::ListOptions,
        pieces::Pieces,
        places::Beginning,
        view::{self, Form, View},
        websocket::Asked,
    },
    state::State,
    storage::{
        conversion::Conversions,
        error::{store_error, too_large_version},
        filter::Filter,
        object,
        object_store::ObjectStore,
    },
    watch_dispatch::{REACH, Subscription, WatchScope},
};

/// Events that wait for a watcher are joined up to about this size: as much as an HTTP/2 frame usually holds.
const FRAME: usize = 16 * 1024;
/// Objects that are made readable at once, before the client takes them.
const TOGETHER: usize = 256;

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::watch(request.waypoint_name());
    let options = ListOptions::of_watch(request.query())?;
    let websocket = Asked::take(&mut request.call.headers, &mut request.call.extensions);
    // Where an item of CBOR ends is not to be seen without reading it.
    let known = if websocket.is_some() { Encoding::USUAL } else { request.call.state.encodings };
    let view = View::negotiate_watch(known, &request.call.headers, &options.include_object, &request.definition)?;
    let scope = request.scope(&options, view)?;
    let opening = Opening::of(&request, options, scope);
    let body = match opening.future().await? {
        Some(revision) => Body::stream(opening.later(revision)),
        None => match opening.begin().await {
            Ok(lines) => Body::stream(lines.into_stream()),
            // An error of the revision is an event of the watch, as from upstream's cache.
            Err(error) if matches!(error.code, 410 | 504) => Body::from(view::error(view, &error)),
            Err(error) => return Err(error),
        },
    };
    Ok(match websocket {
        Some(asked) => asked.watch(view.encoding, body),
        None => events(view.encoding, body),
    })
}

fn events(encoding: Encoding, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, encoding.stream_type());
    response
}

impl Request {
    fn scope(&self, options: &ListOptions, view: View) -> Result<WatchScope, StatusError> {
        let info = &self.call.info;
        let filter = Filter::parse(&self.definition, &info.label_selector, &info.field_selector)?;
        let namespace = match info.namespace.as_str() {
            "" => filter.namespace().unwrap_or("").to_owned(),
            _ if !self.definition.namespaced() => String::new(),
            given => given.to_owned(),
        };
        let name = filter.name().unwrap_or("").to_owned();
        let selectors = format!("{}|{}", info.label_selector, info.field_selector);
        Ok(WatchScope {
            definition: self.definition.clone(),
            view,
            namespace,
            name,
            filter,
            selectors,
            bookmarks: options.bookmarks,
        })
    }
}

/// A watch that has not begun.
struct Opening {
    state: Arc<State>,
    /// Tells whose place it takes.
    asked: Extensions,
    options: ListOptions,
    scope: WatchScope,
    deadline: Instant,
}

impl Opening {
    fn of(request: &Request, options: ListOptions, scope: WatchScope) -> Self {
        let state = request.call.state.clone();
        let limit = state.limits.watch_timeout;
        let timeout = match options.timeout_seconds {
            Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            None => limit + Duration::from_millis(clock::random_range(0..limit.as_millis().max(1) as u64)),
        };
        let (asked, deadline) = (request.call.extensions.clone(), Instant::now() + timeout);
        Opening { state, asked, options, scope, deadline }
    }

    /// The revision that the watch begins at.
    fn from(&self) -> Option<Revision> {
        self.options.resource_version.filter(|r| *r > 0)
    }

    /// The revision to begin at, where the store is not there yet. A client that wants the objects first is not kept waiting.
    async fn future(&self) -> Result<Option<Revision>, StatusError> {
        let objects = &self.state.objects;
        let wanted = self.from().filter(|_| self.options.send_initial_events != Some(true));
        let Some(wanted) = wanted.filter(|wanted| *wanted > objects.watches.revision()) else { return Ok(None) };
        let newest = objects.store.revision().await.map_err(store_error)?;
        Ok((wanted > newest).then_some(wanted))
    }

    /// The events behind a revision that is still to come: nothing until then, and nothing at all when the watch ends first. One
    /// that does not come soon is of a store that is no more, since the cluster has moved to another or was taken back from a
    /// copy: upstream lets such a client wait, here it is told, and lists anew.
    fn later(self, revision: Revision) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
        let (view, deadline) = (self.scope.view, self.deadline);
        let begun = async move {
            let watches = self.state.objects.watches.clone();
            let soon = Instant::now() + REACH;
            match tokio::time::timeout_at(deadline.min(soon), watches.passed(revision)).await {
                Ok(()) => Some(self.begin().await),
                Err(_) if deadline <= soon => None,
                Err(_) => Some(Err(too_large_version(revision, watches.revision()))),
            }
        };
        stream::once(begun).flat_map(move |begun| match begun {
            None => stream::empty().boxed(),
            Some(Ok(lines)) => lines.into_stream().boxed(),
            Some(Err(error)) => stream::once(future::ready(Ok(view::error(view, &error).into()))).boxed(),
        })
    }

    /// Subscribes to the events, and gathers what comes before them.
    async fn begin(self) -> Result<Lines, StatusError> {
        let from = self.from();
        let Opening { state, asked, options, scope, deadline } = self;
        let objects = &state.objects;
        let initial = options.send_initial_events.unwrap_or(false);
        let reach = match (from, options.resource_version) {
            (Some(from), _) => from,
            (None, Some(_)) => 0,
            (None, None) => objects.store.revision().await.map_err(store_error)?,
        };
        if !objects.watches.reached(reach, &*objects.store).await {
            return Err(too_large_version(reach, objects.watches.revision()));
        }
        let (subscription, joined) = match scope.definition.webhook {
            None => objects.watches.subscribe(scope.clone()),
            Some(_) => {
                let joining = objects.watches.subscribe_converted(scope.clone(), reach, &objects.conversions);
                joining.await.map_err(|reached| too_large_version(reach, reached))?
            }
        };
        let (rest, conversions) = (VecDeque::new(), objects.conversions.clone());
        let untold = matches!(scope.view.form, Form::Table(_));
        if is_replaced(objects, &scope) {
            return Ok(Lines { start: None, rest, subscription: None, deadline, scope, conversions, untold });
        }
        let mut start = None;
        if initial {
            let place = state.places.begin(&asked, Beginning::Present)?;
            let end = scope.bookmarks.then_some(joined.revision);
            let waiting = present(objects, &scope, joined.revision).await?.into_iter();
            start = Some(Start::new(Before::Present { waiting, entries: Vec::new().into_iter(), end }, place));
        } else if let Some(from) = from {
            // Without an event of this kind since, there is nothing to read. Behind the newest one there is none either, and
            // a store tells nothing of what comes behind its last event of this prefix.
            let (newest, prefix) = match joined.latest {
                Ok(latest) => (latest, object::key(&scope.definition, "", "")),
                Err(started) => (started, "/registry/".to_owned()),
            };
            if from < newest {
                let place = state.places.begin(&asked, Beginning::Past)?;
                let history = objects.store.watch(&prefix, Some(from)).await.map_err(expired)?;
                let past = Before::Past { history, events: Vec::new().into_iter(), reached: from, to: newest };
                start = Some(Start::new(past, place));
            }
        }
        Ok(Lines { start, rest, subscription: Some(subscription), deadline, scope, conversions, untold })
    }
}

/// Whether the kind is not served any more, or is served as something else, since the watch was asked for. Its watches have
/// been ended then, and this one is to end like them: its client asks anew.
fn is_replaced(objects: &ObjectStore, scope: &WatchScope) -> bool {
    let definition = &scope.definition;
    let served = || objects.kinds.find(&definition.group, &definition.version, &definition.plural);
    definition.is_custom() && !served().is_some_and(|served| Arc::ptr_eq(&served, definition))
}

/// The objects there are at `revision`, with those that the selectors leave out.
async fn present(objects: &ObjectStore, scope: &WatchScope, revision: Revision) -> Result<Vec<Entry>, StatusError> {
    let definition = &scope.definition;
    let mut range = Range::prefix(&object::key(definition, &scope.namespace, ""));
    if !scope.name.is_empty() && (!definition.namespaced() || !scope.namespace.is_empty()) {
        range.start.push_str(&scope.name);
        range.end = format!("{}\0", range.start);
    }
    range.revision = Some(revision);
    Ok(objects.store.range(range).await.map_err(store_error)?.entries)
}

fn expired(error: StoreError) -> StatusError {
    match error {
        StoreError::Compacted { requested, oldest } => {
            StatusError::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        other => store_error(other),
    }
}

/// The events before those that are dispatched. It becomes text piece by piece as the client takes it.
enum Before {
    /// The objects there are, as ADDED events, and the bookmark that ends them if it was asked for.
    /// `waiting` are still as they are stored.
    Present { waiting: vec::IntoIter<Entry>, entries: vec::IntoIter<Entry>, end: Option<Revision> },
    /// The events behind `reached`, up to `to`, from the store's history.
    Past { history: store::Watch, events: vec::IntoIter<Event>, reached: Revision, to: Revision },
}

impl Before {
    /// Adds text until there is enough for a piece; less is the end.
    async fn fill(
        &mut self,
        pieces: &mut Pieces,
        scope: &WatchScope,
        conversions: &Conversions,
    ) -> Result<(), StatusError> {
        let definition = &scope.definition;
        while !pieces.is_full() {
            match self {
                Before::Present { waiting, entries, end } => match entries.next() {
                    Some(entry) => {
                        let fits = scope.name.is_empty() || object::names(definition, &entry.key).1 == scope.name;
                        if fits && scope.filter.matches_entry(definition, &entry) {
                            view::added(pieces, definition, scope.view, &entry);
                        }
                    }
                    None if waiting.len() > 0 => {
                        let next = waiting.by_ref().take(TOGETHER).collect();
                        *entries = conversions.shown(definition, next).await?.into_iter();
                    }
                    None => {
                        if let Some(revision) = end.take() {
                            let line = view::bookmark(definition, scope.view, revision, true);
                            pieces.text().extend_from_slice(&line);
                        }
                        break;
                    }
                },
                Before::Past { history, events, reached, to } => match events.next() {
                    Some(event) if event.revision <= *to => {
                        if let Some(line) = line(scope, &event) {
                            pieces.share(line.into());
                        }
                    }
                    Some(_) => {}
                    None if reached >= to => break,
                    None => {
                        let Some(batch) = history.next().await else { break };
                        let batch = batch.map_err(expired)?;
                        let (own, mut past) = (object::key(definition, "", ""), batch.events);
                        past.retain(|event| event.key.starts_with(&own));
                        *events = conversions.events(definition, past).await?.into_iter();
                        *reached = batch.revision;
                    }
                },
            }
        }
        Ok(())
    }
}

/// The beginning of a watch, with its place.
struct Start {
    before: Before,
    pieces: Pieces,
    _place: Option<Place>,
}

impl Start {
    fn new(before: Before, place: Option<Place>) -> Self {
        Start { before, pieces: Pieces::default(), _place: place }
    }

    /// The next piece; `None` at the end.
    async fn next(&mut self, scope: &WatchScope, conversions: &Conversions) -> Result<Option<Bytes>, StatusError> {
        self.before.fill(&mut self.pieces, scope, conversions).await?;
        Ok(self.pieces.take())
    }
}

/// One event of the past for this watcher.
fn line(scope: &WatchScope, event: &Event) -> Option<Vec<u8>> {
    let definition = &scope.definition;
    let (namespace, name) = object::names(definition, &event.key);
    if !(scope.namespace.is_empty() || scope.namespace == namespace) || !(scope.name.is_empty() || scope.name == name) {
        return None;
    }
    let matching = |e: &&store::Entry| scope.filter.matches_entry(definition, e);
    let (old, new) = (event.previous.as_ref().filter(matching), event.entry.as_ref().filter(matching));
    let (kind, entry) = match (old, new) {
        (None, Some(new)) => ("ADDED", new),
        (Some(_), Some(new)) => ("MODIFIED", new),
        (Some(old), None) => ("DELETED", old),
        (None, None) => return None,
    };
    Some(view::event(definition, scope.view, kind, entry, event.revision))
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
    /// `None` once the client has it.
    start: Option<Start>,
    /// The lines that are left when the watch has ended.
    rest: VecDeque<Bytes>,
    /// `None` once the watch has ended.
    subscription: Option<Subscription>,
    deadline: Instant,
    scope: WatchScope,
    conversions: Arc<Conversions>,
    /// The client gets Tables, and has not been told their columns.
    untold: bool,
}

impl Lines {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
        stream::unfold(self, |mut lines| async move {
            let line = lines.next().await?;
            Some((Ok(line), lines))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        let lines = self.lines().await?;
        if !std::mem::take(&mut self.untold) {
            return Some(lines);
        }
        Some(view::with_columns(&self.scope.definition, self.scope.view, lines))
    }

    async fn lines(&mut self) -> Option<Bytes> {
        if let Some(start) = &mut self.start {
            match start.next(&self.scope, &self.conversions).await {
                Ok(Some(piece)) => return Some(piece),
                Ok(None) => self.start = None,
                Err(error) => {
                    (self.start, self.subscription) = (None, None);
                    return Some(view::error(self.scope.view, &error).into());
                }
            }
        }
        if let Some(line) = self.rest.pop_front() {
            return Some(line);
        }
        let subscription = self.subscription.as_mut()?;
        match tokio::time::timeout_at(self.deadline, subscription.events.recv()).await {
            Ok(line) => line.map(|first| together(first, &mut subscription.events)),
            Err(_) => {
                let mut subscription = self.subscription.take()?;
                let revision = subscription.leave();
                while let Ok(line) = subscription.events.try_recv() {
                    self.rest.push_back(line);
                }
                if self.scope.bookmarks {
                    let WatchScope { definition, view, .. } = &self.scope;
                    self.rest.push_back(view::bookmark(definition, *view, revision, false).into());
                }
                self.rest.pop_front()
            }
        }
    }
}
