//! list: all objects that match, as of one revision, in pages when asked. The answer is streamed: header, the entries'
//! bytes, trailer; no more than a chunk of it is in memory.

use std::{io::Write as _, sync::Arc};

use api::{kind::Definition, status::StatusError};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, header};
use json::json;
use spans::Span;
use store::{Entry, Page, Range, Revision, StoreError};

use super::{binary_list::BinaryList, request::Request};
use crate::{
    http::{
        body::{Body, Response},
        encoding::Encoding,
        options::{ListOptions, Match},
        pieces::Pieces,
        request::has_pages,
        respond,
        view::{self, Form, View},
    },
    storage::{
        continuation,
        error::{store_error, too_large_version},
        filter::Filter,
        object,
    },
};

/// Answers up to this size are sent in one piece with their length.
const WHOLE: usize = 64 * 1024;
/// Answers above this size are compressed for those who ask for it.
const COMPRESS_FROM: usize = 2 * WHOLE;
/// This many entries are read at once when a selector leaves out most of them.
const SCAN: usize = 1000;

pub async fn run(request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::list(request.waypoint_name());
    let options = ListOptions::of_list(request.query())?;
    let view = request.view_of_list()?;
    spans::event("About to List from storage");
    let found = request.find(&options).await?;
    spans::event_with("Listing from storage done", || [("count", found.entries.len().into())]);
    request.remember(&options, &found);
    respond_list(&request, view, found).await
}

/// The span of a list's reading. Its name is upstream's, whichever store there is.
fn span(prefix: &str, options: &ListOptions) -> Option<Span> {
    let mut span = spans::part("List(recursive=true) etcd3")?;
    span.set("key", prefix);
    span.set("resourceVersion", &*options.resource_version.map(|revision| revision.to_string()).unwrap_or_default());
    span.set("limit", options.limit);
    span.set("continue", &*options.continue_token);
    Some(span)
}

/// The objects of one answer.
pub(super) struct Found {
    pub entries: Vec<Entry>,
    pub revision: Revision,
    continue_token: Option<String>,
    remaining: Option<usize>,
}

impl Request {
    /// Reads what the options select.
    pub(super) async fn find(&self, options: &ListOptions) -> Result<Found, StatusError> {
        let definition = &*self.definition;
        let filter = Filter::parse(definition, &self.call.info.label_selector, &self.call.info.field_selector)?;
        let mut range = Range::prefix(&self.prefix(&filter));
        let prefix = range.start.clone();
        if let Some(name) = filter.name()
            && (!definition.namespaced() || !self.call.info.namespace.is_empty())
        {
            range.start.push_str(name);
            range.end = format!("{}\0", range.start);
        }
        if options.continue_token.is_empty() {
            range.revision = self.revision(options).await?;
        } else {
            let token = continuation::decode(&options.continue_token)?;
            if options.resource_version.is_some_and(|r| r > 0) {
                return Err(StatusError::bad_request("specifying resource version is not allowed when using continue"));
            }
            range.start = format!("{prefix}{}", token.start.strip_prefix('/').unwrap_or(&token.start));
            // Less than nothing is the newest: so goes on who was told that the pages before expired.
            range.revision = u64::try_from(token.revision).ok();
        }
        spans::within(span(&prefix, options), || self.read(range, &prefix, &filter, options)).await
    }

    /// A list of everything tells how large the next one will be.
    fn remember(&self, options: &ListOptions, found: &Found) {
        let info = &self.call.info;
        let all = info.namespace.is_empty() && info.label_selector.is_empty() && info.field_selector.is_empty();
        if let Some(fairness) = self.call.state.fairness.as_ref().filter(|_| all && self.limit(options) == 0) {
            let bytes = found.entries.iter().map(|entry| entry.value.len()).sum();
            fairness.sizes.listed(&self.definition, found.entries.len(), bytes);
        }
    }

    /// The key prefix of everything that can match.
    fn prefix(&self, filter: &Filter) -> String {
        let namespace = match self.call.info.namespace.as_str() {
            "" => filter.namespace().unwrap_or(""),
            given => given,
        };
        object::key(&self.definition, namespace, "")
    }

    /// The revision to read at: `None` is the newest. Whoever asks for no newer one than is known here gets that: nobody else is
    /// asked, who may be away.
    async fn revision(&self, options: &ListOptions) -> Result<Option<Revision>, StatusError> {
        let Some(wanted) = options.resource_version else { return Ok(None) };
        let exact = match &options.version_match {
            Some(kind) => *kind == Match::Exact,
            // A page without a match asks for exactly that revision.
            None => options.limit > 0 && wanted > 0,
        };
        let store = &self.objects().store;
        let known = store.at_hand_up_to().filter(|known| wanted <= *known);
        if wanted == 0 {
            return Ok(known);
        }
        if known.is_none() {
            let newest = store.revision().await.map_err(store_error)?;
            if wanted > newest {
                return Err(too_large_version(wanted, newest));
            }
        }
        Ok(if exact { Some(wanted) } else { known })
    }

    /// Objects in one answer.
    fn limit(&self, options: &ListOptions) -> usize {
        if has_pages(&self.definition, options.resource_version == Some(0)) { options.limit } else { 0 }
    }

    async fn read(
        &self,
        mut range: Range,
        prefix: &str,
        filter: &Filter,
        options: &ListOptions,
    ) -> Result<Found, StatusError> {
        let everything = filter.is_everything();
        let limit = self.limit(options);
        let mut entries = Vec::new();
        loop {
            range.limit = match (limit, everything) {
                (0, _) => 0,
                (limit, true) => limit,
                (limit, false) => limit.max(SCAN),
            };
            let page = self.page(&range, prefix, options).await?;
            range.revision = Some(page.revision);
            let (mut used, count) = (0, page.entries.len());
            let last_key = page.entries.last().map(|e| e.key.clone());
            let page_entries = self.objects().conversions.shown(&self.definition, page.entries).await?;
            let mut cut = None;
            for entry in page_entries {
                used += 1;
                if everything || filter.matches_entry(&self.definition, &entry) {
                    let key = entry.key.clone();
                    entries.push(entry);
                    if limit > 0 && entries.len() == limit {
                        cut = Some(key);
                        break;
                    }
                }
            }
            let left = count - used + page.remaining;
            if let Some(key) = cut.filter(|_| left > 0) {
                let start = format!("{}\0", &key[prefix.len()..]);
                return Ok(Found {
                    entries,
                    revision: page.revision,
                    continue_token: Some(continuation::encode(page.revision as i64, &start)),
                    remaining: everything.then_some(left),
                });
            }
            match last_key {
                Some(key) if page.remaining > 0 && left > 0 => range.start = format!("{key}\0"),
                _ => return Ok(Found { entries, revision: page.revision, continue_token: None, remaining: None }),
            }
        }
    }

    async fn page(&self, range: &Range, prefix: &str, options: &ListOptions) -> Result<Page, StatusError> {
        self.objects().store.range(range.clone()).await.map_err(|error| match error {
            StoreError::Compacted { .. } if !options.continue_token.is_empty() => {
                expired_page(&range.start[prefix.len()..])
            }
            other => store_error(other),
        })
    }
}

/// The revision of the pages before is forgotten. The rest can be had as of now, which the client has to decide.
fn expired_page(start: &str) -> StatusError {
    let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list \
                   without the continue parameter, or use the continue token in this response to retrieve the remainder of \
                   the results. Continuing with the provided token results in an inconsistent list - objects that were \
                   created, modified, or deleted between the time the first chunk was returned and now may show up in the \
                   list.";
    StatusError {
        continue_token: Some(continuation::encode(continuation::NEWEST, start).into()),
        ..StatusError::expired(message)
    }
}

/// How a list is handed to who sends it.
#[derive(Clone, Copy)]
struct Delivery {
    gzip: bool,
    /// In JSON and in one piece, since its text is to be audited.
    whole: bool,
}

impl Delivery {
    fn of(request: &Request) -> Self {
        let whole = request.call.trail.wants_response();
        let asked = request.header(header::ACCEPT_ENCODING).split(',').any(|e| e.trim() == "gzip");
        Delivery { gzip: asked && !whole, whole }
    }
}

/// The answer with these objects.
pub(super) async fn respond_list(request: &Request, mut view: View, found: Found) -> Result<Response, StatusError> {
    let (definition, Delivery { gzip, whole }) = (request.definition.clone(), Delivery::of(request));
    if whole {
        view.encoding = Encoding::Json;
    }
    let span = request.serializing(view);
    let mut metadata = json!({"resourceVersion": found.revision.to_string()});
    if let Some(token) = &found.continue_token {
        metadata["continue"] = json!(token);
    } else if view.form == Form::Object && definition.is_custom() {
        // As upstream writes lists that it knows by the names of their fields only.
        metadata["continue"] = json!("");
    }
    if let Some(remaining) = found.remaining {
        metadata["remainingItemCount"] = json!(remaining);
    }
    if view.encoding == Encoding::Protobuf {
        let list = BinaryList::measure(definition, view, &metadata, found.entries).await?;
        let (size, media_type) = (list.size(), HeaderValue::from_static(view.encoding.media_type()));
        return Ok(respond_pieces(list, size, gzip && size > COMPRESS_FROM, media_type, span));
    }
    let (head, trailer) = view::list_frame(&definition, view, &metadata, found.entries.len());
    let size: usize = found.entries.iter().map(|e| e.value.len() + 32).sum();
    let chunks = Chunks {
        definition,
        view,
        entries: found.entries.into_iter(),
        head: Some(head),
        first: true,
        trailer: Some(trailer),
        pieces: if size <= WHOLE { Pieces::sized(size + 256) } else { Pieces::default() },
    };
    let gzip = gzip && view.encoding == Encoding::Json && size > COMPRESS_FROM;
    let media_type = match view.encoding {
        Encoding::Cbor => HeaderValue::from_static(view.encoding.media_type()),
        _ => respond::JSON,
    };
    Ok(respond_pieces(chunks, if whole { 0 } else { size }, gzip, media_type, span))
}

/// The pieces that make up the text of a list.
trait List: Iterator<Item = Bytes> + Send + 'static {
    /// All of them in one.
    fn whole(self) -> Bytes;
}

/// An answer of about this size. Its span ends with the last piece, or when nobody takes any more.
fn respond_pieces(list: impl List, size: usize, gzip: bool, media_type: HeaderValue, span: Option<Span>) -> Response {
    let mut response = Response::new(Body::empty());
    response.headers_mut().insert(header::CONTENT_TYPE, media_type);
    *response.body_mut() = if size <= WHOLE {
        Body::from(list.whole())
    } else if gzip {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        let encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
        Body::stream(futures::stream::iter(Compressed { list, encoder, _span: span }))
    } else {
        Body::stream(futures::stream::iter(list.map(move |piece| {
            let _held = &span;
            Ok(piece)
        })))
    };
    response
}

/// The text of a list, piece by piece.
struct Chunks {
    definition: Arc<Definition>,
    view: View,
    entries: std::vec::IntoIter<Entry>,
    head: Option<Vec<u8>>,
    first: bool,
    trailer: Option<Vec<u8>>,
    pieces: Pieces,
}

impl Chunks {
    /// Adds the next part; false when there is none.
    fn add(&mut self) -> bool {
        if let Some(head) = self.head.take() {
            self.pieces.text().extend_from_slice(&head);
        }
        let Some(entry) = self.entries.next() else {
            let Some(trailer) = self.trailer.take() else { return false };
            self.pieces.text().extend_from_slice(&trailer);
            return true;
        };
        if !std::mem::take(&mut self.first) && self.view.encoding != Encoding::Cbor {
            self.pieces.text().push(b',');
        }
        view::write_pieces(&mut self.pieces, &self.definition, self.view, &entry, true);
        true
    }
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        while !self.pieces.is_full() && self.add() {}
        self.pieces.take()
    }
}

impl List for Chunks {
    fn whole(mut self) -> Bytes {
        while self.add() {}
        self.pieces.whole()
    }
}

impl List for BinaryList {
    fn whole(self) -> Bytes {
        BinaryList::whole(self)
    }
}

struct Compressed<L> {
    list: L,
    encoder: Option<GzEncoder<Vec<u8>>>,
    _span: Option<Span>,
}

impl<L: List> Iterator for Compressed<L> {
    type Item = Result<Bytes, crate::http::body::BoxError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(chunk) = self.list.next() else {
                let rest = self.encoder.take()?.finish();
                return Some(rest.map(Bytes::from).map_err(Into::into));
            };
            let encoder = self.encoder.as_mut()?;
            if let Err(error) = encoder.write_all(&chunk) {
                return Some(Err(error.into()));
            }
            let out = std::mem::take(encoder.get_mut());
            if !out.is_empty() {
                return Some(Ok(out.into()));
            }
        }
    }
}
